/* SPDX-License-Identifier: Apache-2.0 */
#include "command_run.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

run_result run;

void run_with(const char *const *args, const char *const *env, const char *input) {
  run_result_finish(&run);
  run_command(&run, &(run_options){.args = args, .env = env, .input = input});
}

void run_finish(void) {
  run_result_finish(&run);
  run = (run_result){0};
  run_directory_remove();
}

void expect_status(int status) {
  cr_assert(run.status == status, "status %d, not %d; out: %s; err: %s", run.status, status, run.out, run.err);
}

void expect_out(const char *text) {
  cr_assert(eq(str, run.out, (char *)(uintptr_t)text), "err: %s", run.err);
}

void expect_contains(const char *text, const char *part) {
  cr_assert(strstr(text, part) != NULL, "\"%s\" is not in: %s", part, text);
}

void expect_refusal(int status, const char *message) {
  expect_status(status);
  expect_out("");
  expect_contains(run.err, message);
}

void expect_failure(int status, const char *message) {
  expect_refusal(status, message);
  cr_assert(strncmp(run.err, "spile: ", 7) == 0, "%s", run.err);
  cr_assert(strchr(run.err, '\n') == run.err + strlen(run.err) - 1, "more than one line: %s", run.err);
}

const char *data_path(const char *name) {
  static char paths[2][4096];
  static size_t turn;
  char *path = paths[turn++ % 2];
  const char *directory = getenv("SPILE_TEST_DATA");
  cr_assert(directory != NULL, "SPILE_TEST_DATA must be the path of the directory tests");
  (void)snprintf(path, sizeof(paths[0]), "%s/data/%s", directory, name);
  return path;
}

const char *own_file(const char *name, const char *text) {
  static char path[4096];
  (void)snprintf(path, sizeof(path), "%s/%s", run_directory(), name);
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
  return path;
}
