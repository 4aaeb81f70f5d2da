/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From readings to one decision.
 */
#ifndef SPILE_CORE_DECIDE_H
#define SPILE_CORE_DECIDE_H

#include "core/algorithm.h"

/* Whether every item has its cost, so that a take charges them all. What is above its capacity never fits. */
bool spile__items_fit(const spile_item *items, size_t n);

/*
 * Decides a call whose readings are written: all or nothing.
 *
 * @param charge    a take: when every item fits, what is reported is the state after it
 * @param decision  out; every member is set
 * @param each      NULL, or n decisions: what each item's own limit says
 * @return the outcome
 */
int spile__decide(const spile_item *items, size_t n, bool charge, spile_decision *decision, spile_decision *each);

/* What a call does to its buckets, once their readings are written. */
typedef struct spile__effect {
  bool goes;       /* it is a charge, a refund, or a take that fits and does not come to nothing */
  int64_t granted; /* what a take up to that goes charges each item */
} spile__effect;

/* As spile__call_effect, where the call is no take. */
spile__effect spile__call_effect_other(const spile_call *call);

static inline spile__effect spile__call_effect(const spile_call *call) {
  if (call->verb != SPILE_VERB_TAKE)
    return spile__call_effect_other(call);
  return (spile__effect){.goes = spile__items_fit(call->items, call->n)};
}

/* Whether a call may write about an item: there is something to pay or to give back. */
static inline bool spile__item_pays(const spile_call *call, const spile_item *item) {
  return (item->cost > 0 || call->most > 0) && call->verb != SPILE_VERB_PEEK;
}

/* As spile__item_apply, where the call is no take. */
bool spile__item_settle(const spile_call *call, const spile_item *item, const spile__effect *effect,
                        spile_reading *after);

/*
 * The reading of an item after its call.
 * @return whether it is another one than before
 */
static inline bool spile__item_apply(const spile_call *call, const spile_item *item, const spile__effect *effect,
                                     spile_reading *after) {
  *after = item->reading;
  if (!effect->goes)
    return false;
  if (call->verb != SPILE_VERB_TAKE)
    return spile__item_settle(call, item, effect, after);
  spile__algorithm_get(item->spec->algorithm)->charge(&item->spec->shape, after, item->cost);
  return item->cost > 0;
}

/* Whether a call is what spile__decide decides. */
static inline bool spile__call_asks(const spile_call *call) {
  return call->verb == SPILE_VERB_TAKE || call->verb == SPILE_VERB_PEEK;
}

/*
 * Decides a call whose readings are written, whatever its verb. The outcome of a charge and of a refund is
 * SPILE_ALLOWED: they went through.
 *
 * @param each  NULL, or as many decisions as there are items
 */
int spile__decide_call(const spile_call *call, spile_decision *decision, spile_decision *each);

/* Sets every member of a decision: no outcome, nothing known. */
void spile__decision_clear(spile_decision *decision);

#endif
