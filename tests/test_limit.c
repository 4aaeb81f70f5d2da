/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/limit.h"
#include "model.h"
#include "temp_dir.h"

#define TEN_YEARS_MS INT64_C(315360000000)

/* ---- Bounds ---- */

typedef struct bound_row {
  const char *name;
  int64_t capacity, tokens, period_ms, debt;
  const char *message; /* NULL: a good limit */
} bound_row;

/* Each bound at its edge and one past it. */
static const bound_row bounds[] = {
    {"smallest", 1, 1, 1, 0, NULL},
    {"CORE-07: no refill", 1, 0, 1000, 0, "refill is 0 tokens; it must be at least 1"},
    {"CORE-07: no period", 1, 1, 0, 0, "the refill period is 0 ms; it must be at least 1 ms"},
    {"CORE-07: no capacity", 0, 1, 1000, 0, "capacity is 0; it must be at least 1 token"},
    {"CORE-07: capacity below 0", -1, 1, 1000, 0, "capacity is -1; it must be at least 1 token"},
    {"smallest integer", INT64_MIN, 1, 1000, 0, "capacity is -9223372036854775808; it must be at least 1 token"},
    {"debt below 0", 1, 1, 1000, -1, "debt is -1; it must be at least 0 tokens"},
    /* 2^53 − 1 − 1001·30000 = 9007199224710991 */
    {"most tokens", INT64_C(9007199224710991), 30000, 1, 0, NULL},
    {"one token more", INT64_C(9007199224710992), 30000, 1, 0,
     "capacity and debt are 9007199224710992 tokens, 1 more than the 9007199224710991 that keep capacity x period "
     "within "
     "2^53 - 1 at this refill; write a smaller capacity or a rounder rate"},
    {"debt counts", INT64_C(9007199224710981), 30000, 1, 10, NULL},
    {"debt counts, one more", INT64_C(9007199224710981), 30000, 1, 11,
     "capacity and debt are 9007199224710992 tokens, 1 more than the 9007199224710991 that keep capacity x period "
     "within "
     "2^53 - 1 at this refill; write a smaller capacity or a rounder rate"},
    /* (2^53 − 2) / 1001 = 8998201053687.3 */
    {"fastest", 1, INT64_C(8998201053687), 1, 0, NULL},
    {"one faster", 1, INT64_C(8998201053688), 1, 0,
     "the refill of 8998201053688 tokens per 1 ms in lowest terms is too fast for exact arithmetic: at most "
     "8998201053687 tokens in that period"},
    {"largest integers", INT64_MAX, INT64_MAX, 1, INT64_MAX,
     "the refill of 9223372036854775807 tokens per 1 ms in lowest terms is too fast for exact arithmetic: at most "
     "8998201053687 tokens in that period"},
    {"largest sum", INT64_MAX, 1, 1, INT64_MAX,
     "capacity and debt are 9223372036854775807 tokens, 9214364837600035817 more than the 9007199254739990 that keep "
     "capacity x period within 2^53 - 1 at this refill; write a smaller capacity or a rounder rate"},
    {"longest period", 1, 1, TEN_YEARS_MS, 0, NULL},
    {"one ms longer", 1, 1, TEN_YEARS_MS + 1, 0,
     "the refill period in lowest terms is 315360000001 ms, 1 more than the ten years (315360000000) it may be"},
    {"long as written, short in lowest terms", 1, 2, 2 * TEN_YEARS_MS, 0, NULL},
    {"longest full time", 3, 1, TEN_YEARS_MS / 3, 0, NULL},
    {"three ms longer", 3, 1, TEN_YEARS_MS / 3 + 1, 0,
     "an empty bucket would take 315360000003 ms to fill, 3 more than the ten years (315360000000) it may take; write "
     "a "
     "smaller capacity or a faster refill"},
    {"longest from the deepest debt", 1, 1, TEN_YEARS_MS / 3, 2, NULL},
    {"longer from the deepest debt", 1, 1, TEN_YEARS_MS / 3, 3,
     "an empty bucket would take 420480000000 ms to fill, 105120000000 more than the ten years (315360000000) it may "
     "take; write a smaller capacity or a faster refill"},
    /* Lowest terms 2187500 per 27 ms: (2^53 − 1 − 1001·2187500) / 27 = 333599891298277.4 */
    {"CORE-01 b", INT64_C(9000000000000000), INT64_C(7000000000000), 86400000, 0,
     "capacity and debt are 9000000000000000 tokens, 8666400108701723 more than the 333599891298277 that keep capacity "
     "x "
     "period within 2^53 - 1 at this refill; write a smaller capacity or a rounder rate"},
    {"CORE-01 a", INT64_C(1000000000000), INT64_C(1000000000000), 86400000, 0, NULL},
    {"REDIS-05 a", INT64_C(9000000000000000), 1000000000, 1000, 0, NULL},
    {"REDIS-05 c", INT64_C(1000000000000), 1, 1000, 0,
     "an empty bucket would take 1000000000000000 ms to fill, 999684640000000 more than the ten years (315360000000) "
     "it "
     "may take; write a smaller capacity or a faster refill"},
    {"REDIS-05 d", INT64_C(1000000000000000), 1, 1000, 0,
     "capacity and debt are 1000000000000000 tokens, 990992800745261 more than the 9007199254739 that keep capacity x "
     "period within 2^53 - 1 at this refill; write a smaller capacity or a rounder rate"},
};

