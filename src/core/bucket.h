/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token bucket, also for the memory store's short path, which works on the debt alone, and for the leaky bucket,
 * whose state and admission are the same.
 */
#ifndef SPILE_CORE_BUCKET_H
#define SPILE_CORE_BUCKET_H

#include "core/algorithm.h"
#include "core/checked.h"

/*
 * The debt of a bucket of unchanged shape that is full at full_at_ms + rem/N: the units that are missing to a full one.
 *
 *   D = max(0, (full_at − now)·N) = w·N + rem  with w = full_at_ms − now
 *
 * An instant that lies further ahead than the time from the deepest debt to full and the tolerance,
 * (full_at − now)·N > (C + debt)·P + 1000·N, cannot come from clocks that merely disagree. It is cut to an empty
 * bucket, D = C·P. The product may pass 2^63 only then; else w·N + rem < (C + debt)·P + 1001·N ≤ 2^53 − 1.
 */
static inline int64_t spile__bucket_debt(const spile_shape *shape, int64_t full_at_ms, int64_t rem, int64_t now_ms,
                                         bool *cut) {
  *cut = false;
  if (full_at_ms < now_ms)
    return 0;
  int64_t debt;
  int64_t deepest = (shape->capacity + shape->debt) * shape->period_ms + SPILE__TOLERANCE_MS * shape->refill;
  *cut = __builtin_mul_overflow(full_at_ms - now_ms, shape->refill, &debt) || debt > deepest - rem;
  return *cut ? shape->capacity * shape->period_ms : debt + rem;
}

/* The instant at which a bucket with this debt at now_ms is full: full_at = now + D/N, the remainder in 1/N ms. */
static inline void spile__bucket_instant(const spile_shape *shape, int64_t debt, int64_t now_ms, int64_t *full_at_ms,
                                         int64_t *rem) {
  /* Nearly every limit that people write has N = 1, and a division costs more than the rest. */
  *full_at_ms = now_ms + (shape->refill == 1 ? debt : debt / shape->refill);
  *rem = shape->refill == 1 ? 0 : debt % shape->refill;
}

/* Whether a bucket with this debt has `cost` tokens: D + c·P ≤ C·P, for 0 ≤ c ≤ C. */
static inline bool spile__bucket_debt_fits(const spile_shape *shape, int64_t debt, int64_t cost) {
  return debt <= (shape->capacity - cost) * shape->period_ms;
}

/* The functions of its table. */
int64_t spile__bucket_full_time_ms(const spile_shape *shape);
bool spile__bucket_read(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                        spile_reading *out);
bool spile__bucket_fits(const spile_shape *shape, const spile_reading *reading, int64_t cost);
void spile__bucket_charge(const spile_shape *shape, spile_reading *reading, int64_t cost);
int64_t spile__bucket_room(const spile_shape *shape, const spile_reading *reading);
int64_t spile__bucket_force(const spile_shape *shape, spile_reading *reading, int64_t cost);
void spile__bucket_refund(const spile_shape *shape, spile_reading *reading, int64_t cost);
bool spile__bucket_state(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                         const spile__state *old, spile__state *out);
void spile__bucket_report(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                          spile__verdict *out);
bool spile__bucket_reading_valid(const spile_shape *shape, const spile_reading *reading, int64_t cost);
bool spile__bucket_state_valid(const spile__state *state);
int64_t spile__bucket_full_at_ms(const spile__state *state);

#endif
