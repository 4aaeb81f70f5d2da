/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking by a limits file: which question reaches the store, and what is answered without it.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/metrics.h>
#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "limits/ask.h"
#include "limits_rig.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

typedef struct asking {
  spile_scripted_store *store;
  spile_limiter *limiter;
  rig_route *route;
  spile_caller caller;
  spile_ruling ruling;
} asking;

/* Memory that the limiter asks for, and whether it gets it. */
static struct {
  size_t asked;
  size_t held;
  bool refused;
} memory;

static void *memory_give(void *user, void *block, size_t size) {
  (void)user;
  memory.asked += size > 0;
  if (size > 0 && memory.refused)
    return NULL;
  memory.held += (size > 0 && block == NULL) ? 1 : 0;
  memory.held -= (size == 0 && block != NULL) ? 1 : 0;
  if (size > 0)
    return realloc(block, size);
  free(block);
  return NULL;
}

/* What the hook and the log were told of denials. */
typedef struct denied_told {
  size_t count;
  char limit[64];
  char route[64];
  uint64_t subject_hash;
  spile_decision decision;
  char line[400];
} denied_told;

static denied_told denied;

static void denied_seen(void *user, const spile_event *event) {
  (void)user;
  denied.count++;
  (void)snprintf(denied.limit, sizeof(denied.limit), "%s", event->limit);
  (void)snprintf(denied.route, sizeof(denied.route), "%s", event->route);
  denied.subject_hash = event->subject_hash;
  denied.decision = *event->decision;
}

static void line_seen(void *user, spile_log_level level, const char *line) {
  (void)user;
  if (level == SPILE_LOG_INFO)
    (void)snprintf(denied.line, sizeof(denied.line), "%s", line);
}

static void asking_start(asking *a, spile_route_word word, const rig_limit *limits, size_t n) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.breaker_failures = SPILE_BREAKER_OFF;
  options.metrics = SPILE_METRICS_COUNTS;
  options.allocate = memory_give;
  options.on_denied = denied_seen;
  options.log = line_seen;
  options.log_denied_per_s = 1;
  a->store = spile_scripted_store_new();
  cr_assert(a->store != NULL);
  cr_assert(eq(int, spile_open_store(&a->limiter, spile_scripted_store_base(a->store), &options, NULL), SPILE_OK));
  a->route = rig_route_new("POST /search", word, limits, n);
  a->caller = (spile_caller)SPILE_CALLER_INIT;
  a->caller.tenant = "acme";
  a->caller.ip = "192.0.2.1";
}

static void asking_finish(asking *a) {
  spile_close(a->limiter);
  rig_route_free(a->route);
}

static int asking_take(asking *a, int64_t cost) {
  return spile__limits_ask(a->limiter, &a->route->route, &a->caller, cost, SPILE_VERB_TAKE, SPILE__NO_SUBJECT_FAILS,
                           &a->ruling);
}

static void answer(asking *a, const int64_t *debts, size_t n) {
  spile_reading readings[SPILE_ROUTE_LIMITS_MAX] = {0};
  for (size_t i = 0; i < n; i++)
    readings[i].values[0] = debts[i];
  cr_assert(spile_scripted_store_answer(a->store, SPILE_OK, SPILE_REASON_NONE, readings, n));
}

Test(ask, puts_every_limit_in_one_question_with_its_own_key_and_cost) {
  static const rig_limit limits[] = {{"1/s,capacity=60,name=POST /search", .cost = 3, .chain = "tenant,ip"},
                                     {"10/s,name=POST /search#burst", .cost = 2, .chain = "ip"},
                                     {"1000/15m,name=always#global", .cost = 1, .always = true, .chain = "ip"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 3);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(int, asking_take(&a, 5), SPILE_ALLOWED));
  cr_assert(eq(int, asking_take(&a, 0), SPILE_ALLOWED));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)3));
  static const int64_t costs[3][3] = {{3, 2, 1}, {5, 5, 1}, {0, 0, 1}};
  for (size_t i = 0; i < 3; i++) {
    const spile_scripted_call *call = spile_scripted_store_call(a.store, i);
    cr_assert(eq(int, (int)call->verb, SPILE_VERB_TAKE));
    cr_assert(eq(sz, call->n, (size_t)3));
    cr_assert(eq(str, (char *)call->items[0].key, "tenant=acme"));
    cr_assert(eq(str, (char *)call->items[1].key, "ip=192.0.2.1"));
    cr_assert(eq(str, (char *)call->items[2].key, "ip=192.0.2.1"));
    cr_assert(eq(str, (char *)call->items[2].name, "always#global"));
    for (size_t j = 0; j < 3; j++)
      cr_assert(eq(i64, call->items[j].cost, costs[i][j]));
  }
  cr_assert(eq(sz, a.ruling.n, (size_t)3));
  cr_assert(eq(sz, a.ruling.n_shadow, (size_t)0));
  cr_assert(a.ruling.route == &a.route->route);
  cr_assert(a.ruling.limits[2] == a.route->limits[2].limit);
  cr_assert(eq(i64, a.ruling.each[0].remaining, 60));
  asking_finish(&a);
}