Test(limit, core_01_and_07_and_redis_05_bounds_hold_at_the_edge_and_not_past_it) {
  for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
    const bound_row *row = &bounds[i];
    spile_error error = {0};
    spile_shape shape;
    int result = spile__shape_make(&shape, row->capacity, row->tokens, row->period_ms, row->debt, &error);
    cr_expect(eq(int, result, row->message == NULL ? SPILE_OK : SPILE_ECONFIG), "%s: %s", row->name, error.message);
    cr_expect(eq(int, error.code, result), "%s", row->name);
    cr_expect(eq(str, error.message, (char *)(row->message == NULL ? "" : row->message)), "%s", row->name);
  }
}

typedef struct window_row {
  int algorithm;
  int64_t capacity, tokens, window_ms;
  const char *message; /* NULL: a good limit */
} window_row;

static const window_row windows[] = {
    {SPILE_FIXED_WINDOW, 1, 0, 1, NULL},
    {SPILE_FIXED_WINDOW, 7, 7, TEN_YEARS_MS, NULL},
    {SPILE_FIXED_WINDOW, INT64_C(9007199254740991), 0, TEN_YEARS_MS, NULL},
    {SPILE_FIXED_WINDOW, INT64_C(9007199254740992), 0, 1,
     "capacity is 9007199254740992 tokens, 1 more than the 2^53 - 1 that can be counted exactly"},
    {SPILE_FIXED_WINDOW, 0, 0, 1, "capacity is 0; it must be at least 1 token"},
    {SPILE_FIXED_WINDOW, 5, 0, 0, "the window is 0 ms; it must be at least 1 ms"},
    {SPILE_FIXED_WINDOW, 5, 0, -1, "the window is -1 ms; it must be at least 1 ms"},
    {SPILE_FIXED_WINDOW, 5, 0, TEN_YEARS_MS + 1,
     "the window is 315360000001 ms, 1 more than the ten years (315360000000) it may be"},
    {SPILE_FIXED_WINDOW, 5, 4, 1000,
     "a window that admits 4 tokens has no other capacity, and 5 is written; write COUNT/WINDOW alone"},
    /* (2^53 − 1) / 3 = 3002399751580330.3; / 3 / 60000 = 50039995859.6 */
    {SPILE_SLIDING_WINDOW, INT64_C(3002399751580330), 0, 1, NULL},
    {SPILE_SLIDING_WINDOW, INT64_C(50039995859), 0, 60000, NULL},
    {SPILE_SLIDING_WINDOW, INT64_C(50039995860), 0, 60000,
     "capacity is 50039995860 tokens, 1 more than the 50039995859 that keep 3 x capacity x window within 2^53 - 1 "
     "for "
     "this window; write a smaller capacity or a shorter window, or fixed_window"},
    {SPILE_SLIDING_WINDOW, 9520, 0, TEN_YEARS_MS, NULL},
    {SPILE_SLIDING_LOG, 1000, 0, TEN_YEARS_MS, NULL},
    {SPILE_SLIDING_LOG, 1001, 0, 1,
     "capacity is 1001 tokens, 1 more than the 1000 that a sliding_log can remember one by one; write "
     "sliding_window, "
     "which counts nearly as exactly and any number"},
    {6, 5, 5, 1000, "algorithm is 6; it must be a spile_algorithm"},
    {-1, 5, 5, 1000, "algorithm is -1; it must be a spile_algorithm"},
};

