/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs that have broken rate limiters in use, each under its id, through the public functions on every store that
 * needs no server. The conformance suite has Redis.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#include <spile/testing.h>

#include "temp_dir.h"

#define DAY_MS INT64_C(86400000)
#define YEAR_MS INT64_C(31536000000)

typedef struct fixture {
  const char *store;
  spile_fake_clock *clock;
  spile_limiter *limiter;
  spile_decision last;
} fixture;

/* Runs a case on a fresh memory store and a fresh LMDB. */
static void on_each_store(void (*run)(fixture *f)) {
  char directory[TEMP_DIR_LEN];
  temp_dir_make(directory);
  char lmdb[TEMP_DIR_LEN + 32];
  (void)snprintf(lmdb, sizeof(lmdb), "lmdb:%s/db", directory);
  const char *const uris[] = {"memory:?keys=1000", lmdb};
  for (size_t i = 0; i < 2; i++) {
    fixture f = {.store = i == 0 ? "memory" : "lmdb", .clock = spile_fake_clock_new(0)};
    spile_options options = SPILE_OPTIONS_INIT;
    options.now_ms = spile_fake_clock_now;
    options.clock = f.clock;
    spile_error error = {0};
    int opened = spile_open(&f.limiter, uris[i], &options, &error);
    if (opened != SPILE_ENOTSUP) {
      cr_assert(eq(int, opened, SPILE_OK), "%s: %s", uris[i], error.message);
      run(&f);
      spile_close(f.limiter);
    }
    spile_fake_clock_free(f.clock);
  }
  temp_dir_remove(directory);
}

static spile_limit *limit_of(const char *name, int64_t capacity, int64_t tokens, int64_t period_ms) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.name = name;
  def.capacity = capacity;
  def.refill_tokens = tokens;
  def.refill_period_ms = period_ms;
  spile_limit *limit;
  spile_error error = {0};
  int made = spile_limit_create(&limit, &def, &error);
  cr_assert(eq(int, made, SPILE_OK), "%s", error.message);
  return limit;
}

static int take(fixture *f, int64_t now_ms, const spile_limit *limit, const char *key, int64_t cost) {
  spile_fake_clock_set(f->clock, now_ms);
  return spile_take(f->limiter, limit, key, strlen(key), cost, &f->last);
}

static int peek(fixture *f, int64_t now_ms, const spile_limit *limit, const char *key, int64_t cost) {
  spile_fake_clock_set(f->clock, now_ms);
  return spile_peek(f->limiter, limit, key, strlen(key), cost, &f->last);
}

#define ALLOWED(f, call, left)                                         \
  do {                                                                 \
    cr_expect(eq(int, call, SPILE_ALLOWED), "%s", (f)->store);         \
    cr_expect(eq(i64, (f)->last.remaining, left), "%s", (f)->store);   \
    cr_expect(eq(i64, (f)->last.retry_after_ms, 0), "%s", (f)->store); \
  } while (0)

#define DENIED(f, call, retry)                                             \
  do {                                                                     \
    cr_expect(eq(int, call, SPILE_DENIED), "%s", (f)->store);              \
    cr_expect(eq(i64, (f)->last.retry_after_ms, retry), "%s", (f)->store); \
  } while (0)

#define NEVER(f, call, left)                                                       \
  do {                                                                             \
    cr_expect(eq(int, call, SPILE_NEVER), "%s", (f)->store);                       \
    cr_expect(eq(i64, (f)->last.remaining, left), "%s", (f)->store);               \
    cr_expect(eq(i64, (f)->last.retry_after_ms, SPILE_UNKNOWN), "%s", (f)->store); \
  } while (0)

/* ---- CORE-01 ---- */

static void core_01(fixture *f) {
  spile_limit *limit = limit_of(NULL, INT64_C(1000000000000), INT64_C(1000000000000), DAY_MS);
  ALLOWED(f, take(f, 0, limit, "k", INT64_C(1000000000000)), 0);
  ALLOWED(f, take(f, INT64_C(2592000000), limit, "k", 1), INT64_C(999999999999));
  spile_limit_unref(limit);
}

Test(cases_core, core_01_long_idle_time_and_large_numbers) {
  on_each_store(core_01);
}

