/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/take_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/caller.h"
#include "cli/decision.h"
#include "cli/limits_file.h"
#include "cli/output.h"
#include "cli/store.h"
#include "cli/verbs.h"
#include "limiter/limiter.h"
#include "limits/subject.h"

/* One request, and what it is decided by. */
typedef struct file_question {
  const cli_options *options;
  cli_caller caller;
  spile_limits *limits;
  spile_limiter *limiter;
} file_question;

/* ---- Opening ---- */

static void question_close(file_question *q) {
  spile_close(q->limiter);
  spile_limits_unref(q->limits);
}

/* @return EXIT_ALLOWED, or another with messages; to be closed on both */
static int question_open(file_question *q, const cli_options *options) {
  q->options = options;
  q->limits = NULL;
  q->limiter = NULL;
  int status = caller_parse(&q->caller, options->arguments[0]);
  if (status != EXIT_ALLOWED)
    return status;
  q->caller.caller.tier = options->tier;
  status = limits_file_load(&q->limits, options);
  if (status != EXIT_ALLOWED)
    return status;
  return store_open(&q->limiter, options->store,
                    &(store_settings){.timeout_ms = options->timeout_ms,
                                      .on_store_error = options->on_store_error,
                                      .key_prefix = key_prefix_find(options, q->limits),
                                      .secret_file = secret_file_find()});
}

/* ---- What has no answer ---- */

/* Writes the kinds of a chain as KEY would have them: "tenant, user, header:X-Client". */
static void chain_write(const spile__key_chain *chain, char *out, size_t size) {
  static const char *const kinds[] = {
      [SPILE__KEY_TENANT] = "tenant",  [SPILE__KEY_USER] = "user",   [SPILE__KEY_API_KEY] = "api_key",
      [SPILE__KEY_IP] = "ip",          [SPILE__KEY_ROUTE] = "route", [SPILE__KEY_GLOBAL] = "global",
      [SPILE__KEY_HEADER] = "header:",
  };
  size_t n = 0;
  for (size_t i = 0; i < chain->n && n < size; i++) {
    const spile__key_part *part = &chain->parts[i];
    int wrote = snprintf(out + n, size - n, "%s%s%s", i > 0 ? ", " : "", kinds[part->kind],
                         part->kind == SPILE__KEY_HEADER ? part->header : "");
    n += wrote > 0 ? (size_t)wrote : 0;
  }
}

static int subject_missing(const file_question *q, const spile__route_limit *limit) {
  char kinds[512] = "";
  chain_write(&limit->chain, kinds, sizeof(kinds));
  const char *name = spile_limit_name(limit->limit);
  if (q->caller.caller.bare != NULL)
    return message(EXIT_USAGE,
                   "KEY is bare, so it is the first of what the limit %s is kept by (%s), and an ip must be "
                   "an address; write KIND=VALUE",
                   name, kinds);
  return message(EXIT_USAGE, "KEY has nothing that the limit %s is kept by (%s); write KIND=VALUE of one of them", name,
                 kinds);
}

static int secret_missing(const char *name) {
  return message(EXIT_USAGE,
                 "the limit %s needs a secret to hash KEY with (an api_key, or more than 4096 bytes); set "
                 "SPILE_SECRET_FILE to the secret file that the servers use",
                 name);
}

/* Why a question has no answer. @return the exit status */
static int ask_failed(const file_question *q, int result, const spile_ruling *ruling) {
  const spile_decision *decision = &ruling->decision;
  if (result == SPILE_ECONFIG && decision->name != NULL)
    return secret_missing(decision->name);
  for (size_t i = 0; result == SPILE_ENOSUBJECT && i < ruling->route->n; i++) {
    const spile__route_limit *limit = &ruling->route->limits[i];
    if (decision->name != NULL && strcmp(spile_limit_name(limit->limit), decision->name) == 0)
      return subject_missing(q, limit);
  }
  return store_failed(result, decision->store_error, decision->detail);
}

/* ---- Asking ---- */

static int64_t monotonic_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void sleep_ms(int64_t ms) {
  struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
  }
}

/* Takes, and with --wait sleeps exactly as long as a denial says and takes again, as spile_wait_all does. */
static int file_take(const file_question *q, int64_t cost, spile_ruling *ruling) {
  const cli_options *options = q->options;
  int64_t start_ms = monotonic_ms();
  for (;;) {
    int result = spile_limits_take(q->limiter, q->limits, NULL, options->route, &q->caller.caller, cost, ruling);
    int64_t retry_ms = ruling->decision.retry_after_ms;
    if (!(options->given & OPTION_WAIT) || result != SPILE_DENIED || retry_ms == SPILE_UNKNOWN)
      return result;
    if (options->wait_max_ms != SPILE_FOREVER && retry_ms > options->wait_max_ms - (monotonic_ms() - start_ms))
      return result;
    sleep_ms(retry_ms);
  }
}

