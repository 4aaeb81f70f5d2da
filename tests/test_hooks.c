/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told of a take: hooks on a denial and on a bucket that gets low, and log lines about denials.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/metrics.h>
#include <spile/testing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "limiter/limiter.h"

static const unsigned char key_bytes[SPILE_SUBJECT_KEY_LEN] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* ---- What hooks saw ---- */

typedef struct seen {
  size_t count;
  char limit[256];
  char route[256];
  bool has_route;
  uint64_t subject_hash;
  spile_decision decision;
  uint64_t hashes[16]; /* of the first ones */
} seen;

typedef struct rig {
  spile_fake_clock *clock;
  spile_limiter *limiter;
  seen denied;
  seen low;
} rig;

static void seen_add(seen *s, const spile_event *event) {
  if (s->count < 16)
    s->hashes[s->count] = event->subject_hash;
  s->count++;
  s->has_route = event->route != NULL;
  (void)snprintf(s->limit, sizeof(s->limit), "%s", event->limit);
  (void)snprintf(s->route, sizeof(s->route), "%s", s->has_route ? event->route : "");
  s->subject_hash = event->subject_hash;
  s->decision = *event->decision;
}

static void see_denied(void *user, const spile_event *event) {
  seen_add(&((rig *)user)->denied, event);
}

static void see_low(void *user, const spile_event *event) {
  seen_add(&((rig *)user)->low, event);
}

/* A memory store at a given time, with both hooks. */
static void rig_start(rig *r, int near_limit_percent) {
  *r = (rig){.clock = spile_fake_clock_new(1000000)};
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.sleep_ms = spile_fake_clock_sleep;
  options.clock = r->clock;
  options.on_denied = see_denied;
  options.on_near_limit = see_low;
  options.hook_user = r;
  options.near_limit_percent = near_limit_percent;
  options.subject_key = key_bytes;
  cr_assert(eq(int, spile_open(&r->limiter, "memory:?keys=100", &options, NULL), SPILE_OK));
}

static void rig_stop(rig *r) {
  spile_close(r->limiter);
  spile_fake_clock_free(r->clock);
}

static spile_limit *limit_of(const char *text) {
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(spile_limit_parse(&limit, text, &error) == SPILE_OK, "%s: %s", text, error.message);
  return limit;
}

/* ---- Denials ---- */

Test(hooks, tell_a_denial_with_limit_subject_and_decision) {
  rig r;
  rig_start(&r, 0);
  spile_limit *limit = limit_of("1/m,capacity=1,name=search");
  cr_assert(eq(int, spile_take(r.limiter, limit, "anna", 4, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.denied.count, 0));
  spile_fake_clock_advance(r.clock, 20000);
  cr_assert(eq(int, spile_take(r.limiter, limit, "anna", 4, 1, NULL), SPILE_DENIED));
  cr_assert(eq(sz, r.denied.count, 1));
  cr_assert(eq(str, r.denied.limit, "search"));
  cr_assert(not(r.denied.has_route));
  cr_assert(eq(int, r.denied.decision.outcome, SPILE_DENIED));
  cr_assert(eq(int, r.denied.decision.decided_by, SPILE_BY_STORE));
  cr_assert(eq(i64, r.denied.decision.retry_after_ms, 40000));
  cr_assert(eq(u64, r.denied.subject_hash, spile_subject_hash(r.limiter, "anna", 4)));
  spile_limit_unref(limit);
  rig_stop(&r);
}

Test(hooks, tell_what_can_never_be_and_nothing_that_was_not_decided) {
  rig r;
  rig_start(&r, 0);
  spile_limit *limit = limit_of("1/m,capacity=1");
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 2, NULL), SPILE_NEVER));
  cr_assert(eq(sz, r.denied.count, 1));
  cr_assert(eq(int, r.denied.decision.outcome, SPILE_NEVER));
  cr_assert(eq(int, spile_peek(r.limiter, limit, "k", 1, 2, NULL), SPILE_NEVER));
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, -1, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_peek(r.limiter, limit, "k", 1, 1, NULL), SPILE_DENIED));
  cr_assert(eq(sz, r.denied.count, 1));
  spile_limit_unref(limit);
  rig_stop(&r);
}

