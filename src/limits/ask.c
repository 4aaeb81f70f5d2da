/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request meets the limits of its route's entry and those of every request. Those in force are one question to the
 * store, all or nothing, each with the subject that its own chain gives. Shadow limits come afterwards, one by one,
 * when the store has let the request by: they are counted as if they were in force, and change nothing.
 *
 * What needs no store is answered here and labelled as the limits' own: an entry of "skip", the words "blocked" and
 * "unlimited", and an entry that has nothing but shadow limits.
 */
#include "limits/ask.h"

#include <string.h>

#include "core/checked.h"
#include "core/decide.h"
#include "core/text.h"
#include "limiter/env.h"
#include "limiter/limiter.h"
#include "limiter/watch.h"
#include "limits/subject.h"

/* Bytes for keys on the stack. Longer ones are put into memory that is allocated for the call. */
#define KEYS_ROOM 1024

typedef struct ask {
  spile_limiter *limiter;
  const spile_route *route;
  const spile_caller *caller;
  int64_t cost;
  spile_verb verb;
  spile__no_subject no_subject;
  spile_ruling *ruling;
  spile_request requests[SPILE_ROUTE_LIMITS_MAX];
  const spile__route_limit *of[SPILE_ROUTE_LIMITS_MAX]; /* whose each request is */
  uint32_t missing;                                     /* bit i: limit i of the route has no subject */
  size_t keys_len;                                      /* bytes of all keys together */
} ask;

/* ---- Answers that need no store ---- */

static void ruling_begin(spile_ruling *ruling, const spile_route *route) {
  spile__decision_clear(&ruling->decision);
  ruling->route = route;
  ruling->skipped = false;
  ruling->n = 0;
  ruling->n_shadow = 0;
  ruling->n_waived = 0;
}

static int ruling_refuse(spile_ruling *ruling, int code, const char *why) {
  spile_error error = {0};
  (void)spile__fail(&error, code, why, NULL);
  spile__decision_fail(&ruling->decision, &error);
  return code;
}

static int ask_answer(const ask *a, int outcome, spile_decided_by decided_by) {
  a->ruling->decision.outcome = outcome;
  a->ruling->decision.decided_by = (int)decided_by;
  if (a->verb == SPILE_VERB_TAKE)
    spile__limiter_count(a->limiter, a->verb, outcome, &a->ruling->decision);
  return outcome;
}

/* ---- Keys ---- */

static bool same_chain(const spile__key_chain *a, const spile__key_chain *b) {
  return a->parts == b->parts && a->n == b->n;
}

/* A cost that is given is that of the route's own limits, and the others have their own … */
static spile_request ask_request(const ask *a, const spile__route_limit *limit, const void *key, size_t key_len) {
  int64_t cost = limit->always || a->cost == SPILE_ROUTE_COST ? limit->cost : a->cost;
  return (spile_request){.limit = limit->limit, .key = key, .key_len = key_len, .cost = cost};
}

/* … which a take paid once: what settles a given cost leaves them alone. */
static bool ask_concerns(const ask *a, const spile__route_limit *limit) {
  bool settles = a->verb == SPILE_VERB_CHARGE || a->verb == SPILE_VERB_REFUND;
  return !limit->always || !settles || a->cost == SPILE_ROUTE_COST;
}

/* Makes the subject of a limit in `bytes`. @return as spile__subject_make */
static int ask_subject(const ask *a, const spile__route_limit *limit, char *bytes, size_t size, size_t *len) {
  spile__subject_rules rules = {.secret = &a->limiter->secret, .ipv6_prefix = a->limiter->ipv6_prefix};
  return spile__subject_make(&limit->chain, a->caller, a->route->text, &rules, bytes, size, len);
}

