/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock is a process-shared pthread mutex with two properties.
 *
 * Robust: when the holder is killed the next one gets EOWNERDEAD instead of waiting for ever. What the lock protects is
 * an LMDB transaction, which ends with its process, so there is nothing to mend and the mutex is declared consistent.
 *
 * Priority inheritance: not for the priorities, but because the kernel then keeps the waiters in a queue and an unlock
 * hands the mutex to the first of them. An ordinary mutex is free for a moment after an unlock, and whoever runs at
 * that moment (mostly the one who just had it) takes it again while those who were woken are still getting up.
 *
 * Handing over costs a switch of threads, which is longer than a commit without syncing. So a taker first tries for
 * about twice as long as such a commit lasts; while others are queued the trying cannot succeed, hence overtakes
 * nobody.
 *
 * The kernel finds the holder by its thread number, so all users have to live in one PID namespace; lmdb_env.c sees to
 * that.
 */
#include "backends/lmdb_lock.h"

#include <errno.h>
#include <time.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOCK_SANITIZED
#endif
#elif defined(__SANITIZE_THREAD__)
#define LOCK_SANITIZED
#endif
#ifdef LOCK_SANITIZED
#include <sanitizer/tsan_interface.h>
#endif

/* Tries before queueing, about 10 µs. */
#define LOCK_TRIES 512

/* Below this a wait fits struct timespec whatever the clock says: a hundred days. */
#define LOCK_WAIT_MAX_MS INT64_C(8640000000)

static int lock_attributes(pthread_mutexattr_t *attributes) {
  int failed = pthread_mutexattr_setpshared(attributes, PTHREAD_PROCESS_SHARED);
  if (failed == 0)
    failed = pthread_mutexattr_setrobust(attributes, PTHREAD_MUTEX_ROBUST);
  if (failed == 0)
    failed = pthread_mutexattr_setprotocol(attributes, PTHREAD_PRIO_INHERIT);
  return failed;
}

int spile__lmdb_lock_init(spile__lmdb_lock *lock) {
  pthread_mutexattr_t attributes;
  int failed = pthread_mutexattr_init(&attributes);
  if (failed != 0)
    return failed;
  failed = lock_attributes(&attributes);
  if (failed == 0)
    failed = pthread_mutex_init(&lock->mutex, &attributes);
  (void)pthread_mutexattr_destroy(&attributes);
  return failed;
}

/* What taking the mutex gave, with the death of a holder mended. */
static int lock_taken(spile__lmdb_lock *lock, int result) {
  return result == EOWNERDEAD ? pthread_mutex_consistent(&lock->mutex) : result;
}

static struct timespec lock_instant(clockid_t clock, int64_t wait_ms) {
  struct timespec at;
  (void)clock_gettime(clock, &at);
  at.tv_sec += (time_t)(wait_ms / 1000);
  at.tv_nsec += (long)(wait_ms % 1000 * 1000000);
  if (at.tv_nsec >= 1000000000) {
    at.tv_sec++;
    at.tv_nsec -= 1000000000;
  }
  return at;
}

static int lock_wait_realtime(spile__lmdb_lock *lock, int64_t wait_ms) {
  struct timespec at = lock_instant(CLOCK_REALTIME, wait_ms);
  return pthread_mutex_timedlock(&lock->mutex, &at);
}

#ifdef LOCK_SANITIZED
/* The thread sanitizer does not know the other call, and of this one not that it also takes a dead holder's mutex. */
static int lock_wait(spile__lmdb_lock *lock, int64_t wait_ms) {
  int result = lock_wait_realtime(lock, wait_ms);
  if (result == EOWNERDEAD) {
    __tsan_mutex_pre_lock(&lock->mutex, 0);
    __tsan_mutex_post_lock(&lock->mutex, 0, 0);
  }
  return result;
}
#else
static int lock_wait(spile__lmdb_lock *lock, int64_t wait_ms) {
  struct timespec at = lock_instant(CLOCK_MONOTONIC, wait_ms);
  int result = pthread_mutex_clocklock(&lock->mutex, CLOCK_MONOTONIC, &at);
  /* glibc before 2.35 and Linux before 5.14 wait for such a mutex on the wall clock only. */
  return result == EINVAL || result == ENOTSUP ? lock_wait_realtime(lock, wait_ms) : result;
}
#endif

static void lock_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

int spile__lmdb_lock_take(spile__lmdb_lock *lock, int64_t wait_ms) {
  int result = pthread_mutex_trylock(&lock->mutex);
  for (int i = 0; result == EBUSY && i < LOCK_TRIES; i++) {
    lock_pause();
    result = pthread_mutex_trylock(&lock->mutex);
  }
  if (result == EBUSY && wait_ms <= 0)
    return ETIMEDOUT;
  if (result == EBUSY)
    result = lock_wait(lock, wait_ms < LOCK_WAIT_MAX_MS ? wait_ms : LOCK_WAIT_MAX_MS);
  return lock_taken(lock, result);
}

long spile__lmdb_lock_holder(const spile__lmdb_lock *lock) {
#ifdef __GLIBC__
  return __atomic_load_n(&lock->mutex.__data.__owner, __ATOMIC_RELAXED);
#else
  (void)lock;
  return 0;
#endif
}

void spile__lmdb_lock_give(spile__lmdb_lock *lock) {
  (void)pthread_mutex_unlock(&lock->mutex);
}
