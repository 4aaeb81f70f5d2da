/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How late a take of the Redis store is when its server cannot answer, in every way that we know of. Each fault is met
 * fifty times; what was measured is printed as the rows of a table: fault, reason, then by how much the takes were
 * late, the median, the 45th of 50 and the last, or the longest time where none was late. On an idle machine no take is
 * 5 ms late; what is asserted leaves room for a busy one.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/redis.h"
#include "redis_server.h"
#include "redis_standin.h"
#include "redis_store.h"

#define ROUNDS 50
#define TIMEOUT_MS 25
#define LATE_MAX_US 100000

/* What the takes of one path came to. */
typedef struct lateness {
  int met; /* takes that met the fault; on a slow machine the time may be over before */
  int64_t took_max_ms;
  int64_t late_us[ROUNDS];
} lateness;

static void measure_take(lateness *self, int round, spile_store *store, const char *path, int reason) {
  spile_spec spec = spec_of(5, 1, 1000);
  answer got = store_take_within(store, "k", &spec, TIMEOUT_MS);
  bool slow = got.late_us >= 0 && (got.error.reason == SPILE_REASON_TIMEOUT ||
                                   got.error.reason == SPILE_REASON_CONNECT || got.error.reason == SPILE_REASON_BUSY);
  cr_assert(got.code == SPILE_EUNAVAILABLE && (got.error.reason == reason || slow), "%s, round %d: code %d, %s: %s",
            path, round, got.code, spile_reason_name(got.error.reason), got.error.message);
  self->met += got.error.reason == reason;
  self->late_us[round] = got.late_us;
  if (got.took_ms > self->took_max_ms)
    self->took_max_ms = got.took_ms;
}

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a;
  int64_t y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void measure_show(lateness *self, const char *path, int reason) {
  qsort(self->late_us, ROUNDS, sizeof(self->late_us[0]), compare);
  int64_t median_us = self->late_us[ROUNDS / 2];
  int64_t most_us = self->late_us[ROUNDS * 9 / 10 - 1];
  int64_t max_us = self->late_us[ROUNDS - 1];
  if (max_us < 0)
    (void)printf("| %s | %s | not late, %" PRId64 " ms | | |\n", path, spile_reason_name(reason), self->took_max_ms);
  else
    (void)printf("| %s | %s | %.2f ms | %.2f ms | %.2f ms |\n", path, spile_reason_name(reason),
                 (double)median_us / 1000, (double)most_us / 1000, (double)max_us / 1000);
  (void)fflush(stdout);
  cr_assert(self->met > 0, "%s: none of %d takes met it", path, ROUNDS);
  /* Whoever else runs on the machine may hold up many, but not most. */
  cr_assert(median_us < LATE_MAX_US, "%s: %" PRId64 " us late", path, median_us);
}

static void measure_store(spile_store *store, const char *path, int reason) {
  lateness measure = {0};
  for (int i = 0; i < ROUNDS; i++)
    measure_take(&measure, i, store, path, reason);
  measure_show(&measure, path, reason);
}

/* ---- Servers that are not there ---- */

Test(redis_deadlines, no_server) {
  spile_store *store = store_open("redis://127.0.0.1:1", false);
  measure_store(store, "connection refused", SPILE_REASON_CONNECT);
  store_close(store);
  store = store_open("redis+unix:///nonexistent/redis.sock", false);
  measure_store(store, "no such socket", SPILE_REASON_CONNECT);
  store_close(store);
}

/* A listener that never accepts, with room for `backlog` + 1 connections. */
static int listener_open(int backlog, char uri[64]) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(address);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 && listen(fd, backlog) == 0 &&
            getsockname(fd, (struct sockaddr *)&address, &len) == 0);
  (void)snprintf(uri, 64, "redis://127.0.0.1:%d", ntohs(address.sin_port));
  return fd;
}

static int fill_one(int port) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  cr_assert(fd >= 0);
  (void)connect(fd, (struct sockaddr *)&address, sizeof(address));
  return fd;
}

