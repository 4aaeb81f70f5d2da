/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The golden vectors, tests/vectors/ *.csv, through the C core and the memory store. Their header tells the columns;
 * make.py computed those of the token bucket with fractions, algorithms.py the others, which have two columns more.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <criterion/parameterized.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/testing.h>

#include "core/decide.h"
#include "core/limit.h"

#define COLUMNS 14 /* of the token bucket */
#define COLUMNS_MAX 16
#define ROWS_MAX 1000   /* of one file */
#define BUCKETS_MAX 16  /* of one scenario */
#define REQUESTS_MAX 16 /* of one step */

typedef struct vector_row {
  int line;
  char scenario[40];
  int64_t step;
  int64_t at_ms;
  bool take;
  char bucket[16];
  spile_limit *limit;
  int64_t cost;
  int outcome;
  int64_t remaining;
  int64_t retry_after_ms;
  int64_t reset_after_ms;
  int64_t delay_ms;
  bool decides;
} vector_row;

static const char *const files[] = {"rates",        "bounds",       "clock",          "change",      "several",
                                    "leaky_bucket", "fixed_window", "sliding_window", "sliding_log", "mixed"};

static int64_t number_read(const char *text, int line) {
  char *end;
  int64_t number = strtoll(text, &end, 10);
  cr_assert(end != text && *end == '\0', "line %d: \"%s\" is no number", line, text);
  return number;
}

static spile_limit *limit_read(const char *bucket, const char *algorithm, char *const *columns, int line) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  spile_algorithm number;
  cr_assert(spile__algorithm_find(algorithm, strlen(algorithm), &number), "line %d: \"%s\"", line, algorithm);
  def.algorithm = (int)number;
  def.name = bucket;
  def.capacity = number_read(columns[0], line);
  def.refill_tokens = number_read(columns[1], line);
  def.refill_period_ms = number_read(columns[2], line);
  spile_limit *limit;
  spile_error error = {0};
  int made = spile_limit_create(&limit, &def, &error);
  cr_assert(made == SPILE_OK, "line %d: %s", line, error.message);
  return limit;
}

static int outcome_read(const char *text, int line) {
  static const int outcomes[] = {SPILE_ALLOWED, SPILE_DENIED, SPILE_NEVER};
  for (size_t i = 0; i < 3; i++) {
    if (strcmp(text, spile_outcome_name(outcomes[i])) == 0)
      return outcomes[i];
  }
  cr_assert(false, "line %d: \"%s\" is no outcome", line, text);
  return 0;
}

static void row_read(vector_row *row, char *text, int line) {
  char *columns[COLUMNS_MAX];
  size_t n = 0;
  for (char *at = text; at != NULL && n < COLUMNS_MAX; n++) {
    columns[n] = at;
    at = strchr(at, ',');
    if (at != NULL)
      *at++ = '\0';
  }
  cr_assert(n == COLUMNS || n == COLUMNS_MAX, "line %d has %zu columns", line, n);
  bool all = n == COLUMNS_MAX;
  char **numbers = columns + (all ? 6 : 5);
  *row = (vector_row){.line = line,
                      .step = number_read(columns[1], line),
                      .at_ms = number_read(columns[2], line),
                      .take = strcmp(columns[3], "take") == 0,
                      .limit = limit_read(columns[4], all ? columns[5] : "token_bucket", numbers, line),
                      .cost = number_read(numbers[3], line),
                      .outcome = outcome_read(numbers[4], line),
                      .remaining = number_read(numbers[5], line),
                      .reset_after_ms = number_read(numbers[7], line),
                      .delay_ms = all ? number_read(numbers[8], line) : 0,
                      .decides = number_read(columns[n - 1], line) == 1};
  row->retry_after_ms = numbers[6][0] == '\0' ? SPILE_UNKNOWN : number_read(numbers[6], line);
  cr_assert(row->take || strcmp(columns[3], "peek") == 0);
  (void)snprintf(row->scenario, sizeof(row->scenario), "%.39s", columns[0]);
  (void)snprintf(row->bucket, sizeof(row->bucket), "%.15s", columns[4]);
}

/* Reads one file. The first line that is no comment names the columns. */
static size_t rows_read(const char *name, vector_row *rows) {
  const char *tests = getenv("SPILE_TEST_DATA");
  cr_assert(ne(ptr, (void *)tests, NULL), "SPILE_TEST_DATA must name the directory of the tests");
  char path[512];
  (void)snprintf(path, sizeof(path), "%s/vectors/%s.csv", tests, name);
  FILE *file = fopen(path, "r");
  cr_assert(file != NULL, "%s cannot be read", path);
  char text[512];
  size_t n = 0;
  bool named = false;
  for (int line = 1; fgets(text, sizeof(text), file) != NULL; line++) {
    text[strcspn(text, "\n")] = '\0';
    if (text[0] == '#')
      continue;
    if (named) {
      cr_assert(n < ROWS_MAX);
      row_read(&rows[n++], text, line);
    }
    named = true;
  }
  (void)fclose(file);
  cr_assert(n > 0, "%s is empty", path);
  return n;
}

/* How many rows make the step that starts at `row`, of `left`. */
static size_t step_len(const vector_row *row, size_t left) {
  size_t n = 1;
  while (n < left && row[n].step == row->step && strcmp(row[n].scenario, row->scenario) == 0)
    n++;
  cr_assert(n <= REQUESTS_MAX);
  return n;
}

