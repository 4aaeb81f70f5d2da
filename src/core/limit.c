/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limit is written as tokens per period and a capacity, and kept as a shape: the rate as a fraction N/P of tokens per
 * millisecond in lowest terms. Lowest terms make equal rates equal shapes ("60/m" is "1/s") and keep the products of
 * the bucket small.
 */
#include "core/limit.h"

#include <string.h>

#include "core/algorithm.h"
#include "core/checked.h"
#include "core/siphash.h"
#include "core/text.h"

/* ---- Numbers and bounds ---- */

int spile__shape_make(spile_shape *out, int64_t capacity, int64_t refill_tokens, int64_t refill_period_ms, int64_t debt,
                      spile_error *error) {
  if (capacity < 1)
    return spile__fail(error, SPILE_ECONFIG, "capacity is #; it must be at least 1 token", &capacity);
  if (refill_tokens < 1)
    return spile__fail(error, SPILE_ECONFIG, "refill is # tokens; it must be at least 1", &refill_tokens);
  if (refill_period_ms < 1)
    return spile__fail(error, SPILE_ECONFIG, "the refill period is # ms; it must be at least 1 ms", &refill_period_ms);
  if (debt < 0)
    return spile__fail(error, SPILE_ECONFIG, "debt is #; it must be at least 0 tokens", &debt);

  int64_t divisor = spile__gcd(refill_tokens, refill_period_ms);
  spile_shape shape = {
      .capacity = capacity, .refill = refill_tokens / divisor, .period_ms = refill_period_ms / divisor, .debt = debt};
  if (shape.period_ms > SPILE__PERIOD_MAX_MS)
    return spile__fail(error, SPILE_ECONFIG,
                       "the refill period in lowest terms is # ms, # more than the ten years (#) it may be",
                       (int64_t[]){shape.period_ms, shape.period_ms - SPILE__PERIOD_MAX_MS, SPILE__PERIOD_MAX_MS});

  /* (capacity + debt)·P + 1001·N ≤ 2^53 − 1, in the order that cannot overflow: what 1001·N leaves, in whole tokens. */
  int64_t burst = spile__add_saturate(capacity, debt);
  int64_t left = SPILE__EXACT_MAX - spile__mul_saturate(shape.refill, SPILE__TOLERANCE_MS + 1);
  if (left < shape.period_ms)
    return spile__fail(
        error, SPILE_ECONFIG,
        "the refill of # tokens per # ms in lowest terms is too fast for exact arithmetic: at most # "
        "tokens in that period",
        (int64_t[]){shape.refill, shape.period_ms, (SPILE__EXACT_MAX - shape.period_ms) / (SPILE__TOLERANCE_MS + 1)});
  int64_t burst_max = left / shape.period_ms;
  if (burst > burst_max)
    return spile__fail(error, SPILE_ECONFIG,
                       "capacity and debt are # tokens, # more than the # that keep capacity x period within 2^53 - 1 "
                       "at this refill; write a smaller capacity or a rounder rate",
                       (int64_t[]){burst, burst - burst_max, burst_max});

  int64_t full_time_ms = spile__div_ceil(burst * shape.period_ms, shape.refill);
  if (full_time_ms > SPILE__PERIOD_MAX_MS)
    return spile__fail(error, SPILE_ECONFIG,
                       "an empty bucket would take # ms to fill, # more than the ten years (#) it may take; write a "
                       "smaller capacity or a faster refill",
                       (int64_t[]){full_time_ms, full_time_ms - SPILE__PERIOD_MAX_MS, SPILE__PERIOD_MAX_MS});
  *out = shape;
  return SPILE_OK;
}

bool spile__shape_valid(const spile_shape *shape) {
  spile_shape made;
  return shape->refill >= 1 && shape->period_ms >= 1 && spile__gcd(shape->refill, shape->period_ms) == 1 &&
         spile__shape_make(&made, shape->capacity, shape->refill, shape->period_ms, shape->debt, NULL) == SPILE_OK;
}

/* ---- Specs ---- */

void spile__spec_finish(spile_spec *spec) {
  const uint64_t key[2] = {(uint64_t)spec->algorithm, 0};
  const int64_t numbers[5] = {spec->shape.capacity, spec->shape.refill, spec->shape.period_ms, spec->shape.debt,
                              (int64_t)spile__siphash64(key, spec->name, spec->name_len)};
  spec->fingerprint = spile__siphash64(key, numbers, sizeof(numbers));
}

bool spile__spec_same_bucket(const spile_spec *a, const spile_spec *b) {
  return a->algorithm == b->algorithm && a->name_len == b->name_len && memcmp(a->name, b->name, a->name_len) == 0;
}

/* ---- Text ---- */

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/*
 * Reads a whole number up to 2^53 − 1 and moves `*text` behind it; -1 when there is none, or when it is larger (then
 * `*text` stands behind its digits all the same, and *too_large says so).
 */
