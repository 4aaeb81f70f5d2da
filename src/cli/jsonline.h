/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of a log that is one JSON object, as nginx (log_format … escape=json), Caddy, Traefik, Envoy and others write
 * it. There is no standard for the names of its members, so those of well-known servers are tried, or what the user
 * says.
 */
#ifndef SPILE_CLI_JSONLINE_H
#define SPILE_CLI_JSONLINE_H

#include <stdbool.h>

#include "cli/logline.h"

typedef enum log_field {
  FIELD_TIME,
  FIELD_IP,
  FIELD_METHOD,
  FIELD_PATH,
  FIELD_STATUS,
  FIELD_REQUEST, /* METHOD TARGET PROTOCOL in one; method and path win */
  FIELD_COUNT,
} log_field;

/* The user's names, not NUL-terminated; NULL: those of well-known servers. */
typedef struct log_names {
  const char *name[FIELD_COUNT];
  size_t len[FIELD_COUNT];
} log_names;

/* Reads FIELD=MEMBER,… @return EXIT_ALLOWED, or EXIT_USAGE with a message. The names are parts of `text`. */
int log_names_parse(log_names *out, const char *text);

/*
 * @param decoded  room for `len` bytes, where texts with escapes are decoded
 * @return NULL, or what is wrong with the line
 */
const char *jsonline_parse(log_line *out, const char *line, size_t len, const log_names *names, char *decoded);

#endif
