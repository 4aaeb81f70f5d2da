/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real environment of a store: the system's clocks and random numbers, the C library's allocator, no log.
 */
#ifndef SPILE_LIMITER_ENV_H
#define SPILE_LIMITER_ENV_H

#include <spile/sys/store.h>
#include <stdatomic.h>

/* Fills every member. */
void spile__env_init(spile_env *env);

/* Which child of which fork this process is: the one thing a process has one of. */
extern atomic_uint spile__fork_count;

/* Begins to count forks; before a handle is made. */
void spile__fork_watch(void);

/* A number that differs between a process and its forked children, so that a handle can tell whose it is. */
static inline unsigned spile__fork_generation(void) {
  return atomic_load_explicit(&spile__fork_count, memory_order_relaxed);
}

#endif
