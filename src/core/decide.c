/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several limits are one question: may this go ahead under all of them? The answer is the strictest one, and so is what
 * is reported: never before denied before allowed, among denials the longest wait (when it ends all the others have
 * ended too), among allowances the smallest remaining, then the longest reset, then the first. The delay is the longest
 * of all, whichever decides: it has to suit every one.
 *
 * A charge and a refund ask nothing. What is reported of them is the state that they leave, under the limit that has
 * the least left, and the most tokens that any of them could not be charged.
 */
#include "core/decide.h"

#include <string.h>

#include "core/checked.h"

void spile__decision_clear(spile_decision *decision) {
  decision->outcome = 0;
  decision->decided_by = SPILE_BY_NOBODY;
  decision->store_error = SPILE_REASON_NONE;
  decision->index = 0;
  decision->name = NULL;
  decision->capacity = SPILE_UNKNOWN;
  decision->remaining = SPILE_UNKNOWN;
  decision->retry_after_ms = SPILE_UNKNOWN;
  decision->reset_after_ms = SPILE_UNKNOWN;
  decision->delay_ms = 0;
  decision->granted = 0;
  decision->uncharged = 0;
  decision->grows_after_ms = SPILE_UNKNOWN;
  /* The end of an empty text is enough: this runs on every take. */
  decision->detail[0] = '\0';
  memset(decision->reserved, 0, sizeof(decision->reserved));
}

bool spile__items_fit(const spile_item *items, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const spile_spec *spec = items[i].spec;
    /* Compared before anything multiplies it. */
    if (items[i].cost > spec->shape.capacity)
      return false;
    if (!spile__algorithm_get(spec->algorithm)->fits(&spec->shape, &items[i].reading, items[i].cost))
      return false;
  }
  return true;
}

/* Whether verdict `a` decides rather than `b`, which came first. */
static bool stricter(const spile__verdict *a, const spile__verdict *b) {
  if (a->outcome != b->outcome)
    return a->outcome > b->outcome;
  if (a->outcome == SPILE_DENIED)
    return a->retry_after_ms > b->retry_after_ms;
  if (a->outcome == SPILE_ALLOWED && a->remaining != b->remaining)
    return a->remaining < b->remaining;
  return a->outcome == SPILE_ALLOWED && a->reset_after_ms > b->reset_after_ms;
}

_Static_assert(SPILE_ALLOWED < SPILE_DENIED && SPILE_DENIED < SPILE_NEVER, "outcomes are ordered by strictness");

static void decision_set(spile_decision *decision, const spile_spec *spec, const spile__verdict *verdict,
                         size_t index) {
  spile__decision_clear(decision);
  decision->outcome = verdict->outcome;
  decision->decided_by = SPILE_BY_STORE;
  decision->index = (uint32_t)index;
  decision->name = spec->name;
  decision->capacity = spec->shape.capacity;
  decision->remaining = verdict->remaining;
  decision->retry_after_ms = verdict->retry_after_ms;
  decision->reset_after_ms = verdict->reset_after_ms;
  decision->delay_ms = verdict->delay_ms;
  decision->grows_after_ms = verdict->grows_after_ms;
}

static void item_report(const spile_item *item, bool charged, spile__verdict *out) {
  spile__algorithm_get(item->spec->algorithm)->report(&item->spec->shape, &item->reading, item->cost, charged, out);
}

/* Reports every item as `charged` says, and finds the strictest, with the longest delay. @return its index */
static size_t items_report(const spile_item *items, size_t n, bool charged, spile__verdict *strictest,
                           spile_decision *each) {
  size_t index = 0;
  item_report(&items[0], charged, strictest);
  int64_t delay_ms = strictest->delay_ms;
  if (each != NULL)
    decision_set(&each[0], items[0].spec, strictest, 0);
  for (size_t i = 1; i < n; i++) {
    spile__verdict verdict;
    item_report(&items[i], charged, &verdict);
    delay_ms = verdict.delay_ms > delay_ms ? verdict.delay_ms : delay_ms;
    if (stricter(&verdict, strictest)) {
      *strictest = verdict;
      index = i;
    }
    if (each != NULL)
      decision_set(&each[i], items[i].spec, &verdict, i);
  }
  strictest->delay_ms = strictest->outcome == SPILE_ALLOWED ? delay_ms : 0;
  return index;
}

int spile__decide(const spile_item *items, size_t n, bool charge, spile_decision *decision, spile_decision *each) {
  spile__verdict verdict;
  /* Several are charged only if all fit, which takes a look at all; one knows by itself. */
  size_t index = items_report(items, n, charge && n == 1, &verdict, each);
  if (charge && n > 1 && verdict.outcome == SPILE_ALLOWED)
    index = items_report(items, n, true, &verdict, each);
  decision_set(decision, items[index].spec, &verdict, index);
  return verdict.outcome;
}