Test(limit, windows_have_bounds_of_their_own) {
  for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
    const window_row *row = &windows[i];
    spile_limit_def def = SPILE_LIMIT_DEF_INIT;
    def.algorithm = row->algorithm;
    def.capacity = row->capacity;
    def.refill_tokens = row->tokens;
    def.refill_period_ms = row->window_ms;
    spile_error error = {0};
    spile_limit *limit;
    int result = spile_limit_create(&limit, &def, &error);
    cr_expect(eq(int, result, row->message == NULL ? SPILE_OK : SPILE_ECONFIG), "row %zu: %s", i, error.message);
    cr_expect(eq(str, error.message, (char *)(row->message == NULL ? "" : row->message)), "row %zu", i);
    spile_limit_unref(limit);
  }
}

Test(limit, buckets_may_have_a_debt_and_windows_not) {
  static const struct {
    const char *text;
    int64_t debt;
    const char *message; /* NULL: a good limit */
  } rows[] = {
      {"10/s", 0, NULL},
      {"10/s,debt=0", 0, NULL},
      {"10/s,debt=25", 25, NULL},
      {"1/s,debt=7,leaky_bucket,capacity=2", 7, NULL},
      {"10/s,fixed_window,debt=0", 0, NULL},
      {"10/s,fixed_window,debt=1", 0, "debt is 1 tokens, and a window cannot owe any"},
      {"10/s,debt=2,sliding_window", 0, "debt is 2 tokens, and a window cannot owe any"},
      {"10/s,sliding_log,debt=3", 0, "debt is 3 tokens, and a window cannot owe any"},
      {"10/s,debt=", 0, "column 11: the text ends where a number of tokens should be;"},
      {"10/s,debt=-1", 0, "column 11: no debt: \"-1\";"},
      {"10/s,debt=1x", 0, "column 11: no debt: \"1x\";"},
      {"10/s,debt=9007199254740992", 0, "column 11: no debt: \"9007199254740992\";"},
      {"10/s,debt=0,debt=0", 0, "column 13: a second \"debt=0\";"},
      {"10/s,debt=9007199254740991", 0, "capacity and debt are 9007199254741001 tokens, "},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_error error = {0};
    spile_limit *limit;
    int result = spile_limit_parse(&limit, rows[i].text, &error);
    cr_expect(eq(int, result, rows[i].message == NULL ? SPILE_OK : SPILE_ECONFIG), "%s", rows[i].text);
    if (rows[i].message != NULL)
      cr_expect(strncmp(error.message, rows[i].message, strlen(rows[i].message)) == 0, "%s: %s", rows[i].text,
                error.message);
    else
      cr_expect(eq(i64, spile_limit_spec(limit)->shape.debt, rows[i].debt), "%s", rows[i].text);
    spile_limit_unref(limit);
  }
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = def.refill_tokens = 1;
  def.refill_period_ms = 1000;
  def.debt = 9;
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_OK));
  cr_expect(eq(i64, spile_limit_spec(limit)->shape.debt, 9));
  spile_limit_unref(limit);
  def.debt = -1;
  cr_expect(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_ECONFIG));
}

Test(limit, a_message_is_optional) {
  spile_shape shape;
  cr_assert(eq(int, spile__shape_make(&shape, 0, 1, 1, 0, NULL), SPILE_ECONFIG));
}

Test(limit, the_first_failure_stays_in_the_error) {
  spile_error error = {.code = SPILE_EINVAL, .message = "first"};
  spile_shape shape;
  cr_assert(eq(int, spile__shape_make(&shape, 0, 1, 1, 0, &error), SPILE_ECONFIG));
  cr_assert(eq(int, error.code, SPILE_EINVAL));
  cr_assert(eq(str, error.message, (char *)"first"));
}

