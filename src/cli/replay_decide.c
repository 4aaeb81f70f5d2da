/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/replay_decide.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/store.h"
#include "cli/verbs.h"
#include "limits/ask.h"

static const int64_t hour_ms = 3600000;

/* What requests are judged by. */
typedef struct replay_rules {
  const cli_options *options;
  const spile_limits *limits; /* NULL: those of the command line */
  spile_limiter *limiter;
  spile_ruling ruling; /* what the file said of the last request */
} replay_rules;

/* ---- One request ---- */

/*
 * By a limits file. All that a log knows of a caller is the address; limits that want more are left out. Where it has
 * no route, or none that can be one, the request meets `default`, as it did at the server.
 */
static int file_decide(replay_rules *rules, const logged_request *request) {
  spile_caller caller = SPILE_CALLER_INIT;
  caller.ip = request->client->bytes;
  caller.tier = rules->options->tier;
  const char *route = request->route != NULL ? request->route->bytes : "";
  return spile__limits_ask_for(rules->limiter, rules->limits, NULL, route, &caller, SPILE_ROUTE_COST, SPILE_VERB_TAKE,
                               SPILE__NO_SUBJECT_LEFT_OUT, &rules->ruling);
}

/*
 * Decides one request; the clock stands at its time. Only this function knows which limits a request meets and whose
 * buckets they are. @return as spile_take_all
 */
static int request_decide(replay_rules *rules, const logged_request *request, spile_decision *decision) {
  if (rules->limits != NULL) {
    int result = file_decide(rules, request);
    *decision = rules->ruling.decision;
    return result;
  }
  const key_entry *key = rules->options->by_route ? request->route : request->client;
  spile_request requests[SPILE_REQUESTS_MAX];
  size_t n = requests_make(requests, rules->options, key->bytes, key->len, 1);
  return spile_take_all(rules->limiter, requests, n, decision, NULL);
}

/* Whether any of the limits that were asked found no room for a bucket. */
static bool was_full(const replay_rules *rules, const spile_decision *decision) {
  bool full = decision->decided_by == SPILE_BY_FULL;
  size_t n = rules->limits != NULL ? rules->ruling.n + rules->ruling.n_shadow : 0;
  for (size_t i = rules->limits != NULL ? rules->ruling.n : 0; i < n; i++)
    full = full || rules->ruling.each[i].decided_by == SPILE_BY_FULL;
  return full;
}

/* ---- Room ---- */

/* The most room that the limits of one entry of a tier need; that of keys by route is added to *room. */
static uint64_t tier_room(const spile__tier *tier, uint64_t *room) {
  uint64_t most = 0;
  for (size_t i = 0; i < tier->route_count; i++) {
    const spile_route *route = &tier->routes[i];
    uint64_t entry = 0;
    for (size_t j = 0; j < route->n; j++)
      entry += store_keys_of(route->limits[j].limit);
    most = entry > most ? entry : most;
    /* "route=" and the text, of which every byte may take three, in pieces of 56 bytes. */
    *room += route->n * (strlen(route->text) * 3 / 56 + 2);
  }
  return most;
}

/*
 * Room for all buckets of a file. A request has one of each limit of its entry, and a client one of each limit there
 * is, whichever is less. "ip=" and an address has 42 bytes at most, so that it needs no more than its key's own room.
 */
static uint64_t file_room(const request_log *log, const spile_limits *limits) {
  uint64_t room = 1;
  uint64_t most = tier_room(&limits->base, &room);
  for (size_t i = 0; i < limits->tier_count; i++) {
    uint64_t tier_most = tier_room(&limits->tiers[i], &room);
    most = tier_most > most ? tier_most : most;
  }
  uint64_t by_request = (uint64_t)log->count * most;
  uint64_t by_client = 0;
  for (size_t i = 0; i < limits->made_count; i++)
    by_client += log->clients.count * store_keys_of(limits->made[i]);
  return room + (by_request < by_client ? by_request : by_client);
}

