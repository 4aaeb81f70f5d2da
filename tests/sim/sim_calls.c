/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call is made as a program makes it, and what comes back is held against what really happened and against what the
 * judges remember.
 */
#include <inttypes.h>
#include <string.h>

#include "sim.h"

/* ---- What a call was told ---- */

static void digest_add(sim *s, int64_t number) {
  s->report->digest = (s->report->digest ^ (uint64_t)number) * UINT64_C(0x9e3779b97f4a7c15);
  s->report->digest ^= s->report->digest >> 29;
}

const sim_limit *sim_item_limit(const sim *s, const sim_item *item) {
  const sim_target *target = &s->targets[item->bucket];
  return &target->variants[target->variant];
}

bool sim_reason_uncharged(int reason) {
  switch (reason) {
  case SPILE_REASON_BUSY:
  case SPILE_REASON_CONNECT:
  case SPILE_REASON_REFUSED:
  case SPILE_REASON_READONLY:
  case SPILE_REASON_LOADING:
  case SPILE_REASON_OOM:
  case SPILE_REASON_AUTH:
  case SPILE_REASON_FOREIGN:
  case SPILE_REASON_VERSION:
  case SPILE_REASON_RESOLVE:
  case SPILE_REASON_BREAKER:
  case SPILE_REASON_MEMORY:
  case SPILE_REASON_FORMAT:
  case SPILE_REASON_LOCKED:
    return true;
  default:
    return false;
  }
}

static bool decision_numbers_unknown(const spile_decision *decision) {
  return decision->remaining == SPILE_UNKNOWN && decision->retry_after_ms == SPILE_UNKNOWN &&
         decision->reset_after_ms == SPILE_UNKNOWN;
}

/* The result that on_store_error, or the verb itself, makes of a failure. `by`: out, who decided */
static int policy_result(const sim *s, const sim_client *client, const sim_call *call, int *by) {
  bool never = false;
  bool fail = sim_verb_settles(call->asked);
  bool closed = false;
  for (size_t i = 0; i < call->n; i++) {
    int policy = client->options.on_store_error != 0 ? client->options.on_store_error
                                                     : sim_item_limit(s, &call->items[i])->on_store_error;
    never = never || (!sim_verb_settles(call->asked) && call->items[i].cost > call->items[i].limit.capacity);
    fail = fail || policy == SPILE_ON_STORE_ERROR_DEFAULT || policy == SPILE_ON_STORE_ERROR_FAIL;
    closed = closed || policy == SPILE_ON_STORE_ERROR_CLOSED;
  }
  *by = never ? SPILE_BY_LIMITS : fail ? SPILE_BY_NOBODY : SPILE_BY_POLICY;
  if (never)
    return SPILE_NEVER;
  if (fail)
    return s->decision.store_error == SPILE_REASON_MEMORY ? SPILE_ENOMEM : SPILE_EUNAVAILABLE;
  return closed ? SPILE_DENIED : SPILE_ALLOWED;
}

/* Whether the answer is what is made of a failure, and says so. */
static void policy_judge(sim *s, const sim_client *client, const sim_call *call, int result) {
  const spile_decision *decision = &s->decision;
  int by;
  int want = policy_result(s, client, call, &by);
  if (result != want || decision->outcome != (result > 0 ? result : 0) || decision->decided_by != by)
    sim_oracles_fail(&s->oracles, "unlabelled: result %d, outcome %d by %s, reason %s; the policy says %d by %s",
                     result, decision->outcome, spile_decided_by_name(decision->decided_by),
                     spile_reason_name(decision->store_error), want, spile_decided_by_name(by));
  if (decision->store_error == SPILE_REASON_NONE || decision->detail[0] == '\0')
    sim_oracles_fail(&s->oracles, "no answer and no reason: %s", decision->detail);
  if (!decision_numbers_unknown(decision))
    sim_oracles_fail(&s->oracles, "numbers that nobody knows: remaining %" PRId64 ", retry %" PRId64,
                     decision->remaining, decision->retry_after_ms);
  int64_t capacity = call->items[0].limit.capacity;
  int64_t granted = call->most < capacity ? call->most : capacity;
  if (decision->granted != (result == SPILE_ALLOWED ? granted : 0) || decision->uncharged != 0)
    sim_oracles_fail(&s->oracles, "the policy grants %" PRId64 " of %" PRId64, decision->granted, call->most);
}

