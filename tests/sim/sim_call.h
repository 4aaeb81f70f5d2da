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
/* The largest capacity of a sliding log here, and so the most entries. */
#define SIM_LOG_MAX 12
/* A spile_algorithm is below this. */
#define SIM_ALGORITHMS (SPILE_SLIDING_LOG + 1)

typedef struct sim_item {
  size_t bucket; /* number of the bucket */
  model_limit limit;
  int64_t cost; /* of a take up to the least */
} sim_item;

typedef enum sim_verb { SIM_TAKE, SIM_PEEK, SIM_CLEAR, SIM_CHARGE, SIM_REFUND, SIM_TAKE_UP_TO, SIM_VERBS } sim_verb;

/* Whether it asks for tokens, and may be denied them. */
static inline bool sim_verb_takes(sim_verb verb) {
  return verb == SIM_TAKE || verb == SIM_TAKE_UP_TO;
}

/* Whether it pays or gives back, and is not asked. */
static inline bool sim_verb_settles(sim_verb verb) {
  return verb == SIM_CHARGE || verb == SIM_REFUND;
}

typedef struct sim_call {
  uint64_t number; /* counts up from 1 */
  sim_verb verb;   /* what the store is asked: what can never be is only read */
  sim_verb asked;  /* what the limiter is asked */
  size_t n;
  sim_item items[SIM_ITEMS_MAX];
  int64_t most; /* of a take up to */
  bool running;
  int refs; /* bytes of it that are under way */

  /* The truth. */
  int served;           /* how often the server ran it */
  bool charged;         /* the last time it went through: it was charged, or gave back … */
  int64_t served_ms;    /* … at this time of the server's clock … */
  uint64_t epoch;       /* … before or after which losses of state */
  size_t answer_len;    /* bytes of the server's replies to it that were not tampered with */
  size_t answer_taken;  /* … of these, those that the client read */
  size_t foreign_taken; /* bytes it read that were no reply to it */
  bool lied;            /* of these, some that no client can tell from its own */
  bool odd_taken;       /* it read some that no server would have sent */

  /* What is known outside. */
  bool imagined;       /* the possible worlds have it executed or not */
  bool told_uncharged; /* the client said that nothing was charged */
} sim_call;

#endif