/* Whether `policy` refuses more than `other`: fail comes before closed, and closed before open. */
static bool is_stricter(spile_on_store_error policy, spile_on_store_error other) {
  if (policy == SPILE_ON_STORE_ERROR_FAIL || other == SPILE_ON_STORE_ERROR_FAIL)
    return other != SPILE_ON_STORE_ERROR_FAIL;
  return policy == SPILE_ON_STORE_ERROR_CLOSED && other == SPILE_ON_STORE_ERROR_OPEN;
}

/* There is no answer, since `limit` has no subject; the decision names it. */
static int ask_fail(const ask *a, int code, const spile__route_limit *limit) {
  const char *why = code == SPILE_ECONFIG
                        ? "a subject must be hashed (an api_key, or more than 4096 bytes): set options.secret_file"
                        : "the caller has nothing that the limit's key asks for; end its chain with a kind all have";
  (void)ruling_refuse(a->ruling, code, why);
  a->ruling->decision.name = spile_limit_name(limit->limit);
  a->ruling->decision.capacity = spile_limit_capacity(limit->limit);
  return code;
}

/* What a limit says that has no subject is what its on_store_error says, and is counted so. */
static void ask_count_missing(const ask *a) {
  spile__metrics *metrics = spile__watch_metrics(a->limiter->watch);
  if (metrics == NULL || a->verb != SPILE_VERB_TAKE || a->no_subject != SPILE__NO_SUBJECT_BY_POLICY)
    return;
  for (size_t i = 0; i < a->route->n; i++) {
    if ((a->missing >> i & 1) == 0)
      continue;
    const spile_spec *spec = spile_limit_spec(a->route->limits[i].limit);
    spile_on_store_error policy = spile__limiter_policy(a->limiter, spec);
    spile_decision own;
    spile__decision_clear(&own);
    own.store_error = SPILE_REASON_SUBJECT;
    if (policy != SPILE_ON_STORE_ERROR_FAIL) {
      own.outcome = policy == SPILE_ON_STORE_ERROR_OPEN ? SPILE_ALLOWED : SPILE_DENIED;
      own.decided_by = SPILE_BY_POLICY;
    }
    spile__metrics_take(metrics, spec, own.outcome != 0 ? own.outcome : SPILE_ENOSUBJECT, &own, false);
  }
}

/* There is no answer from a store, since `missing` and perhaps others have no subject. */
static int ask_settle_missing(const ask *a, const spile__route_limit *missing) {
  (void)ask_fail(a, SPILE_ENOSUBJECT, missing);
  if (a->no_subject != SPILE__NO_SUBJECT_BY_POLICY)
    return SPILE_ENOSUBJECT;
  a->ruling->decision.store_error = SPILE_REASON_SUBJECT;
  const spile_spec *spec = spile_limit_spec(missing->limit);
  if (spile__limiter_policy(a->limiter, spec) == SPILE_ON_STORE_ERROR_CLOSED) {
    (void)ask_answer(a, SPILE_DENIED, SPILE_BY_POLICY);
    if (a->verb == SPILE_VERB_TAKE)
      spile__watch_keyless(a->limiter->watch, spec->name, a->route->text, &a->ruling->decision);
    return SPILE_DENIED;
  }
  spile__limiter_count(a->limiter, a->verb, SPILE_ENOSUBJECT, &a->ruling->decision);
  return SPILE_ENOSUBJECT;
}

_Static_assert(SPILE_ROUTE_LIMITS_MAX <= 32, "a set of limits is the bits of a uint32_t");

/* What becomes of a limit in force that has no subject: left out, or it may be the one that settles the request. */
static const spile__route_limit *ask_miss(ask *a, size_t i, const spile__route_limit *missing) {
  const spile__route_limit *limit = &a->route->limits[i];
  spile_on_store_error policy = spile__limiter_policy(a->limiter, spile_limit_spec(limit->limit));
  bool open = policy == SPILE_ON_STORE_ERROR_OPEN && a->no_subject == SPILE__NO_SUBJECT_BY_POLICY;
  a->missing |= UINT32_C(1) << i;
  if (open || a->no_subject == SPILE__NO_SUBJECT_LEFT_OUT) {
    a->ruling->n_waived++;
    return missing;
  }
  bool settles =
      missing == NULL || is_stricter(policy, spile__limiter_policy(a->limiter, spile_limit_spec(missing->limit)));
  return settles ? limit : missing;
}

