/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of access logs, in memory: 24 bytes each, and every distinct client and route once. Sorting needs half
 * of that for a moment, and only where the logs are out of order.
 */
#ifndef SPILE_CLI_REQUESTS_H
#define SPILE_CLI_REQUESTS_H

#include <stdbool.h>

#include "cli/keys.h"
#include "cli/logline.h"

typedef struct logged_request {
  int64_t time_ms;
  key_entry *client; /* its address; NULL where the log has none */
  key_entry *route;  /* METHOD path; NULL where the log has none, or one of more than 4,096 bytes */
} logged_request;

typedef struct request_log {
  logged_request *requests;
  size_t count;
  size_t room;
  key_set clients;
  key_set routes;
} request_log;

/* Adds the request of a line; a client or route of more than SPILE_KEY_LEN_MAX bytes is left out of it. @return false:
 * out of memory */
bool requests_add(request_log *log, const log_line *line);

/* Sorts by time; equal times stay in the order they were added in. @return false: out of memory */
bool requests_sort(request_log *log);

void requests_finish(request_log *log);

#endif
