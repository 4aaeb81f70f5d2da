/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/testing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- A store under a fake clock ---- */

typedef struct rig {
  const store_fixture *fixture;
  const char *uri;
  spile_fake_clock *clock;
  spile_limiter *limiter;
} rig;

/* How the fixture under test opens its store; a test is a process, so there is one. */
static int (*opener)(spile_limiter **, const char *, const spile_options *, spile_error *);

static const char *fixture_start(const store_fixture *fixture) {
  opener = fixture->open;
  return fixture->start();
}

/* Longer than a busy machine takes for anything that is not stuck. */
#define PATIENCE_MS 10000
/* Enough for a call that is to end by its deadline, since what it needs does not come. */
#define BRIEFLY_MS 1000

static spile_limiter *open_within(const char *uri, spile_fake_clock *clock, const char *prefix, int64_t timeout_ms) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  options.key_prefix = prefix;
  if (clock != NULL) {
    options.now_ms = spile_fake_clock_now;
    options.sleep_ms = spile_fake_clock_sleep;
    options.clock = clock;
  }
  spile_limiter *limiter;
  spile_error error = {0};
  int result = (opener != NULL ? opener : spile_open)(&limiter, uri, &options, &error);
  cr_assert(result == SPILE_OK, "%s: %s", uri, error.message);
  return limiter;
}

static spile_limiter *open_at(const char *uri, spile_fake_clock *clock, const char *prefix) {
  return open_within(uri, clock, prefix, PATIENCE_MS);
}

static rig rig_start(const store_fixture *fixture) {
  rig r = {.fixture = fixture, .uri = fixture_start(fixture), .clock = spile_fake_clock_new(0)};
  cr_assert(r.uri != NULL && r.clock != NULL);
  r.limiter = open_at(r.uri, r.clock, NULL);
  return r;
}

static void rig_stop(rig *r) {
  spile_close(r->limiter);
  spile_fake_clock_free(r->clock);
  r->fixture->stop();
}

static spile_limit *limit_of(const char *text) {
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(spile_limit_parse(&limit, text, &error) == SPILE_OK, "%s: %s", text, error.message);
  return limit;
}

static spile_limit *limit_named(const char *name, int64_t capacity, int64_t tokens, int64_t period_ms) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.name = name;
  def.capacity = capacity;
  def.refill_tokens = tokens;
  def.refill_period_ms = period_ms;
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(spile_limit_create(&limit, &def, &error) == SPILE_OK, "%s", error.message);
  return limit;
}

static spile_limit *limit_in(int64_t capacity, int64_t tokens, int64_t period_ms) {
  return limit_named(NULL, capacity, tokens, period_ms);
}

/* ---- Takes with their expected answer ---- */

#define ANY INT64_C(-99)

static void expect_(int line, rig *r, int64_t at_ms, bool peek, const spile_limit *limit, const char *key, int64_t cost,
                    int outcome, int64_t remaining, int64_t retry_after_ms) {
  spile_decision d;
  spile_fake_clock_set(r->clock, at_ms);
  int result = peek ? spile_peek(r->limiter, limit, key, strlen(key), cost, &d)
                    : spile_take(r->limiter, limit, key, strlen(key), cost, &d);
  cr_assert(result == outcome && d.outcome == outcome, "line %d, at %lld: %s, expected %s (%s)", line, (long long)at_ms,
            spile_code_name(result), spile_code_name(outcome), d.detail);
  if (remaining != ANY)
    cr_assert(d.remaining == remaining, "line %d, at %lld: remaining %lld, expected %lld", line, (long long)at_ms,
              (long long)d.remaining, (long long)remaining);
  if (retry_after_ms != ANY)
    cr_assert(d.retry_after_ms == retry_after_ms, "line %d, at %lld: retry %lld, expected %lld", line, (long long)at_ms,
              (long long)d.retry_after_ms, (long long)retry_after_ms);
}

#define TAKE_ALLOWED(at, limit, key, cost, remaining) \
  expect_(__LINE__, &r, at, false, limit, key, cost, SPILE_ALLOWED, remaining, 0)
#define TAKE_DENIED(at, limit, key, cost, remaining, retry) \
  expect_(__LINE__, &r, at, false, limit, key, cost, SPILE_DENIED, remaining, retry)
#define TAKE_NEVER(at, limit, key, cost, remaining) \
  expect_(__LINE__, &r, at, false, limit, key, cost, SPILE_NEVER, remaining, SPILE_UNKNOWN)
#define PEEK_ALLOWED(at, limit, key, cost, remaining) \
  expect_(__LINE__, &r, at, true, limit, key, cost, SPILE_ALLOWED, remaining, 0)
#define PEEK_DENIED(at, limit, key, cost, remaining, retry) \
  expect_(__LINE__, &r, at, true, limit, key, cost, SPILE_DENIED, remaining, retry)

static bool count_visit(void *user, const spile_stored *stored) {
  (void)stored;
  ++*(size_t *)user;
  return true;
}

static size_t stored_count(rig *r) {
  size_t count = 0;
  spile_error error = {0};
  cr_assert(spile_each(r->limiter, count_visit, &count, &error) == SPILE_OK, "%s", error.message);
  return count;
}

/* ---- One bucket ---- */

void conformance_allows_a_burst_of_the_capacity_and_not_one_more(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_of("1/s,capacity=5");
  for (int i = 4; i >= 0; i--)
    TAKE_ALLOWED(1000, limit, "k", 1, i);
  TAKE_DENIED(1000, limit, "k", 1, 0, 1000);
  TAKE_ALLOWED(2000, limit, "k", 1, 0);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_02_keeps_the_part_of_a_token_already_earned(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 20000);
  TAKE_ALLOWED(0, limit, "k", 5, 0);
  for (int64_t t = 1000; t <= 60000; t += 1000) {
    if (t % 20000 == 0)
      TAKE_ALLOWED(t, limit, "k", 1, 0);
    else
      TAKE_DENIED(t, limit, "k", 1, 0, 20000 - t % 20000);
  }
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_03_is_exact_for_a_rate_that_is_no_binary_fraction(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(1, 10, 13000);
  TAKE_ALLOWED(0, limit, "k", 1, 0);
  TAKE_DENIED(332, limit, "k", 1, 0, 968);
  TAKE_DENIED(1299, limit, "k", 1, 0, 1);
  TAKE_ALLOWED(1300, limit, "k", 1, 0);
  for (int64_t i = 0; i < 2000; i++)
    TAKE_ALLOWED(1300 * i, limit, "long", 1, 0);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_04_counts_the_part_already_earned_in_the_wait(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *one = limit_named("one", 1, 1, 1000);
  TAKE_ALLOWED(0, one, "k", 1, 0);
  TAKE_DENIED(200, one, "k", 1, 0, 800);
  TAKE_DENIED(999, one, "k", 1, 0, 1);
  TAKE_ALLOWED(1000, one, "k", 1, 0);
  spile_limit *three = limit_named("three", 3, 3, 1000);
  TAKE_ALLOWED(0, three, "k", 3, 0);
  TAKE_DENIED(1, three, "k", 1, 0, 333);
  TAKE_DENIED(333, three, "k", 1, 0, 1);
  TAKE_ALLOWED(334, three, "k", 1, 0);
  spile_limit_unref(one);
  spile_limit_unref(three);
  rig_stop(&r);
}

void conformance_core_05_says_never_for_a_cost_above_the_capacity(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(4, 1, 1000);
  TAKE_NEVER(0, limit, "k", 5, 4);
  TAKE_ALLOWED(0, limit, "k", 4, 0);
  TAKE_DENIED(0, limit, "k", 4, 0, 4000);
  TAKE_NEVER(0, limit, "k", 5, 0);
  TAKE_NEVER(0, limit, "k", INT64_MAX, 0);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_06_refuses_negative_costs_and_takes_nothing_for_zero(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(10, 1, 1000);
  TAKE_ALLOWED(0, limit, "k", 10, 0);
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, -5, &d), SPILE_EINVAL));
  cr_assert(eq(int, d.outcome, 0));
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, INT64_MIN, &d), SPILE_EINVAL));
  TAKE_ALLOWED(0, limit, "k", 0, 0);
  TAKE_DENIED(0, limit, "k", 1, 0, 1000);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_08_charges_nothing_for_a_denial(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(10, 1, 1000);
  TAKE_ALLOWED(0, limit, "k", 8, 2);
  TAKE_DENIED(0, limit, "k", 5, 2, 3000);
  for (int i = 0; i < 1000; i++)
    TAKE_DENIED(0, limit, "k", 10, 2, 8000);
  TAKE_ALLOWED(0, limit, "k", 2, 0);
  TAKE_DENIED(0, limit, "k", 1, 0, 1000);
  spile_limit *three = limit_named("three", 3, 3, 60000);
  for (int i = 2; i >= 0; i--)
    TAKE_ALLOWED(0, three, "k", 1, i);
  TAKE_DENIED(0, three, "k", 1, 0, 20000);
  TAKE_DENIED(0, three, "k", 1, 0, 20000);
  spile_limit_unref(limit);
  spile_limit_unref(three);
  rig_stop(&r);
}