/*
 * Makes a request of every limit in force. Limits of one chain share one key. Where a->keys_len is above `size` the
 * keys are not whole, and nothing is counted or settled yet that depends on them.
 * @return SPILE_OK; SPILE_DENIED, a limit without a subject is closed; SPILE_ENOSUBJECT, SPILE_ECONFIG
 */
static int ask_make_keys(ask *a, char *bytes, size_t size) {
  spile_ruling *ruling = a->ruling;
  const spile__route_limit *missing = NULL;
  a->missing = 0;
  a->keys_len = 0;
  ruling->n = ruling->n_waived = 0;
  for (size_t i = 0; i < a->route->n && !a->route->limits[i].shadow; i++) {
    const spile__route_limit *limit = &a->route->limits[i];
    if (!ask_concerns(a, limit))
      continue;
    size_t j = 0;
    while (j < ruling->n && !same_chain(&a->of[j]->chain, &limit->chain))
      j++;
    const void *key;
    size_t key_len;
    if (j < ruling->n) {
      key = a->requests[j].key;
      key_len = a->requests[j].key_len;
    } else {
      size_t at = a->keys_len < size ? a->keys_len : size;
      int result = ask_subject(a, limit, bytes + at, size - at, &key_len);
      if (result == SPILE_ECONFIG)
        return ask_fail(a, result, limit);
      if (result == SPILE_ENOSUBJECT) {
        missing = ask_miss(a, i, missing);
        continue;
      }
      key = bytes + at;
      a->keys_len += key_len;
    }
    ruling->limits[ruling->n] = limit->limit;
    a->of[ruling->n] = limit;
    a->requests[ruling->n++] = ask_request(a, limit, key, key_len);
  }
  if (missing == NULL && a->keys_len > size)
    return SPILE_OK;
  ask_count_missing(a);
  if (missing == NULL)
    return SPILE_OK;
  ruling->n = 0;
  return ask_settle_missing(a, missing);
}

/* ---- The question ---- */

/* The entry is "blocked": nobody's key is looked at, and what is told of it has the entry's name for a limit. */
static int ask_blocked(const ask *a) {
  (void)ask_answer(a, SPILE_NEVER, SPILE_BY_LIMITS);
  if (a->verb == SPILE_VERB_TAKE)
    spile__watch_keyless(a->limiter->watch, a->route->text, a->route->text, &a->ruling->decision);
  return SPILE_NEVER;
}

/* Memory for keys that are too long for the stack, of the limiter's allocator. */
static char *keys_allocate(const ask *a, size_t len) {
  return a->limiter->env.allocate(a->limiter->env.allocate_user, NULL, len);
}

static void keys_free(const ask *a, char *keys) {
  (void)a->limiter->env.allocate(a->limiter->env.allocate_user, keys, 0);
}

/* Asks with keys that there is no memory for: the limits decide by their own policy. */
static int ask_without_keys(const ask *a, spile_request *requests, size_t n, spile_decision *decision,
                            spile_decision *each, bool shadow) {
  spile_error why = {.reason = SPILE_REASON_MEMORY};
  (void)spile__fail(&why, SPILE_ENOMEM, "out of memory for the keys of a request", NULL);
  for (size_t i = 0; i < n; i++) {
    requests[i].key = "";
    requests[i].key_len = 1;
  }
  return spile__limiter_ask(a->limiter, a->verb, requests, n, decision, each,
                            &(spile__about){.route = a->route->text, .shadow = shadow, .failure = &why});
}

