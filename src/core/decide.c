/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several limits are one question: may this go ahead under all of them? The answer is the strictest one, and so is what
 * is reported: never before denied before allowed, among denials the longest wait (when it ends all the others have
 * ended too), among allowances the smallest remaining, then the longest reset, then the first. The delay is the longest
 * of all, whichever decides: it has to suit every one.
 */
#include "core/decide.h"

#include <string.h>

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
