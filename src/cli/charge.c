/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile charge and refund: what settles a cost that was not known when it was taken. Neither is ever refused, so the
 * status says only whether it was done.
 */
#include <string.h>

#include "cli/decision.h"
#include "cli/output.h"
#include "cli/store.h"
#include "cli/take_file.h"
#include "cli/verbs.h"

static int settle(const cli_options *options, spile_verb verb) {
  bool refund = verb == SPILE_VERB_REFUND;
  int status = key_check(options, refund ? "refund" : "charge");
  if (status != EXIT_ALLOWED)
    return status;
  if (options->given & OPTION_LIMITS)
    return file_ask(options, verb);
  spile_limiter *limiter;
  status = store_open(&limiter, options->store,
                      &(store_settings){.timeout_ms = options->timeout_ms, .key_prefix = options->key_prefix});
  if (status != EXIT_ALLOWED)
    return status;

  spile_request requests[SPILE_REQUESTS_MAX];
  size_t n = requests_make(requests, options, options->arguments[0], strlen(options->arguments[0]), options->cost);
  spile_decision decision;
  int result = refund ? spile_refund_all(limiter, requests, n, &decision, NULL)
                      : spile_charge_all(limiter, requests, n, &decision, NULL);
  spile_close(limiter);
  if (result < 0)
    return store_failed(result, decision.store_error, decision.detail);

  cli_answer answer = {.decision = &decision, .verb = verb, .cost = options->cost, .several = n > 1};
  answer_print(options, &answer);
  return EXIT_ALLOWED;
}

int charge_run(const cli_options *options) {
  return settle(options, SPILE_VERB_CHARGE);
}

int refund_run(const cli_options *options) {
  return settle(options, SPILE_VERB_REFUND);
}
