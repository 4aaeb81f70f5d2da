/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate of a limit: a refill as text or as a number a second, or a window.
 */
#include <string.h>

#include "core/text.h"
#include "limits/reader.h"

const char *spile__message_split(char *message, const char **advice) {
  static const char column[] = "column ";
  if (strncmp(message, column, sizeof(column) - 1) == 0) {
    char *colon = strstr(message, ": ");
    message = colon != NULL ? colon + 2 : message;
  }
  char *semicolon = strstr(message, "; ");
  *advice = semicolon != NULL ? semicolon + 2 : "";
  if (semicolon != NULL)
    *semicolon = '\0';
  return message;
}

/* Reads a rate by the rules of a limit's text form, so that a decimal is exact whatever the locale. */
static bool rate_read(spile__reader *reader, const spile__node *node, const char *rate, size_t len, const char *period,
                      const char *advice, spile__limit_text *out) {
  enum { RATE_LEN_MAX = 60 };
  spile__faults *faults = &reader->faults;
  if (len > RATE_LEN_MAX || memchr(rate, ',', len) != NULL) {
    spile__fault_error(faults, node, advice, "%s is no rate", spile__show(rate, len).text);
    return false;
  }
  char limit[RATE_LEN_MAX + 20];
  memcpy(limit, rate, len);
  limit[len] = '\0';
  spile__text text;
  spile__text_init(&text, limit + len, sizeof(limit) - len);
  spile__text_put(&text, period);
  /* A limit of a decimal rate has to have one; it is thrown away. */
  spile__text_put(&text, ",capacity=1");
  spile__limit_text parsed;
  if (spile__limit_parse(&parsed, limit, NULL) != SPILE_OK) {
    /* It is the rate that is wrong, whatever stands behind it: told of the rate alone. */
    const char *unused;
    spile_error error = {0};
    limit[len + strlen(period)] = '\0';
    (void)spile__limit_parse(&parsed, limit, &error);
    spile__fault_error(faults, node, advice, "%s is no rate: %s", spile__show(rate, len).text,
                       spile__message_split(error.message, &unused));
    return false;
  }
  out->refill_tokens = parsed.refill_tokens;
  out->refill_period_ms = parsed.refill_period_ms;
  return true;
}

bool spile__refill_read(spile__reader *reader, const spile__node *node, spile__limit_text *out) {
  static const char advice[] = "write tokens and a period, such as \"1/s\", \"1/2s\" or \"30/m\"";
  if (json_is_string(node->value))
    return rate_read(reader, node, json_string_value(node->value), json_string_length(node->value), "", advice, out);
  spile__fault_error(&reader->faults, node, advice, "%s is no rate", spile__show_value(&reader->document, node).text);
  return false;
}

bool spile__refill_per_sec_read(spile__reader *reader, const spile__node *node, spile__limit_text *out) {
  static const char advice[] = "write tokens a second above zero with at most 9 decimals, such as 0.05";
  const char *written = reader->document.text + node->at;
  size_t len = node->end - node->at;
  if (strspn(written, "0123456789.") >= len)
    return rate_read(reader, node, written, len, "/s", advice, out);
  spile__fault_error(&reader->faults, node, advice, "%s is no rate", spile__show_value(&reader->document, node).text);
  return false;
}

bool spile__window_read(spile__reader *reader, const spile__node *node, spile__limit_text *out) {
  static const char advice[] = "write a length of time such as \"30s\", \"5m\" or \"1d\"";
  const char *at = json_string_value(node->value);
  int64_t window_ms = at != NULL ? spile__duration_parse(&at) : -1;
  if (window_ms < 1 || *at != '\0' || json_string_length(node->value) > 40) {
    bool too_long = window_ms == SPILE__DURATION_TOO_LONG;
    spile__fault_error(&reader->faults, node, advice, "%s is %s", spile__show_value(&reader->document, node).text,
                       too_long ? "more than ten years" : "no length of time");
    return false;
  }
  out->refill_period_ms = window_ms;
  return true;
}