/* The kernel drops the SYN of whoever comes when the backlog is full: as a firewall or a dead host does. */
Test(redis_deadlines, dropped_syn) {
  char uri[64];
  int listener = listener_open(0, uri);
  int fillers[8];
  for (int i = 0; i < 8; i++)
    fillers[i] = fill_one(atoi(strrchr(uri, ':') + 1));
  /* The first of them got in; the last did not. */
  struct pollfd last = {.fd = fillers[7], .events = POLLOUT};
  cr_assert(poll(&last, 1, 50) == 0, "the backlog is not full");
  spile_store *store = store_open(uri, false);
  measure_store(store, "dropped SYN", SPILE_REASON_CONNECT);

  spile__redis_names *names = &((spile__redis_store *)store)->names;
  for (int i = 1; i < 3; i++)
    names->peers.list[i] = names->peers.list[0];
  names->peers.n = 3;
  measure_store(store, "dropped SYN, three addresses", SPILE_REASON_CONNECT);
  store_close(store);
  for (int i = 0; i < 8; i++)
    (void)close(fillers[i]);
  (void)close(listener);
}

Test(redis_deadlines, full_backlog) {
  char uri[64];
  int listener = listener_open(4000, uri);
  spile_store *store = store_open(uri, false);
  measure_store(store, "connected and never served", SPILE_REASON_CONNECT);
  store_close(store);
  (void)close(listener);

  char directory[] = "/tmp/spile-backlog-XXXXXX";
  cr_assert(mkdtemp(directory) != NULL);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", directory);
  listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cr_assert(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
            listen(listener, 0) == 0);
  int filler = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cr_assert(connect(filler, (struct sockaddr *)&address, sizeof(address)) == 0);
  char path[160];
  (void)snprintf(path, sizeof(path), "redis+unix://%s", address.sun_path);
  store = store_open(path, false);
  measure_store(store, "full backlog of a unix socket", SPILE_REASON_CONNECT);
  store_close(store);
  (void)close(filler);
  (void)close(listener);
  (void)unlink(address.sun_path);
  (void)rmdir(directory);
}

/* ---- Servers that stand still ---- */

Test(redis_deadlines, stopped_server) {
  redis_server *server = redis_server_start();
  lateness measure = {0};
  spile_spec spec = spec_of(5, 1, 1000);
  for (int i = 0; i < ROUNDS; i++) {
    spile_store *store = store_open(redis_server_tcp_uri(server), false);
    cr_assert(store_take(store, "warm", &spec, 0, SPILE_STORE_TIME).code == SPILE_ALLOWED);
    cr_assert(kill(redis_server_pid(server), SIGSTOP) == 0);
    measure_take(&measure, i, store, "stopped server", SPILE_REASON_TIMEOUT);
    cr_assert(kill(redis_server_pid(server), SIGCONT) == 0);
    store_close(store);
  }
  measure_show(&measure, "stopped server", SPILE_REASON_TIMEOUT);
  redis_server_free(server);
}

Test(redis_deadlines, links_in_use) {
  spile_store *store = store_open_over("redis://127.0.0.1:1", 2, NULL, NULL);
  spile__redis_link *links[2];
  spile_error error = {0};
  for (int i = 0; i < 2; i++)
    cr_assert(spile__redis_borrow((spile__redis_store *)store, INT64_MAX, &links[i], &error) == SPILE_OK);
  measure_store(store, "every connection in use", SPILE_REASON_BUSY);
  store_close(store);
}

/* ---- Servers that answer badly ---- */

/* The next take finds a connection that works. */
static void warm(spile_store *store) {
  spile_spec spec = spec_of(5, 1, 1000);
  int tries = 0;
  while (store_take_within(store, "warm", &spec, 1000).code != SPILE_ALLOWED) {
    tries++;
    cr_assert(tries < 20, "the stand-in does not answer");
  }
}

