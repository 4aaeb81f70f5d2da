/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile replay: what a limit would have done to the requests of an access log.
 *
 * Servers write a line when a request ends, so the lines are not in the order of the times they name. All requests are
 * therefore read first and sorted, equal times staying in the order of the log.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/keys.h"
#include "cli/logline.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/store.h"
#include "cli/verbs.h"

enum { TOP_KEYS = 10, FAULTS_SHOWN = 5 };

typedef struct replay_request {
  int64_t time_ms;
  size_t index; /* in the order of reading */
  key_entry *key;
} replay_request;

typedef struct replay {
  replay_request *requests;
  size_t count;
  size_t room;
  key_set keys;
  uint64_t allowed;
  uint64_t denied;
  uint64_t unparsed;
} replay;

/* ---- Reading ---- */

static bool replay_add(replay *into, int64_t time_ms, const char *key, size_t key_len) {
  if (into->count == into->room) {
    size_t room = into->room == 0 ? 1024 : into->room * 2;
    replay_request *grown = reallocarray(into->requests, room, sizeof(*grown));
    if (grown == NULL)
      return false;
    into->requests = grown;
    into->room = room;
  }
  key_entry *entry = keys_add(&into->keys, key, key_len);
  if (entry == NULL)
    return false;
  into->requests[into->count] = (replay_request){.time_ms = time_ms, .index = into->count, .key = entry};
  into->count++;
  return true;
}

/* The key of a request: its client, or "METHOD path" put together in `buffer`. @return NULL, or why there is none */
static const char *request_key(const log_line *line, bool by_route, char *buffer, const char **key, size_t *key_len) {
  *key = line->client;
  *key_len = line->client_len;
  if (by_route && line->method == NULL)
    return "the request is not METHOD PATH";
  if (by_route)
    *key_len = line->method_len + 1 + line->path_len;
  if (*key_len > SPILE_KEY_LEN_MAX)
    return "its key has more than 4096 bytes";
  if (by_route) {
    memcpy(buffer, line->method, line->method_len);
    buffer[line->method_len] = ' ';
    memcpy(buffer + line->method_len + 1, line->path, line->path_len);
    *key = buffer;
  }
  return NULL;
}

static void fault_note(replay *into, const char *path, uint64_t line, const char *fault) {
  into->unparsed++;
  if (into->unparsed <= FAULTS_SHOWN)
    (void)message(0, "%s: line %" PRIu64 " is left out: %s", path, line, fault);
  else if (into->unparsed == FAULTS_SHOWN + 1)
    (void)message(0, "more lines are left out; the summary says how many");
}

static int log_read(replay *into, const char *path, const cli_options *options) {
  input in;
  int status = input_open(&in, path);
  if (status != EXIT_ALLOWED)
    return status;
  const char *shown_path = path == NULL || strcmp(path, "-") == 0 ? "standard input" : path;
  char buffer[SPILE_KEY_LEN_MAX];
  progress shown = progress_start(false);
  const char *line;
  size_t len;
  input_result result;
  while ((result = input_line(&in, &line, &len)) == INPUT_LINE || result == INPUT_TOO_LONG) {
    log_line parsed;
    const char *key;
    size_t key_len;
    const char *fault = result == INPUT_TOO_LONG ? "it is too long" : logline_parse(&parsed, line, len);
    if (fault == NULL)
      fault = request_key(&parsed, options->by_route, buffer, &key, &key_len);
    if (fault != NULL) {
      fault_note(into, shown_path, in.line, fault);
    } else if (!replay_add(into, parsed.time_ms, key, key_len)) {
      status = message(EXIT_STORE, "out of memory for %zu requests; replay a part of the log", into->count);
      break;
    }
    progress_step(&shown, in.line, "lines read");
  }
  progress_end(&shown);
  if (status == EXIT_ALLOWED && result != INPUT_END)
    status = input_failed(result);
  input_close(&in);
  return status;
}

static int replay_order(const void *a, const void *b) {
  const replay_request *left = a;
  const replay_request *right = b;
  if (left->time_ms != right->time_ms)
    return left->time_ms < right->time_ms ? -1 : 1;
  return left->index < right->index ? -1 : 1;
}

/* ---- Deciding ---- */

