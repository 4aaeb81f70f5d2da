/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests that run the command once and look at what it did: the last run, and what is expected of it.
 */
#ifndef SPILE_TESTS_COMMAND_RUN_H
#define SPILE_TESTS_COMMAND_RUN_H

#include "run_command.h"

extern run_result run;

/* Runs the command; `env` and `input` as in run_options. */
void run_with(const char *const *args, const char *const *env, const char *input);

#define RUN(...) run_with(ARGS(__VA_ARGS__), NULL, NULL)
#define RUN_INPUT(text, ...) run_with(ARGS(__VA_ARGS__), NULL, text)

/* The .fini of a suite. */
void run_finish(void);

void expect_status(int status);
void expect_out(const char *text);
void expect_contains(const char *text, const char *part);

/* Usage and store errors: nothing that could be taken for an answer, and one line of the command's that says why. */
void expect_failure(int status, const char *message);

/* The same where the reason may take several lines, as the faults of a file do. */
void expect_refusal(int status, const char *message);

/* The path of tests/data/`name`; lives until the next call but one. */
const char *data_path(const char *name);

/* A file in the run's directory with this text; its path lives until the next call. */
const char *own_file(const char *name, const char *text);

#endif
