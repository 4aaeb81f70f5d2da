/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows as a list of what was taken and when. How much counts at an instant is added up from that list, in units of
 * 1/W token; a wait is the first millisecond at which the sum is small enough, found by halving.
 *
 *   fixed_window     what was taken in the window [i·W, (i + 1)·W) of the instant
 *   sliding_window   that, and W − e parts of what was taken in the window before, e ms into this one
 *
 *   sliding_log      what was taken in the W ms up to the instant, which itself belongs to them
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
  return limit->algorithm >= SPILE_FIXED_WINDOW;
}

bool model_window_bounds(const model_limit *limit) {
  if (limit->algorithm == SPILE_SLIDING_LOG && limit->capacity > 1000)
    return false;
  if (limit->capacity < 1 || limit->period_ms < 1 || limit->period_ms > TEN_YEARS_MS)
    return false;
  model_int most =
      limit->algorithm == SPILE_SLIDING_WINDOW ? (model_int)3 * limit->capacity * limit->period_ms : limit->capacity;
  return most <= EXACT_MAX;
}

int64_t model_window_full_time_ms(const model_limit *limit) {
  return limit->algorithm == SPILE_SLIDING_WINDOW ? 2 * limit->period_ms : limit->period_ms;
}

/* Only as much as there is: a log has room for far more. */
static void copy(model_log *to, const model_log *from) {
  to->reached_ms = from->reached_ms;
  to->n = from->n;
  memcpy(to->events, from->events, from->n * sizeof(from->events[0]));
}

/* The start of the window of an instant, which may be before 1970. */
static int64_t window_of(const model_limit *limit, int64_t at_ms) {
  int64_t window_ms = limit->period_ms;
  int64_t into_ms = at_ms % window_ms;
  return at_ms - (into_ms < 0 ? into_ms + window_ms : into_ms);
}

/* The instant at which a question of now_ms is decided: not before the window that was reached. */
static int64_t decided_at(const model_log *log, int64_t now_ms) {
  return log->n > 0 && log->reached_ms > now_ms ? log->reached_ms : now_ms;
}

/* How much an event counts at an instant, in 1/W of a token. */
static model_int weight(const model_limit *limit, int64_t event_ms, int64_t at_ms) {
  if (limit->algorithm == SPILE_SLIDING_LOG)
    return event_ms > at_ms - limit->period_ms ? limit->period_ms : 0;
  int64_t ago_ms = window_of(limit, at_ms) - window_of(limit, event_ms);
  if (ago_ms == 0)
    return limit->period_ms;
  bool counts = limit->algorithm == SPILE_SLIDING_WINDOW && ago_ms == limit->period_ms;
  return counts ? window_of(limit, at_ms) + limit->period_ms - at_ms : 0;
}

/* What counts of a log for a question at now_ms. */
static model_int used(const model_limit *limit, const model_log *log, int64_t now_ms) {
  int64_t at_ms = decided_at(log, now_ms);
  model_int sum = 0;
  for (size_t i = 0; i < log->n; i++)
    sum += log->events[i].tokens * weight(limit, log->events[i].at_ms, at_ms);
  return sum;
}