static void step_check(const char *file, const vector_row *rows, size_t n, const spile_decision *decision,
                       const spile_decision *each) {
  for (size_t i = 0; i < n; i++) {
    const spile_decision *got = &each[i];
    const vector_row *want = &rows[i];
    bool same = got->outcome == want->outcome && got->remaining == want->remaining &&
                got->retry_after_ms == want->retry_after_ms && got->reset_after_ms == want->reset_after_ms &&
                got->delay_ms == want->delay_ms;
    cr_expect(same, "%s.csv line %d: %s remaining %" PRId64 " retry %" PRId64 " reset %" PRId64, file, want->line,
              spile_outcome_name(got->outcome), got->remaining, got->retry_after_ms, got->reset_after_ms);
    bool decides = decision->index == i;
    cr_expect(decides == want->decides, "%s.csv line %d: request %u decides", file, want->line, decision->index);
  }
  cr_expect(decision->outcome == rows[decision->index].outcome, "%s.csv line %d", file, rows->line);
}

/* ---- The core ---- */

typedef struct core_buckets {
  size_t n;
  char names[BUCKETS_MAX][16];
  bool stored[BUCKETS_MAX];
  spile__state states[BUCKETS_MAX];
} core_buckets;

static size_t core_find(core_buckets *buckets, const char *name) {
  size_t i = 0;
  while (i < buckets->n && strcmp(buckets->names[i], name) != 0)
    i++;
  if (i == buckets->n) {
    cr_assert(i < BUCKETS_MAX);
    (void)snprintf(buckets->names[i], sizeof(buckets->names[i]), "%s", name);
    buckets->n++;
  }
  return i;
}

static void core_step(core_buckets *buckets, const vector_row *rows, size_t n, spile_decision *decision,
                      spile_decision *each) {
  spile_item items[REQUESTS_MAX] = {{0}};
  bool moved[REQUESTS_MAX] = {false};
  bool never = false;
  for (size_t i = 0; i < n; i++) {
    items[i] = (spile_item){.spec = spile_limit_spec(rows[i].limit), .cost = rows[i].cost};
    size_t at = core_find(buckets, rows[i].bucket);
    moved[i] =
        spile__item_read(&items[i], SPILE_VERB_TAKE, buckets->stored[at] ? &buckets->states[at] : NULL, rows[i].at_ms);
    never = never || rows[i].cost > items[i].spec->shape.capacity;
  }
  bool take = rows->take && !never;
  (void)spile__decide(items, n, take, decision, each);
  bool charged = take && spile__items_fit(items, n);
  for (size_t i = 0; i < n && take; i++) {
    if (items[i].cost == 0 || (!charged && !moved[i]))
      continue;
    const spile_shape *shape = &items[i].spec->shape;
    const spile__algorithm *algorithm = spile__algorithm_get(items[i].spec->algorithm);
    if (charged)
      algorithm->charge(shape, &items[i].reading, items[i].cost);
    size_t at = core_find(buckets, rows[i].bucket);
    spile__state *state = &buckets->states[at];
    buckets->stored[at] =
        algorithm->state(shape, &items[i].reading, rows[i].at_ms, buckets->stored[at] ? state : NULL, state);
  }
}

static void check_core(const char *file) {
  vector_row *rows = calloc(ROWS_MAX, sizeof(*rows));
  size_t count = rows_read(file, rows);
  core_buckets buckets = {0};
  for (size_t i = 0, n; i < count; i += n) {
    n = step_len(&rows[i], count - i);
    if (i == 0 || strcmp(rows[i].scenario, rows[i - 1].scenario) != 0)
      buckets = (core_buckets){0};
    spile_decision decision;
    spile_decision each[REQUESTS_MAX];
    core_step(&buckets, &rows[i], n, &decision, each);
    step_check(file, &rows[i], n, &decision, each);
  }
  for (size_t i = 0; i < count; i++)
    spile_limit_unref(rows[i].limit);
  free(rows);
}

/* ---- The memory store ---- */

static void check_memory(const char *file) {
  vector_row *rows = calloc(ROWS_MAX, sizeof(*rows));
  size_t count = rows_read(file, rows);
  spile_fake_clock *clock = spile_fake_clock_new(0);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  for (size_t i = 0, n; i < count; i += n) {
    n = step_len(&rows[i], count - i);
    spile_request requests[REQUESTS_MAX];
    for (size_t j = 0; j < n; j++)
      requests[j] = (spile_request){.limit = rows[i + j].limit,
                                    .key = rows[i].scenario,
                                    .key_len = strlen(rows[i].scenario),
                                    .cost = rows[i + j].cost};
    spile_fake_clock_set(clock, rows[i].at_ms);
    spile_decision decision;
    spile_decision each[REQUESTS_MAX];
    int outcome = (rows[i].take ? spile_take_all : spile_peek_all)(limiter, requests, n, &decision, each);
    cr_expect(eq(int, outcome, decision.outcome));
    step_check(file, &rows[i], n, &decision, each);
  }
  spile_close(limiter);
  spile_fake_clock_free(clock);
  for (size_t i = 0; i < count; i++)
    spile_limit_unref(rows[i].limit);
  free(rows);
}

ParameterizedTestParameters(vectors, the_core_gives_the_golden_answers) {
  static size_t indexes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  return cr_make_param_array(size_t, indexes, sizeof(indexes) / sizeof(indexes[0]));
}

ParameterizedTest(size_t *index, vectors, the_core_gives_the_golden_answers) {
  check_core(files[*index]);
}

ParameterizedTestParameters(vectors, the_memory_store_gives_the_golden_answers) {
  static size_t indexes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  return cr_make_param_array(size_t, indexes, sizeof(indexes) / sizeof(indexes[0]));
}

ParameterizedTest(size_t *index, vectors, the_memory_store_gives_the_golden_answers) {
  check_memory(files[*index]);
}
