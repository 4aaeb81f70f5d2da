/* SPDX-License-Identifier: Apache-2.0 */
#include "limiter/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static int64_t clock_ms(clockid_t id) {
  struct timespec now;
  (void)clock_gettime(id, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t env_monotonic_ms(void *user) {
  (void)user;
  return clock_ms(CLOCK_MONOTONIC);
}

static int64_t env_monotonic_ns(void *user) {
  (void)user;
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t env_realtime_ms(void *user) {
  (void)user;
  return clock_ms(CLOCK_REALTIME);
}

static bool env_random(void *user, void *bytes, size_t size) {
  (void)user;
  unsigned char *at = bytes;
  while (size > 0) {
    ssize_t got = getrandom(at, size, 0);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    at += got;
    size -= (size_t)got;
  }
  return true;
}

static void *env_allocate(void *user, void *block, size_t size) {
  (void)user;
  if (size == 0) {
    free(block);
    return NULL;
  }
  return realloc(block, size);
}

static void env_log(void *user, spile_log_level level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
}

void spile__env_init(spile_env *env) {
  *env = (spile_env){.monotonic_ms = env_monotonic_ms,
                     .realtime_ms = env_realtime_ms,
                     .random = env_random,
                     .allocate = env_allocate,
                     .log = env_log,
                     .monotonic_ns = env_monotonic_ns};
}

atomic_uint spile__fork_count = 1;

static void fork_in_child(void) {
  atomic_fetch_add_explicit(&spile__fork_count, 1, memory_order_relaxed);
}

static void fork_watch_once(void) {
  (void)pthread_atfork(NULL, NULL, fork_in_child);
}

void spile__fork_watch(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, fork_watch_once);
}
