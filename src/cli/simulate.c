/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile simulate: decides every line of a trace at the line's own time, in the order given.
 *
 * The buckets live under a key prefix of this run alone and are removed at its end, whatever ends it short of SIGKILL.
 * A memory store is sized by the distinct keys of the trace, which takes a first pass over it.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/input.h"
#include "cli/keys.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/store.h"
#include "cli/verbs.h"

/* One line of a trace. */
typedef struct trace_line {
  int64_t at_ms;
  const char *key;
  size_t key_len;
  int64_t cost;
} trace_line;

/* ---- Reading the trace ---- */

/* Reads at_ms,key or at_ms,key,cost. @return NULL, or what is wrong */
static const char *trace_parse(trace_line *out, const char *line, size_t len, int64_t default_cost) {
  static const char form[] = "it is not at_ms,key or at_ms,key,cost";
  const char *end = line + len;
  const char *key = memchr(line, ',', len);
  if (key == NULL)
    return form;
  if (!number_parse(line, (size_t)(key - line), SPILE_TIME_MAX_MS, &out->at_ms))
    return "at_ms is not a whole number from 0 to 10000000000000";
  key++;
  const char *cost = memchr(key, ',', (size_t)(end - key));
  const char *key_end = cost != NULL ? cost : end;
  out->key = key;
  out->key_len = (size_t)(key_end - key);
  if (out->key_len < 1 || out->key_len > SPILE_KEY_LEN_MAX)
    return "the key does not have 1 to 4096 bytes";
  out->cost = default_cost;
  if (cost == NULL)
    return NULL;
  cost++;
  if (memchr(cost, ',', (size_t)(end - cost)) != NULL)
    return form;
  if (!number_parse(cost, (size_t)(end - cost), COST_MAX, &out->cost))
    return "cost is not a whole number from 0 to 9007199254740991";
  return NULL;
}

typedef struct trace {
  input in;
  int64_t default_cost;
  bool begun; /* a header may no longer come */
} trace;

static bool is_header(const char *line, size_t len) {
  static const char start[] = "at_ms,";
  return len >= sizeof(start) - 1 && memcmp(line, start, sizeof(start) - 1) == 0;
}

/* The next line that is neither comment nor header. `fault` is NULL or what is wrong with it. */
static input_result trace_next(trace *from, trace_line *out, const char **fault) {
  for (;;) {
    const char *line;
    size_t len;
    *fault = NULL;
    input_result result = input_line(&from->in, &line, &len);
    if (result == INPUT_TOO_LONG) {
      *fault = "it is too long";
      return INPUT_LINE;
    }
    if (result != INPUT_LINE)
      return result;
    if (len > 0 && line[0] == '#')
      continue;
    bool first = !from->begun;
    from->begun = true;
    if (first && is_header(line, len))
      continue;
    *fault = trace_parse(out, line, len, from->default_cost);
    return INPUT_LINE;
  }
}

/* How much room the distinct keys need, up to the end or the first bad line. @return EXIT_ALLOWED, or another with a
 * message */
static int trace_room(trace *from, uint64_t *room) {
  input_result result = input_keep(&from->in);
  if (result != INPUT_END)
    return input_failed(result);
  key_set keys = {.tree = NULL};
  const char *fault = NULL;
  int status = EXIT_ALLOWED;
  trace_line line;
  while (fault == NULL && status == EXIT_ALLOWED && (result = trace_next(from, &line, &fault)) == INPUT_LINE) {
    if (fault == NULL && keys_add(&keys, line.key, line.key_len) == NULL)
      status = message(EXIT_STORE, "out of memory for %" PRIu64 " keys", keys.count);
  }
  *room = keys_room(&keys);
  keys_finish(&keys);
  if (status != EXIT_ALLOWED)
    return status;
  if (result != INPUT_END && result != INPUT_LINE)
    return input_failed(result);
  from->begun = false;
  return input_rewind(&from->in) ? EXIT_ALLOWED : input_failed(INPUT_FAILED);
}

/* ---- Deciding it ---- */