Test(cases_core, core_01_what_does_not_fit_is_refused_when_the_limit_is_made) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = INT64_C(9000000000000000);
  def.refill_tokens = INT64_C(7000000000000);
  def.refill_period_ms = DAY_MS;
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(eq(int, spile_limit_create(&limit, &def, &error), SPILE_ECONFIG));
  cr_expect(ne(ptr, strstr(error.message, "2^53 - 1"), NULL), "%s", error.message);
  cr_expect(ne(ptr, strstr(error.message, "8666400108701723 more"), NULL), "%s", error.message);
}

/* ---- CORE-02 ---- */

static void core_02(fixture *f) {
  spile_limit *limit = limit_of(NULL, 5, 1, 20000);
  ALLOWED(f, take(f, 0, limit, "k", 5), 0);
  for (int64_t at_ms = 1000; at_ms <= 60000; at_ms += 1000) {
    if (at_ms % 20000 == 0)
      ALLOWED(f, take(f, at_ms, limit, "k", 1), 0);
    else
      DENIED(f, take(f, at_ms, limit, "k", 1), 20000 - at_ms % 20000);
  }
  spile_limit_unref(limit);
}

Test(cases_core, core_02_slow_refill_asked_often) {
  on_each_store(core_02);
}

/* ---- CORE-03 ---- */

static void core_03(fixture *f) {
  spile_limit *limit = limit_of(NULL, 1, 10, 13000);
  ALLOWED(f, take(f, 0, limit, "k", 1), 0);
  DENIED(f, take(f, 332, limit, "k", 1), 968);
  DENIED(f, take(f, 1299, limit, "k", 1), 1);
  ALLOWED(f, take(f, 1300, limit, "k", 1), 0);
  int allowed = 0;
  for (int64_t i = 0; i < 200000; i++)
    allowed += take(f, i * 1300, limit, "fresh", 1) == SPILE_ALLOWED;
  cr_expect(eq(int, allowed, 200000), "%s", f->store);
  spile_limit_unref(limit);
}

Test(cases_core, core_03_a_rate_that_is_no_binary_fraction) {
  on_each_store(core_03);
}

/* ---- CORE-04 ---- */

static void core_04(fixture *f) {
  spile_limit *limit = limit_of(NULL, 1, 1, 1000);
  ALLOWED(f, take(f, 0, limit, "a", 1), 0);
  DENIED(f, take(f, 200, limit, "a", 1), 800);
  DENIED(f, take(f, 999, limit, "a", 1), 1);
  ALLOWED(f, take(f, 1000, limit, "a", 1), 0);
  spile_limit_unref(limit);
  limit = limit_of(NULL, 3, 3, 1000);
  ALLOWED(f, take(f, 0, limit, "b", 3), 0);
  DENIED(f, take(f, 1, limit, "b", 1), 333);
  DENIED(f, take(f, 333, limit, "b", 1), 1);
  ALLOWED(f, take(f, 334, limit, "b", 1), 0);
  spile_limit_unref(limit);
}

Test(cases_core, core_04_the_wait_counts_the_part_already_earned) {
  on_each_store(core_04);
}

/* ---- CORE-05 ---- */

static void core_05(fixture *f) {
  spile_limit *limit = limit_of(NULL, 4, 1, 1000);
  NEVER(f, take(f, 0, limit, "k", 5), 4);
  ALLOWED(f, take(f, 0, limit, "k", 4), 0);
  DENIED(f, take(f, 0, limit, "k", 4), 4000);
  NEVER(f, take(f, 0, limit, "k", 5), 0);
  NEVER(f, take(f, 0, limit, "k", INT64_MAX), 0);
  spile_limit_unref(limit);
}

Test(cases_core, core_05_cost_above_capacity) {
  on_each_store(core_05);
}

/* ---- CORE-06 ---- */

static void core_06(fixture *f) {
  spile_limit *limit = limit_of(NULL, 10, 1, 1000);
  ALLOWED(f, take(f, 0, limit, "k", 10), 0);
  cr_expect(eq(int, take(f, 0, limit, "k", -5), SPILE_EINVAL), "%s", f->store);
  cr_expect(eq(int, take(f, 0, limit, "k", INT64_MIN), SPILE_EINVAL), "%s", f->store);
  cr_expect(eq(int, f->last.outcome, 0), "%s", f->store);
  ALLOWED(f, take(f, 0, limit, "k", 0), 0);
  DENIED(f, take(f, 0, limit, "k", 1), 1000);
  spile_limit_unref(limit);
}

