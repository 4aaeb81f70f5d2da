/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facade: checks arguments, sums requests that name one bucket, and hands them on to be asked (ask.c).
 */
#include "limiter/limiter.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "core/checked.h"
#include "core/decide.h"
#include "core/limit.h"
#include "core/text.h"
#include "limiter/env.h"
#include "limiter/limit.h"

/* ---- Checking what the caller hands in ---- */

/* Says why there is no answer. Every member of the decision is set. */
static int decision_refuse(spile_decision *decision, int code, const char *why) {
  spile_error error;
  error.code = 0;
  (void)spile__fail(&error, code, why, NULL);
  error.reason = SPILE_REASON_NONE;
  spile__decision_fail(decision, &error);
  return code;
}

/* What is wrong with one request, or NULL; `*code` is set with it. */
static const char *request_fault(const spile_limiter *limiter, const spile_limit *limit, const void *key,
                                 size_t key_len, int64_t cost, int *code) {
  *code = SPILE_EINVAL;
  if (limiter == NULL)
    return "the limiter is NULL";
  if (limit == NULL)
    return "the limit is NULL";
  if (key == NULL || key_len < 1 || key_len > SPILE_KEY_LEN_MAX)
    return "a key is 1 to 4096 bytes, and not NULL";
  if (cost < 0)
    return "the cost is below zero";
  *code = SPILE_EFORK;
  return limiter->fork_generation == spile__fork_generation() ? NULL : spile_code_text(SPILE_EFORK);
}

/* Hands on a take that is decided; no lock is held. */
SPILE__OUT_OF_LINE static void limiter_tell(const spile_limiter *limiter, const spile__taken *taken) {
  /* One that was refused before the store was asked is no take. */
  if (taken->result != SPILE_EINVAL || taken->decision->store_error != SPILE_REASON_NONE)
    spile__watch_taken(limiter->watch, taken);
}

static int one_decide(spile_limiter *limiter, spile_verb verb, const spile_limit *limit, const void *key,
                      size_t key_len, int64_t cost, spile_decision *decision) {
  spile_decision unwanted;
  if (decision == NULL)
    decision = &unwanted;
  int code;
  const char *fault = request_fault(limiter, limit, key, key_len, cost, &code);
  if (fault != NULL)
    return decision_refuse(decision, code, fault);
  spile_item item = {.key = key, .key_len = key_len, .spec = &limit->spec, .cost = cost};
  int result = spile__limiter_decide(limiter, verb, 0, &item, 1, decision, NULL);
  spile__limiter_count(limiter, verb, result, decision);
  if (verb == SPILE_VERB_TAKE && limiter->watch != NULL)
    limiter_tell(limiter,
                 &(spile__taken){.items = &item, .n = 1, .result = result, .decision = decision, .each = decision});
  return result;
}

int spile_take(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
               spile_decision *decision) {
  return one_decide(limiter, SPILE_VERB_TAKE, limit, key, key_len, cost, decision);
}

int spile_peek(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
               spile_decision *decision) {
  return one_decide(limiter, SPILE_VERB_PEEK, limit, key, key_len, cost, decision);
}

bool spile_allow(spile_limiter *limiter, const spile_limit *limit, const char *key) {
  return key != NULL && spile_take(limiter, limit, key, strlen(key), 1, NULL) == SPILE_ALLOWED;
}

/* Whether an item and a request name one bucket. */
static bool same_bucket(const spile_item *item, const spile_request *request) {
  return item->key_len == request->key_len && memcmp(item->key, request->key, item->key_len) == 0 &&
         spile__spec_same_bucket(item->spec, &request->limit->spec);
}

/* Whether two limits of one bucket ask for the same when the store does not decide. */
static bool same_policy(const spile_spec *a, const spile_spec *b) {
  return a->on_full == b->on_full && a->on_store_error == b->on_store_error && a->timeout_ms == b->timeout_ms;
}

/*
 * Makes items of requests, one a bucket, costs summed; item_of says which item a request went into.
 * @return NULL, or what is wrong, with `*code` and of which request
 */
