/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_standin.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTIONS_MAX 4096

/* One connection, served by a thread of its own. */
typedef struct standin_link {
  redis_standin *standin;
  int fd;
  pthread_t thread;
} standin_link;

struct redis_standin {
  char directory[64];
  char path[96];
  char uri[128];
  const char *info;
  const char *auth;
  const char *unlinked;
  redis_server *behind;
  const standin_answer *answers;
  size_t n_answers;
  int listener;
  pthread_t thread;
  atomic_bool ending;
  atomic_int connections;
  atomic_int takes;
  atomic_int loads;
  pthread_mutex_t behind_lock; /* the server behind has one connection */
  standin_link links[CONNECTIONS_MAX];
  size_t n_links;
};

static void put(int fd, const char *bytes, size_t len) {
  while (len > 0) {
    ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
    if (sent <= 0)
      return;
    bytes += sent;
    len -= (size_t)sent;
  }
}

/* Waits for input, looking up now and then whether the test is over. @return false at the end */
static bool wait_input(redis_standin *standin, int fd, int step_ms, bool once) {
  while (!atomic_load(&standin->ending)) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (poll(&poll_fd, 1, step_ms) > 0 || once)
      return true;
  }
  return false;
}

/* Until the client leaves. */
static void stall(redis_standin *standin, int fd) {
  char byte[256];
  while (wait_input(standin, fd, 10, false) && recv(fd, byte, sizeof(byte), 0) > 0)
    continue;
}

static void drip(redis_standin *standin, int fd, const char *bytes, int step_ms) {
  char byte;
  for (size_t i = 0; bytes[0] != '\0'; i = bytes[i + 1] != '\0' ? i + 1 : 0) {
    if (send(fd, &bytes[i], 1, MSG_NOSIGNAL) != 1 || !wait_input(standin, fd, step_ms, true) ||
        recv(fd, &byte, 1, MSG_DONTWAIT) == 0)
      return;
  }
}

/* The bytes over and over, as fast as the client takes them. */
static void flood(redis_standin *standin, int fd, const char *bytes) {
  char block[4096];
  size_t len = strlen(bytes);
  for (size_t i = 0; i < sizeof(block); i++)
    block[i] = bytes[i % len];
  while (!atomic_load(&standin->ending) && send(fd, block, sizeof(block) / len * len, MSG_NOSIGNAL) > 0)
    continue;
}

/* Runs a command on the server behind and writes its reply, unless it is swallowed. */
static void forward(redis_standin *standin, int fd, const redisReply *command, bool swallow) {
  const char *argv[512];
  size_t argv_len[512];
  for (size_t i = 0; i < command->elements; i++) {
    argv[i] = command->element[i]->str;
    argv_len[i] = command->element[i]->len;
  }
  (void)pthread_mutex_lock(&standin->behind_lock);
  redisReply *reply = redis_server_command_argv(standin->behind, (int)command->elements, argv, argv_len);
  (void)pthread_mutex_unlock(&standin->behind_lock);
  char text[512];
  int len = 0;
  if (reply->type == REDIS_REPLY_INTEGER)
    len = snprintf(text, sizeof(text), ":%lld\r\n", reply->integer);
  else if (reply->type == REDIS_REPLY_ERROR)
    len = snprintf(text, sizeof(text), "-%s\r\n", reply->str);
  else if (reply->type == REDIS_REPLY_STRING)
    len = snprintf(text, sizeof(text), "$%zu\r\n%s\r\n", reply->len, reply->str);
  freeReplyObject(reply);
  if (!swallow)
    put(fd, text, (size_t)len);
}

/* @return false when the connection is over */
static bool answer_take(redis_standin *standin, int fd, const redisReply *command) {
  size_t number = (size_t)atomic_fetch_add(&standin->takes, 1);
  const standin_answer *answer = &standin->answers[number < standin->n_answers ? number : standin->n_answers - 1];
  if (answer->delay_ms > 0)
    (void)poll(NULL, 0, answer->delay_ms);
  if (answer->bytes == NULL || answer->swallow)
    forward(standin, fd, command, answer->swallow);
  else if (answer->then != STANDIN_DRIP && answer->then != STANDIN_FLOOD)
    put(fd, answer->bytes, strlen(answer->bytes));
  switch (answer->then) {
  case STANDIN_GO_ON:
    return true;
  case STANDIN_STALL:
    stall(standin, fd);
    return false;
  case STANDIN_DRIP:
    drip(standin, fd, answer->bytes, answer->step_ms > 0 ? answer->step_ms : 5);
    return false;
  case STANDIN_FLOOD:
    flood(standin, fd, answer->bytes);
    return false;
  case STANDIN_CLOSE:
    return false;
  }
  return false;
}

