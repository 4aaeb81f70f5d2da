/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run: a seed, and everything that follows from it. Limiters with their breakers and Redis stores, as a program has
 * them, share one simulated server over a simulated network, and nothing in them knows.
 */
#ifndef SPILE_TESTS_SIM_RUN_H
#define SPILE_TESTS_SIM_RUN_H

#include "sim_server.h"

/* What runs add up to. */
typedef struct sim_report {
  uint64_t runs;
  uint64_t takes;                   /* calls: takes, peeks, charges, refunds, clears; of these: */
  uint64_t answered;                /* … by the store */
  uint64_t unclear;                 /* … not, and it may have been charged */
  uint64_t uncharged;               /* … not, and it was not */
  uint64_t refused;                 /* … of the latter: by the breaker */
  uint64_t asked[SIM_VERBS];        /* calls of each verb that the store answered … */
  uint64_t limited[SIM_ALGORITHMS]; /* … and items of each algorithm in them */
  uint64_t uncharged_part;          /* charges that were not charged in full */
  uint64_t granted;                 /* takes up to that were granted more than the least */
  uint64_t first;                   /* answered by what was read before a charge that was then not due */
  uint64_t served;                  /* times the server ran the script */
  uint64_t charges;                 /* acknowledged */
  uint64_t recoveries;
  uint64_t reopened;
  uint64_t lies;         /* answers to other questions that no client can tell from its own */
  uint64_t inconclusive; /* buckets with too many possible worlds */
  size_t most;           /* possible worlds of one bucket */
  uint64_t faults[SIM_FAULTS];
  uint64_t digest;
  bool failed;
  char failure[600]; /* with what reproduces it */
} sim_report;

typedef struct sim_options {
  sim_planted planted;
  bool meter_alone; /* the possible worlds see nothing, so that it is the meter that finds what is planted */
} sim_options;

typedef struct sim sim;

sim *sim_new(void);
void sim_free(sim *s);

/*
 * Runs one seed after the other until `takes` calls are done or one run fails. The last run is cut short where the
 * number is reached, so a failure is met again by its own seed and the number of calls until then.
 */
void sim_run(sim *s, uint64_t seed, uint64_t takes, const sim_options *options, sim_report *report);

#endif
