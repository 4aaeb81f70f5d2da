/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "core/limit.h"
#include "core/record.h"

#define LEN 56

/*
 * A record as the first version wrote it, which every later version has to read: 60 tokens at 1 per 1000 ms, full at
 * 1700000000123 ms, under the key "k". Computed by tests/vectors/siphash.py.
 */
static const unsigned char golden[LEN] = {
    0x01, 0x01, 0x00, 0x00, 0x82, 0x75, 0x33, 0x09, 0x3c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0xe8, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x7b, 0x68, 0xe5, 0xcf, 0x8b, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};

static spile__state state_of(int64_t capacity, int64_t refill, int64_t period_ms, int64_t debt, int64_t full_at_ms,
                             int64_t rem) {
  spile__state state = {.shape = {.capacity = capacity, .refill = refill, .period_ms = period_ms, .debt = debt}};
  state.bucket.full_at_ms = full_at_ms;
  state.bucket.rem = rem;
  return state;
}

static spile_reason decode(const void *record, size_t len, spile__state *out) {
  return spile__record_decode(record, len, SPILE_TOKEN_BUCKET, "k", 1, out);
}

static void expect_same(const spile__state *got, const spile__state *want) {
  cr_expect(spile__shape_equal(&got->shape, &want->shape));
  cr_expect(eq(i64, got->bucket.full_at_ms, want->bucket.full_at_ms));
  cr_expect(eq(i64, got->bucket.rem, want->bucket.rem));
}

Test(record, the_first_version_stays_readable) {
  spile__state want = state_of(60, 1, 1000, 0, INT64_C(1700000000123), 0);
  spile__state got;
  cr_assert(eq(int, (int)decode(golden, LEN, &got), SPILE_REASON_NONE));
  expect_same(&got, &want);
  unsigned char written[SPILE__RECORD_LEN_MAX];
  cr_assert(eq(sz, spile__record_encode(written, SPILE_TOKEN_BUCKET, &want, "k", 1), LEN));
  cr_expect(memcmp(written, golden, LEN) == 0);
}

/* A leaky bucket as its first version wrote it. */
Test(record, a_leaky_bucket_differs_in_its_algorithm_only) {
  spile__state state = state_of(60, 1, 1000, 0, INT64_C(1700000000123), 0);
  unsigned char written[SPILE__RECORD_LEN_MAX];
  cr_assert(eq(sz, spile__record_encode(written, SPILE_LEAKY_BUCKET, &state, "k", 1), LEN));
  cr_expect(written[1] == 2);
  cr_expect(memcmp(written + 8, golden + 8, LEN - 8) == 0);
  spile__state got;
  cr_assert(eq(int, (int)spile__record_decode(written, LEN, SPILE_LEAKY_BUCKET, "k", 1, &got), SPILE_REASON_NONE));
  expect_same(&got, &state);
}

/* A fixed window as its first version wrote it: 5 of 100 in the minute that begins at 1699999980000, key "k". */
static const unsigned char golden_fixed[LEN] = {
    0x01, 0x03, 0x00, 0x00, 0xe9, 0x08, 0x62, 0x54, 0x64, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x60, 0xea, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0xe0, 0x19, 0xe5, 0xcf, 0x8b, 0x01, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};

Test(record, a_fixed_window_stays_readable) {
  spile__state state = {.shape = {.capacity = 100, .refill = 1, .period_ms = 60000}};
  state.window.start_ms = INT64_C(1699999980000);
  state.window.count = 5;
  unsigned char written[SPILE__RECORD_LEN_MAX];
  cr_assert(eq(sz, spile__record_encode(written, SPILE_FIXED_WINDOW, &state, "k", 1), LEN));
  cr_expect(memcmp(written, golden_fixed, LEN) == 0);
  spile__state got;
  cr_assert(eq(int, (int)spile__record_decode(golden_fixed, LEN, SPILE_FIXED_WINDOW, "k", 1, &got), SPILE_REASON_NONE));
  cr_expect(spile__shape_equal(&got.shape, &state.shape));
  cr_expect(got.window.start_ms == state.window.start_ms && got.window.count == state.window.count);
}

/* The same as a sliding window, with 7 in the minute before. */
static const unsigned char golden_sliding[LEN + 8] = {
    0x01, 0x04, 0x00, 0x00, 0xa5, 0x77, 0xcd, 0xae, 0x64, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x60, 0xea, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xe0, 0x19, 0xe5, 0xcf, 0x8b, 0x01, 0x00, 0x00,
    0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};

Test(record, a_sliding_window_stays_readable) {
  spile__state state = {.shape = {.capacity = 100, .refill = 1, .period_ms = 60000}};
  state.sliding.start_ms = INT64_C(1699999980000);
  state.sliding.count = 5;
  state.sliding.before = 7;
  unsigned char written[SPILE__RECORD_LEN_MAX];
  cr_assert(eq(sz, spile__record_encode(written, SPILE_SLIDING_WINDOW, &state, "k", 1), LEN + 8));
  cr_expect(memcmp(written, golden_sliding, LEN + 8) == 0);
  spile__state got;
  cr_assert(eq(int, (int)spile__record_decode(golden_sliding, LEN + 8, SPILE_SLIDING_WINDOW, "k", 1, &got),
               SPILE_REASON_NONE));
  cr_expect(spile__shape_equal(&got.shape, &state.shape));
  cr_expect(memcmp(got.numbers, state.numbers, 3 * sizeof(got.numbers[0])) == 0);
  /* Its length is not that of a fixed window. */
  cr_expect(eq(int, (int)spile__record_decode(golden_sliding, LEN, SPILE_SLIDING_WINDOW, "k", 1, &got),
               SPILE_REASON_CORRUPT));
}