void conformance_core_09_earns_nothing_while_full(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(20, 2, 1000);
  TAKE_ALLOWED(0, limit, "k", 1, 19);
  TAKE_ALLOWED(600000, limit, "k", 20, 0);
  TAKE_DENIED(600000, limit, "k", 20, 0, 10000);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_10_survives_a_clock_that_goes_back(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(10, 1, 1000);
  TAKE_ALLOWED(100000, limit, "a", 2, 8);
  TAKE_ALLOWED(100000, limit, "a", 1, 7);
  TAKE_ALLOWED(95000, limit, "a", 1, 1);
  TAKE_ALLOWED(100500, limit, "a", 1, 5);
  TAKE_ALLOWED(1000, limit, "b", 1, 9);
  TAKE_ALLOWED(INT64_C(315576001000), limit, "b", 1, 9);
  TAKE_DENIED(2000, limit, "b", 1, 0, 1000);
  TAKE_DENIED(2000, limit, "b", 8, 0, 8000);
  TAKE_DENIED(2999, limit, "b", 1, 0, 1);
  TAKE_ALLOWED(3000, limit, "b", 1, 0);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_11_cuts_the_level_when_the_capacity_shrinks(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *wide = limit_in(1000, 5, 900000);
  spile_limit *narrow = limit_in(10, 5, 900000);
  TAKE_ALLOWED(0, wide, "a", 1, 999);
  TAKE_ALLOWED(0, narrow, "a", 1, 9);
  TAKE_ALLOWED(0, wide, "b", 1, 999);
  TAKE_NEVER(0, narrow, "b", 12, 10);
  spile_limit_unref(wide);
  spile_limit_unref(narrow);
  rig_stop(&r);
}

void conformance_core_12_handles_more_than_one_token_a_millisecond(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(1, 2000, 1000);
  TAKE_ALLOWED(0, limit, "k", 1, 0);
  TAKE_DENIED(0, limit, "k", 1, 0, 1);
  TAKE_ALLOWED(1, limit, "k", 1, 0);
  for (int64_t t = 0; t < 1000; t++)
    TAKE_ALLOWED(t, limit, "fresh", 1, 0);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_14_begins_each_window_anew(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *hundred = limit_of("100/m,fixed_window,name=hundred");
  for (int64_t i = 99; i >= 0; i--)
    TAKE_ALLOWED(59999, hundred, "k", 1, i);
  TAKE_DENIED(59999, hundred, "k", 1, 0, 1);
  for (int64_t i = 99; i >= 0; i--)
    TAKE_ALLOWED(60000, hundred, "k", 1, i);
  TAKE_DENIED(60000, hundred, "k", 1, 0, 60000);

  spile_limit *one = limit_of("1/s,fixed_window,name=one");
  TAKE_ALLOWED(999, one, "k", 1, 0);
  TAKE_ALLOWED(1000, one, "k", 1, 0);

  spile_limit *five = limit_of("5/s,fixed_window");
  for (int64_t window = 0; window < 3; window++) {
    for (int64_t i = 4; i >= 0; i--)
      TAKE_ALLOWED(window * 1000 + 100 * (4 - i), five, "k", 1, i);
    for (int64_t i = 5; i < 10; i++)
      TAKE_DENIED(window * 1000 + 100 * i, five, "k", 1, 0, 1000 - 100 * i);
  }

  spile_limit *slow = limit_of("5/m,fixed_window,name=slow");
  TAKE_ALLOWED(45000, slow, "k", 5, 0);
  TAKE_DENIED(45000, slow, "k", 1, 0, 15000);
  TAKE_DENIED(59999, slow, "k", 1, 0, 1);
  TAKE_ALLOWED(60000, slow, "k", 1, 4);
  TAKE_NEVER(60000, slow, "k", 6, 4);
  spile_limit_unref(hundred);
  spile_limit_unref(one);
  spile_limit_unref(five);
  spile_limit_unref(slow);
  rig_stop(&r);
}

void conformance_core_15_weighs_the_window_before(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_of("100/m,sliding_window,name=a");
  TAKE_ALLOWED(0, a, "k", 50, 50);
  TAKE_ALLOWED(60000, a, "k", 10, 40);
  for (int64_t i = 44; i >= 0; i--)
    TAKE_ALLOWED(66000, a, "k", 1, i);
  TAKE_DENIED(66000, a, "k", 1, 0, 1200);
  PEEK_DENIED(67199, a, "k", 1, 0, 1);
  PEEK_ALLOWED(67200, a, "k", 1, 1);

  spile_limit *b = limit_of("60/m,sliding_window,name=b");
  TAKE_ALLOWED(0, b, "k", 60, 0);
  /* 12 of this window: one each as it becomes free, the last at 12,000 ms. */
  for (int64_t i = 1; i <= 12; i++)
    TAKE_ALLOWED(60000 + 1000 * i, b, "k", 1, 0);
  TAKE_DENIED(72000, b, "k", 1, 0, 1000);
  TAKE_DENIED(72999, b, "k", 1, 0, 1);
  TAKE_ALLOWED(73000, b, "k", 1, 0);

  spile_limit *c = limit_of("100/m,sliding_window,name=c");
  TAKE_ALLOWED(59999, c, "k", 100, 0);
  TAKE_DENIED(60000, c, "k", 1, 0, 600);
  TAKE_DENIED(60599, c, "k", 1, 0, 1);
  TAKE_ALLOWED(60600, c, "k", 1, 0);

  spile_limit *d = limit_of("100/m,sliding_window,name=d");
  TAKE_ALLOWED(10, d, "k", 100, 0);
  TAKE_ALLOWED(119999, d, "k", 1, 98);
  TAKE_ALLOWED(10, d, "fresh", 100, 0);
  TAKE_ALLOWED(120001, d, "fresh", 1, 99);
  TAKE_NEVER(120001, d, "fresh", 101, 99);

  /* More than fits this window waits for the next: 40 of 60 are taken, and 30 fit once they weigh half. */
  spile_limit *e = limit_of("60/m,sliding_window,name=e");
  TAKE_ALLOWED(6000, e, "k", 40, 20);
  TAKE_DENIED(6000, e, "k", 30, 20, 54000 + 15000);
  TAKE_DENIED(74999, e, "k", 30, 29, 1);
  TAKE_ALLOWED(75000, e, "k", 30, 0);
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
  spile_limit_unref(d);
  spile_limit_unref(e);
  rig_stop(&r);
}

void conformance_core_16_forgets_each_take_by_itself(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_of("2/m,sliding_log,name=a");
  TAKE_ALLOWED(0, a, "k", 1, 1);
  TAKE_ALLOWED(10000, a, "k", 1, 0);
  TAKE_DENIED(20000, a, "k", 1, 0, 40000);
  TAKE_DENIED(20000, a, "k", 2, 0, 50000);
  TAKE_DENIED(59999, a, "k", 1, 0, 1);
  TAKE_ALLOWED(60000, a, "k", 1, 0);
  TAKE_NEVER(60000, a, "k", 3, 0);

  spile_limit *b = limit_of("5/s,sliding_log,name=b");
  for (int64_t i = 4; i >= 0; i--)
    TAKE_ALLOWED(7, b, "k", 1, i);
  for (int i = 0; i < 5; i++)
    TAKE_DENIED(7, b, "k", 1, 0, 1000);
  TAKE_ALLOWED(1007, b, "k", 5, 0);

  spile_limit *c = limit_of("10/m,sliding_log,name=c");
  for (int64_t i = 9; i >= 0; i--)
    TAKE_ALLOWED(0, c, "k", 1, i);
  for (int64_t t = 100; t < 60000; t += 100)
    TAKE_DENIED(t, c, "k", 1, 0, 60000 - t);
  TAKE_ALLOWED(60000, c, "k", 1, 9);
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
  rig_stop(&r);
}

/* A log at its largest: it grows by one entry each, ends exactly, and shrinks as they are forgotten. */
void conformance_remembers_a_thousand_takes(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_of("1000/m,sliding_log");
  for (int64_t i = 0; i < 1000; i++)
    TAKE_ALLOWED(1000000 + 10 * i, limit, "k", 1, 999 - i);
  TAKE_DENIED(1010000, limit, "k", 1, 0, 50000);
  TAKE_DENIED(1010000, limit, "k", 500, 0, 54990);
  TAKE_DENIED(1059999, limit, "k", 1, 0, 1);
  for (int64_t i = 0; i < 1000; i++)
    TAKE_ALLOWED(1060000 + 10 * i, limit, "k", 1, 0);
  TAKE_DENIED(1070000, limit, "k", 1000, 0, 59990);
  spile_limit *small = limit_of("3/m,sliding_log");
  TAKE_DENIED(1070000, small, "k", 1, 0, 59970);
  TAKE_ALLOWED(1129970, small, "k", 1, 0);
  TAKE_DENIED(1129970, small, "k", 3, 0, 60000);
  PEEK_ALLOWED(1129990, small, "k", 2, 2);
  spile_limit_unref(limit);
  spile_limit_unref(small);
  rig_stop(&r);
}

void conformance_core_17_drains_a_leaky_bucket_while_hits_come_in(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_of("1/3s,leaky_bucket,capacity=10");
  static const int64_t left[] = {9, 8, 7, 7, 6, 5, 5, 4, 3, 3, 2};
  for (int64_t n = 0; n <= 10; n++) {
    spile_decision d;
    spile_fake_clock_set(r.clock, 1000 * n);
    cr_assert(spile_take(r.limiter, limit, "k", 1, 1, &d) == SPILE_ALLOWED, "%s", d.detail);
    cr_assert(eq(i64, d.remaining, left[n]));
    /* n hits before this one, of which 1 in 3000 ms has drained. */
    cr_assert(eq(i64, d.delay_ms, 3000 * n - 1000 * n));
  }
  /* Of 11 hits 3 1/3 have drained at 10 s: 2 1/3 more fit. */
  TAKE_DENIED(10000, limit, "k", 3, 2, 2000);
  /* A token bucket of the same name is another one. */
  spile_limit *other = limit_of("1/3s,capacity=10");
  TAKE_ALLOWED(10000, other, "k", 1, 9);
  spile_limit_unref(limit);
  spile_limit_unref(other);
  rig_stop(&r);
}

void conformance_core_18_counts_beyond_32_bits(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(1, 1, 1000);
  TAKE_ALLOWED(INT64_C(4294967000), limit, "k", 1, 0);
  TAKE_DENIED(INT64_C(4294967796), limit, "k", 1, 0, 204);
  TAKE_ALLOWED(INT64_C(4294968000), limit, "k", 1, 0);
  TAKE_ALLOWED(SPILE_TIME_MAX_MS, limit, "last", 1, 0);
  spile_decision d;
  spile_fake_clock_set(r.clock, SPILE_TIME_MAX_MS + 1);
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, &d), SPILE_EINVAL));
  spile_fake_clock_set(r.clock, -1);
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, &d), SPILE_EINVAL));
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_19_peeks_without_leaving_a_trace(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(3, 1, 1000);
  for (int i = 0; i < 3; i++)
    PEEK_ALLOWED(0, limit, "k", 1, 3);
  TAKE_ALLOWED(0, limit, "k", 0, 3);
  TAKE_NEVER(0, limit, "k", 4, 3);
  cr_assert(eq(sz, stored_count(&r), 0));
  TAKE_ALLOWED(0, limit, "k", 1, 2);
  cr_assert(eq(sz, stored_count(&r), 1));
  PEEK_ALLOWED(0, limit, "k", 2, 2);
  PEEK_DENIED(0, limit, "k", 3, 2, 1000);
  TAKE_DENIED(0, limit, "k", 3, 2, 1000);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_core_20_converts_a_drained_bucket_when_its_limit_changes(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *slow = limit_in(5, 1, 86400000);
  spile_limit *fast = limit_in(5, 1, 1000);
  TAKE_ALLOWED(0, slow, "a", 5, 0);
  TAKE_DENIED(0, fast, "a", 1, 0, 1000);
  TAKE_DENIED(999, fast, "a", 1, 0, 1);
  TAKE_ALLOWED(1000, fast, "a", 1, 0);
  spile_limit *very_fast = limit_in(5, 100, 1000);
  spile_limit *hourly = limit_in(5, 1, 3600000);
  TAKE_ALLOWED(0, very_fast, "b", 5, 0);
  TAKE_DENIED(0, hourly, "b", 1, 0, 3600000);
  TAKE_DENIED(50, hourly, "b", 1, 0, 3599950);
  TAKE_ALLOWED(3600000, hourly, "b", 1, 0);
  /* Peek and cost 0 convert for their answer alone. */
  TAKE_ALLOWED(0, slow, "c", 5, 0);
  PEEK_DENIED(0, fast, "c", 1, 0, 1000);
  PEEK_DENIED(1000, fast, "c", 1, 0, 1000);
  spile_limit_unref(slow);
  spile_limit_unref(fast);
  spile_limit_unref(very_fast);
  spile_limit_unref(hourly);
  rig_stop(&r);
}

void conformance_core_21_converts_without_losing_fractions(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limits[2] = {limit_in(5, 1, 20000), limit_in(5, 1, 30000)};
  TAKE_ALLOWED(0, limits[0], "k", 5, 0);
  char allowed_at[256] = "";
  for (int i = 1; i <= 120; i++) {
    spile_decision d;
    spile_fake_clock_set(r.clock, i * 1000);
    if (spile_take(r.limiter, limits[i % 2], "k", 1, 1, &d) == SPILE_ALLOWED) {
      char text[16];
      (void)snprintf(text, sizeof(text), "%d ", i);
      strncat(allowed_at, text, sizeof(allowed_at) - strlen(allowed_at) - 1);
    }
  }
  /*
   * A second under 1 per 20 s earns 1/20 token, under 1 per 30 s 1/30: two seconds 1/12. In units of 1/20000 and
   * 1/30000 token a conversion drops less than one unit, so the fifth token still comes on the second it is due or one
   * later.
   */
  cr_assert(eq(str, allowed_at, "25 49 73 97 "));
  spile_limit_unref(limits[0]);
  spile_limit_unref(limits[1]);
  rig_stop(&r);
}

void conformance_redis_03_handles_a_full_time_below_a_second(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(1, 3, 1000);
  TAKE_ALLOWED(0, limit, "k", 1, 0);
  TAKE_DENIED(0, limit, "k", 1, 0, 334);
  TAKE_DENIED(333, limit, "k", 1, 0, 1);
  TAKE_ALLOWED(334, limit, "k", 1, 0);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_redis_05_loses_no_digit_near_2_to_53(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(INT64_C(9000000000000000), 1000000000, 1000);
  TAKE_ALLOWED(INT64_C(1700000000123), limit, "k", 1, INT64_C(8999999999999999));
  TAKE_ALLOWED(INT64_C(1700000000123), limit, "k", 1, INT64_C(8999999999999998));
  PEEK_ALLOWED(INT64_C(1700000000123), limit, "k", 1, INT64_C(8999999999999998));
  TAKE_ALLOWED(INT64_C(1700000000123), limit, "all", INT64_C(9000000000000000), 0);
  TAKE_DENIED(INT64_C(1700000000123), limit, "all", 1, 0, 1);
  TAKE_DENIED(INT64_C(1700000000123), limit, "all", INT64_C(9000000000000000), 0, INT64_C(9000000000));
  spile_limit_unref(limit);
  rig_stop(&r);
}

/* ---- Keys and names ---- */

void conformance_redis_13_keeps_any_bytes_of_a_key(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 3600000);
  char letters[1000];
  memset(letters, 'x', sizeof(letters));
  const struct {
    const char *bytes;
    size_t len;
  } keys[] = {{"user%20zz", 9}, {"user%s%n", 8}, {"user zz", 7}, {"two words", 9}, {"a\0b", 3},  {"a", 1},
              {letters, 1000},  {"a}b", 3},      {"{a", 2},      {"a{b}c", 5},     {"a:b", 3},   {"\r\n", 2},
              {"\xff\xfe", 2},  {"%00", 3},      {"\0", 1},      {"\0\0", 2},      {"rl:{a}", 6}};
  for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
    spile_decision d;
    cr_assert(eq(int, spile_take(r.limiter, limit, keys[i].bytes, keys[i].len, 1, &d), SPILE_ALLOWED));
    cr_assert(d.remaining == 4, "key %zu shares a bucket", i);
  }
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, limit, "", 0, 1, &d), SPILE_EINVAL));
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_lmdb_03_tells_long_keys_apart(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(1, 1, 3600000);
  static char key[SPILE_KEY_LEN_MAX + 1];
  memset(key, 'k', sizeof(key));
  const size_t lens[] = {1, 31, 32, 33, 87, 88, 89, 511, 512, 2000, SPILE_KEY_LEN_MAX};
  spile_decision d;
  for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
    cr_assert(spile_take(r.limiter, limit, key, lens[i], 1, &d) == SPILE_ALLOWED, "%zu bytes: %s", lens[i], d.detail);
    cr_assert(eq(int, spile_take(r.limiter, limit, key, lens[i], 1, &d), SPILE_DENIED));
    cr_assert(eq(i64, d.retry_after_ms, 3600000));
  }
  for (size_t last = 599; last < 601; last++) {
    key[599] = last == 599 ? 'a' : 'b';
    cr_assert(eq(int, spile_take(r.limiter, limit, key, 600, 1, &d), SPILE_ALLOWED));
    cr_assert(eq(int, spile_take(r.limiter, limit, key, 600, 1, &d), SPILE_DENIED));
  }
  cr_assert(eq(int, spile_take(r.limiter, limit, key, SPILE_KEY_LEN_MAX + 1, 1, &d), SPILE_EINVAL));
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_tells_limits_and_keys_apart(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  /* HTTP-06: parts that would run together if they were only joined. */
  const char *const pairs[][2] = {{"a:b", "c"}, {"a", "b:c"},     {"1", "21"},    {"12", "1"},
                                  {"a}", "b"},  {"a", "}b"},      {"x%3Ay", "r"}, {"x:y", "r"},
                                  {"k", "day"}, {"k", "default"}, {"kd", "ay"},   {"k", "day:token_bucket"}};
  for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
    spile_limit *limit = limit_named(pairs[i][1], 3, 1, 3600000);
    TAKE_ALLOWED(0, limit, pairs[i][0], 1, 2);
    spile_limit_unref(limit);
  }
  char name[SPILE_NAME_LEN_MAX + 1];
  memset(name, '}', SPILE_NAME_LEN_MAX);
  name[SPILE_NAME_LEN_MAX] = '\0';
  spile_limit *longest = limit_named(name, 3, 1, 3600000);
  TAKE_ALLOWED(0, longest, "k", 1, 2);
  TAKE_ALLOWED(0, longest, "k", 1, 1);
  spile_limit_unref(longest);
  rig_stop(&r);
}