/* What a call was told to have been charged of an item. */
static int64_t tokens_told(const sim *s, const sim_call *call, size_t i) {
  switch ((int)call->verb) {
  case SIM_TAKE:
    return call->items[i].cost;
  case SIM_TAKE_UP_TO:
    return s->decision.granted;
  case SIM_CHARGE:
    return call->items[i].cost - s->each[i].uncharged;
  default:
    return 0;
  }
}

static void charge_judge(sim *s, const sim_call *call) {
  if (!call->charged) {
    sim_oracles_fail(&s->oracles, "call %" PRIu64 " was allowed and is not charged", call->number);
    return;
  }
  if (call->epoch != s->server.epoch)
    return;
  for (size_t i = 0; i < call->n; i++) {
    int64_t tokens = tokens_told(s, call, i);
    if (tokens > 0)
      sim_meter_charge(&s->oracles, &call->items[i], tokens, call->verb != SIM_CHARGE, call->served_ms);
  }
}

bool sim_answer_is_own(sim *s, const sim_call *call) {
  if (call->served > 0 && call->foreign_taken == 0 && call->answer_len > 0 && call->answer_taken == call->answer_len)
    return true;
  if (call->lied)
    s->report->lies++;
  else
    sim_oracles_fail(&s->oracles,
                     "call %" PRIu64 " was answered by what was no answer to it: %zu of %zu bytes of its own and %zu "
                     "others, run %d times",
                     call->number, call->answer_taken, call->answer_len, call->foreign_taken, call->served);
  return false;
}

/* The call was answered by what was asked before anything was charged, which was judged then. */
static void first_judge(sim *s, const sim_client *client, const sim_call *call, int result) {
  s->report->answered++;
  s->report->first++;
  const sim_answer told = sim_answer_of(&s->decision);
  if (!call->lied && !sim_answer_same(&told, &client->tap.first))
    sim_oracles_fail(&s->oracles, "call %" PRIu64 " was told something else than what was read for it", call->number);
  int64_t cost = s->decision.granted;
  for (size_t i = 0; i < call->n; i++)
    cost |= call->items[i].cost;
  if (result != s->decision.outcome || (result == SPILE_ALLOWED && cost > 0))
    sim_oracles_fail(&s->oracles, "call %" PRIu64 " was only read, and answered with %d", call->number, result);
}

sim_answer sim_answer_of(const spile_decision *decision) {
  return (sim_answer){.outcome = decision->outcome,
                      .remaining = decision->remaining,
                      .retry_after_ms = decision->retry_after_ms,
                      .reset_after_ms = decision->reset_after_ms,
                      .grows_after_ms = decision->grows_after_ms,
                      .delay_ms = decision->delay_ms,
                      .granted = decision->granted,
                      .uncharged = decision->uncharged};
}

/* Whether `a` says more about a call than `b`, which was asked for before it. */
static bool answer_decides(const sim_answer *a, const sim_answer *b) {
  if (a->outcome != b->outcome)
    return a->outcome > b->outcome;
  if (a->outcome == SPILE_DENIED)
    return a->retry_after_ms > b->retry_after_ms;
  return a->outcome == SPILE_ALLOWED &&
         (a->remaining < b->remaining || (a->remaining == b->remaining && a->reset_after_ms > b->reset_after_ms));
}

/* Whether the decision is what the limits that are told say together. */
static void decision_judge(sim *s, const sim_call *call, const sim_answer *told) {
  size_t strictest = 0;
  int64_t delay_ms = told[0].delay_ms;
  int64_t uncharged = told[0].uncharged;
  for (size_t i = 1; i < call->n; i++) {
    strictest = answer_decides(&told[i], &told[strictest]) ? i : strictest;
    delay_ms = told[i].delay_ms > delay_ms ? told[i].delay_ms : delay_ms;
    uncharged = told[i].uncharged > uncharged ? told[i].uncharged : uncharged;
  }
  sim_answer want = told[strictest];
  want.delay_ms = want.outcome == SPILE_ALLOWED ? delay_ms : 0;
  want.uncharged = uncharged;
  sim_answer got = sim_answer_of(&s->decision);
  if (s->decision.index == strictest && sim_answer_same(&got, &want) &&
      s->decision.capacity == call->items[strictest].limit.capacity)
    return;
  char texts[2][160];
  (void)sim_answer_print(texts[0], sizeof(texts[0]), &got);
  (void)sim_answer_print(texts[1], sizeof(texts[1]), &want);
  sim_oracles_fail(&s->oracles, "call %" PRIu64 " was decided by its limit %u: %s; the strictest is %zu: %s",
                   call->number, s->decision.index, texts[0], strictest, texts[1]);
}

