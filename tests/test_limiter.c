/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facade over a store that answers what it is told.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rig {
  spile_scripted_store *store;
  spile_limiter *limiter;
  spile_limit *limit;
} rig;

static rig rig_start(const spile_options *options) {
  rig r = {.store = spile_scripted_store_new()};
  cr_assert(r.store != NULL);
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(r.store), options, NULL), SPILE_OK));
  cr_assert(eq(int, spile_limit_parse(&r.limit, "1/s,capacity=60", NULL), SPILE_OK));
  return r;
}

static void rig_stop(rig *r) {
  spile_limit_unref(r->limit);
  spile_close(r->limiter);
}

Test(limiter, hands_the_store_what_it_was_asked) {
  spile_fake_clock *clock = spile_fake_clock_new(1234);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  rig r = rig_start(&options);
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "a\0b", 3, 7, &d), SPILE_ALLOWED));
  const spile_scripted_call *call = spile_scripted_store_call(r.store, 0);
  cr_assert(call != NULL && spile_scripted_store_call(r.store, 1) == NULL);
  cr_assert(eq(int, call->verb, SPILE_VERB_TAKE));
  cr_assert(eq(sz, call->n, 1));
  cr_assert(eq(sz, call->items[0].key_len, 3));
  cr_assert(eq(int, memcmp(call->items[0].key, "a\0b", 4), 0));
  cr_assert(eq(str, (char *)(uintptr_t)call->items[0].name, "default"));
  cr_assert(eq(i64, call->items[0].cost, 7));
  cr_assert(eq(i64, call->items[0].shape.capacity, 60));
  cr_assert(eq(i64, call->items[0].shape.period_ms, 1000));
  cr_assert(eq(i64, call->now_ms, 1234));
  rig_stop(&r);
  spile_fake_clock_free(clock);
}

Test(limiter, makes_the_decision_of_what_the_store_read) {
  rig r = rig_start(NULL);
  /* 59.5 tokens are missing: half a token is there. */
  spile_reading reading = {{59500}};
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &reading, 1));
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, &d), SPILE_DENIED));
  cr_assert(eq(i64, d.remaining, 0));
  cr_assert(eq(i64, d.retry_after_ms, 500));
  cr_assert(eq(i64, d.reset_after_ms, 59500));
  cr_assert(eq(i64, d.capacity, 60));
  cr_assert(eq(int, d.decided_by, SPILE_BY_STORE));
  cr_assert(eq(str, (char *)(uintptr_t)d.name, "default"));
  cr_assert(eq(str, d.detail, ""));
  rig_stop(&r);
}