/* ---- Several limits ---- */

void conformance_core_13_takes_from_several_limits_all_or_nothing(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_named("a", 10, 10, 60000);
  spile_limit *b = limit_named("b", 30, 30, 1800000);
  spile_request requests[2] = {{a, "k", 1, 1}, {b, "k", 1, 1}};
  for (int round = 0; round < 2; round++) {
    spile_fake_clock_set(r.clock, round * 60000);
    for (int i = 0; i < 31; i++) {
      spile_decision d;
      spile_decision each[2];
      int result = spile_take_all(r.limiter, requests, 2, &d, each);
      cr_assert(result == (i < 10 ? SPILE_ALLOWED : SPILE_DENIED), "round %d take %d: %s", round, i, d.detail);
      cr_assert(eq(u32, d.index, 0));
      cr_assert(eq(str, (char *)(uintptr_t)d.name, "a"));
      cr_assert(eq(int, each[1].outcome, SPILE_ALLOWED));
    }
    PEEK_ALLOWED(round * 60000, b, "k", 1, round == 0 ? 20 : 11);
  }
  spile_limit_unref(a);
  spile_limit_unref(b);
  rig_stop(&r);
}

void conformance_sums_requests_that_name_one_bucket(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 1000);
  spile_limit *same = limit_in(5, 1, 1000);
  spile_request requests[3] = {{limit, "k", 1, 2}, {limit, "other", 5, 1}, {same, "k", 1, 1}};
  spile_decision d;
  spile_decision each[3];
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, each), SPILE_ALLOWED));
  cr_assert(eq(i64, d.remaining, 2));
  cr_assert(eq(u32, d.index, 0));
  cr_assert(eq(i64, each[2].remaining, 2));
  cr_assert(eq(i64, each[1].remaining, 4));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, each), SPILE_DENIED));
  cr_assert(eq(i64, d.retry_after_ms, 1000));
  requests[0].cost = INT64_MAX;
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, each), SPILE_NEVER));
  PEEK_ALLOWED(0, limit, "other", 1, 4);
  spile_limit_unref(limit);
  spile_limit_unref(same);
  rig_stop(&r);
}

