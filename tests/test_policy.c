/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a take gets when its store does not answer: on_store_error, counted, logged and labelled; and how long a store
 * may take.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <spile/sys/store.h>
#include <spile/testing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct rig {
  spile_scripted_store *store;
  spile_limiter *limiter;
} rig;

static rig rig_start(spile_options *options) {
  options->breaker_failures = SPILE_BREAKER_OFF;
  rig r = {.store = spile_scripted_store_new()};
  cr_assert(r.store != NULL);
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(r.store), options, NULL), SPILE_OK));
  return r;
}

static rig rig_plain(void) {
  spile_options options = SPILE_OPTIONS_INIT;
  return rig_start(&options);
}

static spile_limit *limit_of(const char *text) {
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(spile_limit_parse(&limit, text, &error) == SPILE_OK, "%s: %s", text, error.message);
  return limit;
}

static void fail_next(rig *r, int code, spile_reason reason) {
  cr_assert(spile_scripted_store_answer(r->store, code, reason, NULL, 0));
}

typedef struct policy_row {
  const char *limit;
  int result;
  int decided_by;
} policy_row;

static const policy_row policy_rows[] = {
    {"1/s,capacity=60", SPILE_EUNAVAILABLE, SPILE_BY_NOBODY},
    {"1/s,capacity=60,on_store_error=fail", SPILE_EUNAVAILABLE, SPILE_BY_NOBODY},
    {"1/s,capacity=60,on_store_error=open", SPILE_ALLOWED, SPILE_BY_POLICY},
    {"1/s,capacity=60,on_store_error=closed", SPILE_DENIED, SPILE_BY_POLICY},
};

Test(policy, answers_for_a_store_that_cannot_and_says_so) {
  static const spile_reason reasons[] = {SPILE_REASON_TIMEOUT, SPILE_REASON_CONNECT, SPILE_REASON_PROTOCOL,
                                         SPILE_REASON_OOM,     SPILE_REASON_FOREIGN, SPILE_REASON_BREAKER};
  for (size_t i = 0; i < sizeof(policy_rows) / sizeof(policy_rows[0]); i++) {
    const policy_row *row = &policy_rows[i];
    rig r = rig_plain();
    spile_limit *limit = limit_of(row->limit);
    for (size_t j = 0; j < sizeof(reasons) / sizeof(reasons[0]); j++) {
      fail_next(&r, SPILE_EUNAVAILABLE, reasons[j]);
      spile_decision d;
      int result = spile_take(r.limiter, limit, "k", 1, 1, &d);
      cr_assert(result == row->result, "%s, %s: %s", row->limit, spile_reason_name((int)reasons[j]),
                spile_code_name(result));
      cr_assert(eq(int, d.outcome, result > 0 ? result : 0));
      cr_assert(eq(int, d.decided_by, row->decided_by));
      cr_assert(eq(int, d.store_error, (int)reasons[j]));
      cr_assert(eq(str, d.detail, "the script says so"));
      cr_assert(eq(i64, d.remaining, SPILE_UNKNOWN));
      cr_assert(eq(i64, d.retry_after_ms, SPILE_UNKNOWN));
      cr_assert(eq(i64, d.reset_after_ms, SPILE_UNKNOWN));
      cr_assert(eq(sz, spile_scripted_store_calls(r.store), j + 1));
    }
    spile_limit_unref(limit);
    spile_close(r.limiter);
  }
}

Test(policy, never_meets_an_answer_of_the_store) {
  rig r = rig_plain();
  spile_limit *open = limit_of("1/s,capacity=60,on_store_error=open");
  spile_reading empty = {{60000}};
  cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  spile_decision d;
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_DENIED));
  cr_assert(eq(int, d.decided_by, SPILE_BY_STORE));
  /* What can never be stays so when the store is gone, also where the policy is open. */
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 61, &d), SPILE_NEVER));
  cr_assert(eq(int, d.decided_by, SPILE_BY_LIMITS));
  /* An argument error is the caller's. */
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, -1, &d), SPILE_EINVAL));
  cr_assert(eq(int, d.decided_by, SPILE_BY_NOBODY));
  spile_limit_unref(open);
  spile_close(r.limiter);
}

