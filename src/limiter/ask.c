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
#include "limiter/breaker.h"
#include "limiter/limiter.h"

/* So much of a limit's name stands in a message, which has little room. */
#define NAME_TOLD_MAX 32

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
  static const char cut[] = "...";
  size_t len = strlen(error->message);
  if (len < sizeof(decision->detail)) {
    memcpy(decision->detail, error->message, len + 1);
    return;
  }
  /* Half an address reads like another one, so it is seen that there was more; the log has it all. */
  len = sizeof(decision->detail) - sizeof(cut);
  memcpy(decision->detail, error->message, len);
  memcpy(decision->detail + len, cut, sizeof(cut));
}

/* One line, whatever a store put in: it goes into logs and to terminals as it is. */
static void error_mask(spile_error *error) {
  for (char *c = error->message; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
      *c = '?';
  }
}

int spile__answer_settle(spile_error *error, int result, bool valid) {
  if (!valid) {
    error->code = 0;
    error->reason = SPILE_REASON_PROTOCOL;
    result = spile__fail(error, SPILE_EUNAVAILABLE, "the store answered what it may not answer", NULL);
  }
  spile__error_settle(error, result);
  error_mask(error);
  return result;
}

/* As spile__item_valid of a take or a peek. */
static inline bool item_valid(const spile_item *item) {
  const spile_spec *spec = item->spec;
  return spile__algorithm_get(spec->algorithm)->reading_valid(&spec->shape, &item->reading, item->cost);
}

/* Whether a store may say so, as in the store contract. */
static bool is_answer(int result, const spile_call *call, bool asks) {
  switch (result) {
  case SPILE_OK:
  case SPILE_EUNAVAILABLE:
  case SPILE_ENOMEM:
    return true;
  case SPILE_EFULL:
    return call->full_item < call->n;
  case SPILE_ENOTSUP:
    return !asks;
  default:
    return false;
  }
}

/*
 * Asks a store, which may be somebody's own: what it may not answer is no answer.
 * @return SPILE_OK, every reading is in range; SPILE_EFULL; or another error
 */
static int store_decide(spile_store *store, spile_call *call) {
  call->full_items = 0;
  call->failed_item = SIZE_MAX;
  int result = store->ops->decide(store, call);
  const bool asks = spile__call_asks(call);
  bool valid = is_answer(result, call, asks);
  for (size_t i = 0; i < call->n && valid && result == SPILE_OK; i++)
    valid = asks ? item_valid(&call->items[i]) : spile__item_valid(&call->items[i], call->verb);
  if (valid && result == SPILE_OK)
    return SPILE_OK;
  return spile__answer_settle(call->error, result, valid);
}

/* Says in front of a message which limit it is about. The key is nobody's business. */
static void error_name(spile_error *error, const spile_spec *spec) {
  const spile_error plain = *error;
  spile__text text;
  char name[NAME_TOLD_MAX + 1];
  size_t len = spec->name_len < NAME_TOLD_MAX ? spec->name_len : NAME_TOLD_MAX;
  memcpy(name, spec->name, len);
  name[len] = '\0';
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, "limit ");
  spile__text_put(&text, name);
  spile__text_put(&text, ": ");
  spile__text_put(&text, plain.message);
  error_mask(error);
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

/* ---- What a limit's own policy says ---- */

spile_on_store_error spile__limiter_policy(const spile_limiter *limiter, const spile_spec *spec) {
  spile_on_store_error own = spec->on_store_error;
  if (limiter->on_store_error != SPILE_ON_STORE_ERROR_DEFAULT)
    own = limiter->on_store_error;
  return own == SPILE_ON_STORE_ERROR_DEFAULT ? SPILE_ON_STORE_ERROR_FAIL : own;
}

/* Of several limits one that fails comes before one that is closed, and open is only what all are; among equals `first`
 * comes before all others. @return its item */
