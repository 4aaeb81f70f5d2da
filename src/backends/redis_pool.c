/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of a store and the calls that want one.
 *
 * A call borrows a link and gives it back; the lock is held for that moment only, never while a link is used. The link
 * that was given back last is lent first: it is the one whose connection is most likely alive. When all are lent, calls
 * queue, and a link that comes back is handed to the one that waits longest. It never lies free while somebody waits
 * who could use it, so a newcomer cannot overtake, and no call starves.
 *
 * Whoever waits longest has the least time left. When more calls come than the links can serve, each would get its link
 * just before its deadline, be too late with it, and leave a closed connection to the next, who spends the time that is
 * left on a new one: all links would be busy and nearly nobody get an answer. So the pool knows how long a call and a
 * connection take, and a link goes to the first in the queue that has so much time left. One that has less than a call
 * takes is told so at once: nothing was sent for it and nothing charged. One that has less than a new connection takes
 * as well stays for a link that is connected.
 *
 * What is known may be out of date. So it never keeps out a call that has three quarters of its time left, nor any that
 * finds a link free: those find out how long things take now.
 *
 * Calls are not turned away when they come, however long the queue. They would be told the same some milliseconds
 * earlier, and most of them ask again at once: that costs the time of those who are served, and a row of failures opens
 * the breaker on a store that works.
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
  bool hopeless; /* its time is too short for any link; it is no longer in the queue */
  int64_t deadline_ms;
  int64_t whole_ms; /* what it had when it came */
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

/* Waits in the queue, under the lock, which it gives up meanwhile. @return NULL: none came in time */
static spile__redis_link *queue_wait(spile__redis_pool *pool, int64_t deadline_ms, int64_t wait_ms) {
  spile__redis_waiter waiter = {.deadline_ms = deadline_ms, .whole_ms = wait_ms};
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&waiter.handed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  queue_append(pool, &waiter);
  /* The environment's clock may be another than the system's, so only the distance is carried over. */
  struct timespec until = spile__redis_until(wait_ms);
  int failure = 0;
  while (waiter.link == NULL && !waiter.hopeless && failure == 0)
    failure = pthread_cond_timedwait(&waiter.handed, &pool->lock, &until);
  if (waiter.link == NULL && !waiter.hopeless)
    queue_remove(pool, &waiter);
  (void)pthread_cond_destroy(&waiter.handed);
  return waiter.link;
}

static bool waiter_has(const spile__redis_waiter *waiter, int64_t need_ms, int64_t now_ms) {
  int64_t most_ms = waiter->whole_ms - waiter->whole_ms / 4;
  int64_t left_ms = waiter->deadline_ms - now_ms;
  return left_ms > 0 && left_ms >= (need_ms < most_ms ? need_ms : most_ms);
}

/* Ends those who have no time left for a call. @return the longest waiting who can use the link, out of the queue */
static spile__redis_waiter *queue_next(spile__redis_pool *pool, const spile__redis_link *link, int64_t now_ms) {
  int64_t trip_ms = spile__redis_pace_need_ms(&pool->trip);
  int64_t need_ms = trip_ms + (link->handle < 0 ? spile__redis_pace_need_ms(&pool->connect) : 0);
  spile__redis_waiter *next;
  for (spile__redis_waiter *waiter = pool->waiters; waiter != NULL; waiter = next) {
    next = waiter->next;
    if (waiter_has(waiter, need_ms, now_ms)) {
      queue_remove(pool, waiter);
      return waiter;
    }
    if (waiter_has(waiter, trip_ms, now_ms))
      continue;
    queue_remove(pool, waiter);
    waiter->hopeless = true;
    (void)pthread_cond_signal(&waiter->handed);
  }
  return NULL;
}

static void link_lend(spile__redis_link *link, int64_t now_ms) {
  link->lent = true;
  link->lent_ms = now_ms;
  link->connect_ms = -1;
  link->connect_late = false;
  link->exchanges = 0;
  link->exchange_late = false;
}

/* A call's time begins when it is given the link: that its thread has to wake up is part of it. */
static void pool_learn(spile__redis_pool *pool, const spile__redis_link *link, int64_t now_ms) {
  int64_t talked_ms = now_ms - link->lent_ms;
  if (link->connect_ms >= 0) {
    spile__redis_pace_learn(&pool->connect, link->connect_ms, link->connect_late);
    talked_ms -= link->connect_ms;
  }
  int exchanges = link->exchanges + link->exchange_late;
  if (exchanges > 0)
    spile__redis_pace_learn(&pool->trip, talked_ms / exchanges, link->exchange_late);
}

void spile__redis_pool_init(spile__redis_pool *pool, const spile_env *env, spile__redis_link *links, size_t n) {
  pool->env = env;
  (void)pthread_mutex_init(&pool->lock, NULL);
  pool->n_free = n;
  /* From the top, so that the first is lent first. */
  for (size_t i = 0; i < n; i++)
    pool->free[i] = &links[n - 1 - i];
}

spile__redis_link *spile__redis_pool_take(spile__redis_pool *pool, int64_t deadline_ms) {
  spile__redis_link *link = NULL;
  (void)pthread_mutex_lock(&pool->lock);
  int64_t now_ms = pool->env->monotonic_ms(pool->env->user);
  if (pool->n_free > 0) {
    link = pool->free[--pool->n_free];
    link_lend(link, now_ms);
  } else if (deadline_ms > now_ms) {
    link = queue_wait(pool, deadline_ms, deadline_ms - now_ms);
  }
  (void)pthread_mutex_unlock(&pool->lock);
  return link;
}

void spile__redis_pool_give(spile__redis_pool *pool, spile__redis_link *link) {
  (void)pthread_mutex_lock(&pool->lock);
  int64_t now_ms = pool->env->monotonic_ms(pool->env->user);
  pool_learn(pool, link, now_ms);
  spile__redis_waiter *waiter = queue_next(pool, link, now_ms);
  if (waiter != NULL) {
    link_lend(link, now_ms);
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
