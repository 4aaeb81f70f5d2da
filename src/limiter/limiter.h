/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_LIMITER_LIMITER_H
#define SPILE_LIMITER_LIMITER_H

#include <stdatomic.h>

#include <spile/sys/store.h>

/* Counters are spread over cache lines, one per thread as far as they go, so that counting never makes threads wait. */
#define LIMITER_STRIPES 16

typedef struct limiter_counts {
  _Alignas(64) atomic_uint_least64_t allowed;
  atomic_uint_least64_t denied;
  atomic_uint_least64_t never;
  atomic_uint_least64_t full;
  atomic_uint_least64_t unavailable;
} limiter_counts;

struct spile_limiter {
  spile_store *store;
  unsigned fork_generation; /* of the process that opened it */
  int64_t timeout_ms;       /* 0: the store never blocks */
  int64_t (*now_ms)(void *clock);
  void (*sleep_ms)(void *clock, int64_t ms);
  void *clock;
  spile_env env;
  limiter_counts counts[LIMITER_STRIPES];
};

#endif
