/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters by limit: what is counted where, exactly, and how it is written for Prometheus.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <sched.h>
#include <spile/metrics.h>
#include <spile/testing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "limiter/limiter.h"
#include "prometheus_text.h"

typedef struct rig {
  spile_scripted_store *store;
  spile_limiter *limiter;
} rig;

static rig rig_start(spile_metrics_level level) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = (int)level;
  options.breaker_failures = SPILE_BREAKER_OFF;
  rig r = {.store = spile_scripted_store_new()};
  cr_assert(r.store != NULL);
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(r.store), &options, NULL), SPILE_OK));
  return r;
}

static spile_limit *limit_of(const char *text) {
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(spile_limit_parse(&limit, text, &error) == SPILE_OK, "%s: %s", text, error.message);
  return limit;
}

static spile_limit *limit_named(const char *name) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.name = name;
  def.capacity = 10;
  def.refill_tokens = 1;
  def.refill_period_ms = 1000;
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_OK));
  return limit;
}

static void answer(rig *r, int code, spile_reason reason) {
  cr_assert(spile_scripted_store_answer(r->store, code, reason, NULL, 0));
}

static void answer_debt(rig *r, int64_t first, int64_t second) {
  spile_reading readings[2] = {{{first}}, {{second}}};
  cr_assert(spile_scripted_store_answer(r->store, SPILE_OK, SPILE_REASON_NONE, readings, 2));
}

/* ---- Reading ---- */

typedef struct wanted_row {
  const char *limit;
  bool found;
  spile_metrics row;
} wanted_row;

static bool row_look(void *user, const spile_metrics *row) {
  wanted_row *wanted = user;
  if (strcmp(row->limit, wanted->limit) != 0)
    return true;
  wanted->found = true;
  wanted->row = *row;
  return false;
}

/* The row of a name; all zero where there is none. */
static spile_metrics row_of(spile_limiter *limiter, const char *name) {
  wanted_row wanted = {.limit = name};
  cr_assert(eq(int, spile_metrics_each(limiter, row_look, &wanted), SPILE_OK));
  return wanted.row;
}

static uint64_t sum_of(const uint64_t *counts, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++)
    sum += counts[i];
  return sum;
}

static uint64_t row_sum(const spile_metrics *row) {
  return row->allowed + row->denied + row->never + row->full_open + row->full_closed + row->full_failed +
         row->shadow_allowed + row->shadow_denied + row->shadow_failed + sum_of(row->policy_open, SPILE_REASONS_MAX) +
         sum_of(row->policy_closed, SPILE_REASONS_MAX) + sum_of(row->unavailable, SPILE_REASONS_MAX);
}

typedef struct totals {
  size_t rows;
  uint64_t takes;
  uint64_t calls;
} totals;

static bool row_add_up(void *user, const spile_metrics *row) {
  totals *all = user;
  all->rows++;
  all->takes += row_sum(row);
  all->calls += sum_of(row->calls, SPILE_METRICS_RANGES);
  return true;
}

static totals totals_of(spile_limiter *limiter) {
  totals all = {0};
  cr_assert(eq(int, spile_metrics_each(limiter, row_add_up, &all), SPILE_OK));
  return all;
}

/* The text, to be freed, found good by the strict reader. */
static char *text_of(spile_limiter *limiter) {
  char *text = NULL;
  size_t size = 0;
  size_t needed = 0;
  cr_assert(eq(int, spile_metrics_text(limiter, NULL, 0, &needed), SPILE_OK));
  /* Rows may come while it is written. */
  while (needed > size) {
    size = needed + 4096;
    text = realloc(text, size);
    cr_assert(text != NULL);
    cr_assert(eq(int, spile_metrics_text(limiter, text, size, &needed), SPILE_OK));
  }
  cr_assert(eq(sz, strlen(text), needed - 1));
  const char *fault = prometheus_fault(text);
  cr_assert(fault == NULL, "%s\n%s", fault, text);
  return text;
}

/* ---- What is counted where ---- */

typedef struct cell_row {
  const char *name;
  const char *limit;
  int code;
  spile_reason reason;
  int64_t debt;
  int64_t cost;
  int result;
  size_t member; /* of spile_metrics: the only one that is 1 */
} cell_row;

#define MEMBER(m) offsetof(spile_metrics, m)