Test(policy, takes_the_strictest_of_several_limits) {
  const char *const texts[] = {"1/s,name=o,on_store_error=open", "1/s,name=c,on_store_error=closed",
                               "1/s,name=f,on_store_error=fail"};
  static const struct {
    int first, second;
    int result;
    uint32_t index;
  } rows[] = {{0, 0, SPILE_ALLOWED, 0},      {0, 1, SPILE_DENIED, 1},       {1, 0, SPILE_DENIED, 0},
              {0, 2, SPILE_EUNAVAILABLE, 1}, {2, 1, SPILE_EUNAVAILABLE, 0}, {1, 2, SPILE_EUNAVAILABLE, 1}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    rig r = rig_plain();
    spile_limit *first = limit_of(texts[rows[i].first]);
    spile_limit *second = limit_of(texts[rows[i].second]);
    spile_request requests[2] = {{first, "a", 1, 1}, {second, "b", 1, 1}};
    spile_decision d;
    spile_decision each[2];
    fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT);
    cr_assert(eq(int, spile_take_all(r.limiter, requests, 2, &d, each), rows[i].result));
    cr_assert(eq(u32, d.index, rows[i].index));
    /* The limit whose policy decided is named, also where that is an error. */
    cr_assert(eq(str, (char *)(uintptr_t)d.name, (char *)(uintptr_t)spile_limit_name(requests[d.index].limit)));
    cr_assert(eq(i64, d.capacity, 1));
    /* Each says what its own limit does, whatever the others make of it. */
    static const int own[] = {SPILE_ALLOWED, SPILE_DENIED, 0};
    const int limits[] = {rows[i].first, rows[i].second};
    for (uint32_t j = 0; j < 2; j++) {
      cr_assert(eq(int, each[j].outcome, own[limits[j]]));
      cr_assert(eq(int, each[j].decided_by, own[limits[j]] != 0 ? SPILE_BY_POLICY : SPILE_BY_NOBODY));
      cr_assert(eq(u32, each[j].index, j));
      cr_assert(eq(int, each[j].store_error, SPILE_REASON_CONNECT));
      cr_assert(eq(str, each[j].detail, "the script says so"));
    }
    spile_limit_unref(first);
    spile_limit_unref(second);
    spile_close(r.limiter);
  }
}

Test(policy, says_of_each_limit_its_own_word_beside_one_that_can_never_be) {
  rig r = rig_plain();
  spile_limit *open = limit_of("1/s,name=o,on_store_error=open");
  spile_limit *fail = limit_of("1/s,name=f");
  spile_request requests[3] = {{open, "a", 1, 1}, {open, "b", 1, 2}, {fail, "c", 1, 1}};
  spile_decision d;
  spile_decision each[3];
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT);
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, each), SPILE_NEVER));
  cr_assert(eq(u32, d.index, 1));
  cr_assert(eq(int, each[0].outcome, SPILE_ALLOWED));
  cr_assert(eq(int, each[0].decided_by, SPILE_BY_POLICY));
  cr_assert(eq(int, each[1].outcome, SPILE_NEVER));
  cr_assert(eq(int, each[1].decided_by, SPILE_BY_LIMITS));
  cr_assert(eq(int, each[2].outcome, 0));
  cr_assert(eq(int, each[2].decided_by, SPILE_BY_NOBODY));
  spile_limit_unref(open);
  spile_limit_unref(fail);
  spile_close(r.limiter);
}

Test(policy, of_the_limiter_wins_over_those_of_its_limits) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.on_store_error = SPILE_ON_STORE_ERROR_CLOSED;
  rig r = rig_start(&options);
  for (size_t i = 0; i < sizeof(policy_rows) / sizeof(policy_rows[0]); i++) {
    spile_limit *limit = limit_of(policy_rows[i].limit);
    spile_decision d;
    fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT);
    cr_assert(eq(int, spile_take(r.limiter, limit, "k", 1, 1, &d), SPILE_DENIED));
    cr_assert(eq(int, d.decided_by, SPILE_BY_POLICY));
    spile_limit_unref(limit);
  }
  spile_close(r.limiter);
}

