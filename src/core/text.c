/* SPDX-License-Identifier: Apache-2.0 */
#include "core/text.h"

void spile__text_init(spile__text *text, char *buffer, size_t size) {
  text->at = buffer;
  text->end = buffer + size - 1;
  *text->at = '\0';
}

static void text_put_char(spile__text *text, char c) {
  if (text->at == text->end)
    return;
  *text->at++ = c;
  *text->at = '\0';
}

void spile__text_put(spile__text *text, const char *string) {
  while (*string != '\0')
    text_put_char(text, *string++);
}

void spile__text_put_number(spile__text *text, int64_t number) {
  char digits[20];
  size_t n = 0;
  /* Negated as unsigned, where the smallest integer does not overflow. */
  uint64_t rest = number < 0 ? UINT64_C(0) - (uint64_t)number : (uint64_t)number;
  do {
    digits[n++] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  if (number < 0)
    text_put_char(text, '-');
  while (n > 0)
    text_put_char(text, digits[--n]);
}

static bool is_quoted_as_it_is(unsigned char c) {
  return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

void spile__text_put_quoted(spile__text *text, const char *bytes, size_t len) {
  static const char hex[] = "0123456789abcdef";
  text_put_char(text, '"');
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)bytes[i];
    if (is_quoted_as_it_is(c)) {
      text_put_char(text, (char)c);
    } else {
      text_put_char(text, '\\');
      text_put_char(text, 'x');
      text_put_char(text, hex[c >> 4]);
      text_put_char(text, hex[c & 15]);
    }
  }
  text_put_char(text, '"');
}

/* The length of the UTF-8 character at `at`, or 0 when there is none: overlong forms, surrogates and what lies beyond
 * U+10FFFF are not UTF-8 (RFC 3629, section 4). */
static size_t utf8_len(const unsigned char *at, size_t left) {
  if (at[0] < 0x80)
    return 1;
  size_t len = at[0] >= 0xc2 && at[0] <= 0xdf   ? 2
               : at[0] >= 0xe0 && at[0] <= 0xef ? 3
               : at[0] >= 0xf0 && at[0] <= 0xf4 ? 4
                                                : 0;
  if (len == 0 || len > left)
    return 0;
  unsigned char least = at[0] == 0xe0 ? 0xa0 : at[0] == 0xf0 ? 0x90 : 0x80;
  unsigned char most = at[0] == 0xed ? 0x9f : at[0] == 0xf4 ? 0x8f : 0xbf;
  if (at[1] < least || at[1] > most)
    return 0;
  for (size_t i = 2; i < len; i++) {
    if (at[i] < 0x80 || at[i] > 0xbf)
      return 0;
  }
  return len;
}

bool spile__is_utf8(const char *text, size_t len) {
  const unsigned char *bytes = (const unsigned char *)text;
  for (size_t i = 0; i < len;) {
    size_t step = utf8_len(bytes + i, len - i);
    if (step == 0)
      return false;
    i += step;
  }
  return true;
}

size_t spile__text_quotable(const char *bytes, size_t bytes_len, size_t len, size_t room) {
  size_t n = 0;
  size_t quoted = 2;
  while (n < bytes_len) {
    unsigned char c = (unsigned char)bytes[n];
    size_t step = utf8_len((const unsigned char *)bytes + n, bytes_len - n);
    step = step > 0 ? step : 1;
    quoted += is_quoted_as_it_is(c) ? 1 : 4 * step;
    if (n + step > len || quoted > room)
      break;
    n += step;
  }
  return n;
}

int spile__fail(spile_error *error, int code, const char *what, const int64_t *numbers) {
  if (error == NULL || error->code != 0)
    return code;
  error->code = code;
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  for (; *what != '\0'; what++) {
    if (*what == '#' && numbers != NULL)
      spile__text_put_number(&text, *numbers++);
    else
      text_put_char(&text, *what);
  }
  return code;
}