/* Asks for one shadow limit with `bytes` for its key. @return as spile_take; SPILE_ENOSUBJECT, it is left out; 0, the
 * key is longer, *key_len */
static int ask_shadow_with(const ask *a, const spile__route_limit *limit, char *bytes, size_t size, size_t *key_len,
                           spile_decision *decision) {
  if (ask_subject(a, limit, bytes, size, key_len) != SPILE_OK)
    return SPILE_ENOSUBJECT;
  if (*key_len > size)
    return 0;
  spile_decision each;
  spile_request request = ask_request(a, limit, bytes, *key_len);
  return spile__limiter_ask(a->limiter, a->verb, &request, 1, decision, &each,
                            &(spile__about){.route = a->route->text, .shadow = true});
}

static int ask_shadow(const ask *a, const spile__route_limit *limit, char *bytes, size_t size,
                      spile_decision *decision) {
  size_t key_len;
  int result = ask_shadow_with(a, limit, bytes, size, &key_len, decision);
  if (result != 0)
    return result;
  char *longer = keys_allocate(a, key_len);
  if (longer != NULL)
    result = ask_shadow_with(a, limit, longer, key_len, &key_len, decision);
  if (result == 0) {
    spile_decision each;
    spile_request request = ask_request(a, limit, NULL, 0);
    result = ask_without_keys(a, &request, 1, decision, &each, true);
  }
  keys_free(a, longer);
  return result;
}

/* Asks for every shadow limit, alone. What has no subject is left out, and a store that fails is not waited for again.
 */
static void ask_shadows(const ask *a, char *bytes, size_t size) {
  spile_ruling *ruling = a->ruling;
  for (size_t i = 0; i < a->route->n; i++) {
    const spile__route_limit *limit = &a->route->limits[i];
    if (!limit->shadow || !ask_concerns(a, limit))
      continue;
    size_t at = ruling->n + ruling->n_shadow;
    int result = ask_shadow(a, limit, bytes, size, &ruling->each[at]);
    if (result == SPILE_ENOSUBJECT)
      continue;
    ruling->each[at].index = (uint32_t)at;
    ruling->limits[at] = limit->limit;
    ruling->n_shadow++;
    if (result < 0 || ruling->each[at].decided_by == SPILE_BY_POLICY)
      return;
  }
}

/* No limit in force is left to ask for: there is none, or all were left out for want of a subject. */
static int ask_nothing(const ask *a) {
  if (a->ruling->n_waived == 0)
    return ask_answer(a, SPILE_ALLOWED, SPILE_BY_LIMITS);
  (void)ruling_refuse(a->ruling, SPILE_ENOSUBJECT, "left out: the caller has nothing that the limit's key asks for");
  a->ruling->decision.store_error = SPILE_REASON_SUBJECT;
  return ask_answer(a, SPILE_ALLOWED, SPILE_BY_POLICY);
}

/* Asks for the limits in force; their keys are made. */
static int ask_in_force(ask *a) {
  spile_ruling *ruling = a->ruling;
  return spile__limiter_ask(a->limiter, a->verb, a->requests, ruling->n, &ruling->decision, ruling->each,
                            &(spile__about){.route = a->route->text});
}

/* The same with keys that do not fit the stack. */
SPILE__OUT_OF_LINE static int ask_with_long_keys(ask *a) {
  spile_ruling *ruling = a->ruling;
  size_t len = a->keys_len;
  char *keys = keys_allocate(a, len);
  int result = keys != NULL ? ask_make_keys(a, keys, len) : SPILE_OK;
  /* Whoever tells the headers may tell longer ones now. */
  if (result == SPILE_OK && (keys == NULL || a->keys_len > len)) {
    ask_count_missing(a);
    result = ask_without_keys(a, a->requests, ruling->n, &ruling->decision, ruling->each, false);
  } else if (result == SPILE_OK) {
    result = ruling->n > 0 ? ask_in_force(a) : ask_nothing(a);
  }
  keys_free(a, keys);
  return result;
}

