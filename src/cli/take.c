/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile take, peek and clear: one question to one store. What a limits file answers is asked in take_file.c.
 */
#include "cli/verbs.h"

#include <inttypes.h>
#include <string.h>

#include <spile/sys/store.h>

#include "cli/decision.h"
#include "cli/limits_file.h"
#include "cli/output.h"
#include "cli/store.h"
#include "cli/take_file.h"

/* ---- The answer ---- */

/* What was asked of the deciding limit's bucket: limits of one name and algorithm are one, and their costs add up. */
static int64_t cost_asked(const cli_options *options, uint32_t index) {
  const spile_spec *decided = spile_limit_spec(options->limits[index]);
  int64_t cost = 0;
  for (size_t i = 0; i < options->limit_count; i++) {
    const spile_spec *spec = spile_limit_spec(options->limits[i]);
    cost += spec->algorithm == decided->algorithm && strcmp(spec->name, decided->name) == 0 ? options->cost : 0;
  }
  return cost;
}

/* ---- The question ---- */

int key_check(const cli_options *options, const char *verb) {
  if (options->argument_count != 1)
    return message(EXIT_USAGE, "%s needs one KEY%s; see spile %s --help", verb,
                   options->argument_count > 1 ? ", not several" : "", verb);
  size_t len = strlen(options->arguments[0]);
  if (len < 1 || len > SPILE_KEY_LEN_MAX)
    return message(EXIT_USAGE, "KEY has %zu bytes; it must have 1 to %d", len, SPILE_KEY_LEN_MAX);
  return limits_options_check(options, verb, true);
}

static int ask(const cli_options *options, bool peek) {
  int status = key_check(options, peek ? "peek" : "take");
  if (status != EXIT_ALLOWED)
    return status;
  if (options->given & OPTION_LIMITS)
    return file_ask(options, peek ? SPILE_VERB_PEEK : SPILE_VERB_TAKE);
  spile_limiter *limiter;
  status = store_open(&limiter, options->store,
                      &(store_settings){.timeout_ms = options->timeout_ms,
                                        .on_store_error = options->on_store_error,
                                        .key_prefix = options->key_prefix});
  if (status != EXIT_ALLOWED)
    return status;

  spile_request requests[SPILE_REQUESTS_MAX];
  size_t n = requests_make(requests, options, options->arguments[0], strlen(options->arguments[0]), options->cost);
  spile_decision decision;
  int result;
  if (peek)
    result = spile_peek_all(limiter, requests, n, &decision, NULL);
  else if (options->given & OPTION_WAIT)
    result = spile_wait_all(limiter, requests, n, options->wait_max_ms, &decision, NULL);
  else
    result = spile_take_all(limiter, requests, n, &decision, NULL);
  spile_close(limiter);
  if (result < 0)
    return store_failed(result, decision.store_error, decision.detail);

  if (decision.decided_by == SPILE_BY_POLICY)
    (void)store_failed(SPILE_EUNAVAILABLE, decision.store_error, decision.detail);
  cli_answer answer = {.decision = &decision,
                       .verb = peek ? SPILE_VERB_PEEK : SPILE_VERB_TAKE,
                       .cost = cost_asked(options, decision.index),
                       .several = n > 1};
  answer_print(options, &answer);
  return result == SPILE_ALLOWED ? EXIT_ALLOWED : EXIT_DENIED;
}

size_t requests_make(spile_request *requests, const cli_options *options, const char *key, size_t key_len,
                     int64_t cost) {
  for (size_t i = 0; i < options->limit_count; i++)
    requests[i] = (spile_request){.limit = options->limits[i], .key = key, .key_len = key_len, .cost = cost};
  return options->limit_count;
}

int take_run(const cli_options *options) {
  return ask(options, false);
}

int peek_run(const cli_options *options) {
  return ask(options, true);
}

/* ---- Forgetting ---- */

void cleared_print(const cli_options *options) {
  output(options->given & OPTION_JSON ? "{\"outcome\":\"cleared\"}\n" : "cleared\n");
}

static int clear_simulated(const cli_options *options) {
  if (options->argument_count > 0 ||
      (options->given & (OPTION_LIMIT | OPTION_LIMITS | OPTION_ROUTE | OPTION_TIER | OPTION_KEY_PREFIX)))
    return message(EXIT_USAGE, "clear --simulated takes neither KEY nor limits nor --key-prefix: it removes every "
                               "simulated bucket of the store");
  spile_limiter *limiter;
  int status = store_open(&limiter, options->store, &(store_settings){.timeout_ms = options->timeout_ms});
  if (status != EXIT_ALLOWED)
    return status;
  spile_error error = {0};
  int result = spile_clean(limiter, SPILE_CLEAN_SIMULATED, &error);
  spile_close(limiter);
  if (result != SPILE_OK)
    return store_failed(result, error.reason, error.message);
  cleared_print(options);
  return EXIT_ALLOWED;
}

int clear_run(const cli_options *options) {
  if (options->given & OPTION_SIMULATED)
    return clear_simulated(options);
  int status = key_check(options, "clear");
  if (status != EXIT_ALLOWED)
    return status;
  if (options->given & OPTION_LIMITS)
    return file_clear(options);
  spile_limiter *limiter;
  status = store_open(&limiter, options->store,
                      &(store_settings){.timeout_ms = options->timeout_ms, .key_prefix = options->key_prefix});
  if (status != EXIT_ALLOWED)
    return status;
  const char *key = options->arguments[0];
  for (size_t i = 0; i < options->limit_count && status == EXIT_ALLOWED; i++) {
    spile_error error = {0};
    int result = spile_clear(limiter, options->limits[i], key, strlen(key), &error);
    if (result != SPILE_OK)
      status = store_failed(result, error.reason, error.message);
  }
  spile_close(limiter);
  if (status == EXIT_ALLOWED)
    cleared_print(options);
  return status;
}