/* As RFC 4180 has it: a field with a quote in it is quoted, and the quote doubled. */
static void key_print(const char *key, size_t key_len) {
  if (memchr(key, '"', key_len) == NULL) {
    output_bytes(key, key_len);
    return;
  }
  output("\"");
  for (size_t i = 0; i < key_len; i++) {
    output_bytes(key + i, 1);
    if (key[i] == '"')
      output("\"");
  }
  output("\"");
}

static void row_print(const trace_line *line, const spile_decision *decision) {
  output("%" PRId64 ",", line->at_ms);
  key_print(line->key, line->key_len);
  output(",%" PRId64 ",%s", line->cost, spile_outcome_name(decision->outcome));
  const int64_t numbers[] = {decision->remaining, decision->retry_after_ms, decision->reset_after_ms};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    if (numbers[i] == SPILE_UNKNOWN)
      output(",");
    else
      output(",%" PRId64, numbers[i]);
  }
  output("\n");
}

/* Decides all lines. `*reached` tells whether anything may have come to the store. */
static int trace_decide(trace *from, spile_limiter *limiter, const cli_options *options, int64_t *clock,
                        bool *reached) {
  output("at_ms,key,cost,outcome,remaining,retry_after_ms,reset_after_ms\n");
  progress shown = progress_start(true);
  int status = EXIT_ALLOWED;
  while (status == EXIT_ALLOWED && !output_failed()) {
    trace_line line;
    const char *fault;
    input_result got = trace_next(from, &line, &fault);
    if (got == INPUT_END)
      break;
    if (got != INPUT_LINE) {
      status = input_failed(got);
    } else if (fault != NULL) {
      status = message(EXIT_USAGE, "line %" PRIu64 ": %s", from->in.line, fault);
    } else {
      spile_request requests[SPILE_REQUESTS_MAX];
      size_t n = requests_make(requests, options, line.key, line.key_len, line.cost);
      spile_decision decision;
      *clock = line.at_ms;
      int result = spile_take_all(limiter, requests, n, &decision, NULL);
      bool nobody = decision.store_error == SPILE_REASON_CONNECT || decision.store_error == SPILE_REASON_RESOLVE;
      *reached = *reached || result > 0 || !nobody;
      if (result < 0)
        status = store_failed(result, decision.store_error, decision.detail);
      else
        row_print(&line, &decision);
      progress_step(&shown, from->in.line, "lines");
    }
    if (input_signal() != 0)
      break;
  }
  progress_end(&shown);
  return status == EXIT_ALLOWED && input_signal() != 0 ? 128 + input_signal() : status;
}

/* Removes the run's buckets. @return `status`, or why not when it was EXIT_ALLOWED */
static int simulated_remove(spile_limiter *limiter, int status) {
  spile_error error = {0};
  int result = spile_clean(limiter, SPILE_CLEAN_PREFIX, &error);
  if (result == SPILE_OK)
    return status;
  /* That the store fails was said already when it ended the run. */
  int failed = status == EXIT_STORE ? status : store_failed(result, error.reason, error.message);
  (void)message(0, "simulated buckets may be left in the store; spile clear --simulated removes them");
  return status == EXIT_ALLOWED ? failed : status;
}

int simulate_run(const cli_options *options) {
  if (options->argument_count > 1)
    return message(EXIT_USAGE, "simulate reads one trace at a time; see spile simulate --help");
  if (options->limit_count == 0)
    return message(EXIT_USAGE, "simulate needs a limit; write --limit TEXT, such as --limit 10/s");
  trace from = {.default_cost = options->cost};
  int status = input_open(&from.in, options->argument_count == 1 ? options->arguments[0] : NULL);
  if (status != EXIT_ALLOWED)
    return status;

  input_catch_signals();
  uint64_t room = 0;
  bool in_memory = store_is_sized(options->store);
  if (in_memory)
    status = trace_room(&from, &room);
  int64_t clock = 0;
  spile_limiter *limiter = NULL;
  if (status == EXIT_ALLOWED)
    status =
        store_open_simulated(&limiter, options->store, options->timeout_ms, &clock, store_keys_needed(options, room));
  if (status == EXIT_ALLOWED) {
    bool reached = false;
    status = trace_decide(&from, limiter, options, &clock, &reached);
    if (!in_memory && reached)
      status = simulated_remove(limiter, status);
  }
  input_release_signals();
  spile_close(limiter);
  input_close(&from.in);
  return status;
}