/* What was asked of the deciding limit's bucket. The limits in force are asked in the order in which the entry has
 * them; those of one name are one bucket, and their costs add up. */
static int64_t cost_asked(const spile_ruling *ruling, int64_t cost) {
  int64_t sum = 0;
  for (size_t i = 0; i < ruling->n; i++) {
    const spile__route_limit *limit = &ruling->route->limits[i];
    bool own = cost != SPILE_ROUTE_COST && !limit->always;
    if (strcmp(spile_limit_name(limit->limit), ruling->decision.name) == 0)
      sum += own ? cost : limit->cost;
  }
  return sum;
}

typedef int file_call(spile_limiter *, const spile_limits *, const char *, const char *, const spile_caller *, int64_t,
                      spile_ruling *);

static int question_ask(const file_question *q, spile_verb verb) {
  const cli_options *options = q->options;
  int64_t cost = options->given & OPTION_COST ? options->cost : SPILE_ROUTE_COST;
  spile_ruling ruling;
  bool settles = verb == SPILE_VERB_CHARGE || verb == SPILE_VERB_REFUND;
  file_call *call = verb == SPILE_VERB_CHARGE   ? spile_limits_charge
                    : verb == SPILE_VERB_REFUND ? spile_limits_refund
                                                : spile_limits_peek;
  int result = verb == SPILE_VERB_TAKE
                   ? file_take(q, cost, &ruling)
                   : call(q->limiter, q->limits, NULL, options->route, &q->caller.caller, cost, &ruling);
  if (result < 0)
    return ask_failed(q, result, &ruling);

  const spile_decision *decision = &ruling.decision;
  if (decision->decided_by == SPILE_BY_POLICY)
    (void)store_failed(SPILE_EUNAVAILABLE, decision->store_error, decision->detail);
  cli_answer answer = {.decision = decision,
                       .verb = verb,
                       .cost = cost_asked(&ruling, cost),
                       .several = ruling.n > 1,
                       .ruling = &ruling};
  answer_print(options, &answer);
  return result == SPILE_ALLOWED || settles ? EXIT_ALLOWED : EXIT_DENIED;
}

int file_ask(const cli_options *options, spile_verb verb) {
  static file_question q;
  int status = question_open(&q, options);
  if (status == EXIT_ALLOWED)
    status = question_ask(&q, verb);
  question_close(&q);
  return status;
}

/* ---- Forgetting ---- */

/* Makes the key of a limit. @return EXIT_ALLOWED, or EXIT_USAGE with a message */
static int clear_key(const file_question *q, const spile_route *route, const spile__route_limit *limit,
                     char key[SPILE_KEY_LEN_MAX], size_t *key_len) {
  spile__subject_rules rules = {.secret = &q->limiter->secret, .ipv6_prefix = q->limiter->ipv6_prefix};
  int result =
      spile__subject_make(&limit->chain, &q->caller.caller, route->text, &rules, key, SPILE_KEY_LEN_MAX, key_len);
  if (result == SPILE_ENOSUBJECT)
    return subject_missing(q, limit);
  return result == SPILE_OK ? EXIT_ALLOWED : secret_missing(spile_limit_name(limit->limit));
}

static int question_clear(const file_question *q) {
  const spile_route *route = spile_limits_find(q->limits, NULL, q->options->route, q->options->tier);
  char key[SPILE_KEY_LEN_MAX];
  size_t key_len;
  int status = EXIT_ALLOWED;
  /* All keys are made once before any bucket is cleared: what KEY lacks is said while nothing has happened yet. */
  for (size_t i = 0; i < route->n && status == EXIT_ALLOWED; i++)
    status = clear_key(q, route, &route->limits[i], key, &key_len);
  for (size_t i = 0; i < route->n && status == EXIT_ALLOWED; i++) {
    spile_error error = {0};
    (void)clear_key(q, route, &route->limits[i], key, &key_len);
    int result = spile_clear(q->limiter, route->limits[i].limit, key, key_len, &error);
    if (result != SPILE_OK)
      status = store_failed(result, error.reason, error.message);
  }
  return status;
}

int file_clear(const cli_options *options) {
  static file_question q;
  int status = question_open(&q, options);
  if (status == EXIT_ALLOWED)
    status = question_clear(&q);
  question_close(&q);
  if (status == EXIT_ALLOWED)
    cleared_print(options);
  return status;
}
