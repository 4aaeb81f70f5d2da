/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slow second opinion on every decision. It shares no arithmetic with the library: where the core keeps the instant
 * at which a bucket is full again and counts debts that fit 53 bits, the model keeps a level and the instant it was
 * true at, in 128-bit integers that no bound has to protect. Of windows it keeps what was taken and when, and counts
 * that anew for every question; waits it finds by trying instants.
 */
#ifndef SPILE_TESTS_MODEL_H
#define SPILE_TESTS_MODEL_H

#include <spile/spile.h>

typedef __int128 model_int;

/* refill tokens come back in period_ms milliseconds, in lowest terms. */
typedef struct model_limit {
  int64_t capacity;
  int64_t refill;
  int64_t period_ms;
  int64_t debt;
  int64_t algorithm; /* a spile_algorithm; 0 is a token bucket too */
} model_limit;

/* What was taken from a window and when, in order of time. */
#define MODEL_EVENTS_MAX 1008
typedef struct model_log {
  int64_t reached_ms; /* the start of the window in which it was last written */
  size_t n;
  struct {
    int64_t at_ms;
    int64_t tokens;
  } events[MODEL_EVENTS_MAX];
} model_log;

/* A bucket: `level` units of 1/period_ms token at at_ms; of a window the log in its place. Not stored: full. */
typedef struct model_bucket {
  bool stored;
  model_limit limit; /* the numbers it was written under */
  model_int level;
  int64_t at_ms;
  model_log *log; /* of a window; made when it is first written */
} model_bucket;

typedef struct model_request {
  size_t bucket; /* index into the buckets of the call */
  model_limit limit;
  int64_t cost;
} model_request;

/* What the decision, or one request's own limit, says. */
typedef struct model_answer {
  int outcome;
  size_t index; /* the deciding request */
  int64_t remaining;
  int64_t retry_after_ms;
  int64_t reset_after_ms;
  int64_t grows_after_ms;
  int64_t delay_ms;
  int64_t granted;
  int64_t uncharged;
} model_answer;

/* Reduces to lowest terms. @return false when the numbers leave the bounds that every store keeps */
bool model_limit_make(model_limit *out, int64_t capacity, int64_t refill_tokens, int64_t refill_period_ms,
                      int64_t debt);

/* The same for an algorithm; of a window the period is its length, and the tokens do not matter. */
bool model_limit_of(model_limit *out, spile_algorithm algorithm, int64_t capacity, int64_t refill_tokens,
                    int64_t refill_period_ms, int64_t debt);

/* Frees what a bucket keeps. */
void model_bucket_finish(model_bucket *bucket);

/* From empty to full, rounded up. */
int64_t model_full_time_ms(const model_limit *limit);

/*
 * Decides requests, 1 to SPILE_REQUESTS_MAX, all or nothing, and writes what the decision writes. For one thread.
 * @param each  n answers: what each request's own limit says
 * @return the outcome
 */
int model_decide(model_bucket *buckets, bool take, int64_t now_ms, const model_request *requests, size_t n,
                 model_answer *decision, model_answer *each);

/*
 * Whether a call about these requests meets a conversion or a cut that it does not write, since the cost of its bucket
 * is 0. The next one makes it anew, as of its own time, so no wait is promised.
 */
bool model_unwritten(model_bucket *buckets, int64_t now_ms, const model_request *requests, size_t n);

/*
 * Charges or refunds requests, whatever they have, and writes what that changes.
 * @param decision  out, as each: what is left afterwards; `outcome` is SPILE_ALLOWED
 */
void model_settle(model_bucket *buckets, bool refund, int64_t now_ms, const model_request *requests, size_t n,
                  model_answer *decision, model_answer *each);

/* Takes from buckets of which none is named twice: from each the same, the least (their cost) to the most. */
int model_take_up_to(model_bucket *buckets, int64_t now_ms, const model_request *requests, size_t n, int64_t most,
                     model_answer *decision, model_answer *each);

/* ---- What the two halves of the model share (model.c, model_window.c) ---- */

/* The requests of one bucket, summed. */
typedef struct model_item {
  model_bucket *bucket;
  model_limit limit;
  model_int cost;
  model_int level;
  bool moved;
  size_t first;   /* the first request that names it */
  model_log *log; /* of a window: what counts under the limit, for the call */
} model_item;

model_int model_floor(model_int a, model_int b);
bool model_same(const model_limit *a, const model_limit *b);
bool model_is_window(const model_limit *limit);
bool model_window_bounds(const model_limit *limit);
int64_t model_window_full_time_ms(const model_limit *limit);
void model_window_read(model_item *item, int64_t now_ms);
bool model_window_fits(const model_item *item, int64_t now_ms);
void model_window_answer(const model_item *item, bool charged, int64_t now_ms, model_answer *out);
void model_window_write(const model_item *item, bool charged, int64_t now_ms);
/* Gives the newest `cost` tokens back to the log of the item, of those that a refund concerns. @return whether any */
bool model_window_refund(model_item *item, int64_t now_ms);

#endif
