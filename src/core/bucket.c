/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token bucket.
 *
 * A bucket's state is one instant: when it will be full again. The tokens it lacks are that instant's distance from now
 * times the rate, so refill needs no timer and no write, a full bucket needs no entry at all, and an instant that only
 * moves forward cannot be tricked by a clock that steps. Everything is counted in units of 1/P token: a millisecond
 * adds N units, a token is P units, and a full bucket C·P.
 *
 * lua/take.lua makes the same decision with the same names; a change here is a change there.
 */
#include "core/bucket.h"

#include "core/limit.h"

/* The bounds that spile__shape_make enforces make every product below exact in int64_t and in a Lua number. */
_Static_assert(SPILE__EXACT_MAX == (INT64_C(1) << 53) - 1, "a Lua number counts exactly to 2^53");
_Static_assert(SPILE__PERIOD_MAX_MS < (INT64_C(1) << 39), "a period has three 13-bit digits");

/*
 * ⌊fraction · period_ms / old_period_ms⌋ for 0 ≤ fraction < old_period_ms. The product has up to 78 bits, so it is made
 * and divided digit by digit, as on paper, with the period in three digits of 13 bits:
 *   x = rest · 2^13 + fraction · digit ≤ (2^39 − 1)·2^13 + (2^39 − 1)·(2^13 − 1) < 2^53
 */
static int64_t rescale(int64_t fraction, int64_t period_ms, int64_t old_period_ms) {
  int64_t quotient = 0;
  int64_t rest = 0;
  for (int shift = 26; shift >= 0; shift -= 13) {
    int64_t digit = period_ms >> shift & 8191;
    int64_t x = rest * 8192 + fraction * digit;
    quotient = quotient * 8192 + x / old_period_ms;
    rest = x % old_period_ms;
  }
  return quotient;
}

/*
 * The debt under `shape` of a bucket that owes `debt` > 0 under `old`: the level is kept to a unit of the new shape,
 * rounded down, and clamped to the new capacity and the new debt.
 *
 *   level = C_old·P_old − D = tokens·P_old + fraction,  level' = tokens·P + ⌊fraction·P / P_old⌋,  D' = C·P − level'
 */
static int64_t convert(const spile_shape *shape, const spile_shape *old, int64_t debt) {
  int64_t level = old->capacity * old->period_ms - debt;
  int64_t tokens = spile__div_floor(level, old->period_ms);
  int64_t fraction = level - tokens * old->period_ms;
  if (tokens >= shape->capacity)
    return 0;
  if (tokens < -shape->debt)
    return (shape->capacity + shape->debt) * shape->period_ms;
  int64_t converted = tokens * shape->period_ms + rescale(fraction, shape->period_ms, old->period_ms);
  return shape->capacity * shape->period_ms - converted;
}

int64_t spile__bucket_full_time_ms(const spile_shape *shape) {
  return spile__div_ceil(shape->capacity * shape->period_ms, shape->refill);
}

bool spile__bucket_read(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                        spile_reading *out) {
  (void)cost;
  *out = (spile_reading){{0}};
  if (state == NULL)
    return false;
  bool rewrite;
  int64_t debt = spile__bucket_debt(&state->shape, state->bucket.full_at_ms, state->bucket.rem, now_ms, &rewrite);
  /* A full bucket is full under every shape, as if it had been dropped. */
  if (debt > 0 && !spile__shape_equal(shape, &state->shape)) {
    debt = convert(shape, &state->shape, debt);
    rewrite = true;
  }
  out->values[0] = debt;
  return rewrite;
}

bool spile__bucket_fits(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return spile__bucket_debt_fits(shape, reading->values[0], cost);
}

void spile__bucket_charge(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  SPILE__ASSERT(spile__bucket_debt_fits(shape, reading->values[0], cost));
  reading->values[0] += cost * shape->period_ms;
}

/* How many whole tokens a bucket can fall by until it owes `most` units. */
static int64_t tokens_until(const spile_shape *shape, const spile_reading *reading, int64_t most) {
  int64_t debt = reading->values[0];
  return debt >= most ? 0 : (most - debt) / shape->period_ms;
}

int64_t spile__bucket_room(const spile_shape *shape, const spile_reading *reading) {
  return tokens_until(shape, reading, shape->capacity * shape->period_ms);
}

