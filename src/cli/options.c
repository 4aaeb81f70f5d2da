/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/options.h"

#include <inttypes.h>
#include <string.h>

#include <spile/sys/store.h>

#include "cli/output.h"
#include "core/nearest.h"
#include "limiter/limiter.h"

enum { TIMEOUT_DEFAULT_MS = 1000, TIMEOUT_MAX_MS = 3600000, TOP_DEFAULT = 10, TOP_MAX = 1000 };

typedef enum option_value { VALUE_NONE, VALUE_NEEDED, VALUE_OPTIONAL } option_value;

static const struct {
  const char *name;
  cli_option option;
  option_value value;
} option_table[] = {
    {"store", OPTION_STORE, VALUE_NEEDED},       {"limit", OPTION_LIMIT, VALUE_NEEDED},
    {"cost", OPTION_COST, VALUE_NEEDED},         {"wait", OPTION_WAIT, VALUE_OPTIONAL},
    {"timeout", OPTION_TIMEOUT, VALUE_NEEDED},   {"json", OPTION_JSON, VALUE_NONE},
    {"simulated", OPTION_SIMULATED, VALUE_NONE}, {"by", OPTION_BY, VALUE_NEEDED},
    {"help", OPTION_HELP, VALUE_NONE},           {"on-error", OPTION_ON_ERROR, VALUE_NEEDED},
    {"fields", OPTION_FIELDS, VALUE_NEEDED},     {"top", OPTION_TOP, VALUE_NEEDED},
    {"explain", OPTION_EXPLAIN, VALUE_NEEDED},   {"tier", OPTION_TIER, VALUE_NEEDED},
    {"markdown", OPTION_MARKDOWN, VALUE_NONE},   {"limits", OPTION_LIMITS, VALUE_NEEDED},
    {"route", OPTION_ROUTE, VALUE_NEEDED},       {"key-prefix", OPTION_KEY_PREFIX, VALUE_NEEDED},
};

enum { OPTION_COUNT = sizeof(option_table) / sizeof(option_table[0]) };

/* ---- Names ---- */

const char *nearest_name(const char *word, size_t word_len, const char *const *names, size_t n) {
  return spile__nearest(word, word_len, names, n, NULL);
}

bool is_showable(const char *word, size_t len) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
  return len <= SPILE__NEAREST_LEN_MAX && strspn(word, letters) >= len;
}

/* ---- Values ---- */

bool number_parse(const char *text, size_t len, int64_t max, int64_t *out) {
  int64_t number = 0;
  for (size_t i = 0; i < len; i++) {
    if (text[i] < '0' || text[i] > '9')
      return false;
    int64_t digit = text[i] - '0';
    /* number·10 + digit ≤ max, asked without leaving int64_t. */
    if (number > (max - digit) / 10)
      return false;
    number = number * 10 + digit;
  }
  *out = number;
  return len > 0;
}

/* A whole number and ms, s, m, h or d, at most ten years. */
static bool duration_parse(const char *text, int64_t *out) {
  static const struct {
    const char *unit;
    int64_t ms;
  } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
  size_t digits = strspn(text, "0123456789");
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
    if (strcmp(text + digits, units[i].unit) != 0)
      continue;
    if (!number_parse(text, digits, INT64_C(315360000000) / units[i].ms, out))
      return false;
    *out *= units[i].ms;
    return true;
  }
  return false;
}

/* Whether two limits of one name are two sets of numbers for one bucket; another algorithm is another bucket. */
static bool numbers_differ(const spile_spec *a, const spile_spec *b) {
  return a->algorithm == b->algorithm &&
         (a->shape.capacity != b->shape.capacity || a->shape.refill != b->shape.refill ||
          a->shape.period_ms != b->shape.period_ms || a->shape.debt != b->shape.debt);
}

