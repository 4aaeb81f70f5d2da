/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subject of a limit: the text that says whose bucket it is, such as "tenant=acme". It is the key that stores see;
 * what they add to it (a prefix, a limit's name, braces) is their own work.
 */
#ifndef SPILE_LIMITS_SUBJECT_H
#define SPILE_LIMITS_SUBJECT_H

#include "limiter/secret.h"
#include "limits/limits.h"

typedef struct spile__subject_rules {
  const spile__secret *secret;
  unsigned ipv6_prefix;
} spile__subject_rules;

/*
 * Makes the subject of the first part of a chain that the caller has.
 *
 * @param route  the text of the route's entry, for chains by route
 * @param out    where it is written, without a NUL; it is whole only when *len ≤ size
 * @param len    bytes that it has or would need, 1 to SPILE_KEY_LEN_MAX
 * @return SPILE_OK; SPILE_ENOSUBJECT, the caller has none of the parts; SPILE_ECONFIG, a hash is needed and no secret
 * is set
 */
int spile__subject_make(const spile__key_chain *chain, const spile_caller *caller, const char *route,
                        const spile__subject_rules *rules, char *out, size_t size, size_t *len);

#endif
