/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What spile check says that sliding windows let pass in a minute, against all that callers could do: every number of
 * requests in every window, as the algorithm itself decides them.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>

#include "cli/allowance.h"
#include "core/algorithm.h"

enum { MINUTE_MS = 60000, REQUESTS_MAX = 64 };

/* So many requests a window lets pass when it has let `before` pass in the one before, up to its last usable moment. */
static int window_most(const spile_shape *shape, int64_t cost, int before, int64_t left_ms) {
  const spile__algorithm *algorithm = spile__algorithm_get(SPILE_SLIDING_WINDOW);
  spile_reading reading = {.values = {before * cost, 0, left_ms}};
  int n = 0;
  for (; algorithm->fits(shape, &reading, cost); n++)
    algorithm->charge(shape, &reading, cost);
  return n;
}

/* The most in the minute that begins `offset_ms` into a window, whatever each of them gives. */
static int64_t minute_most(const spile_shape *shape, int64_t cost, int64_t offset_ms) {
  int64_t best[REQUESTS_MAX + 1]; /* by what the last window gave: the most of all so far; -1: it cannot give that */
  int64_t end_ms = offset_ms + MINUTE_MS;
  for (int i = 0; i <= REQUESTS_MAX; i++)
    best[i] = i == 0 ? 0 : -1;
  for (int64_t start_ms = 0; start_ms < end_ms; start_ms += shape->period_ms) {
    int64_t window_end_ms = start_ms + shape->period_ms;
    int64_t left_ms = 1 + (window_end_ms > end_ms ? window_end_ms - end_ms : 0);
    int64_t next[REQUESTS_MAX + 1];
    for (int i = 0; i <= REQUESTS_MAX; i++)
      next[i] = -1;
    for (int before = 0; before <= REQUESTS_MAX; before++) {
      if (best[before] < 0)
        continue;
      int most = window_most(shape, cost, before, left_ms);
      cr_assert(le(int, most, REQUESTS_MAX));
      for (int given = 0; given <= most; given++) {
        if (next[given] < best[before] + given)
          next[given] = best[before] + given;
      }
    }
    for (int i = 0; i <= REQUESTS_MAX; i++)
      best[i] = next[i];
  }
  int64_t most = 0;
  for (int i = 0; i <= REQUESTS_MAX; i++)
    most = best[i] > most ? best[i] : most;
  return most;
}

static int64_t minute_told(int64_t capacity, int64_t window_ms, int64_t cost, spile_shape *shape) {
  char text[80];
  (void)snprintf(text, sizeof(text), "%lld/%lldms,sliding_window", (long long)capacity, (long long)window_ms);
  spile__route_limit limit = {.cost = cost};
  spile_error error = {0};
  cr_assert(spile_limit_parse(&limit.limit, text, &error) == SPILE_OK, "%s: %s", text, error.message);
  *shape = spile_limit_spec(limit.limit)->shape;
  int64_t told = allowance_of(&limit).first_minute;
  spile_limit_unref(limit.limit);
  return told;
}

/* The minutes that begin at offsets so many milliseconds apart, and in the last of the window and about its end. */
static void expect_exact(int64_t capacity, int64_t window_ms, int64_t cost, int64_t step_ms) {
  spile_shape shape;
  int64_t told = minute_told(capacity, window_ms, cost, &shape);
  const int64_t edges_ms[] = {window_ms - 1, window_ms - 2, (window_ms - MINUTE_MS % window_ms) % window_ms};
  int64_t most = 0;
  for (int64_t offset_ms = 0; offset_ms < window_ms; offset_ms += step_ms) {
    int64_t now = minute_most(&shape, cost, offset_ms);
    most = now > most ? now : most;
  }
  for (size_t i = 0; i < sizeof(edges_ms) / sizeof(edges_ms[0]); i++) {
    int64_t now = edges_ms[i] >= 0 ? minute_most(&shape, cost, edges_ms[i]) : 0;
    most = now > most ? now : most;
  }
  cr_assert(eq(i64, told, most), "%lld per %lld ms of cost %lld", (long long)capacity, (long long)window_ms,
            (long long)cost);
}

Test(allowance, the_first_minute_of_a_sliding_window_is_the_most_that_anybody_can_get) {
  static const int64_t windows_ms[] = {727,   1000,  1759,  1999,  2908,  5801,  7000,  12000, 19999, 20000,
                                       29999, 30000, 30001, 42641, 59998, 59999, 60000, 60001, 90000, 3600000};
  for (size_t i = 0; i < sizeof(windows_ms) / sizeof(windows_ms[0]); i++) {
    for (int64_t capacity = 1; capacity <= 13; capacity++) {
      for (int64_t cost = 1; cost <= capacity && cost <= 7; cost++)
        expect_exact(capacity, windows_ms[i], cost, windows_ms[i] / 5 + 1);
    }
  }
}

Test(allowance, windows_of_few_milliseconds_alternate_as_anybody_can_make_them) {
  static const int64_t windows_ms[] = {1, 2, 3, 5, 7, 10, 13, 119};
  static const int64_t numbers[][2] = {{1, 1}, {2, 1}, {5, 1}, {5, 2}, {6, 3}, {9, 4}, {17, 6}, {31, 1}};
  for (size_t i = 0; i < sizeof(windows_ms) / sizeof(windows_ms[0]); i++) {
    for (size_t j = 0; j < sizeof(numbers) / sizeof(numbers[0]); j++)
      expect_exact(numbers[j][0], windows_ms[i], numbers[j][1], windows_ms[i] / 2 + 1);
  }
}

Test(allowance, numbers_that_no_minute_holds_end_where_integers_do) {
  spile_shape shape;
  /* The first takes all and the next nothing: 30,000 times 3e15. */
  cr_assert(eq(i64, minute_told(INT64_C(3002399751580330), 1, 1, &shape), INT64_MAX));
  /* 1,000,000 and then 999,000, 999,001 and 999,000 in turn, 59 windows and one up to its last but one millisecond. */
  cr_assert(eq(i64, minute_told(1000000, 1000, 1, &shape), INT64_C(1000000) + 59 * 999000 + 58 / 2 + 998002));
}
