/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told of a take once it is decided: the counters of its limits, the hooks, a line about a denial.
 */
#ifndef SPILE_LIMITER_WATCH_H
#define SPILE_LIMITER_WATCH_H

#include "limiter/metrics.h"

typedef struct spile__watch spile__watch;

/* What is known of a take besides its requests. */
typedef struct spile__about {
  const char *route; /* the entry of a limits file; NULL: none */
  bool shadow;       /* of a shadow limit: counted apart, and no hook */
  /* Why no store can be asked, so that the limits decide as of a store that does not answer; NULL: nothing. The keys of
   * the requests are then nobody's. */
  const spile_error *failure;
} spile__about;

/* A take that is decided. */
typedef struct spile__taken {
  const spile_item *items;
  size_t n;
  int result;
  const spile_decision *decision;
  size_t deciding;            /* the item that decided */
  const spile_decision *each; /* of each item */
  const spile__about *about;
} spile__taken;

/*
 * @param out  NULL when the options ask for nothing that is told
 * @param env  outlives it
 * @return SPILE_OK; SPILE_EINVAL, an option is out of range; SPILE_ENOMEM; SPILE_EUNAVAILABLE, no random numbers
 */
int spile__watch_open(spile__watch **out, const spile_options *options, const spile_env *env, spile_error *error);

/* NULL is fine. */
void spile__watch_close(spile__watch *watch);

/* NULL when there are none; watch may be NULL. */
spile__metrics *spile__watch_metrics(spile__watch *watch);

/* Hooks are called in here: no lock may be held. */
void spile__watch_taken(spile__watch *watch, const spile__taken *taken);

/* Tells a denial for which no store was asked, and so without a key: the caller has none for the limit that denies, or
 * the entry is "blocked"; it is counted already. watch may be NULL. As spile__watch_taken, hooks are called. */
void spile__watch_keyless(spile__watch *watch, const char *limit, const char *route, const spile_decision *decision);

#endif
