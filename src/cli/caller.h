/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KEY where a limits file says what a key is: "tenant=acme,ip=203.0.113.9", or one bare name.
 */
#ifndef SPILE_CLI_CALLER_H
#define SPILE_CLI_CALLER_H

#include <spile/limits.h>

enum { CALLER_HEADERS_MAX = 16 };

typedef struct cli_caller {
  spile_caller caller; /* what to ask with; points into this struct, which therefore stays where it is */
  size_t header_count;
  struct {
    const char *name;
    const char *value;
  } headers[CALLER_HEADERS_MAX];
  char text[SPILE_KEY_LEN_MAX + 1]; /* the pieces of KEY, each ended by a NUL */
} cli_caller;

/*
 * Reads KEY: one or more KIND=VALUE with commas between, a kind being tenant, user, api_key, ip or header:NAME, or,
 * without any '=', the value of the first kind of every chain. In a VALUE, ',' '=' and '%' are %2C %3D %25. An ip has
 * to be an address: one that is mistyped would meet other buckets unseen.
 *
 * @return EXIT_ALLOWED, or EXIT_USAGE with a message, which never shows a value: it may be an API key
 */
int caller_parse(cli_caller *out, const char *key);

#endif
