/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis server: the commands that the store sends, the decision of lua/take.lua by way of the core, a clock of its
 * own, and buckets that expire when the server gets to it.
 */
#ifndef SPILE_TESTS_SIM_SERVER_H
#define SPILE_TESTS_SIM_SERVER_H

#include "core/algorithm.h"
#include "sim_world.h"

/* Faults of the script that are planted to see them found. */
#define SIM_PLANTED_LIST(X)                                                                                        \
  X(FULL_AT_GOES_BACK, "a clock that steps back takes the instant of fullness along")                              \
  X(GREATER_FOR_GREATER_OR_EQUAL, "the last token is not given")                                                   \
  X(EXPIRY_FROM_NOW, "the expiry counts from now, as if the bucket had been full")                                 \
  X(EXPIRY_BEFORE_FULL, "a bucket goes before it is full")                                                         \
  X(EXPIRY_WITHOUT_TOLERANCE, "a bucket goes as soon as it is full, and a clock that steps back finds it missing") \
  X(DENIAL_CHARGES, "a denied take is charged")                                                                    \
  X(DENIAL_RESTARTS, "a denial starts the wait anew")                                                              \
  X(COST_0_WRITES, "a take of nothing writes a clock cut or other numbers")                                        \
  X(NO_CUT, "an instant that no clock explains is believed")                                                       \
  X(NOT_ALL_OR_NOTHING, "of several limits those that fit are charged")                                            \
  X(FRACTION_LOST, "the remainder in 1/N ms is not kept")                                                          \
  X(CHANGE_REFILLS, "other numbers make a new bucket")                                                             \
  X(CAPACITY_PLUS_ONE, "the bucket holds one token more")                                                          \
  X(PEEK_CHARGES, "a vector's first bucket is charged even by a peek")                                             \
  X(DEBT_FORGOTTEN, "what is charged beyond empty is forgotten")                                                   \
  X(CHANGE_FORGETS_A_WINDOW, "other numbers begin a new window")                                                   \
  X(WINDOW_GOES_BACK, "a clock that steps back opens the window before anew")                                      \
  X(WINDOW_BEFORE_FORGOTTEN, "what the window before gave does not count")                                         \
  X(WINDOW_BEFORE_REFUNDED, "a refund takes back what the window before gave")                                     \
  X(LOG_FORGETS_EARLY, "a log forgets its oldest a millisecond early")

typedef enum sim_planted {
  SIM_NOTHING_PLANTED,
#define SIM_PLANTED_ENUM(name, text) SIM_PLANT_##name,
  SIM_PLANTED_LIST(SIM_PLANTED_ENUM)
#undef SIM_PLANTED_ENUM
      SIM_PLANTED
} sim_planted;

#define SIM_BUCKETS 12
#define SIM_KEEPS_FOREVER INT64_MAX

typedef struct sim_bucket {
  char name[64];
  size_t name_len;
  bool stored;
  int64_t expires_ms;
  int64_t slack_ms;   /* how long after its expiry it is really gone */
  int64_t written_ms; /* for planted faults */
  spile__state state; /* last, as it has room for far more than a bucket has here */
} sim_bucket;

typedef struct sim_server {
  sim_random *random;
  sim_world *world;
  sim_planted planted;
  sim_bucket buckets[SIM_BUCKETS];
  size_t n_buckets;
  sim_bucket before[SIM_BUCKETS]; /* as a replica has them */
  size_t n_before;
  bool knows_script;
  bool expires_late;
  int64_t down_until_us;
  int64_t loading_until_us;
  int64_t readonly_until_us;
  int64_t oom_until_us;
  int64_t stalled_until_us;
  uint64_t epoch;                  /* losses of state, steps of the clock, changes of limits so far */
  model_limit limits[SIM_BUCKETS]; /* of the last take of each bucket */
  /* server time = clock_us + (world time − since_us) · (10^6 + drift_ppm) / 10^6 */
  int64_t since_us;
  int64_t clock_us;
  int64_t drift_ppm;
  int64_t ahead_ms; /* of what it would read without small steps */
  char script_sha[41];
  uint64_t takes; /* calls it ran */
} sim_server;

/* ---- The script ---- */

typedef struct sim_script_item {
  sim_bucket *bucket;
  const spile__algorithm *algorithm;
  spile_spec spec; /* of which the script knows algorithm and shape */
  int64_t wanted;  /* the cost to read for; below 0 for a refund */
  const spile__state *old;
  bool rewrite;
} sim_script_item;

/* A call as the script has it: a peek is a take of nothing. */
typedef struct sim_script {
  spile_call call; /* of the items */
  spile_item items[SIM_ITEMS_MAX];
  sim_script_item more[SIM_ITEMS_MAX];
} sim_script;

static inline bool sim_script_settles(const sim_script *script) {
  return script->call.verb == SPILE_VERB_CHARGE || script->call.verb == SPILE_VERB_REFUND;
}

/* The bucket of a name, which is made if it is new. */
sim_bucket *sim_bucket_find(sim_server *server, const char *name, size_t len);

/* Removes a bucket that the server has got to at this reading of its clock. */
void sim_bucket_expire(sim_bucket *bucket, int64_t now_ms);

/*
 * Runs the script on its items and writes their readings.
 * @param charged  out: every item fits, or was not asked
 * @return NULL, or the error it ends with
 */
const char *sim_script_run(sim_server *server, sim_script *script, bool *charged);

/* ---- The server ---- */

void sim_server_init(sim_server *server, sim_world *world, sim_random *random, sim_planted planted);

int64_t sim_server_now_ms(const sim_server *server);
/* When its clock will read this, on the world's; in the past if it does already. */
int64_t sim_server_reaches_us(const sim_server *server, int64_t clock_ms);

/* Looks at what came in on a connection and answers whole commands. */
void sim_server_read(sim_server *server, sim_conn *conn);

/* Something happens to the server. */
void sim_server_blow(sim_server *server, sim_fault blow);

/* Some buckets to somewhere else. */
void sim_buckets_copy(sim_bucket *to, const sim_bucket *from, size_t n);

/* Its replica gets everything. */
void sim_server_replicate(sim_server *server);

/* It is up, writable and answers at once. */
void sim_server_heal(sim_server *server);

#endif
