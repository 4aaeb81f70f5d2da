/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several limits are one question: may this go ahead under all of them? The answer is the strictest one, and so is what
 * is reported: never before denied before allowed, among denials the longest wait (when it ends all the others have
 * ended too), among allowances the smallest remaining, then the longest reset, then the first.
 */
#include "core/decide.h"

void spile__decision_clear(spile_decision *decision) {
  *decision = (spile_decision){.remaining = SPILE_UNKNOWN,
                               .retry_after_ms = SPILE_UNKNOWN,
                               .reset_after_ms = SPILE_UNKNOWN,
                               .capacity = SPILE_UNKNOWN};
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
}

static void item_report(const spile_item *item, bool charged, spile__verdict *out) {
  spile__algorithm_get(item->spec->algorithm)->report(&item->spec->shape, &item->reading, item->cost, charged, out);
}

int spile__decide(const spile_item *items, size_t n, bool charge, spile_decision *decision, spile_decision *each) {
  spile__verdict worst;
  size_t index = 0;
  /* The first pass learns whether all fit; only then is anything charged and reported as such. One item knows by
   * itself. */
  for (int pass = n == 1; pass < 2; pass++) {
    bool charged = charge && pass == 1;
    index = 0;
    item_report(&items[0], charged, &worst);
    for (size_t i = 0; i < n; i++) {
      spile__verdict verdict;
      item_report(&items[i], charged, &verdict);
      if (stricter(&verdict, &worst)) {
        worst = verdict;
        index = i;
      }
      if (each != NULL)
        decision_set(&each[i], items[i].spec, &verdict, i);
    }
    if (!charge || worst.outcome != SPILE_ALLOWED)
      break;
  }
  decision_set(decision, items[index].spec, &worst, index);
  return worst.outcome;
}