void conformance_refuses_one_bucket_with_two_sets_of_numbers(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_in(5, 1, 1000);
  spile_limit *b = limit_in(6, 1, 1000);
  spile_request requests[2] = {{a, "k", 1, 1}, {b, "k", 1, 1}};
  spile_decision d;
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, NULL), SPILE_EINVAL));
  cr_assert(eq(sz, stored_count(&r), 0));
  spile_limit_unref(a);
  spile_limit_unref(b);
  rig_stop(&r);
}

void conformance_decides_by_the_strictest_limit(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *second = limit_named("second", 2, 1, 1000);
  spile_limit *hour = limit_named("hour", 2, 1, 3600000);
  spile_limit *big = limit_named("big", 100, 1, 1000);
  spile_request requests[3] = {{big, "k", 1, 1}, {second, "k", 1, 1}, {hour, "k", 1, 1}};
  spile_decision d;
  /* Allowed: the smallest remaining, 1 and 1, then the longest reset. */
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, NULL), SPILE_ALLOWED));
  cr_assert(eq(u32, d.index, 2));
  cr_assert(eq(i64, d.reset_after_ms, 3600000));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, NULL), SPILE_ALLOWED));
  /* Denied: the longest wait. */
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, NULL), SPILE_DENIED));
  cr_assert(eq(u32, d.index, 2));
  cr_assert(eq(i64, d.retry_after_ms, 3600000));
  /* Never beats denied, and is only read. */
  requests[0].cost = 101;
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, NULL), SPILE_NEVER));
  cr_assert(eq(u32, d.index, 0));
  cr_assert(eq(i64, d.remaining, 98));
  spile_limit_unref(second);
  spile_limit_unref(hour);
  spile_limit_unref(big);
  rig_stop(&r);
}

void conformance_takes_sixty_four_requests_at_once(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(3, 1, 3600000);
  static char keys[SPILE_REQUESTS_MAX + 1][8];
  spile_request requests[SPILE_REQUESTS_MAX + 1];
  for (size_t i = 0; i <= SPILE_REQUESTS_MAX; i++) {
    (void)snprintf(keys[i], sizeof(keys[i]), "k%zu", i);
    requests[i] = (spile_request){limit, keys[i], strlen(keys[i]), 1};
  }
  spile_decision d;
  spile_decision each[SPILE_REQUESTS_MAX];
  TAKE_ALLOWED(0, limit, "k63", 1, 2);
  cr_assert(spile_take_all(r.limiter, requests, SPILE_REQUESTS_MAX, &d, each) == SPILE_ALLOWED, "%s", d.detail);
  cr_assert(eq(u32, d.index, 63));
  cr_assert(eq(i64, each[62].remaining, 2));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, SPILE_REQUESTS_MAX, &d, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, SPILE_REQUESTS_MAX, &d, each), SPILE_DENIED));
  cr_assert(eq(u32, d.index, 63));
  cr_assert(eq(i64, each[0].remaining, 1));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, SPILE_REQUESTS_MAX + 1, &d, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 0, &d, NULL), SPILE_EINVAL));
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_writes_a_conversion_for_a_denied_vector(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *slow = limit_named("a", 5, 1, 86400000);
  spile_limit *fast = limit_named("a", 5, 1, 1000);
  spile_limit *other = limit_named("b", 5, 1, 3600000);
  TAKE_ALLOWED(0, slow, "k", 5, 0);
  TAKE_ALLOWED(0, other, "k", 5, 0);
  spile_request requests[2] = {{fast, "k", 1, 1}, {other, "k", 1, 1}};
  spile_decision d;
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, NULL), SPILE_DENIED));
  /* Converted at 0, though the other limit denied: so a token is there at 1,000. */
  TAKE_DENIED(999, fast, "k", 1, 0, 1);
  TAKE_ALLOWED(1000, fast, "k", 1, 0);
  spile_limit_unref(slow);
  spile_limit_unref(fast);
  spile_limit_unref(other);
  rig_stop(&r);
}

void conformance_writes_nothing_for_a_vector_with_a_never(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_named("a", 5, 1, 1000);
  spile_limit *b = limit_named("b", 1, 1, 1000);
  spile_request requests[2] = {{a, "k", 1, 1}, {b, "k", 1, 2}};
  spile_decision d;
  spile_decision each[2];
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_NEVER));
  cr_assert(eq(i64, d.retry_after_ms, SPILE_UNKNOWN));
  cr_assert(eq(int, each[0].outcome, SPILE_ALLOWED));
  cr_assert(eq(i64, each[0].remaining, 5));
  cr_assert(eq(sz, stored_count(&r), 0));
  spile_limit_unref(a);
  spile_limit_unref(b);
  rig_stop(&r);
}

/* A drained bucket whose numbers change is converted by the next take, which is a denial that has something to write.
 */
void conformance_lets_a_denial_stand_that_cannot_be_written(const store_fixture *fixture) {
  static const char *const algorithms[] = {"", ",leaky_bucket", ",fixed_window", ",sliding_window", ",sliding_log"};
  enum { N = sizeof(algorithms) / sizeof(algorithms[0]) };
  for (int way = 0; fixture->refuse_writes != NULL && fixture->refuse_writes[way] != NULL; way++) {
    rig r = rig_start(fixture);
    /* A writer that stands still is waited for until the deadline. */
    spile_close(r.limiter);
    r.limiter = open_within(r.uri, r.clock, NULL, BRIEFLY_MS);
    spile_limit *other = limit_of("5/h,name=other");
    spile_limit *changed[N];
    TAKE_ALLOWED(0, other, "k", 1, 4);
    for (int i = 0; i < N; i++) {
      char text[80];
      (void)snprintf(text, sizeof(text), "2/h%s,name=%d", algorithms[i], i);
      spile_limit *before = limit_of(text);
      (void)snprintf(text, sizeof(text), "1/h%s,name=%d", algorithms[i], i);
      changed[i] = limit_of(text);
      TAKE_ALLOWED(0, before, "k", 2, 0);
      spile_limit_unref(before);
    }
    fixture->refuse_writes[way]();
    for (int i = 0; i < N; i++)
      TAKE_DENIED(1, changed[i], "k", 1, 0, ANY);
    spile_request requests[2] = {{other, "k", 1, 1}, {changed[0], "k", 1, 1}};
    spile_decision d;
    int result = spile_take_all(r.limiter, requests, 2, &d, NULL);
    cr_assert(result == SPILE_DENIED && d.decided_by == SPILE_BY_STORE && d.index == 1, "way %d: %s %s", way,
              spile_code_name(result), d.detail);
    PEEK_ALLOWED(1, other, "k", 1, 4);
    for (int i = 0; i < N; i++)
      spile_limit_unref(changed[i]);
    spile_limit_unref(other);
    rig_stop(&r);
  }
}

void conformance_tells_the_longest_delay_of_several(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limits[3] = {limit_of("1/s,leaky_bucket,capacity=9,name=a"), limit_of("1/4s,leaky_bucket,capacity=8"),
                            limit_of("1/h,capacity=3")};
  spile_request requests[3];
  for (size_t i = 0; i < 3; i++)
    requests[i] = (spile_request){limits[i], "k", 1, 1};
  spile_decision d;
  spile_decision each[3];
  for (int64_t n = 0; n < 3; n++) {
    cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, each), SPILE_ALLOWED));
    /* The third limit has the fewest left and decides; the delay is the second's. */
    cr_assert(eq(u32, d.index, 2));
    cr_assert(eq(i64, d.delay_ms, 4000 * n));
    cr_assert(each[0].delay_ms == 1000 * n && each[1].delay_ms == 4000 * n && each[2].delay_ms == 0);
  }
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, each), SPILE_DENIED));
  cr_assert(eq(i64, d.delay_ms, 0));
  for (size_t i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
  rig_stop(&r);
}

/* ---- Charge, refund, take up to ---- */

typedef int settle_call(spile_limiter *, const spile_limit *, const void *, size_t, int64_t, spile_decision *);

static void settle_(int line, rig *r, int64_t at_ms, settle_call *call, const spile_limit *limit, const char *key,
                    int64_t cost, int64_t remaining, int64_t reset_after_ms, int64_t uncharged) {
  spile_decision d;
  spile_fake_clock_set(r->clock, at_ms);
  int result = call(r->limiter, limit, key, strlen(key), cost, &d);
  cr_assert(result == SPILE_ALLOWED && d.outcome == SPILE_ALLOWED && d.decided_by == SPILE_BY_STORE,
            "line %d, at %lld: %s (%s)", line, (long long)at_ms, spile_code_name(result), d.detail);
  cr_assert(d.remaining == remaining && d.reset_after_ms == reset_after_ms && d.uncharged == uncharged,
            "line %d, at %lld: remaining %lld, reset %lld, uncharged %lld", line, (long long)at_ms,
            (long long)d.remaining, (long long)d.reset_after_ms, (long long)d.uncharged);
  cr_assert(d.retry_after_ms == 0 && d.delay_ms == 0 && d.granted == 0, "line %d", line);
}

