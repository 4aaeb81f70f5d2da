/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits made by hand and put in force on whatever limiter asks.
 */
#ifndef SPILE_TESTS_LIMITS_RIG_H
#define SPILE_TESTS_LIMITS_RIG_H

#include "limits/limits.h"

#define RIG_LIMITS_MAX 20

/* One limit of an entry. */
typedef struct rig_limit {
  const char *limit; /* as spile_limit_parse reads it; its name is the bucket's */
  int64_t cost;      /* 0: 1 */
  bool shadow;
  bool always;
  const char *chain; /* kinds with commas between: "tenant,header:X-Client,ip"; NULL: "ip" */
} rig_limit;

typedef struct rig_route {
  spile_route route;
  spile__route_limit limits[RIG_LIMITS_MAX];
  spile__key_part parts[RIG_LIMITS_MAX][8];
  char headers[RIG_LIMITS_MAX][8][64];
} rig_route;

/* Makes an entry; freed by rig_route_free. */
rig_route *rig_route_new(const char *text, spile_route_word word, const rig_limit *limits, size_t n);
void rig_route_free(rig_route *route);

/*
 * Puts entries in force: the first whose text is "METHOD PATH", else the last. What is skipped is a path "/skipped".
 * Not freed.
 */
spile_limits *rig_in_force(rig_route *const *routes, size_t n);

/* How often limits in force were handed out and not given back. */
int rig_owners(void);

#endif
