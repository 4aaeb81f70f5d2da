/* SPDX-License-Identifier: Apache-2.0 */
#include "http/writer.h"

#define NUMBER_MAX INT64_C(999999999999999)

void spile__writer_init(spile__writer *writer, char *buffer, size_t size) {
  *writer = (spile__writer){.start = buffer, .at = buffer, .end = buffer != NULL ? buffer + size : NULL};
}

void spile__writer_begin(spile__writer *writer) {
  writer->start = writer->at;
  writer->whole = true;
}

static void put_char(spile__writer *writer, char c) {
  writer->needed++;
  if (writer->at == writer->end)
    writer->whole = false;
  else
    *writer->at++ = c;
}

const char *spile__writer_end(spile__writer *writer) {
  put_char(writer, '\0');
  if (writer->whole)
    return writer->start;
  /* The room is for a shorter one. */
  writer->at = writer->start;
  return NULL;
}

void spile__writer_put(spile__writer *writer, const char *text) {
  while (*text != '\0')
    put_char(writer, *text++);
}

void spile__writer_put_number(spile__writer *writer, int64_t number) {
  char digits[16];
  size_t n = 0;
  int64_t rest = number > NUMBER_MAX ? NUMBER_MAX : number < 0 ? 0 : number;
  do {
    digits[n++] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  while (n > 0)
    put_char(writer, digits[--n]);
}

void spile__writer_put_name(spile__writer *writer, const char *name) {
  static const char hex[] = "0123456789ABCDEF";
  put_char(writer, '"');
  for (; *name != '\0'; name++) {
    unsigned char c = (unsigned char)*name;
    if (c < 0x20 || c > 0x7e || c == '%') {
      put_char(writer, '%');
      put_char(writer, hex[c >> 4]);
      put_char(writer, hex[c & 15]);
      continue;
    }
    if (c == '"' || c == '\\')
      put_char(writer, '\\');
    put_char(writer, (char)c);
  }
  put_char(writer, '"');
}