static const cell_row cells[] = {
    {"allowed", "1/s,capacity=60", SPILE_OK, SPILE_REASON_NONE, 0, 1, SPILE_ALLOWED, MEMBER(allowed)},
    {"denied", "1/s,capacity=60", SPILE_OK, SPILE_REASON_NONE, 60000, 1, SPILE_DENIED, MEMBER(denied)},
    {"never", "1/s,capacity=60", SPILE_OK, SPILE_REASON_NONE, 0, 61, SPILE_NEVER, MEMBER(never)},
    {"never without a store", "1/s,capacity=60", SPILE_EUNAVAILABLE, SPILE_REASON_IO, 0, 61, SPILE_NEVER,
     MEMBER(never)},
    {"full, closed", "1/s", SPILE_EFULL, SPILE_REASON_NONE, 0, 1, SPILE_DENIED, MEMBER(full_closed)},
    {"full, open", "1/s,on_full=open", SPILE_EFULL, SPILE_REASON_NONE, 0, 1, SPILE_ALLOWED, MEMBER(full_open)},
    {"full, fail", "1/s,on_full=fail", SPILE_EFULL, SPILE_REASON_NONE, 0, 1, SPILE_EFULL, MEMBER(full_failed)},
    {"policy, open", "1/s,on_store_error=open", SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, 0, 1, SPILE_ALLOWED,
     MEMBER(policy_open[SPILE_REASON_TIMEOUT])},
    {"policy, closed", "1/s,on_store_error=closed", SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT, 0, 1, SPILE_DENIED,
     MEMBER(policy_closed[SPILE_REASON_CONNECT])},
    {"unavailable", "1/s", SPILE_EUNAVAILABLE, SPILE_REASON_OOM, 0, 1, SPILE_EUNAVAILABLE,
     MEMBER(unavailable[SPILE_REASON_OOM])},
    {"no memory", "1/s", SPILE_ENOMEM, SPILE_REASON_NONE, 0, 1, SPILE_ENOMEM, MEMBER(unavailable[SPILE_REASON_MEMORY])},
    {"what a store may not answer", "1/s", SPILE_EINVAL, SPILE_REASON_NONE, 0, 1, SPILE_EUNAVAILABLE,
     MEMBER(unavailable[SPILE_REASON_PROTOCOL])},
};

Test(metrics, counts_each_take_in_exactly_one_place) {
  for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++) {
    const cell_row *cell = &cells[i];
    rig r = rig_start(SPILE_METRICS_COUNTS);
    spile_limit *limit = limit_of(cell->limit);
    spile_reading reading = {{cell->debt}};
    cr_assert(spile_scripted_store_answer(r.store, cell->code, cell->reason, &reading, 1));
    spile_decision d;
    int result = spile_take(r.limiter, limit, "k", 1, cell->cost, &d);
    cr_assert(result == cell->result, "%s: %s", cell->name, spile_code_name(result));
    spile_metrics row = row_of(r.limiter, "default");
    uint64_t counted;
    memcpy(&counted, (const char *)&row + cell->member, sizeof(counted));
    cr_assert(counted == 1, "%s: not counted where it belongs", cell->name);
    cr_assert(row_sum(&row) == 1, "%s: counted %llu times", cell->name, (unsigned long long)row_sum(&row));
    cr_assert(not(row.other));
    free(text_of(r.limiter));
    spile_limit_unref(limit);
    spile_close(r.limiter);
  }
}

Test(metrics, counts_no_peek_and_nothing_that_was_not_asked) {
  rig r = rig_start(SPILE_METRICS_TIMES);
  spile_limit *limit = limit_of("1/s,capacity=60");
  cr_assert(eq(int, spile_peek(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, -1, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, limit, "", 0, 1, NULL), SPILE_EINVAL));
  spile_metrics row = row_of(r.limiter, "default");
  cr_assert(eq(u64, row_sum(&row), 0));
  /* A peek is a call of the store, though. */
  cr_assert(eq(u64, sum_of(row.calls, SPILE_METRICS_RANGES), 1));
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(metrics, counts_no_take_at_a_time_out_of_range) {
  spile_fake_clock *clock = spile_fake_clock_new(1000);
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_COUNTS;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/s");
  cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  spile_fake_clock_set(clock, -1);
  cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, NULL), SPILE_EINVAL));
  cr_assert(eq(u64, totals_of(limiter).takes, 1));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.unavailable, 0));
  spile_limit_unref(limit);
  spile_close(limiter);
  spile_fake_clock_free(clock);
}

Test(metrics, counts_several_limits_each_by_what_it_said_itself) {
  rig r = rig_start(SPILE_METRICS_COUNTS);
  spile_limit *a = limit_of("1/s,capacity=60,name=a");
  spile_limit *b = limit_of("1/s,capacity=60,name=b");
  spile_request requests[3] = {{a, "k", 1, 1}, {b, "k", 1, 1}, {b, "k", 1, 1}};
  answer_debt(&r, 0, 60000);
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, NULL, NULL), SPILE_DENIED));
  cr_assert(eq(u64, row_of(r.limiter, "a").allowed, 1));
  cr_assert(eq(u64, row_of(r.limiter, "b").denied, 1));
  cr_assert(eq(u64, totals_of(r.limiter).takes, 2));
  /* The take as a whole is one, and denied. */
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(r.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.allowed, 0));
  cr_assert(eq(u64, counters.denied, 1));
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_close(r.limiter);
}

