/* SPDX-License-Identifier: Apache-2.0 */
/*
 * take, peek, charge, refund and clear where a limits file says which limits a request meets and whose buckets they
 * are.
 */
#ifndef SPILE_CLI_TAKE_FILE_H
#define SPILE_CLI_TAKE_FILE_H

#include <spile/sys/store.h>

#include "cli/options.h"

/* The command line is checked: there is one KEY, and a file with a route. @return the exit status */
int file_ask(const cli_options *options, spile_verb verb);

/*
 * Clears every bucket that a take by this command line would charge or watch, those of limits that all callers share
 * included.
 */
int file_clear(const cli_options *options);

#endif
