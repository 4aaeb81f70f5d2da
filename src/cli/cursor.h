/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of a text that is being read. Each function moves on over what it was asked for, or says that something
 * else stands there; nothing is read beyond the end.
 */
#ifndef SPILE_CLI_CURSOR_H
#define SPILE_CLI_CURSOR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cursor {
  const char *at;
  const char *end;
} cursor;

static inline bool cursor_skip(cursor *text, char c) {
  if (text->at == text->end || *text->at != c)
    return false;
  text->at++;
  return true;
}

static inline bool cursor_at_digit(const cursor *text) {
  return text->at < text->end && *text->at >= '0' && *text->at <= '9';
}

/* Exactly `digits` digits, at most 18. */
static inline bool cursor_number(cursor *text, int digits, int64_t *out) {
  *out = 0;
  for (; digits > 0; digits--) {
    if (!cursor_at_digit(text))
      return false;
    *out = *out * 10 + (*text->at++ - '0');
  }
  return true;
}

#endif