static int ask_decide(ask *a) {
  char bytes[KEYS_ROOM];
  spile_ruling *ruling = a->ruling;
  int result = ask_make_keys(a, bytes, sizeof(bytes));
  if (result != SPILE_OK)
    return result;
  if (a->keys_len > sizeof(bytes))
    result = ask_with_long_keys(a);
  else
    result = ruling->n > 0 ? ask_in_force(a) : ask_nothing(a);
  if (result == SPILE_ALLOWED && (ruling->decision.decided_by != SPILE_BY_POLICY || ruling->n == 0))
    ask_shadows(a, bytes, sizeof(bytes));
  return result;
}

int spile__limits_ask(spile_limiter *limiter, const spile_route *route, const spile_caller *caller, int64_t cost,
                      spile_verb verb, spile__no_subject no_subject, spile_ruling *ruling) {
  ruling_begin(ruling, route);
  if (cost < SPILE_ROUTE_COST)
    return ruling_refuse(ruling, SPILE_EINVAL, "the cost is below zero");
  if (limiter->fork_generation != spile__fork_generation())
    return ruling_refuse(ruling, SPILE_EFORK, spile_code_text(SPILE_EFORK));
  ask a = {.limiter = limiter,
           .route = route,
           .caller = caller,
           .cost = cost,
           .verb = verb,
           .no_subject = no_subject,
           .ruling = ruling};
  if (route->word == SPILE_ROUTE_BLOCKED)
    return ask_blocked(&a);
  return ask_decide(&a);
}

int spile__limits_ask_for(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                          const spile_caller *caller, int64_t cost, spile_verb verb, spile__no_subject no_subject,
                          spile_ruling *ruling) {
  if (ruling == NULL)
    return SPILE_EINVAL;
  ruling_begin(ruling, NULL);
  if (limiter == NULL || limits == NULL || path == NULL)
    return ruling_refuse(ruling, SPILE_EINVAL, "the limiter, the limits or the path is NULL");
  if (caller == NULL || caller->struct_size < sizeof(*caller))
    return ruling_refuse(ruling, SPILE_EINVAL, "the caller is NULL or not started by SPILE_CALLER_INIT");
  const spile_route *route = spile_limits_find(limits, method, path, caller->tier);
  if (!spile__limits_skips(limits, method, path, caller))
    return spile__limits_ask(limiter, route, caller, cost, verb, no_subject, ruling);
  ruling_begin(ruling, route);
  ruling->skipped = true;
  ask a = {.limiter = limiter, .verb = verb, .ruling = ruling};
  return ask_answer(&a, SPILE_ALLOWED, SPILE_BY_LIMITS);
}

int spile_limits_take(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                      const spile_caller *caller, int64_t cost, spile_ruling *ruling) {
  return spile__limits_ask_for(limiter, limits, method, path, caller, cost, SPILE_VERB_TAKE, SPILE__NO_SUBJECT_FAILS,
                               ruling);
}

int spile_limits_peek(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                      const spile_caller *caller, int64_t cost, spile_ruling *ruling) {
  return spile__limits_ask_for(limiter, limits, method, path, caller, cost, SPILE_VERB_PEEK, SPILE__NO_SUBJECT_FAILS,
                               ruling);
}

int spile_limits_charge(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                        const spile_caller *caller, int64_t cost, spile_ruling *ruling) {
  return spile__limits_ask_for(limiter, limits, method, path, caller, cost, SPILE_VERB_CHARGE, SPILE__NO_SUBJECT_FAILS,
                               ruling);
}

int spile_limits_refund(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                        const spile_caller *caller, int64_t cost, spile_ruling *ruling) {
  return spile__limits_ask_for(limiter, limits, method, path, caller, cost, SPILE_VERB_REFUND, SPILE__NO_SUBJECT_FAILS,
                               ruling);
}