Test(hooks, tell_who_decided_when_the_store_did_not) {
  rig r = {0};
  spile_options options = SPILE_OPTIONS_INIT;
  options.on_denied = see_denied;
  options.on_near_limit = see_low;
  options.hook_user = &r;
  options.near_limit_percent = 99;
  spile_scripted_store *store = spile_scripted_store_new();
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(store), &options, NULL), SPILE_OK));
  spile_limit *closed = limit_of("1/s,on_store_error=closed");
  spile_limit *open = limit_of("1/s,on_store_error=open,on_full=open");
  cr_assert(spile_scripted_store_answer(store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(spile_scripted_store_answer(store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(spile_scripted_store_answer(store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(spile_scripted_store_answer(store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(eq(int, spile_take(r.limiter, closed, "k", 1, 1, NULL), SPILE_DENIED));
  cr_assert(eq(int, r.denied.decision.decided_by, SPILE_BY_POLICY));
  cr_assert(eq(int, r.denied.decision.store_error, SPILE_REASON_TIMEOUT));
  cr_assert(eq(int, spile_take(r.limiter, closed, "k", 1, 1, NULL), SPILE_DENIED));
  cr_assert(eq(int, r.denied.decision.decided_by, SPILE_BY_FULL));
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.denied.count, 2));
  /* Of a level that nobody knows there is no crossing. */
  cr_assert(eq(sz, r.low.count, 0));
  spile_limit_unref(closed);
  spile_limit_unref(open);
  spile_close(r.limiter);
}

Test(hooks, name_the_limit_and_the_request_that_denied) {
  rig r;
  rig_start(&r, 0);
  spile_limit *a = limit_of("10/s,name=a");
  spile_limit *b = limit_of("1/m,capacity=2,name=b");
  /* Two requests of one bucket come before the one that denies: it is the third request and the second bucket. */
  const spile_request requests[4] = {{a, "x", 1, 1}, {a, "x", 1, 1}, {b, "y", 1, 1}, {b, "y", 1, 2}};
  spile_decision decision;
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 4, &decision, NULL), SPILE_NEVER));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &decision, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &decision, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &decision, NULL), SPILE_DENIED));
  cr_assert(eq(sz, r.denied.count, 2));
  cr_assert(eq(str, r.denied.limit, "b"));
  cr_assert(eq(u32, r.denied.decision.index, 2));
  cr_assert(eq(u32, decision.index, 2));
  cr_assert(eq(u64, r.denied.subject_hash, spile_subject_hash(r.limiter, "y", 1)));
  spile_limit_unref(a);
  spile_limit_unref(b);
  rig_stop(&r);
}