Test(policy, names_a_reason_where_the_store_gave_none) {
  rig r = rig_plain();
  spile_limit *open = limit_of("1/s,on_store_error=open");
  spile_decision d;
  fail_next(&r, SPILE_ENOMEM, SPILE_REASON_NONE);
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, d.store_error, SPILE_REASON_MEMORY));
  /* A store of somebody's own that forgot its reason, or made one up. */
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_NONE);
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, d.store_error, SPILE_REASON_PROTOCOL));
  fail_next(&r, SPILE_EUNAVAILABLE, (spile_reason)4711);
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, d.store_error, SPILE_REASON_PROTOCOL));
  spile_limit_unref(open);
  spile_close(r.limiter);
}

/* ---- A store of somebody's own, which fails as it is told ---- */

typedef struct own_store {
  spile_store base;
  size_t failed_item;
  spile_reason reason;
  const char *message;
} own_store;

static int own_decide(spile_store *base, spile_call *call) {
  own_store *own = (own_store *)base;
  call->failed_item = own->failed_item;
  call->error->code = SPILE_EUNAVAILABLE;
  call->error->reason = (int)own->reason;
  (void)snprintf(call->error->message, sizeof(call->error->message), "%s", own->message);
  return SPILE_EUNAVAILABLE;
}

static int own_clear(spile_store *base, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)base, (void)item, (void)deadline_ms, (void)error;
  return SPILE_OK;
}

static void own_close(spile_store *base, bool forked) {
  (void)base, (void)forked;
}

static const spile_store_ops own_ops = {.abi = SPILE_STORE_ABI,
                                        .name = "own",
                                        .timeout_ms = 1000,
                                        .decide = own_decide,
                                        .clear = own_clear,
                                        .close = own_close};

static void keep_line(void *user, spile_log_level level, const char *line) {
  (void)level;
  (void)snprintf(user, 400, "%s", line);
}

Test(policy, names_the_limit_whose_bucket_is_the_cause) {
  own_store own = {
      .base = {&own_ops}, .failed_item = 1, .reason = SPILE_REASON_FOREIGN, .message = "not ours; remove it"};
  char line[400] = "";
  spile_options options = SPILE_OPTIONS_INIT;
  options.log = keep_line;
  options.log_user = line;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, &own.base, &options, NULL), SPILE_OK));
  spile_limit *limits[3] = {limit_of("1/s,name=a"), limit_of("2/s,name=b\tb"),
                            limit_of("1/s,name=o,on_store_error=open")};
  spile_request requests[2] = {{limits[0], "secret", 6, 1}, {limits[1], "secret", 6, 1}};
  spile_decision d;
  cr_assert(eq(int, spile_take_all(limiter, requests, 2, &d, NULL), SPILE_EUNAVAILABLE));
  cr_assert(eq(u32, d.index, 1));
  cr_assert(eq(str, (char *)(uintptr_t)d.name, "b\tb"));
  cr_assert(eq(i64, d.capacity, 2));
  cr_assert(eq(str, d.detail, "limit b?b: not ours; remove it"));
  cr_assert(eq(str, line, "own: no answer (foreign): limit b?b: not ours; remove it"));
  /* What asks no policy names it alike. */
  d = (spile_decision){0};
  cr_assert(eq(int, spile_charge_all(limiter, requests, 2, &d, NULL), SPILE_EUNAVAILABLE));
  cr_assert(eq(u32, d.index, 1));
  cr_assert(eq(str, (char *)(uintptr_t)d.name, "b\tb"));
  /* A stricter policy decides, and the message still says whose bucket it is. */
  requests[1].limit = limits[2];
  cr_assert(eq(int, spile_take_all(limiter, requests, 2, &d, NULL), SPILE_EUNAVAILABLE));
  cr_assert(eq(u32, d.index, 0));
  cr_assert(eq(str, d.detail, "limit o: not ours; remove it"));
  for (int i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
  spile_close(limiter);
}

Test(policy, a_detail_that_is_cut_shows_that_it_is) {
  static const char message[] =
      "a message of one hundred and fifty bytes, which is longer than what a decision has room "
      "for, and which ends in the address of the store: /run/redis";
  own_store own = {.base = {&own_ops}, .failed_item = SIZE_MAX, .reason = SPILE_REASON_CONNECT, .message = message};
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, &own.base, NULL, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/s");
  spile_decision d;
  cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
  cr_assert(eq(sz, strlen(d.detail), sizeof(d.detail) - 1));
  cr_assert(eq(str, d.detail + sizeof(d.detail) - 4, "..."));
  cr_assert(eq(int, strncmp(d.detail, message, sizeof(d.detail) - 4), 0));
  spile_limit_unref(limit);
  spile_close(limiter);
}