/* Each time anew: a take that is answered, and one that meets the fault of `n` answers. */
static void measure_standin(const standin_answer *fault, size_t n, const char *path, int reason) {
  standin_answer answers[3 * ROUNDS];
  size_t n_answers = 0;
  for (int i = 0; i < ROUNDS; i++) {
    answers[n_answers++] = (standin_answer){.bytes = ":0\r\n"};
    for (size_t j = 0; j < n; j++)
      answers[n_answers++] = fault[j];
  }
  lateness measure = {0};
  redis_standin *standin = standin_start(NULL, answers, n_answers);
  spile_store *store = store_open(standin_uri(standin), false);
  for (int i = 0; i < ROUNDS; i++) {
    warm(store);
    measure_take(&measure, i, store, path, reason);
  }
  measure_show(&measure, path, reason);
  store_close(store);
  standin_stop(standin);
}

Test(redis_deadlines, bad_answers) {
  static const struct {
    const char *path;
    standin_answer answer;
    int reason;
  } rows[] = {
      {"no answer", {.bytes = "", .then = STANDIN_STALL}, SPILE_REASON_TIMEOUT},
      {"half an answer", {.bytes = ":100", .then = STANDIN_STALL}, SPILE_REASON_TIMEOUT},
      {"half a string", {.bytes = "$1000\r\nabc", .then = STANDIN_STALL}, SPILE_REASON_TIMEOUT},
      {"one byte per 20 ms", {.bytes = "-and so on ", .then = STANDIN_DRIP, .step_ms = 20}, SPILE_REASON_TIMEOUT},
      {"one byte per ms", {.bytes = "-and so on ", .then = STANDIN_DRIP, .step_ms = 1}, SPILE_REASON_TIMEOUT},
      {"garbage", {.bytes = "\x01\x02HTTP/1.1 400\r\n\r\n"}, SPILE_REASON_PROTOCOL},
      {"a line without end", {.bytes = "-and so on ", .then = STANDIN_FLOOD}, SPILE_REASON_PROTOCOL},
      {"arrays without end", {.bytes = "*1\r\n", .then = STANDIN_FLOOD}, SPILE_REASON_PROTOCOL},
      {"a string of 512 MiB announced", {.bytes = "$536870912\r\n", .then = STANDIN_STALL}, SPILE_REASON_PROTOCOL},
      {"an array of 2^31 announced", {.bytes = "*2147483647\r\n", .then = STANDIN_STALL}, SPILE_REASON_PROTOCOL},
      {"closed instead of an answer", {.bytes = "", .then = STANDIN_CLOSE}, SPILE_REASON_CLOSED},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    measure_standin(&rows[i].answer, 1, rows[i].path, rows[i].reason);
}

/* The script is missing, and loading it is the last that works. */
Test(redis_deadlines, script_reload) {
  static const standin_answer fault[] = {{.bytes = "-NOSCRIPT No matching script.\r\n"},
                                         {.bytes = "", .then = STANDIN_STALL}};
  measure_standin(fault, 2, "no answer after the script was loaded", SPILE_REASON_TIMEOUT);
}

/* ---- Name servers ---- */

typedef struct slow_names {
  atomic_int asked;
  atomic_int answered;
} slow_names;

/* At once when the store is opened, then after two seconds. */
static const char *resolve_slowly(void *user, const char *host, const char *port, spile__redis_peers *out) {
  (void)host;
  (void)port;
  (void)out;
  slow_names *names = user;
  if (atomic_fetch_add(&names->asked, 1) > 0)
    (void)poll(NULL, 0, 2000);
  atomic_fetch_add(&names->answered, 1);
  return "timed out";
}

Test(redis_deadlines, slow_name_server) {
  spile__redis_transport transport = spile__redis_sockets;
  transport.resolve = resolve_slowly;
  static slow_names names;
  spile_store *store = store_open_over("redis://redis.test", 0, &transport, &names);
  /* Past the pause between two look-ups, so that the first take begins one. */
  (void)poll(NULL, 0, 600);
  measure_store(store, "slow name server, no address yet", SPILE_REASON_RESOLVE);
  while (atomic_load(&names.asked) < 2)
    (void)poll(NULL, 0, 1);
  store_close(store);
  while (atomic_load(&names.answered) < atomic_load(&names.asked))
    (void)poll(NULL, 0, 5);
}