Test(hooks, tell_the_route_and_leave_limits_alone_that_are_not_enforced) {
  rig r;
  rig_start(&r, 99);
  spile_limit *limit = limit_of("1/m,capacity=1");
  const spile_request request = {limit, "k", 1, 1};
  spile__about about = {.route = "POST /search", .shadow = true};
  cr_assert(eq(int, spile__limiter_ask(r.limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_ALLOWED));
  cr_assert(eq(int, spile__limiter_ask(r.limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_DENIED));
  cr_assert(eq(sz, r.denied.count + r.low.count, 0));
  about.shadow = false;
  cr_assert(eq(int, spile__limiter_ask(r.limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_DENIED));
  cr_assert(eq(sz, r.denied.count, 1));
  cr_assert(eq(str, r.denied.route, "POST /search"));
  spile_limit_unref(limit);
  rig_stop(&r);
}

Test(hooks, tell_a_wait_once_by_how_it_ended) {
  rig r;
  rig_start(&r, 0);
  spile_limit *limit = limit_of("1/s,capacity=1");
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_wait(r.limiter, limit, "k", 1, 1, 5000, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.denied.count, 0));
  cr_assert(eq(int, spile_wait(r.limiter, limit, "k", 1, 1, 0, NULL), SPILE_DENIED));
  cr_assert(eq(sz, r.denied.count, 1));
  spile_limit_unref(limit);
  rig_stop(&r);
}

/* ---- Low buckets ---- */

typedef struct near_row {
  const char *limit;
  int percent;
  int64_t before; /* tokens taken before, untold */
  int64_t cost;
  bool told;
} near_row;

/* 20 of 100: at 20 left nobody is told, at 19 somebody is. */
static const near_row near_rows[] = {
    {"1/h,capacity=100", 0, 79, 1, false},
    {"1/h,capacity=100", 0, 80, 1, true},
    {"1/h,capacity=100", 0, 0, 80, false},
    {"1/h,capacity=100", 0, 0, 81, true},
    {"1/h,capacity=100", 0, 0, 100, true},
    {"1/h,capacity=100", 0, 80, 0, false},
    {"1/h,capacity=100", 1, 98, 1, false},
    {"1/h,capacity=100", 1, 99, 1, true},
    {"1/h,capacity=100", 99, 0, 1, false},
    {"1/h,capacity=100", 99, 1, 1, true},
    {"1/h,capacity=1", 20, 0, 1, true},
    {"1/h,capacity=3", 50, 1, 1, true},
    {"1/h,capacity=3", 50, 0, 1, false},
    {"1/s,capacity=100000000", 20, 80000000, 1, true},
    {"1/s,capacity=100000000", 20, 79999999, 1, false},
};

Test(hooks, tell_the_take_that_crosses_the_mark_and_no_other) {
  for (size_t i = 0; i < sizeof(near_rows) / sizeof(near_rows[0]); i++) {
    const near_row *row = &near_rows[i];
    rig r;
    rig_start(&r, row->percent);
    spile_limit *limit = limit_of(row->limit);
    if (row->before > 0)
      cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, row->before, NULL), SPILE_ALLOWED));
    cr_assert(eq(sz, r.low.count, 0));
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, row->cost, NULL), SPILE_ALLOWED));
    cr_assert(r.low.count == (row->told ? 1 : 0), "row %zu", i);
    if (row->told) {
      cr_assert(eq(i64, r.low.decision.remaining, spile_limit_capacity(limit) - row->before - row->cost));
      cr_assert(eq(u64, r.low.subject_hash, spile_subject_hash(r.limiter, "k", 1)));
    }
    spile_limit_unref(limit);
    rig_stop(&r);
  }
}

Test(hooks, tell_a_bucket_that_gets_low_once_until_it_was_above_the_mark_again) {
  rig r;
  rig_start(&r, 50);
  spile_limit *limit = limit_of("1/s,capacity=10");
  for (int i = 0; i < 10; i++)
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.low.count, 1));
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_DENIED));
  cr_assert(eq(sz, r.low.count, 1));
  spile_fake_clock_advance(r.clock, 4999);
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.low.count, 1));
  /* 3.999 and 1.001 tokens are 5 again, just at the mark. */
  spile_fake_clock_advance(r.clock, 1001);
  cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.low.count, 2));
  spile_limit_unref(limit);
  rig_stop(&r);
}

Test(hooks, tell_every_limit_of_a_take_that_gets_low) {
  rig r;
  rig_start(&r, 50);
  spile_limit *a = limit_of("1/h,capacity=1,name=a");
  spile_limit *b = limit_of("1/h,capacity=100,name=b");
  spile_limit *c = limit_of("1/h,capacity=2,name=c");
  /* c is named twice: it is one bucket and told once. */
  const spile_request requests[4] = {{b, "y", 1, 1}, {c, "z", 1, 1}, {c, "z", 1, 1}, {a, "x", 1, 1}};
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 4, NULL, NULL), SPILE_ALLOWED));
  cr_assert(eq(sz, r.low.count, 2));
  cr_assert(eq(u64, r.low.hashes[0], spile_subject_hash(r.limiter, "z", 1)));
  cr_assert(eq(u64, r.low.hashes[1], spile_subject_hash(r.limiter, "x", 1)));
  cr_assert(eq(str, r.low.limit, "a"));
  cr_assert(eq(u32, r.low.decision.index, 3));
  /* What one limit denies no other one is told of. */
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 4, NULL, NULL), SPILE_DENIED));
  cr_assert(eq(sz, r.low.count, 2));
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
  rig_stop(&r);
}

