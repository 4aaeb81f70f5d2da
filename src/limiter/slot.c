/* SPDX-License-Identifier: Apache-2.0 */
#include "limiter/slot.h"

#include <stdatomic.h>
#include <stdint.h>

static pthread_mutex_t *slot_lock_of_thread(spile__slot *slot) {
  static atomic_uint next;
  static _Thread_local unsigned stripe __attribute__((tls_model("initial-exec"))) = UINT32_MAX;
  if (stripe == UINT32_MAX)
    stripe = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % SPILE__SLOT_STRIPES;
  return &slot->stripes[stripe].lock;
}

void spile__slot_init(spile__slot *slot) {
  for (size_t i = 0; i < SPILE__SLOT_STRIPES; i++)
    (void)pthread_mutex_init(&slot->stripes[i].lock, NULL);
  slot->value = NULL;
}

void spile__slot_finish(spile__slot *slot) {
  if (slot->value != NULL)
    slot->release(slot->value);
  for (size_t i = 0; i < SPILE__SLOT_STRIPES; i++)
    (void)pthread_mutex_destroy(&slot->stripes[i].lock);
}

void *spile__slot_hold(spile__slot *slot) {
  pthread_mutex_t *lock = slot_lock_of_thread(slot);
  (void)pthread_mutex_lock(lock);
  void *value = slot->value != NULL ? slot->hold(slot->value) : NULL;
  (void)pthread_mutex_unlock(lock);
  return value;
}

void spile__slot_exchange(spile__slot *slot, void *value, void *(*hold)(void *value), void (*release)(void *value)) {
  for (size_t i = 0; i < SPILE__SLOT_STRIPES; i++)
    (void)pthread_mutex_lock(&slot->stripes[i].lock);
  void *old = slot->value;
  slot->value = value;
  slot->hold = hold;
  slot->release = release;
  for (size_t i = SPILE__SLOT_STRIPES; i-- > 0;)
    (void)pthread_mutex_unlock(&slot->stripes[i].lock);
  if (old != NULL)
    release(old);
}