Test(cases_core, core_06_negative_and_zero_cost) {
  on_each_store(core_06);
}

Test(cases_core, core_06_a_negative_cost_does_not_reach_the_store) {
  spile_scripted_store *store = spile_scripted_store_new();
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, spile_scripted_store_base(store), NULL, NULL), SPILE_OK));
  spile_limit *limit = limit_of(NULL, 10, 1, 1000);
  spile_request requests[2] = {{.limit = limit, .key = "k", .key_len = 1, .cost = 1},
                               {.limit = limit, .key = "k", .key_len = 1, .cost = -1}};
  cr_expect(eq(int, spile_take(limiter, limit, "k", 1, -5, NULL), SPILE_EINVAL));
  cr_expect(eq(int, spile_peek(limiter, limit, "k", 1, INT64_MIN, NULL), SPILE_EINVAL));
  cr_expect(eq(int, spile_take_all(limiter, requests, 2, NULL, NULL), SPILE_EINVAL));
  cr_expect(eq(sz, spile_scripted_store_calls(store), 0));
  cr_expect(eq(int, spile_take(limiter, limit, "k", 1, 0, NULL), SPILE_ALLOWED));
  cr_expect(eq(sz, spile_scripted_store_calls(store), 1));
  spile_limit_unref(limit);
  spile_close(limiter);
}

/* ---- CORE-07 ---- */