#define CHARGE(at, limit, key, cost, remaining, reset, uncharged) \
  settle_(__LINE__, &r, at, spile_charge, limit, key, cost, remaining, reset, uncharged)
#define REFUND(at, limit, key, cost, remaining, reset) \
  settle_(__LINE__, &r, at, spile_refund, limit, key, cost, remaining, reset, 0)

void conformance_charges_as_deep_as_the_debt_and_denies_until_it_is_paid(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  static const char *const texts[] = {"1/s,capacity=5,debt=3", "1/s,capacity=5,debt=3,leaky_bucket"};
  for (size_t i = 0; i < 2; i++) {
    spile_limit *limit = limit_of(texts[i]);
    CHARGE(0, limit, "k", 0, 5, 0, 0);
    cr_assert(eq(sz, stored_count(&r), i), "a charge of nothing leaves nothing");
    CHARGE(0, limit, "k", 7, 0, 7000, 0);
    TAKE_DENIED(0, limit, "k", 1, 0, 3000);
    TAKE_DENIED(1999, limit, "k", 0, 0, 1);
    TAKE_ALLOWED(2000, limit, "k", 0, 0);
    TAKE_DENIED(2999, limit, "k", 1, 0, 1);
    TAKE_ALLOWED(3000, limit, "k", 1, 0);
    CHARGE(3500, limit, "k", 4, 0, 8000, 1); /* half a token less: 3.5 of the 4 are charged */
    CHARGE(3500, limit, "k", INT64_MAX, 0, 8000, INT64_MAX);
    TAKE_DENIED(3500, limit, "k", 5, 0, 8000);
    TAKE_ALLOWED(11500, limit, "k", 5, 0);
    spile_limit_unref(limit);
  }
  /* Without a debt a charge beyond empty leaves it empty. */
  spile_limit *none = limit_of("1/s,capacity=5,name=none");
  CHARGE(0, none, "k", 9, 0, 5000, 4);
  TAKE_DENIED(999, none, "k", 1, 0, 1);
  TAKE_ALLOWED(1000, none, "k", 1, 0);
  spile_limit_unref(none);
  rig_stop(&r);
}

void conformance_gives_back_and_keeps_nothing_of_a_full_bucket(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_of("3/7ms,capacity=10,debt=5");
  REFUND(0, limit, "k", 3, 10, 0);
  cr_assert(eq(sz, stored_count(&r), 0));
  TAKE_ALLOWED(0, limit, "k", 10, 0);
  CHARGE(0, limit, "k", 2, 0, 28, 0); /* 84 units of a third of a ms */
  REFUND(0, limit, "k", 0, 0, 28);
  REFUND(1, limit, "k", 3, 1, 20); /* 81 − 21 = 60, so 10 of 70 are there */
  cr_assert(eq(sz, stored_count(&r), 1));
  REFUND(1, limit, "k", 8, 9, 2);
  REFUND(1, limit, "k", 1, 10, 0);
  cr_assert(eq(sz, stored_count(&r), 0), "a full bucket is not kept");
  TAKE_ALLOWED(1, limit, "k", 4, 6);
  REFUND(1, limit, "k", INT64_MAX, 10, 0);
  cr_assert(eq(sz, stored_count(&r), 0));
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_settles_windows_in_the_window_of_now(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *fixed = limit_of("10/s,fixed_window");
  CHARGE(100, fixed, "k", 8, 2, 900, 0);
  CHARGE(100, fixed, "k", 5, 0, 900, 3);
  TAKE_DENIED(100, fixed, "k", 1, 0, 900);
  REFUND(100, fixed, "k", 4, 4, 900);
  TAKE_ALLOWED(1000, fixed, "k", 2, 8);
  /* What was charged in the window before does not count any more, so this takes back from this one. */
  REFUND(1500, fixed, "k", 1, 9, 500);
  REFUND(1500, fixed, "k", 6, 10, 0);
  cr_assert(eq(sz, stored_count(&r), 0));
  spile_limit_unref(fixed);

  spile_limit *sliding = limit_of("10/s,sliding_window");
  CHARGE(100, sliding, "k", 12, 0, 1900, 2);
  REFUND(100, sliding, "k", 2, 2, 1900);
  /* A quarter of the 8 is over: 6 count still, so 4 are there. */
  CHARGE(1250, sliding, "k", 3, 1, 1750, 0);
  CHARGE(1250, sliding, "k", 3, 0, 1750, 2);
  REFUND(1250, sliding, "k", 9, 4, 750);
  PEEK_ALLOWED(1250, sliding, "k", 4, 4);
  PEEK_DENIED(1250, sliding, "k", 5, 4, 125);
  REFUND(1250, sliding, "k", 9, 4, 750); /* the window before stays as it is */
  spile_limit_unref(sliding);
  rig_stop(&r);
}

void conformance_settles_a_log_by_its_newest_takes(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *log = limit_of("10/s,sliding_log");
  TAKE_ALLOWED(0, log, "k", 2, 8);
  TAKE_ALLOWED(100, log, "k", 3, 5);
  CHARGE(200, log, "k", 7, 0, 1000, 2);
  CHARGE(200, log, "k", 1, 0, 1000, 1);
  REFUND(300, log, "k", 1, 1, 900);
  REFUND(300, log, "k", 5, 6, 800); /* all of those at 200, and one of those at 100 */
  PEEK_DENIED(300, log, "k", 7, 6, 700);
  PEEK_DENIED(1000, log, "k", 9, 8, 100);
  REFUND(1000, log, "k", 2, 10, 0);
  cr_assert(eq(sz, stored_count(&r), 0));
  REFUND(1000, log, "k", 2, 10, 0);
  spile_limit_unref(log);
  rig_stop(&r);
}

void conformance_settles_several_buckets_in_one_step(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limits[5] = {limit_of("1/s,capacity=9,debt=2,name=a"), limit_of("1/s,capacity=9,leaky_bucket"),
                            limit_of("7/h,fixed_window"), limit_of("6/h,sliding_window"), limit_of("8/h,sliding_log")};
  spile_request requests[6];
  for (size_t i = 0; i < 5; i++)
    requests[i] = (spile_request){limits[i], "k", 1, 5};
  requests[5] = (spile_request){limits[0], "k", 1, 4};
  spile_decision d;
  spile_decision each[6];
  cr_assert(spile_charge_all(r.limiter, requests, 6, &d, each) == SPILE_ALLOWED, "%s", d.detail);
  cr_assert(d.index == 0 && d.remaining == 0 && d.reset_after_ms == 9000 && d.uncharged == 0);
  static const int64_t left[] = {0, 4, 2, 1, 3, 0};
  for (size_t i = 0; i < 6; i++)
    cr_assert(each[i].remaining == left[i] && each[i].index == i, "%zu: %lld", i, (long long)each[i].remaining);
  cr_assert(eq(int, spile_charge_all(r.limiter, requests, 5, &d, each), SPILE_ALLOWED));
  cr_assert(eq(i64, d.uncharged, 4));
  static const int64_t uncharged[] = {3, 1, 3, 4, 2};
  for (size_t i = 0; i < 5; i++)
    cr_assert(each[i].uncharged == uncharged[i] && each[i].remaining == 0, "%zu: %lld", i,
              (long long)each[i].uncharged);
  cr_assert(eq(sz, stored_count(&r), 5));
  for (size_t i = 0; i < 5; i++)
    requests[i].cost = i == 2 ? 0 : 100;
  cr_assert(eq(int, spile_refund_all(r.limiter, requests, 5, &d, each), SPILE_ALLOWED));
  cr_assert(eq(u32, d.index, 2));
  cr_assert(each[2].remaining == 0 && each[0].remaining == 9 && each[3].remaining == 6 && each[4].remaining == 8);
  cr_assert(eq(sz, stored_count(&r), 1));
  cr_assert(eq(int, spile_refund_all(r.limiter, requests, 5, &d, each), SPILE_ALLOWED), "of which four are not there");
  cr_assert(eq(sz, stored_count(&r), 1));
  for (size_t i = 0; i < 5; i++)
    spile_limit_unref(limits[i]);
  rig_stop(&r);
}

void conformance_takes_up_to_what_is_there(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  static const char *const texts[] = {"1/h,capacity=10", "1/h,capacity=10,leaky_bucket", "10/h,fixed_window",
                                      "10/h,sliding_window", "10/h,sliding_log"};
  spile_decision d;
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    spile_limit *limit = limit_of(texts[i]);
    cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 1, 4, &d), SPILE_ALLOWED), "%s", texts[i]);
    cr_assert(d.granted == 4 && d.remaining == 6, "%s", texts[i]);
    cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 7, 9, &d), SPILE_DENIED), "%s", texts[i]);
    cr_assert(d.granted == 0 && d.remaining == 6 && d.retry_after_ms > 0, "%s", texts[i]);
    cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 6, INT64_MAX, &d), SPILE_ALLOWED), "%s", texts[i]);
    cr_assert(d.granted == 6 && d.remaining == 0, "%s", texts[i]);
    cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 1, 9, &d), SPILE_DENIED), "%s", texts[i]);
    cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 0, 9, &d), SPILE_ALLOWED), "%s", texts[i]);
    cr_assert(d.granted == 0 && d.remaining == 0, "%s", texts[i]);
    cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 11, 12, &d), SPILE_NEVER), "%s", texts[i]);
    spile_limit_unref(limit);
  }
  spile_limit *a = limit_of("1/h,capacity=10,name=a");
  spile_limit *b = limit_of("4/h,sliding_window");
  spile_request requests[3] = {{a, "m", 1, 77}, {b, "m", 1, 0}, {a, "m", 1, 1}};
  spile_decision each[3];
  cr_assert(eq(int, spile_take_up_to_all(r.limiter, requests, 2, 2, 9, &d, each), SPILE_ALLOWED));
  cr_assert(d.granted == 4 && d.index == 1 && each[0].remaining == 6 && each[1].remaining == 0);
  cr_assert(eq(int, spile_take_up_to_all(r.limiter, requests, 2, 1, 9, &d, each), SPILE_DENIED));
  PEEK_ALLOWED(0, a, "m", 6, 6);
  cr_assert(eq(int, spile_take_up_to_all(r.limiter, requests, 3, 1, 9, &d, each), SPILE_EINVAL), "a bucket twice");
  cr_assert(eq(int, spile_take_up_to_all(r.limiter, requests, 2, 3, 2, &d, each), SPILE_EINVAL));
  cr_assert(eq(int, spile_take_up_to_all(r.limiter, requests, 2, -1, 2, &d, each), SPILE_EINVAL));
  spile_limit_unref(a);
  spile_limit_unref(b);
  rig_stop(&r);
}

