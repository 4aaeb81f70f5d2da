/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/allowance.h"

#include "core/algorithm.h"
#include "core/checked.h"

enum { MINUTE_MS = 60000 };

/* Requests that a sliding window can have let pass when R ms of it are left, b of them in the one before: at most. */
static int64_t sliding_most(const spile_shape *shape, int64_t cost, int64_t before, int64_t left_ms) {
  return (shape->capacity * shape->period_ms - cost * before * left_ms) / (cost * shape->period_ms);
}

/*
 * The most requests of c that a sliding window W long lets pass in a minute, exactly. b of one window weigh c·b·R/W
 * tokens in the next while R ms of that are left, so the next can have let pass at most
 *
 *   most(b, R) = ⌊(C·W − c·b·R) / (c·W)⌋, in all of it most(b, 1).
 *
 * A window gives most when every window before it gives all it can: d requests fewer in one make the most of the next
 * ⌈d·R/W⌉ ≤ d larger at best. By induction from the last window back to the first, whoever gives d fewer gains d at
 * most in all windows behind: what the next gains it may give, which costs those behind it no more, or keep. So no
 * window gains by giving less.
 *
 * The first window has none before it, and gives ⌊C/c⌋ at any of its milliseconds. Of all minutes that begin in it the
 * one that begins in its last millisecond ends last, and so has most: behind that are ⌊59,999/W⌋ whole windows and a
 * part of one with what is left of the 59,999 ms.
 *
 * What a window gives follows from the one before alone. So as soon as one gives what the last but one gave, all that
 * follow go on in turn. There are no more than 60,000 windows, and C·W is below 2^53.
 */
static int64_t sliding_first_minute(const spile_shape *shape, int64_t cost) {
  int64_t whole = (MINUTE_MS - 1) / shape->period_ms;
  int64_t part_ms = (MINUTE_MS - 1) % shape->period_ms;
  int64_t last_but_one = -1; /* there is none yet */
  int64_t given = shape->capacity / cost;
  int64_t sum = given;
  for (int64_t left = whole; left > 0; left--) {
    int64_t next = sliding_most(shape, cost, given, 1);
    if (next == last_but_one) {
      sum = spile__add_saturate(sum, spile__mul_saturate(next, spile__div_ceil(left, 2)));
      sum = spile__add_saturate(sum, spile__mul_saturate(given, left / 2));
      given = left % 2 == 1 ? next : given;
      break;
    }
    last_but_one = given;
    given = next;
    sum = spile__add_saturate(sum, given);
  }
  if (part_ms > 0)
    sum = spile__add_saturate(sum, sliding_most(shape, cost, given, shape->period_ms - part_ms + 1));
  return sum;
}

/*
 * Of windows W long, at most: 60,000 milliseconds touch ⌈59,999 / W⌉ + 1 of them, and each fixed one gives C. Of a log
 * no W holds more than C.
 */
static int64_t window_first_minute(spile_algorithm algorithm, const spile_shape *shape, int64_t cost) {
  int64_t touched = spile__div_ceil(MINUTE_MS - 1, shape->period_ms) + 1;
  int64_t burst = shape->capacity / cost;
  if (algorithm == SPILE_FIXED_WINDOW)
    return spile__mul_saturate(burst, touched);
  if (algorithm == SPILE_SLIDING_LOG)
    return spile__mul_saturate(burst, spile__div_ceil(MINUTE_MS, shape->period_ms));
  return sliding_first_minute(shape, cost);
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
