/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random steps through a subject and the model at once.
 */
#ifndef SPILE_TESTS_STEPS_H
#define SPILE_TESTS_STEPS_H

#include <spile/sys/store.h>

#define STEPS_KEYS 24
#define STEPS_NAMES 8 /* a name with an algorithm */
#define STEPS_BUCKETS (STEPS_KEYS * STEPS_NAMES)

/* What is compared with the model. */
typedef struct steps_subject {
  const char *name;
  /*
   * Decides at now_ms; buckets[i] numbers the bucket of requests[i], for a subject that has no use for keys. In a take
   * up to `most` every request costs the least, and no bucket is named twice.
   */
  int (*decide)(void *self, spile_verb verb, int64_t most, int64_t now_ms, const spile_request *requests,
                const size_t *buckets, size_t n, spile_decision *decision, spile_decision *each);
  void *self;
} steps_subject;

typedef struct steps_result {
  uint64_t compared; /* decisions; of these: */
  uint64_t denied;
  uint64_t never;
  uint64_t changed;       /* found a bucket that was written under other numbers */
  uint64_t promises;      /* waits that were asked again at their end and 1 ms before */
  uint64_t free_promises; /* of these: first about a cost of 0 */
  uint64_t charges;       /* of these: */
  uint64_t uncharged;     /* not charged in full */
  uint64_t refunds;
  uint64_t granted; /* takes up to that were allowed */
  uint64_t differences;
  char difference[640]; /* the first one, with what reproduces it */
} steps_result;

/* Runs until `steps` decisions were compared or one differed. The same seed makes the same steps for every subject. */
void steps_run(const steps_subject *subject, uint64_t seed, uint64_t steps, steps_result *out);

#endif