/* A sliding log as its first version wrote it: 5 at 1700000000000 and 2 at 1700000000123. */
static const unsigned char golden_log[LEN] = {
    0x01, 0x05, 0x00, 0x00, 0xec, 0xea, 0xac, 0x26, 0x64, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x60, 0xea, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x05, 0x00, 0xa0, 0x95, 0x3f, 0x2f, 0x06, 0x00, 0x02, 0xec, 0xa1, 0x95, 0x3f, 0x2f, 0x06, 0x00};

Test(record, a_sliding_log_stays_readable) {
  spile__state state = {.shape = {.capacity = 100, .refill = 1, .period_ms = 60000}, .n = 2};
  state.log[0] = spile__log_entry(INT64_C(1700000000000), 5);
  state.log[1] = spile__log_entry(INT64_C(1700000000123), 2);
  unsigned char written[SPILE__RECORD_LEN_MAX];
  cr_assert(eq(sz, spile__record_encode(written, SPILE_SLIDING_LOG, &state, "k", 1), LEN));
  cr_expect(memcmp(written, golden_log, LEN) == 0);
  spile__state got;
  cr_assert(eq(int, (int)spile__record_decode(golden_log, LEN, SPILE_SLIDING_LOG, "k", 1, &got), SPILE_REASON_NONE));
  cr_expect(got.n == 2 && memcmp(got.log, state.log, 2 * sizeof(got.log[0])) == 0);
}

Test(record, a_sliding_log_may_say_what_cannot_be) {
  static const struct {
    int64_t capacity;
    size_t n;
    int64_t entries[3];
  } rows[] = {
      {10, 1, {0}},         /* no tokens */
      {10, 1, {-1024 + 1}}, /* before 1970 */
      {10, 1, {INT64_C(10000000001001) * 1024 + 1}},
      {10, 2, {5 * 1024 + 1, 5 * 1024 + 1}}, /* two of one millisecond */
      {10, 2, {6 * 1024 + 1, 5 * 1024 + 1}}, /* out of order */
      {10, 2, {5 * 1024 + 5, 6 * 1024 + 6}}, /* more than the capacity */
      {1001, 1, {5 * 1024 + 5}},
      {10, 1, {INT64_MIN}},
      {10, 1, {INT64_MAX}},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile__state state = {.shape = {.capacity = rows[i].capacity, .refill = 1, .period_ms = 60000}, .n = rows[i].n};
    memcpy(state.log, rows[i].entries, sizeof(rows[i].entries));
    unsigned char record[SPILE__RECORD_LEN_MAX];
    size_t len = spile__record_encode(record, SPILE_SLIDING_LOG, &state, "k", 1);
    spile__state got;
    cr_expect(eq(int, (int)spile__record_decode(record, len, SPILE_SLIDING_LOG, "k", 1, &got), SPILE_REASON_CORRUPT),
              "row %zu", i);
  }
}

Test(record, a_window_may_say_what_cannot_be) {
  static const struct {
    int64_t capacity, refill, window_ms, debt, start_ms, count;
  } rows[] = {
      {100, 1, 60000, 0, INT64_C(1699999980001), 5},
      {100, 1, 60000, 0, -60000, 5},
      {100, 1, 60000, 0, 0, 0},
      {100, 1, 60000, 0, 0, 101},
      {100, 1, 60000, 0, 0, -1},
      {100, 2, 60000, 0, 0, 5},
      {100, 1, 60000, 1, 0, 5},
      {100, 1, 0, 0, 0, 5},
      {0, 1, 60000, 0, 0, 0},
      {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile__state state = {.shape = {rows[i].capacity, rows[i].refill, rows[i].window_ms, rows[i].debt}};
    state.window.start_ms = rows[i].start_ms;
    state.window.count = rows[i].count;
    unsigned char record[SPILE__RECORD_LEN_MAX];
    size_t len = spile__record_encode(record, SPILE_FIXED_WINDOW, &state, "k", 1);
    spile__state got;
    cr_expect(eq(int, (int)spile__record_decode(record, len, SPILE_FIXED_WINDOW, "k", 1, &got), SPILE_REASON_CORRUPT),
              "row %zu", i);
  }
}

Test(record, what_is_written_is_read_back) {
  const spile__state states[] = {
      state_of(1, 1, 1, 0, 0, 0),
      state_of(100, 7, 1000, 5, 14285, 5),
      state_of(INT64_C(9007199224710991), 30000, 1, 0, INT64_C(10315360001000), 29999),
      state_of(1, 1, INT64_C(315360000000), 0, INT64_C(1700000000000), 0),
      state_of(1, INT64_C(8998201053687), 1, 0, 0, INT64_C(8998201053686)),
  };
  for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
    unsigned char record[SPILE__RECORD_LEN_MAX];
    spile__state got;
    size_t len = spile__record_encode(record, SPILE_TOKEN_BUCKET, &states[i], "k", 1);
    cr_assert(eq(int, (int)decode(record, len, &got), SPILE_REASON_NONE), "row %zu", i);
    expect_same(&got, &states[i]);
  }
}

