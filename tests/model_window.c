/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows as a list of what was taken and when. How much counts at an instant is added up from that list, in units of
 * 1/W token; a wait is the first millisecond at which the sum is small enough, found by halving.
 *
 *   fixed_window   what was taken in the window [i·W, (i + 1)·W) of the instant
 *
 * The clock rule and changes of the limit move what was taken to other times, so that the sums then come out right.
 */
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define TEN_YEARS_MS INT64_C(315360000000)
#define EXACT_MAX ((INT64_C(1) << 53) - 1)
#define TOLERANCE_MS 1000

bool model_is_window(const model_limit *limit) {
  return limit->algorithm == SPILE_FIXED_WINDOW;
}

bool model_window_bounds(const model_limit *limit) {
  return limit->capacity >= 1 && limit->capacity <= EXACT_MAX && limit->period_ms >= 1 &&
         limit->period_ms <= TEN_YEARS_MS;
}

int64_t model_window_full_time_ms(const model_limit *limit) {
  return limit->period_ms;
}

/* The start of the window of an instant, which may be before 1970. */
static int64_t window_of(const model_limit *limit, int64_t at_ms) {
  return (int64_t)model_floor(at_ms, limit->period_ms) * limit->period_ms;
}

/* The instant at which a question of now_ms is decided: not before the window of what was taken last. */
static int64_t decided_at(const model_limit *limit, const model_log *log, int64_t now_ms) {
  if (log->n == 0)
    return now_ms;
  int64_t start_ms = window_of(limit, log->events[log->n - 1].at_ms);
  return start_ms > now_ms ? start_ms : now_ms;
}

/* How much an event counts at an instant, in 1/W of a token. */
static model_int weight(const model_limit *limit, int64_t event_ms, int64_t at_ms) {
  return window_of(limit, event_ms) == window_of(limit, at_ms) ? limit->period_ms : 0;
}

/* What counts of a log for a question at now_ms. */
static model_int used(const model_limit *limit, const model_log *log, int64_t now_ms) {
  int64_t at_ms = decided_at(limit, log, now_ms);
  model_int sum = 0;
  for (size_t i = 0; i < log->n; i++)
    sum += log->events[i].tokens * weight(limit, log->events[i].at_ms, at_ms);
  return sum;
}

/* Leaves out what does not count any more. */
static void prune(const model_limit *limit, model_log *log, int64_t now_ms) {
  int64_t at_ms = decided_at(limit, log, now_ms);
  size_t n = 0;
  for (size_t i = 0; i < log->n; i++) {
    if (weight(limit, log->events[i].at_ms, at_ms) > 0)
      log->events[n++] = log->events[i];
  }
  log->n = n;
}

static void add(model_log *log, int64_t at_ms, int64_t tokens) {
  if (log->n > 0 && log->events[log->n - 1].at_ms == at_ms)
    log->events[log->n - 1].tokens += tokens;
  else if (log->n == MODEL_EVENTS_MAX)
    abort();
  else if (tokens > 0)
    log->events[log->n++] = (__typeof__(log->events[0])){at_ms, tokens};
}

/* A window that begins more than the tolerance ahead: what was taken in it was taken now. */
static bool cut(const model_limit *limit, model_log *log, int64_t now_ms) {
  if (log->n == 0 || window_of(limit, log->events[log->n - 1].at_ms) <= now_ms + TOLERANCE_MS)
    return false;
  model_log old = *log;
  log->n = 0;
  int64_t last_ms = window_of(limit, old.events[old.n - 1].at_ms);
  for (size_t i = 0; i < old.n; i++) {
    if (window_of(limit, old.events[i].at_ms) == last_ms)
      add(log, now_ms, old.events[i].tokens);
  }
  return true;
}

/* Under another limit: what counts was taken at the instant of the decision, and no more than the capacity. */
static void change(const model_limit *limit, model_log *log, int64_t at_ms) {
  model_log old = *log;
  log->n = 0;
  int64_t sum = 0;
  for (size_t i = 0; i < old.n; i++)
    sum += old.events[i].tokens;
  add(log, at_ms, sum < limit->capacity ? sum : limit->capacity);
}

void model_window_read(model_item *item, int64_t now_ms) {
  const model_bucket *bucket = item->bucket;
  item->moved = false;
  item->log->n = 0;
  if (!bucket->stored)
    return;
  *item->log = *bucket->log;
  item->moved = cut(&bucket->limit, item->log, now_ms);
  prune(&bucket->limit, item->log, now_ms);
  if (item->log->n == 0 || model_same(&bucket->limit, &item->limit))
    return;
  item->moved = true;
  change(&item->limit, item->log, decided_at(&bucket->limit, item->log, now_ms));
}

static bool fits_at(const model_item *item, int64_t now_ms) {
  return used(&item->limit, item->log, now_ms) + item->cost * item->limit.period_ms <=
         (model_int)item->limit.capacity * item->limit.period_ms;
}

static bool nothing_at(const model_item *item, int64_t now_ms) {
  return used(&item->limit, item->log, now_ms) == 0;
}

/* The least wait after which it holds, which it does for good from then on. */
static int64_t wait_for(const model_item *item, int64_t now_ms, bool (*holds)(const model_item *, int64_t)) {
  int64_t low = -1;
  int64_t high = 2 * item->limit.period_ms + TOLERANCE_MS;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (holds(item, now_ms + middle))
      high = middle;
    else
      low = middle;
  }
  return high;
}

bool model_window_fits(const model_item *item, int64_t now_ms) {
  return fits_at(item, now_ms);
}

static void charge(model_item *item, int64_t now_ms) {
  add(item->log, decided_at(&item->limit, item->log, now_ms), (int64_t)item->cost);
}

void model_window_answer(const model_item *item, bool charged, int64_t now_ms, model_answer *out) {
  static model_log log; /* too large for a stack */
  *out = (model_answer){.index = item->first};
  if (item->cost > item->limit.capacity) {
    out->outcome = SPILE_NEVER;
    out->retry_after_ms = SPILE_UNKNOWN;
  } else {
    out->retry_after_ms = wait_for(item, now_ms, fits_at);
    out->outcome = out->retry_after_ms == 0 ? SPILE_ALLOWED : SPILE_DENIED;
  }
  model_item after = *item;
  if (charged) {
    log = *item->log;
    after.log = &log;
    charge(&after, now_ms);
  }
  model_int left = (model_int)item->limit.capacity * item->limit.period_ms - used(&item->limit, after.log, now_ms);
  out->remaining = left < 0 ? 0 : (int64_t)model_floor(left, item->limit.period_ms);
  out->reset_after_ms = wait_for(&after, now_ms, nothing_at);
}

void model_window_write(const model_item *item, bool charged, int64_t now_ms) {
  model_item after = *item;
  if (charged)
    charge(&after, now_ms);
  model_bucket *bucket = item->bucket;
  if (bucket->log == NULL && (bucket->log = malloc(sizeof(*bucket->log))) == NULL)
    abort();
  *bucket->log = *after.log;
  bucket->stored = after.log->n > 0;
  bucket->limit = item->limit;
}
