/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of answers, errors and reasons, each made from the one list in the header.
 */
#include <string.h>

#include "limiter/breaker.h"

#ifndef SPILE_VERSION
#error "SPILE_VERSION is set by the build"
#endif

const char *spile_code_name(int code) {
  switch (code) {
  case SPILE_OK:
    return "SPILE_OK";
  case SPILE_ALLOWED:
    return "SPILE_ALLOWED";
  case SPILE_DENIED:
    return "SPILE_DENIED";
  case SPILE_NEVER:
    return "SPILE_NEVER";
#define CODE_NAME(name, number, text) \
  case number:                        \
    return "SPILE_" #name;
    SPILE_ERRORS(CODE_NAME)
#undef CODE_NAME
  default:
    return "SPILE_UNKNOWN_CODE";
  }
}

const char *spile_code_text(int code) {
  switch (code) {
  case SPILE_OK:
    return "done";
  case SPILE_ALLOWED:
    return "allowed: the tokens are taken";
  case SPILE_DENIED:
    return "denied: not now";
  case SPILE_NEVER:
    return "never: the cost is above the capacity";
#define CODE_TEXT(name, number, text) \
  case number:                        \
    return text;
    SPILE_ERRORS(CODE_TEXT)
#undef CODE_TEXT
  default:
    return "a code this version does not know";
  }
}

const char *spile_outcome_name(int outcome) {
  switch (outcome) {
  case SPILE_ALLOWED:
    return "allowed";
  case SPILE_DENIED:
    return "denied";
  case SPILE_NEVER:
    return "never";
  default:
    return "none";
  }
}

const char *spile_reason_name(int reason) {
  switch (reason) {
#define REASON_NAME(name, number, text) \
  case number:                          \
    return text;
    SPILE_REASONS(REASON_NAME)
#undef REASON_NAME
  default:
    return "unknown";
  }
}

void spile__error_settle(spile_error *error, int code) {
  if (code == SPILE_EUNAVAILABLE && (error->reason <= SPILE_REASON_NONE || error->reason >= SPILE_REASONS_MAX))
    error->reason = SPILE_REASON_PROTOCOL;
  if (error->message[0] != '\0')
    return;
  const char *text = code == SPILE_EUNAVAILABLE
                         ? "the store does not say what is wrong; whether it was done is not known"
                         : spile_code_text(code);
  memcpy(error->message, text, strlen(text) + 1);
}

const char *spile_decided_by_name(int decided_by) {
  switch (decided_by) {
  case SPILE_BY_STORE:
    return "store";
  case SPILE_BY_FULL:
    return "full";
  case SPILE_BY_LIMITS:
    return "limits";
  case SPILE_BY_POLICY:
    return "policy";
  default:
    return "nobody";
  }
}

const char *spile_version(void) {
  return SPILE_VERSION;
}