Test(record, every_changed_byte_is_found) {
  for (size_t at = 0; at < LEN; at++) {
    for (unsigned value = 0; value < 256; value++) {
      if (value == golden[at])
        continue;
      unsigned char record[LEN];
      memcpy(record, golden, LEN);
      record[at] = (unsigned char)value;
      spile__state got;
      spile_reason want = at == 0 && value > 1 ? SPILE_REASON_FORMAT : SPILE_REASON_CORRUPT;
      cr_assert(eq(int, (int)decode(record, LEN, &got), (int)want), "byte %zu became %u", at, value);
    }
  }
}

Test(record, every_pair_of_swapped_bytes_is_found) {
  for (size_t a = 0; a < LEN; a++) {
    for (size_t b = a + 1; b < LEN; b++) {
      unsigned char record[LEN];
      memcpy(record, golden, LEN);
      record[a] = golden[b];
      record[b] = golden[a];
      spile__state got;
      if (golden[a] != golden[b])
        cr_assert(decode(record, LEN, &got) != SPILE_REASON_NONE, "bytes %zu and %zu", a, b);
    }
  }
}

Test(record, a_record_has_one_length) {
  unsigned char record[LEN + 8] = {0};
  memcpy(record, golden, LEN);
  spile__state got;
  for (size_t len = 0; len < LEN; len++)
    cr_expect(eq(int, (int)decode(record, len, &got), SPILE_REASON_CORRUPT), "length %zu", len);
  for (size_t len = LEN + 1; len <= sizeof(record); len++)
    cr_expect(eq(int, (int)decode(record, len, &got), SPILE_REASON_CORRUPT), "length %zu", len);
}

Test(record, a_later_version_is_told_from_damage_whatever_its_length) {
  unsigned char record[LEN + 8] = {2};
  spile__state got;
  for (size_t len = 1; len <= sizeof(record); len++)
    cr_expect(eq(int, (int)decode(record, len, &got), SPILE_REASON_FORMAT), "length %zu", len);
}

Test(record, a_record_of_another_key_is_not_taken_for_ones_own) {
  spile__state got;
  cr_expect(eq(int, (int)spile__record_decode(golden, LEN, SPILE_TOKEN_BUCKET, "l", 1, &got), SPILE_REASON_CORRUPT));
  cr_expect(eq(int, (int)spile__record_decode(golden, LEN, SPILE_TOKEN_BUCKET, "k\0", 2, &got), SPILE_REASON_CORRUPT));
}

Test(record, a_record_of_another_algorithm_is_foreign) {
  spile__state state = state_of(60, 1, 1000, 0, 5, 0);
  unsigned char record[SPILE__RECORD_LEN_MAX];
  size_t len = spile__record_encode(record, (spile_algorithm)2, &state, "k", 1);
  spile__state got;
  cr_expect(eq(int, (int)decode(record, len, &got), SPILE_REASON_FOREIGN));
}

Test(record, an_undamaged_record_may_still_say_what_cannot_be) {
  const struct {
    const char *name;
    spile__state state;
  } rows[] = {
      {"no capacity", state_of(0, 1, 1000, 0, 5, 0)},
      {"no refill", state_of(60, 0, 1000, 0, 5, 0)},
      {"refill below 0", state_of(60, -1, 1000, 0, 5, 0)},
      {"no period", state_of(60, 1, 0, 0, 5, 0)},
      {"not in lowest terms", state_of(60, 2, 1000, 0, 5, 0)},
      {"debt below 0", state_of(60, 1, 1000, -1, 5, 0)},
      {"past 2^53", state_of(INT64_C(9007199254740991), 1, 1, 0, 5, 0)},
      {"past ten years", state_of(INT64_C(315360000001), 1, 1, 0, 5, 0)},
      {"full before time", state_of(60, 1, 1000, 0, -1, 0)},
      {"full after time", state_of(60, 1, 1000, 0, INT64_C(10315360001001), 0)},
      {"remainder of a whole ms", state_of(60, 3, 1000, 0, 5, 3)},
      {"remainder below 0", state_of(60, 3, 1000, 0, 5, -1)},
      {"smallest integers", state_of(INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN)},
      {"largest integers", state_of(INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX)},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    unsigned char record[SPILE__RECORD_LEN_MAX];
    size_t len = spile__record_encode(record, SPILE_TOKEN_BUCKET, &rows[i].state, "k", 1);
    spile__state got;
    cr_expect(eq(int, (int)decode(record, len, &got), SPILE_REASON_CORRUPT), "%s", rows[i].name);
  }
}