static int limit_add(cli_options *out, const char *text) {
  if (out->limit_count == SPILE_REQUESTS_MAX)
    return message(EXIT_USAGE, "more than %d limits; write fewer --limit", SPILE_REQUESTS_MAX);
  spile_error error = {0};
  spile_limit *limit;
  int result = spile_limit_parse(&limit, text, &error);
  if (result != SPILE_OK)
    return message(result == SPILE_ENOMEM ? EXIT_STORE : EXIT_USAGE, "--limit: %s", error.message);
  out->limits[out->limit_count++] = limit;
  for (size_t i = 0; i + 1 < out->limit_count; i++) {
    if (strcmp(spile_limit_name(out->limits[i]), spile_limit_name(limit)) == 0 &&
        numbers_differ(spile_limit_spec(out->limits[i]), spile_limit_spec(limit)))
      return message(EXIT_USAGE, "two limits of different numbers have the name %s; add ,name=NAME to one of them",
                     spile_limit_name(limit));
  }
  return EXIT_ALLOWED;
}

static int on_error_parse(cli_options *out, const char *value) {
  static const struct {
    const char *word;
    spile_on_store_error policy;
  } policies[] = {{"fail", SPILE_ON_STORE_ERROR_FAIL},
                  {"open", SPILE_ON_STORE_ERROR_OPEN},
                  {"closed", SPILE_ON_STORE_ERROR_CLOSED}};
  for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
    if (strcmp(value, policies[i].word) == 0) {
      out->on_store_error = policies[i].policy;
      return EXIT_ALLOWED;
    }
  }
  return message(EXIT_USAGE, "--on-error is none of fail, open and closed; write one of them");
}

static int option_take(cli_options *out, cli_option option, const char *value) {
  switch (option) {
  case OPTION_STORE:
    out->store = value;
    return EXIT_ALLOWED;
  case OPTION_LIMIT:
    return limit_add(out, value);
  case OPTION_COST:
    if (!number_parse(value, strlen(value), COST_MAX, &out->cost))
      return message(EXIT_USAGE, "--cost is not a number of tokens; write a whole number from 0 to %" PRId64, COST_MAX);
    return EXIT_ALLOWED;
  case OPTION_WAIT:
    if (value != NULL && !duration_parse(value, &out->wait_max_ms))
      return message(EXIT_USAGE, "--wait is not a duration of at most ten years; write a whole number and ms, s, m, h "
                                 "or d, such as 500ms or 2s");
    return EXIT_ALLOWED;
  case OPTION_TIMEOUT:
    if (!number_parse(value, strlen(value), TIMEOUT_MAX_MS, &out->timeout_ms) || out->timeout_ms == 0)
      return message(EXIT_USAGE, "--timeout is not a number of milliseconds; write a whole number from 1 to %d",
                     TIMEOUT_MAX_MS);
    return EXIT_ALLOWED;
  case OPTION_BY:
    out->by_route = strcmp(value, "route") == 0;
    if (!out->by_route && strcmp(value, "ip") != 0)
      return message(EXIT_USAGE, "--by is neither ip nor route; write one of them");
    return EXIT_ALLOWED;
  case OPTION_FIELDS:
    out->fields = value;
    return EXIT_ALLOWED;
  case OPTION_TOP:
    if (!number_parse(value, strlen(value), TOP_MAX, &out->top_count))
      return message(EXIT_USAGE, "--top is not a number of rows; write a whole number from 0 to %d", TOP_MAX);
    return EXIT_ALLOWED;
  case OPTION_ON_ERROR:
    return on_error_parse(out, value);
  case OPTION_EXPLAIN:
    out->explain = value;
    return EXIT_ALLOWED;
  case OPTION_TIER:
    out->tier = value;
    return EXIT_ALLOWED;
  case OPTION_LIMITS:
    out->limits_file = value;
    return EXIT_ALLOWED;
  case OPTION_ROUTE:
    out->route = value;
    return EXIT_ALLOWED;
  case OPTION_KEY_PREFIX:
    if (!spile__key_prefix_valid(value, strlen(value)))
      return message(EXIT_USAGE, "--key-prefix is none that keys can have; write " SPILE__KEY_PREFIX_FORM ", such as "
                                 "--key-prefix shop");
    out->key_prefix = value;
    return EXIT_ALLOWED;
  case OPTION_JSON:
  case OPTION_MARKDOWN:
  case OPTION_SIMULATED:
  case OPTION_HELP:
    return EXIT_ALLOWED;
  }
  return EXIT_USAGE;
}

