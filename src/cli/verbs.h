/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs of the command. Each takes its read options, prints its result and returns the exit status; writing out
 * what is buffered is main's.
 */
#ifndef SPILE_CLI_VERBS_H
#define SPILE_CLI_VERBS_H

#include "cli/options.h"

int take_run(const cli_options *options);
int peek_run(const cli_options *options);
int charge_run(const cli_options *options);
int refund_run(const cli_options *options);
int clear_run(const cli_options *options);
int simulate_run(const cli_options *options);
int replay_run(const cli_options *options);
int show_run(const cli_options *options);
int repair_run(const cli_options *options);
int check_run(const cli_options *options);

/* Whether there is one KEY and a limit. @return EXIT_ALLOWED, or EXIT_USAGE with a message */
int key_check(const cli_options *options, const char *verb);

/* One request for every --limit, all for one key. @return how many */
size_t requests_make(spile_request *requests, const cli_options *options, const char *key, size_t key_len,
                     int64_t cost);

/* Tells that buckets were cleared. */
void cleared_print(const cli_options *options);

#endif
