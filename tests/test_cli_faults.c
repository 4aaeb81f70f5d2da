/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What spile check says of files with many faults, or with names that no terminal should see.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(cli_faults, .fini = run_finish);

#define UE "\xc3\xbc"
#define EURO "\xe2\x82\xac"

/* ---- Names ---- */

Test(cli_faults, programs_get_the_names_that_the_file_has) {
  const char *path =
      own_file("own.json", "{\"limits\":{\"default\":\"unlimited\",\"GET /" UE "\\\\x\\\"\":{\"capacity\":0,"
                           "\"refill\":\"" EURO "\\u001b\"}}}");
  RUN("check", path, "--json");
  expect_status(2);
  expect_contains(run.out, "\"path\":\"limits[\\\"GET /" UE "\\\\x\\\"\\\"].capacity\",\"what\":\"0 is too small\"");
  expect_contains(run.out, "\"what\":\"\\\"" EURO "\\u001b\\\" is no rate: no count at \\\"" EURO "\\u001b\\\"\"");
  cr_assert(strstr(run.out, "_encoding") == NULL, "%s", run.out);
  RUN("check", path);
  expect_contains(run.err, "limits[\"GET /\\xc3\\xbc\\x5cx\\x22\"].capacity: 0 is too small");
}

Test(cli_faults, what_is_cut_is_cut_between_characters) {
  RUN("check", own_file("own.json", "{\"limits\":{\"default\":\"a" UE UE UE UE UE UE UE UE UE UE UE UE UE UE "\"}}"),
      "--json");
  expect_contains(run.out, "\\\"a" UE UE UE UE UE UE UE UE UE UE UE "\\\"...");
  cr_assert(strstr(run.out, "_encoding") == NULL, "%s", run.out);
}

Test(cli_faults, what_only_looks_like_an_escape_is_none) {
  RUN("check", own_file("own.json", "{\"a\\\\xfc\\q\":1}"), "--json");
  expect_contains(run.out, "\"what\":\"invalid escape near '\\\"a\\\\\\\\xfc\\\\q'\"");
}

/* ---- Numbers ---- */

static char *many_errors(int n) {
  char *text = calloc((size_t)n + 2, 60);
  cr_assert(text != NULL);
  char *at =
      text + snprintf(text, 60 * (size_t)n, "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"");
  for (int i = 0; i < n; i++)
    at += snprintf(at, 60, ",\"GET /%d\":{\"capacity\":0,\"refill\":\"1/s\"}", i);
  (void)snprintf(at, 60, "}}");
  return text;
}

Test(cli_faults, errors_that_are_not_shown_are_counted) {
  char *text = many_errors(3000);
  const char *path = own_file("own.json", text);
  RUN("check", path);
  expect_status(2);
  expect_contains(run.err, ": 2000 more errors are not shown; correct these first\nspile: 3000 errors\n");
  RUN("take", "ip=::1", "--limits", path, "--route", "GET /", "--store", "memory:");
  expect_refusal(2, "\nspile: 3000 errors\n");
  free(text);
}
