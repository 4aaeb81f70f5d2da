/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A place for a shared value that is exchanged while others take hold of it.
 *
 * Between reading where the value is and becoming one of its owners nobody may give it up, so both happen under a lock.
 * There are several, one per thread as far as they go: those who take hold do not wait for each other, and who
 * exchanges the value holds them all for a moment.
 */
#ifndef SPILE_LIMITER_SLOT_H
#define SPILE_LIMITER_SLOT_H

#include <pthread.h>

#define SPILE__SLOT_STRIPES 16

typedef struct spile__slot {
  struct {
    _Alignas(64) pthread_mutex_t lock;
  } stripes[SPILE__SLOT_STRIPES];
  void *value; /* NULL: empty */
  void *(*hold)(void *value);
  void (*release)(void *value);
} spile__slot;

void spile__slot_init(spile__slot *slot);

/* Releases the value. Nobody may use the slot. */
void spile__slot_finish(spile__slot *slot);

/* The value, of which the caller is one more owner, or NULL. */
void *spile__slot_hold(spile__slot *slot);

/* Puts in a value, of which the caller hands over one owner, and releases what was there. All values of a slot are of
 * one kind. */
void spile__slot_exchange(spile__slot *slot, void *value, void *(*hold)(void *value), void (*release)(void *value));

#endif