static const char *items_make(const spile_limiter *limiter, const spile_request *requests, size_t n, spile_item *items,
                              size_t *item_count, uint8_t *item_of, int *code, size_t *failed) {
  *failed = 0;
  *code = SPILE_EINVAL;
  if (requests == NULL || n < 1 || n > SPILE_REQUESTS_MAX)
    return "there must be 1 to 64 requests";
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    const spile_request *request = &requests[i];
    *failed = i;
    const char *fault = request_fault(limiter, request->limit, request->key, request->key_len, request->cost, code);
    if (fault != NULL)
      return fault;
    size_t j = 0;
    while (j < count && !same_bucket(&items[j], request))
      j++;
    item_of[i] = (uint8_t)j;
    if (j == count) {
      items[count++] = (spile_item){
          .key = request->key, .key_len = request->key_len, .spec = &request->limit->spec, .cost = request->cost};
    } else if (!spile__shape_equal(&items[j].spec->shape, &request->limit->spec.shape)) {
      *code = SPILE_EINVAL;
      return "two limits of different numbers name the same bucket; give one of them another name";
    } else if (!same_policy(items[j].spec, &request->limit->spec)) {
      *code = SPILE_EINVAL;
      return "two limits of one bucket differ in on_full, on_store_error or timeout_ms; write them alike";
    } else {
      items[j].cost = spile__add_saturate(items[j].cost, request->cost);
    }
  }
  *item_count = count;
  return NULL;
}

/* Requests made into the items of one call. Both arrays are the caller's and have room for n. */
typedef struct asking {
  size_t n;
  size_t item_count;
  int64_t most; /* of a take up to; else 0 */
  spile_item *items;
  uint8_t *item_of; /* which item a request went into */
  size_t deciding;  /* the item that decided */
} asking;

/* The first request of an item. */
static uint32_t asking_request(const asking *asked, size_t item) {
  uint32_t request = 0;
  while (asked->item_of[request] != item)
    request++;
  return request;
}

/* Asks. @param of_items  out: what each item's limit says; NULL: nobody wants to know */
static int asking_decide(spile_limiter *limiter, spile_verb verb, asking *asked, spile_decision *decision,
                         spile_decision *of_items, const spile__about *about) {
  for (size_t i = 0; i < asked->item_count && of_items != NULL; i++)
    spile__decision_clear(&of_items[i]);
  int result =
      about != NULL && about->failure != NULL
          ? spile__limiter_decide_failed(limiter, verb, about->failure, asked->items, asked->item_count, decision,
                                         of_items)
          : spile__limiter_decide(limiter, verb, asked->most, asked->items, asked->item_count, decision, of_items);
  asked->deciding = decision->index;
  decision->index = asking_request(asked, asked->deciding);
  return result;
}

static void asking_count(spile_limiter *limiter, spile_verb verb, int result, const spile_decision *decision,
                         const spile__about *about) {
  if (about == NULL || !about->shadow)
    spile__limiter_count(limiter, verb, result, decision);
}

static bool is_take(spile_verb verb) {
  return verb == SPILE_VERB_TAKE || verb == SPILE_VERB_TAKE_UP_TO;
}

/*
 * Hands on what was decided for somebody who wants to know what each limit says: to counters, to hooks, to the caller.
 * @param each  has room for every request. In: of each item; out: of each request. No request went into an item that
 *              comes after its own place, so from the end backwards none is written over before it is read.
 */
static void asking_tell(spile_limiter *limiter, spile_verb verb, const asking *asked, int result,
                        const spile_decision *decision, spile_decision *each, const spile__about *about) {
  for (size_t i = 0; i < asked->item_count; i++)
    each[i].index = asking_request(asked, i);
  asking_count(limiter, verb, result, decision, about);
  if (is_take(verb) && limiter->watch != NULL)
    limiter_tell(limiter, &(spile__taken){.items = asked->items,
                                          .n = asked->item_count,
                                          .result = result,
                                          .decision = decision,
                                          .deciding = asked->deciding,
                                          .each = each,
                                          .about = about});
  for (size_t i = asked->n; i-- > 0;) {
    if (asked->item_of[i] != i)
      each[i] = each[asked->item_of[i]];
    each[i].index = (uint32_t)i;
  }
}

