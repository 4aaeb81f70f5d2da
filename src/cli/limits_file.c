/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/limits_file.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"

/* ---- What is wrong with it ---- */

void fault_print(const spile_fault *fault) {
  message_plain("%s:%d:%d: %s%s%s%s%s%s", fault->file, fault->line, fault->column,
                fault->level == SPILE_FAULT_WARNING ? "warning: " : "", fault->path, fault->path[0] != '\0' ? ": " : "",
                fault->what, fault->advice[0] != '\0' ? "; " : "", fault->advice);
}

static void error_visit(void *user, const spile_fault *fault) {
  size_t *errors = user;
  if (fault->level == SPILE_FAULT_WARNING)
    return;
  *errors += fault->count;
  fault_print(fault);
}

int tier_check(const spile_limits *limits, const char *tier) {
  enum { NAMES_MAX = 100 };
  const char *names[NAMES_MAX];
  size_t n = 0;
  if (tier == NULL)
    return EXIT_ALLOWED;
  for (size_t i = 0; i < limits->tier_count; i++) {
    if (strcmp(limits->tiers[i].name, tier) == 0)
      return EXIT_ALLOWED;
    if (n < NAMES_MAX)
      names[n++] = limits->tiers[i].name;
  }
  if (n == 0)
    return message(EXIT_USAGE, "the file has no tiers; leave --tier out");
  return message(EXIT_USAGE, "the file has no tier %s; the nearest is %s", tier,
                 nearest_name(tier, strlen(tier), names, n));
}

/* ---- The command line ---- */

bool is_route(const char *route) {
  spile__route_text spelled;
  return strcmp(route, "default") == 0 || spile__route_spell(&spelled, NULL, route, false) != SPILE__SPELLED_NO_ROUTE;
}

int limits_options_check(const cli_options *options, const char *verb, bool route) {
  bool file = options->given & OPTION_LIMITS;
  if (!file && (options->given & (OPTION_ROUTE | OPTION_TIER)))
    return message(EXIT_USAGE, "--route and --tier choose what a limits file says; write --limits FILE as well");
  if (!file && options->limit_count == 0)
    return message(EXIT_USAGE, "%s needs a limit; write --limit TEXT, such as --limit 10/s, or --limits FILE%s", verb,
                   route ? " --route 'METHOD /path'" : "");
  if (file && options->limit_count > 0)
    return message(EXIT_USAGE, "--limits and --limit exclude each other; write the limit into the file");
  if (file && route && options->route == NULL)
    return message(EXIT_USAGE, "--limits needs the route of the request; write --route 'METHOD /path', such as --route "
                               "'POST /search'");
  if (file && route && !is_route(options->route))
    return message(EXIT_USAGE, "--route is not METHOD and PATH; write it as a request has them, "
                               "such as --route 'POST /search'");
  return EXIT_ALLOWED;
}

/* ---- Loading ---- */

int limits_file_load(spile_limits **out, const cli_options *options) {
  size_t errors = 0;
  spile_error error = {0};
  int result = spile_limits_load(out, options->limits_file, error_visit, &errors, &error);
  if (result == SPILE_ENOMEM)
    return message(EXIT_STORE, "%s", error.message);
  if (result == SPILE_ENOTSUP)
    return message(EXIT_USAGE, "%s", error.message);
  if (result != SPILE_OK)
    return errors > 1 ? message(EXIT_USAGE, "%zu errors", errors) : EXIT_USAGE;
  int status = tier_check(*out, options->tier);
  if (status != EXIT_ALLOWED) {
    spile_limits_unref(*out);
    *out = NULL;
    return status;
  }
  if (options->given & OPTION_TIMEOUT)
    spile__limits_drop_timeouts(*out);
  return EXIT_ALLOWED;
}

const char *key_prefix_find(const cli_options *options, const spile_limits *limits) {
  return options->key_prefix != NULL ? options->key_prefix : spile_limits_key_prefix(limits);
}

const char *secret_file_find(void) {
  const char *path = getenv("SPILE_SECRET_FILE");
  return path != NULL && path[0] != '\0' ? path : NULL;
}
