/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/address.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int spile__store_fail(spile_error *error, int code, spile_reason reason, const char *format, ...) {
  if (error == NULL || error->code != 0)
    return code;
  error->code = code;
  error->reason = (int)reason;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(error->message, sizeof(error->message), format, args);
  va_end(args);
  /* One line, whatever a server or a path put in: a message is often logged as it is. */
  for (char *c = error->message; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7f)
      *c = '?';
  }
  return code;
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return -1;
}

typedef enum decoding { DECODED, DECODED_BAD_ESCAPE, DECODED_NUL, DECODED_TOO_LONG } decoding;

/* Decodes %XX of [from, to) into `out`, NUL-terminated. */
static decoding percent_decode(const char *from, const char *to, char *out, size_t out_size) {
  size_t n = 0;
  while (from < to) {
    char c = *from++;
    if (c == '%') {
      if (to - from < 2 || hex_value(from[0]) < 0 || hex_value(from[1]) < 0)
        return DECODED_BAD_ESCAPE;
      c = (char)(hex_value(from[0]) << 4 | hex_value(from[1]));
      from += 2;
      if (c == '\0')
        return DECODED_NUL;
    }
    if (n + 1 >= out_size)
      return DECODED_TOO_LONG;
    out[n++] = c;
  }
  if (out_size == 0)
    return DECODED_TOO_LONG;
  out[n] = '\0';
  return DECODED;
}

bool spile__percent_decode(const char *from, const char *to, char *out, size_t out_size) {
  return percent_decode(from, to, out, out_size) == DECODED;
}

static int path_fail(decoding why, size_t path_size, spile_error *error) {
  if (why == DECODED_NUL)
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "the path of the address has a NUL (%%00), which no path has; leave it out");
  if (why == DECODED_TOO_LONG)
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "the path of the address is longer than the %zu bytes it may have; write a shorter one",
                             path_size - 1);
  return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                           "the path of the address has a broken %%XX escape; write a literal %% as %%25");
}

enum { PARAMS_MAX = 8, PARAM_NAME_SIZE = 32 };

/* Parameters that a store has taken, none of which may come again. No store has more than there is room for. */
typedef struct params_taken {
  char names[PARAMS_MAX][PARAM_NAME_SIZE];
  size_t count;
} params_taken;

/* @return SPILE_OK; SPILE_ECONFIG: it was there already */
static int param_note(params_taken *taken, const char *name, spile_error *error) {
  for (size_t i = 0; i < taken->count; i++) {
    if (strcmp(taken->names[i], name) == 0)
      return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                               "the address has the parameter \"%s\" twice; write it once", name);
  }
  if (taken->count < PARAMS_MAX)
    memcpy(taken->names[taken->count++], name, strlen(name) + 1);
  return SPILE_OK;
}

int spile__address_split(const char *address, char *path, size_t path_size,
                         int (*param)(void *user, const char *name, const char *value, spile_error *error), void *user,
                         spile_error *error) {
  const char *at = strchr(address, '?');
  const char *path_end = at != NULL ? at : address + strlen(address);
  decoding decoded = percent_decode(address, path_end, path, path_size);
  if (decoded != DECODED)
    return path_fail(decoded, path_size, error);
  params_taken taken = {.count = 0};
  for (int count = 1; at != NULL && at[1] != '\0'; count++) {
    const char *name = at + 1;
    at = strchr(name, '&');
    const char *end = at != NULL ? at : name + strlen(name);
    const char *equals = memchr(name, '=', (size_t)(end - name));
    char name_text[PARAM_NAME_SIZE];
    char value_text[128];
    if (equals == NULL || !spile__percent_decode(name, equals, name_text, sizeof(name_text)) ||
        !spile__percent_decode(equals + 1, end, value_text, sizeof(value_text)))
      /* Not quoted: what stands here may be a piece of a password with a '?' in it. */
      return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                               "parameter %d behind the '?' of the address is not NAME=VALUE", count);
    /* A name that the store has taken may be quoted. */
    int result = param(user, name_text, value_text, error);
    if (result == SPILE_OK)
      result = param_note(&taken, name_text, error);
    if (result != SPILE_OK)
      return result;
  }
  return SPILE_OK;
}

bool spile__number_parse(const char *text, int64_t min, int64_t max, int64_t *out) {
  int64_t number = 0;
  if (*text == '\0')
    return false;
  for (; *text != '\0'; text++) {
    if (*text < '0' || *text > '9' || __builtin_mul_overflow(number, 10, &number) ||
        __builtin_add_overflow(number, *text - '0', &number))
      return false;
  }
  *out = number;
  return number >= min && number <= max;
}

bool spile__size_parse(const char *text, int64_t min, int64_t max, int64_t *out) {
  static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t digits = strspn(text, "0123456789");
  char number[20];
  if (digits == 0 || digits >= sizeof(number))
    return false;
  memcpy(number, text, digits);
  number[digits] = '\0';
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
    if (strcmp(text + digits, units[i]) == 0) {
      int64_t unit = INT64_C(1) << (10 * i);
      if (!spile__number_parse(number, 0, INT64_MAX / unit, out))
        return false;
      *out *= unit;
      return *out >= min && *out <= max;
    }
  }
  return false;
}