Test(ask, a_charge_with_its_own_cost_leaves_the_limits_of_every_request_alone) {
  static const rig_limit limits[] = {
      {"1/s,capacity=60,name=POST /search", .cost = 3, .chain = "tenant"},
      {"1000/15m,name=always#global", .cost = 1, .always = true, .chain = "ip"},
      {"9/s,name=always#next", .cost = 1, .always = true, .chain = "ip", .shadow = true}};
  static const int verbs[] = {SPILE_VERB_CHARGE, SPILE_VERB_REFUND};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 3);
  for (size_t i = 0; i < COUNT(verbs); i++) {
    cr_assert(eq(
        int, spile__limits_ask(a.limiter, &a.route->route, &a.caller, 40, verbs[i], SPILE__NO_SUBJECT_FAILS, &a.ruling),
        SPILE_ALLOWED));
    cr_assert(eq(sz, spile_scripted_store_calls(a.store), i + 1));
    const spile_scripted_call *call = spile_scripted_store_call(a.store, i);
    cr_assert(eq(int, (int)call->verb, verbs[i]));
    cr_assert(eq(sz, call->n, (size_t)1));
    cr_assert(eq(i64, call->items[0].cost, 40));
    cr_assert(eq(str, (char *)a.ruling.decision.name, "POST /search"));
    cr_assert(eq(sz, a.ruling.n, (size_t)1));
    cr_assert(eq(sz, a.ruling.n_shadow, (size_t)0));
  }
  /* With the costs of the route it is what one request costs, in all of them. */
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_REFUND,
                                 SPILE__NO_SUBJECT_FAILS, &a.ruling),
               SPILE_ALLOWED));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)4));
  cr_assert(eq(sz, spile_scripted_store_call(a.store, 2)->n, (size_t)2));
  cr_assert(eq(str, (char *)spile_scripted_store_call(a.store, 3)->items[0].name, "always#next"));
  asking_finish(&a);
}

Test(ask, denies_all_when_one_limit_denies) {
  static const rig_limit limits[] = {{"1/s,capacity=60,name=a"}, {"1/s,capacity=5,name=b"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
  answer(&a, (int64_t[]){0, 5000}, 2);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_DENIED));
  cr_assert(eq(str, (char *)a.ruling.decision.name, "b"));
  cr_assert(eq(i64, a.ruling.decision.retry_after_ms, 1000));
  cr_assert(eq(int, a.ruling.each[0].outcome, SPILE_ALLOWED));
  cr_assert(eq(int, a.ruling.each[1].outcome, SPILE_DENIED));
  asking_finish(&a);
}

Test(ask, answers_words_without_the_store) {
  static const rig_limit none[] = {{"1/s"}};
  static const struct {
    spile_route_word word;
    size_t n;
    int result;
    size_t calls;
  } rows[] = {{SPILE_ROUTE_BLOCKED, 0, SPILE_NEVER, 0},
              {SPILE_ROUTE_BLOCKED, 1, SPILE_NEVER, 0},
              {SPILE_ROUTE_UNLIMITED, 0, SPILE_ALLOWED, 0},
              /* A limit of every request still applies. */
              {SPILE_ROUTE_UNLIMITED, 1, SPILE_ALLOWED, 1}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    asking a;
    asking_start(&a, rows[i].word, none, rows[i].n);
    cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), rows[i].result));
    cr_assert(eq(int, a.ruling.decision.outcome, rows[i].result));
    cr_assert(eq(int, a.ruling.decision.decided_by, rows[i].calls > 0 ? SPILE_BY_STORE : SPILE_BY_LIMITS));
    cr_assert(eq(sz, spile_scripted_store_calls(a.store), rows[i].calls));
    if (rows[i].calls == 0) {
      cr_assert(eq(i64, a.ruling.decision.remaining, SPILE_UNKNOWN));
      cr_assert(eq(i64, a.ruling.decision.capacity, SPILE_UNKNOWN));
      cr_assert(eq(i64, a.ruling.decision.retry_after_ms, SPILE_UNKNOWN));
      cr_assert(eq(i64, a.ruling.decision.reset_after_ms, SPILE_UNKNOWN));
      cr_assert(eq(int, a.ruling.decision.store_error, SPILE_REASON_NONE));
    }
    asking_finish(&a);
  }
}

