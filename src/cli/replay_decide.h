/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides the requests of a log, each at its own time, and counts what comes out.
 */
#ifndef SPILE_CLI_REPLAY_DECIDE_H
#define SPILE_CLI_REPLAY_DECIDE_H

#include <spile/limits.h>

#include "cli/options.h"
#include "cli/requests.h"

/* What happened in one hour of UTC. */
typedef struct replay_hour {
  int64_t from_ms;
  uint64_t requests;
  uint64_t denied;
} replay_hour;

/* What a limits file did beside denying by limits. */
typedef struct replay_file {
  uint64_t skipped;   /* of the allowed: exempt by "skip" … */
  uint64_t unlimited; /* … and those whose entry has no limit in force */
  uint64_t blocked;   /* of the denied: by the word, not by a limit */
  key_set entries;    /* all that requests met, by text */
  key_set shadow;     /* shadow limits, by name: the requests they saw, and would have denied */
  key_set left_out;   /* limits whose buckets the log cannot tell, by name: how often, as `denied` */
} replay_file;

typedef struct replay_result {
  uint64_t allowed;
  uint64_t denied;
  key_set limits;     /* by name, those that denied */
  replay_hour *hours; /* those with most denials, most first and then by time; room for one more than top_count */
  size_t hour_count;
  replay_file file;
} replay_result;

/*
 * @param log     sorted; the counts of its clients and routes are filled
 * @param limits  of --limits; NULL: every request meets each --limit
 * @param out     to be finished by replay_finish, whatever comes out
 * @return EXIT_ALLOWED, or another with a message
 */
int replay_decide(replay_result *out, const request_log *log, const spile_limits *limits, const cli_options *options);
void replay_finish(replay_result *result);

#endif
