/* SPDX-License-Identifier: Apache-2.0 */
#include "core/algorithm.h"

#include <string.h>

const spile__algorithm *spile__algorithm_get(spile_algorithm algorithm) {
  switch (algorithm) {
  case SPILE_TOKEN_BUCKET:
    return &spile__token_bucket;
  case SPILE_LEAKY_BUCKET:
    return &spile__leaky_bucket;
  case SPILE_FIXED_WINDOW:
    return &spile__fixed_window;
  case SPILE_SLIDING_WINDOW:
    return &spile__sliding_window;
  case SPILE_SLIDING_LOG:
    return &spile__sliding_log;
  }
  return NULL;
}

bool spile__algorithm_find(const char *word, size_t len, spile_algorithm *out) {
  static const spile_algorithm all[] = {SPILE_TOKEN_BUCKET, SPILE_LEAKY_BUCKET, SPILE_FIXED_WINDOW,
                                        SPILE_SLIDING_WINDOW, SPILE_SLIDING_LOG};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    const char *name = spile__algorithm_get(all[i])->name;
    if (strlen(name) == len && memcmp(name, word, len) == 0) {
      *out = all[i];
      return true;
    }
  }
  return false;
}

spile_stored spile__stored_make(spile_algorithm algorithm, const spile__state *state, int64_t now_ms) {
  const spile__algorithm *table = spile__algorithm_get(algorithm);
  spile_reading reading;
  spile__verdict verdict;
  (void)table->read(&state->shape, state, now_ms, 0, &reading);
  table->report(&state->shape, &reading, 0, false, &verdict);
  return (spile_stored){.algorithm = table->name,
                        .capacity = state->shape.capacity,
                        .refill_tokens = table->window ? state->shape.capacity : state->shape.refill,
                        .refill_period_ms = state->shape.period_ms,
                        .remaining = verdict.remaining,
                        .reset_after_ms = verdict.reset_after_ms};
}