void conformance_converts_a_debt_when_its_limit_changes(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *deep = limit_of("1/s,capacity=10,debt=8");
  spile_limit *shallow = limit_of("1/2s,capacity=10,debt=3");
  spile_limit *none = limit_of("1/s,capacity=4");
  CHARGE(0, deep, "k", 16, 0, 16000, 0);
  PEEK_DENIED(0, shallow, "k", 1, 0, 8000); /* no deeper than 3, at 2 s a token */
  CHARGE(0, shallow, "k", 1, 0, 26000, 1);  /* written under the new numbers though nothing is charged */
  CHARGE(0, deep, "k", 1, 0, 14000, 0);     /* 3 below zero, and one more */
  REFUND(0, none, "k", 3, 3, 1000);         /* no debt: empty, and 3 back */
  REFUND(0, none, "k", 1, 4, 0);
  cr_assert(eq(sz, stored_count(&r), 0));
  spile_limit_unref(deep);
  spile_limit_unref(shallow);
  spile_limit_unref(none);
  rig_stop(&r);
}

void conformance_settles_on_its_own_clock(const store_fixture *fixture) {
  const char *uri = fixture_start(fixture);
  spile_limiter *limiter = open_at(uri, NULL, NULL);
  /* So slow that nothing comes back during the test. */
  static const char *const texts[] = {"1/30d,capacity=10,debt=5", "3/91d,leaky_bucket,capacity=10,debt=5",
                                      "10/3650d,fixed_window", "10/3650d,sliding_window", "10/3650d,sliding_log"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    spile_limit *limit = limit_of(texts[i]);
    int64_t debt = i < 2 ? 5 : 0;
    spile_decision d;
    cr_assert(spile_refund(limiter, limit, "k", 1, 4, &d) == SPILE_ALLOWED && d.remaining == 10, "%s: %s", texts[i],
              d.detail);
    cr_assert(spile_charge(limiter, limit, "k", 1, 6, &d) == SPILE_ALLOWED && d.remaining == 4, "%s: %s", texts[i],
              d.detail);
    cr_assert(spile_take(limiter, limit, "k", 1, 1, &d) == SPILE_ALLOWED && d.remaining == 3, "%s", texts[i]);
    cr_assert(spile_refund(limiter, limit, "k", 1, 2, &d) == SPILE_ALLOWED && d.remaining == 5, "%s", texts[i]);
    cr_assert(spile_take_up_to(limiter, limit, "k", 1, 1, 3, &d) == SPILE_ALLOWED && d.granted == 3, "%s", texts[i]);
    cr_assert(spile_charge(limiter, limit, "k", 1, 100, &d) == SPILE_ALLOWED && d.remaining == 0, "%s", texts[i]);
    cr_assert(d.uncharged == 98 - debt, "%s: %lld", texts[i], (long long)d.uncharged);
    cr_assert(spile_take(limiter, limit, "k", 1, 1, &d) == SPILE_DENIED, "%s", texts[i]);
    cr_assert(spile_refund(limiter, limit, "k", 1, debt + 1, &d) == SPILE_ALLOWED && d.remaining == 1, "%s", texts[i]);
    cr_assert(spile_refund(limiter, limit, "k", 1, 10, &d) == SPILE_ALLOWED && d.remaining == 10, "%s", texts[i]);
    size_t kept = 0;
    cr_assert(eq(int, spile_each(limiter, count_visit, &kept, NULL), SPILE_OK));
    /* The memory store lists the entry until another key takes it. */
    cr_assert(d.reset_after_ms == 0 && kept <= i + 1, "%s", texts[i]);
    spile_limit_unref(limit);
  }
  spile_close(limiter);
  fixture->stop();
}

/* ---- Promise 2 ---- */

void conformance_keeps_the_promise_of_every_denial(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  const int64_t numbers[][3] = {{60, 1, 1000}, {5, 1, 20000},   {7, 7, 1000},     {100, 3, 10},
                                {3, 7, 13000}, {50, 150, 7000}, {1, 999983, 1000}};
  uint64_t seed = 42;
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    char name[8];
    (void)snprintf(name, sizeof(name), "l%zu", i);
    spile_limit *limit = limit_named(name, numbers[i][0], numbers[i][1], numbers[i][2]);
    int64_t now_ms = 1000000;
    /* About as much comes back as is asked for, so that about half is denied. */
    int64_t step_max_ms = spile_limit_full_time_ms(limit) / 2 + 2;
    int denials = 0;
    for (int step = 0; step < 200; step++) {
      seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
      int64_t cost = 1 + (int64_t)(seed >> 33) % numbers[i][0];
      now_ms += (int64_t)(seed >> 20) % step_max_ms;
      spile_fake_clock_set(r.clock, now_ms);
      spile_decision d;
      int result = spile_take(r.limiter, limit, "k", 1, cost, &d);
      cr_assert(result > 0, "%s", d.detail);
      if (result != SPILE_DENIED)
        continue;
      denials++;
      int64_t retry_after_ms = d.retry_after_ms;
      PEEK_DENIED(now_ms + retry_after_ms - 1, limit, "k", cost, ANY, 1);
      PEEK_ALLOWED(now_ms + retry_after_ms, limit, "k", cost, ANY);
      if (step % 3 == 0)
        now_ms += retry_after_ms;
    }
    cr_assert(lt(int, 20, denials));
    spile_limit_unref(limit);
  }
  rig_stop(&r);
}

/* ---- Housekeeping ---- */

void conformance_forgets_a_bucket_when_told(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 3600000);
  spile_error error = {0};
  cr_assert(spile_clear(r.limiter, limit, "k", 1, &error) == SPILE_OK, "%s", error.message);
  TAKE_ALLOWED(0, limit, "k", 5, 0);
  TAKE_ALLOWED(0, limit, "other", 5, 0);
  cr_assert(spile_clear(r.limiter, limit, "k", 1, &error) == SPILE_OK, "%s", error.message);
  TAKE_ALLOWED(0, limit, "k", 1, 4);
  TAKE_DENIED(0, limit, "other", 1, 0, 3600000);
  cr_assert(eq(int, spile_clear(r.limiter, limit, "", 0, &error), SPILE_EINVAL));
  spile_limit_unref(limit);
  rig_stop(&r);
}

typedef struct seen {
  size_t count;
  bool a, b;
} seen;

static bool seen_visit(void *user, const spile_stored *stored) {
  seen *s = user;
  s->count++;
  cr_assert(eq(str, (char *)(uintptr_t)stored->algorithm, "token_bucket"));
  cr_assert(stored->simulated);
  if (stored->key_len == 4 && memcmp(stored->key, "a\0{}", 4) == 0) {
    s->a = true;
    cr_assert(stored->name_len == 7 && memcmp(stored->name, "default", 7) == 0);
    cr_assert(eq(i64, stored->capacity, 5));
    cr_assert(eq(i64, stored->refill_tokens, 3));
    cr_assert(eq(i64, stored->refill_period_ms, 1000));
    cr_assert(eq(i64, stored->remaining, 3));
    cr_assert(eq(i64, stored->reset_after_ms, 667));
  }
  if (stored->key_len == 100) {
    s->b = true;
    cr_assert(stored->name_len == 3 && memcmp(stored->name, "a:b", 3) == 0);
    cr_assert(eq(i64, stored->remaining, 0));
  }
  return true;
}

void conformance_lists_what_is_stored(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_of("3/s,capacity=5");
  spile_limit *named = limit_named("a:b", 2, 1, 3600000);
  char key[100];
  memset(key, '%', sizeof(key));
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, limit, "a\0{}", 4, 2, &d), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(r.limiter, named, key, sizeof(key), 2, &d), SPILE_ALLOWED));
  seen s = {0};
  spile_error error = {0};
  cr_assert(spile_each(r.limiter, seen_visit, &s, &error) == SPILE_OK, "%s", error.message);
  cr_assert(s.a && s.b && s.count == 2, "%d %d %zu", s.a, s.b, s.count);
  spile_limit_unref(limit);
  spile_limit_unref(named);
  rig_stop(&r);
}

/* A limit of each algorithm that admits 100 tokens at once, and none for an hour about the time 0. */
static const struct {
  const char *algorithm;
  const char *text;
  int64_t reset_ms; /* of a bucket that was emptied at the time 0 */
} hundreds[] = {
    {"token_bucket", "1/h,capacity=100", INT64_C(360000000)},
    {"leaky_bucket", "1/h,leaky_bucket,capacity=100", INT64_C(360000000)},
    {"fixed_window", "100/h,fixed_window", 3600000},
    {"sliding_window", "100/h,sliding_window", 7200000},
    {"sliding_log", "100/h,sliding_log", 3600000},
};

