/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose an API key is, and at which tier: looked up in a file and remembered for a while, since asking for every
 * request would cost more than the limiter does.
 */
#ifndef EXAMPLE_HTTP_ACCOUNTS_H
#define EXAMPLE_HTTP_ACCOUNTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct account {
  char key[65]; /* "": an empty slot */
  bool exists;
  char tenant[65];
  char tier[33];
  int64_t until_s; /* remembered so long, on the monotonic clock */
} account;

/*
 * Once, before anything is looked up. `file` has a line for each account: KEY TENANT TIER. NULL: there are none.
 * @return false: it cannot be read; errno says why
 */
bool accounts_init(const char *file, long remember_s);

/* @return whether the key belongs to an account; NULL does not. Any thread. */
bool account_find(account *out, const char *key);

#endif