/* ---- Hooks that take ---- */

typedef struct taker {
  spile_limiter *limiter;
  spile_limit *limit;
  size_t calls;
  int result;
} taker;

static void take_again(void *user, const spile_event *event) {
  taker *t = user;
  t->calls++;
  cr_assert(eq(int, event->decision->outcome, SPILE_DENIED));
  t->result = spile_take(t->limiter, t->limit, "k", 1, 1, NULL);
  /* What the hook was given is still what it was. */
  cr_assert(eq(int, event->decision->outcome, SPILE_DENIED));
}

Test(hooks, may_take_and_are_not_called_for_that) {
  taker t = {.limit = limit_of("1/m,capacity=1")};
  spile_options options = SPILE_OPTIONS_INIT;
  options.on_denied = take_again;
  options.hook_user = &t;
  options.metrics = SPILE_METRICS_TIMES;
  cr_assert(eq(int, spile_open(&t.limiter, "memory:?keys=10", &options, NULL), SPILE_OK));
  cr_assert(eq(int, spile_take(t.limiter, t.limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  for (size_t i = 1; i <= 3; i++) {
    cr_assert(eq(int, spile_take(t.limiter, t.limit, "k", 1, 1, NULL), SPILE_DENIED));
    cr_assert(eq(sz, t.calls, i));
    cr_assert(eq(int, t.result, SPILE_DENIED));
  }
  /* All are counted. */
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(t.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.denied, 6));
  spile_limit_unref(t.limit);
  spile_close(t.limiter);
}

static bool visit_and_take(void *user, const spile_metrics *row) {
  taker *t = user;
  t->calls += row->denied;
  return spile_take(t->limiter, t->limit, "k", 1, 1, NULL) == SPILE_DENIED;
}

static void read_metrics(void *user, const spile_event *event) {
  (void)event;
  taker *t = user;
  cr_assert(eq(int, spile_metrics_each(t->limiter, visit_and_take, t), SPILE_OK));
}

Test(hooks, may_read_the_metrics_of_the_take_they_are_told) {
  taker t = {.limit = limit_of("1/m,capacity=1")};
  spile_options options = SPILE_OPTIONS_INIT;
  options.on_denied = read_metrics;
  options.hook_user = &t;
  options.metrics = SPILE_METRICS_COUNTS;
  cr_assert(eq(int, spile_open(&t.limiter, "memory:?keys=10", &options, NULL), SPILE_OK));
  cr_assert(eq(int, spile_take(t.limiter, t.limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(t.limiter, t.limit, "k", 1, 1, NULL), SPILE_DENIED));
  cr_assert(eq(sz, t.calls, 1));
  spile_limit_unref(t.limit);
  spile_close(t.limiter);
}

/* ---- Threads ---- */

enum { THREADS = 4, TAKES = 5000 };

typedef struct crowd {
  spile_limiter *limiter;
  spile_limit *limit;
  atomic_size_t denied;
  atomic_size_t low;
} crowd;

static void crowd_denied(void *user, const spile_event *event) {
  crowd *c = user;
  atomic_fetch_add(&c->denied, event->decision->outcome == SPILE_DENIED);
}

static void crowd_low(void *user, const spile_event *event) {
  crowd *c = user;
  atomic_fetch_add(&c->low, event->decision->remaining == 999);
}

static void *crowd_run(void *user) {
  crowd *c = user;
  size_t allowed = 0;
  for (int i = 0; i < TAKES; i++)
    allowed += spile_allow(c->limiter, c->limit, "k");
  return allowed <= 5000 ? NULL : user;
}

Test(hooks, tell_every_denial_and_one_crossing_of_many_threads) {
  crowd c = {.limit = limit_of("1/h,capacity=5000")};
  spile_fake_clock *clock = spile_fake_clock_new(1000);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  options.on_denied = crowd_denied;
  options.on_near_limit = crowd_low;
  options.hook_user = &c;
  cr_assert(eq(int, spile_open(&c.limiter, "memory:?keys=10", &options, NULL), SPILE_OK));
  pthread_t ids[THREADS];
  for (int i = 0; i < THREADS; i++)
    cr_assert(eq(int, pthread_create(&ids[i], NULL, crowd_run, &c), 0));
  for (int i = 0; i < THREADS; i++) {
    void *failed;
    cr_assert(eq(int, pthread_join(ids[i], &failed), 0));
    cr_assert(failed == NULL);
  }
  cr_assert(eq(sz, atomic_load(&c.denied), THREADS * TAKES - 5000));
  cr_assert(eq(sz, atomic_load(&c.low), 1));
  spile_limit_unref(c.limit);
  spile_close(c.limiter);
  spile_fake_clock_free(clock);
}

/* ---- The hash of a subject ---- */

Test(hooks, hash_a_subject_as_siphash_1_3_does) {
  rig r;
  rig_start(&r, 0);
  /* Computed from the paper by other code, which gives the paper's value for 2-4 rounds: the key 00 … 0f as there. */
  static const unsigned char message[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  uint64_t hash = spile_subject_hash(r.limiter, message, sizeof(message));
  cr_assert(eq(u64, hash, UINT64_C(0x369095118d299a8e)));
  cr_assert(eq(u64, spile_subject_hash(r.limiter, message, 3), UINT64_C(0x8bf80ab8e7ddf7fb)));
  cr_assert(eq(u64, spile_subject_hash(r.limiter, NULL, 3), 0));
  cr_assert(eq(u64, spile_subject_hash(r.limiter, message, 0), 0));
  cr_assert(eq(u64, spile_subject_hash(NULL, message, 3), 0));
  rig_stop(&r);
}

Test(hooks, hash_a_subject_under_a_key_of_the_limiters_own_unless_given_one) {
  uint64_t hashes[3];
  for (int i = 0; i < 3; i++) {
    spile_options options = SPILE_OPTIONS_INIT;
    options.log_denied_per_s = i < 2 ? 1 : 0;
    spile_limiter *limiter;
    cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, NULL), SPILE_OK));
    hashes[i] = spile_subject_hash(limiter, "anna", 4);
    cr_assert(eq(u64, hashes[i], spile_subject_hash(limiter, "anna", 4)));
    spile_close(limiter);
  }
  cr_assert(ne(u64, hashes[0], hashes[1]));
  cr_assert(ne(u64, hashes[0], 0));
  cr_assert(eq(u64, hashes[2], 0));
}

/* ---- The log ---- */

typedef struct book {
  size_t lines;
  spile_log_level level;
  char last[4096];
  char all[65536];
} book;

static void book_write(void *user, spile_log_level level, const char *line) {
  book *b = user;
  b->lines++;
  b->level = level;
  (void)snprintf(b->last, sizeof(b->last), "%s", line);
  size_t len = strlen(b->all);
  (void)snprintf(b->all + len, sizeof(b->all) - len, "%s\n", line);
}

static atomic_int_least64_t fake_ms;

static int64_t fake_monotonic_ms(void *user) {
  (void)user;
  return atomic_load(&fake_ms);
}

static spile_limiter *book_open(book *b, int log_denied_per_s) {
  *b = (book){0};
  spile_options options = SPILE_OPTIONS_INIT;
  options.log = book_write;
  options.log_user = b;
  options.log_denied_per_s = log_denied_per_s;
  options.subject_key = key_bytes;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, NULL), SPILE_OK));
  atomic_store(&fake_ms, 5000);
  limiter->env.monotonic_ms = fake_monotonic_ms;
  return limiter;
}