/* ---- The command line ---- */

static int option_unknown(const char *verb, unsigned allowed, const char *dashes, const char *name, size_t name_len) {
  const char *names[OPTION_COUNT];
  size_t n = 0;
  for (size_t i = 0; i < OPTION_COUNT; i++) {
    if (allowed & option_table[i].option)
      names[n++] = option_table[i].name;
  }
  if (!is_showable(name, name_len))
    return message(EXIT_USAGE, "%s has no such option; see spile %s --help", verb, verb);
  size_t distance;
  const char *nearest = spile__nearest(name, name_len, names, n, &distance);
  if (distance > 1 + name_len / 2)
    return message(EXIT_USAGE, "%s has no option %s%.*s; see spile %s --help", verb, dashes, (int)name_len, name, verb);
  return message(EXIT_USAGE, "%s has no option %s%.*s; the nearest is --%s; see spile %s --help", verb, dashes,
                 (int)name_len, name, nearest, verb);
}

/* Reads the option at argv[*at], which begins with '-', and moves *at to the last word of it. */
static int option_read(cli_options *out, const char *verb, unsigned allowed, int argc, char **argv, int *at) {
  const char *name = argv[*at] + 1;
  bool is_long = *name == '-';
  name += is_long ? 1 : 0;
  const char *value = strchr(name, '=');
  size_t name_len = value != NULL ? (size_t)(value - name) : strlen(name);
  value = value != NULL ? value + 1 : NULL;

  if (!is_long && strcmp(name, "h") == 0) {
    out->given |= OPTION_HELP;
    return EXIT_ALLOWED;
  }
  size_t i = 0;
  while (i < OPTION_COUNT &&
         (strlen(option_table[i].name) != name_len || strncmp(option_table[i].name, name, name_len) != 0))
    i++;
  if (!is_long || i == OPTION_COUNT || !(allowed & option_table[i].option))
    return option_unknown(verb, allowed, is_long ? "--" : "-", name, name_len);
  cli_option option = option_table[i].option;
  if (option_table[i].value == VALUE_NONE && value != NULL)
    return message(EXIT_USAGE, "--%s takes no value; write --%s alone", option_table[i].name, option_table[i].name);
  if (option_table[i].value == VALUE_NEEDED && value == NULL) {
    if (*at + 1 == argc)
      return message(EXIT_USAGE, "--%s needs a value; see spile %s --help", option_table[i].name, verb);
    value = argv[++*at];
  }
  int64_t duration_ms;
  if (option == OPTION_WAIT && value == NULL && *at + 1 < argc && duration_parse(argv[*at + 1], &duration_ms))
    return message(EXIT_USAGE, "--wait takes its value behind '='; write --wait=MAX, or put a KEY that reads like a "
                               "duration before --wait");
  if ((out->given & option) && option != OPTION_LIMIT)
    return message(EXIT_USAGE, "--%s is given twice; write it once", option_table[i].name);
  out->given |= option;
  return option_take(out, option, value);
}

int options_parse(cli_options *out, const char *verb, unsigned allowed, int argc, char **argv) {
  *out = (cli_options){.cost = 1,
                       .wait_max_ms = SPILE_FOREVER,
                       .timeout_ms = TIMEOUT_DEFAULT_MS,
                       .top_count = TOP_DEFAULT,
                       .arguments = argv};
  bool options_end = false;
  for (int at = 0; at < argc; at++) {
    char *word = argv[at];
    if (options_end || word[0] != '-' || word[1] == '\0') {
      argv[out->argument_count++] = word;
    } else if (strcmp(word, "--") == 0) {
      options_end = true;
    } else {
      int status = option_read(out, verb, allowed, argc, argv, &at);
      if (status != EXIT_ALLOWED || (out->given & OPTION_HELP))
        return status;
    }
  }
  return EXIT_ALLOWED;
}

void options_finish(cli_options *options) {
  for (size_t i = 0; i < options->limit_count; i++)
    spile_limit_unref(options->limits[i]);
}
