/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A real Redis for a test: in a directory of its own, on a unix socket and a loopback port, without persistence. It
 * dies with the test's process.
 */
#ifndef SPILE_TESTS_REDIS_SERVER_H
#define SPILE_TESTS_REDIS_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <hiredis.h>
#pragma GCC diagnostic pop

typedef struct redis_server redis_server;

/* Starts a server and waits until it answers; the test fails when there is none. Ended by redis_server_free. */
redis_server *redis_server_start(void);

/* Ends it at once, as a crash does; starts it again on the same addresses, without data. */
void redis_server_stop(redis_server *server);
void redis_server_restart(redis_server *server);
void redis_server_free(redis_server *server);

pid_t redis_server_pid(const redis_server *server);

/* "redis+unix:///…" and "redis://127.0.0.1:…". */
const char *redis_server_unix_uri(const redis_server *server);
const char *redis_server_tcp_uri(const redis_server *server);

/* Runs a command (hiredis's printf form) on a connection of the test's own. Freed by the caller. Never NULL. */
redisReply *redis_server_command(redis_server *server, const char *format, ...);
redisReply *redis_server_command_argv(redis_server *server, int argc, const char **argv, const size_t *argv_len);

/* The integer a command answers with; the test fails when it is something else. */
int64_t redis_server_integer(redis_server *server, const char *format, ...);

/* Runs a command for its effect; the test fails when it answers with an error. */
void redis_server_run(redis_server *server, const char *format, ...);

/* The connection itself, for pipelines. */
redisContext *redis_server_connection(redis_server *server);

#endif
