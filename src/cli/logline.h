/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request as a line of an access log tells it, and the common and combined formats:
 *
 *   192.0.2.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /path?query HTTP/1.0" 200 2326 …
 */
#ifndef SPILE_CLI_LOGLINE_H
#define SPILE_CLI_LOGLINE_H

#include <stddef.h>
#include <stdint.h>

/* Pointers are into the line, or into what its parser decoded. */
typedef struct log_line {
  const char *client; /* the address without its port; NULL where the line has none */
  size_t client_len;
  int64_t time_ms;    /* since 1970, UTC, 0 or more */
  const char *method; /* NULL where the request is not METHOD TARGET … */
  size_t method_len;
  const char *path; /* the target without scheme, host and query */
  size_t path_len;
  int status; /* 0 where the line has none */
} log_line;

/* @return NULL, or what is wrong with the line */
const char *logline_parse(log_line *out, const char *line, size_t len);

/* ---- Parts that every format has ---- */

/* ADDRESS, ADDRESS:PORT, [ADDRESS] or [ADDRESS]:PORT. */
void logline_set_client(log_line *out, const char *text, size_t len);
/* A method and a target. Where they are none, the line has no route. */
void logline_set_target(log_line *out, const char *method, size_t method_len, const char *target, size_t target_len);
/* METHOD TARGET …, which scanners and broken clients need not send. */
void logline_set_request(log_line *out, const char *text, size_t len);

#endif
