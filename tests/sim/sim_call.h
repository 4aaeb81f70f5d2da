/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of a client, and what became of it: what the client asked, what the server did, which bytes came back. The
 * world fills it in, the oracles judge by it. A request may reach the server long after its call ended.
 */
#ifndef SPILE_TESTS_SIM_CALL_H
#define SPILE_TESTS_SIM_CALL_H

#include <spile/sys/store.h>

#include "model.h"

#define SIM_ITEMS_MAX 3

typedef struct sim_item {
  size_t bucket; /* number of the bucket */
  model_limit limit;
  int64_t cost;
} sim_item;

typedef enum sim_verb { SIM_TAKE, SIM_PEEK, SIM_CLEAR } sim_verb;

typedef struct sim_call {
  uint64_t number; /* counts up from 1 */
  sim_verb verb;   /* what the store is asked: what can never be is only read */
  bool take;       /* asked by spile_take */
  size_t n;
  sim_item items[SIM_ITEMS_MAX];
  bool running;
  int refs; /* bytes of it that are under way */

  /* The truth. */
  int served;           /* how often the server ran it */
  bool charged;         /* the last time it was charged … */
  int64_t served_ms;    /* … at this time of the server's clock … */
  uint64_t epoch;       /* … before or after which losses of state */
  size_t answer_len;    /* bytes of the server's replies to it that were not tampered with */
  size_t answer_taken;  /* … of these, those that the client read */
  size_t foreign_taken; /* bytes it read that were no reply to it */
  bool lied;            /* of these, some that no client can tell from its own */

  /* What is known outside. */
  bool imagined;       /* the possible worlds have it executed or not */
  bool told_uncharged; /* the client said that nothing was charged */
} sim_call;

#endif
