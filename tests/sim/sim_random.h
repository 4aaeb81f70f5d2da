/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one source of chance in a run, so that a seed is a run.
 */
#ifndef SPILE_TESTS_SIM_RANDOM_H
#define SPILE_TESTS_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_random {
  uint64_t state;
} sim_random;

/* splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t sim_next(sim_random *random) {
  uint64_t x = random->state += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

/* 0 to bound − 1. */
static inline int64_t sim_below(sim_random *random, int64_t bound) {
  return (int64_t)(sim_next(random) % (uint64_t)bound);
}

static inline int64_t sim_between(sim_random *random, int64_t least, int64_t most) {
  return least + sim_below(random, most - least + 1);
}

/* Once in `n`. */
static inline bool sim_once_in(sim_random *random, int64_t n) {
  return sim_below(random, n) == 0;
}

/* 1 to max, each magnitude about as often as any other. */
static inline int64_t sim_magnitude(sim_random *random, int64_t max) {
  int64_t bound = max;
  for (int64_t halvings = sim_below(random, 54); halvings > 0 && bound > 1; halvings--)
    bound /= 2;
  return 1 + sim_below(random, bound);
}

#endif