Test(limit, shapes_are_in_lowest_terms) {
  spile_shape shape;
  cr_assert(eq(int, spile__shape_make(&shape, 60, 60, 60000, 0, NULL), SPILE_OK));
  cr_assert(shape.capacity == 60 && shape.refill == 1 && shape.period_ms == 1000 && shape.debt == 0);
  cr_expect(spile__shape_valid(&shape));
  shape = (spile_shape){.capacity = 60, .refill = 60, .period_ms = 60000};
  cr_expect(not(spile__shape_valid(&shape)));
  shape = (spile_shape){.capacity = 60, .refill = 0, .period_ms = 0};
  cr_expect(not(spile__shape_valid(&shape)));
}

/* Numbers of every magnitude, with the capacity close to the largest the model lets pass. */
Test(limit, the_model_draws_the_same_bounds) {
  uint64_t random = 1;
  for (int i = 0; i < 300000; i++) {
    int64_t numbers[4];
    for (int j = 0; j < 4; j++) {
      random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      numbers[j] = (int64_t)((random >> 1) >> (random >> 58));
    }
    int64_t debt = i % 2 == 0 ? 0 : numbers[3] >> 20;
    model_limit want;
    if (i % 3 > 0 && model_limit_make(&want, 1, numbers[1], numbers[2], 0)) {
      __int128 exact = ((__int128)SPILE__EXACT_MAX - (__int128)1001 * want.refill) / want.period_ms;
      __int128 years = (__int128)TEN_YEARS_MS * want.refill / want.period_ms;
      numbers[0] = (int64_t)(exact < years ? exact : years) + i % 5 - 2;
      debt = 0;
    }
    spile_shape got;
    bool good = model_limit_make(&want, numbers[0], numbers[1], numbers[2], debt);
    int result = spile__shape_make(&got, numbers[0], numbers[1], numbers[2], debt, NULL);
    cr_assert(eq(int, result, good ? SPILE_OK : SPILE_ECONFIG), "%lld %lld/%lld debt %lld", (long long)numbers[0],
              (long long)numbers[1], (long long)numbers[2], (long long)debt);
    if (good)
      cr_assert(got.refill == want.refill && got.period_ms == want.period_ms && got.capacity == want.capacity);
  }
}

/* ---- Text ---- */

typedef struct text_row {
  const char *text;
  const char *name; /* NULL: "default" */
  int64_t capacity, refill, period_ms;
  int on_full;
} text_row;

static const text_row texts[] = {
    {"10/s", NULL, 10, 1, 100, SPILE_ON_FULL_CLOSED},
    {"1/s,capacity=60", NULL, 60, 1, 1000, SPILE_ON_FULL_CLOSED},
    {"0.05/s,capacity=5", NULL, 5, 1, 20000, SPILE_ON_FULL_CLOSED},
    {"0.5/s,capacity=5", NULL, 5, 1, 2000, SPILE_ON_FULL_CLOSED},
    {"2.5/s,capacity=3", NULL, 3, 1, 400, SPILE_ON_FULL_CLOSED},
    {"5.0/s,capacity=3", NULL, 3, 1, 200, SPILE_ON_FULL_CLOSED},
    {"100/m", NULL, 100, 1, 600, SPILE_ON_FULL_CLOSED},
    {"1000/d,name=day", "day", 1000, 1, 86400, SPILE_ON_FULL_CLOSED},
    {"5/5m", NULL, 5, 1, 60000, SPILE_ON_FULL_CLOSED},
    {"1/2s", NULL, 1, 1, 2000, SPILE_ON_FULL_CLOSED},
    {"3/7ms", NULL, 3, 3, 7, SPILE_ON_FULL_CLOSED},
    {"1/3h", NULL, 1, 1, 10800000, SPILE_ON_FULL_CLOSED},
    {"1/3650d", NULL, 1, 1, TEN_YEARS_MS, SPILE_ON_FULL_CLOSED},
    {"0.000000001/ms,capacity=1", NULL, 1, 1, 1000000000, SPILE_ON_FULL_CLOSED},
    {"7/s,token_bucket,on_full=open,name=a b/c,capacity=2", "a b/c", 2, 7, 1000, SPILE_ON_FULL_OPEN},
    {"1/3s,leaky_bucket,capacity=10", NULL, 10, 1, 3000, SPILE_ON_FULL_CLOSED},
    {"5/5m,fixed_window", NULL, 5, 1, 300000, SPILE_ON_FULL_CLOSED},
    {"100/m,capacity=100,fixed_window", NULL, 100, 1, 60000, SPILE_ON_FULL_CLOSED},
    {"9007199254740991/ms,fixed_window", NULL, INT64_C(9007199254740991), 1, 1, SPILE_ON_FULL_CLOSED},
    {"7/s,on_full=fail", NULL, 7, 7, 1000, SPILE_ON_FULL_FAIL},
    {"0007/01s", NULL, 7, 7, 1000, SPILE_ON_FULL_CLOSED},
};

