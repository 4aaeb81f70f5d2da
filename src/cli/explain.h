/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limits file in words that need no knowledge of buckets: how many requests pass at once, how many steadily, how many
 * in the first minute, and whose they are.
 */
#ifndef SPILE_CLI_EXPLAIN_H
#define SPILE_CLI_EXPLAIN_H

#include "cli/allowance.h"
#include "limits/limits.h"

/* "10 requests a second", "1 request every 2 s": several by the shortest unit that has a whole number, else as it is.
 */
void explain_put_rate(const allowance *a);

/* "tenant, else user, else client address"; what all share says so. `put_name` prints the name of a header. */
typedef void explain_name_put(const char *name);
void explain_put_chain(const spile__key_chain *chain, explain_name_put *put_name);

/* An entry that has the limits of every request, as any has that is not blocked; NULL: there is none. */
const spile_route *explain_route_with_always(const spile_limits *limits);

/* The tier whose entry a route is; of NULL the base's. */
const spile__tier *explain_tier_of(const spile_limits *limits, const spile_route *route);

/* What a request of a route meets, in sentences. `asked` is the route as the user wrote it, `tier` may be NULL. */
void explain_route(const spile_limits *limits, const spile_route *route, const char *asked, const char *tier);

/* Every entry in a line or a few. */
void explain_all(const spile_limits *limits);

/* A table in Markdown of what callers may do. Shadow limits are no part of it. */
void explain_markdown(const spile_limits *limits);

/* One entry as a JSON object in a line, and every entry. */
void explain_json_route(const spile_limits *limits, const spile_route *route);
void explain_json(const spile_limits *limits);

#endif
