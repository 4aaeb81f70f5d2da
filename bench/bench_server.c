/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_TRIES 2000
#define START_PAUSE_MS 5

static _Noreturn void server_exec(const bench_server *server, pid_t parent) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  int null = open("/dev/null", O_RDWR);
  if (getppid() != parent || null < 0)
    _exit(1);
  (void)dup2(null, STDIN_FILENO);
  (void)dup2(null, STDOUT_FILENO);
  bench_pin(0);
  (void)execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", server->path, "--dir", server->directory,
               "--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning", (char *)NULL);
  _exit(126);
}

void bench_server_start(bench_server *server) {
  *server = (bench_server){.pid = 0};
  bench_directory_make(server->directory);
  (void)snprintf(server->path, sizeof(server->path), "%s/redis.sock", server->directory);
  (void)snprintf(server->uri, sizeof(server->uri), "redis+unix://%s", server->path);
  pid_t parent = getpid();
  (void)fflush(stdout);
  server->pid = fork();
  if (server->pid < 0)
    bench_fatal("fork: %s", strerror(errno));
  if (server->pid == 0)
    server_exec(server, parent);

  for (int i = 0; i < START_TRIES; i++) {
    server->connection = redisConnectUnix(server->path);
    if (server->connection != NULL && server->connection->err == 0)
      return;
    if (server->connection != NULL)
      redisFree(server->connection);
    if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
      bench_directory_remove(server->directory);
      bench_fatal("redis-server does not start; is it installed (Debian: redis-server)?");
    }
    (void)poll(NULL, 0, START_PAUSE_MS);
  }
  bench_fatal("redis-server does not answer");
}

void bench_server_stop(bench_server *server) {
  redisFree(server->connection);
  (void)kill(server->pid, SIGKILL);
  (void)waitpid(server->pid, NULL, 0);
  bench_directory_remove(server->directory);
}

redisReply *bench_server_reply(bench_server *server) {
  void *reply = NULL;
  if (redisGetReply(server->connection, &reply) != REDIS_OK)
    bench_fatal("redis-server: %s", server->connection->errstr);
  redisReply *known = reply;
  if (known->type == REDIS_REPLY_ERROR)
    bench_fatal("redis-server answered: %s", known->str);
  return known;
}

void bench_server_run(bench_server *server, int argc, const char **argv) {
  if (redisAppendCommandArgv(server->connection, argc, argv, NULL) != REDIS_OK)
    bench_fatal("redis-server: %s", server->connection->errstr);
  freeReplyObject(bench_server_reply(server));
}

void bench_server_load(bench_server *server, const char *script, char sha[BENCH_SHA_LEN + 1]) {
  const char *words[] = {"SCRIPT", "LOAD", script};
  if (redisAppendCommandArgv(server->connection, 3, words, NULL) != REDIS_OK)
    bench_fatal("redis-server: %s", server->connection->errstr);
  redisReply *reply = bench_server_reply(server);
  (void)snprintf(sha, BENCH_SHA_LEN + 1, "%s", reply->str);
  freeReplyObject(reply);
}

/* A number of INFO. */
static double server_info(bench_server *server, const char *section, const char *field) {
  const char *words[] = {"INFO", section};
  if (redisAppendCommandArgv(server->connection, 2, words, NULL) != REDIS_OK)
    bench_fatal("redis-server: %s", server->connection->errstr);
  redisReply *reply = bench_server_reply(server);
  const char *at = reply->str != NULL ? strstr(reply->str, field) : NULL;
  if (at == NULL)
    bench_fatal("INFO %s does not tell %s; a Redis 7.0 or later is needed", section, field);
  double value = strtod(at + strlen(field), NULL);
  freeReplyObject(reply);
  return value;
}

double bench_server_cpu_us(bench_server *server) {
  return (server_info(server, "cpu", "used_cpu_user_main_thread:") +
          server_info(server, "cpu", "used_cpu_sys_main_thread:")) *
         1e6;
}

double bench_server_memory(bench_server *server) {
  return server_info(server, "memory", "used_memory:");
}
