/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slow second opinion on every decision. It shares no arithmetic with the library: where the core keeps the instant
 * at which a bucket is full again and counts debts that fit 53 bits, the model keeps a level and the instant it was
 * true at, in 128-bit integers that no bound has to protect.
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

/* A bucket: `level` units of 1/period_ms token at at_ms. Not stored: full. */
typedef struct model_bucket {
  bool stored;
  model_limit limit; /* the numbers it was written under */
  model_int level;
  int64_t at_ms;
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
  int64_t delay_ms;
} model_answer;

/* Reduces to lowest terms. @return false when the numbers leave the bounds that every store keeps */
bool model_limit_make(model_limit *out, int64_t capacity, int64_t refill_tokens, int64_t refill_period_ms,
                      int64_t debt);

/* From empty to full, rounded up. */
int64_t model_full_time_ms(const model_limit *limit);

/*
 * Decides requests, 1 to SPILE_REQUESTS_MAX, all or nothing, and writes what the decision writes.
 * @param each  n answers: what each request's own limit says
 * @return the outcome
 */
int model_decide(model_bucket *buckets, bool take, int64_t now_ms, const model_request *requests, size_t n,
                 model_answer *decision, model_answer *each);

#endif