static void answer_judge(sim *s, const sim_call *call, int result) {
  s->report->answered++;
  if (result != s->decision.outcome || s->decision.store_error != SPILE_REASON_NONE)
    sim_oracles_fail(&s->oracles, "result %d and outcome %d", result, s->decision.outcome);
  if (!sim_answer_is_own(s, call)) {
    sim_worlds_unanswered(&s->oracles, call, false);
    return;
  }
  sim_answer told[SIM_ITEMS_MAX];
  for (size_t i = 0; i < call->n; i++)
    told[i] = sim_answer_of(&s->each[i]);
  decision_judge(s, call, told);
  sim_worlds_answered(&s->oracles, call, told);
  if (call->verb != SIM_PEEK && result == SPILE_ALLOWED)
    charge_judge(s, call);
}

static void failure_judge(sim *s, sim_call *call, int reason) {
  /* What a client was told by somebody who cannot be told from the server is not its fault. */
  bool uncharged = sim_reason_uncharged(reason) && !call->lied;
  s->report->uncharged += uncharged;
  s->report->unclear += !uncharged;
  s->report->refused += reason == SPILE_REASON_BREAKER;
  if (uncharged && call->charged)
    sim_oracles_fail(&s->oracles, "call %" PRIu64 " was told that nothing was charged (%s: %s), and it was",
                     call->number, spile_reason_name(reason), s->decision.detail);
  bool read = call->served > 0 && call->answer_len > 0 && call->answer_taken == call->answer_len;
  if (reason == SPILE_REASON_PROTOCOL && read && !call->odd_taken && call->foreign_taken == 0)
    sim_oracles_fail(&s->oracles, "call %" PRIu64 " refused what the server answered: %s", call->number,
                     s->decision.detail);
  call->told_uncharged = uncharged;
  sim_worlds_unanswered(&s->oracles, call, uncharged);
}

/* ---- Calls ---- */

sim_call *sim_call_new(sim *s, sim_verb verb) {
  sim_call *call;
  do
    call = &s->calls[s->next_call++ % SIM_CALLS];
  while (call->refs > 0);
  memset(call, 0, sizeof(*call));
  call->number = ++s->number;
  call->verb = call->asked = verb;
  return call;
}

static int call_ask_one(sim *s, const sim_client *client, const sim_call *call, const spile_request *one) {
  spile_limiter *limiter = client->limiter;
  spile_decision *decision = &s->decision;
  switch ((int)call->asked) {
  case SIM_TAKE:
    return spile_take(limiter, one->limit, one->key, one->key_len, one->cost, decision);
  case SIM_CHARGE:
    return spile_charge(limiter, one->limit, one->key, one->key_len, one->cost, decision);
  case SIM_REFUND:
    return spile_refund(limiter, one->limit, one->key, one->key_len, one->cost, decision);
  case SIM_TAKE_UP_TO:
    return spile_take_up_to(limiter, one->limit, one->key, one->key_len, one->cost, call->most, decision);
  default:
    return spile_peek(limiter, one->limit, one->key, one->key_len, one->cost, decision);
  }
}

static int call_ask(sim *s, const sim_client *client, const sim_call *call) {
  spile_request requests[SIM_ITEMS_MAX];
  for (size_t i = 0; i < call->n; i++) {
    const sim_target *target = &s->targets[call->items[i].bucket];
    requests[i] =
        (spile_request){sim_item_limit(s, &call->items[i])->limit, target->key, target->key_len, call->items[i].cost};
  }
  if (call->n == 1) {
    int result = call_ask_one(s, client, call, &requests[0]);
    s->each[0] = s->decision;
    return result;
  }
  switch ((int)call->asked) {
  case SIM_TAKE:
    return spile_take_all(client->limiter, requests, call->n, &s->decision, s->each);
  case SIM_CHARGE:
    return spile_charge_all(client->limiter, requests, call->n, &s->decision, s->each);
  case SIM_REFUND:
    return spile_refund_all(client->limiter, requests, call->n, &s->decision, s->each);
  default:
    return spile_peek_all(client->limiter, requests, call->n, &s->decision, s->each);
  }
}