Test(cases_core, core_07_zero_in_a_limit_names_the_field) {
  static const struct {
    int64_t capacity, tokens, period_ms;
    const char *field;
  } rows[] = {{1, 0, 1000, "refill is 0"},
              {1, 1, 0, "period is 0"},
              {0, 1, 1000, "capacity is 0"},
              {-1, 1, 1000, "capacity is -1"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_limit_def def = SPILE_LIMIT_DEF_INIT;
    def.capacity = rows[i].capacity;
    def.refill_tokens = rows[i].tokens;
    def.refill_period_ms = rows[i].period_ms;
    spile_limit *limit;
    spile_error error = {0};
    cr_expect(eq(int, spile_limit_create(&limit, &def, &error), SPILE_ECONFIG), "%s", rows[i].field);
    cr_expect(eq(ptr, limit, NULL));
    cr_expect(ne(ptr, strstr(error.message, rows[i].field), NULL), "%s", error.message);
  }
}

static void core_07(fixture *f) {
  spile_limit *limit = limit_of(NULL, 1, 1, 1);
  ALLOWED(f, take(f, 5, limit, "k", 1), 0);
  DENIED(f, take(f, 5, limit, "k", 1), 1);
  spile_limit_unref(limit);
}

Test(cases_core, core_07_the_smallest_limit_limits) {
  on_each_store(core_07);
}

/* ---- CORE-08 ---- */

static void core_08(fixture *f) {
  spile_limit *limit = limit_of(NULL, 10, 1, 1000);
  ALLOWED(f, take(f, 0, limit, "a", 8), 2);
  DENIED(f, take(f, 0, limit, "a", 5), 3000);
  cr_expect(eq(i64, f->last.remaining, 2), "%s", f->store);
  for (int i = 0; i < 1000; i++)
    DENIED(f, take(f, 0, limit, "a", 10), 8000);
  ALLOWED(f, take(f, 0, limit, "a", 2), 0);
  DENIED(f, take(f, 0, limit, "a", 1), 1000);
  spile_limit_unref(limit);
  limit = limit_of(NULL, 3, 3, 60000);
  for (int64_t left = 2; left >= 0; left--)
    ALLOWED(f, take(f, 0, limit, "b", 1), left);
  for (int i = 0; i < 2; i++) {
    DENIED(f, take(f, 0, limit, "b", 1), 20000);
    cr_expect(eq(i64, f->last.remaining, 0), "%s", f->store);
  }
  spile_limit_unref(limit);
}

Test(cases_core, core_08_a_refused_take_costs_nothing) {
  on_each_store(core_08);
}

/* ---- CORE-09 ---- */

static void core_09(fixture *f) {
  spile_limit *limit = limit_of(NULL, 20, 2, 1000);
  ALLOWED(f, peek(f, 0, limit, "k", 20), 20);
  ALLOWED(f, take(f, 600000, limit, "k", 20), 0);
  DENIED(f, take(f, 600000, limit, "k", 20), 10000);
  /* The same for a bucket that was used, and then idle while full. */
  ALLOWED(f, take(f, 0, limit, "used", 1), 19);
  ALLOWED(f, take(f, 600000, limit, "used", 20), 0);
  DENIED(f, take(f, 600000, limit, "used", 20), 10000);
  spile_limit_unref(limit);
}

Test(cases_core, core_09_idle_time_at_full_earns_nothing) {
  on_each_store(core_09);
}

/* ---- CORE-10 ---- */

static void core_10(fixture *f) {
  spile_limit *limit = limit_of(NULL, 10, 1, 1000);
  ALLOWED(f, take(f, 100000, limit, "a", 2), 8);
  ALLOWED(f, take(f, 100000, limit, "a", 1), 7);
  ALLOWED(f, take(f, 95000, limit, "a", 1), 1);
  ALLOWED(f, take(f, 100500, limit, "a", 1), 5);
  cr_expect(eq(i64, f->last.reset_after_ms, 4500), "%s", f->store); /* level 5.5 */

  ALLOWED(f, take(f, 1000, limit, "b", 1), 9);
  ALLOWED(f, take(f, 1000 + 10 * YEAR_MS + DAY_MS * 5 / 2, limit, "b", 1), 9); /* 315,576,001,000 */
  cr_expect(eq(i64, spile_fake_clock_now(f->clock), INT64_C(315576001000)));
  DENIED(f, take(f, 2000, limit, "b", 1), 1000);
  DENIED(f, take(f, 2000, limit, "b", 8), 8000);
  DENIED(f, take(f, 2999, limit, "b", 1), 1);
  ALLOWED(f, take(f, 3000, limit, "b", 1), 0);
  spile_limit_unref(limit);
}

Test(cases_core, core_10_the_clock_goes_back) {
  on_each_store(core_10);
}

/* ---- CORE-11 ---- */

static void core_11(fixture *f) {
  spile_limit *large = limit_of(NULL, 1000, 5, 900000);
  spile_limit *small = limit_of(NULL, 10, 5, 900000);
  ALLOWED(f, take(f, 0, large, "one", 1), 999);
  ALLOWED(f, take(f, 0, small, "one", 1), 9);
  ALLOWED(f, take(f, 0, large, "twelve", 1), 999);
  NEVER(f, take(f, 0, small, "twelve", 12), 10);
  spile_limit_unref(large);
  spile_limit_unref(small);
}

Test(cases_core, core_11_capacity_made_smaller) {
  on_each_store(core_11);
}

/* ---- CORE-12 ---- */

static void core_12(fixture *f) {
  spile_limit *limit = limit_of(NULL, 1, 2000, 1000);
  ALLOWED(f, take(f, 0, limit, "k", 1), 0);
  DENIED(f, take(f, 0, limit, "k", 1), 1);
  DENIED(f, peek(f, 0, limit, "k", 1), 1);
  ALLOWED(f, take(f, 1, limit, "k", 1), 0);
  int allowed = 0;
  for (int64_t at_ms = 0; at_ms < 1000; at_ms++)
    allowed += take(f, at_ms, limit, "fresh", 1) == SPILE_ALLOWED;
  cr_expect(eq(int, allowed, 1000), "%s", f->store);
  spile_limit_unref(limit);
  /* Faster than 16 bits count, in a bucket of its own form in the memory store. */
  limit = limit_of(NULL, 1, 1000000007, 1000);
  ALLOWED(f, take(f, 0, limit, "wide", 1), 0);
  DENIED(f, take(f, 0, limit, "wide", 1), 1);
  DENIED(f, peek(f, 0, limit, "wide", 1), 1);
  ALLOWED(f, take(f, 1, limit, "wide", 1), 0);
  spile_limit_unref(limit);
}

Test(cases_core, core_12_more_than_one_token_a_millisecond) {
  on_each_store(core_12);
}

/* ---- CORE-13 ---- */

static int both_allowed(fixture *f, int64_t now_ms, const spile_limit *a, const spile_limit *b) {
  spile_request requests[2] = {{.limit = a, .key = "k", .key_len = 1, .cost = 1},
                               {.limit = b, .key = "k", .key_len = 1, .cost = 1}};
  spile_fake_clock_set(f->clock, now_ms);
  int allowed = 0;
  for (int i = 0; i < 31; i++) {
    int outcome = spile_take_all(f->limiter, requests, 2, &f->last, NULL);
    allowed += outcome == SPILE_ALLOWED;
    if (outcome != SPILE_ALLOWED) {
      cr_expect(eq(int, outcome, SPILE_DENIED), "%s", f->store);
      cr_expect(eq(str, (char *)f->last.name, (char *)"A"), "%s", f->store);
    }
  }
  return allowed;
}

static void core_13(fixture *f) {
  spile_limit *a = limit_of("A", 10, 10, 60000);
  spile_limit *b = limit_of("B", 30, 30, 1800000);
  cr_expect(eq(int, both_allowed(f, 0, a, b), 10), "%s", f->store);
  ALLOWED(f, peek(f, 0, b, "k", 1), 20);
  cr_expect(eq(int, both_allowed(f, 60000, a, b), 10), "%s", f->store);
  ALLOWED(f, peek(f, 60000, b, "k", 1), 11);
  spile_limit_unref(a);
  spile_limit_unref(b);
}

Test(cases_core, core_13_two_limits_all_or_nothing) {
  on_each_store(core_13);
}

/* ---- CORE-14 ---- */

static spile_limit *limit_from(const char *text) {
  spile_limit *limit;
  spile_error error = {0};
  int made = spile_limit_parse(&limit, text, &error);
  cr_assert(eq(int, made, SPILE_OK), "%s: %s", text, error.message);
  return limit;
}

static int burst(fixture *f, int64_t now_ms, const spile_limit *limit, int takes) {
  int allowed = 0;
  for (int i = 0; i < takes; i++)
    allowed += take(f, now_ms, limit, "k", 1) == SPILE_ALLOWED;
  return allowed;
}

static void core_14(fixture *f) {
  spile_limit *a = limit_from("100/m,fixed_window,name=a");
  cr_expect(eq(int, burst(f, 59999, a, 101), 100), "%s", f->store);
  cr_expect(eq(i64, f->last.retry_after_ms, 1), "%s", f->store);
  cr_expect(eq(int, burst(f, 60000, a, 101), 100), "%s", f->store);
  cr_expect(eq(i64, f->last.retry_after_ms, 60000), "%s", f->store);
  spile_limit *b = limit_from("1/s,fixed_window,name=b");
  ALLOWED(f, take(f, 999, b, "k", 1), 0);
  ALLOWED(f, take(f, 1000, b, "k", 1), 0);
  spile_limit *c = limit_from("5/s,fixed_window,name=c");
  for (int64_t window = 0; window < 3; window++)
    cr_expect(eq(int, burst(f, 1000 * window, c, 10), 5), "%s", f->store);
  spile_limit *d = limit_from("5/m,fixed_window,name=d");
  cr_expect(eq(int, burst(f, 45000, d, 5), 5), "%s", f->store);
  DENIED(f, take(f, 45000, d, "k", 1), 15000);
  DENIED(f, take(f, 59999, d, "k", 1), 1);
  ALLOWED(f, take(f, 60000, d, "k", 1), 4);
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
  spile_limit_unref(d);
}

Test(cases_core, core_14_edges_of_the_fixed_window) {
  on_each_store(core_14);
}

/* ---- CORE-15 ---- */

static void core_15(fixture *f) {
  spile_limit *a = limit_from("100/m,sliding_window,name=a");
  ALLOWED(f, take(f, 1, a, "k", 50), 50);
  ALLOWED(f, take(f, 60000, a, "k", 10), 40);
  ALLOWED(f, take(f, 66000, a, "k", 1), 44);
  cr_expect(eq(int, burst(f, 66000, a, 60), 44), "%s", f->store);
  DENIED(f, take(f, 66000, a, "k", 1), 1200);
  spile_limit *b = limit_from("60/m,sliding_window,name=b");
  ALLOWED(f, take(f, 1, b, "k", 60), 0);
  ALLOWED(f, take(f, 72000, b, "k", 12), 0);
  DENIED(f, take(f, 72000, b, "k", 1), 1000);
  DENIED(f, take(f, 72999, b, "k", 1), 1);
  ALLOWED(f, take(f, 73000, b, "k", 1), 0);
  spile_limit *c = limit_from("100/m,sliding_window,name=c");
  cr_expect(eq(int, burst(f, 59999, c, 100), 100), "%s", f->store);
  DENIED(f, take(f, 60000, c, "k", 1), 600);
  DENIED(f, take(f, 60599, c, "k", 1), 1);
  ALLOWED(f, take(f, 60600, c, "k", 1), 0);
  spile_limit *d = limit_from("100/m,sliding_window,name=d");
  cr_expect(eq(int, burst(f, 10, d, 100), 100), "%s", f->store);
  ALLOWED(f, take(f, 119999, d, "k", 1), 98);
  spile_limit *e = limit_from("100/m,sliding_window,name=e");
  cr_expect(eq(int, burst(f, 10, e, 100), 100), "%s", f->store);
  ALLOWED(f, take(f, 120001, e, "k", 1), 99);
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
  spile_limit_unref(d);
  spile_limit_unref(e);
}

Test(cases_core, core_15_weight_of_the_window_before) {
  on_each_store(core_15);
}

/* ---- CORE-16 ---- */

static void core_16(fixture *f) {
  spile_limit *a = limit_from("2/m,sliding_log,name=a");
  ALLOWED(f, take(f, 0, a, "k", 1), 1);
  ALLOWED(f, take(f, 10000, a, "k", 1), 0);
  DENIED(f, take(f, 20000, a, "k", 1), 40000);
  DENIED(f, take(f, 59999, a, "k", 1), 1);
  ALLOWED(f, take(f, 60000, a, "k", 1), 0);
  spile_limit *b = limit_from("5/s,sliding_log,name=b");
  cr_expect(eq(int, burst(f, 7, b, 10), 5), "%s", f->store);
  spile_limit *c = limit_from("10/m,sliding_log,name=c");
  cr_expect(eq(int, burst(f, 0, c, 10), 10), "%s", f->store);
  for (int64_t at_ms = 100; at_ms < 60000; at_ms += 100)
    DENIED(f, take(f, at_ms, c, "k", 1), 60000 - at_ms);
  ALLOWED(f, take(f, 60000, c, "k", 1), 9);
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
}

Test(cases_core, core_16_which_entry_equal_times_refused_takes) {
  on_each_store(core_16);
}

/* The articles' own trace: 100 a minute, 100 requests at 11:59:59 and 100 at 12:00:01. */
static void hundred_and_hundred(fixture *f) {
  static const struct {
    const char *text;
    int second;
  } rows[] = {{"100/m,fixed_window", 100}, {"100/m,sliding_window", 1}, {"100/m,sliding_log", 0}};
  int64_t noon_ms = INT64_C(1700006400000) - INT64_C(1700006400000) % DAY_MS + DAY_MS / 2;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_limit *limit = limit_from(rows[i].text);
    cr_expect(eq(int, burst(f, noon_ms - 1000, limit, 100), 100), "%s %s", f->store, rows[i].text);
    cr_expect(eq(int, burst(f, noon_ms + 1000, limit, 100), rows[i].second), "%s %s", f->store, rows[i].text);
    spile_limit_unref(limit);
  }
}

