/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of a limit as its callers meet them: whole requests instead of tokens.
 */
#ifndef SPILE_CLI_ALLOWANCE_H
#define SPILE_CLI_ALLOWANCE_H

#include <spile/sys/store.h>

#include "limits/limits.h"

/* What a limit lets pass, in requests. */
typedef struct allowance {
  int64_t burst;        /* at once */
  int64_t count;        /* steadily so many … */
  int64_t period_ms;    /* … in this time */
  int64_t first_minute; /* at most */
  bool window;          /* counts in windows, and does not refill */
  bool meets;           /* more than one of its windows may be met in a minute, though none is that short */
  bool spaced;          /* tells how long to hold back what it admits */
} allowance;

allowance allowance_of(const spile__route_limit *limit);

#endif