Test(limiter, asks_the_store_nothing_when_an_argument_is_wrong) {
  rig r = rig_start(NULL);
  static char long_key[SPILE_KEY_LEN_MAX + 1];
  spile_decision d;
  memset(&d, 1, sizeof(d));
  cr_assert(eq(int, spile_take(NULL, r.limit, "k", 1, 1, &d), SPILE_EINVAL));
  cr_assert(eq(int, d.outcome, 0));
  cr_assert(eq(i64, d.remaining, SPILE_UNKNOWN));
  cr_assert(eq(int, spile_take(r.limiter, NULL, "k", 1, 1, &d), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, NULL, 1, 1, &d), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 0, 1, &d), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, long_key, sizeof(long_key), 1, &d), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, -1, &d), SPILE_EINVAL));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, INT64_MIN, NULL), SPILE_EINVAL));
  cr_assert(not(spile_allow(r.limiter, r.limit, NULL)));
  cr_assert(not(spile_allow(r.limiter, r.limit, "")));
  cr_assert(eq(int, spile_take_all(r.limiter, NULL, 1, &d, NULL), SPILE_EINVAL));
  spile_request requests[2] = {{r.limit, "k", 1, 1}, {NULL, "k", 1, 1}};
  spile_decision each[2];
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_EINVAL));
  cr_assert(eq(int, each[1].outcome, 0));
  /* Which of them is wrong. */
  cr_assert(eq(u32, d.index, 1));
  cr_assert(eq(u32, each[0].index, 0));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, -2, &d), SPILE_EINVAL));
  cr_assert(eq(str, d.detail, "the longest wait is below zero"));
  memset(each, 1, sizeof(each));
  cr_assert(eq(int, spile_wait_all(r.limiter, requests, 2, -2, &d, each), SPILE_EINVAL));
  cr_assert(each[0].outcome == 0 && each[1].outcome == 0);
  memset(each, 1, sizeof(each));
  cr_assert(eq(int, spile_wait_all(NULL, requests, 2, 10, &d, each), SPILE_EINVAL));
  cr_assert(eq(str, d.detail, "the limiter is NULL"));
  cr_assert(each[0].outcome == 0 && each[1].outcome == 0);
  cr_assert(eq(int, spile_clear(r.limiter, r.limit, "k", 0, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_clean(r.limiter, (spile_clean_what)99, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_each(r.limiter, NULL, NULL, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_count(r.limiter, NULL), SPILE_EINVAL));
  cr_assert(eq(sz, spile_scripted_store_calls(r.store), 0));
  rig_stop(&r);
}

Test(limiter, says_why_a_store_did_not_answer) {
  rig r = rig_start(NULL);
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EUNAVAILABLE, SPILE_REASON_READONLY, NULL, 0));
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, d.outcome, 0));
  cr_assert(eq(int, d.decided_by, SPILE_BY_NOBODY));
  cr_assert(eq(int, d.store_error, SPILE_REASON_TIMEOUT));
  cr_assert(eq(str, d.detail, "the script says so"));
  spile_request requests[2] = {{r.limit, "a", 1, 1}, {r.limit, "b", 1, 1}};
  spile_decision each[2];
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, each[1].store_error, SPILE_REASON_READONLY));
  cr_assert(eq(i64, each[1].remaining, SPILE_UNKNOWN));
  /* Nothing is asked a second time. */
  cr_assert(eq(sz, spile_scripted_store_calls(r.store), 2));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(r.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.unavailable, 2));
  cr_assert(eq(u64, counters.allowed, 0));
  rig_stop(&r);
}

Test(limiter, only_reads_what_can_never_be_and_says_so_even_without_a_store) {
  rig r = rig_start(NULL);
  spile_reading reading = {{30000}};
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &reading, 1));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT, NULL, 0));
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 61, &d), SPILE_NEVER));
  cr_assert(eq(int, spile_scripted_store_call(r.store, 0)->verb, SPILE_VERB_PEEK));
  cr_assert(eq(i64, d.remaining, 30));
  cr_assert(eq(i64, d.retry_after_ms, SPILE_UNKNOWN));
  cr_assert(eq(int, d.decided_by, SPILE_BY_STORE));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 61, &d), SPILE_NEVER));
  cr_assert(eq(int, d.decided_by, SPILE_BY_LIMITS));
  cr_assert(eq(int, d.store_error, SPILE_REASON_CONNECT));
  cr_assert(eq(i64, d.remaining, SPILE_UNKNOWN));
  cr_assert(eq(i64, d.reset_after_ms, SPILE_UNKNOWN));
  cr_assert(eq(i64, d.capacity, 60));
  rig_stop(&r);
}

Test(limiter, a_script_answers_the_next_call_whatever_calls_went_before) {
  rig r = rig_start(NULL);
  spile_reading empty = {{60000}};
  for (int i = 0; i < 3; i++)
    cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT, NULL, 0));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, NULL), SPILE_DENIED));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, NULL), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  rig_stop(&r);
}

Test(limiter, waits_exactly_as_long_as_it_is_told) {
  spile_fake_clock *clock = spile_fake_clock_new(1000);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.sleep_ms = spile_fake_clock_sleep;
  options.clock = clock;
  rig r = rig_start(&options);
  spile_decision d;
  spile_reading empty = {{60000}};
  spile_reading half = {{59500}};
  spile_reading full = {{0}};
  /* A whole token is missing; somebody else is faster by half of one; then it is there. */
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &half, 1));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &full, 1));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, 1500, &d), SPILE_ALLOWED));
  cr_assert(eq(i64, spile_fake_clock_now(clock), 2500));
  /* One millisecond less than what it takes in all: the second wait is not begun. */
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &half, 1));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, 1499, &d), SPILE_DENIED));
  cr_assert(eq(i64, d.retry_after_ms, 500));
  cr_assert(eq(i64, spile_fake_clock_now(clock), 3500));
  /* Zero is no wait at all; never is not waited for; without an end it goes on. */
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, 0, &d), SPILE_DENIED));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 61, SPILE_FOREVER, &d), SPILE_NEVER));
  cr_assert(eq(i64, spile_fake_clock_now(clock), 3500));
  for (int i = 0; i < 50; i++)
    cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, SPILE_FOREVER, &d), SPILE_ALLOWED));
  cr_assert(eq(i64, spile_fake_clock_now(clock), 53500));
  rig_stop(&r);
  spile_fake_clock_free(clock);
}