/* Leaves out what does not count any more. */
static void prune(const model_limit *limit, model_log *log, int64_t now_ms) {
  int64_t at_ms = decided_at(log, now_ms);
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

/*
 * What was taken in the window that begins at last_ms is moved to at_ms, what was taken in the one before it to
 * before_ms; of both no more than `most` is kept.
 */
static void move(const model_limit *limit, model_log *log, int64_t last_ms, int64_t at_ms, int64_t before_ms,
                 int64_t most) {
  static model_log old; /* too large for a stack */
  copy(&old, log);
  int64_t sums[2] = {0, 0};
  for (size_t i = 0; i < old.n; i++) {
    int64_t ago_ms = last_ms - window_of(limit, old.events[i].at_ms);
    if (ago_ms <= limit->period_ms)
      sums[ago_ms == 0] += old.events[i].tokens;
  }
  log->n = 0;
  add(log, before_ms, sums[0] < most ? sums[0] : most);
  add(log, at_ms, sums[1] < most ? sums[1] : most);
}

/* What was taken more than the tolerance ahead was taken now; the log stays in order. */
static bool cut_log(model_log *log, int64_t now_ms) {
  bool moved = false;
  for (size_t i = 0; i < log->n; i++) {
    if (log->events[i].at_ms <= now_ms + TOLERANCE_MS)
      continue;
    moved = true;
    __typeof__(log->events[0]) event = {now_ms, log->events[i].tokens};
    size_t j = i;
    for (; j > 0 && log->events[j - 1].at_ms > now_ms; j--)
      log->events[j] = log->events[j - 1];
    log->events[j] = event;
  }
  return moved;
}

/* A window that begins more than the tolerance ahead: what was taken in it was taken now. */
static bool cut(const model_limit *limit, model_log *log, int64_t now_ms) {
  if (limit->algorithm == SPILE_SLIDING_LOG)
    return cut_log(log, now_ms);
  if (log->n == 0 || log->reached_ms <= now_ms + TOLERANCE_MS)
    return false;
  move(limit, log, log->reached_ms, now_ms, window_of(limit, now_ms) - 1, INT64_MAX);
  log->reached_ms = window_of(limit, now_ms);
  return true;
}

/*
 * Under another limit: what this window gave was given at the instant of the decision, the rest just before. Of a log
 * the last `capacity` tokens are kept.
 */
static void change(const model_limit *old, const model_limit *limit, model_log *log, int64_t now_ms) {
  if (limit->algorithm == SPILE_SLIDING_LOG) {
    prune(limit, log, now_ms);
    int64_t left = limit->capacity;
    for (size_t i = log->n; i-- > 0;) {
      int64_t kept = log->events[i].tokens < left ? log->events[i].tokens : left;
      log->events[i].tokens = kept;
      left -= kept;
    }
    size_t n = 0;
    for (size_t i = 0; i < log->n; i++) {
      if (log->events[i].tokens > 0)
        log->events[n++] = log->events[i];
    }
    log->n = n;
    return;
  }
  int64_t at_ms = decided_at(log, now_ms);
  move(old, log, window_of(old, at_ms), at_ms, window_of(limit, at_ms) - 1, limit->capacity);
  log->reached_ms = window_of(limit, at_ms);
}

void model_window_read(model_item *item, int64_t now_ms) {
  const model_bucket *bucket = item->bucket;
  item->moved = false;
  item->log->n = 0;
  if (!bucket->stored)
    return;
  copy(item->log, bucket->log);
  item->moved = cut(&bucket->limit, item->log, now_ms);
  prune(&bucket->limit, item->log, now_ms);
  if (item->log->n == 0 || model_same(&bucket->limit, &item->limit))
    return;
  item->moved = true;
  change(&bucket->limit, &item->limit, item->log, now_ms);
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
  if (holds(item, now_ms))
    return 0;
  int64_t low = 0;
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
  const model_log *log = item->log;
  int64_t at_ms = decided_at(item->log, now_ms);
  if (item->limit.algorithm == SPILE_SLIDING_LOG && log->n > 0 && log->events[log->n - 1].at_ms > at_ms)
    at_ms = log->events[log->n - 1].at_ms;
  add(item->log, at_ms, (int64_t)item->cost);
  item->log->reached_ms = item->limit.algorithm == SPILE_SLIDING_LOG ? 0 : window_of(&item->limit, at_ms);
}

/* Whether a take of the item's cost and one more would fit. */
static bool more_at(const model_item *item, int64_t now_ms) {
  model_item more = *item;
  more.cost++;
  return fits_at(&more, now_ms);
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
    copy(&log, item->log);
    after.log = &log;
    charge(&after, now_ms);
  }
  model_int left = (model_int)item->limit.capacity * item->limit.period_ms - used(&item->limit, after.log, now_ms);
  out->remaining = left < 0 ? 0 : (int64_t)model_floor(left, item->limit.period_ms);
  out->reset_after_ms = wait_for(&after, now_ms, nothing_at);
  after.cost = out->remaining;
  out->grows_after_ms = out->remaining < item->limit.capacity ? wait_for(&after, now_ms, more_at) : SPILE_UNKNOWN;
}

void model_window_write(const model_item *item, bool charged, int64_t now_ms) {
  model_item after = *item;
  if (charged)
    charge(&after, now_ms);
  model_bucket *bucket = item->bucket;
  if (bucket->log == NULL && (bucket->log = malloc(sizeof(*bucket->log))) == NULL)
    abort();
  copy(bucket->log, after.log);
  bool is_log = item->limit.algorithm == SPILE_SLIDING_LOG;
  bucket->log->reached_ms = is_log ? 0 : window_of(&item->limit, decided_at(after.log, now_ms));
  bucket->stored = after.log->n > 0;
  bucket->limit = item->limit;
}

bool model_window_refund(model_item *item, int64_t now_ms) {
  model_log *log = item->log;
  bool is_log = item->limit.algorithm == SPILE_SLIDING_LOG;
  int64_t from_ms = is_log ? INT64_MIN : window_of(&item->limit, decided_at(log, now_ms));
  model_int left = item->cost;
  bool any = false;
  while (log->n > 0 && left > 0 && log->events[log->n - 1].at_ms >= from_ms) {
    int64_t *tokens = &log->events[log->n - 1].tokens;
    int64_t taken = *tokens < left ? *tokens : (int64_t)left;
    *tokens -= taken;
    left -= taken;
    any = true;
    if (*tokens == 0)
      log->n--;
  }
  return any;
}