/* @return false when the connection is over */
static bool answer_command(redis_standin *standin, int fd, const redisReply *command) {
  const char *name = command->element[0]->str;
  const char *bytes = "+OK\r\n";
  if (strcmp(name, "EVALSHA") == 0)
    return answer_take(standin, fd, command);
  if (strcmp(name, "SCRIPT") == 0) {
    atomic_fetch_add(&standin->loads, 1);
    if (standin->behind != NULL) {
      forward(standin, fd, command, false);
      return true;
    }
    bytes = "$3\r\nsha\r\n";
  } else if (strcmp(name, "INFO") == 0) {
    bytes = standin->info;
  } else if (strcmp(name, "AUTH") == 0) {
    bytes = standin->auth;
  } else if (strcmp(name, "UNLINK") == 0) {
    bytes = standin->unlinked;
  }
  put(fd, bytes, strlen(bytes));
  return true;
}

static void *serve(void *user) {
  standin_link *link = user;
  redis_standin *standin = link->standin;
  redisReader *reader = redisReaderCreate();
  char bytes[4096];
  bool open = true;
  while (open && wait_input(standin, link->fd, 10, false)) {
    ssize_t len = recv(link->fd, bytes, sizeof(bytes), 0);
    if (len <= 0)
      break;
    (void)redisReaderFeed(reader, bytes, (size_t)len);
    void *command = NULL;
    while (open && redisReaderGetReply(reader, &command) == REDIS_OK && command != NULL) {
      open = answer_command(standin, link->fd, command);
      freeReplyObject(command);
      command = NULL;
    }
  }
  redisReaderFree(reader);
  (void)close(link->fd);
  return NULL;
}

static void *standin_run(void *user) {
  redis_standin *standin = user;
  while (wait_input(standin, standin->listener, 10, false)) {
    int fd = accept(standin->listener, NULL, NULL);
    if (fd < 0)
      continue;
    atomic_fetch_add(&standin->connections, 1);
    cr_assert(standin->n_links < CONNECTIONS_MAX, "a stand-in serves %d connections and no more", CONNECTIONS_MAX);
    standin_link *link = &standin->links[standin->n_links++];
    *link = (standin_link){.standin = standin, .fd = fd};
    cr_assert(pthread_create(&link->thread, NULL, serve, link) == 0);
  }
  for (size_t i = 0; i < standin->n_links; i++)
    (void)pthread_join(standin->links[i].thread, NULL);
  return NULL;
}

redis_standin *standin_start(redis_server *behind, const standin_answer *answers, size_t n) {
  redis_standin *standin = calloc(1, sizeof(*standin));
  cr_assert(standin != NULL);
  standin->info = "$26\r\n# Server\r\nredis_version:7.\r\n";
  standin->auth = "+OK\r\n";
  standin->unlinked = ":1\r\n";
  standin->behind = behind;
  (void)pthread_mutex_init(&standin->behind_lock, NULL);
  standin->answers = answers;
  standin->n_answers = n;
  (void)snprintf(standin->directory, sizeof(standin->directory), "/tmp/spile-standin-XXXXXX");
  cr_assert(mkdtemp(standin->directory) != NULL);
  (void)snprintf(standin->path, sizeof(standin->path), "%s/redis.sock", standin->directory);
  (void)snprintf(standin->uri, sizeof(standin->uri), "redis+unix://%s", standin->path);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", standin->path);
  standin->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  cr_assert(standin->listener >= 0 && bind(standin->listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
            listen(standin->listener, 16) == 0);
  cr_assert(pthread_create(&standin->thread, NULL, standin_run, standin) == 0);
  return standin;
}

void standin_set_info(redis_standin *standin, const char *bytes) {
  standin->info = bytes;
}

void standin_set_auth(redis_standin *standin, const char *bytes) {
  standin->auth = bytes;
}

void standin_set_unlink(redis_standin *standin, const char *bytes) {
  standin->unlinked = bytes;
}

const char *standin_uri(const redis_standin *standin) {
  return standin->uri;
}

int standin_connections(const redis_standin *standin) {
  return atomic_load(&standin->connections);
}

int standin_takes(const redis_standin *standin) {
  return atomic_load(&standin->takes);
}

int standin_loads(const redis_standin *standin) {
  return atomic_load(&standin->loads);
}

void standin_stop(redis_standin *standin) {
  atomic_store(&standin->ending, true);
  (void)pthread_join(standin->thread, NULL);
  (void)close(standin->listener);
  (void)unlink(standin->path);
  (void)rmdir(standin->directory);
  (void)pthread_mutex_destroy(&standin->behind_lock);
  free(standin);
}