Test(limiter, counts_a_wait_once_by_how_it_ended) {
  spile_fake_clock *clock = spile_fake_clock_new(0);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.sleep_ms = spile_fake_clock_sleep;
  options.clock = clock;
  options.metrics = SPILE_METRICS_COUNTS;
  rig r = rig_start(&options);
  spile_reading empty = {{60000}};
  for (int i = 0; i < 5; i++)
    cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  spile_decision d;
  /* The first meets two denials, the second being too long; the other three, and then what is allowed. */
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, 1500, &d), SPILE_DENIED));
  cr_assert(eq(int, spile_wait(r.limiter, r.limit, "k", 1, 1, SPILE_FOREVER, &d), SPILE_ALLOWED));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(r.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.allowed, 1));
  cr_assert(eq(u64, counters.denied, 1));
  rig_stop(&r);
  spile_fake_clock_free(clock);
}

Test(limiter, leaves_out_open_limits_without_room_and_stops_at_closed_ones) {
  rig r = rig_start(NULL);
  spile_limit *open;
  spile_limit *fail;
  cr_assert(eq(int, spile_limit_parse(&open, "1/s,name=open,on_full=open", NULL), SPILE_OK));
  cr_assert(eq(int, spile_limit_parse(&fail, "1/s,name=fail,on_full=fail", NULL), SPILE_OK));
  spile_request requests[2] = {{open, "k", 1, 1}, {r.limit, "k", 1, 1}};
  spile_decision d;
  spile_decision each[2];
  /* The scripted store says that its first item found no room. First open, then closed: denied. */
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_DENIED));
  cr_assert(eq(u32, d.index, 1));
  cr_assert(eq(int, d.decided_by, SPILE_BY_FULL));
  cr_assert(eq(sz, spile_scripted_store_call(r.store, 1)->n, 1));
  cr_assert(eq(str, (char *)(uintptr_t)spile_scripted_store_call(r.store, 1)->items[0].name, "default"));
  /* Open, then a denial by the store. */
  spile_reading empty = {{60000}};
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_DENIED));
  cr_assert(eq(u32, d.index, 1));
  cr_assert(eq(int, d.decided_by, SPILE_BY_STORE));
  cr_assert(eq(i64, d.retry_after_ms, 1000));
  cr_assert(eq(int, each[0].decided_by, SPILE_BY_FULL));
  /* Open, then the store is gone. */
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, d.store_error, SPILE_REASON_TIMEOUT));
  requests[0].limit = fail;
  cr_assert(spile_scripted_store_answer(r.store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), SPILE_EFULL));
  cr_assert(eq(int, d.outcome, 0));
  spile_limit_unref(open);
  spile_limit_unref(fail);
  rig_stop(&r);
}

Test(limiter, refuses_options_it_cannot_mean) {
  spile_limiter *limiter = (spile_limiter *)1;
  spile_error error = {0};
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = -1;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, &error), SPILE_EINVAL));
  cr_assert(limiter == NULL);
  options.timeout_ms = 3600001;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
  options.timeout_ms = 0;
  const char *const prefixes[] = {
      "", "a b", "a:b", "{a}", "*", "\xc3\xa9", "12345678901234567890123456789012345678901234567890123456789012345"};
  for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
    options.key_prefix = prefixes[i];
    cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
  }
  options.key_prefix = NULL;
  options.struct_size = 0;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_open(NULL, "memory:", NULL, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_open(&limiter, NULL, NULL, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_open_store(&limiter, NULL, NULL, NULL), SPILE_EINVAL));
}

