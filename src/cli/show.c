/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile show: the buckets a store holds, one a line. A bucket that is full again may still be there or not; it means
 * nothing either way.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/limits_file.h"
#include "cli/output.h"
#include "cli/store.h"
#include "cli/verbs.h"
#include "core/checked.h"

typedef struct show_walk {
  bool json;
  const char *key; /* NULL: all */
  size_t key_len;
  uint64_t hashed; /* buckets of unknown keys that were passed over */
} show_walk;

/* The rate as --limit takes it, with the largest unit that is exact: "1/200ms,capacity=5". */
static void shape_print(const spile_stored *stored) {
  static const struct {
    const char *unit;
    int64_t ms;
  } units[] = {{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
  size_t i = 0;
  while (stored->refill_period_ms % units[i].ms != 0)
    i++;
  int64_t count = stored->refill_period_ms / units[i].ms;
  output("%" PRId64 "/", stored->refill_tokens);
  if (count != 1)
    output("%" PRId64, count);
  output("%s", units[i].unit);
  /* The count of a window is its capacity. */
  if (strstr(stored->algorithm, "_bucket") != NULL)
    output(",capacity=%" PRId64, stored->capacity);
  if (strcmp(stored->algorithm, "token_bucket") != 0)
    output(",%s", stored->algorithm);
}

/* Below zero there is more to come back than the capacity C, for which N tokens in P milliseconds take ⌈C·P/N⌉. */
static bool is_below_zero(const spile_stored *stored) {
  return strstr(stored->algorithm, "_bucket") != NULL &&
         stored->reset_after_ms >
             spile__div_ceil(spile__mul_saturate(stored->capacity, stored->refill_period_ms), stored->refill_tokens);
}

static void stored_print(const spile_stored *stored) {
  if (stored->key != NULL)
    output_escaped(stored->key, stored->key_len);
  else
    output("(long key, hashed)");
  output("\t");
  if (stored->name != NULL)
    output_escaped(stored->name, stored->name_len);
  else
    output("(hashed)");
  output("\t");
  shape_print(stored);
  output("\t%" PRId64 " left, %s", stored->remaining, is_below_zero(stored) ? "below zero, " : "");
  if (stored->reset_after_ms == 0) {
    output("full");
  } else {
    output("full in ");
    output_duration(stored->reset_after_ms);
  }
  output(stored->simulated ? "\tsimulated\n" : "\n");
}

static void stored_print_json(const spile_stored *stored) {
  output("{");
  if (stored->key != NULL)
    output_json_member("key", stored->key, stored->key_len);
  else
    output("\"key\":null");
  output(",");
  if (stored->name != NULL)
    output_json_member("limit", stored->name, stored->name_len);
  else
    output("\"limit\":null");
  output(",\"hashed\":%s,\"algorithm\":\"%s\"", stored->key == NULL ? "true" : "false", stored->algorithm);
  output(",\"capacity\":%" PRId64 ",\"refill_tokens\":%" PRId64 ",\"refill_period_ms\":%" PRId64, stored->capacity,
         stored->refill_tokens, stored->refill_period_ms);
  output(",\"remaining\":%" PRId64 ",\"reset_after_ms\":%" PRId64 ",\"simulated\":%s}\n", stored->remaining,
         stored->reset_after_ms, stored->simulated ? "true" : "false");
}

static bool show_visit(void *user, const spile_stored *stored) {
  show_walk *walk = user;
  if (walk->key != NULL && stored->key == NULL) {
    walk->hashed++;
    return true;
  }
  if (walk->key != NULL && (walk->key_len != stored->key_len || memcmp(walk->key, stored->key, walk->key_len) != 0))
    return true;
  if (walk->json)
    stored_print_json(stored);
  else
    stored_print(stored);
  return !output_failed();
}

/* Opens the store under the prefix that the command line or its limits file gives. @return as store_open */
static int show_open(spile_limiter **out, const cli_options *options) {
  store_settings settings = {.timeout_ms = options->timeout_ms, .key_prefix = options->key_prefix};
  if (!(options->given & OPTION_LIMITS))
    return store_open(out, options->store, &settings);
  spile_limits *limits;
  int status = limits_file_load(&limits, options);
  if (status != EXIT_ALLOWED)
    return status;
  settings.key_prefix = key_prefix_find(options, limits);
  status = store_open(out, options->store, &settings);
  spile_limits_unref(limits);
  return status;
}

int show_run(const cli_options *options) {
  if (options->argument_count > 1)
    return message(EXIT_USAGE, "show takes one KEY at most; see spile show --help");
  show_walk walk = {.json = options->given & OPTION_JSON};
  if (options->argument_count == 1) {
    walk.key = options->arguments[0];
    walk.key_len = strlen(walk.key);
    if (walk.key_len < 1 || walk.key_len > SPILE_KEY_LEN_MAX)
      return message(EXIT_USAGE, "KEY has %zu bytes; it must have 1 to %d", walk.key_len, SPILE_KEY_LEN_MAX);
  }
  spile_limiter *limiter;
  int status = show_open(&limiter, options);
  if (status != EXIT_ALLOWED)
    return status;
  spile_error error = {0};
  int result = spile_each(limiter, show_visit, &walk, &error);
  spile_close(limiter);
  if (result != SPILE_OK)
    return store_failed(result, error.reason, error.message);
  if (walk.hashed > 0)
    (void)message(0, "%" PRIu64 " buckets of long keys are stored as hashes and were not compared with KEY; use peek",
                  walk.hashed);
  return EXIT_ALLOWED;
}