static int64_t number_parse(const char **text, bool *too_large) {
  *too_large = false;
  if (!is_digit(**text))
    return -1;
  int64_t number = 0;
  for (; is_digit(**text); (*text)++) {
    if (number <= SPILE__EXACT_MAX)
      number = number * 10 + (**text - '0');
  }
  *too_large = number > SPILE__EXACT_MAX;
  return *too_large ? -1 : number;
}

int64_t spile__duration_parse(const char **text) {
  static const struct {
    const char *unit;
    int64_t ms;
  } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};

  bool too_large;
  int64_t count = is_digit(**text) ? number_parse(text, &too_large) : 1;
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
    size_t len = strlen(units[i].unit);
    bool found = true;
    for (size_t j = 0; j < len && found; j++)
      found = (*text)[j] == units[i].unit[j];
    if (!found)
      continue;
    *text += len;
    int64_t ms = count < 0 ? INT64_MAX : spile__mul_saturate(count, units[i].ms);
    return ms > SPILE__PERIOD_MAX_MS ? SPILE__DURATION_TOO_LONG : ms;
  }
  return -1;
}

typedef struct limit_parser {
  const char *text; /* the whole */
  const char *at;
  spile_error *error;
  bool on_full_given;
  bool on_store_error_given;
  bool algorithm_given;
  bool debt_given;
} limit_parser;

/*
 * Fails at `at`. The message is `what`, then the quoted piece that starts there, up to the next comma or slash. Where
 * no such piece is there, it says what is in the place of `missing`; NULL: a piece is always there.
 */
static int parser_fail(limit_parser *parser, const char *at, const char *what, const char *missing,
                       const char *instead) {
  spile_error *error = parser->error;
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  error->code = SPILE_ECONFIG;
  ptrdiff_t column = at - parser->text + 1;
  error->column = column > INT32_MAX ? INT32_MAX : (int)column;
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, "column ");
  spile__text_put_number(&text, column);
  spile__text_put(&text, ": ");
  size_t len = 0;
  while (at[len] != '\0' && at[len] != ',' && at[len] != '/' && len < 44)
    len++;
  len = spile__text_quotable(at, len, 40, SIZE_MAX);
  if (len == 0 && missing != NULL) {
    spile__text_put(&text, *at == '\0' ? "the text ends" : *at == ',' ? "there is a ','" : "there is a '/'");
    spile__text_put(&text, " where ");
    spile__text_put(&text, missing);
    spile__text_put(&text, " should be");
  } else {
    spile__text_put(&text, what);
    spile__text_put(&text, " ");
    spile__text_put_quoted(&text, at, len);
  }
  spile__text_put(&text, "; ");
  spile__text_put(&text, instead);
  return SPILE_ECONFIG;
}

/*
 * COUNT/PERIOD. A count with d decimals is n / 10^d, so n tokens come per 10^d periods: exact, and no locale is asked.
 * The common factor of n and 10^d goes at once, so that the period stays small.
 */
static int rate_parse(limit_parser *parser, spile__limit_text *out, bool *whole) {
  static const char form[] = "write a limit as COUNT/PERIOD, such as 10/s or 0.05/s,capacity=5";
  const char *start = parser->at;
  bool too_large;
  int64_t count = number_parse(&parser->at, &too_large);
  if (count < 0)
    return parser_fail(parser, start, too_large ? "the count is above 2^53 - 1:" : "no count at", "a count", form);

  int64_t scale = 1;
  if (*parser->at == '.') {
    const char *decimals = ++parser->at;
    for (; is_digit(*parser->at); parser->at++) {
      if (parser->at - decimals == 9)
        return parser_fail(parser, start, "more than 9 decimals in", NULL, "write at most 9");
      if (count > SPILE__EXACT_MAX / 10)
        return parser_fail(parser, start, "the count has too many digits:", NULL, "write at most 15 digits in all");
      count = count * 10 + (*parser->at - '0');
      scale *= 10;
    }
    if (parser->at == decimals)
      return parser_fail(parser, start, "no digit after the point in", NULL, form);
  }
  *whole = scale == 1;
  if (*parser->at != '/')
    return parser_fail(parser, parser->at, "no '/' at", "a '/' and a period", form);
  if (count == 0)
    return parser_fail(parser, start, "the count is zero:", NULL,
                       "write the tokens that come back in a period, above zero");
  int64_t common = spile__gcd(count, scale);
  out->refill_tokens = count / common;
  scale /= common;
  const char *period_start = ++parser->at;
  int64_t period_ms = spile__duration_parse(&parser->at);
  if (period_ms == SPILE__DURATION_TOO_LONG)
    return parser_fail(parser, period_start, "a period of more than ten years:", NULL, "write a shorter one");
  if (period_ms < 0 || (*parser->at != '\0' && *parser->at != ','))
    return parser_fail(parser, period_start, "no unit of time in", "a period",
                       "write a unit (ms, s, m, h, d), with a whole number before it if you like: s, 15m, 1d");
  if (period_ms == 0)
    return parser_fail(parser, period_start, "the period is zero:", NULL, "write a period of at least 1ms");
  if (__builtin_mul_overflow(period_ms, scale, &out->refill_period_ms))
    return parser_fail(parser, start, "the rate is too slow:", NULL, "write a faster one");
  return SPILE_OK;
}

