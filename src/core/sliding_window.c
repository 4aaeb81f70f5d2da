/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sliding window by two counters: what this window has given, and what the one before has, which counts less and
 * less as this one goes on, as if it had been given evenly. In units of 1/W token, e ms into a window of length W:
 *
 *   used = before·(W − e) + count·W,   a take of c is allowed when used + c·W ≤ C·W
 *
 * Exact integers; what is estimated is only how the window before gave its tokens. No window of length W can admit more
 * than about C by it if the traffic is even, nor 2·C whatever the traffic is.
 *
 * A reading is the two counts of the window of the decision, and the milliseconds until that window ends. When the
 * numbers of the limit change, both counts go on counting, in the window that holds the same instant under the new
 * length and in the one before it, each cut to the new capacity.
 *
 * A charge counts in this window, as many whole tokens as there are. A refund takes back what this window counts, and
 * never below zero: what the one before gave stays as it is.
 *
 * lua/take.lua makes the same decision with the same names; a change here is a change there.
 */
#include "core/limit.h"
#include "core/text.h"
#include "core/window.h"

enum { BEFORE, COUNT, LEFT_MS };

/* Both counts and a cost are at most the capacity, so every sum of products stays below 3·C·W. */
static int sliding_shape_make(spile_shape *out, int64_t capacity, int64_t tokens, int64_t window_ms, int64_t debt,
                              spile_error *error) {
  int result = spile__window_make(out, capacity, tokens, window_ms, debt, error);
  if (result != SPILE_OK)
    return result;
  int64_t capacity_max = SPILE__EXACT_MAX / 3 / window_ms;
  if (capacity > capacity_max)
    return spile__fail(
        error, SPILE_ECONFIG,
        "capacity is # tokens, # more than the # that keep 3 x capacity x window within 2^53 - 1 for this "
        "window; write a smaller capacity or a shorter window, or fixed_window",
        (int64_t[]){capacity, capacity - capacity_max, capacity_max});
  return SPILE_OK;
}

static bool sliding_shape_valid(const spile_shape *shape) {
  spile_shape made;
  return sliding_shape_make(&made, shape->capacity, 0, shape->period_ms, 0, NULL) == SPILE_OK &&
         spile__shape_equal(&made, shape);
}

static int64_t sliding_full_time_ms(const spile_shape *shape) {
  return 2 * shape->period_ms;
}

static bool sliding_read(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                         spile_reading *out) {
  (void)cost;
  int64_t window_ms = shape->period_ms;
  *out = (spile_reading){.values = {[LEFT_MS] = spile__window_start(window_ms, now_ms) + window_ms - now_ms}};
  if (state == NULL)
    return false;
  int64_t old_window_ms = state->shape.period_ms;
  int64_t start_ms = state->sliding.start_ms;
  int64_t count = state->sliding.count;
  int64_t before = state->sliding.before;
  bool rewrite = spile__window_cut(&start_ms, old_window_ms, now_ms);
  int64_t decided_ms = spile__window_max(now_ms, start_ms);
  if (decided_ms >= start_ms + old_window_ms) {
    start_ms += old_window_ms;
    before = count;
    count = 0;
  }
  if (decided_ms >= start_ms + old_window_ms || (before == 0 && count == 0))
    return false;
  if (!spile__shape_equal(shape, &state->shape)) {
    start_ms = spile__window_start(window_ms, decided_ms);
    count = spile__window_min(count, shape->capacity);
    before = spile__window_min(before, shape->capacity);
    rewrite = true;
  }
  out->values[BEFORE] = before;
  out->values[COUNT] = count;
  out->values[LEFT_MS] = start_ms + window_ms - now_ms;
  return rewrite;
}

/* W − e: what is left of the window, which has not begun when a clock reads less than its start. */
static int64_t sliding_rest_ms(const spile_shape *shape, const spile_reading *reading) {
  return spile__window_min(reading->values[LEFT_MS], shape->period_ms);
}

static int64_t sliding_used(const spile_shape *shape, const spile_reading *reading) {
  return reading->values[BEFORE] * sliding_rest_ms(shape, reading) + reading->values[COUNT] * shape->period_ms;
}

static bool sliding_fits(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return sliding_used(shape, reading) <= (shape->capacity - cost) * shape->period_ms;
}

static void sliding_charge(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  SPILE__ASSERT(sliding_fits(shape, reading, cost));
  (void)shape;
  reading->values[COUNT] += cost;
}

static int64_t sliding_room(const spile_shape *shape, const spile_reading *reading) {
  int64_t left = shape->capacity * shape->period_ms - sliding_used(shape, reading);
  return left <= 0 ? 0 : left / shape->period_ms;
}

static void sliding_refund(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  (void)shape;
  reading->values[COUNT] -= spile__window_min(cost, reading->values[COUNT]);
}

