/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/requests.h"

#include <stdlib.h>
#include <string.h>

#include <spile/spile.h>

/* ---- Adding ---- */

static bool requests_grow(request_log *log) {
  if (log->count < log->room)
    return true;
  size_t room = log->room == 0 ? 1024 : log->room * 2;
  logged_request *grown = reallocarray(log->requests, room, sizeof(*grown));
  if (grown == NULL)
    return false;
  log->requests = grown;
  log->room = room;
  return true;
}

static bool client_add(request_log *log, const log_line *line, key_entry **out) {
  *out = NULL;
  if (line->client == NULL || line->client_len > SPILE_KEY_LEN_MAX)
    return true;
  *out = keys_add(&log->clients, line->client, line->client_len);
  return *out != NULL;
}

static bool route_add(request_log *log, const log_line *line, key_entry **out) {
  *out = NULL;
  size_t len = line->method_len + 1 + line->path_len;
  if (line->method == NULL || len > SPILE_KEY_LEN_MAX)
    return true;
  char route[SPILE_KEY_LEN_MAX];
  memcpy(route, line->method, line->method_len);
  route[line->method_len] = ' ';
  memcpy(route + line->method_len + 1, line->path, line->path_len);
  *out = keys_add(&log->routes, route, len);
  return *out != NULL;
}

bool requests_add(request_log *log, const log_line *line) {
  logged_request request = {.time_ms = line->time_ms};
  if (!requests_grow(log) || !client_add(log, line, &request.client) || !route_add(log, line, &request.route))
    return false;
  log->requests[log->count++] = request;
  return true;
}

void requests_finish(request_log *log) {
  keys_finish(&log->clients);
  keys_finish(&log->routes);
  free(log->requests);
  *log = (request_log){.requests = NULL};
}

/* ---- Sorting ---- */

/*
 * Merges two sorted runs, [0, middle) and [middle, n). The first is set aside in `aside`; what is written never catches
 * up with what is still to be read of the second: as many places lie between them as requests are left aside.
 */
static void runs_merge(logged_request *requests, size_t middle, size_t n, logged_request *aside) {
  memcpy(aside, requests, middle * sizeof(*aside));
  size_t left = 0;
  size_t right = middle;
  size_t to = 0;
  while (left < middle && right < n) {
    /* Of equal times the left one came first. */
    if (requests[right].time_ms < aside[left].time_ms)
      requests[to++] = requests[right++];
    else
      requests[to++] = aside[left++];
  }
  memcpy(requests + to, aside + left, (middle - left) * sizeof(*aside));
}

/* Logs are nearly in order, and logs one behind the other are two sorted runs: what fits together is left alone. The
 * depth is the logarithm of n. */
static void runs_sort(logged_request *requests, size_t n, logged_request *aside) {
  if (n < 2)
    return;
  size_t middle = n / 2;
  runs_sort(requests, middle, aside);
  runs_sort(requests + middle, n - middle, aside);
  if (requests[middle].time_ms < requests[middle - 1].time_ms)
    runs_merge(requests, middle, n, aside);
}

static bool is_sorted(const request_log *log) {
  for (size_t i = 1; i < log->count; i++) {
    if (log->requests[i].time_ms < log->requests[i - 1].time_ms)
      return false;
  }
  return true;
}

bool requests_sort(request_log *log) {
  if (is_sorted(log))
    return true;
  logged_request *aside = reallocarray(NULL, log->count / 2, sizeof(*aside));
  if (aside == NULL)
    return false;
  runs_sort(log->requests, log->count, aside);
  free(aside);
  return true;
}