Test(cases_core, two_hundred_around_a_minute_pass_as_each_window_says) {
  on_each_store(hundred_and_hundred);
}

/* ---- CORE-17 ---- */

static void core_17(fixture *f) {
  static const int64_t left[] = {9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2};
  spile_limit *limit = limit_from("1/3s,leaky_bucket,capacity=10");
  for (int64_t n = 0; n <= 10; n++)
    ALLOWED(f, take(f, 1000 * n, limit, "k", 1), left[n]);
  spile_limit_unref(limit);
}

Test(cases_core, core_17_it_drains_while_hits_come_in) {
  on_each_store(core_17);
}

/* ---- CORE-18 ---- */

static void core_18(fixture *f) {
  spile_limit *limit = limit_of(NULL, 1, 1, 1000);
  ALLOWED(f, take(f, INT64_C(4294967000), limit, "k", 1), 0);
  DENIED(f, take(f, INT64_C(4294967796), limit, "k", 1), 204);
  ALLOWED(f, take(f, INT64_C(4294968000), limit, "k", 1), 0);
  spile_limit_unref(limit);
}

Test(cases_core, core_18_milliseconds_past_32_bits) {
  on_each_store(core_18);
}

/* ---- CORE-19 ---- */

static bool count_visit(void *user, const spile_stored *stored) {
  (void)stored;
  ++*(int *)user;
  return true;
}