Test(hooks, log_a_denial_without_its_key) {
  static book b;
  spile_limiter *limiter = book_open(&b, 10);
  spile_limit *limit = limit_of("1/m,capacity=1,name=POST /search");
  static const char key[] = "tenant=acme\n\x1b[31m";
  const spile_request request = {limit, key, sizeof(key) - 1, 1};
  const spile__about about = {.route = "POST /search"};
  cr_assert(eq(int, spile__limiter_ask(limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_ALLOWED));
  cr_assert(eq(sz, b.lines, 0));
  spile_decision d;
  cr_assert(eq(int, spile__limiter_ask(limiter, SPILE_VERB_TAKE, &request, 1, &d, NULL, &about), SPILE_DENIED));
  char want[256];
  (void)snprintf(want, sizeof(want),
                 "denied: subject %016llx, limit \"POST /search\", route \"POST /search\", by store, again in %lld ms",
                 (unsigned long long)spile_subject_hash(limiter, key, sizeof(key) - 1), (long long)d.retry_after_ms);
  cr_assert(eq(str, b.last, want));
  cr_assert(eq(int, (int)b.level, SPILE_LOG_INFO));
  cr_assert(strstr(b.all, "acme") == NULL);
  spile_limit_unref(limit);
  spile_close(limiter);
}

Test(hooks, log_no_more_lines_than_asked_for_and_how_many_are_missing) {
  static book b;
  spile_limiter *limiter = book_open(&b, 3);
  spile_limit *limit = limit_of("1/d,capacity=1");
  cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  for (int ms = 0; ms < 1000; ms++) {
    atomic_store(&fake_ms, 5000 + ms);
    for (int i = 0; i < 3; i++)
      cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, NULL), SPILE_DENIED));
  }
  /* A third of a second, rounded up, is 334 ms: at 0, 334 and 668, each with what came since. */
  cr_assert(eq(sz, b.lines, 3));
  cr_assert(strstr(b.last, "; and 1001 more since this was last said") != NULL, "%s", b.last);
  spile_limit_unref(limit);
  spile_close(limiter);
}

