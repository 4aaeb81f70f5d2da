/* SPDX-License-Identifier: Apache-2.0 */
/* In place of bench_algorithms_redis.c in a build without hiredis. */
#include <stdio.h>

#include "bench_algorithms.h"

void bench_algorithms_redis(const bench_redis_options *options) {
  (void)options;
  (void)printf("\nredis: this build has no Redis store; -Dredis=enabled adds it\n");
}
