/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token bucket's own functions, each at its edge and one past it. Whole lives of buckets are judged by the model
 * and the golden vectors.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "core/bucket.h"
#include "core/limit.h"

static const spile__algorithm *const bucket = &spile__token_bucket;

static spile_shape shape_of(int64_t capacity, int64_t tokens, int64_t period_ms, int64_t debt) {
  spile_shape shape;
  cr_assert(eq(int, spile__shape_make(&shape, capacity, tokens, period_ms, debt, NULL), SPILE_OK));
  return shape;
}

static spile__state state_of(spile_shape shape, int64_t full_at_ms, int64_t rem) {
  spile__state state = {.shape = shape};
  state.bucket.full_at_ms = full_at_ms;
  state.bucket.rem = rem;
  return state;
}

/* The debt in units that a state has at now_ms under `shape`, and whether a take has to write it. */
static int64_t debt_of(spile_shape shape, spile__state state, int64_t now_ms, bool *moved) {
  spile_reading reading;
  *moved = bucket->read(&shape, &state, now_ms, 0, &reading);
  cr_assert(bucket->reading_valid(&shape, &reading, 0));
  return reading.values[0];
}

static void expect_debt(spile_shape shape, spile__state state, int64_t now_ms, int64_t debt, bool moved) {
  bool did_move;
  cr_expect(eq(i64, debt_of(shape, state, now_ms, &did_move), debt), "at %lld", (long long)now_ms);
  cr_expect(did_move == moved, "at %lld", (long long)now_ms);
}

static spile__verdict report_of(spile_shape shape, int64_t debt, int64_t cost, bool charged) {
  spile_reading reading = {{debt}};
  spile__verdict verdict;
  bucket->report(&shape, &reading, cost, charged, &verdict);
  return verdict;
}

static void expect_verdict(spile__verdict got, int outcome, int64_t remaining, int64_t retry_ms, int64_t reset_ms) {
  cr_expect(eq(int, got.outcome, outcome));
  cr_expect(eq(i64, got.remaining, remaining));
  cr_expect(eq(i64, got.retry_after_ms, retry_ms));
  cr_expect(eq(i64, got.reset_after_ms, reset_ms));
}

Test(bucket, no_state_is_a_full_bucket) {
  spile_shape shape = shape_of(10, 1, 1000, 0);
  spile_reading reading = {{7, 7, 7, 7}};
  cr_expect(not(bucket->read(&shape, NULL, 5, 0, &reading)));
  for (int i = 0; i < 4; i++)
    cr_expect(eq(i64, reading.values[i], 0));
}

/* C = 1, 2 per ms: full at 100 + 1/2 ms. */
Test(bucket, a_bucket_is_in_debt_until_the_last_part_of_a_millisecond) {
  spile_shape shape = shape_of(1, 2, 1, 0);
  spile__state state = state_of(shape, 100, 1);
  expect_debt(shape, state, 99, 3, false);
  expect_debt(shape, state, 100, 1, false);
  expect_debt(shape, state, 101, 0, false);
  expect_debt(shape, state, SPILE_TIME_MAX_MS, 0, false);
  cr_expect(eq(i64, bucket->full_at_ms(&state), 101));
  state.bucket.rem = 0;
  expect_debt(shape, state, 100, 0, false);
  cr_expect(eq(i64, bucket->full_at_ms(&state), 100));
}

/* C = 10 at 1 per 1000 ms: 10000 ms to full and one second of tolerance. */
Test(bucket, the_cut_comes_one_unit_past_the_tolerance) {
  spile_shape shape = shape_of(10, 1, 1000, 0);
  expect_debt(shape, state_of(shape, 111000, 0), 100000, 11000, false);
  expect_debt(shape, state_of(shape, 111001, 0), 100000, 10000, true);
  expect_debt(shape, state_of(shape, INT64_C(10315360001000), 0), 0, 10000, true);
  /* With 3 per 1000 ms the edge is 10000 + 3000 units: 4333 ms and a remainder of 1. */
  shape = shape_of(10, 3, 1000, 0);
  expect_debt(shape, state_of(shape, 104333, 1), 100000, 13000, false);
  expect_debt(shape, state_of(shape, 104333, 2), 100000, 10000, true);
}