Test(ask, counts_takes_that_no_store_saw_and_no_peek) {
  asking a;
  asking_start(&a, SPILE_ROUTE_BLOCKED, NULL, 0);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_NEVER));
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_PEEK,
                                 SPILE__NO_SUBJECT_FAILS, &a.ruling),
               SPILE_NEVER));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(a.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.never, 1));
  cr_assert(eq(u64, counters.allowed, 0));
  asking_finish(&a);
}

Test(ask, finds_the_entry_and_lets_a_skipped_request_by) {
  static const rig_limit limits[] = {{"1/s"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 1);
  rig_route *fallback = rig_route_new("default", SPILE_ROUTE_BLOCKED, NULL, 0);
  rig_route *routes[] = {a.route, fallback};
  spile_limits *limits_in_force = rig_in_force(routes, 2);
  cr_assert(eq(int,
               spile_limits_take(a.limiter, limits_in_force, "POST", "/search", &a.caller, SPILE_ROUTE_COST, &a.ruling),
               SPILE_ALLOWED));
  cr_assert(a.ruling.route == &a.route->route);
  cr_assert(a.ruling.skipped == false);
  cr_assert(eq(int, spile_limits_peek(a.limiter, limits_in_force, "GET", "/x", &a.caller, SPILE_ROUTE_COST, &a.ruling),
               SPILE_NEVER));
  cr_assert(a.ruling.route == &fallback->route);
  cr_assert(eq(int,
               spile_limits_take(a.limiter, limits_in_force, "GET", "/skipped", &a.caller, SPILE_ROUTE_COST, &a.ruling),
               SPILE_ALLOWED));
  cr_assert(a.ruling.skipped);
  cr_assert(eq(int, a.ruling.decision.decided_by, SPILE_BY_LIMITS));
  cr_assert(a.ruling.route == &fallback->route);
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)1));
  rig_route_free(fallback);
  asking_finish(&a);
}

Test(ask, peeks_without_taking) {
  static const rig_limit limits[] = {{"1/s,name=a"}, {"1/s,name=b", .shadow = true}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_PEEK,
                                 SPILE__NO_SUBJECT_FAILS, &a.ruling),
               SPILE_ALLOWED));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)2));
  for (size_t i = 0; i < 2; i++)
    cr_assert(eq(int, (int)spile_scripted_store_call(a.store, i)->verb, SPILE_VERB_PEEK));
  asking_finish(&a);
}

/* ---- Shadow limits ---- */

static const rig_limit shadowed[] = {{"1/s,capacity=60,name=a"},
                                     {"1/s,capacity=5,name=b", .cost = 2, .shadow = true},
                                     {"1/s,capacity=6,name=c", .shadow = true, .chain = "tenant"}};

Test(ask, asks_shadow_limits_alone_afterwards_and_does_not_enforce_them) {
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, shadowed, 3);
  answer(&a, (int64_t[]){0}, 1);
  answer(&a, (int64_t[]){5000}, 1);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)a.ruling.decision.name, "a"));
  cr_assert(eq(sz, a.ruling.n, (size_t)1));
  cr_assert(eq(sz, a.ruling.n_shadow, (size_t)2));
  cr_assert(eq(int, a.ruling.each[1].outcome, SPILE_DENIED));
  cr_assert(eq(int, a.ruling.each[2].outcome, SPILE_ALLOWED));
  cr_assert(a.ruling.limits[1] == a.route->limits[1].limit);
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)3));
  const spile_scripted_call *second = spile_scripted_store_call(a.store, 1);
  cr_assert(eq(sz, second->n, (size_t)1));
  cr_assert(eq(i64, second->items[0].cost, 2));
  cr_assert(eq(str, (char *)spile_scripted_store_call(a.store, 2)->items[0].key, "tenant=acme"));
  asking_finish(&a);
}

