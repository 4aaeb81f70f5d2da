/* SPDX-License-Identifier: Apache-2.0 */
#include "core/window.h"

#include "core/text.h"

int spile__window_make(spile_shape *out, int64_t capacity, int64_t tokens, int64_t window_ms, int64_t debt,
                       spile_error *error) {
  if (capacity < 1)
    return spile__fail(error, SPILE_ECONFIG, "capacity is #; it must be at least 1 token", &capacity);
  if (tokens != 0 && tokens != capacity)
    return spile__fail(
        error, SPILE_ECONFIG,
        "a window that admits # tokens has no other capacity, and # is written; write COUNT/WINDOW alone",
        (int64_t[]){tokens, capacity});
  if (window_ms < 1)
    return spile__fail(error, SPILE_ECONFIG, "the window is # ms; it must be at least 1 ms", &window_ms);
  if (window_ms > SPILE__PERIOD_MAX_MS)
    return spile__fail(error, SPILE_ECONFIG, "the window is # ms, # more than the ten years (#) it may be",
                       (int64_t[]){window_ms, window_ms - SPILE__PERIOD_MAX_MS, SPILE__PERIOD_MAX_MS});
  if (debt != 0)
    return spile__fail(
        error, SPILE_ECONFIG,
        "debt is # tokens, and a window cannot owe any; leave it out, or write token_bucket or leaky_bucket", &debt);
  if (capacity > SPILE__EXACT_MAX)
    return spile__fail(error, SPILE_ECONFIG,
                       "capacity is # tokens, # more than the 2^53 - 1 that can be counted exactly",
                       (int64_t[]){capacity, capacity - SPILE__EXACT_MAX});
  *out = (spile_shape){.capacity = capacity, .refill = 1, .period_ms = window_ms};
  return SPILE_OK;
}