static int asking_decide_each(spile_limiter *limiter, spile_verb verb, asking *asked, spile_decision *decision,
                              spile_decision *each, const spile__about *about) {
  int result = asking_decide(limiter, verb, asked, decision, each, about);
  asking_tell(limiter, verb, asked, result, decision, each, about);
  return result;
}

/* The same for somebody who does not want it in the end. */
SPILE__OUT_OF_LINE static int asking_decide_few(spile_limiter *limiter, spile_verb verb, asking *asked,
                                                spile_decision *decision, const spile__about *about) {
  spile_decision each[SPILE__FEW];
  return asking_decide_each(limiter, verb, asked, decision, each, about);
}

SPILE__OUT_OF_LINE static int asking_decide_many(spile_limiter *limiter, spile_verb verb, asking *asked,
                                                 spile_decision *decision, const spile__about *about) {
  spile_decision each[SPILE_REQUESTS_MAX];
  return asking_decide_each(limiter, verb, asked, decision, each, about);
}

/* Decides, and tells as much of it as anybody wants to know. */
static int asking_run(spile_limiter *limiter, spile_verb verb, asking *asked, spile_decision *decision,
                      spile_decision *each, const spile__about *about) {
  if (each != NULL)
    return asking_decide_each(limiter, verb, asked, decision, each, about);
  if (limiter->watch != NULL)
    return asked->n <= SPILE__FEW ? asking_decide_few(limiter, verb, asked, decision, about)
                                  : asking_decide_many(limiter, verb, asked, decision, about);
  int result = asking_decide(limiter, verb, asked, decision, NULL, about);
  asking_count(limiter, verb, result, decision, about);
  return result;
}

/* @param failed  the request that is refused, 0 where all of them are */
static int asking_refuse(int code, const char *fault, size_t failed, size_t n, spile_decision *decision,
                         spile_decision *each) {
  (void)decision_refuse(decision, code, fault);
  for (size_t i = 0; i < n && n <= SPILE_REQUESTS_MAX && each != NULL; i++) {
    each[i] = *decision;
    each[i].index = (uint32_t)i;
  }
  decision->index = (uint32_t)failed;
  return code;
}

/* Makes the asking of requests. @return SPILE_OK; or an error, which the decisions tell */
static int asking_make(const spile_limiter *limiter, const spile_request *requests, size_t n, asking *asked,
                       spile_decision *decision, spile_decision *each) {
  asked->n = n;
  asked->item_count = 0;
  asked->most = 0;
  int code;
  size_t failed;
  const char *fault =
      items_make(limiter, requests, n, asked->items, &asked->item_count, asked->item_of, &code, &failed);
  return fault == NULL ? SPILE_OK : asking_refuse(code, fault, failed, n, decision, each);
}

static int asking_make_and_run(spile_limiter *limiter, spile_verb verb, const spile_request *requests, size_t n,
                               asking *asked, spile_decision *decision, spile_decision *each,
                               const spile__about *about) {
  int result = asking_make(limiter, requests, n, asked, decision, each);
  return result == SPILE_OK ? asking_run(limiter, verb, asked, decision, each, about) : result;
}

SPILE__OUT_OF_LINE static int ask_few(spile_limiter *limiter, spile_verb verb, const spile_request *requests, size_t n,
                                      spile_decision *decision, spile_decision *each, const spile__about *about) {
  spile_item items[SPILE__FEW];
  uint8_t item_of[SPILE__FEW];
  asking asked = {.items = items, .item_of = item_of};
  return asking_make_and_run(limiter, verb, requests, n, &asked, decision, each, about);
}

SPILE__OUT_OF_LINE static int ask_many(spile_limiter *limiter, spile_verb verb, const spile_request *requests, size_t n,
                                       spile_decision *decision, spile_decision *each, const spile__about *about) {
  spile_item items[SPILE_REQUESTS_MAX];
  uint8_t item_of[SPILE_REQUESTS_MAX];
  asking asked = {.items = items, .item_of = item_of};
  return asking_make_and_run(limiter, verb, requests, n, &asked, decision, each, about);
}

int spile__limiter_ask(spile_limiter *limiter, spile_verb verb, const spile_request *requests, size_t n,
                       spile_decision *decision, spile_decision *each, const spile__about *about) {
  spile_decision unwanted;
  if (decision == NULL)
    decision = &unwanted;
  return n <= SPILE__FEW ? ask_few(limiter, verb, requests, n, decision, each, about)
                         : ask_many(limiter, verb, requests, n, decision, each, about);
}