Test(ask, asks_no_shadow_limit_when_the_others_deny_or_the_store_is_down) {
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, shadowed, 3);
  answer(&a, (int64_t[]){60000}, 1);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_DENIED));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)1));
  cr_assert(eq(sz, a.ruling.n_shadow, (size_t)0));
  asking_finish(&a);

  static const rig_limit open[] = {{"1/s,name=a,on_store_error=open"}, {"1/s,name=b", .shadow = true}};
  asking_start(&a, SPILE_ROUTE_LIMITED, open, 2);
  cr_assert(spile_scripted_store_answer(a.store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(int, a.ruling.decision.decided_by, SPILE_BY_POLICY));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)1));
  asking_finish(&a);
}

Test(ask, waits_for_a_store_that_fails_a_shadow_limit_only_once) {
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, shadowed, 3);
  answer(&a, (int64_t[]){0}, 1);
  cr_assert(spile_scripted_store_answer(a.store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)2));
  cr_assert(eq(sz, a.ruling.n_shadow, (size_t)1));
  asking_finish(&a);
}

Test(ask, an_entry_of_shadow_limits_alone_lets_all_by) {
  static const rig_limit limits[] = {{"1/s,capacity=5,name=b", .shadow = true},
                                     {"1/s,name=c", .shadow = true, .chain = "user"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
  answer(&a, (int64_t[]){5000}, 1);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(int, a.ruling.decision.decided_by, SPILE_BY_LIMITS));
  cr_assert(eq(sz, a.ruling.n, (size_t)0));
  /* The one without a subject is left out. */
  cr_assert(eq(sz, a.ruling.n_shadow, (size_t)1));
  asking_finish(&a);
}

/* ---- No subject ---- */

Test(ask, HTTP_07_names_the_strictest_limit_without_a_subject_and_asks_nothing) {
  static const rig_limit limits[] = {{"1/s,name=a,on_store_error=open", .chain = "user"},
                                     {"1/s,name=b,on_store_error=closed", .chain = "user"},
                                     {"1/s,name=c,on_store_error=open", .chain = "ip"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 3);
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ENOSUBJECT));
  cr_assert(eq(int, a.ruling.decision.outcome, 0));
  cr_assert(eq(int, a.ruling.decision.decided_by, SPILE_BY_NOBODY));
  cr_assert(eq(str, (char *)a.ruling.decision.name, "b"));
  cr_assert(a.ruling.decision.detail[0] != '\0');
  cr_assert(eq(sz, a.ruling.n, (size_t)0));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)0));
  asking_finish(&a);
}

Test(ask, HTTP_07_takes_fail_for_stricter_than_closed_and_closed_than_open) {
  static const char *const texts[] = {"1/s,name=o,on_store_error=open", "1/s,name=c,on_store_error=closed",
                                      "1/s,name=f,on_store_error=fail"};
  for (int first = 0; first < 3; first++) {
    for (int second = 0; second < 3; second++) {
      if (first == second)
        continue;
      rig_limit limits[] = {{texts[first], .chain = "user"}, {texts[second], .chain = "api_key"}};
      asking a;
      asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
      cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ENOSUBJECT));
      cr_assert(eq(int, a.ruling.decision.name[0], "ocf"[first > second ? first : second]));
      asking_finish(&a);
    }
  }
}

Test(ask, HTTP_07_leaves_an_open_limit_out_and_still_asks_the_others) {
  static const rig_limit limits[] = {{"1/s,name=a,on_store_error=open", .chain = "user"},
                                     {"1/s,capacity=60,name=b,on_store_error=closed", .chain = "ip"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
  answer(&a, (int64_t[]){60000}, 1);
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_TAKE,
                                 SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
               SPILE_DENIED));
  cr_assert(eq(str, (char *)a.ruling.decision.name, "b"));
  cr_assert(eq(sz, a.ruling.n, (size_t)1));
  cr_assert(eq(sz, a.ruling.n_waived, (size_t)1));
  asking_finish(&a);

  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_TAKE,
                                 SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
               SPILE_ALLOWED));
  cr_assert(eq(int, a.ruling.decision.decided_by, SPILE_BY_POLICY));
  cr_assert(eq(int, a.ruling.decision.store_error, SPILE_REASON_SUBJECT));
  cr_assert(strstr(a.ruling.decision.detail, "left out") != NULL);
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)0));
  asking_finish(&a);
}