static size_t strictest_policy(const spile_limiter *limiter, const spile_item *items, size_t n, size_t first) {
  size_t strictest = first < n ? first : 0;
  for (size_t i = 0; i < n; i++) {
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
  spile_on_store_error policy = spile__limiter_policy(limiter, item->spec);
  if (item->cost > item->spec->shape.capacity)
    decision_without_store(decision, item, index, SPILE_NEVER, SPILE_BY_LIMITS);
  else if (policy == SPILE_ON_STORE_ERROR_FAIL)
    decision_without_store(decision, item, index, 0, SPILE_BY_NOBODY);
  else
    decision_without_store(decision, item, index, policy == SPILE_ON_STORE_ERROR_OPEN ? SPILE_ALLOWED : SPILE_DENIED,
                           SPILE_BY_POLICY);
  return decision->outcome;
}

/*
 * A charge or a refund admits nobody, so whoever asked has to know that it is not made, or not known to be. `failed` is
 * the item whose bucket is why, or n.
 */
static int decide_unsettled(int code, const spile_error *error, const spile_item *items, size_t n, size_t failed,
                            spile_decision *decision, spile_decision *each) {
  spile__decision_fail(decision, error);
  for (size_t i = 0; i < n && each != NULL; i++) {
    each[i] = *decision;
    decision_without_store(&each[i], &items[i], i, 0, SPILE_BY_NOBODY);
  }
  size_t named = failed < n ? failed : 0;
  decision_without_store(decision, &items[named], named, 0, SPILE_BY_NOBODY);
  return code;
}

/* ---- When a new bucket finds no room ---- */

/* What the on_full of an item's limit says. @return an outcome, or 0: none */
static int decide_by_full(const spile_item *item, size_t index, const spile_error *why, spile_decision *decision) {
  static const int outcomes[] = {
      [SPILE_ON_FULL_CLOSED] = SPILE_DENIED, [SPILE_ON_FULL_OPEN] = SPILE_ALLOWED, [SPILE_ON_FULL_FAIL] = 0};
  int outcome = outcomes[item->spec->on_full];
  spile__decision_fail(decision, why);
  decision_without_store(decision, item, index, outcome, outcome != 0 ? SPILE_BY_FULL : SPILE_BY_NOBODY);
  return outcome;
}

/* A call about some of the items; its item i is items[where[i]]. */
typedef struct full_rest {
  spile_item *items;
  uint8_t where[SPILE_REQUESTS_MAX];
} full_rest;

_Static_assert(SPILE_REQUESTS_MAX <= 64, "a set of items is the bits of a uint64_t");

/* Makes the call one about the items that are not `out`. @return whether there are any */
static bool rest_make(full_rest *rest, spile_call *call, const spile_item *items, size_t n, uint64_t out) {
  call->items = rest->items;
  call->n = 0;
  for (size_t i = 0; i < n; i++) {
    if ((out >> i & 1) != 0)
      continue;
    rest->items[call->n] = items[i];
    rest->where[call->n++] = (uint8_t)i;
  }
  call->error->code = 0;
  return call->n > 0;
}

/* The items without room, by what a call about some of them says. */
static uint64_t rest_full(const full_rest *rest, const spile_call *call) {
  uint64_t full = UINT64_C(1) << rest->where[call->full_item];
  for (size_t i = 0; i < call->n; i++)
    full |= (call->full_items >> i & 1) << rest->where[i];
  return full;
}

/* Of limits without room one that fails comes before one that is closed, and that before one that is open. */
static size_t strictest_full(const spile_item *items, size_t n, uint64_t full) {
  size_t strictest = n;
  for (size_t i = 0; i < n; i++) {
    if ((full >> i & 1) == 0)
      continue;
    if (strictest == n ||
        (items[i].spec->on_full != items[strictest].spec->on_full &&
         (items[i].spec->on_full == SPILE_ON_FULL_FAIL || items[strictest].spec->on_full == SPILE_ON_FULL_OPEN)))
      strictest = i;
  }
  return strictest;
}

/*
 * Writes what each item's own limit says: those without room by on_full, the others by the store, of which `result`
 * came. No item of the rest stood before its place in it, so they go to their own places from the end backwards.
 */
static void full_tell_each(const spile_limiter *limiter, const full_rest *rest, const spile_call *call, int result,
                           const spile_item *items, size_t n, const spile_error *why, spile_decision *each) {
  spile_decision unwanted;
  uint64_t by_store = 0;
  if (result == SPILE_OK && call->n > 0)
    (void)spile__decide_call(call, &unwanted, each);
  for (size_t i = call->n; i-- > 0;) {
    size_t at = rest->where[i];
    by_store |= UINT64_C(1) << at;
    if (result == SPILE_OK)
      each[at] = each[i];
    else
      (void)decide_by_policy(limiter, &items[at], at, call->error, &each[at]);
    each[at].index = (uint32_t)at;
  }
  for (size_t i = 0; i < n; i++) {
    if ((by_store >> i & 1) == 0)
      (void)decide_by_full(&items[i], i, why, &each[i]);
  }
}

/*
 * An item found no room for its bucket, and its limit's on_full decides. An open one counts for nothing, and the store
 * is asked again about the others; fail and closed end the take, with a peek at the others for whoever wants to know
 * what each says.
 */
static int decide_full_with(spile_limiter *limiter, spile_call *call, const spile_item *items, size_t n,
                            spile_decision *decision, spile_decision *each, spile_item *room) {
  full_rest rest;
  rest.items = room;
  uint64_t open = 0;
  uint64_t full =
      UINT64_C(1) << call->full_item | (n < 64 ? call->full_items & ((UINT64_C(1) << n) - 1) : call->full_items);
  /* A charge admits nobody, so there is no policy to ask. */
  if (call->verb == SPILE_VERB_CHARGE || call->verb == SPILE_VERB_REFUND)
    return decide_unsettled(SPILE_EFULL, call->error, items, n, call->full_item, decision, each);
  for (;;) {
    const spile_error why = *call->error;
    size_t at = strictest_full(items, n, full);
    int outcome = decide_by_full(&items[at], at, &why, decision);
    decision->granted = outcome == SPILE_ALLOWED ? call->most : 0;
    bool ends = outcome != SPILE_ALLOWED;
    open |= UINT64_C(1) << at;
    bool asks = rest_make(&rest, call, items, n, ends ? open | full : open);
    if (ends)
      call->verb = SPILE_VERB_PEEK;
    int result = asks && (!ends || each != NULL) ? store_decide(limiter->store, call) : SPILE_OK;
    if (!ends && result == SPILE_EFULL) {
      full = rest_full(&rest, call);
      continue;
    }
    if (!ends && result != SPILE_OK)
      return result;
    if (each != NULL)
      full_tell_each(limiter, &rest, call, result, items, n, &why, each);
    if (ends)
      return outcome != 0 ? outcome : SPILE_EFULL;

    spile_decision others;
    int by_store = asks ? spile__decide_call(call, &others, NULL) : 0;
    if (by_store == SPILE_DENIED) {
      *decision = others;
      decision->index = (uint32_t)rest.where[others.index];
    } else if (by_store == SPILE_ALLOWED) {
      decision->delay_ms = others.delay_ms;
      decision->granted = others.granted;
    }
    for (size_t i = 0; i < n && each != NULL; i++)
      each[i].granted = decision->granted;
    return decision->outcome;
  }
}

SPILE__OUT_OF_LINE static int decide_full_few(spile_limiter *limiter, spile_call *call, const spile_item *items,
                                              size_t n, spile_decision *decision, spile_decision *each) {
  spile_item room[SPILE__FEW];
  return decide_full_with(limiter, call, items, n, decision, each, room);
}

SPILE__OUT_OF_LINE static int decide_full_many(spile_limiter *limiter, spile_call *call, const spile_item *items,
                                               size_t n, spile_decision *decision, spile_decision *each) {
  spile_item room[SPILE_REQUESTS_MAX];
  return decide_full_with(limiter, call, items, n, decision, each, room);
}

static int limiter_decide_full(spile_limiter *limiter, spile_call *call, const spile_item *items, size_t n,
                               spile_decision *decision, spile_decision *each) {
  return n <= SPILE__FEW ? decide_full_few(limiter, call, items, n, decision, each)
                         : decide_full_many(limiter, call, items, n, decision, each);
}

/* ---- When the store does not answer ---- */

/* Whether it may be said again, once a second; else it is counted. `*hidden` is how many were. */
static bool logged_is_due(limiter_logged *logged, const spile_env *env, uint64_t *hidden) {
  int64_t now_ms = env->monotonic_ms(env->user);
  int64_t next_ms = atomic_load_explicit(&logged->next_ms, memory_order_relaxed);
  if (now_ms < next_ms || !atomic_compare_exchange_strong_explicit(&logged->next_ms, &next_ms, now_ms + 1000,
                                                                   memory_order_relaxed, memory_order_relaxed)) {
    atomic_fetch_add_explicit(&logged->hidden, 1, memory_order_relaxed);
    return false;
  }
  *hidden = atomic_exchange_explicit(&logged->hidden, 0, memory_order_relaxed);
  return true;
}

/* Ends a line with how many it stands for, and says it. */
static void text_log(spile__text *text, const spile_env *env, uint64_t hidden, const char *line) {
  if (hidden > 0) {
    spile__text_put(text, "; and ");
    spile__text_put_number(text, (int64_t)hidden);
    spile__text_put(text, " times since this was last said");
  }
  env->log(env->log_user, SPILE_LOG_ERROR, line);
}

/*
 * Says in the log that the store failed, once a second for each reason; a line tells how many failures it stands for.
 * What a store says is one line without control characters and without secrets.
 */
SPILE__OUT_OF_LINE static void limiter_log_failure(spile_limiter *limiter, const spile_error *error) {
  uint64_t hidden;
  if (!logged_is_due(&limiter->logged[error->reason], &limiter->env, &hidden))
    return;
  char line[400];
  spile__text text;
  spile__text_init(&text, line, sizeof(line));
  spile__text_put(&text, limiter->store->ops->name);
  spile__text_put(&text, ": no answer (");
  spile__text_put(&text, spile_reason_name(error->reason));
  spile__text_put(&text, "): ");
  spile__text_put(&text, error->message);
  text_log(&text, &limiter->env, hidden, line);
}

void spile__limiter_log_misuse(spile_limiter *limiter, const char *what) {
  uint64_t hidden;
  /* No failure is without a reason, so its place is free. */
  if (!logged_is_due(&limiter->logged[SPILE_REASON_NONE], &limiter->env, &hidden))
    return;
  char line[400];
  spile__text text;
  spile__text_init(&text, line, sizeof(line));
  spile__text_put(&text, what);
  text_log(&text, &limiter->env, hidden, line);
}

/* Decides without the store: never from the numbers, else by the limits' on_store_error. */
static int limiter_decide_failed(spile_limiter *limiter, int code, const spile_call *call, const spile_item *items,
                                 size_t n, spile_decision *decision, spile_decision *each) {
  spile_error *error = call->error;
  if (code == SPILE_ENOMEM && error->reason == SPILE_REASON_NONE)
    error->reason = SPILE_REASON_MEMORY;
  if (error->reason == SPILE_REASON_NONE)
    error->reason = SPILE_REASON_PROTOCOL;
  size_t failed = call->items == items && call->failed_item < n ? call->failed_item : n;
  if (failed < n)
    error_name(error, items[failed].spec);
  limiter_log_failure(limiter, error);

  if (call->verb == SPILE_VERB_CHARGE || call->verb == SPILE_VERB_REFUND)
    return decide_unsettled(code, error, items, n, failed, decision, each);
  for (size_t i = 0; i < n && each != NULL; i++) {
    if (decide_by_policy(limiter, &items[i], i, error, &each[i]) == SPILE_ALLOWED)
      each[i].granted = call->most;
  }
  size_t index = first_never(items, n);
  if (index == n)
    index = strictest_policy(limiter, items, n, failed);
  int outcome = decide_by_policy(limiter, &items[index], index, error, decision);
  decision->granted = outcome == SPILE_ALLOWED ? call->most : 0;
  return outcome != 0 ? outcome : code;
}

int spile__limiter_decide_failed(spile_limiter *limiter, spile_verb verb, const spile_error *why,
                                 const spile_item *items, size_t n, spile_decision *decision, spile_decision *each) {
  spile_error error = *why;
  const spile_call call = {.verb = verb, .n = n, .error = &error, .failed_item = SIZE_MAX};
  return limiter_decide_failed(limiter, why->code, &call, items, n, decision, each);
}

/* The store cannot do it, as the caller can know beforehand: no policy, and nothing failed. */
static int decide_unable(const spile_call *call, spile_decision *decision, spile_decision *each) {
  call->error->code = 0;
  call->error->reason = SPILE_REASON_NONE;
  (void)spile__fail(call->error, SPILE_ENOTSUP, "this store cannot charge, refund or take up to a number", NULL);
  return decide_unsettled(SPILE_ENOTSUP, call->error, call->items, call->n, call->n, decision, each);
}

/* No capacity is below what a take up to may grant. */
static void call_cut_most(spile_call *call) {
  for (size_t i = 0; i < call->n; i++) {
    int64_t capacity = call->items[i].spec->shape.capacity;
    call->most = capacity < call->most ? capacity : call->most;
  }
}

/* The verbs that ABI 3 has. @return as the store; SPILE_ENOTSUP, and the decisions say so */
SPILE__OUT_OF_LINE static int store_decide_other(spile_store *store, spile_call *call, spile_decision *decision,
                                                 spile_decision *each) {
  call_cut_most(call);
  int result = store->ops->abi < 3 ? SPILE_ENOTSUP : store_decide(store, call);
  return result == SPILE_ENOTSUP ? decide_unable(call, decision, each) : result;
}

int spile__limiter_decide(spile_limiter *limiter, spile_verb verb, int64_t most, spile_item *items, size_t n,
                          spile_decision *decision, spile_decision *each) {
  spile_error error;
  error.code = error.reason = error.column = 0;
  error.message[0] = '\0';
  spile_call call = {.verb = verb, .items = items, .n = n, .error = &error, .most = most};
  int result = spile__limiter_time(limiter, items, n, &call.now_ms, &call.deadline_ms);
  if (result != SPILE_OK) {
    (void)spile__fail(&error, result, "the given time is outside 0 to SPILE_TIME_MAX_MS", NULL);
    spile__decision_fail(decision, &error);
    return result;
  }
  /* What can never be is only read, so that nothing is charged for it. */
  if (verb != SPILE_VERB_CHARGE && verb != SPILE_VERB_REFUND && first_never(items, n) < n) {
    call.verb = SPILE_VERB_PEEK;
    call.most = 0;
  }

  const bool asks = spile__call_asks(&call);
  result = asks ? store_decide(limiter->store, &call) : store_decide_other(limiter->store, &call, decision, each);
  if (result == SPILE_OK)
    return asks ? spile__decide(items, n, call.verb == SPILE_VERB_TAKE, decision, each)
                : spile__decide_call(&call, decision, each);
  if (!asks && result == SPILE_ENOTSUP)
    return result;
  if (result == SPILE_EFULL)
    result = limiter_decide_full(limiter, &call, items, n, decision, each);
  if (result < 0 && result != SPILE_EFULL)
    result = limiter_decide_failed(limiter, result, &call, items, n, decision, each);
  return result;
}
