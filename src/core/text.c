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

void spile__text_put_quoted(spile__text *text, const char *bytes, size_t len) {
  static const char hex[] = "0123456789abcdef";
  text_put_char(text, '"');
  for (size_t i = 0; i < len; i++) {
    unsigned char c = (unsigned char)bytes[i];
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
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
