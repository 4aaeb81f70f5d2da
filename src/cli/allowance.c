/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/allowance.h"

#include "core/algorithm.h"
#include "core/checked.h"

enum { MINUTE_MS = 60000 };

/*
 * Whole requests that a sliding window W long can let pass in so many windows, at most. When b pass in one, whose
 * tokens c·b weigh c·b/W at the last millisecond of the next, that one has at most ⌊(C·W − c·b) / (c·W)⌋, which falls
 * by no more than b grows; so two windows give most when the first gives all it can. C·W is below 2^53.
 */
static int64_t sliding_whole(const spile_shape *shape, int64_t cost, int64_t windows) {
  int64_t burst = shape->capacity / cost;
  int64_t next = (shape->capacity * shape->period_ms - cost * burst) / (cost * shape->period_ms);
  return spile__add_saturate(spile__mul_saturate(burst, spile__div_ceil(windows, 2)),
                             spile__mul_saturate(next, windows / 2));
}

/*
 * Of windows W long, at most: 60,000 milliseconds touch ⌈59,999 / W⌉ + 1 of them, and each fixed one gives C. A sliding
 * window that began with a tokens of the window before it gives C − a·(W − t)/W until t, so that both have given at
 * most C + C·t/W; and no more than whole requests. Of a log no W holds more than C.
 */
static int64_t window_first_minute(spile_algorithm algorithm, const spile_shape *shape, int64_t cost) {
  int64_t touched = spile__div_ceil(MINUTE_MS - 1, shape->period_ms) + 1;
  int64_t burst = shape->capacity / cost;
  if (algorithm == SPILE_FIXED_WINDOW)
    return spile__mul_saturate(burst, touched);
  if (algorithm == SPILE_SLIDING_LOG)
    return spile__mul_saturate(burst, spile__div_ceil(MINUTE_MS, shape->period_ms));
  int64_t more = spile__mul_saturate(shape->capacity, MINUTE_MS - 1) / shape->period_ms;
  int64_t tokens = spile__add_saturate(shape->capacity, more) / cost;
  int64_t whole = sliding_whole(shape, cost, touched);
  return whole < tokens ? whole : tokens;
}

/*
 * In the minute [0, 60,000) a bucket that is full at 0 has C + N·59,999/P tokens to give, if each is taken as soon as
 * it is there. Of requests that cost c that is ⌊(C·P + N·59,999) / (P·c)⌋: C·P is below 2^53 and N below 2^44, so the
 * sum is below 2^61, and P·c is at most P·C.
 */
allowance allowance_of(const spile__route_limit *limit) {
  const spile_spec *spec = spile_limit_spec(limit->limit);
  const spile_shape *shape = &spec->shape;
  allowance a = {.burst = shape->capacity / limit->cost,
                 .window = spile__algorithm_get(spec->algorithm)->window,
                 .spaced = spec->algorithm == SPILE_LEAKY_BUCKET};
  if (a.window) {
    a.count = a.burst;
    a.period_ms = shape->period_ms;
    a.first_minute = window_first_minute(spec->algorithm, shape, limit->cost);
    a.meets = a.period_ms >= MINUTE_MS && a.first_minute > a.burst;
    return a;
  }
  int64_t request = shape->period_ms * limit->cost;
  int64_t divisor = spile__gcd(shape->refill, request);
  a.count = shape->refill / divisor;
  a.period_ms = request / divisor;
  a.first_minute = (shape->capacity * shape->period_ms + shape->refill * (MINUTE_MS - 1)) / request;
  return a;
}
