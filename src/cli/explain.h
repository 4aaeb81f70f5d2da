/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limits file in words that need no knowledge of buckets: how many requests pass at once, how many steadily, how many
 * in the first minute, and whose they are.
 */
#ifndef SPILE_CLI_EXPLAIN_H
#define SPILE_CLI_EXPLAIN_H

#include "limits/limits.h"

/* The tier whose entry a route is; of NULL the base's. */
const spile__tier *explain_tier_of(const spile_limits *limits, const spile_route *route);

/* What a request of a route meets, in sentences. `asked` is the route as the user wrote it, `tier` may be NULL. */
void explain_route(const spile_limits *limits, const spile_route *route, const char *asked, const char *tier);

/* Every entry in a line or a few. */
void explain_all(const spile_limits *limits);

/* A table in Markdown of what callers may do. Shadow limits are left out. */
void explain_markdown(const spile_limits *limits);

/* One entry as a JSON object in a line, and every entry. */
void explain_json_route(const spile_limits *limits, const spile_route *route);
void explain_json(const spile_limits *limits);

#endif
