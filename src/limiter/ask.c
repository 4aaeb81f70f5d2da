/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One question to the store and what becomes of it. The core makes the decision of what the store read. What the store
 * cannot say is decided here and labelled as not the store's: "never" from the numbers alone, the on_full of a limit
 * whose new bucket found no room, and the on_store_error of a limit whose store did not answer.
 */
#include <string.h>

#include "core/checked.h"
#include "core/decide.h"
#include "core/text.h"
#include "limiter/limiter.h"

/* ---- Time ---- */

/* The longest time that the strictest of some items lets the store take. */
static int64_t items_timeout(const spile_limiter *limiter, const spile_item *items, size_t n) {
  int64_t least_ms = INT64_MAX;
  for (size_t i = 0; i < n; i++) {
    int64_t own_ms = items[i].spec->timeout_ms > 0 ? items[i].spec->timeout_ms : limiter->timeout_ms;
    least_ms = own_ms < least_ms ? own_ms : least_ms;
  }
  return n > 0 ? least_ms : limiter->timeout_ms;
}

int spile__limiter_time(const spile_limiter *limiter, const spile_item *items, size_t n, int64_t *now_ms,
                        int64_t *deadline_ms) {
  *now_ms = SPILE_STORE_TIME;
  *deadline_ms = INT64_MAX;
  if (limiter->now_ms != NULL) {
    *now_ms = limiter->now_ms(limiter->clock);
    if (*now_ms < 0 || *now_ms > SPILE_TIME_MAX_MS)
      return SPILE_EINVAL;
  }
  if (limiter->timeout_ms > 0)
    *deadline_ms = limiter->env.monotonic_ms(limiter->env.user) + items_timeout(limiter, items, n);
  return SPILE_OK;
}

void spile__decision_fail(spile_decision *decision, const spile_error *error) {
  spile__decision_clear(decision);
  decision->store_error = error->reason;
  size_t len = strlen(error->message);
  if (len >= sizeof(decision->detail))
    len = sizeof(decision->detail) - 1;
  memcpy(decision->detail, error->message, len);
  decision->detail[len] = '\0';
}

/* One line, whatever a store put in: it goes into logs and to terminals as it is. */
static void error_mask(spile_error *error) {
  for (char *c = error->message; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
      *c = '?';
  }
}

/*
 * Asks a store, which may be somebody's own: what it may not answer is no answer.
 * @return SPILE_OK, every reading is in range; SPILE_EFULL; or another error
 */
static int store_decide(spile_store *store, spile_call *call) {
  int result = store->ops->decide(store, call);
  bool valid = result <= SPILE_OK && (result != SPILE_EFULL || call->full_item < call->n);
  for (size_t i = 0; i < call->n && valid && result == SPILE_OK; i++) {
    const spile_spec *spec = call->items[i].spec;
    valid = spile__algorithm_get(spec->algorithm)
                ->reading_valid(&spec->shape, &call->items[i].reading, call->items[i].cost);
  }
  if (valid && result == SPILE_OK)
    return SPILE_OK;
  if (!valid) {
    call->error->code = 0;
    call->error->reason = SPILE_REASON_PROTOCOL;
    result = spile__fail(call->error, SPILE_EUNAVAILABLE, "the store answered what it may not answer", NULL);
  }
  error_mask(call->error);
  return result;
}

/* Sets what is known of an item when nothing was read about it. */
static void decision_without_store(spile_decision *decision, const spile_item *item, size_t index, int outcome,
                                   spile_decided_by decided_by) {
  decision->outcome = outcome;
  decision->decided_by = (int)decided_by;
  decision->index = (uint32_t)index;
  decision->name = item->spec->name;
  decision->capacity = item->spec->shape.capacity;
}

/* The first item whose cost is above its capacity, or n. */
static size_t first_never(const spile_item *items, size_t n) {
  size_t i = 0;
  while (i < n && items[i].cost <= items[i].spec->shape.capacity)
    i++;
  return i;
}

/* Every item gets the same answer, which its store did not give. */
static void decide_without_store(const spile_item *items, size_t n, int outcome, spile_decision *each) {
  for (size_t i = 0; i < n && each != NULL; i++) {
    spile__decision_clear(&each[i]);
    decision_without_store(&each[i], &items[i], i, outcome, SPILE_BY_FULL);
  }
}