/* Whether the text at `at` starts with `word` and returns what follows it, else NULL. */
static const char *after(const char *at, const char *word) {
  while (*word != '\0') {
    if (*at++ != *word++)
      return NULL;
  }
  return at;
}

/*
 * The value of an option that is one of a few words and may be given once; `parser->at` stands behind it.
 * @return which word, or an error
 */
static int word_parse(limit_parser *parser, const char *start, const char *value, bool *given, const char *const *words,
                      const char *instead) {
  if (*given)
    return parser_fail(parser, start, "a second", NULL, "write it once");
  *given = true;
  for (int i = 0; words[i] != NULL; i++) {
    if (after(value, words[i]) == parser->at)
      return i;
  }
  return parser_fail(parser, value, "unknown word", "a word", instead);
}

/* The words that spile__algorithm_find knows. */
#define ALGORITHMS "token_bucket, leaky_bucket, fixed_window, sliding_window and sliding_log"

static int option_parse(limit_parser *parser, spile__limit_text *out) {
  const char *start = parser->at;
  const char *value;
  size_t len = 0;
  while (start[len] != '\0' && start[len] != ',')
    len++;
  parser->at = start + len;

  if ((value = after(start, "capacity=")) != NULL) {
    if (out->capacity != 0)
      return parser_fail(parser, start, "a second", NULL, "write one capacity");
    const char *end = value;
    bool too_large;
    int64_t capacity = number_parse(&end, &too_large);
    if (capacity < 1 || end != parser->at)
      return parser_fail(parser, value, "no capacity:", "a number of tokens",
                         "write a whole number of tokens from 1 to 2^53 - 1");
    out->capacity = capacity;
    return SPILE_OK;
  }
  if ((value = after(start, "debt=")) != NULL) {
    if (parser->debt_given)
      return parser_fail(parser, start, "a second", NULL, "write one debt");
    parser->debt_given = true;
    const char *end = value;
    bool too_large;
    out->debt = number_parse(&end, &too_large);
    if (out->debt < 0 || end != parser->at)
      return parser_fail(parser, value, "no debt:", "a number of tokens",
                         "write a whole number of tokens from 0 to 2^53 - 1");
    return SPILE_OK;
  }
  if ((value = after(start, "name=")) != NULL) {
    if (out->name != NULL)
      return parser_fail(parser, start, "a second", NULL, "write one name");
    out->name = value;
    out->name_len = (size_t)(parser->at - value);
    if (out->name_len < 1 || out->name_len > SPILE_NAME_LEN_MAX)
      return parser_fail(parser, value, "a name is 1 to 255 bytes:", "a name", "write one of 1 to 255 bytes, or none");
    return SPILE_OK;
  }
  if ((value = after(start, "on_full=")) != NULL) {
    static const char *const words[] = {"closed", "open", "fail", NULL};
    int word = word_parse(parser, start, value, &parser->on_full_given, words, "write closed, open or fail");
    out->on_full = word < 0 ? out->on_full : (spile_on_full)word;
    return word < 0 ? word : SPILE_OK;
  }
  if ((value = after(start, "on_store_error=")) != NULL) {
    static const char *const words[] = {"fail", "open", "closed", NULL};
    int word = word_parse(parser, start, value, &parser->on_store_error_given, words, "write fail, open or closed");
    out->on_store_error = word < 0 ? out->on_store_error : (spile_on_store_error)(word + 1);
    return word < 0 ? word : SPILE_OK;
  }
  if (spile__algorithm_find(start, len, &out->algorithm)) {
    if (parser->algorithm_given)
      return parser_fail(parser, start, "a second algorithm:", NULL, "write one");
    parser->algorithm_given = true;
    return SPILE_OK;
  }
  return parser_fail(parser, start, "unknown option", "an option",
                     "known are capacity=, debt=, name=, on_full=, on_store_error= and the algorithms " ALGORITHMS);
}

int spile__limit_parse(spile__limit_text *out, const char *text, spile_error *error) {
  *out = (spile__limit_text){.algorithm = SPILE_TOKEN_BUCKET, .on_full = SPILE_ON_FULL_CLOSED};
  limit_parser parser = {.text = text, .at = text, .error = error};
  bool whole = true;
  int result = rate_parse(&parser, out, &whole);
  while (result == SPILE_OK && *parser.at == ',') {
    parser.at++;
    result = option_parse(&parser, out);
  }
  if (result != SPILE_OK)
    return result;
  if (spile__algorithm_get(out->algorithm)->window && !whole)
    return parser_fail(&parser, text, "a window counts whole tokens:", NULL, "write COUNT/WINDOW, such as 5/5m");
  if (out->capacity == 0 && !whole)
    return parser_fail(&parser, text, "a decimal rate has no capacity of its own:", NULL, "add ,capacity=TOKENS");
  if (out->capacity == 0)
    out->capacity = out->refill_tokens;
  return SPILE_OK;
}
