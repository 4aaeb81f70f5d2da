/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long a server may take to answer its first PING. */
#define START_MAX_MS 20000

struct redis_server {
  pid_t pid;
  int port;
  char directory[64];
  char path[96];
  char unix_uri[128];
  char tcp_uri[64];
  redisContext *connection;
  redis_server *next;
};

/* Servers of this process, so that a test that ends early leaves no directory behind. */
static redis_server *servers;

static int64_t monotonic_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A port nobody listens on now. */
static int port_find(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(address);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool found = fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 &&
               getsockname(fd, (struct sockaddr *)&address, &len) == 0;
  if (fd >= 0)
    (void)close(fd);
  cr_assert(found, "no free loopback port: %s", strerror(errno));
  return ntohs(address.sin_port);
}

static void server_exec(const redis_server *server, pid_t parent) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(127);
  char port[16];
  (void)snprintf(port, sizeof(port), "%d", server->port);
  int null = open("/dev/null", O_RDWR);
  if (null >= 0) {
    (void)dup2(null, STDIN_FILENO);
    (void)dup2(null, STDOUT_FILENO);
  }
  (void)execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--unixsocket", server->path,
               "--dir", server->directory, "--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel",
               "warning", (char *)NULL);
  _exit(errno == ENOENT ? 126 : 127);
}

static void connection_drop(redis_server *server) {
  if (server->connection != NULL)
    redisFree(server->connection);
  server->connection = NULL;
}

redisContext *redis_server_connection(redis_server *server) {
  if (server->connection != NULL && server->connection->err != 0)
    connection_drop(server);
  if (server->connection == NULL)
    server->connection = redisConnectUnixWithTimeout(server->path, (struct timeval){.tv_sec = 10});
  return server->connection;
}

static bool server_answers(redis_server *server) {
  redisContext *connection = redis_server_connection(server);
  if (connection == NULL || connection->err != 0)
    return false;
  redisReply *reply = redisCommand(connection, "PING");
  bool answers = reply != NULL && reply->type == REDIS_REPLY_STATUS;
  if (reply != NULL)
    freeReplyObject(reply);
  return answers;
}

/* Starts the process. @return false when it ended before it answered, as it does when its port was taken meanwhile */
static bool server_run(redis_server *server) {
  pid_t parent = getpid();
  server->pid = fork();
  cr_assert(server->pid >= 0, "fork: %s", strerror(errno));
  if (server->pid == 0)
    server_exec(server, parent);
  for (int64_t until_ms = monotonic_ms() + START_MAX_MS; monotonic_ms() < until_ms;) {
    int status;
    if (waitpid(server->pid, &status, WNOHANG) == server->pid) {
      server->pid = 0;
      bool missing = WIFEXITED(status) && WEXITSTATUS(status) == 126;
      cr_assert(missing == false, "redis-server is not installed; install it (Debian: redis-server) to run this test");
      return false;
    }
    if (server_answers(server))
      return true;
    (void)poll(NULL, 0, 5);
  }
  cr_fatal("redis-server did not answer within %d ms", START_MAX_MS);
}

static void directory_remove(const redis_server *server) {
  (void)unlink(server->path);
  (void)rmdir(server->directory);
}

static void servers_end(void) {
  while (servers != NULL)
    redis_server_free(servers);
}

redis_server *redis_server_start(void) {
  redis_server *server = calloc(1, sizeof(*server));
  cr_assert(server != NULL);
  (void)snprintf(server->directory, sizeof(server->directory), "/tmp/spile-redis-XXXXXX");
  cr_assert(mkdtemp(server->directory) != NULL, "mkdtemp: %s", strerror(errno));
  (void)snprintf(server->path, sizeof(server->path), "%s/redis.sock", server->directory);
  (void)snprintf(server->unix_uri, sizeof(server->unix_uri), "redis+unix://%s", server->path);
  if (servers == NULL)
    (void)atexit(servers_end);
  server->next = servers;
  servers = server;
  bool runs = false;
  for (int tries = 0; tries < 5 && !runs; tries++) {
    server->port = port_find();
    runs = server_run(server);
  }
  cr_assert(runs, "redis-server ends at its start");
  (void)snprintf(server->tcp_uri, sizeof(server->tcp_uri), "redis://127.0.0.1:%d", server->port);
  return server;
}

void redis_server_stop(redis_server *server) {
  connection_drop(server);
  if (server->pid > 0) {
    (void)kill(server->pid, SIGKILL);
    (void)waitpid(server->pid, NULL, 0);
  }
  server->pid = 0;
}

void redis_server_restart(redis_server *server) {
  redis_server_stop(server);
  bool runs = false;
  for (int tries = 0; tries < 20 && !runs; tries++) {
    runs = server_run(server);
    if (!runs)
      (void)poll(NULL, 0, 50);
  }
  cr_assert(runs, "redis-server does not start again on port %d", server->port);
}

void redis_server_free(redis_server *server) {
  redis_server_stop(server);
  directory_remove(server);
  redis_server **at = &servers;
  while (*at != server)
    at = &(*at)->next;
  *at = server->next;
  free(server);
}

pid_t redis_server_pid(const redis_server *server) {
  return server->pid;
}

const char *redis_server_unix_uri(const redis_server *server) {
  return server->unix_uri;
}

const char *redis_server_tcp_uri(const redis_server *server) {
  return server->tcp_uri;
}

static redisReply *command_run(redis_server *server, const char *format, va_list args) {
  redisContext *connection = redis_server_connection(server);
  cr_assert(connection != NULL && connection->err == 0, "no connection to the test's server");
  redisReply *reply = redisvCommand(connection, format, args);
  cr_assert(reply != NULL, "the test's server did not answer: %s", connection->errstr);
  return reply;
}

redisReply *redis_server_command(redis_server *server, const char *format, ...) {
  va_list args;
  va_start(args, format);
  redisReply *reply = command_run(server, format, args);
  va_end(args);
  return reply;
}

redisReply *redis_server_command_argv(redis_server *server, int argc, const char **argv, const size_t *argv_len) {
  redisContext *connection = redis_server_connection(server);
  cr_assert(connection != NULL && connection->err == 0, "no connection to the test's server");
  redisReply *reply = redisCommandArgv(connection, argc, argv, argv_len);
  cr_assert(reply != NULL, "the test's server did not answer: %s", connection->errstr);
  return reply;
}

int64_t redis_server_integer(redis_server *server, const char *format, ...) {
  va_list args;
  va_start(args, format);
  redisReply *reply = command_run(server, format, args);
  va_end(args);
  cr_assert(reply->type == REDIS_REPLY_INTEGER, "\"%s\" did not answer with an integer", format);
  int64_t integer = reply->integer;
  freeReplyObject(reply);
  return integer;
}

void redis_server_run(redis_server *server, const char *format, ...) {
  va_list args;
  va_start(args, format);
  redisReply *reply = command_run(server, format, args);
  va_end(args);
  cr_assert(reply->type != REDIS_REPLY_ERROR, "\"%s\": %s", format, reply->str);
  freeReplyObject(reply);
}
