/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asking by a limits file: from a route's entry and a caller to one decision.
 */
#ifndef SPILE_LIMITS_ASK_H
#define SPILE_LIMITS_ASK_H

#include <spile/sys/store.h>

#include "limits/limits.h"

/* What becomes of a limit in force whose subject the caller does not have. */
typedef enum spile__no_subject {
  SPILE__NO_SUBJECT_FAILS = 1, /* the call is SPILE_ENOSUBJECT */
  SPILE__NO_SUBJECT_LEFT_OUT,  /* the limit is left out, for somebody who knows a part of the caller only */
  SPILE__NO_SUBJECT_BY_POLICY, /* as if its store could not answer: left out when open, denied when closed, else fails
                                */
} spile__no_subject;

/*
 * Decides a request by the entry that was found for it.
 *
 * The keys of one request lie on the stack where 1 KiB has room for them, else in memory of the limiter's allocator; so
 * a call needs little stack.
 *
 * @return as spile_limits_take
 */
int spile__limits_ask(spile_limiter *limiter, const spile_route *route, const spile_caller *caller, int64_t cost,
                      spile_verb verb, spile__no_subject no_subject, spile_ruling *ruling);

/* The same for a request that is to be found first. */
int spile__limits_ask_for(spile_limiter *limiter, const spile_limits *limits, const char *method, const char *path,
                          const spile_caller *caller, int64_t cost, spile_verb verb, spile__no_subject no_subject,
                          spile_ruling *ruling);

#endif