Test(bucket, the_cut_counts_from_the_deepest_debt_and_leaves_an_empty_bucket) {
  spile_shape shape = shape_of(10, 1, 1000, 5);
  expect_debt(shape, state_of(shape, 116000, 0), 100000, 16000, false);
  expect_debt(shape, state_of(shape, 116001, 0), 100000, 10000, true);
}

Test(bucket, the_cut_is_made_in_the_stored_shape_before_it_is_converted) {
  spile_shape old = shape_of(10, 1, 1000, 0);
  spile_shape shape = shape_of(3, 1, 7, 0);
  expect_debt(shape, state_of(old, 111001, 0), 100000, 21, true);
}

/* Level 2.5 tokens: D = 7500 of 10000. */
Test(bucket, a_conversion_keeps_the_level_and_not_the_debt) {
  spile_shape old = shape_of(10, 1, 1000, 0);
  spile__state state = state_of(old, 107500, 0);
  expect_debt(shape_of(20, 1, 1000, 0), state, 100000, 17500, true); /* room, not tokens */
  expect_debt(shape_of(3, 1, 1000, 0), state, 100000, 500, true);
  expect_debt(shape_of(2, 1, 1000, 0), state, 100000, 0, true);
  expect_debt(shape_of(10, 1, 3, 0), state, 100000, 30 - 7, true);     /* ⌊2.5·3⌋ = 7 units of 1/3 */
  expect_debt(shape_of(10, 60, 60000, 0), state, 100000, 7500, false); /* the same in other words */
  expect_debt(shape_of(10, 1, 1000, 1), state, 100000, 7500, true);
}

Test(bucket, a_full_bucket_is_not_converted) {
  spile__state state = state_of(shape_of(1, 1, 1000, 0), 100000, 0);
  expect_debt(shape_of(500, 1, 7, 0), state, 100000, 0, false);
  expect_debt(shape_of(500, 1, 7, 0), state, 99999, 3500 - 6, true); /* ⌊999·7/1000⌋ */
}

/* 99999999999 of 100000000003 units: ⌊99999999999 · 299999999989 / 100000000003⌋ = 299999999977, a product of 75 bits.
 */
Test(bucket, a_conversion_is_exact_where_products_pass_2_to_the_53) {
  spile_shape old = shape_of(1, 1, INT64_C(100000000003), 0);
  spile_shape shape = shape_of(1, 1, INT64_C(299999999989), 0);
  expect_debt(shape, state_of(old, 4, 0), 0, 12, true);
}

Test(bucket, a_level_below_zero_is_kept_only_as_far_as_the_new_debt) {
  spile_shape old = shape_of(10, 1, 1000, 5);
  spile__state state = state_of(old, 113500, 0); /* level −3.5 */
  expect_debt(shape_of(10, 1, 1000, 4), state, 100000, 13500, true);
  expect_debt(shape_of(10, 1, 1000, 3), state, 100000, 13000, true);
  expect_debt(shape_of(10, 1, 1000, 0), state, 100000, 10000, true);
  expect_debt(shape_of(10, 1, 3, 5), state, 100000, 30 + 11, true); /* ⌊−10.5⌋ */
}

Test(bucket, a_take_fits_to_the_last_unit) {
  spile_shape shape = shape_of(10, 1, 1000, 0);
  spile_reading reading = {{7000}};
  cr_expect(bucket->fits(&shape, &reading, 3));
  cr_expect(not(bucket->fits(&shape, &reading, 4)));
  reading.values[0] = 7001;
  cr_expect(not(bucket->fits(&shape, &reading, 3)));
  reading.values[0] = 0;
  cr_expect(bucket->fits(&shape, &reading, 10));
}

