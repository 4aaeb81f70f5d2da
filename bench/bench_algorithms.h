/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithms that bench_algorithms sets side by side, and its part that needs a server.
 */
#ifndef SPILE_BENCH_ALGORITHMS_H
#define SPILE_BENCH_ALGORITHMS_H

#include "bench.h"

typedef struct bench_kind {
  const char *name;
  const char *text; /* the limit: no state of it is over while the benchmark runs */
  size_t entries;   /* how many a log has after an allowed take; 1 for what has none */
  int64_t step_ms;  /* of the given clock from one take of a key to the next: a log loses an entry as it gains one */
} bench_kind;

#define BENCH_KINDS 7
extern const bench_kind bench_kinds[BENCH_KINDS];

/* The longest take, and so the fewest keys. */
#define BENCH_VECTOR_MAX 8

/* How many keys of a kind there are: `keys`, and of logs no more than have so many entries together. */
size_t bench_kind_keys(const bench_kind *kind, int64_t keys, int64_t entries);

typedef struct bench_redis_options {
  int64_t keys;
  int64_t entries;
  int64_t rounds;
  int64_t takes; /* in each sample */
} bench_redis_options;

/* Measures the server, or says that this build has no Redis. */
void bench_algorithms_redis(const bench_redis_options *options);

#endif