static int stored_count(fixture *f) {
  int count = 0;
  cr_assert(eq(int, spile_each(f->limiter, count_visit, &count, NULL), SPILE_OK), "%s", f->store);
  return count;
}

static void core_19(fixture *f) {
  spile_limit *limit = limit_of(NULL, 3, 1, 1000);
  for (int i = 0; i < 3; i++)
    ALLOWED(f, peek(f, 0, limit, "k", 1), 3);
  cr_expect(eq(int, stored_count(f), 0), "%s", f->store);
  ALLOWED(f, take(f, 0, limit, "k", 1), 2);
  cr_expect(eq(int, stored_count(f), 1), "%s", f->store);
  ALLOWED(f, peek(f, 0, limit, "k", 1), 2);
  DENIED(f, peek(f, 0, limit, "k", 3), 1000);
  DENIED(f, take(f, 0, limit, "k", 3), 1000);
  spile_limit_unref(limit);
}

Test(cases_core, core_19_peeking_changes_nothing) {
  on_each_store(core_19);
}

/* ---- CORE-20 ---- */

static void core_20(fixture *f) {
  spile_limit *day = limit_of(NULL, 5, 1, DAY_MS);
  spile_limit *second = limit_of(NULL, 5, 1, 1000);
  ALLOWED(f, take(f, 0, day, "faster", 5), 0);
  DENIED(f, take(f, 0, second, "faster", 1), 1000);
  DENIED(f, take(f, 999, second, "faster", 1), 1);
  ALLOWED(f, take(f, 1000, second, "faster", 1), 0);
  spile_limit_unref(day);
  spile_limit_unref(second);

  spile_limit *fast = limit_of(NULL, 5, 100, 1000);
  spile_limit *hour = limit_of(NULL, 5, 1, 3600000);
  ALLOWED(f, take(f, 0, fast, "slower", 5), 0);
  DENIED(f, take(f, 0, hour, "slower", 1), 3600000);
  DENIED(f, take(f, 50, hour, "slower", 1), 3599950);
  ALLOWED(f, take(f, 3600000, hour, "slower", 1), 0);
  spile_limit_unref(fast);
  spile_limit_unref(hour);
}