#define HUNDREDS (sizeof(hundreds) / sizeof(hundreds[0]))

static bool hundred_visit(void *user, const spile_stored *stored) {
  size_t *shown = user;
  for (size_t i = 0; i < HUNDREDS; i++) {
    if (strcmp(stored->algorithm, hundreds[i].algorithm) != 0)
      continue;
    shown[i]++;
    cr_assert(stored->key_len == 1 && memcmp(stored->key, "k", 1) == 0);
    cr_assert(stored->name_len == 7 && memcmp(stored->name, "default", 7) == 0);
    cr_assert(eq(i64, stored->capacity, 100));
    cr_assert(eq(i64, stored->refill_tokens, i < 2 ? 1 : 100));
    cr_assert(eq(i64, stored->refill_period_ms, 3600000));
    cr_assert(eq(i64, stored->remaining, 0));
    cr_assert(eq(i64, stored->reset_after_ms, hundreds[i].reset_ms));
  }
  return true;
}

void conformance_lists_every_algorithm(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  for (size_t i = 0; i < HUNDREDS; i++) {
    spile_limit *limit = limit_of(hundreds[i].text);
    TAKE_ALLOWED(0, limit, "k", 40, 60);
    TAKE_ALLOWED(0, limit, "k", 60, 0);
    spile_limit_unref(limit);
  }
  size_t shown[HUNDREDS] = {0};
  spile_error error = {0};
  cr_assert(spile_each(r.limiter, hundred_visit, shown, &error) == SPILE_OK, "%s", error.message);
  for (size_t i = 0; i < HUNDREDS; i++)
    cr_assert(shown[i] == 1, "%s was shown %zu times", hundreds[i].algorithm, shown[i]);
  rig_stop(&r);
}

void conformance_keeps_every_algorithm_until_it_counts_nothing(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_error error = {0};
  for (size_t i = 0; i < HUNDREDS; i++) {
    spile_limit *limit = limit_of(hundreds[i].text);
    TAKE_ALLOWED(0, limit, "k", 100, 0);
    spile_fake_clock_set(r.clock, hundreds[i].reset_ms - 1);
    cr_assert(spile_clean(r.limiter, SPILE_CLEAN_FULL, &error) == SPILE_OK, "%s", error.message);
    TAKE_DENIED(0, limit, "k", 100, 0, hundreds[i].reset_ms);
    PEEK_ALLOWED(hundreds[i].reset_ms, limit, "k", 100, 100);
    cr_assert(eq(int, spile_clear(r.limiter, limit, "k", 1, &error), SPILE_OK));
    TAKE_ALLOWED(0, limit, "k", 100, 0);
    cr_assert(eq(int, spile_clear(r.limiter, limit, "k", 1, &error), SPILE_OK));
    spile_limit_unref(limit);
  }
  rig_stop(&r);
}

