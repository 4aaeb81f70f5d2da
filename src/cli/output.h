/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command prints: results on standard output, messages on standard error.
 *
 * A message is one line of printable ASCII whatever is in it, so that no key, path or server can write on a terminal.
 * The first failure to write is kept until output_finish, because an answer that nobody could read must not look like
 * one that was given.
 */
#ifndef SPILE_CLI_OUTPUT_H
#define SPILE_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the command ends. A signal ends it with 128 + its number, a closed pipe as SIGPIPE would. */
enum {
  EXIT_ALLOWED = 0, /* and any other work done */
  EXIT_DENIED = 1,  /* denied or never */
  EXIT_USAGE = 2,   /* the command line, a limit, an address or an input line is wrong */
  EXIT_STORE = 3,   /* no answer from the store, or reading or writing failed */
};

/* Prints "spile: MESSAGE" as one line on standard error and returns `status`. */
int message(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints a line on standard error that begins with something else: a fault with its place. */
void message_plain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints to standard output, printf-style and as it is. */
void output(const char *format, ...) __attribute__((format(printf, 1, 2)));
void output_bytes(const void *bytes, size_t len);

/* Prints bytes for people: \xNN for backslash and whatever is not printable ASCII; so no tab or line end comes through.
 */
void output_escaped(const void *bytes, size_t len);

/* Prints a length of time exactly: "0.250 s", "1 min 1 s", "2 d 3 h". */
void output_duration(int64_t ms);

/* Prints a JSON number, or null for SPILE_UNKNOWN. */
void output_json_number(int64_t number);

/*
 * Prints "name":"…" of any bytes. Bytes that are not UTF-8 become one character \u00XX each, and a member
 * "name_encoding":"bytes" follows, so that nothing is lost or mistaken.
 */
void output_json_member(const char *name, const void *bytes, size_t len);

/* Whether something could not be written. More output is then useless. */
bool output_failed(void);

/* Writes what is buffered so far. */
void output_flush(void);

/* Writes what is still buffered. @return `status`, or when anything could not be written EXIT_STORE, with a message, or
 * 128 + SIGPIPE, without one */
int output_finish(int status);

#endif