static void text_check(const text_row *row) {
  spile_error error = {0};
  spile_limit *limit;
  int result = spile_limit_parse(&limit, row->text, &error);
  cr_assert(eq(int, result, SPILE_OK), "%s: %s", row->text, error.message);
  const spile_spec *spec = spile_limit_spec(limit);
  cr_expect(eq(str, (char *)spile_limit_name(limit), (char *)(row->name == NULL ? "default" : row->name)), "%s",
            row->text);
  cr_expect(eq(i64, spec->shape.capacity, row->capacity), "%s", row->text);
  cr_expect(eq(i64, spec->shape.refill, row->refill), "%s", row->text);
  cr_expect(eq(i64, spec->shape.period_ms, row->period_ms), "%s", row->text);
  cr_expect(eq(int, (int)spec->on_full, row->on_full), "%s", row->text);
  spile_limit_unref(limit);
}

Test(limit, texts_mean_exact_fractions) {
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
    text_check(&texts[i]);
}

Test(limit, a_locale_with_decimal_commas_has_no_influence) {
  char directory[TEMP_DIR_LEN];
  char command[TEMP_DIR_LEN + 64];
  temp_dir_make(directory);
  (void)snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null", directory);
  bool made = system(command) == 0 && setenv("LOCPATH", directory, 1) == 0;
  const char *found = made ? setlocale(LC_ALL, "de_DE.UTF-8") : NULL;
  temp_dir_remove(directory);
  cr_assert(found != NULL, "localedef cannot make de_DE here; install Debian's package locales");
  cr_assert(strtod("0,5", NULL) > 0.4, "%s has no decimal comma", found);
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
    text_check(&texts[i]);
}

typedef struct fault_row {
  const char *text;
  int column;
  const char *message; /* how it goes on after "column N: " */
} fault_row;