void conformance_cleans_what_was_simulated(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 3600000);
  for (int i = 0; i < 700; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "k%d", i);
    TAKE_ALLOWED(0, limit, key, 1, 4);
  }
  cr_assert(eq(sz, stored_count(&r), 700));
  spile_limiter *other = open_at(r.uri, r.clock, "other");
  spile_limiter *own_clock = open_at(r.uri, NULL, NULL);
  spile_decision d;
  cr_assert(eq(int, spile_take(other, limit, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(own_clock, limit, "k", 1, 1, &d), SPILE_ALLOWED));
  spile_error error = {0};
  cr_assert(spile_clean(r.limiter, SPILE_CLEAN_PREFIX, &error) == SPILE_OK, "%s", error.message);
  cr_assert(eq(sz, stored_count(&r), 0));
  cr_assert(eq(int, spile_peek(other, limit, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(i64, d.remaining, 4));
  if (fixture->shared) {
    cr_assert(spile_clean(own_clock, SPILE_CLEAN_SIMULATED, &error) == SPILE_OK, "%s", error.message);
    cr_assert(eq(int, spile_peek(other, limit, "k", 1, 1, &d), SPILE_ALLOWED));
    cr_assert(eq(i64, d.remaining, 5));
  }
  cr_assert(eq(int, spile_peek(own_clock, limit, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(i64, d.remaining, 4));
  spile_close(other);
  spile_close(own_clock);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_drops_full_buckets_only_when_told(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 1000);
  TAKE_ALLOWED(10000, limit, "k", 5, 0);
  for (int i = 0; i < 300; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "k%d", i);
    TAKE_ALLOWED(30000, limit, key, 1, 4);
  }
  /* Back to when it was not full: nothing was dropped in passing, so it is still in debt. */
  TAKE_DENIED(10000, limit, "k", 1, 0, 1000);
  spile_fake_clock_set(r.clock, 30000);
  spile_error error = {0};
  cr_assert(spile_clean(r.limiter, SPILE_CLEAN_FULL, &error) == SPILE_OK, "%s", error.message);
  TAKE_ALLOWED(30000, limit, "k0", 1, 3);
  PEEK_ALLOWED(30000, limit, "k", 1, 5);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_keeps_given_times_apart_from_its_own(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *limit = limit_in(5, 1, 3600000);
  TAKE_ALLOWED(0, limit, "k", 5, 0);
  spile_limiter *own_clock = open_at(r.uri, NULL, NULL);
  spile_decision d;
  cr_assert(eq(int, spile_take(own_clock, limit, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(i64, d.remaining, 4));
  TAKE_DENIED(0, limit, "k", 1, 0, 3600000);
  spile_error error = {0};
  cr_assert(spile_clear(own_clock, limit, "k", 1, &error) == SPILE_OK, "%s", error.message);
  TAKE_DENIED(0, limit, "k", 1, 0, 3600000);
  spile_close(own_clock);
  spile_limit_unref(limit);
  rig_stop(&r);
}

void conformance_decides_on_its_own_clock(const store_fixture *fixture) {
  const char *uri = fixture_start(fixture);
  spile_limiter *limiter = open_at(uri, NULL, NULL);
  spile_limit *slow = limit_in(5, 1, 3600000);
  spile_decision d;
  for (int i = 4; i >= 0; i--) {
    cr_assert(spile_take(limiter, slow, "k", 1, 1, &d) == SPILE_ALLOWED, "%s", d.detail);
    cr_assert(eq(i64, d.remaining, i));
  }
  cr_assert(eq(int, spile_take(limiter, slow, "k", 1, 1, &d), SPILE_DENIED));
  cr_assert(d.retry_after_ms > 3590000 && d.retry_after_ms <= 3600000);
  cr_assert(d.reset_after_ms > 5 * 3600000 - 10000 && d.reset_after_ms <= 5 * 3600000);
  /* A wait of a millisecond or two, really waited for. */
  spile_limit *fast = limit_named("fast", 1, 500, 1000);
  for (int i = 0; i < 20; i++)
    cr_assert(spile_wait(limiter, fast, "k", 1, 1, 10000, &d) == SPILE_ALLOWED, "%s", d.detail);
  /* Which cannot have been faster than the rate: 20 tokens, one there at the start, 2 ms each. */
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.allowed, 25));
  cr_assert(ge(u64, counters.denied, 1));
  cr_assert(eq(u64, counters.unavailable, 0));
  spile_limit_unref(slow);
  spile_limit_unref(fast);
  spile_close(limiter);
  fixture->stop();
}

void conformance_decides_every_algorithm_on_its_own_clock(const store_fixture *fixture) {
  const char *uri = fixture_start(fixture);
  spile_limiter *limiter = open_at(uri, NULL, NULL);
  /* Windows so long that none ends during the test. */
  static const char *const slow[] = {"1/365d,leaky_bucket,capacity=10", "10/3650d,fixed_window",
                                     "10/3650d,sliding_window", "10/3650d,sliding_log"};
  for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
    spile_limit *limit = limit_of(slow[i]);
    spile_decision d;
    cr_assert(spile_take(limiter, limit, "k", 1, 6, &d) == SPILE_ALLOWED, "%s: %s", slow[i], d.detail);
    cr_assert(eq(i64, d.remaining, 4));
    cr_assert(eq(int, spile_peek(limiter, limit, "k", 1, 5, &d), SPILE_DENIED));
    cr_assert(d.retry_after_ms > 0 && d.reset_after_ms >= d.retry_after_ms);
    cr_assert(d.reset_after_ms <= spile_limit_full_time_ms(limit));
    spile_limit_unref(limit);
  }
  /* Windows of 20 ms, really waited for. */
  static const char *const texts[] = {"2/20ms,fixed_window,name=fast", "2/20ms,sliding_window,name=fast",
                                      "2/20ms,sliding_log,name=fast"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    spile_limit *limit = limit_of(texts[i]);
    spile_decision d;
    for (int j = 0; j < 10; j++)
      cr_assert(spile_wait(limiter, limit, "k", 1, 1, 10000, &d) == SPILE_ALLOWED, "%s: %s", texts[i], d.detail);
    spile_limit_unref(limit);
  }
  spile_close(limiter);
  fixture->stop();
}

/* ---- Many at once ---- */

typedef struct crowd {
  spile_limiter *limiter;
  const spile_limit *limit;
  const spile_limit *second;
  const char *key;
  int takes;
  pthread_barrier_t barrier;
  atomic_int allowed;
  atomic_int failed;
  atomic_int remaining_seen[100];
} crowd;

static void *crowd_take(void *user) {
  crowd *c = user;
  (void)pthread_barrier_wait(&c->barrier);
  for (int i = 0; i < c->takes; i++) {
    spile_decision d;
    int result = spile_take(c->limiter, c->limit, c->key, strlen(c->key), 1, &d);
    if (result == SPILE_ALLOWED) {
      atomic_fetch_add(&c->allowed, 1);
      if (d.remaining >= 0 && d.remaining < 100)
        atomic_fetch_add(&c->remaining_seen[d.remaining], 1);
    } else if (result != SPILE_DENIED) {
      atomic_fetch_add(&c->failed, 1);
    }
  }
  return NULL;
}

static void crowd_run(crowd *c, int threads, void *(*run)(void *)) {
  pthread_t ids[200];
  cr_assert(pthread_barrier_init(&c->barrier, NULL, (unsigned)threads) == 0);
  for (int i = 0; i < threads; i++)
    cr_assert(pthread_create(&ids[i], NULL, run, c) == 0);
  for (int i = 0; i < threads; i++)
    (void)pthread_join(ids[i], NULL);
  (void)pthread_barrier_destroy(&c->barrier);
}

void conformance_mem_02_lets_exactly_the_capacity_through_many_threads(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  for (size_t round = 0; round < 3 * HUNDREDS; round++) {
    spile_limit *limit = limit_of(hundreds[round % HUNDREDS].text);
    char key[16];
    (void)snprintf(key, sizeof(key), "k%zu", round);
    crowd c = {.limiter = r.limiter, .limit = limit, .key = key, .takes = 10};
    crowd_run(&c, 20, crowd_take);
    cr_assert(eq(int, atomic_load(&c.failed), 0));
    cr_assert(eq(int, atomic_load(&c.allowed), 100));
    for (int i = 0; i < 100; i++)
      cr_assert(atomic_load(&c.remaining_seen[i]) == 1, "remaining %d seen %d times", i,
                atomic_load(&c.remaining_seen[i]));
    spile_limit_unref(limit);
  }
  rig_stop(&r);
}

/* Each thread asks for the same two buckets, half of them in the other order. */
static void *crowd_take_two(void *user) {
  crowd *c = user;
  static atomic_int turn;
  int first = atomic_fetch_add(&turn, 1) % 2;
  (void)pthread_barrier_wait(&c->barrier);
  for (int i = 0; i < c->takes; i++) {
    spile_request requests[2];
    requests[first] = (spile_request){c->limit, c->key, strlen(c->key), 1};
    requests[1 - first] = (spile_request){c->second, c->key, strlen(c->key), 1};
    spile_decision d;
    int result = spile_take_all(c->limiter, requests, 2, &d, NULL);
    if (result == SPILE_ALLOWED)
      atomic_fetch_add(&c->allowed, 1);
    else if (result != SPILE_DENIED)
      atomic_fetch_add(&c->failed, 1);
  }
  return NULL;
}

void conformance_charges_vectors_of_many_threads_all_or_nothing(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_named("a", 60, 1, 3600000);
  for (size_t round = 0; round < 3 * HUNDREDS; round++) {
    spile_limit *b = limit_of(hundreds[round % HUNDREDS].text);
    char key[16];
    (void)snprintf(key, sizeof(key), "k%zu", round);
    crowd c = {.limiter = r.limiter, .limit = a, .second = b, .key = key, .takes = 20};
    crowd_run(&c, 8, crowd_take_two);
    cr_assert(eq(int, atomic_load(&c.failed), 0));
    cr_assert(eq(int, atomic_load(&c.allowed), 60));
    PEEK_DENIED(0, a, key, 1, 0, ANY);
    PEEK_ALLOWED(0, b, key, 1, 40);
    spile_limit_unref(b);
  }
  spile_limit_unref(a);
  rig_stop(&r);
}

/* Charges two buckets and gives back to them, in either order; together they leave one token a turn. */
static void *crowd_settle(void *user) {
  crowd *c = user;
  static atomic_int turn;
  int first = atomic_fetch_add(&turn, 1) % 2;
  (void)pthread_barrier_wait(&c->barrier);
  for (int i = 0; i < c->takes; i++) {
    spile_request requests[2];
    requests[first] = (spile_request){c->limit, c->key, strlen(c->key), 3};
    requests[1 - first] = (spile_request){c->second, c->key, strlen(c->key), 3};
    spile_decision d;
    bool failed = spile_charge_all(c->limiter, requests, 2, &d, NULL) != SPILE_ALLOWED || d.uncharged != 0;
    requests[0].cost = requests[1].cost = 2;
    failed = failed || spile_refund_all(c->limiter, requests, 2, &d, NULL) != SPILE_ALLOWED;
    failed = failed || spile_charge(c->limiter, c->limit, c->key, strlen(c->key), 1, &d) != SPILE_ALLOWED;
    failed = failed || spile_refund(c->limiter, c->second, c->key, strlen(c->key), 1, &d) != SPILE_ALLOWED;
    if (failed)
      atomic_fetch_add(&c->failed, 1);
  }
  return NULL;
}

/*
 * Of the first bucket two tokens a turn are left charged, of the second none: nothing may be lost or made, nor may a
 * refund that fills a bucket take another's charge with it. The second starts with something owed, so that no refund
 * comes too early.
 */
void conformance_loses_no_charge_or_refund_of_many_threads(const store_fixture *fixture) {
  rig r = rig_start(fixture);
  spile_limit *a = limit_named("a", 500, 1, 3600000);
  for (size_t round = 0; round < HUNDREDS; round++) {
    spile_limit *b = limit_of(hundreds[round].text);
    char key[16];
    (void)snprintf(key, sizeof(key), "k%zu", round);
    TAKE_ALLOWED(0, b, key, 60, 40);
    crowd c = {.limiter = r.limiter, .limit = a, .second = b, .key = key, .takes = 25};
    crowd_run(&c, 8, crowd_settle);
    cr_assert(eq(int, atomic_load(&c.failed), 0));
    PEEK_ALLOWED(0, a, key, 1, 500 - 8 * 25 * 2);
    PEEK_ALLOWED(0, b, key, 1, 40);
    spile_limit_unref(b);
  }
  spile_limit_unref(a);
  rig_stop(&r);
}

void conformance_lets_exactly_the_capacity_through_many_processes(const store_fixture *fixture) {
  const char *uri = fixture_start(fixture);
  if (!fixture->shared) {
    /* A store of one process has nothing to share: two limiters on its address are two stores. */
    spile_limiter *first = open_at(uri, NULL, NULL);
    spile_limiter *second = open_at(uri, NULL, NULL);
    spile_limit *one = limit_in(1, 1, 3600000);
    cr_assert(spile_allow(first, one, "k"));
    cr_assert(spile_allow(second, one, "k"));
    spile_limit_unref(one);
    spile_close(first);
    spile_close(second);
    fixture->stop();
    return;
  }
  atomic_int *counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(counts != MAP_FAILED);
  for (int i = 0; i < 8; i++) {
    pid_t pid = fork();
    cr_assert(ge(int, pid, 0));
    if (pid == 0) {
      spile_limiter *limiter = open_at(uri, NULL, NULL);
      spile_limit *limit = limit_in(100, 1, 3600000);
      for (int j = 0; j < 50; j++) {
        spile_decision d;
        int result = spile_take(limiter, limit, "k", 1, 1, &d);
        atomic_fetch_add(&counts[result == SPILE_ALLOWED ? 0 : result == SPILE_DENIED ? 1 : 2], 1);
      }
      spile_limit_unref(limit);
      spile_close(limiter);
      _exit(0);
    }
  }
  for (int i = 0; i < 8; i++) {
    int status;
    cr_assert(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  cr_assert(eq(int, atomic_load(&counts[0]), 100));
  cr_assert(eq(int, atomic_load(&counts[1]), 300));
  cr_assert(eq(int, atomic_load(&counts[2]), 0));
  fixture->stop();
}

void conformance_lmdb_04_refuses_use_after_fork(const store_fixture *fixture) {
  const char *uri = fixture_start(fixture);
  spile_limiter *limiter = open_at(uri, NULL, NULL);
  spile_limit *limit = limit_in(100, 1, 3600000);
  cr_assert(spile_allow(limiter, limit, "other"));
  atomic_int *allowed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(allowed != MAP_FAILED);
  pid_t pid = fork();
  cr_assert(ge(int, pid, 0));
  if (pid == 0) {
    spile_decision d;
    spile_counters counters = SPILE_COUNTERS_INIT;
    bool refused = spile_take(limiter, limit, "k", 1, 1, &d) == SPILE_EFORK &&
                   spile_peek(limiter, limit, "k", 1, 1, &d) == SPILE_EFORK &&
                   spile_clear(limiter, limit, "k", 1, NULL) == SPILE_EFORK &&
                   spile_clean(limiter, SPILE_CLEAN_FULL, NULL) == SPILE_EFORK &&
                   spile_each(limiter, count_visit, &d, NULL) == SPILE_EFORK &&
                   spile_count(limiter, &counters) == SPILE_EFORK && !spile_allow(limiter, limit, "k");
    spile_close(limiter);
    limiter = open_at(uri, NULL, NULL);
    for (int i = 0; i < 150; i++)
      atomic_fetch_add(allowed, spile_allow(limiter, limit, "k"));
    spile_close(limiter);
    spile_limit_unref(limit);
    _exit(refused ? 0 : 1);
  }
  int mine = 0;
  for (int i = 0; i < 150; i++)
    mine += spile_allow(limiter, limit, "k");
  int status;
  cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (int i = 0; i < 150; i++)
    mine += spile_allow(limiter, limit, "k");
  if (fixture->shared)
    cr_assert(eq(int, mine + atomic_load(allowed), 100));
  else
    cr_assert(eq(int, mine, 100));
  spile_limit_unref(limit);
  spile_close(limiter);
  fixture->stop();
}