/*
 * An item found no room for its bucket, and its limit's on_full decides: fail and closed end the call; an open limit
 * counts for nothing, and the store is asked again about the others.
 */
SPILE__OUT_OF_LINE static int limiter_decide_full(spile_limiter *limiter, spile_call *call, const spile_item *items,
                                                  size_t n, spile_decision *decision, spile_decision *each) {
  bool waived[SPILE_REQUESTS_MAX] = {false};
  spile_item rest[SPILE_REQUESTS_MAX];
  size_t where[SPILE_REQUESTS_MAX]; /* rest[i] is items[where[i]] */
  size_t full = call->full_item;
  for (;;) {
    spile__decision_fail(decision, call->error);
    if (items[full].spec->on_full == SPILE_ON_FULL_FAIL) {
      for (size_t i = 0; i < n && each != NULL; i++)
        each[i] = *decision;
      return SPILE_EFULL;
    }
    if (items[full].spec->on_full == SPILE_ON_FULL_CLOSED) {
      decision_without_store(decision, &items[full], full, SPILE_DENIED, SPILE_BY_FULL);
      decide_without_store(items, n, SPILE_DENIED, each);
      return SPILE_DENIED;
    }

    waived[full] = true;
    decision_without_store(decision, &items[full], full, SPILE_ALLOWED, SPILE_BY_FULL);
    decide_without_store(items, n, SPILE_ALLOWED, each);
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
      if (!waived[i]) {
        rest[left] = items[i];
        where[left++] = i;
      }
    }
    if (left == 0)
      return SPILE_ALLOWED;
    call->items = rest;
    call->n = left;
    call->error->code = 0;
    int result = store_decide(limiter->store, call);
    if (result == SPILE_EFULL) {
      full = where[call->full_item];
      continue;
    }
    if (result != SPILE_OK)
      return result;

    spile_decision rest_each[SPILE_REQUESTS_MAX];
    result = spile__decide(rest, left, call->verb == SPILE_VERB_TAKE, decision, rest_each);
    decision->index = (uint32_t)where[decision->index];
    if (result == SPILE_ALLOWED)
      decision->decided_by = SPILE_BY_FULL;
    for (size_t i = 0; i < left && each != NULL; i++) {
      each[where[i]] = rest_each[i];
      each[where[i]].index = (uint32_t)where[i];
    }
    return result;
  }
}

/* ---- When the store does not answer ---- */

/*
 * Says in the log that the store failed, once a second for each reason; a line tells how many failures it stands for.
 * What a store says is one line without control characters and without secrets.
 */
static void limiter_log_failure(spile_limiter *limiter, const spile_error *error) {
  limiter_logged *logged = &limiter->logged[error->reason];
  int64_t now_ms = limiter->env.monotonic_ms(limiter->env.user);
  int64_t next_ms = atomic_load_explicit(&logged->next_ms, memory_order_relaxed);
  if (now_ms < next_ms || !atomic_compare_exchange_strong_explicit(&logged->next_ms, &next_ms, now_ms + 1000,
                                                                   memory_order_relaxed, memory_order_relaxed)) {
    atomic_fetch_add_explicit(&logged->hidden, 1, memory_order_relaxed);
    return;
  }
  char line[400];
  uint64_t hidden = atomic_exchange_explicit(&logged->hidden, 0, memory_order_relaxed);
  spile__text text;
  spile__text_init(&text, line, sizeof(line));
  spile__text_put(&text, limiter->store->ops->name);
  spile__text_put(&text, ": no answer (");
  spile__text_put(&text, spile_reason_name(error->reason));
  spile__text_put(&text, "): ");
  spile__text_put(&text, error->message);
  if (hidden > 0) {
    spile__text_put(&text, "; and ");
    spile__text_put_number(&text, (int64_t)hidden);
    spile__text_put(&text, " times since this was last said");
  }
  limiter->env.log(limiter->env.log_user, SPILE_LOG_ERROR, line);
}