/* The row of a limit's name. */
typedef struct found_row {
  const char *name;
  spile_metrics row;
} found_row;

static bool row_keep(void *user, const spile_metrics *row) {
  found_row *found = user;
  if (strcmp(row->limit, found->name) == 0)
    found->row = *row;
  return true;
}

Test(ask, HTTP_07_counts_what_has_no_subject_with_a_reason_of_its_own) {
  static const char *const texts[] = {"1/s,name=o,on_store_error=open", "1/s,name=c,on_store_error=closed",
                                      "1/s,name=f,on_store_error=fail"};
  static const int results[] = {SPILE_ALLOWED, SPILE_DENIED, SPILE_ENOSUBJECT};
  for (int i = 0; i < 3; i++) {
    rig_limit limits[] = {{texts[i], .chain = "user"}, {"1/s,name=other", .chain = "tenant"}};
    for (size_t n = 1; n <= 2; n++) {
      asking a;
      asking_start(&a, SPILE_ROUTE_LIMITED, limits, n);
      if (n == 2)
        answer(&a, (int64_t[]){0}, 1);
      cr_assert(eq(int,
                   spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_TAKE,
                                     SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
                   results[i]));
      /* A limit that was left out while another one was asked is counted under its name alone. */
      uint64_t asked = n == 2 && i == 0 ? 1 : 0;
      cr_assert(eq(int, a.ruling.decision.store_error, asked > 0 ? SPILE_REASON_NONE : SPILE_REASON_SUBJECT));
      spile_counters counters = SPILE_COUNTERS_INIT;
      cr_assert(eq(int, spile_count(a.limiter, &counters), SPILE_OK));
      cr_assert(eq(u64, counters.store_errors[SPILE_REASON_SUBJECT], 1 - asked));
      cr_assert(eq(u64, counters.policy_open + counters.policy_closed + counters.unavailable, 1 - asked));
      found_row found = {.name = (const char *[]){"o", "c", "f"}[i]};
      cr_assert(eq(int, spile_metrics_each(a.limiter, row_keep, &found), SPILE_OK));
      const uint64_t counted[] = {found.row.policy_open[SPILE_REASON_SUBJECT],
                                  found.row.policy_closed[SPILE_REASON_SUBJECT],
                                  found.row.unavailable[SPILE_REASON_SUBJECT]};
      for (int j = 0; j < 3; j++)
        cr_assert(eq(u64, counted[j], i == j ? 1 : 0));
      asking_finish(&a);
    }
  }
}

Test(ask, HTTP_07_tells_the_hook_and_the_log_what_a_closed_limit_denies_for_want_of_a_subject) {
  static const rig_limit limits[] = {{"1/s,name=open,on_store_error=open", .chain = "user"},
                                     {"1/s,name=shut,on_store_error=closed", .chain = "user"},
                                     {"1/s,name=other", .chain = "tenant"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 3);
  denied = (denied_told){.subject_hash = 1};
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_TAKE,
                                 SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
               SPILE_DENIED));
  cr_assert(eq(sz, denied.count, (size_t)1));
  cr_assert(eq(str, denied.limit, "shut"));
  cr_assert(eq(str, denied.route, "POST /search"));
  cr_assert(eq(u64, denied.subject_hash, 0));
  cr_assert(eq(int, denied.decision.outcome, SPILE_DENIED));
  cr_assert(eq(int, denied.decision.decided_by, SPILE_BY_POLICY));
  cr_assert(eq(int, denied.decision.store_error, SPILE_REASON_SUBJECT));
  cr_assert(
      eq(str, denied.line, "denied: subject unknown, limit \"shut\", route \"POST /search\", by policy (subject)"));
  /* A peek is told to nobody, nor is what fails or passes. */
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_PEEK,
                                 SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
               SPILE_DENIED));
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ENOSUBJECT));
  a.caller.user = "alice";
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(sz, denied.count, (size_t)1));
  asking_finish(&a);
}

