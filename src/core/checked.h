/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integer helpers of the core. A division here says how it rounds; a product that may pass 2^63 − 1 says so.
 */
#ifndef SPILE_CORE_CHECKED_H
#define SPILE_CORE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* Checked in tests and sanitized builds only; the core has no assert.h. */
#ifdef SPILE_ASSERTS
#define SPILE__ASSERT(condition) ((condition) ? (void)0 : __builtin_trap())
#else
#define SPILE__ASSERT(condition) ((void)0)
#endif

/*
 * For a function with large variables that the common path does not call: inlined there, its frame would be paid for by
 * everybody.
 */
#define SPILE__OUT_OF_LINE __attribute__((noinline))

/* The largest integer up to which a Lua number counts exactly, less one: 2^53 − 1. */
#define SPILE__EXACT_MAX INT64_C(9007199254740991)

/* Ten years of 365 days, the longest period and the longest time from the deepest debt to full. */
#define SPILE__PERIOD_MAX_MS INT64_C(315360000000)

/* The longest deadline of a call: an hour. */
#define SPILE__TIMEOUT_MAX_MS 3600000

/* How far ahead of full an instant may be before it cannot come from clocks that merely disagree. */
#define SPILE__TOLERANCE_MS INT64_C(1000)

/* ⌈a / b⌉ for a ≥ 0, b ≥ 1. Written with the remainder, since a + b − 1 may overflow. */
static inline int64_t spile__div_ceil(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

/* ⌊a / b⌋ for b ≥ 1 and any a; C rounds toward zero. */
static inline int64_t spile__div_floor(int64_t a, int64_t b) {
  return a / b - (a % b < 0);
}

/* a · b for a, b ≥ 0, or INT64_MAX where that is too large. */
static inline int64_t spile__mul_saturate(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* a + b for a, b ≥ 0, or INT64_MAX where that is too large. */
static inline int64_t spile__add_saturate(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* The largest integer that divides both, for a, b ≥ 1 (Euclid). */
static inline int64_t spile__gcd(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

#endif
