/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leaky bucket as a queue: what is admitted goes through one after the other at the drain rate.
 *
 * Its state and its admission are those of the token bucket, seen from the other side: the debt is what has not drained
 * yet, and capacity is how much the bucket holds, the one being served included. What it adds is the delay: whoever is
 * admitted waits until what came before has drained.
 *
 * lua/take.lua decides about it with the functions of the token bucket; a reading tells the debt, so the delay is made
 * here for every store.
 */
#include "core/bucket.h"
#include "core/limit.h"

/* delay = ⌈D / N⌉ with the debt before the take. */
static void leaky_report(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                         spile__verdict *out) {
  spile__bucket_report(shape, reading, cost, charged, out);
  if (out->outcome == SPILE_ALLOWED)
    out->delay_ms = spile__div_ceil(reading->values[0], shape->refill);
}

const spile__algorithm spile__leaky_bucket = {
    .name = "leaky_bucket",
    .mark = "l",
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
    .report = leaky_report,
    .reading_valid = spile__bucket_reading_valid,
    .state_valid = spile__bucket_state_valid,
    .full_at_ms = spile__bucket_full_at_ms,
};