Test(ask, tells_the_hook_and_the_log_of_what_is_blocked) {
  asking a;
  asking_start(&a, SPILE_ROUTE_BLOCKED, NULL, 0);
  denied = (denied_told){.subject_hash = 1};
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_NEVER));
  cr_assert(eq(sz, denied.count, (size_t)1));
  cr_assert(eq(str, denied.limit, "POST /search"));
  cr_assert(eq(str, denied.route, "POST /search"));
  cr_assert(eq(u64, denied.subject_hash, 0));
  cr_assert(eq(int, denied.decision.outcome, SPILE_NEVER));
  cr_assert(eq(int, denied.decision.decided_by, SPILE_BY_LIMITS));
  cr_assert(eq(str, denied.line, "never: subject unknown, limit \"POST /search\", route \"POST /search\", by limits"));
  /* Only a take is told. */
  static const spile_verb others[] = {SPILE_VERB_PEEK, SPILE_VERB_CHARGE, SPILE_VERB_REFUND};
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
    cr_assert(eq(int,
                 spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, others[i],
                                   SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
                 SPILE_NEVER));
  cr_assert(eq(sz, denied.count, (size_t)1));
  asking_finish(&a);
}

Test(ask, a_hash_without_a_secret_is_an_error_whatever_the_policy) {
  static const rig_limit limits[] = {{"1/s,name=a,on_store_error=open", .chain = "api_key,ip"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 1);
  a.caller.api_key = "k";
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, SPILE_ROUTE_COST, SPILE_VERB_TAKE,
                                 SPILE__NO_SUBJECT_BY_POLICY, &a.ruling),
               SPILE_ECONFIG));
  cr_assert(strstr(a.ruling.decision.detail, "secret_file") != NULL, "%s", a.ruling.decision.detail);
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)0));
  asking_finish(&a);
}

/* ---- Bounds ---- */

static const char *long_header(void *user, const char *name) {
  (void)user;
  /* 4,000 bytes, of which the last is the header's. */
  static char values[SPILE_ROUTE_LIMITS_MAX][4001];
  size_t which = (size_t)(name[0] - 'a');
  memset(values[which], 'v', 4000);
  values[which][3999] = name[0];
  return values[which];
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_KIB 1024 /* instrumented frames are larger */
#else
#define STACK_KIB 48
#endif

static void *take_in_thread(void *user) {
  asking *a = user;
  a->caller.header = long_header;
  a->ruling.decision.outcome = asking_take(a, SPILE_ROUTE_COST);
  return NULL;
}

Test(ask, carries_the_longest_keys_of_all_limits_on_the_stack_it_promises) {
  rig_limit limits[SPILE_ROUTE_LIMITS_MAX];
  char chains[SPILE_ROUTE_LIMITS_MAX][16];
  char texts[SPILE_ROUTE_LIMITS_MAX][32];
  for (int i = 0; i < SPILE_ROUTE_LIMITS_MAX; i++) {
    (void)snprintf(chains[i], sizeof(chains[i]), "header:%c", 'a' + i);
    (void)snprintf(texts[i], sizeof(texts[i]), "1/s,name=%d", i);
    limits[i] = (rig_limit){texts[i], .chain = chains[i]};
  }
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, SPILE_ROUTE_LIMITS_MAX);
  pthread_attr_t attributes;
  pthread_t thread;
  cr_assert(eq(int, pthread_attr_init(&attributes), 0));
  cr_assert(eq(int, pthread_attr_setstacksize(&attributes, STACK_KIB * 1024), 0));
  cr_assert(eq(int, pthread_create(&thread, &attributes, take_in_thread, &a), 0));
  cr_assert(eq(int, pthread_join(thread, NULL), 0));
  cr_assert(eq(int, pthread_attr_destroy(&attributes), 0));

  cr_assert(eq(int, a.ruling.decision.outcome, SPILE_ALLOWED));
  const spile_scripted_call *call = spile_scripted_store_call(a.store, 0);
  cr_assert(eq(sz, call->n, (size_t)SPILE_ROUTE_LIMITS_MAX));
  for (int i = 0; i < SPILE_ROUTE_LIMITS_MAX; i++) {
    cr_assert(eq(sz, call->items[i].key_len, (size_t)4009));
    cr_assert(eq(int, call->items[i].key[4008], 'a' + i));
    cr_assert(eq(int, call->items[i].key[7], 'a' + i));
  }
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)1));
  asking_finish(&a);
}

/* ---- Long keys ---- */

/* The last character of both names the header, so that long keys differ in what is cut off first. */
static const rig_limit long_limits[] = {{"5/s,name=a,on_store_error=open", .chain = "header:a"},
                                        {"5/s,name=b,on_store_error=open", .chain = "tenant"},
                                        {"5/s,name=c", .chain = "header:c", .shadow = true}};