/* Room for the buckets of all keys under every limit. */
static uint64_t buckets_needed(const request_log *log, const spile_limits *limits, const cli_options *options) {
  if (limits != NULL)
    return file_room(log, limits);
  return store_keys_needed(options, keys_room(options->by_route ? &log->routes : &log->clients));
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

/* Counts under a name. @return false: out of memory */
static bool name_count(key_set *set, const char *name, bool denied) {
  key_entry *entry = keys_add(set, name, strlen(name));
  entry_count(entry, denied);
  return entry != NULL;
}

/* Whether a limit of the entry was asked, in force or not. */
static bool was_asked(const spile_ruling *ruling, const spile__route_limit *limit) {
  for (size_t i = 0; i < ruling->n + ruling->n_shadow; i++) {
    if (ruling->limits[i] == limit->limit)
      return true;
  }
  return false;
}

/* The limits that should have been asked and could not. Shadow limits are asked of what is allowed alone. */
static bool left_out_count(replay_file *file, const spile_ruling *ruling) {
  bool kept = true;
  for (size_t i = 0; i < ruling->route->n; i++) {
    const spile__route_limit *limit = &ruling->route->limits[i];
    bool asked = was_asked(ruling, limit) || (limit->shadow && ruling->decision.outcome != SPILE_ALLOWED);
    kept = (asked || name_count(&file->left_out, spile_limit_name(limit->limit), true)) && kept;
  }
  return kept;
}

/* @return false: out of memory */
static bool file_count(replay_file *file, const spile_ruling *ruling) {
  bool denied = ruling->decision.outcome != SPILE_ALLOWED;
  if (ruling->skipped) {
    file->skipped++;
    return true;
  }
  bool kept = name_count(&file->entries, spile_route_text(ruling->route), denied);
  if (spile_route_word_of(ruling->route) == SPILE_ROUTE_BLOCKED) {
    file->blocked++;
    return kept;
  }
  file->unlimited += ruling->n == 0 && ruling->n_waived == 0 ? 1 : 0;
  for (size_t i = ruling->n; i < ruling->n + ruling->n_shadow; i++) {
    bool would_deny = ruling->each[i].outcome != SPILE_ALLOWED;
    kept = name_count(&file->shadow, spile_limit_name(ruling->limits[i]), would_deny) && kept;
  }
  return left_out_count(file, ruling) && kept;
}

/* @return false: out of memory */
static bool request_count(replay_result *result, const logged_request *request, const spile_decision *decision) {
  bool denied = decision->outcome != SPILE_ALLOWED;
  result->allowed += denied ? 0 : 1;
  result->denied += denied ? 1 : 0;
  entry_count(request->client, denied);
  entry_count(request->route, denied);
  /* A word of the file has no limit. */
  return !denied || decision->name == NULL || name_count(&result->limits, decision->name, true);
}

/* ---- Deciding ---- */

static int requests_decide(replay_result *out, const request_log *log, replay_rules *rules, int64_t *clock) {
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
    else if (was_full(rules, &decision))
      status =
          message(EXIT_STORE, "the memory store had no room for all keys, so this is no replay; replay a part of the "
                              "logs");
    else if (!request_count(out, request, &decision) ||
             (rules->limits != NULL && !file_count(&out->file, &rules->ruling)))
      status = message(EXIT_STORE, "out of memory for the names of limits");
    hour.requests++;
    hour.denied += result != SPILE_ALLOWED ? 1 : 0;
    progress_step(&shown, i, "requests decided");
  }
  progress_end(&shown);
  hour_end(out, &hour, room);
  return status;
}

int replay_decide(replay_result *out, const request_log *log, const spile_limits *limits, const cli_options *options) {
  *out = (replay_result){.hours = calloc((size_t)options->top_count + 1, sizeof(*out->hours))};
  if (out->hours == NULL)
    return message(EXIT_STORE, "out of memory for the summary");
  int64_t clock = 0;
  replay_rules rules = {.options = options, .limits = limits};
  int status =
      store_open_simulated(&rules.limiter, NULL, options->timeout_ms, &clock, buckets_needed(log, limits, options));
  if (status != EXIT_ALLOWED)
    return status;
  status = requests_decide(out, log, &rules, &clock);
  spile_close(rules.limiter);
  return status;
}

void replay_finish(replay_result *result) {
  keys_finish(&result->limits);
  keys_finish(&result->file.entries);
  keys_finish(&result->file.shadow);
  keys_finish(&result->file.left_out);
  free(result->hours);
  *result = (replay_result){.hours = NULL};
}
