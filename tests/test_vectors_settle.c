/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The golden vectors of charge, refund and take up to, tests/vectors/settle.csv, through the memory store. Its header
 * tells the columns; settle.py computed them with fractions and lists.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/testing.h>

#include "core/algorithm.h"

enum {
  SCENARIO,
  AT_MS,
  VERB,
  ALGORITHM,
  CAPACITY,
  REFILL_TOKENS,
  REFILL_PERIOD_MS,
  DEBT,
  COST,
  MOST,
  OUTCOME,
  REMAINING,
  RETRY_AFTER_MS,
  RESET_AFTER_MS,
  GRANTED,
  UNCHARGED,
  COLUMNS
};

/* The columns of a line, which is cut into them. */
static void columns_read(char *columns[COLUMNS], char *text, int line) {
  size_t n = 0;
  for (char *at = text; at != NULL; n++) {
    cr_assert(n < COLUMNS, "line %d has too many columns", line);
    columns[n] = at;
    at = strchr(at, ',');
    if (at != NULL)
      *at++ = '\0';
  }
  cr_assert(n == COLUMNS, "line %d has %zu columns", line, n);
}

static int64_t number_of(char *const *columns, int column) {
  char *end;
  int64_t number = strtoll(columns[column], &end, 10);
  cr_assert(end != columns[column] && *end == '\0', "\"%s\" is no number", columns[column]);
  return number;
}

static spile_limit *limit_of(char *const *columns, int line) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  spile_algorithm algorithm;
  cr_assert(spile__algorithm_find(columns[ALGORITHM], strlen(columns[ALGORITHM]), &algorithm), "line %d", line);
  def.algorithm = (int)algorithm;
  def.capacity = number_of(columns, CAPACITY);
  def.refill_tokens = number_of(columns, REFILL_TOKENS);
  def.refill_period_ms = number_of(columns, REFILL_PERIOD_MS);
  def.debt = number_of(columns, DEBT);
  spile_limit *limit;
  spile_error error = {0};
  cr_assert(spile_limit_create(&limit, &def, &error) == SPILE_OK, "line %d: %s", line, error.message);
  return limit;
}

static int row_ask(spile_limiter *limiter, const spile_limit *limit, char *const *columns, spile_decision *decision) {
  typedef int ask(spile_limiter *, const spile_limit *, const void *, size_t, int64_t, spile_decision *);
  static const struct {
    const char *verb;
    ask *call;
  } asks[] = {{"take", spile_take}, {"peek", spile_peek}, {"charge", spile_charge}, {"refund", spile_refund}};
  const char *key = columns[SCENARIO];
  int64_t cost = number_of(columns, COST);
  for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
    if (strcmp(columns[VERB], asks[i].verb) == 0)
      return asks[i].call(limiter, limit, key, strlen(key), cost, decision);
  }
  cr_assert(eq(str, columns[VERB], "up_to"));
  return spile_take_up_to(limiter, limit, key, strlen(key), cost, number_of(columns, MOST), decision);
}

static void row_check(spile_limiter *limiter, char *const *columns, int line) {
  spile_limit *limit = limit_of(columns, line);
  spile_decision decision;
  int outcome = row_ask(limiter, limit, columns, &decision);
  cr_expect(eq(int, outcome, decision.outcome));
  cr_expect(eq(str, (char *)spile_outcome_name(outcome), columns[OUTCOME]), "line %d", line);
  int64_t retry_after_ms = columns[RETRY_AFTER_MS][0] == '\0' ? SPILE_UNKNOWN : number_of(columns, RETRY_AFTER_MS);
  bool same = decision.remaining == number_of(columns, REMAINING) && decision.retry_after_ms == retry_after_ms &&
              decision.reset_after_ms == number_of(columns, RESET_AFTER_MS) &&
              decision.granted == number_of(columns, GRANTED) && decision.uncharged == number_of(columns, UNCHARGED);
  cr_expect(
      same, "line %d: remaining %" PRId64 " retry %" PRId64 " reset %" PRId64 " granted %" PRId64 " uncharged %" PRId64,
      line, decision.remaining, decision.retry_after_ms, decision.reset_after_ms, decision.granted, decision.uncharged);
  spile_limit_unref(limit);
}

Test(vectors_settle, the_memory_store_gives_the_golden_answers) {
  const char *tests = getenv("SPILE_TEST_DATA");
  cr_assert(ne(ptr, (void *)tests, NULL), "SPILE_TEST_DATA must name the directory of the tests");
  char path[512];
  (void)snprintf(path, sizeof(path), "%s/vectors/settle.csv", tests);
  FILE *file = fopen(path, "r");
  cr_assert(file != NULL, "%s cannot be read", path);
  spile_fake_clock *clock = spile_fake_clock_new(0);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  char text[512];
  int rows = 0;
  bool named = false; /* the first line that is no comment names the columns */
  for (int line = 1; fgets(text, sizeof(text), file) != NULL; line++) {
    text[strcspn(text, "\n")] = '\0';
    if (text[0] == '#')
      continue;
    char *columns[COLUMNS];
    columns_read(columns, text, line);
    if (named) {
      spile_fake_clock_set(clock, number_of(columns, AT_MS));
      row_check(limiter, columns, line);
      rows++;
    }
    named = true;
  }
  (void)fclose(file);
  cr_assert(lt(int, 100, rows));
  spile_close(limiter);
  spile_fake_clock_free(clock);
}
