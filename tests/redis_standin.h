/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for a Redis server and answers what it is told: it greets properly, and the answers to takes come from a
 * list, the last of which repeats. With a real server behind it, it is a proxy that loses replies.
 */
#ifndef SPILE_TESTS_REDIS_STANDIN_H
#define SPILE_TESTS_REDIS_STANDIN_H

#include <stddef.h>

#include "redis_server.h"

typedef enum standin_then {
  STANDIN_GO_ON = 0, /* send the bytes and read the next command */
  STANDIN_STALL,     /* send the bytes and nothing more until the client leaves */
  STANDIN_CLOSE,     /* send the bytes and close */
  STANDIN_DRIP,      /* send the bytes one at a time, step_ms apart, over and over */
  STANDIN_FLOOD,     /* send the bytes over and over, as fast as they go */
} standin_then;

typedef struct standin_answer {
  const char *bytes; /* NULL: what the server behind it answers */
  standin_then then;
  int step_ms;  /* of a drip; 0: 5 */
  int delay_ms; /* before the answer: a long way there and back */
  bool swallow; /* let the server behind it run the command, and drop its reply */
} standin_answer;

typedef struct redis_standin redis_standin;

/*
 * @param behind   the server that runs commands, or NULL
 * @param answers  to takes, n of them, kept by the caller
 */
redis_standin *standin_start(redis_server *behind, const standin_answer *answers, size_t n);

/* Replaces the whole answer to INFO, to AUTH or to UNLINK (unless set, 1 key); before the first connection. */
void standin_set_info(redis_standin *standin, const char *bytes);
void standin_set_auth(redis_standin *standin, const char *bytes);
void standin_set_unlink(redis_standin *standin, const char *bytes);

const char *standin_uri(const redis_standin *standin);

/* How many connections, takes (EVALSHA) and SCRIPT LOADs it saw. */
int standin_connections(const redis_standin *standin);
int standin_takes(const redis_standin *standin);
int standin_loads(const redis_standin *standin);

void standin_stop(redis_standin *standin);

#endif
