/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile replay: what limits, or a limits file, would have done to the requests of access logs.
 *
 * Servers write a line when a request ends, so the lines are not in the order of the times they name, and logs of
 * several servers or of a rotated one overlap. All requests are therefore read first and sorted, equal times staying in
 * the order of the logs.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "cli/limits_file.h"
#include "cli/output.h"
#include "cli/replay_decide.h"
#include "cli/replay_read.h"
#include "cli/verbs.h"

typedef struct replay {
  spile_limits *limits; /* of --limits; NULL */
  request_log log;
  replay_lines lines;
  replay_result result;
  const key_entry **top; /* room for options->top_count, for one table after the other */
} replay;

static const key_set *replay_keys(const replay *from, const cli_options *options) {
  return options->by_route ? &from->log.routes : &from->log.clients;
}

static size_t replay_top(const replay *from, const key_set *set, const cli_options *options) {
  return keys_top(set, from->top, (size_t)options->top_count);
}

/* ---- As JSON ---- */

/* An array of those denied most, each with its name under `name`. */
static void json_table(const replay *from, const key_set *set, const char *array, const char *name, bool with_requests,
                       const cli_options *options) {
  size_t n = replay_top(from, set, options);
  output(",\"%s\":[", array);
  for (size_t i = 0; i < n; i++) {
    output(i > 0 ? ",{" : "{");
    output_json_member(name, from->top[i]->bytes, from->top[i]->len);
    if (with_requests)
      output(",\"requests\":%" PRIu64, from->top[i]->requests);
    output(",\"denied\":%" PRIu64 "}", from->top[i]->denied);
  }
  output("]");
}

static void json_file(const replay *from, const cli_options *options) {
  const replay_file *file = &from->result.file;
  output(",\"skipped\":%" PRIu64 ",\"unlimited\":%" PRIu64 ",\"blocked\":%" PRIu64, file->skipped, file->unlimited,
         file->blocked);
  json_table(from, &file->entries, "entries", "entry", true, options);
  json_table(from, &file->shadow, "shadow", "limit", true, options);
  size_t n = replay_top(from, &file->left_out, options);
  output(",\"left_out\":[");
  for (size_t i = 0; i < n; i++) {
    output(i > 0 ? ",{" : "{");
    output_json_member("limit", from->top[i]->bytes, from->top[i]->len);
    output(",\"requests\":%" PRIu64 "}", from->top[i]->requests);
  }
  output("]");
}

static void json_hours(const replay *from) {
  output(",\"hours\":[");
  for (size_t i = 0; i < from->result.hour_count; i++) {
    const replay_hour *hour = &from->result.hours[i];
    output("%s{\"from_ms\":%" PRId64 ",\"requests\":%" PRIu64 ",\"denied\":%" PRIu64 "}", i > 0 ? "," : "",
           hour->from_ms, hour->requests, hour->denied);
  }
  output("]");
}

static void summary_print_json(const replay *from, const cli_options *options) {
  const request_log *log = &from->log;
  output("{\"requests\":%zu,\"allowed\":%" PRIu64 ",\"denied\":%" PRIu64 ",\"keys\":%" PRIu64 ",\"unparsed\":%" PRIu64,
         log->count, from->result.allowed, from->result.denied, replay_keys(from, options)->count,
         from->lines.unparsed);
  output(",\"first_ms\":");
  output_json_number(log->count > 0 ? log->requests[0].time_ms : SPILE_UNKNOWN);
  output(",\"last_ms\":");
  output_json_number(log->count > 0 ? log->requests[log->count - 1].time_ms : SPILE_UNKNOWN);
  output(",\"answered_429\":%" PRIu64, from->lines.answered_429);
  json_table(from, replay_keys(from, options), "top", "key", false, options);
  json_table(from, &from->log.routes, "routes", "route", true, options);
  json_table(from, &from->result.limits, "limits", "limit", false, options);
  json_hours(from);
  if (from->limits != NULL)
    json_file(from, options);
  output("}\n");
}

/* ---- In words ---- */

