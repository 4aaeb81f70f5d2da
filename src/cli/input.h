/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines from a file or a pipe, in constant memory, with SIGINT and SIGTERM noticed without a race: where the verb asked
 * for it, they are let in only while the reader waits, so that none can slip in between looking and waiting.
 */
#ifndef SPILE_CLI_INPUT_H
#define SPILE_CLI_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INPUT_LINE_MAX = 65536 }; /* bytes of a line; what is longer is no line of ours */

typedef enum input_result {
  INPUT_END,
  INPUT_LINE,
  INPUT_TOO_LONG,    /* a line above INPUT_LINE_MAX; it was skipped */
  INPUT_INTERRUPTED, /* input_signal says by what */
  INPUT_FAILED,      /* errno says why */
  INPUT_DAMAGED,     /* of input_open_log: input.fault says why the compressed data cannot be read on */
} input_result;

struct gunzip;

/* What is compressed, on its way from the file. */
typedef struct input_zip {
  bool unknown;          /* nobody has looked at the first bytes yet */
  struct gunzip *gunzip; /* NULL: it is not compressed */
  char *buffer;          /* INPUT_LINE_MAX + 1 bytes … */
  const char *at;        /* … of which `left` from here on wait */
  size_t left;
  uint64_t taken; /* bytes of the file that came before `at` */
} input_zip;

typedef struct input {
  int fd;
  bool owned;    /* fd is to be closed */
  bool regular;  /* can be read twice, never keeps us waiting */
  int64_t start; /* where a regular file was when it was opened */
  bool end;
  char *buffer; /* INPUT_LINE_MAX + 1 bytes */
  size_t from;  /* the bytes not yet handed out: [from, to) */
  size_t to;
  uint64_t line; /* number of the line last handed out, from 1 */
  input_zip zip;
  const char *fault;
} input;

/* Opens a file; "-" or NULL is standard input. @return EXIT_ALLOWED, or another with a message */
int input_open(input *in, const char *path);
/* As input_open. Gzip data is known by its first bytes and decompressed; it cannot be read twice. */
int input_open_log(input *in, const char *path);
void input_close(input *in);

/* Makes input that can be read twice of any other, by keeping it in memory. @return as input_line, INPUT_END: done */
input_result input_keep(input *in);

/* Back to the first line of an input that can be read twice. */
bool input_rewind(input *in);

/* The next line, without its line end (LF or CRLF) and valid until the next call. */
input_result input_line(input *in, const char **line, size_t *len);

/* From here on SIGINT and SIGTERM end no work half-way: input_signal says which came, 0 for none. */
void input_catch_signals(void);
int input_signal(void);
/* The next signal ends the process again. */
void input_release_signals(void);

/* Says why reading ended: EXIT_STORE with a message, or 128 + the signal without one. */
int input_failed(input_result result);

#endif
