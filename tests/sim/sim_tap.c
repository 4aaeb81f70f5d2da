/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands between a client's breaker and its store, and sees what is asked there.
 *
 * Where charges failed, the breaker asks a take as a peek first. That peek is a call of its own for the judges: it is
 * run, answered or lost by itself, and what it was told is evidence.
 */
#include <string.h>

#include "core/decide.h"
#include "sim.h"

static sim_tap *tap_of(spile_store *store) {
  return (sim_tap *)(void *)store;
}

static bool call_charged(const spile_call *call) {
  int64_t cost = 0;
  for (size_t i = 0; i < call->n; i++)
    cost |= call->items[i].cost;
  return cost > 0 && spile__items_fit(call->items, call->n);
}

/* The take `outer` as a peek. */
static sim_call *call_begin_first(sim *s, const sim_call *outer) {
  sim_call *first = sim_call_new(s, SIM_PEEK);
  first->n = outer->n;
  memcpy(first->items, outer->items, sizeof(first->items));
  first->running = true;
  s->world.call = first;
  return first;
}

static void call_end_first(sim *s, sim_call *outer, sim_call *first, const spile_call *call, int result) {
  first->running = false;
  s->world.call = outer;
  outer->served_ms = first->served_ms;
  outer->epoch = first->epoch;
  if (result != SPILE_OK) {
    sim_worlds_unanswered(&s->oracles, first, sim_reason_uncharged(call->error->reason) && !first->lied);
    return;
  }
  if (!sim_answer_is_own(s, first)) {
    outer->lied = true;
    sim_worlds_unanswered(&s->oracles, first, false);
    return;
  }
  spile_decision decision;
  spile_decision each[SIM_ITEMS_MAX];
  (void)spile__decide(call->items, call->n, false, &decision, each);
  sim_answer told[SIM_ITEMS_MAX];
  for (size_t i = 0; i < call->n; i++)
    told[i] = (sim_answer){each[i].outcome, each[i].remaining, each[i].retry_after_ms, each[i].reset_after_ms};
  sim_worlds_answered(&s->oracles, first, told);
}

static int tap_decide(spile_store *store, spile_call *call) {
  sim_tap *tap = tap_of(store);
  sim *s = tap->s;
  sim_call *outer = s->world.call;
  bool take = call->verb == SPILE_VERB_TAKE;
  sim_call *first = !take && outer->verb == SIM_TAKE ? call_begin_first(s, outer) : NULL;
  sim_ask ask = {.start_ms = sim_world_now_ms(&s->world), .take = take};
  int result = tap->inner->ops->decide(tap->inner, call);
  ask.end_ms = sim_world_now_ms(&s->world);
  ask.answered = result == SPILE_OK;
  ask.charged = result == SPILE_OK && call_charged(call);
  ask.corrects = take && tap->n_asks > 0 && !tap->asks[0].charged;
  ask.reason = result == SPILE_EUNAVAILABLE ? call->error->reason : SPILE_REASON_MEMORY;
  if (first != NULL)
    call_end_first(s, outer, first, call, result);
  if (tap->n_asks == SIM_ASKS_MAX)
    sim_oracles_fail(&s->oracles, "call %llu asked the store a third time", (unsigned long long)outer->number);
  else
    tap->asks[tap->n_asks++] = ask;
  return result;
}

static int tap_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  spile_store *inner = tap_of(store)->inner;
  return inner->ops->clear(inner, item, deadline_ms, error);
}

static void tap_close(spile_store *store, bool forked) {
  spile_store *inner = tap_of(store)->inner;
  inner->ops->close(inner, forked);
}

static const spile_store_ops tap_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "redis",
    .timeout_ms = 25,
    .decide = tap_decide,
    .clear = tap_clear,
    .close = tap_close,
};

spile_store *sim_tap_init(sim_tap *tap, sim *s, spile_store *inner) {
  *tap = (sim_tap){.base = {&tap_ops}, .inner = inner, .s = s};
  return &tap->base;
}
