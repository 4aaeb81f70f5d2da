/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decision for whoever asked: a line of words, or a JSON object.
 */
#ifndef SPILE_CLI_DECISION_H
#define SPILE_CLI_DECISION_H

#include <spile/limits.h>
#include <spile/sys/store.h>

#include "cli/options.h"

typedef struct cli_answer {
  const spile_decision *decision;
  spile_verb verb;
  int64_t cost;               /* what was asked of the deciding limit's bucket */
  bool several;               /* more than one limit was asked, so the deciding one is named */
  const spile_ruling *ruling; /* of a limits file; NULL: the limits are the command line's */
} cli_answer;

/* Prints in words, or with --json as an object. */
void answer_print(const cli_options *options, const cli_answer *answer);

#endif