Test(hooks, log_one_harmless_line_whatever_the_names_are) {
  static book b;
  spile_limiter *limiter = book_open(&b, 1000);
  char name[SPILE_NAME_LEN_MAX + 1];
  memset(name, '\n', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  static char route[5000];
  memset(route, '\x1b', sizeof(route) - 1);
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.name = name;
  def.capacity = 1;
  def.refill_tokens = 1;
  def.refill_period_ms = 60000;
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_OK));
  const spile_request request = {limit, "k", 1, 2};
  const spile__about about = {.route = route};
  cr_assert(eq(int, spile__limiter_ask(limiter, SPILE_VERB_TAKE, &request, 1, NULL, NULL, &about), SPILE_NEVER));
  size_t printable = 0;
  while (b.last[printable] >= ' ' && b.last[printable] <= '~')
    printable++;
  cr_assert(eq(sz, printable, strlen(b.last)));
  const char *end = ", by store";
  cr_assert(strcmp(b.last + strlen(b.last) - strlen(end), end) == 0, "%s", b.last);
  spile_limit_unref(limit);
  spile_close(limiter);
}

Test(hooks, log_no_denial_unless_asked_to) {
  static book b;
  spile_limiter *limiter = book_open(&b, 0);
  spile_limit *limit = limit_of("1/d,capacity=1");
  for (int i = 0; i < 5; i++)
    (void)!spile_allow(limiter, limit, "k");
  cr_assert(eq(sz, b.lines, 0));
  spile_limit_unref(limit);
  spile_close(limiter);
}

/* ---- Options ---- */

Test(hooks, refuse_options_out_of_range_and_say_which) {
  static const struct {
    int near_limit_percent;
    int log_denied_per_s;
    const char *word;
  } rows[] = {{-1, 0, "near_limit_percent is -1"},
              {100, 0, "near_limit_percent is 100"},
              {0, -1, "log_denied_per_s is -1"},
              {0, 1001, "log_denied_per_s is 1001"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_options options = SPILE_OPTIONS_INIT;
    options.near_limit_percent = rows[i].near_limit_percent;
    options.log_denied_per_s = rows[i].log_denied_per_s;
    spile_limiter *limiter;
    spile_error error = {0};
    cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, &error), SPILE_EINVAL));
    cr_assert(strstr(error.message, rows[i].word) != NULL, "%s", error.message);
    cr_assert(limiter == NULL);
  }
}
