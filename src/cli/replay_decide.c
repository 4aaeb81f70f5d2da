/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/replay_decide.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/store.h"
#include "cli/verbs.h"

static const int64_t hour_ms = 3600000;

/* What requests are judged by. */
typedef struct replay_rules {
  spile_limiter *limiter;
  const cli_options *options;
} replay_rules;

/*
 * Decides one request; the clock stands at its time. Only this function knows which limits a request meets and whose
 * buckets they are. @return as spile_take_all
 */
static int request_decide(const replay_rules *rules, const logged_request *request, spile_decision *decision) {
  const key_entry *key = rules->options->by_route ? request->route : request->client;
  spile_request requests[SPILE_REQUESTS_MAX];
  size_t n = requests_make(requests, rules->options, key->bytes, key->len, 1);
  return spile_take_all(rules->limiter, requests, n, decision, NULL);
}

/* Room for the buckets of all keys under every limit. */
static uint64_t buckets_needed(const request_log *log, const cli_options *options) {
  return keys_room(options->by_route ? &log->routes : &log->clients) * options->limit_count;
}

/* ---- Counting ---- */

/* Puts the hour that is over among the worst, of which `room` are kept. */
static void hour_end(replay_result *result, const replay_hour *hour, size_t room) {
  if (hour->denied == 0)
    return;
  /* Insertion into a short sorted list, whose last one falls out. Hours come in order of time. */
  size_t at = result->hour_count;
  while (at > 0 && hour->denied > result->hours[at - 1].denied)
    at--;
  if (at == room)
    return;
  if (result->hour_count < room)
    result->hour_count++;
  memmove(&result->hours[at + 1], &result->hours[at], (result->hour_count - at - 1) * sizeof(*hour));
  result->hours[at] = *hour;
}

static void entry_count(key_entry *entry, bool denied) {
  if (entry == NULL)
    return;
  entry->requests++;
  entry->denied += denied ? 1 : 0;
}

/* @return false: out of memory */
static bool request_count(replay_result *result, const logged_request *request, const spile_decision *decision) {
  bool denied = decision->outcome != SPILE_ALLOWED;
  result->allowed += denied ? 0 : 1;
  result->denied += denied ? 1 : 0;
  entry_count(request->client, denied);
  entry_count(request->route, denied);
  if (!denied)
    return true;
  key_entry *limit = keys_add(&result->limits, decision->name, strlen(decision->name));
  entry_count(limit, true);
  return limit != NULL;
}

/* ---- Deciding ---- */

static int requests_decide(replay_result *out, const request_log *log, const replay_rules *rules, int64_t *clock) {
  size_t room = (size_t)rules->options->top_count;
  replay_hour hour = {.from_ms = 0};
  progress shown = progress_start(false);
  int status = EXIT_ALLOWED;
  for (size_t i = 0; i < log->count && status == EXIT_ALLOWED; i++) {
    const logged_request *request = &log->requests[i];
    if (request->time_ms >= hour.from_ms + hour_ms) {
      hour_end(out, &hour, room);
      hour = (replay_hour){.from_ms = request->time_ms - request->time_ms % hour_ms};
    }
    spile_decision decision;
    *clock = request->time_ms;
    int result = request_decide(rules, request, &decision);
    if (result < 0)
      status = store_failed(result, decision.store_error, decision.detail);
    else if (decision.decided_by != SPILE_BY_STORE)
      status =
          message(EXIT_STORE, "the memory store had no room for all keys, so this is no replay; replay a part of the "
                              "logs");
    else if (!request_count(out, request, &decision))
      status = message(EXIT_STORE, "out of memory for the names of limits");
    hour.requests++;
    hour.denied += result != SPILE_ALLOWED ? 1 : 0;
    progress_step(&shown, i, "requests decided");
  }
  progress_end(&shown);
  hour_end(out, &hour, room);
  return status;
}

int replay_decide(replay_result *out, const request_log *log, const cli_options *options) {
  *out = (replay_result){.hours = calloc((size_t)options->top_count + 1, sizeof(*out->hours))};
  if (out->hours == NULL)
    return message(EXIT_STORE, "out of memory for the summary");
  int64_t clock = 0;
  replay_rules rules = {.options = options};
  int status = store_open_simulated(&rules.limiter, NULL, options->timeout_ms, &clock, buckets_needed(log, options));
  if (status != EXIT_ALLOWED)
    return status;
  status = requests_decide(out, log, &rules, &clock);
  spile_close(rules.limiter);
  return status;
}

void replay_finish(replay_result *result) {
  keys_finish(&result->limits);
  free(result->hours);
  *result = (replay_result){.hours = NULL};
}