static const fault_row faults[] = {
    {"", 1, "the text ends where a count should be; write a limit as COUNT/PERIOD"},
    {"/s", 1, "there is a '/' where a count should be;"},
    {" 5/s", 1, "no count at \" 5\";"},
    {"-5/s", 1, "no count at \"-5\";"},
    {".5/s,capacity=1", 1, "no count at \".5\";"},
    {"5", 2, "the text ends where a '/' and a period should be; write a limit as COUNT/PERIOD, such as 10/s"},
    {"1e3/s", 2, "no '/' at \"e3\";"},
    {"5 /s", 2, "no '/' at \" \";"},
    {"1,05/s", 2, "there is a ',' where a '/' and a period should be;"},
    {"9007199254740992/s", 1, "the count is above 2^53 - 1: \"9007199254740992\";"},
    {"99999999999999999999999/s", 1, "the count is above 2^53 - 1:"},
    {"0/s", 1, "the count is zero: \"0\";"},
    {"0.000/s,capacity=1", 1, "the count is zero: \"0.000\";"},
    {"5./s", 1, "no digit after the point in \"5.\";"},
    {"0.0000000001/s,capacity=1", 1, "more than 9 decimals in \"0.0000000001\";"},
    {"12345678.123456789/s,capacity=1", 1, "the count has too many digits:"},
    {"5/", 3, "the text ends where a period should be; write a unit"},
    {"5//s", 3, "there is a '/' where a period should be;"},
    {"5/,capacity=5", 3, "there is a ',' where a period should be;"},
    {"5/x", 3, "no unit of time in \"x\";"},
    {"5/5", 3, "no unit of time in \"5\";"},
    {"5/s ", 3, "no unit of time in \"s \";"},
    {"5/sec", 3, "no unit of time in \"sec\";"},
    {"5/S", 3, "no unit of time in \"S\";"},
    {"5/-1s", 3, "no unit of time in \"-1s\";"},
    {"5/3651d", 3, "a period of more than ten years: \"3651d\";"},
    {"5/9007199254740991d", 3, "a period of more than ten years:"},
    {"5/0s", 3, "the period is zero: \"0s\";"},
    {"0.000000001/3650d,capacity=1", 1, "the rate is too slow: \"0.000000001\";"},
    {"0.5/s", 1, "a decimal rate has no capacity of its own: \"0.5\"; add ,capacity=TOKENS"},
    {"5/s,", 5, "the text ends where an option should be; known are"},
    {"5/s,burst=3", 5, "unknown option \"burst=3\";"},
    {"5/s,name=a,,capacity=3", 12, "there is a ',' where an option should be;"},
    {"5/s,sliding", 5, "unknown option \"sliding\";"},
    {"5/s,capacity=", 14, "the text ends where a number of tokens should be;"},
    {"5/s,capacity=0", 14, "no capacity: \"0\";"},
    {"5/s,capacity=5x", 14, "no capacity: \"5x\";"},
    {"5/s,capacity=9007199254740992", 14, "no capacity: \"9007199254740992\";"},
    {"5/s,capacity=5,capacity=5", 16, "a second \"capacity=5\";"},
    {"5/s,name=", 10, "the text ends where a name should be;"},
    {"5/s,name=a,name=b", 12, "a second \"name=b\";"},
    {"5/s,on_full=maybe", 13, "unknown word \"maybe\";"},
    {"5/s,on_full=", 13, "the text ends where a word should be; write closed, open or fail"},
    {"5/s,on_store_error=maybe", 20, "unknown word \"maybe\";"},
    {"5/s,on_store_error=open,on_store_error=open", 25, "a second \"on_store_error=open\";"},
    {"5/s,on_full=open,on_full=open", 18, "a second \"on_full=open\";"},
    {"5/s,token_bucket,token_bucket", 18, "a second algorithm: \"token_bucket\";"},
    {"5/s,token_bucket,leaky_bucket", 18, "a second algorithm: \"leaky_bucket\";"},
    {"0.5/s,capacity=5,fixed_window", 1, "a window counts whole tokens: \"0.5\";"},
    {"5.0/s,fixed_window", 1, "a window counts whole tokens: \"5.0\";"},
    {"5/\x1b[2J\xff\"", 3, "no unit of time in \"\\x1b[2J\\xff\\x22\";"},
};

Test(limit, a_faulty_text_is_told_where_and_what_to_write) {
  for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
    const fault_row *row = &faults[i];
    spile_error error = {0};
    spile_limit *limit = (spile_limit *)&error;
    int result = spile_limit_parse(&limit, row->text, &error);
    cr_expect(eq(int, result, SPILE_ECONFIG), "%s", row->text);
    cr_expect(eq(ptr, limit, NULL), "%s", row->text);
    cr_expect(eq(int, error.column, row->column), "%s: %s", row->text, error.message);
    const char *message = strstr(error.message, ": ");
    cr_assert(ne(ptr, (void *)message, NULL), "%s: %s", row->text, error.message);
    bool same = strncmp(message + 2, row->message, strlen(row->message)) == 0;
    cr_expect(same, "%s: %s", row->text, error.message);
    cr_expect(ne(ptr, strstr(error.message, "; "), NULL), "%s: nothing to do in: %s", row->text, error.message);
  }
}

Test(limit, a_name_may_have_255_bytes_and_not_256) {
  char text[300] = "5/s,name=";
  size_t start = strlen(text);
  memset(text + start, 'n', 256);
  spile_error error = {0};
  spile_limit *limit;
  cr_expect(eq(int, spile_limit_parse(&limit, text, &error), SPILE_ECONFIG));
  cr_expect(eq(int, error.column, 10));
  text[start + 255] = '\0';
  cr_assert(eq(int, spile_limit_parse(&limit, text, NULL), SPILE_OK));
  cr_expect(eq(sz, strlen(spile_limit_name(limit)), 255));
  spile_limit_unref(limit);
}

Test(limit, bounds_hold_for_texts_too) {
  spile_error error = {0};
  spile_limit *limit;
  /* 123456789 in 10^12 ms */
  cr_expect(eq(int, spile_limit_parse(&limit, "0.123456789/s,capacity=5", &error), SPILE_ECONFIG));
  cr_expect(ne(ptr, strstr(error.message, "684640000000 more than the ten years"), NULL), "%s", error.message);
}

