/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limits file of the command line: loading it, telling what is wrong with it, and what of it the command needs.
 */
#ifndef SPILE_CLI_LIMITS_FILE_H
#define SPILE_CLI_LIMITS_FILE_H

#include "cli/options.h"
#include "limits/limits.h"

/* FILE:LINE:COLUMN: PATH: WHAT; ADVICE, as compilers do, so that editors find the place. */
void fault_print(const spile_fault *fault);

/* Whether the file has a tier of this name; NULL is none. @return EXIT_ALLOWED, or EXIT_USAGE with the nearest name */
int tier_check(const spile_limits *limits, const char *tier);

/*
 * Whether --limits, --limit, --route and --tier go together.
 * @param route  whether --limits needs a --route; else there is none
 */
int limits_options_check(const cli_options *options, const char *verb, bool route);

/*
 * Loads the file of --limits, whose --tier has to be in it. Errors are told as check tells them; its warnings are
 * check's alone, for a command that runs often would repeat them. A --timeout wins over the file's.
 *
 * @return EXIT_ALLOWED; EXIT_USAGE or EXIT_STORE with messages, *out is NULL then
 */
int limits_file_load(spile_limits **out, const cli_options *options);

/* What keys begin with: --key-prefix, else what the file says; NULL: neither. */
const char *key_prefix_find(const cli_options *options, const spile_limits *limits);

/* The file that SPILE_SECRET_FILE names, or NULL. */
const char *secret_file_find(void);

/* METHOD PATH in any spelling, or the word for what has no entry: a mistyped route is not to meet `default` unseen. */
bool is_route(const char *route);

#endif
