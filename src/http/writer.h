/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values and bodies into the caller's buffer: each is there whole or not at all, and what all of them need is counted
 * on. Digits and punctuation are made here, so that no locale changes them.
 */
#ifndef SPILE_HTTP_WRITER_H
#define SPILE_HTTP_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct spile__writer {
  char *start; /* of the text that is being written */
  char *at;
  char *end;     /* of the buffer */
  bool whole;    /* the text has fitted so far */
  size_t needed; /* bytes of all texts, also of those that did not fit */
} spile__writer;

void spile__writer_init(spile__writer *writer, char *buffer, size_t size);

/* Between begin and end stands one text. @return it, NUL-terminated; NULL: it did not fit */
void spile__writer_begin(spile__writer *writer);
const char *spile__writer_end(spile__writer *writer);

void spile__writer_put(spile__writer *writer, const char *text);

/* A whole number; one above 999999999999999, the most a structured field holds (RFC 9651), is that. Below 0 is 0. */
void spile__writer_put_number(spile__writer *writer, int64_t number);

/*
 * A name in double quotes, as both a structured field's String and JSON read it: `"` and `\` after a backslash, the
 * percent sign and what is not printable ASCII as %XX. So a name cannot end its field, and two names never look alike.
 */
void spile__writer_put_name(spile__writer *writer, const char *name);

#endif