int spile_take_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                   spile_decision *each) {
  return spile__limiter_ask(limiter, SPILE_VERB_TAKE, requests, n, decision, each, NULL);
}

int spile_peek_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                   spile_decision *each) {
  return spile__limiter_ask(limiter, SPILE_VERB_PEEK, requests, n, decision, each, NULL);
}

int spile_take_up_to_all(spile_limiter *limiter, const spile_request *requests, size_t n, int64_t min, int64_t max,
                         spile_decision *decision, spile_decision *each) {
  spile_decision unwanted;
  if (decision == NULL)
    decision = &unwanted;
  spile_item items[SPILE_REQUESTS_MAX];
  uint8_t item_of[SPILE_REQUESTS_MAX];
  asking asked = {.items = items, .item_of = item_of};
  int result = asking_make(limiter, requests, n, &asked, decision, each);
  if (result != SPILE_OK)
    return result;
  if (min < 0 || max < min)
    return asking_refuse(SPILE_EINVAL, "the least is below zero, or the most is below the least", 0, n, decision, each);
  if (asked.item_count < n)
    return asking_refuse(SPILE_EINVAL, "two requests of a take up to name the same bucket; name each once", 0, n,
                         decision, each);
  asked.most = max;
  for (size_t i = 0; i < asked.item_count; i++)
    asked.items[i].cost = min;
  return asking_run(limiter, SPILE_VERB_TAKE_UP_TO, &asked, decision, each, NULL);
}

int spile_take_up_to(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t min,
                     int64_t max, spile_decision *decision) {
  spile_request request = {.limit = limit, .key = key, .key_len = key_len};
  return spile_take_up_to_all(limiter, &request, 1, min, max, decision, NULL);
}

/* ---- Settling ---- */

int spile_charge(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
                 spile_decision *decision) {
  return one_decide(limiter, SPILE_VERB_CHARGE, limit, key, key_len, cost, decision);
}

int spile_refund(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
                 spile_decision *decision) {
  return one_decide(limiter, SPILE_VERB_REFUND, limit, key, key_len, cost, decision);
}

int spile_charge_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                     spile_decision *each) {
  return spile__limiter_ask(limiter, SPILE_VERB_CHARGE, requests, n, decision, each, NULL);
}

int spile_refund_all(spile_limiter *limiter, const spile_request *requests, size_t n, spile_decision *decision,
                     spile_decision *each) {
  return spile__limiter_ask(limiter, SPILE_VERB_REFUND, requests, n, decision, each, NULL);
}

/* ---- Waiting ---- */

static int64_t waiting_now_ms(const spile_limiter *limiter) {
  return limiter->now_ms != NULL ? limiter->now_ms(limiter->clock) : limiter->env.monotonic_ms(limiter->env.user);
}

