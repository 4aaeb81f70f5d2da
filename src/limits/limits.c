/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loaded limits file as those who ask see it: its owners, and the entry of a request.
 */
#include "limits/limits.h"

#include <stdlib.h>
#include <string.h>

#include "limiter/limit.h"

/* ---- Owners ---- */

void spile__limits_free(spile_limits *limits) {
  for (size_t i = 0; i < limits->made_count; i++)
    spile_limit_unref(limits->made[i]);
  free(limits->made);
  spile__arena_finish(&limits->arena);
  free(limits);
}

void spile__limits_drop_timeouts(spile_limits *limits) {
  for (size_t i = 0; i < limits->made_count; i++)
    limits->made[i]->spec.timeout_ms = 0;
}

spile_limits *spile_limits_ref(spile_limits *limits) {
  if (limits != NULL)
    atomic_fetch_add_explicit(&limits->owners, 1, memory_order_relaxed);
  return limits;
}

void spile_limits_unref(spile_limits *limits) {
  if (limits != NULL && atomic_fetch_sub_explicit(&limits->owners, 1, memory_order_acq_rel) == 1)
    spile__limits_free(limits);
}

const char *spile_limits_key_prefix(const spile_limits *limits) {
  return limits->key_prefix;
}

/* ---- Finding ---- */

static const spile__tier *tier_find(const spile_limits *limits, const char *name) {
  size_t from = 0;
  size_t to = name != NULL ? limits->tier_count : 0;
  while (from < to) {
    size_t middle = from + (to - from) / 2;
    int order = strcmp(limits->tiers[middle].name, name);
    if (order == 0)
      return &limits->tiers[middle];
    if (order < 0)
      from = middle + 1;
    else
      to = middle;
  }
  return NULL;
}

/* The more specific of two entries, either of which may be NULL: the tier's, if they are alike. */
static const spile_route *route_choose(const spile_route *base, int base_rank, const spile_route *tier, int tier_rank) {
  return tier != NULL && tier_rank >= base_rank ? tier : base;
}

/* The entry that is written for this request, or NULL. */
static const spile_route *route_find(const spile_limits *limits, const spile__tier *tier,
                                     const spile__route_text *request) {
  int base_rank;
  int tier_rank = -1;
  const spile_route *in_base = spile__table_exact(&limits->base.table, request, &base_rank);
  const spile_route *in_tier = tier != NULL ? spile__table_exact(&tier->table, request, &tier_rank) : NULL;
  if (in_base != NULL || in_tier != NULL)
    return route_choose(in_base, base_rank, in_tier, tier_rank);
  in_base = spile__table_glob(&limits->base.table, request, &base_rank);
  in_tier = tier != NULL ? spile__table_glob(&tier->table, request, &tier_rank) : NULL;
  return route_choose(in_base, base_rank, in_tier, tier_rank);
}

/*
 * What a request meets that is too long to be compared. Nobody knows which entry is written for it, so it gets by none:
 * as `default` it would be a way round every entry that a longer path would have met.
 */
static const spile_route route_too_long = {.text = "(too long)", .word = SPILE_ROUTE_BLOCKED};

const spile_route *spile_limits_find(const spile_limits *limits, const char *method, const char *path,
                                     const char *tier_name) {
  const spile__tier *tier = tier_find(limits, tier_name);
  const spile_route *route = NULL;
  spile__route_text request;
  spile__spelled spelled = spile__route_spell(&request, method, path, limits->ignore_case);
  if (spelled == SPILE__SPELLED_TOO_LONG)
    return &route_too_long;
  if (spelled == SPILE__SPELLED)
    route = route_find(limits, tier, &request);
  if (route != NULL)
    return route;
  return tier != NULL && tier->fallback != NULL ? tier->fallback : limits->base.fallback;
}

/* ---- Entries ---- */

const char *spile_route_text(const spile_route *route) {
  return route->text;
}

int spile_route_word_of(const spile_route *route) {
  return (int)route->word;
}

size_t spile_route_count(const spile_route *route) {
  return route->n;
}

const spile_limit *spile_route_limit(const spile_route *route, size_t index, int64_t *cost, bool *shadow) {
  if (index >= route->n)
    return NULL;
  if (cost != NULL)
    *cost = route->limits[index].cost;
  if (shadow != NULL)
    *shadow = route->limits[index].shadow;
  return route->limits[index].limit;
}