static bool sliding_state(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                          const spile__state *old, spile__state *out) {
  (void)old;
  out->shape = *shape;
  out->sliding.start_ms = now_ms + reading->values[LEFT_MS] - shape->period_ms;
  out->sliding.count = reading->values[COUNT];
  out->sliding.before = reading->values[BEFORE];
  return out->sliding.count > 0 || out->sliding.before > 0;
}

/*
 * The wait of a take that does not fit now. If this window alone leaves room for it, it fits in this window, or as the
 * next begins, when the one before weighs little enough:
 *
 *   before·rest ≤ (C − count − c)·W,   so rest = ⌊(C − count − c)·W / before⌋
 *
 * Else in the next window, where this one's count is what the window before gave, and nothing else counts: there
 * count·rest ≤ (C − c)·W. count > C − c, so rest is below W; 0 is the end of that window.
 */
static int64_t sliding_retry_after_ms(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  int64_t room = shape->capacity - cost;
  int64_t count = reading->values[COUNT];
  if (count <= room)
    return reading->values[LEFT_MS] - (room - count) * shape->period_ms / reading->values[BEFORE];
  return reading->values[LEFT_MS] + shape->period_ms - room * shape->period_ms / count;
}

static void sliding_report(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                           spile__verdict *out) {
  spile_reading after = *reading;
  *out = (spile__verdict){.grows_after_ms = SPILE_UNKNOWN};
  if (cost > shape->capacity) {
    out->outcome = SPILE_NEVER;
    out->retry_after_ms = SPILE_UNKNOWN;
  } else if (sliding_fits(shape, reading, cost)) {
    out->outcome = SPILE_ALLOWED;
    if (charged)
      after.values[COUNT] += cost;
  } else {
    out->outcome = SPILE_DENIED;
    out->retry_after_ms = sliding_retry_after_ms(shape, reading, cost);
  }
  out->remaining = sliding_room(shape, &after);
  if (after.values[COUNT] > 0)
    out->reset_after_ms = after.values[LEFT_MS] + shape->period_ms;
  else if (after.values[BEFORE] > 0)
    out->reset_after_ms = after.values[LEFT_MS];
  /* One more is left when a take of one more would fit. */
  if (out->remaining < shape->capacity)
    out->grows_after_ms = sliding_retry_after_ms(shape, &after, out->remaining + 1);
}

static bool sliding_reading_valid(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  (void)cost;
  return reading->values[BEFORE] >= 0 && reading->values[BEFORE] <= shape->capacity && reading->values[COUNT] >= 0 &&
         reading->values[COUNT] <= shape->capacity && reading->values[LEFT_MS] >= 1 &&
         reading->values[LEFT_MS] <= shape->period_ms + SPILE__TOLERANCE_MS;
}

static bool sliding_state_valid(const spile__state *state) {
  return spile__window_start_valid(state->sliding.start_ms, state->shape.period_ms) && state->sliding.count >= 0 &&
         state->sliding.count <= state->shape.capacity && state->sliding.before >= 0 &&
         state->sliding.before <= state->shape.capacity && (state->sliding.count > 0 || state->sliding.before > 0);
}

/* This window counts until the end of the next. */
static int64_t sliding_full_at_ms(const spile__state *state) {
  return state->sliding.start_ms + (state->sliding.count > 0 ? 2 : 1) * state->shape.period_ms;
}

/* Two counts of 31 bits; full_at_ms tells the start. */
#define PACK_BITS 31
#define PACK_MAX ((INT64_C(1) << PACK_BITS) - 1)

static bool sliding_pack(const spile__state *state, uint64_t *word) {
  *word = (uint64_t)state->sliding.before << PACK_BITS | (uint64_t)state->sliding.count;
  return state->sliding.before <= PACK_MAX && state->sliding.count <= PACK_MAX;
}

static void sliding_unpack(const spile_shape *shape, int64_t full_at_ms, uint64_t word, spile__state *out) {
  out->shape = *shape;
  out->sliding.start_ms = 0;
  out->sliding.count = (int64_t)word & PACK_MAX;
  out->sliding.before = (int64_t)(word >> PACK_BITS) & PACK_MAX;
  out->sliding.start_ms = full_at_ms - sliding_full_at_ms(out);
}

const spile__algorithm spile__sliding_window = {
    .name = "sliding_window",
    .mark = "w",
    .window = true,
    .values = 3,
    .numbers = 3,
    .shape_make = sliding_shape_make,
    .shape_valid = sliding_shape_valid,
    .full_time_ms = sliding_full_time_ms,
    .read = sliding_read,
    .fits = sliding_fits,
    .charge = sliding_charge,
    .room = sliding_room,
    .refund = sliding_refund,
    .state = sliding_state,
    .report = sliding_report,
    .reading_valid = sliding_reading_valid,
    .state_valid = sliding_state_valid,
    .full_at_ms = sliding_full_at_ms,
    .pack = sliding_pack,
    .unpack = sliding_unpack,
    .pack_max = PACK_MAX,
};
