/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meter: a store that wraps another one and measures how long it takes to decide.
 */
#ifndef SPILE_LIMITER_METER_H
#define SPILE_LIMITER_METER_H

#include "limiter/metrics.h"

/*
 * Wraps `inner`, whose name, default deadline and abilities it has. It stands below the breaker, so that what is
 * measured is what the store was asked.
 *
 * @param inner    owned by the meter from success on
 * @param metrics  outlives it, as does env, whose monotonic_ns is the clock
 * @return SPILE_OK; SPILE_ENOMEM
 */
int spile__meter_open(spile_store **out, spile_store *inner, spile__metrics *metrics, const spile_env *env,
                      spile_error *error);

/* Takes the meter off again: frees it and returns the store that it wraps. */
spile_store *spile__meter_remove(spile_store *store);

#endif
