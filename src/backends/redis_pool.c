/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of a store and the calls that want one.
 *
 * A call borrows a link and gives it back; the lock is held for that moment only, never while a link is used. The link
 * that was given back last is lent first: it is the one whose connection is most likely alive. When all are lent, calls
 * queue, and a link that comes back is handed to the one that waits longest. It never lies free while somebody waits,
 * so a newcomer cannot overtake, and no call starves.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "backends/address.h"
#include "backends/redis.h"

/* One waiting call; it lies on that call's stack. */
struct spile__redis_waiter {
  pthread_cond_t handed; /* on the monotonic clock */
  spile__redis_link *link;
  spile__redis_waiter *next;
};

struct timespec spile__redis_until(int64_t wait_ms) {
  struct timespec until;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  if (wait_ms <= 0)
    return until;
  int64_t nanoseconds = until.tv_nsec + wait_ms % 1000 * 1000000;
  until.tv_sec += (time_t)(wait_ms / 1000 + nanoseconds / 1000000000);
  until.tv_nsec = (long)(nanoseconds % 1000000000);
  return until;
}

static void queue_append(spile__redis_pool *pool, spile__redis_waiter *waiter) {
  spile__redis_waiter **at = &pool->waiters;
  while (*at != NULL)
    at = &(*at)->next;
  *at = waiter;
  pool->n_waiting++;
  pool->n_queued++;
}

static void queue_remove(spile__redis_pool *pool, const spile__redis_waiter *waiter) {
  spile__redis_waiter **at = &pool->waiters;
  while (*at != waiter)
    at = &(*at)->next;
  *at = waiter->next;
  pool->n_waiting--;
}

/* Waits in the queue, under the lock, which it gives up meanwhile. @return NULL: none came by the deadline */
static spile__redis_link *queue_wait(spile__redis_pool *pool, int64_t wait_ms) {
  spile__redis_waiter waiter = {.link = NULL};
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&waiter.handed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  queue_append(pool, &waiter);
  /* The environment's clock may be another than the system's, so only the distance is carried over. */
  struct timespec until = spile__redis_until(wait_ms);
  int failure = 0;
  while (waiter.link == NULL && failure == 0)
    failure = pthread_cond_timedwait(&waiter.handed, &pool->lock, &until);
  if (waiter.link == NULL)
    queue_remove(pool, &waiter);
  (void)pthread_cond_destroy(&waiter.handed);
  return waiter.link;
}

void spile__redis_pool_init(spile__redis_pool *pool, spile__redis_link *links, size_t n) {
  (void)pthread_mutex_init(&pool->lock, NULL);
  pool->n_free = n;
  /* From the top, so that the first is lent first. */
  for (size_t i = 0; i < n; i++)
    pool->free[i] = &links[n - 1 - i];
}

spile__redis_link *spile__redis_pool_take(spile__redis_pool *pool, const spile_env *env, int64_t deadline_ms) {
  spile__redis_link *link = NULL;
  (void)pthread_mutex_lock(&pool->lock);
  if (pool->n_free > 0) {
    link = pool->free[--pool->n_free];
    link->lent = true;
  } else {
    int64_t left_ms = deadline_ms - env->monotonic_ms(env->user);
    if (left_ms > 0)
      link = queue_wait(pool, left_ms);
  }
  (void)pthread_mutex_unlock(&pool->lock);
  return link;
}

void spile__redis_pool_give(spile__redis_pool *pool, spile__redis_link *link) {
  (void)pthread_mutex_lock(&pool->lock);
  spile__redis_waiter *waiter = pool->waiters;
  if (waiter != NULL) {
    queue_remove(pool, waiter);
    waiter->link = link;
    (void)pthread_cond_signal(&waiter->handed);
  } else {
    link->lent = false;
    /* One without a connection goes below all that have one. */
    size_t at = link->handle >= 0 ? pool->n_free : 0;
    memmove(pool->free + at + 1, pool->free + at, (pool->n_free - at) * sizeof(pool->free[0]));
    pool->free[at] = link;
    pool->n_free++;
  }
  (void)pthread_mutex_unlock(&pool->lock);
}

void spile__redis_pool_finish(spile__redis_pool *pool) {
  (void)pthread_mutex_destroy(&pool->lock);
}