Test(bucket, nothing_fits_below_zero_not_even_nothing) {
  spile_shape shape = shape_of(10, 1, 1000, 0);
  spile_reading reading = {{10000}};
  cr_expect(bucket->fits(&shape, &reading, 0));
  reading.values[0] = 10001;
  cr_expect(not(bucket->fits(&shape, &reading, 0)));
  expect_verdict(report_of(shape, 10001, 0, true), SPILE_DENIED, 0, 1, 10001);
}

Test(bucket, a_charge_is_the_cost_in_units) {
  spile_shape shape = shape_of(10, 7, 1000, 0);
  spile_reading reading = {{6}};
  bucket->charge(&shape, &reading, 3);
  cr_expect(eq(i64, reading.values[0], 3006));
  bucket->charge(&shape, &reading, 0);
  cr_expect(eq(i64, reading.values[0], 3006));
}

Test(bucket, a_state_keeps_what_whole_milliseconds_leave) {
  spile_shape shape = shape_of(100, 7, 1000, 0);
  spile_reading reading = {{100000}};
  spile__state state;
  cr_assert(bucket->state(&shape, &reading, 1000, NULL, &state));
  cr_expect(eq(i64, state.bucket.full_at_ms, 1000 + 14285)); /* 100000 = 14285·7 + 5 */
  cr_expect(eq(i64, state.bucket.rem, 5));
  expect_debt(shape, state, 1000, 100000, false);
}

Test(bucket, a_full_bucket_has_no_state) {
  spile_shape shape = shape_of(100, 7, 1000, 0);
  spile_reading reading = {{0}};
  spile__state state;
  cr_expect(not(bucket->state(&shape, &reading, 1000, NULL, &state)));
}

/* 7 units a ms, 1000 a token, level 7.001 tokens. */
Test(bucket, waits_round_up_and_what_is_left_rounds_down) {
  spile_shape shape = shape_of(10, 7, 1000, 0);
  expect_verdict(report_of(shape, 2999, 7, false), SPILE_ALLOWED, 7, 0, 429); /* 428.4 */
  expect_verdict(report_of(shape, 2999, 7, true), SPILE_ALLOWED, 0, 0, 1429); /* 9999/7 = 1428.4 */
  expect_verdict(report_of(shape, 2999, 8, true), SPILE_DENIED, 7, 143, 429); /* 999/7 = 142.7 */
  expect_verdict(report_of(shape, 3000, 8, true), SPILE_DENIED, 7, 143, 429); /* 1000/7 = 142.9, 428.6 */
  expect_verdict(report_of(shape, 3001, 8, true), SPILE_DENIED, 6, 143, 429); /* 1001/7 = 143 */
  expect_verdict(report_of(shape, 3002, 8, true), SPILE_DENIED, 6, 144, 429); /* 1002/7 = 143.1 */
  expect_verdict(report_of(shape, 0, 11, true), SPILE_NEVER, 10, SPILE_UNKNOWN, 0);
  expect_verdict(report_of(shape, 3001, INT64_MAX, true), SPILE_NEVER, 6, SPILE_UNKNOWN, 429);
  expect_verdict(report_of(shape, 17000, 10, true), SPILE_DENIED, 0, 2429, 2429); /* 17000/7 = 2428.6 */
}

