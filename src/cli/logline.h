/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of an access log in the common or combined format:
 *
 *   192.0.2.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /path?query HTTP/1.0" 200 2326 …
 */
#ifndef SPILE_CLI_LOGLINE_H
#define SPILE_CLI_LOGLINE_H

#include <stddef.h>
#include <stdint.h>

/* Pointers are into the line. */
typedef struct log_line {
  const char *client;
  size_t client_len;
  int64_t time_ms;    /* since 1970, UTC, 0 or more */
  const char *method; /* NULL where the request is not METHOD TARGET … */
  size_t method_len;
  const char *path; /* the target without its query */
  size_t path_len;
} log_line;

/* @return NULL, or what is wrong with the line */
const char *logline_parse(log_line *out, const char *line, size_t len);

#endif