/* Also where the breaker tells what it was. */
Test(policy, never_says_nothing_for_a_store_that_says_nothing) {
  own_store own = {.base = {&own_ops}, .failed_item = SIZE_MAX, .reason = SPILE_REASON_NONE, .message = ""};
  char line[400] = "";
  spile_options options = SPILE_OPTIONS_INIT;
  options.log = keep_line;
  options.log_user = line;
  options.breaker_failures = 1;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, &own.base, &options, NULL), SPILE_OK));
  spile_limit *limit = limit_of("1/s");
  spile_decision d;
  cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, d.store_error, SPILE_REASON_PROTOCOL));
  cr_assert(strstr(d.detail, "is not known") != NULL, "%s", d.detail);
  cr_assert(strstr(line, "is not known") != NULL, "%s", line);
  cr_assert(eq(int, spile_take(limiter, limit, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, d.store_error, SPILE_REASON_BREAKER));
  cr_assert(strstr(d.detail, "(protocol)") != NULL, "%s", d.detail);
  spile_limit_unref(limit);
  spile_close(limiter);
}

Test(policy, ops_01_is_counted_by_reason) {
  rig r = rig_plain();
  spile_limit *search = limit_of("1/s,name=search,on_store_error=open");
  spile_limit *login = limit_of("1/s,name=login,on_store_error=closed");
  spile_limit *other = limit_of("1/s,name=other");
  spile_decision d;
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  cr_assert(eq(int, spile_take(r.limiter, search, "k", 1, 1, &d), SPILE_ALLOWED));
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  cr_assert(eq(int, spile_take(r.limiter, login, "k", 1, 1, &d), SPILE_DENIED));
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_LOADING);
  cr_assert(eq(int, spile_take(r.limiter, other, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
  /* A peek is no take. */
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_LOADING);
  cr_assert(eq(int, spile_peek(r.limiter, search, "k", 1, 1, &d), SPILE_ALLOWED));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(r.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.allowed, 1));
  cr_assert(eq(u64, counters.denied, 1));
  cr_assert(eq(u64, counters.unavailable, 1));
  cr_assert(eq(u64, counters.policy_open, 1));
  cr_assert(eq(u64, counters.policy_closed, 1));
  cr_assert(eq(u64, counters.store_errors[SPILE_REASON_TIMEOUT], 2));
  cr_assert(eq(u64, counters.store_errors[SPILE_REASON_LOADING], 1));
  cr_assert(eq(int, counters.breaker, SPILE_BREAKER_CLOSED));
  spile_limit_unref(search);
  spile_limit_unref(login);
  spile_limit_unref(other);
  spile_close(r.limiter);
}

typedef struct log_lines {
  atomic_int count;
  char last[400];
} log_lines;

static void log_keep(void *user, spile_log_level level, const char *line) {
  log_lines *lines = user;
  cr_assert(eq(int, (int)level, SPILE_LOG_ERROR));
  atomic_fetch_add(&lines->count, 1);
  (void)snprintf(lines->last, sizeof(lines->last), "%s", line);
}

Test(policy, is_logged_once_a_second_for_each_reason) {
  static log_lines lines;
  spile_options options = SPILE_OPTIONS_INIT;
  options.log = log_keep;
  options.log_user = &lines;
  rig r = rig_start(&options);
  spile_limit *open = limit_of("1/s,on_store_error=open");
  spile_decision d;
  for (int i = 0; i < 50; i++) {
    fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
    cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_ALLOWED));
  }
  /* A machine that stood still for a second may have let a second line through. */
  cr_assert(atomic_load(&lines.count) >= 1 && atomic_load(&lines.count) <= 2);
  int before = atomic_load(&lines.count);
  fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT);
  cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, atomic_load(&lines.count), before + 1));
  cr_assert(eq(str, lines.last, "scripted: no answer (connect): the script says so"));
  spile_limit_unref(open);
  spile_close(r.limiter);
}

static int64_t deadline_of_last_call(rig *r) {
  size_t calls = spile_scripted_store_calls(r->store);
  return spile_scripted_store_call(r->store, calls - 1)->deadline_ms;
}