static void waiting_sleep(const spile_limiter *limiter, int64_t ms) {
  if (limiter->sleep_ms != NULL) {
    limiter->sleep_ms(limiter->clock, ms);
    return;
  }
  struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

int spile_wait_all(spile_limiter *limiter, const spile_request *requests, size_t n, int64_t max_ms,
                   spile_decision *decision, spile_decision *each) {
  spile_decision unwanted;
  if (decision == NULL)
    decision = &unwanted;
  if (max_ms < 0 && max_ms != SPILE_FOREVER)
    return asking_refuse(SPILE_EINVAL, "the longest wait is below zero", 0, n, decision, each);
  spile_item items[SPILE_REQUESTS_MAX];
  uint8_t item_of[SPILE_REQUESTS_MAX];
  asking asked = {.items = items, .item_of = item_of};
  int result = asking_make(limiter, requests, n, &asked, decision, each);
  if (result != SPILE_OK)
    return result;
  spile_decision unasked[SPILE_REQUESTS_MAX];
  if (each == NULL)
    each = unasked;
  int64_t start_ms = waiting_now_ms(limiter);
  for (;;) {
    result = asking_decide(limiter, SPILE_VERB_TAKE, &asked, decision, each, NULL);
    /* A denial without a wait (no room, a policy) cannot be waited out. */
    bool waits = result == SPILE_DENIED && decision->retry_after_ms != SPILE_UNKNOWN;
    if (waits && max_ms != SPILE_FOREVER)
      waits = decision->retry_after_ms <= max_ms - (waiting_now_ms(limiter) - start_ms);
    if (!waits)
      break;
    waiting_sleep(limiter, decision->retry_after_ms);
  }
  /* One wait is one take: what it met on its way is not told. */
  asking_tell(limiter, SPILE_VERB_TAKE, &asked, result, decision, each, NULL);
  return result;
}

int spile_wait(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, int64_t cost,
               int64_t max_ms, spile_decision *decision) {
  spile_request request = {.limit = limit, .key = key, .key_len = key_len, .cost = cost};
  return spile_wait_all(limiter, &request, 1, max_ms, decision, NULL);
}

/* ---- Housekeeping ---- */

int spile_clear(spile_limiter *limiter, const spile_limit *limit, const void *key, size_t key_len, spile_error *error) {
  int result;
  const char *fault = request_fault(limiter, limit, key, key_len, 0, &result);
  if (fault != NULL)
    return spile__fail(error, result, fault, NULL);
  int64_t now_ms;
  spile_item item = {.key = key, .key_len = key_len, .spec = &limit->spec};
  int64_t deadline_ms;
  result = spile__limiter_time(limiter, &item, 1, &now_ms, &deadline_ms);
  if (result != SPILE_OK)
    return spile__fail(error, result, "the given time is outside 0 to SPILE_TIME_MAX_MS", NULL);
  spile_error answer = {0};
  result = limiter->store->ops->clear(limiter->store, &item, deadline_ms, &answer);
  if (result == SPILE_OK)
    return SPILE_OK;
  result = spile__answer_settle(&answer, result, result == SPILE_EUNAVAILABLE || result == SPILE_ENOMEM);
  answer.code = result;
  if (error != NULL && error->code == 0)
    *error = answer;
  return result;
}

int spile_clean(spile_limiter *limiter, spile_clean_what what, spile_error *error) {
  if (limiter == NULL || what < SPILE_CLEAN_FULL || what > SPILE_CLEAN_SIMULATED)
    return spile__fail(error, SPILE_EINVAL, "the limiter is NULL or there is no such kind to clean", NULL);
  if (limiter->fork_generation != spile__fork_generation())
    return spile__fail(error, SPILE_EFORK, spile_code_text(SPILE_EFORK), NULL);
  if (limiter->store->ops->clean == NULL)
    return spile__fail(error, SPILE_ENOTSUP, "this store cannot be cleaned", NULL);
  for (bool again = true; again;) {
    int64_t now_ms;
    int64_t deadline_ms;
    int result = spile__limiter_time(limiter, NULL, 0, &now_ms, &deadline_ms);
    if (result != SPILE_OK)
      return spile__fail(error, result, "the given time is outside 0 to SPILE_TIME_MAX_MS", NULL);
    again = false;
    result = limiter->store->ops->clean(limiter->store, what, now_ms, deadline_ms, &again, error);
    if (result != SPILE_OK)
      return result;
  }
  return SPILE_OK;
}

int spile_each(spile_limiter *limiter, spile_visitor *visit, void *user, spile_error *error) {
  if (limiter == NULL || visit == NULL)
    return spile__fail(error, SPILE_EINVAL, "the limiter or the visitor is NULL", NULL);
  if (limiter->fork_generation != spile__fork_generation())
    return spile__fail(error, SPILE_EFORK, spile_code_text(SPILE_EFORK), NULL);
  if (limiter->store->ops->each == NULL)
    return spile__fail(error, SPILE_ENOTSUP, "this store cannot list its buckets", NULL);
  int64_t now_ms;
  int64_t deadline_ms;
  int result = spile__limiter_time(limiter, NULL, 0, &now_ms, &deadline_ms);
  if (result != SPILE_OK)
    return spile__fail(error, result, "the given time is outside 0 to SPILE_TIME_MAX_MS", NULL);
  return limiter->store->ops->each(limiter->store, now_ms, limiter->timeout_ms, visit, user, error);
}
