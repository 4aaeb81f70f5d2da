/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which store the command works on, and what a failing one means for the exit status.
 *
 * An address is never printed, since it may hold a password.
 */
#ifndef SPILE_CLI_STORE_H
#define SPILE_CLI_STORE_H

#include <limits.h>

#include <spile/spile.h>

#include "cli/options.h"

enum { STORE_ADDRESS_SIZE = PATH_MAX * 3 + 8 };

/*
 * Which store: *uri as it is; NULL: SPILE_STORE of the environment, else LMDB under the user's state directory, which
 * is made and whose address is written to `address`.
 *
 * @return EXIT_ALLOWED; EXIT_USAGE or EXIT_STORE with a message
 */
int store_find(const char **uri, char address[STORE_ADDRESS_SIZE]);

/* Shows the library's warnings and errors as messages. */
void store_log(void *user, spile_log_level level, const char *line);

/* How a store is opened; every zero is the default. */
typedef struct store_settings {
  int64_t timeout_ms;
  spile_on_store_error on_store_error; /* DEFAULT: what each limit says */
  const int64_t *clock;                /* NULL: the store's own time; else the time of every decision, read at each */
  const char *key_prefix;              /* NULL: the library's */
  const char *secret_file;             /* NULL: none */
} store_settings;

/*
 * Opens `uri`, or what store_find says.
 *
 * @return EXIT_ALLOWED; EXIT_USAGE or EXIT_STORE with a message, *out is NULL then
 */
int store_open(spile_limiter **out, const char *uri, const store_settings *settings);

/* Says why a call failed. @return EXIT_STORE, or EXIT_USAGE where the caller is at fault */
int store_failed(int code, int reason, const char *detail);

/*
 * Opens `uri` for decisions at given times, apart from all real buckets. "memory:" gets room for all of `buckets`, so
 * that no bucket of the input is left out.
 *
 * @param uri  NULL: "memory:"
 */
int store_open_simulated(spile_limiter **out, const char *uri, int64_t timeout_ms, const int64_t *clock,
                         uint64_t buckets);

/*
 * How many keys' room a bucket of a limit may take in a memory store, however much is taken of it: a sliding_log grows
 * with it, and the store has lines for 14 entries a key.
 */
uint64_t store_keys_of(const spile_limit *limit);

/* How many keys a memory store has to be opened for, so that so many keys under every --limit find room. */
uint64_t store_keys_needed(const cli_options *options, uint64_t keys);

/* Whether `uri` is the memory store that store_open_simulated sizes. */
bool store_is_sized(const char *uri);

#endif
