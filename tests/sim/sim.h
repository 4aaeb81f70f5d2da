/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the simulation share.
 *
 *   sim_run.c        runs: what is asked, when, and what goes wrong
 *   sim_clients.c    limiters, their limits and their environment
 *   sim_draw.c       what is asked
 *   sim_calls.c      one call, and whether what it was told may be
 *   sim_tap.c        what the breaker asks the store
 *   sim_worlds.c     the judges that remember: possible worlds …
 *   sim_meter.c      … what was charged …
 *   sim_oracles.c    … and when a breaker may ask
 *   sim_transport.c  the network as the Redis store sees it
 *   sim_world.c      time, events, streams of bytes, and what befalls them
 *   sim_server.c     the server
 *   sim_commands.c   its commands and replies
 *   sim_script.c     its script
 *   sim_faults.c     what may go wrong
 */
#ifndef SPILE_TESTS_SIM_H
#define SPILE_TESTS_SIM_H

#include "sim_oracles.h"
#include "sim_run.h"

#define SIM_CLIENTS_MAX 4
#define SIM_CALLS 256
#define SIM_TEN_YEARS_MS INT64_C(315360000000)

typedef struct sim_limit {
  spile_limit *limit;
  model_limit model;
  int on_store_error;
  int64_t timeout_ms;
} sim_limit;

typedef struct sim_target {
  char key[8];
  size_t key_len;
  sim_limit variants[2]; /* before and after somebody changed the numbers */
  size_t variant;
} sim_target;

/* How often, in a thousand calls, a run has verbs beside take and peek. */
typedef struct sim_mix {
  bool algorithms; /* other limits than token buckets */
  int64_t charge;
  int64_t refund;
  int64_t up_to;
} sim_mix;

/* Stands between a breaker and its store. */
typedef struct sim_tap {
  spile_store base;
  spile_store *inner;
  sim *s;
  size_t n_asks; /* in the present call */
  sim_ask asks[SIM_ASKS_MAX];
  sim_answer first; /* what a take was told when it was asked as a peek */
} sim_tap;

typedef struct sim_client {
  spile_limiter *limiter;
  sim_tap tap;
  uint64_t takes;     /* since it was opened … */
  uint64_t failures;  /* … that the store did not answer */
  uint64_t charged;   /* charges … */
  uint64_t refunded;  /* … and refunds that went through … */
  uint64_t unsettled; /* … and those that did not */
  sim_watch watch;
  spile_options options;
} sim_client;

struct sim {
  uint64_t seed;
  sim_random random;
  sim_world world;
  sim_server server;
  sim_oracles oracles;
  spile_env env;
  sim_report *report;
  uint64_t takes; /* of this run, before its faults ended */
  long blocks;    /* allocated and not freed */
  sim_call calls[SIM_CALLS];
  size_t next_call;
  uint64_t number;
  sim_mix mix;
  size_t n_targets;
  sim_target targets[SIM_ORACLE_BUCKETS];
  size_t n_clients;
  sim_client clients[SIM_CLIENTS_MAX];
  char address[64];
  /* The call before. */
  sim_call last;
  int last_result;
  spile_decision decision;
  spile_decision each[SIM_ITEMS_MAX];
};

/* ---- Limiters ---- */

void sim_env_init(sim *s);
void sim_mix_draw(sim *s);
void sim_targets_draw(sim *s);
void sim_clients_draw(sim *s);
void sim_client_open(sim *s, sim_client *client);
void sim_client_close(sim *s, sim_client *client);

/* ---- Calls ---- */

/* The limit of an item as it is now. */
const sim_limit *sim_item_limit(const sim *s, const sim_item *item);

spile_store *sim_tap_init(sim_tap *tap, sim *s, spile_store *inner);

/* Whether nothing was charged, by what spile.h says of a reason. */
bool sim_reason_uncharged(int reason);

/* Whether the answer to a call is evidence; one that cannot be is a failure. */
bool sim_answer_is_own(sim *s, const sim_call *call);

/* A call without items. */
sim_call *sim_call_new(sim *s, sim_verb verb);

sim_answer sim_answer_of(const spile_decision *decision);

/* What is asked next; or the call before once more. */
sim_call *sim_call_draw(sim *s);
sim_call *sim_call_again(sim *s);

/* Makes the call and judges it. Where its client was killed meanwhile, there is a new one afterwards. */
void sim_call_run(sim *s, sim_client *client, sim_call *call);

#endif