static int64_t call_timeout_ms(const sim *s, const sim_client *client, const sim_call *call) {
  int64_t least_ms = INT64_MAX;
  for (size_t i = 0; i < call->n; i++) {
    int64_t own_ms = sim_item_limit(s, &call->items[i])->timeout_ms;
    own_ms = own_ms > 0 ? own_ms : client->options.timeout_ms;
    least_ms = own_ms < least_ms ? own_ms : least_ms;
  }
  return least_ms;
}

static void clear_run(sim *s, sim_client *client, sim_call *call) {
  const sim_target *target = &s->targets[call->items[0].bucket];
  spile_error error = {0};
  int result =
      spile_clear(client->limiter, sim_item_limit(s, &call->items[0])->limit, target->key, target->key_len, &error);
  call->running = false;
  const sim_answer done = {.outcome = SPILE_ALLOWED};
  bool own = result == SPILE_OK && sim_answer_is_own(s, call);
  if (own)
    sim_worlds_answered(&s->oracles, call, &done);
  else
    sim_worlds_unanswered(&s->oracles, call, false);
  s->last_result = result;
}

static void call_end(sim *s, sim_client *client, sim_call *call, int64_t start_ms) {
  int64_t late_ms = sim_world_now_ms(&s->world) - start_ms - call_timeout_ms(s, client, call);
  if (late_ms > 0)
    sim_oracles_fail(&s->oracles, "call %" PRIu64 " ended %" PRId64 " ms after its deadline", call->number, late_ms);
  digest_add(s, s->world.now_us);
  s->world.call = NULL;
  s->world.steer_us = 0;
  s->last = *call;
  s->report->takes++;
  if (!s->world.killed)
    return;
  s->world.killed = false;
  s->report->reopened++;
  sim_client_close(s, client);
  sim_client_open(s, client);
}

/* What the counters of the limiter should have counted. */
static void call_count(sim *s, sim_client *client, const sim_call *call, int result) {
  client->takes += sim_verb_takes(call->asked);
  client->failures += sim_verb_takes(call->asked) && s->decision.store_error != SPILE_REASON_NONE;
  client->charged += call->asked == SIM_CHARGE && result == SPILE_ALLOWED;
  client->refunded += call->asked == SIM_REFUND && result == SPILE_ALLOWED;
  client->unsettled += sim_verb_settles(call->asked) && result != SPILE_ALLOWED;
  if (s->decision.decided_by != SPILE_BY_STORE)
    return;
  s->report->asked[call->asked]++;
  for (size_t i = 0; i < call->n; i++)
    s->report->limited[call->items[i].limit.algorithm]++;
  s->report->uncharged_part += s->decision.uncharged > 0;
  s->report->granted += s->decision.granted > call->items[0].cost;
}

void sim_call_run(sim *s, sim_client *client, sim_call *call) {
  int64_t start_ms = sim_world_now_ms(&s->world);
  s->world.call = call;
  call->running = true;
  sim_tap *tap = &client->tap;
  tap->n_asks = 0;
  if (call->verb == SIM_CLEAR) {
    clear_run(s, client, call);
    call_end(s, client, call, start_ms);
    return;
  }
  int result = call_ask(s, client, call);
  call->running = false;
  int reason = s->decision.store_error;
  bool answered = s->decision.decided_by == SPILE_BY_STORE;
  bool only_read = sim_verb_takes(call->verb) && tap->n_asks > 0 && !tap->asks[tap->n_asks - 1].take;
  if (answered && only_read) {
    first_judge(s, client, call, result);
  } else if (answered) {
    answer_judge(s, call, result);
  } else {
    policy_judge(s, client, call, result);
    failure_judge(s, call, reason);
  }
  for (size_t i = 0; i < tap->n_asks; i++) {
    tap->asks[i].brief = call_timeout_ms(s, client, call) < client->options.timeout_ms;
    sim_watch_ask(&s->oracles, &client->watch, &tap->asks[i]);
  }
  if (reason == SPILE_REASON_BREAKER)
    sim_watch_refused(&s->oracles, &client->watch, sim_world_now_ms(&s->world), s->decision.detail, tap->n_asks,
                      sim_verb_takes(call->verb));
  digest_add(s, result);
  digest_add(s, reason);
  digest_add(s, s->decision.remaining);
  digest_add(s, s->decision.retry_after_ms);
  digest_add(s, s->decision.reset_after_ms);
  digest_add(s, s->decision.granted ^ s->decision.uncharged);
  call_count(s, client, call, result);
  s->last_result = result;
  call_end(s, client, call, start_ms);
}