/* C = 10, debt 2, P = 1000: empty at 10000 units of debt, the deepest at 12000. */
Test(bucket, a_charge_goes_as_deep_as_the_debt_and_says_what_is_left_of_it) {
  spile_shape shape = shape_of(10, 7, 1000, 2);
  static const struct {
    const char *name;
    int64_t debt, cost, after, uncharged;
  } rows[] = {
      {"nothing", 500, 0, 500, 0},
      {"from full to empty", 0, 10, 10000, 0},
      {"to the deepest", 0, 12, 12000, 0},
      {"one past it", 0, 13, 12000, 1},
      {"a part of a token is not charged, rounded up", 1, 12, 12000, 1},
      {"a part of a token is left", 11001, 0, 11001, 0},
      {"and charged", 11001, 1, 12000, 1},
      {"the last whole one", 11000, 1, 12000, 0},
      {"at the deepest", 12000, 3, 12000, 3},
      {"deeper by a clock that stepped back", 13500, 3, 13500, 3},
      {"the largest cost", 0, INT64_MAX, 12000, INT64_MAX - 12},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_reading reading = {{rows[i].debt}};
    cr_expect(eq(i64, bucket->force(&shape, &reading, rows[i].cost), rows[i].uncharged), "%s", rows[i].name);
    cr_expect(eq(i64, reading.values[0], rows[i].after), "%s", rows[i].name);
  }
}

Test(bucket, a_refund_goes_to_full_and_not_past_it) {
  spile_shape shape = shape_of(10, 7, 1000, 2);
  static const struct {
    int64_t debt, cost, after;
  } rows[] = {{0, 5, 0},    {3000, 0, 3000}, {3000, 2, 1000},  {3000, 3, 0},          {3000, 4, 0},
              {3001, 3, 1}, {3001, 4, 0},    {13500, 13, 500}, {12000, INT64_MAX, 0}, {999, 1, 0}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_reading reading = {{rows[i].debt}};
    bucket->refund(&shape, &reading, rows[i].cost);
    cr_expect(eq(i64, reading.values[0], rows[i].after), "%lld back of %lld", (long long)rows[i].cost,
              (long long)rows[i].debt);
  }
}

Test(bucket, there_is_room_for_whole_tokens) {
  spile_shape shape = shape_of(10, 7, 1000, 2);
  static const int64_t rows[][2] = {{0, 10}, {1, 9}, {9000, 1}, {9001, 0}, {10000, 0}, {13000, 0}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_reading reading = {{rows[i][0]}};
    cr_expect(eq(i64, bucket->room(&shape, &reading), rows[i][1]), "a debt of %lld", (long long)rows[i][0]);
  }
}

Test(bucket, readings_from_outside_are_held_to_the_bounds) {
  spile_shape shape = shape_of(10, 3, 1000, 2);
  spile_reading reading = {{12000 + 3000}};
  cr_expect(bucket->reading_valid(&shape, &reading, 0));
  reading.values[0]++;
  cr_expect(not(bucket->reading_valid(&shape, &reading, 0)));
  reading.values[0] = -1;
  cr_expect(not(bucket->reading_valid(&shape, &reading, 0)));
}

Test(bucket, stored_states_are_held_to_the_bounds) {
  spile_shape shape = shape_of(10, 3, 1000, 0);
  spile__state state = state_of(shape, 0, 2);
  cr_expect(bucket->state_valid(&state));
  state.bucket.rem = 3;
  cr_expect(not(bucket->state_valid(&state)));
  state.bucket.rem = -1;
  cr_expect(not(bucket->state_valid(&state)));
  state = state_of(shape, -1, 0);
  cr_expect(not(bucket->state_valid(&state)));
  /* The latest time, ten years and a second. */
  state = state_of(shape, INT64_C(10315360001000), 0);
  cr_expect(bucket->state_valid(&state));
  state.bucket.full_at_ms++;
  cr_expect(not(bucket->state_valid(&state)));
}

Test(bucket, the_algorithm_has_one_name_and_one_number) {
  cr_expect(eq(ptr, (void *)spile__algorithm_get(SPILE_TOKEN_BUCKET), (void *)bucket));
  spile_algorithm algorithm;
  cr_expect(spile__algorithm_find("token_bucket", 12, &algorithm) && algorithm == SPILE_TOKEN_BUCKET);
  cr_expect(not(spile__algorithm_find("token_bucket", 11, &algorithm)));
  cr_expect(not(spile__algorithm_find("token_bucket2", 13, &algorithm)));
  cr_expect(not(spile__algorithm_find("", 0, &algorithm)));
}
