/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters by a limit's name: rows that are found without a lock and never go.
 */
#ifndef SPILE_LIMITER_METRICS_H
#define SPILE_LIMITER_METRICS_H

#include <spile/sys/store.h>

typedef struct spile__metrics spile__metrics;

/*
 * @param env  outlives it; gives memory here and when a name is first counted, and random numbers here
 * @return SPILE_OK; SPILE_ENOMEM; SPILE_EUNAVAILABLE, no random numbers
 */
int spile__metrics_open(spile__metrics **out, const spile_env *env, spile_error *error);

/* NULL is fine. */
void spile__metrics_close(spile__metrics *metrics);

/*
 * Counts a take that asked a limit.
 *
 * @param result    of the take
 * @param decision  what this limit said
 * @param shadow    it is a shadow limit
 */
void spile__metrics_take(spile__metrics *metrics, const spile_spec *spec, int result, const spile_decision *decision,
                         bool shadow);

/* Counts a call of the store that named a limit and took so long; below 0 counts as 0. */
void spile__metrics_call(spile__metrics *metrics, const spile_spec *spec, int64_t took_ns);

/* As spile_metrics_each. */
void spile__metrics_each(const spile__metrics *metrics, spile_metrics_visitor *visit, void *user);

#endif
