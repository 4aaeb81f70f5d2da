/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judges. None of them looks at the state of the server.
 *
 * Possible worlds: for each bucket all states that would explain every answer so far, computed by tests/model.c, which
 * shares no arithmetic with the core. A request that may have been run leaves both worlds, an answer keeps those that
 * foretold it to the last number. When none is left, something answered, charged or forgot what it should not have.
 *
 * The meter: what an account of acknowledged charges alone says about the promise, from the definition of each
 * algorithm. sim_meter.c tells how.
 *
 * The breaker: when a client may ask and when it must not, from the failures that it reported.
 */
#ifndef SPILE_TESTS_SIM_ORACLES_H
#define SPILE_TESTS_SIM_ORACLES_H

#include "sim_call.h"

#define SIM_POSSIBLE_MAX 512
#define SIM_ORACLE_BUCKETS 8

/* What a call is told about one bucket; outcome 0: it did not run. */
typedef struct sim_answer {
  int outcome;
  int64_t remaining;
  int64_t retry_after_ms;
  int64_t reset_after_ms;
  int64_t grows_after_ms;
  int64_t delay_ms;
  int64_t granted;
  int64_t uncharged;
} sim_answer;

/* A bucket of the model; of a window, what was taken in the window that was reached and the one before, or a log. */
typedef struct sim_kept {
  model_bucket bucket; /* without a log */
  int64_t reached_ms;
  size_t n;
  struct {
    int64_t at_ms;
    int64_t tokens;
  } events[SIM_LOG_MAX];
} sim_kept;

typedef struct sim_possible {
  sim_answer told; /* to the call under way */
  sim_kept kept;
} sim_possible;

typedef struct sim_possibles {
  size_t n;
  sim_possible list[SIM_POSSIBLE_MAX];
} sim_possibles;

typedef struct sim_meter {
  bool begun;
  /* Of a bucket, in units of the limit. */
  model_int level;     /* drains … */
  int64_t at_ms;       /* … since */
  model_int total;     /* charged since the start or the last refund … */
  int64_t earliest_ms; /* … between these readings */
  int64_t latest_ms;
  /* Of windows of counts, whose numbers count from 1970. */
  int64_t first; /* what is charged now counts in one of these … */
  int64_t last;
  model_int count;  /* … which have had so many tokens together … */
  model_int before; /* … and the one before the first so many */
  /* Of a log. */
  size_t n;
  struct {
    int64_t at_ms;
    int64_t tokens;
  } entries[SIM_LOG_MAX];
} sim_meter;

typedef struct sim_oracles {
  size_t n_buckets;
  sim_possibles possibles[SIM_ORACLE_BUCKETS];
  sim_possibles before[SIM_ORACLE_BUCKETS]; /* when the replica was last written */
  bool inconclusive[SIM_ORACLE_BUCKETS];    /* there were too many */
  sim_meter meters[SIM_ORACLE_BUCKETS];
  sim_possibles scratch;
  size_t most; /* possible worlds of one bucket at a time */
  uint64_t answers, charges;
  bool blind; /* the possible worlds are not looked at */
  bool failed;
  char failure[400];
} sim_oracles;

void sim_oracles_init(sim_oracles *oracles, size_t n_buckets);

/* Notes what went wrong, unless something did before. */
void sim_oracles_fail(sim_oracles *oracles, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* In brackets: outcome, remaining, retry, reset, and what else is not 0. @return as snprintf */
size_t sim_answer_print(char *out, size_t size, const sim_answer *told);
bool sim_answer_same(const sim_answer *a, const sim_answer *b);

/* ---- Possible worlds ---- */

/* A request is at the server, or would be if it were not lost. `refuses`: writes, some or all of them. */
void sim_worlds_imagine(sim_oracles *oracles, sim_call *call, int64_t server_ms, bool refuses);
/* The call was answered; `told` has one answer for each of its items. */
void sim_worlds_answered(sim_oracles *oracles, const sim_call *call, const sim_answer *told);
/* … or not; `uncharged`: it was said that nothing was charged. */
void sim_worlds_unanswered(sim_oracles *oracles, const sim_call *call, bool uncharged);

/* The clock is about to be set back from this reading: what could have expired may be gone. */
void sim_worlds_forget_expired(sim_oracles *oracles, int64_t server_ms);
void sim_worlds_wipe(sim_oracles *oracles);
void sim_worlds_copy(sim_oracles *oracles);    /* the replica gets everything … */
void sim_worlds_restore(sim_oracles *oracles); /* … and takes over */

/* ---- The meter ---- */

/* From here on a bucket may admit its capacity anew. */
void sim_meter_reset(sim_oracles *oracles, size_t bucket);
void sim_meter_reset_all(sim_oracles *oracles);
/* The server ran a call that may have written about the item. */
void sim_meter_served(sim_oracles *oracles, const sim_item *item, int64_t server_ms);
/* A call was told that so many tokens, 1 or more, were charged; `asked`: and that they were there. */
void sim_meter_charge(sim_oracles *oracles, const sim_item *item, int64_t tokens, bool asked, int64_t server_ms);
/* The server ran a refund of the item's cost. */
void sim_meter_refund(sim_oracles *oracles, const sim_item *item, int64_t server_ms);

/* ---- The breaker ---- */

#define SIM_ASKS_MAX 2 /* of one call: as a peek, and to charge */

/* What came to the store, and what came of it. */
typedef struct sim_ask {
  int64_t start_ms;
  int64_t end_ms;
  bool take;  /* it writes, be it a take, a charge or a refund */
  bool brief; /* by a limit with less than the usual time */
  bool answered;
  bool charged;  /* of a peek: would be */
  bool corrects; /* a take that was denied as a peek, beside the probe of charges */
  int reason;    /* where it was not answered */
} sim_ask;

/* One of the things that a store may fail to do: to answer, to charge, to answer in a short time. */
typedef struct sim_watch_part {
  int failures;
  int64_t wait_ms;
  bool open;
  int64_t closed_until_ms; /* before this nobody may ask … */
  int64_t open_from_ms;    /* … and from here on somebody must be let through */
} sim_watch_part;

enum { SIM_WATCH_STORE, SIM_WATCH_CHARGES, SIM_WATCH_SHORT, SIM_WATCH_PARTS };

typedef struct sim_watch {
  int failures_max;
  int64_t first_wait_ms;
  sim_watch_part parts[SIM_WATCH_PARTS];
} sim_watch;

void sim_watch_init(sim_watch *watch, int failures_max, int64_t first_wait_ms);

/* Something was asked, in the order in which it was. */
void sim_watch_ask(sim_oracles *oracles, sim_watch *watch, const sim_ask *ask);

/* A call was refused, after `asks` of it that were not; `takes`: it can be asked as a peek first. */
void sim_watch_refused(sim_oracles *oracles, const sim_watch *watch, int64_t now_ms, const char *detail, size_t asks,
                       bool takes);

/* Which part refused, by what it says. */
int sim_watch_part_of(const char *detail);

#endif