Test(limiter, reads_options_of_older_and_newer_callers) {
  /* Older: the struct ended after timeout_ms. Newer: members behind ours, which must be zero. */
  struct {
    spile_options known;
    uint64_t later;
  } newer;
  memset(&newer, 0, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &newer.known, NULL), SPILE_OK));
  spile_close(limiter);
  newer.later = 1;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &newer.known, NULL), SPILE_EINVAL));
  spile_options older = SPILE_OPTIONS_INIT;
  older.struct_size = offsetof(spile_options, timeout_ms) + sizeof(older.timeout_ms);
  older.key_prefix = "not read: {";
  cr_assert(eq(int, spile_open(&limiter, "memory:", &older, NULL), SPILE_OK));
  spile_close(limiter);
}

Test(limiter, names_no_password_when_an_address_cannot_be_read) {
  spile_limiter *limiter;
  const char *const addresses[] = {
      "", "memory", "redos://user:s3cret@h", "s3cret", "http://user:s3cret@127.0.0.1/", "MEMORY:"};
  for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
    spile_error error = {0};
    cr_assert(eq(int, spile_open(&limiter, addresses[i], NULL, &error), SPILE_ECONFIG));
    cr_assert(error.message[0] != '\0');
    cr_assert(strstr(error.message, "s3cret") == NULL, "%s", error.message);
  }
}

/* An allocator that fails at the n-th call. */
typedef struct failing {
  int calls;
  int fail_at;
  int blocks;
} failing;

static void *failing_allocate(void *user, void *block, size_t size) {
  failing *f = user;
  if (size == 0) {
    f->blocks -= block != NULL;
    free(block);
    return NULL;
  }
  if (++f->calls == f->fail_at)
    return NULL;
  f->blocks += block == NULL;
  return realloc(block, size);
}

Test(limiter, opens_or_says_out_of_memory_and_leaves_nothing_behind) {
  for (int fail_at = 1;; fail_at++) {
    failing f = {.fail_at = fail_at};
    spile_options options = SPILE_OPTIONS_INIT;
    options.allocate = failing_allocate;
    options.allocate_user = &f;
    spile_limiter *limiter;
    int result = spile_open(&limiter, "memory:?keys=10", &options, NULL);
    if (result == SPILE_OK) {
      cr_assert(lt(int, 2, fail_at));
      spile_close(limiter);
      cr_assert(eq(int, f.blocks, 0));
      return;
    }
    cr_assert(eq(int, result, SPILE_ENOMEM));
    cr_assert(limiter == NULL);
    cr_assert(eq(int, f.blocks, 0));
  }
}

Test(limiter, allocates_nothing_for_a_take) {
  failing f = {0};
  spile_options options = SPILE_OPTIONS_INIT;
  options.allocate = failing_allocate;
  options.allocate_user = &f;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=1000", &options, NULL), SPILE_OK));
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_parse(&limit, "10/s", NULL), SPILE_OK));
  /* A limit is copied when the store first meets it. */
  cr_assert(spile_allow(limiter, limit, "k"));
  int calls = f.calls;
  for (int i = 0; i < 500; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "%d", i);
    cr_assert(spile_allow(limiter, limit, key));
  }
  cr_assert(eq(int, f.calls, calls));
  spile_limit_unref(limit);
  spile_close(limiter);
  cr_assert(eq(int, f.blocks, 0));
}

Test(limiter, counts_owners_of_a_limit) {
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_parse(&limit, "100/m,name=day", NULL), SPILE_OK));
  cr_assert(spile_limit_ref(limit) == limit);
  spile_limit_unref(limit);
  cr_assert(eq(str, (char *)(uintptr_t)spile_limit_name(limit), "day"));
  cr_assert(eq(i64, spile_limit_capacity(limit), 100));
  cr_assert(eq(i64, spile_limit_full_time_ms(limit), 60000));
  spile_limit_unref(limit);
  spile_limit_unref(NULL);
  cr_assert(spile_limit_ref(NULL) == NULL);
}