spile_on_store_error spile__limiter_policy(const spile_limiter *limiter, const spile_spec *spec) {
  spile_on_store_error own = spec->on_store_error;
  if (limiter->on_store_error != SPILE_ON_STORE_ERROR_DEFAULT)
    own = limiter->on_store_error;
  return own == SPILE_ON_STORE_ERROR_DEFAULT ? SPILE_ON_STORE_ERROR_FAIL : own;
}

/* Of several limits one that fails comes before one that is closed, and open is only what all are. @return its item */
static size_t strictest_policy(const spile_limiter *limiter, const spile_item *items, size_t n) {
  size_t strictest = 0;
  for (size_t i = 1; i < n; i++) {
    spile_on_store_error now = spile__limiter_policy(limiter, items[strictest].spec);
    spile_on_store_error other = spile__limiter_policy(limiter, items[i].spec);
    bool stricter = other == SPILE_ON_STORE_ERROR_FAIL
                        ? now != SPILE_ON_STORE_ERROR_FAIL
                        : other == SPILE_ON_STORE_ERROR_CLOSED && now == SPILE_ON_STORE_ERROR_OPEN;
    strictest = stricter ? i : strictest;
  }
  return strictest;
}

/* What an item's own numbers and on_store_error say when its store does not. @return an outcome, or 0: none */
static int decide_by_policy(const spile_limiter *limiter, const spile_item *item, size_t index,
                            const spile_error *error, spile_decision *decision) {
  spile__decision_fail(decision, error);
  decision->index = (uint32_t)index;
  spile_on_store_error policy = spile__limiter_policy(limiter, item->spec);
  if (item->cost > item->spec->shape.capacity)
    decision_without_store(decision, item, index, SPILE_NEVER, SPILE_BY_LIMITS);
  else if (policy != SPILE_ON_STORE_ERROR_FAIL)
    decision_without_store(decision, item, index, policy == SPILE_ON_STORE_ERROR_OPEN ? SPILE_ALLOWED : SPILE_DENIED,
                           SPILE_BY_POLICY);
  return decision->outcome;
}

/* Decides without the store: never from the numbers, else by the limits' on_store_error. */
static int limiter_decide_failed(spile_limiter *limiter, int code, spile_error *error, const spile_item *items,
                                 size_t n, spile_decision *decision, spile_decision *each) {
  if (code == SPILE_ENOMEM && error->reason == SPILE_REASON_NONE)
    error->reason = SPILE_REASON_MEMORY;
  if (error->reason <= SPILE_REASON_NONE || error->reason >= SPILE_REASONS_MAX)
    error->reason = SPILE_REASON_REFUSED;
  limiter_log_failure(limiter, error);

  for (size_t i = 0; i < n && each != NULL; i++)
    (void)decide_by_policy(limiter, &items[i], i, error, &each[i]);
  size_t index = first_never(items, n);
  if (index == n)
    index = strictest_policy(limiter, items, n);
  int outcome = decide_by_policy(limiter, &items[index], index, error, decision);
  if (outcome != 0)
    return outcome;
  decision->index = 0;
  return code;
}

int spile__limiter_decide(spile_limiter *limiter, spile_verb verb, spile_item *items, size_t n,
                          spile_decision *decision, spile_decision *each) {
  spile_error error;
  error.code = error.reason = error.column = 0;
  error.message[0] = '\0';
  spile_call call = {.items = items, .n = n, .error = &error};
  int result = spile__limiter_time(limiter, items, n, &call.now_ms, &call.deadline_ms);
  if (result != SPILE_OK) {
    (void)spile__fail(&error, result, "the given time is outside 0 to SPILE_TIME_MAX_MS", NULL);
    spile__decision_fail(decision, &error);
    return result;
  }
  /* What can never be is only read, so that nothing is charged for it. */
  call.verb = first_never(items, n) < n ? SPILE_VERB_PEEK : verb;

  result = store_decide(limiter->store, &call);
  if (result == SPILE_EFULL)
    result = limiter_decide_full(limiter, &call, items, n, decision, each);
  else if (result == SPILE_OK)
    result = spile__decide(items, n, call.verb == SPILE_VERB_TAKE, decision, each);
  if (result < 0 && result != SPILE_EFULL)
    result = limiter_decide_failed(limiter, result, &error, items, n, decision, each);
  return result;
}
