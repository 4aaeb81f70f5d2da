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

/* Whether a call that was answered, asked as `verb`, changes a bucket by what it pays or gives back. */
static bool call_charges(const spile_call *call, spile_verb verb) {
  spile_call asked = *call;
  asked.verb = verb;
  spile__effect effect = spile__call_effect(&asked);
  bool changes = false;
  for (size_t i = 0; i < call->n && verb != SPILE_VERB_PEEK; i++) {
    spile_reading after;
    changes = changes || spile__item_apply(&asked, &call->items[i], &effect, &after);
  }
  return changes;
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

static void call_end_first(sim_tap *tap, sim_call *outer, sim_call *first, const spile_call *call, int result) {
  sim *s = tap->s;
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
  tap->first = sim_answer_of(&decision);
  sim_answer told[SIM_ITEMS_MAX];
  for (size_t i = 0; i < call->n; i++)
    told[i] = sim_answer_of(&each[i]);
  sim_worlds_answered(&s->oracles, first, told);
}

/* What a limiter asks for. */
static spile_verb verb_of(sim_verb verb) {
  switch ((int)verb) {
  case SIM_TAKE:
    return SPILE_VERB_TAKE;
  case SIM_CHARGE:
    return SPILE_VERB_CHARGE;
  case SIM_REFUND:
    return SPILE_VERB_REFUND;
  case SIM_TAKE_UP_TO:
    return SPILE_VERB_TAKE_UP_TO;
  default:
    return SPILE_VERB_PEEK;
  }
}

/* A store hands on no reading that cannot be: from here on it is computed with. */
static bool call_is_possible(const spile_call *call) {
  for (size_t i = 0; i < call->n; i++) {
    if (!spile__item_valid(&call->items[i], call->verb))
      return false;
  }
  return true;
}

static int tap_decide(spile_store *store, spile_call *call) {
  sim_tap *tap = tap_of(store);
  sim *s = tap->s;
  sim_call *outer = s->world.call;
  bool take = call->verb != SPILE_VERB_PEEK;
  sim_call *first = !take && sim_verb_takes(outer->verb) ? call_begin_first(s, outer) : NULL;
  sim_ask ask = {.start_ms = sim_world_now_ms(&s->world), .take = take};
  if (first == NULL && call->verb != verb_of(outer->verb))
    sim_oracles_fail(&s->oracles, "call %llu asks the store for something else", (unsigned long long)outer->number);
  int result = tap->inner->ops->decide(tap->inner, call);
  if (result == SPILE_OK && !call_is_possible(call)) {
    sim_oracles_fail(&s->oracles, "call %llu read what cannot be", (unsigned long long)outer->number);
    result = SPILE_EUNAVAILABLE;
  }
  ask.end_ms = sim_world_now_ms(&s->world);
  ask.answered = result == SPILE_OK;
  ask.charged = result == SPILE_OK && call_charges(call, verb_of(outer->verb));
  ask.corrects = take && tap->n_asks > 0 && !tap->asks[0].charged;
  ask.reason = result == SPILE_EUNAVAILABLE ? call->error->reason : SPILE_REASON_MEMORY;
  if (first != NULL)
    call_end_first(tap, outer, first, call, result);
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