Test(metrics, counts_limits_that_are_not_enforced_apart) {
  rig r = rig_start(SPILE_METRICS_COUNTS);
  spile_limit *limit = limit_of("1/s,capacity=60,name=new,on_store_error=open");
  const spile__about about = {.shadow = true};
  const spile_request request = {limit, "k", 1, 1};
  answer_debt(&r, 0, 0);
  cr_assert(eq(int, spile__limiter_ask(r.limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_ALLOWED));
  answer_debt(&r, 60000, 0);
  cr_assert(eq(int, spile__limiter_ask(r.limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_DENIED));
  answer(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  cr_assert(eq(int, spile__limiter_ask(r.limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_ALLOWED));
  spile_metrics row = row_of(r.limiter, "new");
  cr_assert(eq(u64, row.shadow_allowed, 1));
  cr_assert(eq(u64, row.shadow_denied, 1));
  cr_assert(eq(u64, row.shadow_failed, 1));
  cr_assert(eq(u64, row_sum(&row), 3));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(r.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.allowed + counters.denied + counters.policy_open, 0));
  char *text = text_of(r.limiter);
  cr_assert(eq(dbl, prometheus_value(text, "spile_shadow_takes_total{limit=\"new\",outcome=\"denied\"}"), 1));
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

/* ---- Rows ---- */

Test(metrics, keeps_the_row_of_a_name_when_its_limit_is_another_one) {
  rig r = rig_start(SPILE_METRICS_COUNTS);
  for (int i = 1; i <= 100; i++) {
    char text[64];
    (void)snprintf(text, sizeof(text), "%d/s,name=search", i);
    spile_limit *limit = limit_of(text);
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
    spile_limit_unref(limit);
  }
  cr_assert(eq(u64, row_of(r.limiter, "search").allowed, 100));
  cr_assert(eq(sz, totals_of(r.limiter).rows, 1));
  spile_close(r.limiter);
}

Test(metrics, makes_no_row_of_a_key) {
  rig r = rig_start(SPILE_METRICS_TIMES);
  spile_limit *limit = limit_of("1/s,capacity=60");
  for (int i = 0; i < 5000; i++) {
    char key[32];
    int len = snprintf(key, sizeof(key), "secret-%d", i);
    cr_assert(eq(int, spile_take(r.limiter, limit, key, (size_t)len, 1, NULL), SPILE_ALLOWED));
  }
  cr_assert(eq(sz, totals_of(r.limiter).rows, 1));
  char *text = text_of(r.limiter);
  cr_assert(strstr(text, "secret") == NULL);
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(metrics, counts_names_past_the_bound_in_one_row_that_says_so) {
  enum { BEYOND = 30 };
  rig r = rig_start(SPILE_METRICS_COUNTS);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < SPILE_METRICS_NAMES_MAX + BEYOND; i++) {
      char name[32];
      (void)snprintf(name, sizeof(name), "name %d", i);
      spile_limit *limit = limit_named(name);
      cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
      spile_limit_unref(limit);
    }
  }
  totals all = totals_of(r.limiter);
  cr_assert(eq(sz, all.rows, SPILE_METRICS_NAMES_MAX + 1));
  cr_assert(eq(u64, all.takes, 2 * (SPILE_METRICS_NAMES_MAX + BEYOND)));
  spile_metrics last = row_of(r.limiter, "name 1023");
  cr_assert(eq(u64, last.allowed, 2));
  spile_metrics other = row_of(r.limiter, SPILE_METRICS_OTHER);
  cr_assert(other.other);
  cr_assert(eq(u64, other.allowed, 2 * BEYOND));
  free(text_of(r.limiter));
  spile_close(r.limiter);
}

Test(metrics, lets_no_limit_be_taken_for_the_row_of_all_others) {
  rig r = rig_start(SPILE_METRICS_TIMES);
  spile_limit *limit = limit_named(SPILE_METRICS_OTHER);
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, totals_of(r.limiter).rows, 1));
  cr_assert(not(row_of(r.limiter, SPILE_METRICS_OTHER).other));
  for (int i = 0; i < SPILE_METRICS_NAMES_MAX; i++) {
    char name[32];
    (void)snprintf(name, sizeof(name), "name %d", i);
    spile_limit *named = limit_named(name);
    cr_assert(eq(int, spile_take(r.limiter, named, "k", 1, 1, NULL), SPILE_ALLOWED));
    spile_limit_unref(named);
  }
  cr_assert(eq(int, spile_take(r.limiter, limit, "l", 1, 1, NULL), SPILE_ALLOWED));
  char *text = text_of(r.limiter);
  const char *const own =
      "spile_limit_takes_total{limit=\"286f74686572206c696d69747329\",name_encoding=\"hex\",outcome="
      "\"allowed\",decided_by=\"store\"}";
  cr_assert(eq(dbl, prometheus_value(text, own), 2));
  cr_assert(eq(dbl,
               prometheus_value(text, "spile_limit_takes_total{limit=\"" SPILE_METRICS_OTHER
                                      "\",outcome=\"allowed\",decided_by=\"store\"}"),
               1));
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

static atomic_bool no_memory;

static void *allocate_if(void *user, void *block, size_t size) {
  (void)user;
  if (size == 0) {
    free(block);
    return NULL;
  }
  return atomic_load(&no_memory) ? NULL : realloc(block, size);
}

Test(metrics, decides_and_counts_on_when_there_is_no_memory_for_a_row) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  options.allocate = allocate_if;
  rig r = {.store = spile_scripted_store_new()};
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(r.store), &options, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/s,name=late");
  atomic_store(&no_memory, true);
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  atomic_store(&no_memory, false);
  cr_assert(eq(u64, row_of(r.limiter, SPILE_METRICS_OTHER).allowed, 1));
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(u64, row_of(r.limiter, "late").allowed, 1));
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

static atomic_int allocations_left;

static void *allocate_counted(void *user, void *block, size_t size) {
  (void)user;
  if (size == 0) {
    free(block);
    return NULL;
  }
  return atomic_fetch_sub(&allocations_left, 1) > 0 ? realloc(block, size) : NULL;
}

Test(metrics, opens_wholly_or_not_at_all) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  options.allocate = allocate_counted;
  spile_scripted_store *store = spile_scripted_store_new();
  spile_limiter *limiter = NULL;
  int failed = 0;
  for (int n = 0; limiter == NULL; n++) {
    atomic_store(&allocations_left, n);
    spile_error error = {0};
    int result = spile_open_store(&limiter, spile_scripted_store_base(store), &options, &error);
    cr_assert(result == SPILE_OK || (result == SPILE_ENOMEM && error.message[0] != '\0'));
    failed += result != SPILE_OK;
  }
  /* The limiter, what it tells, the metrics, the row of all others, the meter, the breaker. */
  cr_assert(eq(int, failed, 6));
  spile_close(limiter);
}