Test(limiter, has_a_word_for_every_code) {
  cr_assert(eq(str, (char *)(uintptr_t)spile_code_name(SPILE_EUNAVAILABLE), "SPILE_EUNAVAILABLE"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_code_name(SPILE_DENIED), "SPILE_DENIED"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_code_name(-12345), "SPILE_UNKNOWN_CODE"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_reason_name(SPILE_REASON_OOM), "oom"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_reason_name(-1), "unknown"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_outcome_name(SPILE_NEVER), "never"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_outcome_name(0), "none"));
  cr_assert(eq(str, (char *)(uintptr_t)spile_decided_by_name(SPILE_BY_FULL), "full"));
  for (int code = -20; code <= 10; code++)
    cr_assert(spile_code_name(code) != NULL && spile_code_text(code)[0] != '\0');
}

Test(limiter, believes_no_store_that_answers_what_it_may_not) {
  rig r = rig_start(NULL);
  static const struct {
    int code;
    int64_t debt;
  } rows[] = {{SPILE_ALLOWED, 0},    {SPILE_DENIED, 0},       {4711, 0},          {SPILE_EINVAL, 0}, {SPILE_EFORK, 0},
              {SPILE_ENOSUBJECT, 0}, {SPILE_ECONFIG, 0},      {SPILE_ENOTSUP, 0}, {-99, 0},          {SPILE_OK, -1},
              {SPILE_OK, INT64_MIN}, {SPILE_OK, 60000 + 1001}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_reading reading = {{rows[i].debt}};
    cr_assert(spile_scripted_store_answer(r.store, rows[i].code, SPILE_REASON_NONE, &reading, 1));
    spile_decision d;
    memset(&d, 0x41, sizeof(d));
    cr_assert(eq(int, spile_take(r.limiter, r.limit, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, d.outcome, 0));
    cr_assert(eq(int, d.store_error, SPILE_REASON_PROTOCOL));
  }
  rig_stop(&r);
}

static int clear_code;

static int clear_badly(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)store;
  (void)item;
  (void)deadline_ms;
  (void)error;
  return clear_code;
}

Test(limiter, says_something_where_a_store_says_nothing_and_refuses_one_without_a_deadline) {
  spile_scripted_store *scripted = spile_scripted_store_new();
  spile_store *store = spile_scripted_store_base(scripted);
  spile_store_ops ops = *store->ops;
  store->ops = &ops;
  spile_limiter *limiter;
  spile_error error = {0};
  static const int64_t timeouts_ms[] = {-1, 3600001, INT64_MAX};
  for (size_t i = 0; i < sizeof(timeouts_ms) / sizeof(timeouts_ms[0]); i++) {
    ops.timeout_ms = timeouts_ms[i];
    error = (spile_error){0};
    cr_assert(eq(int, spile_open_store(&limiter, store, NULL, &error), SPILE_EINVAL));
    cr_assert(strstr(error.message, "timeout_ms of the store") != NULL, "%s", error.message);
  }
  ops.timeout_ms = 1000;
  ops.clear = clear_badly;
  cr_assert(eq(int, spile_open_store(&limiter, store, NULL, NULL), SPILE_OK));
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_parse(&limit, "5/s", NULL), SPILE_OK));
  static const int codes[] = {SPILE_EUNAVAILABLE, SPILE_EFULL, SPILE_EINVAL, SPILE_ALLOWED, -99};
  for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
    clear_code = codes[i];
    error = (spile_error){0};
    cr_assert(eq(int, spile_clear(limiter, limit, "k", 1, &error), SPILE_EUNAVAILABLE));
    cr_assert(error.code == SPILE_EUNAVAILABLE && error.reason == SPILE_REASON_PROTOCOL && error.message[0] != '\0');
  }
  spile_limit_unref(limit);
  spile_close(limiter);
}

Test(limiter, refuses_one_bucket_under_two_policies) {
  rig r = rig_start(NULL);
  const char *const texts[] = {"1/s,capacity=60,on_store_error=closed", "1/s,capacity=60,on_full=open"};
  for (int i = 0; i < 2; i++) {
    spile_limit *other;
    cr_assert(eq(int, spile_limit_parse(&other, texts[i], NULL), SPILE_OK));
    spile_request requests[2] = {{r.limit, "k", 1, 1}, {other, "k", 1, 1}};
    spile_decision d;
    cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, NULL), SPILE_EINVAL));
    cr_assert(d.detail[0] != '\0');
    spile_limit_unref(other);
  }
  cr_assert(eq(sz, spile_scripted_store_calls(r.store), 0));
  rig_stop(&r);
}
