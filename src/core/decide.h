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

/* Sets every member of a decision: no outcome, nothing known. */
void spile__decision_clear(spile_decision *decision);

#endif
