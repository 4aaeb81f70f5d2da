/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charge, refund and take up to over a store that answers what it is told: what the store is asked, and what becomes of
 * it when it cannot answer.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <spile/testing.h>
#include <string.h>

typedef struct rig {
  spile_scripted_store *store;
  spile_limiter *limiter;
} rig;

static rig rig_start(void) {
  rig r = {.store = spile_scripted_store_new()};
  spile_options options = SPILE_OPTIONS_INIT;
  options.breaker_failures = SPILE_BREAKER_OFF;
  options.metrics = SPILE_METRICS_COUNTS;
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

static void answer(rig *r, int code, spile_reason reason, int64_t debt) {
  spile_reading reading = {{debt}};
  cr_assert(spile_scripted_store_answer(r->store, code, reason, &reading, code == SPILE_OK ? 1 : 0));
}

typedef int settle_call(spile_limiter *, const spile_limit *, const void *, size_t, int64_t, spile_decision *);
static settle_call *const settles[] = {spile_charge, spile_refund};
static const spile_verb verbs[] = {SPILE_VERB_CHARGE, SPILE_VERB_REFUND};

static spile_counters counters_of(spile_limiter *limiter) {
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(limiter, &counters), SPILE_OK));
  return counters;
}

Test(settle, hands_the_store_the_verb_and_the_whole_cost) {
  rig r = rig_start();
  spile_limit *limit = limit_of("1/s,capacity=5,debt=2");
  for (size_t i = 0; i < 2; i++) {
    spile_decision d;
    cr_assert(eq(int, settles[i](r.limiter, limit, "k", 1, 12, &d), SPILE_ALLOWED));
    const spile_scripted_call *call = spile_scripted_store_call(r.store, i);
    cr_assert(call->verb == verbs[i] && call->n == 1 && call->items[0].cost == 12 && call->most == 0);
    cr_assert(eq(i64, call->items[0].shape.debt, 2));
    cr_assert(eq(i64, d.uncharged, i == 0 ? 5 : 0));
    cr_assert(eq(i64, d.remaining, i == 0 ? 0 : 5));
    cr_assert(eq(i64, d.capacity, 5));
  }
  spile_decision d;
  cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 2, 9, &d), SPILE_ALLOWED));
  const spile_scripted_call *call = spile_scripted_store_call(r.store, 2);
  cr_assert(call->verb == SPILE_VERB_TAKE_UP_TO && call->items[0].cost == 2 && call->most == 5);
  cr_assert(d.granted == 5 && d.remaining == 0);
  cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 6, 9, &d), SPILE_NEVER));
  cr_assert(eq(int, spile_scripted_store_call(r.store, 3)->verb, SPILE_VERB_PEEK), "what can never be is only read");
  cr_assert(d.granted == 0 && d.remaining == 5);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(settle, asks_the_store_nothing_when_an_argument_is_wrong) {
  rig r = rig_start();
  spile_limit *limit = limit_of("5/s");
  spile_decision d;
  for (size_t i = 0; i < 2; i++) {
    cr_expect(eq(int, settles[i](NULL, limit, "k", 1, 1, &d), SPILE_EINVAL));
    cr_expect(eq(int, settles[i](r.limiter, NULL, "k", 1, 1, &d), SPILE_EINVAL));
    cr_expect(eq(int, settles[i](r.limiter, limit, NULL, 1, 1, &d), SPILE_EINVAL));
    cr_expect(eq(int, settles[i](r.limiter, limit, "k", 0, 1, &d), SPILE_EINVAL));
    memset(&d, 1, sizeof(d));
    cr_expect(eq(int, settles[i](r.limiter, limit, "k", 1, -1, &d), SPILE_EINVAL));
    cr_expect(d.outcome == 0 && d.uncharged == 0 && d.granted == 0 && d.remaining == SPILE_UNKNOWN);
    cr_expect(eq(str, d.detail, "the cost is below zero"));
    cr_expect(eq(int, settles[i](r.limiter, limit, "k", 1, -1, NULL), SPILE_EINVAL));
  }
  cr_expect(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 3, 2, &d), SPILE_EINVAL));
  cr_expect(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, -1, 2, NULL), SPILE_EINVAL));
  cr_expect(eq(int, spile_take_up_to(NULL, limit, "k", 1, 1, 2, &d), SPILE_EINVAL));
  cr_expect(eq(sz, spile_scripted_store_calls(r.store), 0));
  spile_counters counters = counters_of(r.limiter);
  cr_expect(counters.unsettled == 0 && counters.charged == 0 && counters.refunded == 0 && counters.unavailable == 0);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