/* ---- Times ---- */

static int64_t ticks_ns[2];
static size_t tick;

static int64_t ticking_ns(void *user) {
  (void)user;
  return ticks_ns[tick++ % 2];
}

static void take_lasting(rig *r, const spile_limit *limit, int64_t ns) {
  ticks_ns[0] = 777;
  ticks_ns[1] = 777 + ns;
  cr_assert(eq(int, spile_take(r->limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
}

Test(metrics, sorts_the_times_of_the_store_into_ranges_exactly) {
  rig r = rig_start(SPILE_METRICS_TIMES);
  r.limiter->env.monotonic_ns = ticking_ns;
  spile_limit *limit = limit_of("1/s");
  uint64_t sum_ns = 0;
  for (size_t i = 0; i + 1 < SPILE_METRICS_RANGES; i++) {
    int64_t bound_ns = spile_metrics_bound_ns(i);
    cr_assert(lt(i64, i > 0 ? spile_metrics_bound_ns(i - 1) : 0, bound_ns));
    take_lasting(&r, limit, bound_ns);
    spile_metrics row = row_of(r.limiter, "default");
    cr_assert(row.calls[i] == (i == 0 ? 1 : 2), "a time of just the bound of range %zu is in it", i);
    take_lasting(&r, limit, bound_ns + 1);
    row = row_of(r.limiter, "default");
    cr_assert(row.calls[i + 1] == 1, "a time past the bound of range %zu is in the next one", i);
    sum_ns += 2 * (uint64_t)bound_ns + 1;
    cr_assert(eq(u64, row.calls_ns, sum_ns));
  }
  cr_assert(eq(i64, spile_metrics_bound_ns(0), 1000));
  cr_assert(eq(i64, spile_metrics_bound_ns(SPILE_METRICS_RANGES - 2), 5000000000));
  cr_assert(eq(i64, spile_metrics_bound_ns(SPILE_METRICS_RANGES - 1), INT64_MAX));
  /* A clock that goes back is a time of 0. */
  take_lasting(&r, limit, -5);
  spile_metrics row = row_of(r.limiter, "default");
  cr_assert(eq(u64, row.calls_ns, sum_ns));
  cr_assert(eq(u64, row.calls[0], 2));
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(metrics, reads_the_clock_only_when_times_are_asked_for) {
  spile_limit *limit = limit_of("1/s");
  for (int level = SPILE_METRICS_OFF; level <= SPILE_METRICS_TIMES; level++) {
    rig r = rig_start((spile_metrics_level)level);
    r.limiter->env.monotonic_ns = ticking_ns;
    tick = 0;
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
    cr_assert(eq(sz, tick, level == SPILE_METRICS_TIMES ? 2 : 0));
    totals all = totals_of(r.limiter);
    cr_assert(eq(u64, all.takes, level == SPILE_METRICS_OFF ? 0 : 1));
    cr_assert(eq(u64, all.calls, level == SPILE_METRICS_TIMES ? 1 : 0));
    spile_close(r.limiter);
  }
  spile_limit_unref(limit);
}

Test(metrics, measures_nothing_that_the_breaker_held_back) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  options.breaker_failures = 2;
  rig r = {.store = spile_scripted_store_new()};
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(r.store), &options, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/s,on_store_error=open");
  answer(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  answer(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  for (int i = 0; i < 10; i++)
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  spile_metrics row = row_of(r.limiter, "default");
  cr_assert(eq(u64, row.policy_open[SPILE_REASON_TIMEOUT], 2));
  cr_assert(eq(u64, row.policy_open[SPILE_REASON_BREAKER], 8));
  cr_assert(eq(u64, sum_of(row.calls, SPILE_METRICS_RANGES), 2));
  char *text = text_of(r.limiter);
  cr_assert(eq(dbl, prometheus_value(text, "spile_breaker_state"), 1));
  cr_assert(eq(dbl, prometheus_value(text, "spile_breaker_opened_total"), 1));
  cr_assert(eq(dbl, prometheus_value(text, "spile_policy_answers_total{answer=\"open\"}"), 10));
  cr_assert(eq(dbl,
               prometheus_value(text, "spile_limit_policy_answers_total{limit=\"default\",answer=\"open\",reason="
                                      "\"breaker\"}"),
               8));
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

/* ---- How full the store is ---- */

Test(metrics, says_how_many_buckets_a_memory_store_has_and_may_have) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES; /* through the meter */
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=3", &options, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/h,on_full=fail");
  for (char key = 'a'; key <= 'e'; key++) {
    int result = spile_take(limiter, limit, &key, 1, 1, NULL);
    cr_assert(eq(int, result, key <= 'c' ? SPILE_ALLOWED : SPILE_EFULL));
    spile_usage usage = SPILE_USAGE_INIT;
    cr_assert(eq(int, spile_usage_read(limiter, &usage), SPILE_OK));
    cr_assert(eq(i64, usage.buckets, key <= 'c' ? key - 'a' + 1 : 3));
    cr_assert(eq(i64, usage.buckets_max, 3));
    cr_assert(eq(i64, usage.bytes, SPILE_UNKNOWN));
  }
  char *text = text_of(limiter);
  cr_assert(eq(dbl, prometheus_value(text, "spile_store_buckets"), 3));
  cr_assert(eq(dbl, prometheus_value(text, "spile_full_total"), 2));
  cr_assert(eq(dbl, prometheus_value(text, "spile_store_bytes"), -1));
  free(text);
  spile_limit_unref(limit);
  spile_close(limiter);
}

static void usage_of_another_abi(spile_store *store, spile_usage *usage) {
  (void)store;
  (void)usage;
  abort();
}

Test(metrics, asks_no_store_for_a_method_that_its_abi_does_not_have) {
  for (int level = SPILE_METRICS_OFF; level <= SPILE_METRICS_TIMES; level += 2) {
    spile_scripted_store *scripted = spile_scripted_store_new();
    spile_store *store = spile_scripted_store_base(scripted);
    spile_store_ops old = *store->ops;
    old.abi = 1;
    old.usage = usage_of_another_abi;
    store->ops = &old;
    spile_options options = SPILE_OPTIONS_INIT;
    options.metrics = level;
    options.breaker_failures = level == SPILE_METRICS_OFF ? SPILE_BREAKER_OFF : 0;
    spile_limiter *limiter;
    cr_assert(eq(int, spile_open_store(&limiter, store, &options, NULL), SPILE_OK));
    spile_usage usage = SPILE_USAGE_INIT;
    cr_assert(eq(int, spile_usage_read(limiter, &usage), SPILE_OK));
    cr_assert(eq(i64, usage.buckets, SPILE_UNKNOWN));
    spile_close(limiter);
  }
}

/* ---- The text ---- */

Test(metrics, writes_the_text_into_a_buffer_that_has_room_and_else_says_how_much) {
  rig r = rig_start(SPILE_METRICS_TIMES);
  spile_limit *limit = limit_of("1/s");
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  char *whole = text_of(r.limiter);
  size_t len = strlen(whole);
  for (size_t size = 0; size <= len + 2; size++) {
    char *buffer = malloc(size + 1);
    memset(buffer, 'x', size + 1);
    size_t needed = 0;
    cr_assert(eq(int, spile_metrics_text(r.limiter, buffer, size, &needed), SPILE_OK));
    cr_assert(eq(sz, needed, len + 1));
    cr_assert(eq(chr, buffer[size], 'x'));
    if (size >= needed)
      cr_assert(eq(str, buffer, whole));
    else if (size > 0)
      cr_assert(eq(chr, buffer[0], '\0'));
    free(buffer);
  }
  free(whole);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(metrics, writes_numbers_as_they_are) {
  rig r = rig_start(SPILE_METRICS_TIMES);
  r.limiter->env.monotonic_ns = ticking_ns;
  spile_limit *limit = limit_of("1/s,name=POST /search");
  take_lasting(&r, limit, 1500);
  take_lasting(&r, limit, 7000000001);
  char *text = text_of(r.limiter);
  const char *want =
      "# HELP spile_store_duration_seconds How long the store took to decide, by each limit that it was asked about.\n"
      "# TYPE spile_store_duration_seconds histogram\n"
      "spile_store_duration_seconds_bucket{limit=\"POST /search\",le=\"0.000001\"} 0\n"
      "spile_store_duration_seconds_bucket{limit=\"POST /search\",le=\"0.0000025\"} 1\n"
      "spile_store_duration_seconds_bucket{limit=\"POST /search\",le=\"0.000005\"} 1\n";
  cr_assert(strstr(text, want) != NULL, "%s", text);
  const char *end = "spile_store_duration_seconds_bucket{limit=\"POST /search\",le=\"2.5\"} 1\n"
                    "spile_store_duration_seconds_bucket{limit=\"POST /search\",le=\"5\"} 1\n"
                    "spile_store_duration_seconds_bucket{limit=\"POST /search\",le=\"+Inf\"} 2\n"
                    "spile_store_duration_seconds_sum{limit=\"POST /search\"} 7.000001501\n"
                    "spile_store_duration_seconds_count{limit=\"POST /search\"} 2\n";
  cr_assert(strstr(text, end) != NULL, "%s", text);
  cr_assert(eq(dbl,
               prometheus_value(text, "spile_limit_takes_total{limit=\"POST /search\",outcome=\"allowed\",decided_by="
                                      "\"store\"}"),
               2));
  cr_assert(eq(dbl, prometheus_value(text, "spile_takes_total{outcome=\"allowed\"}"), 2));
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(metrics, writes_any_name_as_a_label_and_no_two_alike) {
  static const char *const names[] = {
      "a\"b",
      "a\\b",
      "a\nb",
      "a\\nb",
      "a\tb\rc\x01",
      "\xc3\xa9",
      "\xf0\x9f\x8d\xba",
      "\xff",
      "ff",
      "\xc3",
      "a\xc0\xaf",    /* too long */
      "\xed\xa0\x80", /* a surrogate */
      "\xe0\x80\x80",
      "\xf4\x90\x80\x80", /* too long, too high */
      "\xf0\x8f\xbf\xbf",
      "\x80",
      "}",
      "{limit=\"x\"} 1",
      "# HELP x y",
  };
  rig r = rig_start(SPILE_METRICS_TIMES);
  size_t n = sizeof(names) / sizeof(names[0]);
  for (size_t i = 0; i < n; i++) {
    spile_limit *limit = limit_named(names[i]);
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
    spile_limit_unref(limit);
  }
  cr_assert(eq(sz, totals_of(r.limiter).rows, n));
  char *text = text_of(r.limiter);
#define COUNT_OF(label) prometheus_value(text, "spile_store_duration_seconds_count{limit=" label "}")
  cr_assert(eq(dbl, COUNT_OF("\"a\\\"b\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"a\\\\b\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"a\\nb\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"a\\\\nb\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"\xf0\x9f\x8d\xba\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"ff\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"ff\",name_encoding=\"hex\""), 1));
  cr_assert(eq(dbl, COUNT_OF("\"eda080\",name_encoding=\"hex\""), 1));
#undef COUNT_OF
  free(text);
  spile_close(r.limiter);
}

Test(metrics, writes_reasons_that_nobody_knows_as_one) {
  rig r = rig_start(SPILE_METRICS_COUNTS);
  spile_limit *limit = limit_of("1/s");
  answer(&r, SPILE_EUNAVAILABLE, (spile_reason)30);
  answer(&r, SPILE_EUNAVAILABLE, (spile_reason)31);
  for (int i = 0; i < 2; i++)
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_EUNAVAILABLE));
  char *text = text_of(r.limiter);
  cr_assert(eq(dbl, prometheus_value(text, "spile_store_errors_total{reason=\"unknown\"}"), 2));
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(metrics, writes_what_is_always_counted_without_being_asked_for_more) {
  rig r = rig_start(SPILE_METRICS_OFF);
  spile_limit *limit = limit_of("1/s");
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  char *text = text_of(r.limiter);
  cr_assert(eq(dbl, prometheus_value(text, "spile_takes_total{outcome=\"allowed\"}"), 1));
  cr_assert(strstr(text, "limit=") == NULL);
  free(text);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

static bool row_refuse(void *user, const spile_metrics *row) {
  (void)row;
  ++*(int *)user;
  return false;
}

Test(metrics, refuses_what_is_not_an_argument) {
  rig r = rig_start(SPILE_METRICS_COUNTS);
  spile_usage usage = {0};
  size_t needed;
  char byte;
  int seen = 0;
  cr_assert(eq(int, spile_metrics_each(NULL, row_refuse, &seen), SPILE_EINVAL));
  cr_assert(eq(int, spile_metrics_each(r.limiter, NULL, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_metrics_text(NULL, &byte, 1, &needed), SPILE_EINVAL));
  cr_assert(eq(int, spile_metrics_text(r.limiter, NULL, 1, &needed), SPILE_EINVAL));
  cr_assert(eq(int, spile_metrics_text(r.limiter, &byte, 1, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_usage_read(r.limiter, &usage), SPILE_EINVAL));
  cr_assert(eq(int, spile_usage_read(r.limiter, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_usage_read(NULL, &usage), SPILE_EINVAL));
  const int levels[] = {-1, SPILE_METRICS_TIMES + 1};
  for (size_t i = 0; i < 2; i++) {
    spile_options options = SPILE_OPTIONS_INIT;
    options.metrics = levels[i];
    spile_limiter *limiter;
    spile_error error = {0};
    cr_assert(eq(int, spile_open(&limiter, "memory:", &options, &error), SPILE_EINVAL));
    cr_assert(strstr(error.message, "metrics is") != NULL);
  }
  /* A visitor ends the walk. */
  spile_limit *a = limit_of("1/s,name=a");
  spile_limit *b = limit_of("1/s,name=b");
  cr_assert(eq(int, spile_take(r.limiter, a, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(r.limiter, b, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_metrics_each(r.limiter, row_refuse, &seen), SPILE_OK));
  cr_assert(eq(int, seen, 1));
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_close(r.limiter);
}

Test(metrics, belongs_to_the_process_that_opened_it) {
  rig r = rig_start(SPILE_METRICS_COUNTS);
  pid_t child = fork();
  if (child == 0) {
    size_t needed;
    spile_usage usage = SPILE_USAGE_INIT;
    int seen = 0;
    bool good = spile_metrics_each(r.limiter, row_refuse, &seen) == SPILE_EFORK &&
                spile_metrics_text(r.limiter, NULL, 0, &needed) == SPILE_EFORK &&
                spile_usage_read(r.limiter, &usage) == SPILE_EFORK;
    spile_close(r.limiter);
    _exit(good ? 0 : 1);
  }
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  cr_assert(eq(int, status, 0));
  spile_close(r.limiter);
}

/* ---- Threads ---- */

enum { THREADS = 4, TAKES = 20000, LIMITS = 3, NEW_NAMES = 300, ROUNDS = 400, ROUND_TAKES = 1000 };

typedef struct worker {
  spile_limiter *limiter;
  spile_limit *limits[LIMITS];
  uint64_t outcomes[LIMITS][SPILE_NEVER + 1];
} worker;

static void *worker_run(void *user) {
  worker *w = user;
  for (int i = 0; i < TAKES; i++) {
    char key = (char)('a' + i % 7);
    int of = i % LIMITS;
    int result = spile_take(w->limiter, w->limits[of], &key, 1, i % 11 == 0 ? 1000 : 1, NULL);
    w->outcomes[of][result > 0 ? result : 0]++;
  }
  return NULL;
}

static bool row_grows(void *user, const spile_metrics *row) {
  uint64_t *last = user;
  size_t of = (size_t)(row->limit[0] - 'a');
  cr_assert(le(u64, last[of], row_sum(row)));
  last[of] = row_sum(row);
  return true;
}

Test(metrics, counts_exactly_when_threads_take_and_read_at_once) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=100", &options, NULL), SPILE_OK));
  static worker workers[THREADS];
  pthread_t ids[THREADS];
  static const char *const texts[LIMITS] = {"100/s,name=a", "1/h,name=b", "10/m,capacity=500,name=c"};
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.limiter = limiter};
    for (int j = 0; j < LIMITS; j++)
      workers[i].limits[j] = limit_of(texts[j]);
    cr_assert(eq(int, pthread_create(&ids[i], NULL, worker_run, &workers[i]), 0));
  }
  uint64_t last[LIMITS] = {0};
  for (int i = 0; i < 50; i++) {
    cr_assert(eq(int, spile_metrics_each(limiter, row_grows, last), SPILE_OK));
    free(text_of(limiter));
  }
  uint64_t want[LIMITS][SPILE_NEVER + 1] = {{0}};
  for (int i = 0; i < THREADS; i++) {
    cr_assert(eq(int, pthread_join(ids[i], NULL), 0));
    for (int j = 0; j < LIMITS; j++) {
      cr_assert(eq(u64, workers[i].outcomes[j][0], 0));
      for (int k = 0; k <= SPILE_NEVER; k++)
        want[j][k] += workers[i].outcomes[j][k];
      spile_limit_unref(workers[i].limits[j]);
    }
  }
  for (int j = 0; j < LIMITS; j++) {
    spile_metrics row = row_of(limiter, (const char[]){(char)('a' + j), '\0'});
    cr_assert(eq(u64, row.allowed, want[j][SPILE_ALLOWED]));
    cr_assert(eq(u64, row.denied, want[j][SPILE_DENIED]));
    cr_assert(eq(u64, row.never, want[j][SPILE_NEVER]));
    cr_assert(eq(u64, row_sum(&row), sum_of(row.calls, SPILE_METRICS_RANGES)));
  }
  totals all = totals_of(limiter);
  cr_assert(eq(u64, all.takes, (uint64_t)THREADS * TAKES));
  cr_assert(eq(u64, all.calls, (uint64_t)THREADS * TAKES));
  spile_close(limiter);
}

static pthread_barrier_t told; /* a thread has its stripe */
static pthread_barrier_t meeting;

typedef struct sharer {
  spile_limiter *limiter;
  spile_limit *limit;
  unsigned stripe;
  size_t allowed;
} sharer;

static atomic_uint begun; /* rounds, of both together */

static void *sharer_run(void *user) {
  sharer *s = user;
  s->stripe = spile__stripe();
  (void)pthread_barrier_wait(&told);
  /* Nothing but counting, and the two begin each round together, so that they are at it in the same moment. */
  const spile_decision decision = {.outcome = SPILE_ALLOWED, .decided_by = SPILE_BY_STORE};
  for (unsigned round = 1; round <= ROUNDS; round++) {
    atomic_fetch_add(&begun, 1);
    while (atomic_load(&begun) < 2 * round)
      (void)sched_yield();
    for (int i = 0; i < ROUND_TAKES; i++)
      spile__metrics_take(spile__watch_metrics(s->limiter->watch), spile_limit_spec(s->limit), SPILE_ALLOWED, &decision,
                          false);
  }
  return NULL;
}

static void *stripe_use(void *user) {
  *(unsigned *)user = spile__stripe();
  return NULL;
}

/* Between the first thread and the second the other stripes go to threads that end. */
Test(metrics, counts_exactly_when_two_threads_share_a_stripe) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/s,capacity=1000000");
  sharer sharers[2] = {{.limiter = limiter, .limit = limit}, {.limiter = limiter, .limit = limit}};
  pthread_t ids[2];
  cr_assert(eq(int, pthread_barrier_init(&told, NULL, 2), 0));
  cr_assert(eq(int, pthread_create(&ids[0], NULL, sharer_run, &sharers[0]), 0));
  (void)pthread_barrier_wait(&told);
  for (int i = 1; i < LIMITER_STRIPES; i++) {
    pthread_t id;
    unsigned stripe;
    cr_assert(eq(int, pthread_create(&id, NULL, stripe_use, &stripe), 0));
    cr_assert(eq(int, pthread_join(id, NULL), 0));
    cr_assert(ne(uint, stripe, sharers[0].stripe));
  }
  cr_assert(eq(int, pthread_create(&ids[1], NULL, sharer_run, &sharers[1]), 0));
  (void)pthread_barrier_wait(&told);
  for (int i = 0; i < 2; i++)
    cr_assert(eq(int, pthread_join(ids[i], NULL), 0));
  cr_assert(eq(uint, sharers[0].stripe, sharers[1].stripe));
  spile_metrics row = row_of(limiter, "default");
  cr_assert(eq(u64, row.allowed, 2 * ROUNDS * ROUND_TAKES));
  cr_assert(eq(int, pthread_barrier_destroy(&told), 0));
  spile_limit_unref(limit);
  spile_close(limiter);
}

static void *namer_run(void *user) {
  spile_limiter *limiter = user;
  bool failed = false;
  for (int i = 0; i < NEW_NAMES; i++) {
    char name[32];
    (void)snprintf(name, sizeof(name), "name %d", i);
    spile_limit *limit = limit_named(name);
    (void)pthread_barrier_wait(&meeting);
    failed = failed || !spile_allow(limiter, limit, "k");
    spile_limit_unref(limit);
  }
  return failed ? user : NULL;
}

static bool row_is_of_all_threads(void *user, const spile_metrics *row) {
  (void)user;
  cr_assert(row_sum(row) == THREADS, "%s: %llu", row->limit, (unsigned long long)row_sum(row));
  return true;
}

Test(metrics, makes_one_row_of_a_name_that_threads_meet_at_once) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_COUNTS;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=1000", &options, NULL), SPILE_OK));
  cr_assert(eq(int, pthread_barrier_init(&meeting, NULL, THREADS), 0));
  pthread_t ids[THREADS];
  for (int i = 0; i < THREADS; i++)
    cr_assert(eq(int, pthread_create(&ids[i], NULL, namer_run, limiter), 0));
  for (int i = 0; i < THREADS; i++) {
    void *failed;
    cr_assert(eq(int, pthread_join(ids[i], &failed), 0));
    cr_assert(failed == NULL);
  }
  cr_assert(eq(int, spile_metrics_each(limiter, row_is_of_all_threads, NULL), SPILE_OK));
  cr_assert(eq(sz, totals_of(limiter).rows, NEW_NAMES));
  cr_assert(eq(int, pthread_barrier_destroy(&meeting), 0));
  spile_close(limiter);
}

static void *one_take(void *user) {
  sharer *s = user;
  s->allowed = spile_allow(s->limiter, s->limit, "k");
  return NULL;
}

static atomic_bool meet_in_allocation;

/* Whoever wants memory for a row waits for the other one: both have looked for the name then, and found nothing. */
static void *allocate_together(void *user, void *block, size_t size) {
  (void)user;
  if (size == 0) {
    free(block);
    return NULL;
  }
  if (size > 4096 && atomic_load(&meet_in_allocation))
    (void)pthread_barrier_wait(&meeting);
  return realloc(block, size);
}

Test(metrics, makes_one_row_when_two_threads_add_it_in_the_same_moment) {
  enum { NAMES = 20 };
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_COUNTS;
  options.allocate = allocate_together;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=100", &options, NULL), SPILE_OK));
  cr_assert(eq(int, pthread_barrier_init(&meeting, NULL, 2), 0));
  atomic_store(&meet_in_allocation, true);
  for (int i = 0; i < NAMES; i++) {
    spile_limit *limit = limit_named((const char[]){(char)('a' + i), '\0'});
    sharer one = {.limiter = limiter, .limit = limit};
    pthread_t id;
    cr_assert(eq(int, pthread_create(&id, NULL, one_take, &one), 0));
    cr_assert(spile_allow(limiter, limit, "k"));
    cr_assert(eq(int, pthread_join(id, NULL), 0));
    cr_assert(eq(sz, one.allowed, 1));
    spile_metrics row = row_of(limiter, spile_limit_name(limit));
    cr_assert(eq(u64, row.allowed, 2));
    spile_limit_unref(limit);
  }
  cr_assert(eq(sz, totals_of(limiter).rows, NAMES));
  cr_assert(eq(int, pthread_barrier_destroy(&meeting), 0));
  spile_close(limiter);
}