Test(cases_core, core_20_a_slow_limit_made_fast_on_a_drained_bucket) {
  on_each_store(core_20);
}

/* ---- CORE-21 ---- */

/* The calls that must be allowed, from tests/vectors/change.csv, scenario in_turn. */
static const int64_t allowed_at_ms[] = {24000, 48000, 72000, 96000, 120000};

static void core_21(fixture *f) {
  spile_limit *faster = limit_of(NULL, 5, 1, 20000);
  spile_limit *slower = limit_of(NULL, 5, 1, 30000);
  ALLOWED(f, take(f, 0, faster, "k", 5), 0);
  size_t allowed = 0;
  for (int64_t i = 1; i <= 120; i++) {
    if (take(f, i * 1000, i % 2 != 0 ? faster : slower, "k", 1) != SPILE_ALLOWED)
      continue;
    cr_assert(allowed < sizeof(allowed_at_ms) / sizeof(allowed_at_ms[0]), "%s: also at %lld", f->store,
              (long long)i * 1000);
    cr_expect(eq(i64, i * 1000, allowed_at_ms[allowed]), "%s", f->store);
    allowed++;
  }
  cr_expect(eq(sz, allowed, sizeof(allowed_at_ms) / sizeof(allowed_at_ms[0])), "%s", f->store);
  spile_limit_unref(faster);
  spile_limit_unref(slower);
}

Test(cases_core, core_21_a_limit_that_comes_and_goes_in_turn) {
  on_each_store(core_21);
}
