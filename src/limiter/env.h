/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real environment of a store: the system's clocks and random numbers, the C library's allocator, no log.
 */
#ifndef SPILE_LIMITER_ENV_H
#define SPILE_LIMITER_ENV_H

#include <spile/sys/store.h>

/* Fills every member. */
void spile__env_init(spile_env *env);

/*
 * A number that differs between a process and its forked children, so that a handle can tell whose it is. Costs a load.
 */
unsigned spile__fork_generation(void);

#endif
