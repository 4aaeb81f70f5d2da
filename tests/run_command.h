/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the command spile that the build made (its path is in SPILE_COMMAND) and tells what it did.
 *
 * Every run sees the environment of the test without SPILE_STORE and XDG_STATE_HOME, with HOME in the test's own
 * directory, so that no store of the person who runs the tests is touched.
 */
#ifndef SPILE_TESTS_RUN_COMMAND_H
#define SPILE_TESTS_RUN_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct run_options {
  const char *const *args; /* without the command's name, up to NULL */
  const char *const *env;  /* NAME=VALUE up to NULL; may be NULL */
  const char *input;       /* standard input; NULL: empty */
  const char *output_path; /* standard output goes there instead of into the result … */
  int output_fd;           /* … or here, when above 0 */
  bool output_closed;      /* standard output is no open file at all */
} run_options;

typedef struct run_result {
  int status; /* the exit status; 128 + the signal for a command that one killed */
  char *out;  /* NUL-terminated; both are freed by run_result_finish */
  char *err;
  size_t out_len;
} run_result;

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

void run_command(run_result *out, const run_options *options);
void run_result_finish(run_result *result);

/* A command that is still running: `input` is where it reads from, `output` where its result comes out. */
typedef struct running_command {
  pid_t pid;
  int input;
  int output;
} running_command;

void run_start(running_command *out, const run_options *options);
/* Waits for its end. @return as run_result.status */
int run_wait(running_command *running);

/* A new empty directory, the same for the whole test. Removed by run_directory_remove. */
const char *run_directory(void);
void run_directory_remove(void);

#endif
