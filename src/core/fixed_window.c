/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fixed window: each window admits `capacity` tokens, and what one has given is forgotten when the next begins. So
 * around the instant at which two windows meet twice the capacity may be admitted within any short time; that is the
 * price of a state that is one count, and of "per day" meaning the calendar day.
 *
 * A reading is the tokens that the window of the decision has given, and the milliseconds until that window ends. When
 * the numbers of the limit change, the count of a window that has not ended goes on counting in the window that holds
 * the same instant under the new length, cut to the new capacity.
 *
 * A charge counts in the window of the decision, up to the capacity. A refund takes back from that window, whichever
 * one the tokens were taken in, and never below zero: what an older one gave does not count any more.
 *
 * lua/take.lua makes the same decision with the same names; a change here is a change there.
 */
#include "core/limit.h"
#include "core/window.h"

enum { COUNT, LEFT_MS };

static bool fixed_shape_valid(const spile_shape *shape) {
  spile_shape made;
  return spile__window_make(&made, shape->capacity, 0, shape->period_ms, 0, NULL) == SPILE_OK &&
         spile__shape_equal(&made, shape);
}

static int64_t fixed_full_time_ms(const spile_shape *shape) {
  return shape->period_ms;
}

static bool fixed_read(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                       spile_reading *out) {
  (void)cost;
  int64_t window_ms = shape->period_ms;
  *out = (spile_reading){.values = {[LEFT_MS] = spile__window_start(window_ms, now_ms) + window_ms - now_ms}};
  if (state == NULL || state->window.count == 0)
    return false;
  int64_t old_window_ms = state->shape.period_ms;
  int64_t start_ms = state->window.start_ms;
  int64_t count = state->window.count;
  bool rewrite = spile__window_cut(&start_ms, old_window_ms, now_ms);
  int64_t decided_ms = spile__window_max(now_ms, start_ms);
  if (decided_ms >= start_ms + old_window_ms)
    return false;
  if (!spile__shape_equal(shape, &state->shape)) {
    start_ms = spile__window_start(window_ms, decided_ms);
    count = spile__window_min(count, shape->capacity);
    rewrite = true;
  }
  out->values[COUNT] = count;
  out->values[LEFT_MS] = start_ms + window_ms - now_ms;
  return rewrite;
}

static bool fixed_fits(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return reading->values[COUNT] <= shape->capacity - cost;
}

static void fixed_charge(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  SPILE__ASSERT(fixed_fits(shape, reading, cost));
  (void)shape;
  reading->values[COUNT] += cost;
}

static int64_t fixed_room(const spile_shape *shape, const spile_reading *reading) {
  return shape->capacity - reading->values[COUNT];
}

static void fixed_refund(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  (void)shape;
  reading->values[COUNT] -= spile__window_min(cost, reading->values[COUNT]);
}

static bool fixed_state(const spile_shape *shape, const spile_reading *reading, int64_t now_ms, const spile__state *old,
                        spile__state *out) {
  (void)old;
  out->shape = *shape;
  out->window.start_ms = now_ms + reading->values[LEFT_MS] - shape->period_ms;
  out->window.count = reading->values[COUNT];
  return out->window.count > 0;
}

/* Whatever the cost, a denial ends with the window. */
static void fixed_report(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                         spile__verdict *out) {
  int64_t count = reading->values[COUNT];
  *out = (spile__verdict){0};
  if (cost > shape->capacity) {
    out->outcome = SPILE_NEVER;
    out->retry_after_ms = SPILE_UNKNOWN;
  } else if (fixed_fits(shape, reading, cost)) {
    out->outcome = SPILE_ALLOWED;
    if (charged)
      count += cost;
  } else {
    out->outcome = SPILE_DENIED;
    out->retry_after_ms = reading->values[LEFT_MS];
  }
  out->remaining = shape->capacity - count;
  out->reset_after_ms = count > 0 ? reading->values[LEFT_MS] : 0;
  out->grows_after_ms = count > 0 ? reading->values[LEFT_MS] : SPILE_UNKNOWN;
}

static bool fixed_reading_valid(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  (void)cost;
  return reading->values[COUNT] >= 0 && reading->values[COUNT] <= shape->capacity && reading->values[LEFT_MS] >= 1 &&
         reading->values[LEFT_MS] <= shape->period_ms + SPILE__TOLERANCE_MS;
}

static bool fixed_state_valid(const spile__state *state) {
  return spile__window_start_valid(state->window.start_ms, state->shape.period_ms) && state->window.count >= 1 &&
         state->window.count <= state->shape.capacity;
}

static int64_t fixed_full_at_ms(const spile__state *state) {
  return state->window.start_ms + state->shape.period_ms;
}

static bool fixed_pack(const spile__state *state, uint64_t *word) {
  *word = (uint64_t)state->window.count;
  return true;
}

static void fixed_unpack(const spile_shape *shape, int64_t full_at_ms, uint64_t word, spile__state *out) {
  out->shape = *shape;
  out->window.start_ms = full_at_ms - shape->period_ms;
  out->window.count = (int64_t)word;
}

const spile__algorithm spile__fixed_window = {
    .name = "fixed_window",
    .mark = "f",
    .window = true,
    .values = 2,
    .numbers = 2,
    .shape_make = spile__window_make,
    .shape_valid = fixed_shape_valid,
    .full_time_ms = fixed_full_time_ms,
    .read = fixed_read,
    .fits = fixed_fits,
    .charge = fixed_charge,
    .room = fixed_room,
    .refund = fixed_refund,
    .state = fixed_state,
    .report = fixed_report,
    .reading_valid = fixed_reading_valid,
    .state_valid = fixed_state_valid,
    .full_at_ms = fixed_full_at_ms,
    .pack = fixed_pack,
    .unpack = fixed_unpack,
    .pack_max = INT64_MAX,
};
