/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock between processes that can be waited for until a deadline, survives its holder and is taken in turn.
 */
#ifndef SPILE_BACKENDS_LMDB_LOCK_H
#define SPILE_BACKENDS_LMDB_LOCK_H

#include <pthread.h>
#include <stdint.h>

typedef struct spile__lmdb_lock {
  pthread_mutex_t mutex;
} spile__lmdb_lock;

/* Makes a free lock in shared memory that nobody uses, whatever stands there. @return 0 or an errno */
int spile__lmdb_lock_init(spile__lmdb_lock *lock);

/* Takes the lock, waiting at most wait_ms; 0 or less tries once. @return 0; ETIMEDOUT; another errno: it is unusable */
int spile__lmdb_lock_take(spile__lmdb_lock *lock, int64_t wait_ms);

/* The thread that holds it, by the kernel's number; 0: nobody knows, or nobody does. For messages. */
long spile__lmdb_lock_holder(const spile__lmdb_lock *lock);

/* Gives back a lock that this thread took. */
void spile__lmdb_lock_give(spile__lmdb_lock *lock);

#endif
