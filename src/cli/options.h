/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: which options there are, which verb has which, and what they say.
 *
 * Options may stand before or after the arguments; "--" ends them. Every value is checked here, so that a wrong number
 * is a usage error before any store is touched.
 */
#ifndef SPILE_CLI_OPTIONS_H
#define SPILE_CLI_OPTIONS_H

#include <spile/spile.h>

typedef enum cli_option {
  OPTION_STORE = 1 << 0,
  OPTION_LIMIT = 1 << 1,
  OPTION_COST = 1 << 2,
  OPTION_WAIT = 1 << 3,
  OPTION_TIMEOUT = 1 << 4,
  OPTION_JSON = 1 << 5,
  OPTION_SIMULATED = 1 << 6,
  OPTION_BY = 1 << 7,
  OPTION_HELP = 1 << 8,
  OPTION_ON_ERROR = 1 << 9,
  OPTION_FIELDS = 1 << 10,
  OPTION_TOP = 1 << 11,
  OPTION_EXPLAIN = 1 << 12,
  OPTION_TIER = 1 << 13,
  OPTION_MARKDOWN = 1 << 14,
  OPTION_LIMITS = 1 << 15,
  OPTION_ROUTE = 1 << 16,
  OPTION_KEY_PREFIX = 1 << 17,
} cli_option;

typedef struct cli_options {
  unsigned given; /* cli_option bits */
  const char *store;
  spile_limit *limits[SPILE_REQUESTS_MAX];
  size_t limit_count;
  int64_t cost;
  int64_t wait_max_ms; /* SPILE_FOREVER */
  int64_t timeout_ms;
  spile_on_store_error on_store_error; /* DEFAULT: what each limit says */
  bool by_route;
  const char *fields;  /* as given; NULL */
  int64_t top_count;   /* rows of a table, 0 to 1,000 */
  const char *explain; /* a route */
  const char *tier;
  const char *limits_file;
  const char *route;      /* of the request */
  const char *key_prefix; /* NULL: not given */
  char **arguments;       /* what is not an option */
  size_t argument_count;
} cli_options;

/*
 * Reads the command line of a verb.
 *
 * @param argv     what follows the verb, argc of them; rearranged: arguments first
 * @param allowed  the cli_option bits of the verb
 * @return EXIT_ALLOWED, or EXIT_USAGE with a message. `out` is to be finished on both.
 */
int options_parse(cli_options *out, const char *verb, unsigned allowed, int argc, char **argv);
void options_finish(cli_options *options);

/* The name of `names` that differs least from `word`. */
const char *nearest_name(const char *word, size_t word_len, const char *const *names, size_t n);

/* Whether a word the user typed may be shown: only one that looks like a name, for anything else may hold a secret. */
bool is_showable(const char *word, size_t len);

/* Reads a whole decimal number from 0 to max, digits only and all of them. */
bool number_parse(const char *text, size_t len, int64_t max, int64_t *out);

#define COST_MAX INT64_C(9007199254740991) /* 2^53 - 1, the largest a limit can know */

#endif
