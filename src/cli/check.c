/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile check: every fault of a limits file with its place, and what the file means.
 */
#include <stdio.h>
#include <string.h>

#include "cli/explain.h"
#include "cli/limits_file.h"
#include "cli/output.h"
#include "cli/verbs.h"

typedef struct check {
  bool json;
  size_t errors;
  size_t warnings;
} check;

static int hex_digit(char c) {
  static const char digits[] = "0123456789abcdef";
  const char *at = c != '\0' ? strchr(digits, c) : NULL;
  return at != NULL ? (int)(at - digits) : -1;
}

/*
 * A text of a fault, which has \xNN for every byte that no terminal should see, the backslash among them: JSON has an
 * escape of its own for what needs one, and programs look for the names that the file has.
 */
static void json_put_text(const char *name, const char *text) {
  char bytes[1024];
  size_t n = 0;
  while (*text != '\0' && n < sizeof(bytes)) {
    if (text[0] == '\\' && text[1] == 'x' && hex_digit(text[2]) >= 0 && hex_digit(text[3]) >= 0) {
      bytes[n++] = (char)(hex_digit(text[2]) * 16 + hex_digit(text[3]));
      text += 4;
    } else {
      bytes[n++] = *text++;
    }
  }
  output_json_member(name, bytes, n);
}

static void fault_put_json(const spile_fault *fault) {
  output("{\"level\":\"%s\",", fault->level == SPILE_FAULT_WARNING ? "warning" : "error");
  output_json_member("file", fault->file, strlen(fault->file));
  output(",\"line\":%d,\"column\":%d,", fault->line, fault->column);
  json_put_text("path", fault->path);
  output(",");
  json_put_text("what", fault->what);
  output(",");
  json_put_text("advice", fault->advice);
  output("}\n");
}

static void check_visit(void *user, const spile_fault *fault) {
  check *c = user;
  *(fault->level == SPILE_FAULT_WARNING ? &c->warnings : &c->errors) += fault->count;
  if (c->json)
    fault_put_json(fault);
  else
    fault_print(fault);
}

static int check_show(const spile_limits *limits, const cli_options *options) {
  bool json = options->given & OPTION_JSON;
  if (!(options->given & OPTION_EXPLAIN)) {
    if (options->given & OPTION_MARKDOWN)
      explain_markdown(limits);
    else if (json)
      explain_json(limits);
    else
      explain_all(limits);
    return EXIT_ALLOWED;
  }
  int status = tier_check(limits, options->tier);
  if (status != EXIT_ALLOWED)
    return status;
  const spile_route *route = spile_limits_find(limits, NULL, options->explain, options->tier);
  if (json)
    explain_json_route(limits, route);
  else
    explain_route(limits, route, options->explain, options->tier);
  return EXIT_ALLOWED;
}

int check_run(const cli_options *options) {
  if (options->argument_count != 1)
    return message(EXIT_USAGE, "check takes one FILE; see spile check --help");
  if ((options->given & OPTION_TIER) && !(options->given & OPTION_EXPLAIN))
    return message(EXIT_USAGE, "--tier says for whom to explain a route; write --explain ROUTE as well");
  if ((options->given & OPTION_MARKDOWN) && (options->given & (OPTION_JSON | OPTION_EXPLAIN)))
    return message(EXIT_USAGE, "--markdown prints a table of all; write it without --json and --explain");
  if ((options->given & OPTION_EXPLAIN) && !is_route(options->explain))
    return message(EXIT_USAGE, "--explain is not METHOD and PATH; write it as a request has them, "
                               "such as --explain 'POST /search', or default");

  check c = {.json = options->given & OPTION_JSON};
  spile_error error = {0};
  spile_limits *limits;
  int result = spile_limits_load(&limits, options->arguments[0], check_visit, &c, &error);
  if (result == SPILE_ENOMEM)
    return message(EXIT_STORE, "%s", error.message);
  if (result == SPILE_ENOTSUP)
    return message(EXIT_USAGE, "%s", error.message);
  if (result != SPILE_OK) {
    if (c.errors > 1 && !c.json)
      (void)message(EXIT_USAGE, "%zu errors", c.errors);
    return EXIT_USAGE;
  }
  int status = check_show(limits, options);
  spile_limits_unref(limits);
  return status;
}