static spile_metrics metrics_of(const asking *a, const char *limit) {
  found_row found = {.name = limit};
  cr_assert(eq(int, spile_metrics_each(a->limiter, row_keep, &found), SPILE_OK));
  return found.row;
}

Test(ask, takes_memory_for_long_keys_alone_and_gives_it_back) {
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, long_limits, 3);
  a.caller.header = long_header;
  static char tenant[1016 + 1]; /* "tenant=" and this are 1,023 bytes, so the header's key does not fit beside it */
  memset(tenant, 't', 1016);
  a.caller.tenant = tenant;
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  size_t asked = memory.asked;
  size_t held = memory.held;
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  /* Once for those in force and once for the shadow limit. */
  cr_assert(eq(sz, memory.asked, asked + 2));
  cr_assert(eq(sz, memory.held, held));
  const spile_scripted_call *call = spile_scripted_store_call(a.store, 2);
  cr_assert(eq(sz, call->n, (size_t)2));
  cr_assert(eq(sz, call->items[0].key_len, (size_t)4009));
  cr_assert(eq(int, call->items[0].key[4008], 'a'));
  cr_assert(eq(sz, call->items[1].key_len, (size_t)1023));
  call = spile_scripted_store_call(a.store, 3);
  cr_assert(eq(sz, call->items[0].key_len, (size_t)4009));
  cr_assert(eq(int, call->items[0].key[4008], 'c'));
  asking_finish(&a);
}

Test(ask, takes_no_memory_for_keys_of_1024_bytes_together) {
  static const rig_limit limits[] = {{"5/s,name=a", .chain = "user"}, {"5/s,name=b", .chain = "tenant"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
  static char user[502 + 2];
  static char tenant[510 + 1];
  memset(user, 'u', 502);   /* "user=": 507 */
  memset(tenant, 't', 510); /* "tenant=": 517 */
  a.caller.user = user;
  a.caller.tenant = tenant;
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  size_t asked = memory.asked;
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(sz, memory.asked, asked));
  user[502] = 'u';
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(sz, memory.asked, asked + 1));
  asking_finish(&a);
}

Test(ask, lets_the_policies_decide_when_there_is_no_memory_for_the_keys) {
  static const struct {
    const char *limits[2];
    int result;
    int decided_by;
    const char *name;
  } rows[] = {
      {{"5/s,name=a,on_store_error=open", "5/s,name=b,on_store_error=open"}, SPILE_ALLOWED, SPILE_BY_POLICY, "a"},
      {{"5/s,name=a,on_store_error=open", "5/s,name=b,on_store_error=closed"}, SPILE_DENIED, SPILE_BY_POLICY, "b"},
      {{"5/s,name=a,on_store_error=fail", "5/s,name=b,on_store_error=closed"}, SPILE_ENOMEM, SPILE_BY_NOBODY, "a"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    const rig_limit limits[] = {{rows[i].limits[0], .chain = "header:a"},
                                {rows[i].limits[1], .chain = "tenant"},
                                {"5/s,name=c", .chain = "header:c", .shadow = true}};
    asking a;
    asking_start(&a, SPILE_ROUTE_LIMITED, limits, 3);
    a.caller.header = long_header;
    denied = (denied_told){.subject_hash = 1};
    /* The rows of the metrics are made while there is memory. */
    cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
    memory.refused = true;
    int result = asking_take(&a, SPILE_ROUTE_COST);
    memory.refused = false;
    cr_assert(eq(int, result, rows[i].result));
    cr_assert(eq(int, a.ruling.decision.decided_by, rows[i].decided_by));
    cr_assert(eq(int, a.ruling.decision.store_error, SPILE_REASON_MEMORY));
    cr_assert(eq(str, (char *)(uintptr_t)a.ruling.decision.name, (char *)(uintptr_t)rows[i].name));
    cr_assert(eq(str, a.ruling.decision.detail, "out of memory for the keys of a request"));
    cr_assert(eq(sz, a.ruling.n, (size_t)2));
    cr_assert(eq(sz, a.ruling.n_shadow, (size_t)0));
    /* Two calls of the take before. */
    cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)2));
    spile_metrics row = metrics_of(&a, "a");
    cr_assert(eq(u64, row.policy_open[SPILE_REASON_MEMORY] + row.unavailable[SPILE_REASON_MEMORY], 1));
    spile_counters counters = SPILE_COUNTERS_INIT;
    cr_assert(eq(int, spile_count(a.limiter, &counters), SPILE_OK));
    cr_assert(eq(u64, counters.store_errors[SPILE_REASON_MEMORY], 1));
    cr_assert(eq(sz, denied.count, (size_t)(result == SPILE_DENIED)));
    /* Nobody's key was hashed. */
    cr_assert(eq(u64, denied.subject_hash, result == SPILE_DENIED ? 0 : 1));
    asking_finish(&a);
  }
}