static void words_head(const replay *from, const cli_options *options) {
  const request_log *log = &from->log;
  output("%zu requests, %" PRIu64 " keys by %s", log->count, replay_keys(from, options)->count,
         options->by_route ? "route" : "ip");
  if (log->count > 0) {
    output(", over ");
    output_duration(log->requests[log->count - 1].time_ms - log->requests[0].time_ms);
  }
  const replay_file *file = &from->result.file;
  output("\n%" PRIu64 " allowed", from->result.allowed);
  if (file->skipped > 0 || file->unlimited > 0)
    output(", of them %" PRIu64 " skipped and %" PRIu64 " under no limit in force", file->skipped, file->unlimited);
  output("\n%" PRIu64 " denied", from->result.denied);
  if (log->count > 0) {
    /* Hundredths of a percent, rounded to the nearest. A log of 2^50 requests fits nowhere, so nothing overflows. */
    uint64_t share = (from->result.denied * 10000 + log->count / 2) / log->count;
    output(" (%" PRIu64 ".%02" PRIu64 " %%)", share / 100, share % 100);
  }
  if (file->blocked > 0)
    output(", of them %" PRIu64 " blocked", file->blocked);
  output("\n");
  if (from->lines.answered_429 > 0)
    output("%" PRIu64 " were answered 429 by the server itself\n", from->lines.answered_429);
  if (from->lines.unparsed > 0)
    output("%" PRIu64 " lines left out\n", from->lines.unparsed);
}

/* A table of who was denied how often, "N  NAME" or "N of M  NAME"; nothing where nobody was. */
static void words_table(const replay *from, const key_set *set, const char *title, bool with_requests,
                        const cli_options *options) {
  size_t n = replay_top(from, set, options);
  if (n > 0)
    output("%s:\n", title);
  for (size_t i = 0; i < n; i++) {
    output("%8" PRIu64, from->top[i]->denied);
    if (with_requests)
      output(" of %8" PRIu64, from->top[i]->requests);
    output("  ");
    output_escaped(from->top[i]->bytes, from->top[i]->len);
    output("\n");
  }
}

/* What only a limits file has. */
static void words_file(const replay *from, const cli_options *options) {
  const replay_file *file = &from->result.file;
  words_table(from, &file->entries, "denied by entry", true, options);
  words_table(from, &file->shadow, "shadow limits would have denied", true, options);
  words_table(from, &file->left_out, "left out, as no log tells whose buckets they are", false, options);
}

static void words_hours(const replay *from) {
  if (from->result.hour_count > 0)
    output("most denied hours:\n");
  for (size_t i = 0; i < from->result.hour_count; i++) {
    const replay_hour *hour = &from->result.hours[i];
    /* At most the year 2286, so gmtime_r finds room for it. */
    time_t seconds = (time_t)(hour->from_ms / 1000);
    struct tm utc = {.tm_year = 70};
    char text[32] = "";
    (void)gmtime_r(&seconds, &utc);
    (void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%MZ", &utc);
    output("%8" PRIu64 " of %8" PRIu64 "  %s\n", hour->denied, hour->requests, text);
  }
}

static void summary_print(const replay *from, const cli_options *options) {
  words_head(from, options);
  if (options->limit_count > 1 || from->limits != NULL)
    words_table(from, &from->result.limits, "denied by limit", false, options);
  if (from->limits != NULL)
    words_file(from, options);
  if (!options->by_route)
    words_table(from, &from->log.clients, "most denied", false, options);
  words_table(from, &from->log.routes, "most denied routes", true, options);
  words_hours(from);
}

/* ---- The verb ---- */

static int replay_work(replay *work, const cli_options *options) {
  work->top = calloc((size_t)options->top_count + 1, sizeof(*work->top));
  if (work->top == NULL)
    return message(EXIT_STORE, "out of memory for the summary");
  int status = replay_read(&work->log, &work->lines, options);
  if (status != EXIT_ALLOWED)
    return status;
  if (!requests_sort(&work->log))
    return message(EXIT_STORE, "out of memory to sort %zu requests; replay a part of the logs", work->log.count);
  status = replay_decide(&work->result, &work->log, work->limits, options);
  if (status == EXIT_ALLOWED && options->given & OPTION_JSON)
    summary_print_json(work, options);
  else if (status == EXIT_ALLOWED)
    summary_print(work, options);
  return status;
}

int replay_run(const cli_options *options) {
  int status = limits_options_check(options, "replay", false);
  if (status != EXIT_ALLOWED)
    return status;
  if ((options->given & OPTION_LIMITS) && (options->given & OPTION_BY))
    return message(EXIT_USAGE, "--by and --limits exclude each other: the file says whose bucket each limit is");
  replay work = {.top = NULL};
  if (options->given & OPTION_LIMITS)
    status = limits_file_load(&work.limits, options);
  if (status == EXIT_ALLOWED)
    status = replay_work(&work, options);
  replay_finish(&work.result);
  requests_finish(&work.log);
  free(work.top);
  spile_limits_unref(work.limits);
  return status;
}
