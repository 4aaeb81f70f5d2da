/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What windows of time have in common. A window of length W is [i·W, (i + 1)·W) in milliseconds since 1970 in UTC; its
 * shape is the capacity, how many tokens it admits, and W as period_ms.
 *
 * The clock rule: a window's index never goes back. A clock that reads less than the start of the stored window decides
 * at that start; one that reads more than the tolerance less cannot merely disagree, so what was counted counts as made
 * in its own window.
 */
#ifndef SPILE_CORE_WINDOW_H
#define SPILE_CORE_WINDOW_H

#include "core/algorithm.h"
#include "core/checked.h"

/* The start of the window in which at_ms ≥ 0 lies. */
static inline int64_t spile__window_start(int64_t window_ms, int64_t at_ms) {
  return at_ms - at_ms % window_ms;
}

/* Applies the clock rule to the start of a stored window. @return whether it was moved */
static inline bool spile__window_cut(int64_t *start_ms, int64_t window_ms, int64_t now_ms) {
  if (*start_ms <= now_ms + SPILE__TOLERANCE_MS)
    return false;
  *start_ms = spile__window_start(window_ms, now_ms);
  return true;
}

/* Whether a stored start is one that a window can have. */
static inline bool spile__window_start_valid(int64_t start_ms, int64_t window_ms) {
  return start_ms >= 0 && start_ms <= SPILE_TIME_MAX_MS + SPILE__TOLERANCE_MS && start_ms % window_ms == 0;
}

static inline int64_t spile__window_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static inline int64_t spile__window_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/*
 * The shape of a window limit, within the bounds that all of them share.
 * @param tokens  the capacity again, or 0
 * @return SPILE_OK; SPILE_ECONFIG
 */
int spile__window_make(spile_shape *out, int64_t capacity, int64_t tokens, int64_t window_ms, int64_t debt,
                       spile_error *error);

#endif