Test(ask, says_never_and_settles_nothing_without_memory_for_the_keys) {
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, long_limits, 3);
  a.caller.header = long_header;
  memory.refused = true;
  cr_assert(eq(int, asking_take(&a, 6), SPILE_NEVER));
  cr_assert(eq(int,
               spile__limits_ask(a.limiter, &a.route->route, &a.caller, 1, SPILE_VERB_CHARGE, SPILE__NO_SUBJECT_FAILS,
                                 &a.ruling),
               SPILE_ENOMEM));
  memory.refused = false;
  cr_assert(eq(int, a.ruling.decision.store_error, SPILE_REASON_MEMORY));
  cr_assert(eq(sz, spile_scripted_store_calls(a.store), (size_t)0));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(a.limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.unsettled, 1));
  asking_finish(&a);
}

Test(ask, counts_a_shadow_limit_as_failed_without_memory_for_its_key) {
  static const rig_limit limits[] = {{"5/s,name=b", .chain = "tenant"},
                                     {"5/s,name=c", .chain = "header:c", .shadow = true}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 2);
  a.caller.header = long_header;
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  memory.refused = true;
  cr_assert(eq(int, asking_take(&a, SPILE_ROUTE_COST), SPILE_ALLOWED));
  memory.refused = false;
  cr_assert(eq(int, a.ruling.decision.decided_by, SPILE_BY_STORE));
  spile_metrics row = metrics_of(&a, "c");
  cr_assert(eq(u64, row.shadow_allowed, 1));
  cr_assert(eq(u64, row.shadow_failed, 1));
  asking_finish(&a);
}

Test(ask, refuses_arguments_that_mean_nothing) {
  static const rig_limit limits[] = {{"1/s"}};
  asking a;
  asking_start(&a, SPILE_ROUTE_LIMITED, limits, 1);
  rig_route *routes[] = {a.route};
  spile_limits *force = rig_in_force(routes, 1);
  cr_assert(eq(int, spile_limits_take(a.limiter, force, "GET", "/", &a.caller, -2, &a.ruling), SPILE_EINVAL));
  cr_assert(eq(int, a.ruling.decision.outcome, 0));
  cr_assert(eq(int, spile_limits_take(a.limiter, force, "GET", "/", &a.caller, INT64_MAX, &a.ruling), SPILE_NEVER));
  cr_assert(eq(int, spile_limits_take(NULL, force, "GET", "/", &a.caller, 1, &a.ruling), SPILE_EINVAL));
  cr_assert(eq(int, spile_limits_take(a.limiter, NULL, "GET", "/", &a.caller, 1, &a.ruling), SPILE_EINVAL));
  cr_assert(eq(int, spile_limits_take(a.limiter, force, "GET", NULL, &a.caller, 1, &a.ruling), SPILE_EINVAL));
  cr_assert(eq(int, spile_limits_take(a.limiter, force, "GET", "/", NULL, 1, &a.ruling), SPILE_EINVAL));
  cr_assert(eq(int, spile_limits_take(a.limiter, force, "GET", "/", &a.caller, 1, NULL), SPILE_EINVAL));
  spile_caller empty = {0};
  cr_assert(eq(int, spile_limits_take(a.limiter, force, "GET", "/", &empty, 1, &a.ruling), SPILE_EINVAL));
  asking_finish(&a);
}

Test(ask, refuses_a_forked_child_also_where_no_store_is_asked) {
  asking a;
  asking_start(&a, SPILE_ROUTE_BLOCKED, NULL, 0);
  pid_t child = fork();
  cr_assert(le(int, 0, child));
  if (child == 0)
    _exit(asking_take(&a, SPILE_ROUTE_COST) == SPILE_EFORK ? 0 : 1);
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  cr_assert(eq(int, status, 0));
  asking_finish(&a);
}