/* ---- Other verbs than take and peek ---- */

spile__effect spile__call_effect_other(const spile_call *call) {
  switch (call->verb) {
  case SPILE_VERB_PEEK:
  case SPILE_VERB_TAKE:
    break;
  case SPILE_VERB_CHARGE:
  case SPILE_VERB_REFUND:
    return (spile__effect){.goes = true};
  case SPILE_VERB_TAKE_UP_TO: {
    spile__effect effect = {.goes = spile__items_fit(call->items, call->n), .granted = call->most};
    for (size_t i = 0; i < call->n; i++) {
      const spile_spec *spec = call->items[i].spec;
      int64_t room = spile__algorithm_get(spec->algorithm)->room(&spec->shape, &call->items[i].reading);
      effect.granted = room < effect.granted ? room : effect.granted;
    }
    effect.goes = effect.goes && effect.granted > 0;
    return effect;
  }
  }
  return (spile__effect){0};
}

/* Charges an item or gives back to it. @return the whole tokens that were not charged, rounded up */
static int64_t item_settle(spile_verb verb, const spile_item *item, spile_reading *after) {
  const spile_shape *shape = &item->spec->shape;
  const spile__algorithm *algorithm = spile__algorithm_get(item->spec->algorithm);
  if (verb == SPILE_VERB_REFUND) {
    algorithm->refund(shape, after, item->cost);
    return 0;
  }
  if (algorithm->force != NULL)
    return algorithm->force(shape, after, item->cost);
  int64_t room = algorithm->room(shape, after);
  int64_t tokens = item->cost < room ? item->cost : room;
  /* After a change of the limit a window may count more than it now admits, and then nothing fits, not even 0. */
  if (tokens > 0)
    algorithm->charge(shape, after, tokens);
  return item->cost - tokens;
}

bool spile__item_settle(const spile_call *call, const spile_item *item, const spile__effect *effect,
                        spile_reading *after) {
  if (call->verb == SPILE_VERB_TAKE_UP_TO)
    spile__algorithm_get(item->spec->algorithm)->charge(&item->spec->shape, after, effect->granted);
  else
    (void)item_settle(call->verb, item, after);
  return memcmp(after, &item->reading, sizeof(*after)) != 0;
}

/* Reports what a charge or a refund leaves. */
SPILE__OUT_OF_LINE static int decide_settled(const spile_call *call, spile_decision *decision, spile_decision *each) {
  spile__verdict strictest = {0};
  size_t index = 0;
  int64_t uncharged = 0;
  for (size_t i = 0; i < call->n; i++) {
    spile_item after = call->items[i];
    int64_t own = item_settle(call->verb, &after, &after.reading);
    uncharged = own > uncharged ? own : uncharged;
    after.cost = 0;
    spile__verdict verdict;
    item_report(&after, false, &verdict);
    verdict.outcome = SPILE_ALLOWED;
    verdict.retry_after_ms = verdict.delay_ms = 0;
    if (i == 0 || stricter(&verdict, &strictest)) {
      strictest = verdict;
      index = i;
    }
    if (each != NULL) {
      decision_set(&each[i], after.spec, &verdict, i);
      each[i].uncharged = own;
    }
  }
  decision_set(decision, call->items[index].spec, &strictest, index);
  decision->uncharged = uncharged;
  return SPILE_ALLOWED;
}

SPILE__OUT_OF_LINE static int decide_up_to(const spile_call *call, spile_decision *decision, spile_decision *each) {
  spile__effect effect = spile__call_effect(call);
  /* Where it is allowed and there is nothing to be had, the least is 0. */
  if (!effect.goes)
    return spile__decide(call->items, call->n, false, decision, each);
  spile_item items[SPILE_REQUESTS_MAX];
  for (size_t i = 0; i < call->n; i++) {
    items[i] = call->items[i];
    items[i].cost = effect.granted;
  }
  spile__verdict verdict;
  size_t index = items_report(items, call->n, true, &verdict, each);
  decision_set(decision, call->items[index].spec, &verdict, index);
  decision->granted = effect.granted;
  for (size_t i = 0; i < call->n && each != NULL; i++)
    each[i].granted = effect.granted;
  return verdict.outcome;
}

int spile__decide_call(const spile_call *call, spile_decision *decision, spile_decision *each) {
  switch (call->verb) {
  case SPILE_VERB_TAKE:
  case SPILE_VERB_PEEK:
    break;
  case SPILE_VERB_CHARGE:
  case SPILE_VERB_REFUND:
    return decide_settled(call, decision, each);
  case SPILE_VERB_TAKE_UP_TO:
    return decide_up_to(call, decision, each);
  }
  return spile__decide(call->items, call->n, call->verb == SPILE_VERB_TAKE, decision, each);
}