/* A charge admits nobody, so there is nothing for a policy to decide: whoever asked has to know. */
Test(settle, asks_no_policy_when_the_store_does_not_answer) {
  rig r = rig_start();
  spile_limit *limit = limit_of("5/s,on_store_error=open,on_full=open");
  for (size_t i = 0; i < 2; i++) {
    spile_decision d;
    answer(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, 0);
    cr_assert(eq(int, settles[i](r.limiter, limit, "k", 1, 1, &d), SPILE_EUNAVAILABLE));
    cr_assert(d.outcome == 0 && d.decided_by == SPILE_BY_NOBODY && d.store_error == SPILE_REASON_TIMEOUT);
    cr_assert(eq(str, d.detail, "the script says so"));
    answer(&r, SPILE_OK, SPILE_REASON_NONE, 0);
    cr_assert(eq(int, settles[i](r.limiter, limit, "k", 1, 1, &d), SPILE_ALLOWED));
    answer(&r, SPILE_EFULL, SPILE_REASON_NONE, 0);
    cr_assert(eq(int, settles[i](r.limiter, limit, "k", 1, 1, &d), SPILE_EFULL));
    cr_assert(d.outcome == 0 && d.remaining == SPILE_UNKNOWN);
  }
  cr_assert(eq(sz, spile_scripted_store_calls(r.store), 6), "nothing is sent twice");
  spile_request requests[2] = {{limit, "a", 1, 1}, {limit, "b", 1, 1}};
  spile_decision d;
  spile_decision each[2];
  answer(&r, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT, 0);
  cr_assert(eq(int, spile_charge_all(r.limiter, requests, 2, &d, each), SPILE_EUNAVAILABLE));
  cr_assert(each[1].outcome == 0 && each[1].store_error == SPILE_REASON_CONNECT && each[1].index == 1);
  cr_assert(eq(str, (char *)(uintptr_t)d.name, "default"));
  cr_assert(d.index == 0 && d.capacity == 5 && d.remaining == SPILE_UNKNOWN);
  cr_assert(eq(str, (char *)(uintptr_t)each[1].name, "default"));
  cr_assert(eq(i64, each[1].capacity, 5));
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(settle, are_counted_apart_from_takes) {
  rig r = rig_start();
  spile_limit *limit = limit_of("5/s");
  for (int i = 0; i < 4; i++)
    answer(&r, SPILE_OK, SPILE_REASON_NONE, 0);
  for (int i = 0; i < 3; i++)
    cr_assert(eq(int, spile_charge(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  cr_assert(eq(int, spile_refund(r.limiter, limit, "k", 1, 1, NULL), SPILE_ALLOWED));
  answer(&r, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, 0);
  cr_assert(eq(int, spile_refund(r.limiter, limit, "k", 1, 1, NULL), SPILE_EUNAVAILABLE));
  answer(&r, SPILE_EFULL, SPILE_REASON_NONE, 0);
  cr_assert(eq(int, spile_charge(r.limiter, limit, "k", 1, 1, NULL), SPILE_EFULL));
  spile_decision d;
  cr_assert(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 1, 2, &d), SPILE_ALLOWED));
  spile_counters counters = counters_of(r.limiter);
  cr_assert(counters.charged == 3 && counters.refunded == 1 && counters.unsettled == 2);
  cr_assert(eq(u64, counters.allowed, 1), "a take up to is a take");
  cr_assert(counters.denied == 0 && counters.full == 0 && counters.unavailable == 0);
  cr_assert(eq(u64, counters.store_errors[SPILE_REASON_TIMEOUT], 0));
  static char text[65536];
  size_t needed;
  cr_assert(eq(int, spile_metrics_text(r.limiter, text, sizeof(text), &needed), SPILE_OK));
  cr_assert(needed <= sizeof(text));
  cr_assert(strstr(text, "\nspile_settled_total{verb=\"charge\"} 3\n") != NULL, "%s", text);
  cr_assert(strstr(text, "\nspile_settled_total{verb=\"refund\"} 1\n") != NULL);
  cr_assert(strstr(text, "\nspile_unsettled_total 2\n") != NULL);
  spile_limit_unref(limit);
  spile_close(r.limiter);
}

Test(settle, a_policy_that_allows_grants_the_most_there_can_be) {
  static const struct {
    const char *text;
    int code, result;
    int64_t granted;
  } rows[] = {
      {"5/s,on_store_error=open", SPILE_EUNAVAILABLE, SPILE_ALLOWED, 5},
      {"5/s,on_store_error=closed", SPILE_EUNAVAILABLE, SPILE_DENIED, 0},
      {"5/s", SPILE_EUNAVAILABLE, SPILE_EUNAVAILABLE, 0},
      {"5/s,on_full=open", SPILE_EFULL, SPILE_ALLOWED, 5},
      {"5/s", SPILE_EFULL, SPILE_DENIED, 0},
      {"5/s,on_full=fail", SPILE_EFULL, SPILE_EFULL, 0},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    rig r = rig_start();
    spile_limit *limit = limit_of(rows[i].text);
    answer(&r, rows[i].code, rows[i].code == SPILE_EFULL ? SPILE_REASON_NONE : SPILE_REASON_TIMEOUT, 0);
    spile_decision d;
    cr_expect(eq(int, spile_take_up_to(r.limiter, limit, "k", 1, 1, 9, &d), rows[i].result), "row %zu", i);
    cr_expect(eq(i64, d.granted, rows[i].granted), "row %zu", i);
    spile_limit_unref(limit);
    spile_close(r.limiter);
  }
}

/* An open limit without room counts for nothing: what is granted is what the others have. */
Test(settle, grants_what_the_limits_with_room_have) {
  rig r = rig_start();
  spile_limit *open = limit_of("5/s,on_full=open,name=open");
  spile_limit *other = limit_of("1/s,capacity=9,name=other");
  spile_request requests[2] = {{open, "k", 1, 0}, {other, "k", 1, 0}};
  answer(&r, SPILE_EFULL, SPILE_REASON_NONE, 0);
  answer(&r, SPILE_OK, SPILE_REASON_NONE, 6000);
  spile_decision d;
  spile_decision each[2];
  cr_assert(eq(int, spile_take_up_to_all(r.limiter, requests, 2, 1, 9, &d, each), SPILE_ALLOWED));
  cr_assert(d.granted == 3 && each[0].granted == 3 && each[1].granted == 3 && d.decided_by == SPILE_BY_FULL);
  spile_limit_unref(open);
  spile_limit_unref(other);
  spile_close(r.limiter);
}

static int unable_decide(spile_store *store, spile_call *call) {
  (void)store;
  (void)call;
  return SPILE_ENOTSUP;
}

static void expect_unable(spile_limiter *limiter, const spile_limit *limit) {
  spile_decision d;
  for (size_t i = 0; i < 2; i++) {
    cr_expect(eq(int, settles[i](limiter, limit, "k", 1, 1, &d), SPILE_ENOTSUP));
    cr_expect(eq(str, d.detail, "this store cannot charge, refund or take up to a number"));
    cr_expect(d.outcome == 0 && d.store_error == SPILE_REASON_NONE);
  }
  cr_expect(eq(int, spile_take_up_to(limiter, limit, "k", 1, 1, 2, &d), SPILE_ENOTSUP));
  spile_counters counters = counters_of(limiter);
  cr_expect(counters.unsettled == 0 && counters.unavailable == 0);
}

Test(settle, a_store_of_an_earlier_abi_is_not_asked_and_one_that_cannot_may_say_so) {
  spile_limit *limit = limit_of("5/s,on_store_error=open");
  for (int metrics = SPILE_METRICS_OFF; metrics <= SPILE_METRICS_TIMES; metrics += 2) {
    for (uint32_t abi = 1; abi <= SPILE_STORE_ABI; abi++) {
      spile_scripted_store *scripted = spile_scripted_store_new();
      spile_store *store = spile_scripted_store_base(scripted);
      spile_store_ops ops = *store->ops;
      ops.abi = abi;
      if (abi == SPILE_STORE_ABI)
        ops.decide = unable_decide;
      store->ops = &ops;
      spile_options options = SPILE_OPTIONS_INIT;
      options.metrics = metrics;
      spile_limiter *limiter;
      cr_assert(eq(int, spile_open_store(&limiter, store, &options, NULL), SPILE_OK));
      expect_unable(limiter, limit);
      cr_expect(eq(sz, spile_scripted_store_calls(scripted), 0));
      spile_close(limiter);
    }
  }
  spile_limit_unref(limit);
}

Test(settle, believes_no_reading_that_a_refund_cannot_have) {
  rig r = rig_start();
  spile_limit *log = limit_of("5/s,sliding_log");
  /* Used, until nothing counts after the refund, until nothing counts, until the oldest does not. */
  static const struct {
    int64_t used, after_ms, reset_ms, cost;
    bool good;
    int64_t oldest_ms, grows_ms;
  } rows[] = {{3, 400, 900, 2, true, 300, 300}, {3, 400, 900, 2, true, 0, 400}, /* a store that does not say */
              {3, 900, 900, 2, true, 900, 900}, {3, 400, 900, 2, false, 901, 0},
              {3, 400, 900, 2, false, -1, 0},   {3, 901, 900, 2, false, 0, 0},
              {3, 0, 900, 2, false, 0, 0},      {3, 0, 900, 3, true, 300, SPILE_UNKNOWN},
              {3, 1, 900, 3, false, 0, 0},      {0, 0, 0, 3, true, 0, SPILE_UNKNOWN},
              {0, 1, 1, 3, false, 0, 0},        {3, -1, 900, 2, false, 0, 0},
              {6, 1, 900, 2, false, 0, 0},      {3, 0, 900, INT64_MAX, true, 300, SPILE_UNKNOWN}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_reading reading = {{rows[i].used, rows[i].after_ms, rows[i].reset_ms, rows[i].oldest_ms}};
    cr_assert(spile_scripted_store_answer(r.store, SPILE_OK, SPILE_REASON_NONE, &reading, 1));
    spile_decision d;
    int result = spile_refund(r.limiter, log, "k", 1, rows[i].cost, &d);
    cr_expect(eq(int, result, rows[i].good ? SPILE_ALLOWED : SPILE_EUNAVAILABLE), "row %zu", i);
    if (rows[i].good) {
      cr_expect(eq(i64, d.reset_after_ms, rows[i].after_ms), "row %zu", i);
      cr_expect(eq(i64, d.grows_after_ms, rows[i].grows_ms), "row %zu", i);
    } else {
      cr_expect(eq(int, d.store_error, SPILE_REASON_PROTOCOL), "row %zu", i);
    }
  }
  spile_limit_unref(log);
  spile_close(r.limiter);
}