Test(policy, deadline_is_that_of_the_most_impatient_limit) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = 100000;
  rig r = rig_start(&options);
  spile_limit *limits[3];
  static const int64_t timeouts_ms[3] = {0, 3000000, 1000};
  for (int i = 0; i < 3; i++) {
    spile_limit_def def = SPILE_LIMIT_DEF_INIT;
    char name[4];
    (void)snprintf(name, sizeof(name), "l%d", i);
    def.name = name;
    def.capacity = 10;
    def.refill_tokens = 1;
    def.refill_period_ms = 1000;
    def.timeout_ms = timeouts_ms[i];
    cr_assert(eq(int, spile_limit_create(&limits[i], &def, NULL), SPILE_OK));
  }
  spile_decision d;
  int64_t deadlines_ms[4];
  for (int i = 0; i < 3; i++) {
    cr_assert(eq(int, spile_take(r.limiter, limits[i], "k", 1, 1, &d), SPILE_ALLOWED));
    deadlines_ms[i] = deadline_of_last_call(&r);
  }
  spile_request requests[3] = {{limits[0], "k", 1, 1}, {limits[1], "k", 1, 1}, {limits[2], "k", 1, 1}};
  cr_assert(eq(int, spile_take_all(r.limiter, requests, 3, &d, NULL), SPILE_ALLOWED));
  deadlines_ms[3] = deadline_of_last_call(&r);
  /* Seen from the impatient one; the calls themselves take far less than the differences. */
  cr_assert(lt(i64, deadlines_ms[2], deadlines_ms[0] - 50000));
  cr_assert(lt(i64, deadlines_ms[0], deadlines_ms[1] - 1000000));
  cr_assert(deadlines_ms[3] >= deadlines_ms[2] && deadlines_ms[3] < deadlines_ms[2] + 50000);
  for (int i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
  spile_close(r.limiter);
}

Test(policy, refuses_numbers_it_cannot_mean) {
  spile_limit *limit;
  spile_error error = {0};
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = def.refill_tokens = def.refill_period_ms = 1;
  def.on_store_error = 4;
  cr_assert(eq(int, spile_limit_create(&limit, &def, &error), SPILE_ECONFIG));
  def.on_store_error = 0;
  def.timeout_ms = 3600001;
  cr_assert(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_ECONFIG));
  def.timeout_ms = -1;
  cr_assert(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_ECONFIG));
  cr_assert(eq(int, spile_limit_parse(&limit, "1/s,on_store_error=maybe", NULL), SPILE_ECONFIG));
  cr_assert(eq(int, spile_limit_parse(&limit, "1/s,on_store_error=open,on_store_error=open", NULL), SPILE_ECONFIG));
  spile_limiter *limiter;
  spile_options options = SPILE_OPTIONS_INIT;
  options.on_store_error = -1;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
  options.on_store_error = 0;
  options.breaker_failures = -2;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
  options.breaker_failures = 0;
  options.breaker_wait_ms = -1;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
  options.breaker_wait_ms = 0;
  options.connections = 65;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_EINVAL));
}

Test(policy, opens_the_breaker_and_says_so_in_the_counters) {
  spile_options options = SPILE_OPTIONS_INIT;
  rig r = {.store = spile_scripted_store_new()};
  options.breaker_failures = 3;
  options.breaker_wait_ms = 3600000;
  cr_assert(eq(int, spile_open_store(&r.limiter, spile_scripted_store_base(r.store), &options, NULL), SPILE_OK));
  spile_limit *open = limit_of("1/s,on_store_error=open");
  spile_decision d;
  for (int i = 0; i < 10; i++) {
    fail_next(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
    cr_assert(eq(int, spile_take(r.limiter, open, "k", 1, 1, &d), SPILE_ALLOWED));
    cr_assert(eq(int, d.store_error, i < 3 ? SPILE_REASON_TIMEOUT : SPILE_REASON_BREAKER));
  }
  cr_assert(eq(sz, spile_scripted_store_calls(r.store), 3));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(r.limiter, &counters), SPILE_OK));
  cr_assert(eq(int, counters.breaker, SPILE_BREAKER_OPEN));
  cr_assert(eq(u64, counters.breaker_opened, 1));
  cr_assert(eq(u64, counters.store_errors[SPILE_REASON_BREAKER], 7));
  spile_limit_unref(open);
  spile_close(r.limiter);
}