/*
 * D' = max(D, min(D + c·P, (C + debt)·P)): the level falls no deeper than the debt, and one that a clock which steps
 * back shows deeper is left there. With t the whole tokens down to the deepest debt, c ≤ t is charged in full; else
 * what is not charged is c·P less what is left, of which c − t is the whole tokens rounded up. c·P itself may be too
 * large to be made.
 */
int64_t spile__bucket_force(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  int64_t deepest = (shape->capacity + shape->debt) * shape->period_ms;
  int64_t tokens = tokens_until(shape, reading, deepest);
  if (cost <= tokens) {
    reading->values[0] += cost * shape->period_ms;
    return 0;
  }
  if (reading->values[0] < deepest)
    reading->values[0] = deepest;
  return cost - tokens;
}

/* D' = max(0, D − c·P); c·P may be too large to be made. */
void spile__bucket_refund(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  if (cost > reading->values[0] / shape->period_ms)
    reading->values[0] = 0;
  else
    reading->values[0] -= cost * shape->period_ms;
}

bool spile__bucket_state(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                         const spile__state *old, spile__state *out) {
  (void)old;
  int64_t debt = reading->values[0];
  out->shape = *shape;
  spile__bucket_instant(shape, debt, now_ms, &out->bucket.full_at_ms, &out->bucket.rem);
  return debt > 0;
}

/* ⌈units / N⌉. Nearly every limit that people write has N = 1, and a division costs more than the rest. */
static int64_t refill_ms(const spile_shape *shape, int64_t units) {
  return shape->refill == 1 ? units : spile__div_ceil(units, shape->refill);
}

/*
 * remaining = r = ⌊level / P⌋, never below 0; retry = ⌈(D + c·P − C·P) / N⌉, the first millisecond at which D has
 * shrunk to what c leaves room for; reset = ⌈D / N⌉. What is left grows when the level has come to (r + 1)·P:
 *
 *   level ≥ 0:  (r + 1)·P − level = P − level mod P units are missing;  below zero, where r is 0, P − level
 */
void spile__bucket_report(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                          spile__verdict *out) {
  int64_t debt = reading->values[0];
  int64_t full = shape->capacity * shape->period_ms;
  out->retry_after_ms = 0;
  out->delay_ms = 0;
  if (cost > shape->capacity) {
    out->outcome = SPILE_NEVER;
    out->retry_after_ms = SPILE_UNKNOWN;
  } else if (spile__bucket_debt_fits(shape, debt, cost)) {
    out->outcome = SPILE_ALLOWED;
    if (charged)
      debt += cost * shape->period_ms;
  } else {
    out->outcome = SPILE_DENIED;
    out->retry_after_ms = refill_ms(shape, debt - (shape->capacity - cost) * shape->period_ms);
  }
  int64_t level = full - debt;
  out->remaining = level <= 0 ? 0 : level / shape->period_ms;
  out->reset_after_ms = refill_ms(shape, debt);
  out->grows_after_ms = debt == 0 ? SPILE_UNKNOWN : refill_ms(shape, (out->remaining + 1) * shape->period_ms - level);
}

bool spile__bucket_reading_valid(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  (void)cost;
  int64_t deepest = (shape->capacity + shape->debt) * shape->period_ms;
  return reading->values[0] >= 0 && reading->values[0] <= deepest + SPILE__TOLERANCE_MS * shape->refill;
}

bool spile__bucket_state_valid(const spile__state *state) {
  return state->bucket.full_at_ms >= 0 &&
         state->bucket.full_at_ms <= SPILE_TIME_MAX_MS + SPILE__PERIOD_MAX_MS + SPILE__TOLERANCE_MS &&
         state->bucket.rem >= 0 && state->bucket.rem < state->shape.refill;
}

int64_t spile__bucket_full_at_ms(const spile__state *state) {
  return state->bucket.full_at_ms + (state->bucket.rem > 0);
}

const spile__algorithm spile__token_bucket = {
    .name = "token_bucket",
    .mark = "",
    .instant = true,
    .values = 1,
    .numbers = 2,
    .shape_make = spile__shape_make,
    .shape_valid = spile__shape_valid,
    .full_time_ms = spile__bucket_full_time_ms,
    .read = spile__bucket_read,
    .fits = spile__bucket_fits,
    .charge = spile__bucket_charge,
    .room = spile__bucket_room,
    .force = spile__bucket_force,
    .refund = spile__bucket_refund,
    .state = spile__bucket_state,
    .report = spile__bucket_report,
    .reading_valid = spile__bucket_reading_valid,
    .state_valid = spile__bucket_state_valid,
    .full_at_ms = spile__bucket_full_at_ms,
};