static int replay_decide(replay *log, const cli_options *options) {
  int64_t clock = 0;
  spile_limiter *limiter;
  int status =
      store_open_simulated(&limiter, NULL, options->timeout_ms, &clock, log->keys.count * options->limit_count);
  if (status != EXIT_ALLOWED)
    return status;
  progress shown = progress_start(false);
  for (size_t i = 0; i < log->count && status == EXIT_ALLOWED; i++) {
    const replay_request *request = &log->requests[i];
    spile_request requests[SPILE_REQUESTS_MAX];
    size_t n = requests_make(requests, options, request->key->bytes, request->key->len, 1);
    spile_decision decision;
    clock = request->time_ms;
    int result = spile_take_all(limiter, requests, n, &decision, NULL);
    if (result < 0) {
      status = store_failed(result, decision.store_error, decision.detail);
    } else if (result == SPILE_ALLOWED) {
      log->allowed++;
    } else {
      log->denied++;
      request->key->denied++;
    }
    progress_step(&shown, i, "requests decided");
  }
  progress_end(&shown);
  spile_close(limiter);
  return status;
}

/* ---- The summary ---- */

static void summary_print_json(const replay *log) {
  const key_entry *top[TOP_KEYS];
  size_t n = keys_top(&log->keys, top, TOP_KEYS);
  output("{\"requests\":%zu,\"allowed\":%" PRIu64 ",\"denied\":%" PRIu64 ",\"keys\":%" PRIu64 ",\"unparsed\":%" PRIu64,
         log->count, log->allowed, log->denied, log->keys.count, log->unparsed);
  output(",\"first_ms\":");
  output_json_number(log->count > 0 ? log->requests[0].time_ms : SPILE_UNKNOWN);
  output(",\"last_ms\":");
  output_json_number(log->count > 0 ? log->requests[log->count - 1].time_ms : SPILE_UNKNOWN);
  output(",\"top\":[");
  for (size_t i = 0; i < n; i++) {
    output(i > 0 ? ",{" : "{");
    output_json_member("key", top[i]->bytes, top[i]->len);
    output(",\"denied\":%" PRIu64 "}", top[i]->denied);
  }
  output("]}\n");
}

static void summary_print(const replay *log, bool by_route) {
  output("%zu requests, %" PRIu64 " keys by %s", log->count, log->keys.count, by_route ? "route" : "ip");
  if (log->count > 0) {
    output(", over ");
    output_duration(log->requests[log->count - 1].time_ms - log->requests[0].time_ms);
  }
  output("\n%" PRIu64 " allowed\n%" PRIu64 " denied", log->allowed, log->denied);
  if (log->count > 0) {
    /* Hundredths of a percent, rounded to the nearest. A log of 2^50 requests fits nowhere, so nothing overflows. */
    uint64_t share = (log->denied * 10000 + log->count / 2) / log->count;
    output(" (%" PRIu64 ".%02" PRIu64 " %%)", share / 100, share % 100);
  }
  output("\n");
  if (log->unparsed > 0)
    output("%" PRIu64 " lines left out\n", log->unparsed);
  const key_entry *top[TOP_KEYS];
  size_t n = keys_top(&log->keys, top, TOP_KEYS);
  if (n > 0)
    output("most denied:\n");
  for (size_t i = 0; i < n; i++) {
    output("%8" PRIu64 "  ", top[i]->denied);
    output_escaped(top[i]->bytes, top[i]->len);
    output("\n");
  }
}

int replay_run(const cli_options *options) {
  if (options->limit_count == 0)
    return message(EXIT_USAGE, "replay needs a limit; write --limit TEXT, such as --limit 10/s");
  replay log = {.requests = NULL};
  int status = EXIT_ALLOWED;
  if (options->argument_count == 0)
    status = log_read(&log, NULL, options);
  for (size_t i = 0; i < options->argument_count && status == EXIT_ALLOWED; i++)
    status = log_read(&log, options->arguments[i], options);
  if (log.count > 0)
    qsort(log.requests, log.count, sizeof(log.requests[0]), replay_order);
  if (status == EXIT_ALLOWED)
    status = replay_decide(&log, options);
  if (status == EXIT_ALLOWED && options->given & OPTION_JSON)
    summary_print_json(&log);
  else if (status == EXIT_ALLOWED)
    summary_print(&log, options->by_route);
  keys_finish(&log.keys);
  free(log.requests);
  return status;
}
