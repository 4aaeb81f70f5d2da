/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/decision.h"

#include <inttypes.h>
#include <string.h>

#include "cli/output.h"

/* What a store let through is called by what was done; a charge that met no limit did nothing. */
static const char *outcome_word(const cli_answer *answer) {
  if (answer->decision->decided_by == SPILE_BY_STORE && answer->verb == SPILE_VERB_CHARGE)
    return "charged";
  if (answer->decision->decided_by == SPILE_BY_STORE && answer->verb == SPILE_VERB_REFUND)
    return "refunded";
  return spile_outcome_name(answer->decision->outcome);
}

static void decision_print_json(const cli_answer *answer) {
  const spile_decision *decision = answer->decision;
  output("{\"outcome\":\"%s\",\"capacity\":", outcome_word(answer));
  output_json_number(decision->capacity);
  output(",\"remaining\":");
  output_json_number(decision->remaining);
  output(",\"retry_after_ms\":");
  output_json_number(decision->retry_after_ms);
  output(",\"reset_after_ms\":");
  output_json_number(decision->reset_after_ms);
  if (decision->delay_ms > 0)
    output(",\"delay_ms\":%" PRId64, decision->delay_ms);
  output(",\"decided_by\":\"%s\"", spile_decided_by_name(decision->decided_by));
  if (answer->verb == SPILE_VERB_CHARGE) {
    output(",\"uncharged\":%" PRId64 ",\"grows_after_ms\":", decision->uncharged);
    output_json_number(decision->grows_after_ms);
  }
  if (answer->several) {
    output(",");
    output_json_member("limit", decision->name, strlen(decision->name));
  }
  if (decision->store_error != SPILE_REASON_NONE)
    output(",\"store_error\":\"%s\"", spile_reason_name(decision->store_error));
  output("}\n");
}

/* What the file answers without asking any store. */
static void word_print(const spile_ruling *ruling) {
  if (ruling->skipped) {
    output("the file skips this request\n");
    return;
  }
  output("the entry ");
  output_escaped(spile_route_text(ruling->route), strlen(spile_route_text(ruling->route)));
  output("%s\n", ruling->decision.outcome == SPILE_NEVER ? " is blocked" : " has no limit in force");
}

/* How the numbers stand, or why there are none. */
static void numbers_print(const cli_answer *answer) {
  const spile_decision *decision = answer->decision;
  const char *counted = decision->outcome == SPILE_ALLOWED ? ", not counted" : "";
  if (decision->outcome == SPILE_NEVER)
    output("a cost of %" PRId64 " is more than the capacity of %" PRId64, answer->cost, decision->capacity);
  else if (decision->decided_by == SPILE_BY_POLICY)
    output("the store could not answer (%s)%s", spile_reason_name(decision->store_error), counted);
  else if (decision->remaining == SPILE_UNKNOWN)
    output("the store has no room for a new bucket%s", counted);
  else
    output("%" PRId64 " of %" PRId64 " left", decision->remaining, decision->capacity);
}

static void times_print(const cli_answer *answer) {
  const spile_decision *decision = answer->decision;
  /* Of a bucket with nothing left that a charge took below zero, this is what tells how far. */
  if (answer->verb == SPILE_VERB_CHARGE && decision->remaining == 0 && decision->grows_after_ms > 0) {
    output(", the next in ");
    output_duration(decision->grows_after_ms);
  }
  if (decision->outcome == SPILE_DENIED && decision->retry_after_ms != SPILE_UNKNOWN) {
    output(", try again in ");
    output_duration(decision->retry_after_ms);
  } else if (decision->outcome == SPILE_ALLOWED && decision->reset_after_ms == 0) {
    output(", full");
  } else if (decision->outcome == SPILE_ALLOWED && decision->reset_after_ms != SPILE_UNKNOWN) {
    output(", full in ");
    output_duration(decision->reset_after_ms);
  }
  if (decision->delay_ms > 0) {
    output(", go ahead in ");
    output_duration(decision->delay_ms);
  }
}

static void decision_print(const cli_answer *answer) {
  const spile_decision *decision = answer->decision;
  bool by_limits = decision->decided_by == SPILE_BY_LIMITS;
  output("%s: ", outcome_word(answer));
  if (by_limits && answer->ruling != NULL && answer->ruling->n == 0) {
    word_print(answer->ruling);
    return;
  }
  numbers_print(answer);
  if (answer->several) {
    output(" under ");
    output_escaped(decision->name, strlen(decision->name));
  }
  times_print(answer);
  if (decision->uncharged > 0)
    output("; %" PRId64 " not charged, as there was nothing left", decision->uncharged);
  if (by_limits)
    output("; the store could not answer (%s)", spile_reason_name(decision->store_error));
  output("\n");
}

void answer_print(const cli_options *options, const cli_answer *answer) {
  if (options->given & OPTION_JSON)
    decision_print_json(answer);
  else
    decision_print(answer);
}
