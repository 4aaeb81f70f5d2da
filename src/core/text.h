/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages without stdio: a cursor into a fixed buffer that cuts what does not fit and always ends in a NUL.
 */
#ifndef SPILE_CORE_TEXT_H
#define SPILE_CORE_TEXT_H

#include <spile/spile.h>

typedef struct spile__text {
  char *at;
  char *end; /* where the last NUL may stand */
} spile__text;

/* Starts an empty text in `buffer`; size ≥ 1. */
void spile__text_init(spile__text *text, char *buffer, size_t size);
void spile__text_put(spile__text *text, const char *string);
void spile__text_put_number(spile__text *text, int64_t number);
/* The bytes in double quotes, with \xNN for what is not printable ASCII, so that a message stays one harmless line. */
void spile__text_put_quoted(spile__text *text, const char *bytes, size_t len);
/* How many of the bytes, at most `len` and cut in no character of UTF-8, have room in `room` when they are quoted. */
size_t spile__text_quotable(const char *bytes, size_t bytes_len, size_t len, size_t room);

/* Whether bytes are UTF-8 (RFC 3629). */
bool spile__is_utf8(const char *text, size_t len);

/*
 * Fills `error` unless it is NULL or holds an earlier failure, and returns `code`. The message is `what` followed by up
 * to three numbers, each put where `what` has a '#'.
 */
int spile__fail(spile_error *error, int code, const char *what, const int64_t *numbers);

#endif