/* ---- Durations ---- */

Test(limit, durations_are_whole_numbers_with_a_unit) {
  static const struct {
    const char *text;
    int64_t ms;
    size_t read;
  } rows[] = {{"500ms", 500, 5},
              {"2s", 2000, 2},
              {"m", 60000, 1},
              {"ms", 1, 2},
              {"15m", 900000, 3},
              {"1h30m", 3600000, 2},
              {"1d", 86400000, 2},
              {"0s", 0, 2},
              {"3650d", TEN_YEARS_MS, 5},
              {"315360000000ms", TEN_YEARS_MS, 14},
              {"315360000001ms", SPILE__DURATION_TOO_LONG, 0},
              {"3651d", SPILE__DURATION_TOO_LONG, 0},
              {"99999999999999999999d", SPILE__DURATION_TOO_LONG, 0},
              {"5", -1, 0},
              {"1.5s", -1, 0},
              {"-1s", -1, 0},
              {"x", -1, 0},
              {"", -1, 0}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const char *at = rows[i].text;
    cr_expect(eq(i64, spile__duration_parse(&at), rows[i].ms), "%s", rows[i].text);
    if (rows[i].ms >= 0)
      cr_expect(eq(sz, (size_t)(at - rows[i].text), rows[i].read), "%s", rows[i].text);
  }
}

/* ---- The handle ---- */

Test(limit, definitions_are_checked_before_they_are_read) {
  spile_error error = {0};
  spile_limit *limit;
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  cr_expect(eq(int, spile_limit_create(NULL, &def, NULL), SPILE_EINVAL));
  cr_expect(eq(int, spile_limit_create(&limit, NULL, NULL), SPILE_EINVAL));
  def.struct_size = 0;
  cr_expect(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_EINVAL));
  def.struct_size = sizeof(def);
  def.capacity = def.refill_tokens = def.refill_period_ms = 1;
  def.on_full = 3;
  cr_expect(eq(int, spile_limit_create(&limit, &def, &error), SPILE_ECONFIG));
  cr_expect(eq(str, error.message, (char *)"on_full is 3; it must be a spile_on_full"));
  def.on_full = SPILE_ON_FULL_OPEN;
  def.name = "";
  cr_expect(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_ECONFIG));
  cr_expect(eq(ptr, limit, NULL));
  cr_expect(eq(int, spile_limit_parse(NULL, "1/s", NULL), SPILE_EINVAL));
  cr_expect(eq(int, spile_limit_parse(&limit, NULL, NULL), SPILE_EINVAL));
}

Test(limit, a_limit_lives_until_its_last_owner_leaves) {
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_parse(&limit, "7/s,capacity=100,name=sevenths", NULL), SPILE_OK));
  cr_assert(eq(ptr, spile_limit_ref(limit), limit));
  spile_limit_unref(limit);
  cr_expect(eq(str, (char *)spile_limit_name(limit), (char *)"sevenths"));
  cr_expect(eq(i64, spile_limit_capacity(limit), 100));
  cr_expect(eq(i64, spile_limit_full_time_ms(limit), 14286)); /* 100000/7 = 14285.7 */
  spile_limit_unref(limit);
  spile_limit_unref(NULL);
  cr_expect(eq(ptr, spile_limit_ref(NULL), NULL));
}

Test(limit, a_bucket_is_named_by_name_and_algorithm_and_not_by_numbers) {
  spile_limit *a;
  spile_limit *b;
  spile_limit *c;
  cr_assert(spile_limit_parse(&a, "1/s,name=x", NULL) == 0 && spile_limit_parse(&b, "2/s,name=x", NULL) == 0 &&
            spile_limit_parse(&c, "1/s,name=xy", NULL) == 0);
  cr_expect(spile__spec_same_bucket(spile_limit_spec(a), spile_limit_spec(b)));
  cr_expect(not(spile__spec_same_bucket(spile_limit_spec(a), spile_limit_spec(c))));
  cr_expect(spile_limit_spec(a)->fingerprint != spile_limit_spec(b)->fingerprint);
  spile_limit_unref(a);
  spile_limit_unref(b);
  spile_limit_unref(c);
}
