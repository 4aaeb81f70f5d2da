/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Redis server of a benchmark's own: on a unix socket in a new directory, without persistence, on the first
 * processor. It ends with the program.
 */
#ifndef SPILE_BENCH_SERVER_H
#define SPILE_BENCH_SERVER_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <hiredis.h>
#pragma GCC diagnostic pop

#include <sys/types.h>

#include "bench.h"

typedef struct bench_server {
  pid_t pid;
  char directory[BENCH_PATH_LEN];
  char path[BENCH_PATH_LEN + 16];
  char uri[BENCH_PATH_LEN + 32];
  redisContext *connection;
} bench_server;

/* Starts redis-server and connects. */
void bench_server_start(bench_server *server);
void bench_server_stop(bench_server *server);

/* Microseconds of processor time that the thread which runs commands has used. */
double bench_server_cpu_us(bench_server *server);

/* Bytes that the server has allocated. */
double bench_server_memory(bench_server *server);

/* The next reply, which is not an error. Freed by the caller. */
redisReply *bench_server_reply(bench_server *server);

/* Runs a command of words for its effect. */
void bench_server_run(bench_server *server, int argc, const char **argv);

#define BENCH_SHA_LEN 40

/* Gives the server a script. @param sha  out: what EVALSHA calls it */
void bench_server_load(bench_server *server, const char *script, char sha[BENCH_SHA_LEN + 1]);

#endif
