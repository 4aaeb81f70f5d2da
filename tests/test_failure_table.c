/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the tables of docs/failure.md: every fault is met by sixty takes, twenty under each on_store_error, and each
 * row prints what their caller saw and how long they took. A row is also a test: the reason must be the one that is
 * expected here, and each policy's answer must be that of its name.
 *
 *   test_failure_table -j1 | grep '^[|]'
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spile/spile.h>
#include <spile/sys/store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/lmdb_store.h"
#include "fault_proxy.h"
#include "redis_server.h"
#include "temp_dir.h"
#include "torture_seam.h"

#define ROUNDS 20
#define REDIS_MS 25
#define LMDB_MS 100
/* What is asserted leaves room for a busy machine; the table says what was. */
#define SLACK_US 200000

static int64_t now_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static spile_limit *limits[3]; /* one for each on_store_error: fail, open, closed */

static void limits_make(void) {
  static const char *const texts[3] = {"1000000/d", "1000000/d,on_store_error=open", "1000000/d,on_store_error=closed"};
  for (int i = 0; i < 3; i++)
    cr_assert(eq(int, spile_limit_parse(&limits[i], texts[i], NULL), SPILE_OK));
}

static void limits_drop(void) {
  for (int i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
}

static spile_limiter *open_limiter(const char *uri, int64_t timeout_ms, int connections) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  options.breaker_failures = SPILE_BREAKER_OFF;
  options.connections = connections;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, uri, &options, &error) == SPILE_OK, "%s", error.message);
  return limiter;
}

/* ---- Rows ---- */

typedef struct row {
  const char *name;
  spile_limiter *limiter;
  int reason;           /* a spile_reason */
  int code;             /* under "fail"; 0: SPILE_EUNAVAILABLE */
  int64_t deadline_ms;  /* no take may last longer; 0: no such fault waits */
  void (*before)(void); /* each take, or NULL */
  void (*after)(void);
} row;

static int compare(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a;
  int64_t y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* What the caller sees of a fault, by policy. */
static const struct {
  const char *policy;
  int result; /* 0: the error, SPILE_EUNAVAILABLE but for want of memory */
  int outcome;
  int decided_by;
} seen[3] = {{"fail", 0, 0, SPILE_BY_NOBODY},
             {"open", SPILE_ALLOWED, SPILE_ALLOWED, SPILE_BY_POLICY},
             {"closed", SPILE_DENIED, SPILE_DENIED, SPILE_BY_POLICY}};

static void policies_show(void) {
  (void)printf("| `on_store_error` | the take returns | `outcome` | `decided_by` |\n|---|---|---|---|\n");
  for (int i = 0; i < 3; i++)
    (void)printf("| `%s` | `%s` | %s | `%s` |\n", seen[i].policy,
                 spile_code_name(seen[i].result != 0 ? seen[i].result : SPILE_EUNAVAILABLE),
                 spile_outcome_name(seen[i].outcome), spile_decided_by_name(seen[i].decided_by));
  (void)printf("\n");
}

/* Whether a take that failed so may have been charged. */
static bool reason_is_unclear(int reason) {
  return reason == SPILE_REASON_TIMEOUT || reason == SPILE_REASON_CLOSED || reason == SPILE_REASON_PROTOCOL ||
         reason == SPILE_REASON_IO;
}

/* @return microseconds */
static int64_t row_take(const row *self, int policy) {
  int64_t took_us = 0;
  int result = 0;
  spile_decision decision = {0};
  /* On a busy machine the time may be over before the fault is met. */
  for (int tries = 0; tries < 20 && decision.store_error != self->reason; tries++) {
    static unsigned number;
    char key[16];
    int len = snprintf(key, sizeof(key), "%u", number++ % FAULT_KEYS_MAX);
    if (self->before != NULL)
      self->before();
    int64_t began_us = now_us();
    result = spile_take(self->limiter, limits[policy], key, (size_t)len, 1, &decision);
    took_us = now_us() - began_us;
    if (self->after != NULL)
      self->after();
    /* What comes late is there in time for a take that was held up for even longer. */
    cr_assert(decision.decided_by != SPILE_BY_STORE || took_us > 2000 * self->deadline_ms, "%s: answered by the store",
              self->name);
  }
  int code = self->code != 0 ? self->code : SPILE_EUNAVAILABLE;
  cr_assert(decision.store_error == self->reason, "%s: %s instead of %s: %s", self->name,
            spile_reason_name(decision.store_error), spile_reason_name(self->reason), decision.detail);
  cr_assert(result == (seen[policy].result != 0 ? seen[policy].result : code), "%s, %s: %d", self->name,
            seen[policy].policy, result);
  cr_assert(decision.outcome == seen[policy].outcome && decision.decided_by == seen[policy].decided_by,
            "%s, %s: %d by %s", self->name, seen[policy].policy, decision.outcome,
            spile_decided_by_name(decision.decided_by));
  cr_assert(decision.remaining == SPILE_UNKNOWN && decision.retry_after_ms == SPILE_UNKNOWN &&
                decision.reset_after_ms == SPILE_UNKNOWN && decision.detail[0] != '\0',
            "%s, %s: numbers that nobody knows, or no word why", self->name, seen[policy].policy);
  /* It says what to do, and where a charge is possible that too; LMDB that has given up has not even begun. */
  cr_assert(strchr(decision.detail, ';') != NULL, "%s: \"%s\" does not say what to do", self->name, decision.detail);
  cr_assert(strstr(decision.detail, "not known") != NULL || !reason_is_unclear(self->reason) ||
                strstr(decision.detail, "opens itself anew") != NULL,
            "%s: \"%s\" does not say that nobody knows", self->name, decision.detail);
  return took_us;
}

static void show_times(int64_t *took_us, size_t n) {
  qsort(took_us, n, sizeof(took_us[0]), compare);
  (void)printf(" %.2f ms | %.2f ms | %.2f ms |\n", (double)took_us[n / 2] / 1000, (double)took_us[n * 9 / 10] / 1000,
               (double)took_us[n - 1] / 1000);
  (void)fflush(stdout);
}

static void measure(const row *self) {
  int64_t took_us[3 * ROUNDS];
  for (int i = 0; i < 3 * ROUNDS; i++)
    took_us[i] = row_take(self, i % 3);
  (void)printf("| %s | `%s` | %s |", self->name, spile_reason_name(self->reason),
               reason_is_unclear(self->reason) ? "not known" : "no");
  show_times(took_us, 3 * ROUNDS);
  cr_assert(took_us[3 * ROUNDS * 9 / 10] <= self->deadline_ms * 1000 + SLACK_US, "%s: %" PRId64 " us", self->name,
            took_us[3 * ROUNDS * 9 / 10]);
}

static void table_begin(const char *title) {
  (void)printf("| %s | `store_error` | charged | median | nine of ten | longest |\n|---|---|---|---|---|---|\n", title);
}

/* ---- Redis: no server ---- */

static int listener_open(int backlog, char uri[64]) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(address);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&address, len) == 0 && listen(fd, backlog) == 0 &&
            getsockname(fd, (struct sockaddr *)&address, &len) == 0);
  (void)snprintf(uri, 64, "redis://127.0.0.1:%d", ntohs(address.sin_port));
  return fd;
}

static void measure_at(const char *name, const char *uri, int reason) {
  spile_limiter *limiter = open_limiter(uri, REDIS_MS, 1);
  measure(&(row){.name = name, .limiter = limiter, .reason = reason, .deadline_ms = REDIS_MS});
  spile_close(limiter);
}

static void rows_no_server(void) {
  measure_at("nobody listens", "redis://127.0.0.1:1", SPILE_REASON_CONNECT);
  measure_at("no such socket", "redis+unix:///nonexistent/redis.sock", SPILE_REASON_CONNECT);

  char uri[64];
  int listener = listener_open(0, uri);
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)atoi(strrchr(uri, ':') + 1)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fillers[8];
  for (int i = 0; i < 8; i++) {
    fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)connect(fillers[i], (struct sockaddr *)&address, sizeof(address));
  }
  (void)poll(NULL, 0, 50);
  measure_at("packets are dropped", uri, SPILE_REASON_CONNECT);
  for (int i = 0; i < 8; i++)
    (void)close(fillers[i]);
  (void)close(listener);

  listener = listener_open(1000, uri);
  measure_at("accepted and never served", uri, SPILE_REASON_CONNECT);
  (void)close(listener);
}

/* ---- Redis: a bad network ---- */

/* Reasons of the faults that always lead to one. */
static const struct {
  fault kind;
  int reason;
} network[] = {
    {FAULT_LOST, SPILE_REASON_TIMEOUT},         {FAULT_LATE, SPILE_REASON_TIMEOUT},
    {FAULT_DELAY, SPILE_REASON_TIMEOUT},        {FAULT_DROP, SPILE_REASON_TIMEOUT},
    {FAULT_DRIP, SPILE_REASON_TIMEOUT},         {FAULT_STALL, SPILE_REASON_TIMEOUT},
    {FAULT_CUT, SPILE_REASON_CLOSED},           {FAULT_RESET, SPILE_REASON_CLOSED},
    {FAULT_DUPLICATE, SPILE_REASON_PROTOCOL},   {FAULT_OLDER_BEFORE, SPILE_REASON_PROTOCOL},
    {FAULT_GARBAGE, SPILE_REASON_PROTOCOL},     {FAULT_HTTP, SPILE_REASON_PROTOCOL},
    {FAULT_HUGE_STRING, SPILE_REASON_PROTOCOL}, {FAULT_HUGE_ARRAY, SPILE_REASON_PROTOCOL},
    {FAULT_DEEP_ARRAY, SPILE_REASON_PROTOCOL},
};

/* The first word of each error, and what it means. */
static const struct {
  const char *word;
  int reason;
} errors[] = {
    {"MOVED", SPILE_REASON_REFUSED},    {"ASK", SPILE_REASON_REFUSED},        {"READONLY", SPILE_REASON_READONLY},
    {"OOM", SPILE_REASON_OOM},          {"BUSY", SPILE_REASON_REFUSED},       {"LOADING", SPILE_REASON_LOADING},
    {"NOAUTH", SPILE_REASON_AUTH},      {"MASTERDOWN", SPILE_REASON_REFUSED}, {"CLUSTERDOWN", SPILE_REASON_REFUSED},
    {"TRYAGAIN", SPILE_REASON_REFUSED},
};

static void warm_up(spile_limiter *limiter) {
  spile_decision decision = {0};
  for (int tries = 0; tries < 100 && decision.decided_by != SPILE_BY_STORE; tries++)
    (void)(spile_take(limiter, limits[0], "warm", 4, 1, &decision) > 0);
  cr_assert(decision.decided_by == SPILE_BY_STORE, "%s", decision.detail);
}

static void rows_network(redis_server *server) {
  fault_proxy *proxy = fault_proxy_start(server, 1);
  spile_limiter *limiter = open_limiter(fault_proxy_tcp_uri(proxy), REDIS_MS, 1);
  warm_up(limiter);
  for (size_t i = 0; i < sizeof(network) / sizeof(network[0]); i++) {
    fault_plan plan = fault_plan_of(network[i].kind);
    plan.delay_ms = 4 * REDIS_MS;
    fault_proxy_set(proxy, &plan);
    measure(&(row){
        .name = fault_name(network[i].kind), .limiter = limiter, .reason = network[i].reason, .deadline_ms = REDIS_MS});
  }
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
    fault_plan plan = fault_plan_of(FAULT_ERROR);
    plan.error = 0;
    while (strncmp(fault_errors[plan.error] + 1, errors[i].word, strlen(errors[i].word)) != 0)
      plan.error++;
    fault_proxy_set(proxy, &plan);
    char name[64];
    (void)snprintf(name, sizeof(name), "error `%s`", errors[i].word);
    measure(&(row){.name = name, .limiter = limiter, .reason = errors[i].reason, .deadline_ms = REDIS_MS});
  }
  spile_close(limiter);
  fault_proxy_settle(proxy);
  fault_proxy_stop(proxy);
}

/* ---- Redis: a server in trouble ---- */

static void measure_server(redis_server *server, const char *name, int reason) {
  spile_limiter *limiter = open_limiter(redis_server_unix_uri(server), REDIS_MS, 1);
  measure(&(row){.name = name, .limiter = limiter, .reason = reason, .deadline_ms = REDIS_MS});
  spile_close(limiter);
}

static void *hold_link(void *user) {
  spile_decision decision;
  (void)(spile_take(user, limits[0], "held", 4, 1, &decision) > 0);
  return NULL;
}

static void rows_server(redis_server *server) {
  redis_server_run(server, "CONFIG SET maxmemory-policy noeviction");
  redis_server_run(server, "CONFIG SET maxmemory 1");
  redis_server_run(server, "FLUSHALL");
  measure_server(server, "`maxmemory` reached, `noeviction`", SPILE_REASON_OOM);
  redis_server_run(server, "CONFIG SET maxmemory 0");

  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
  measure_server(server, "the server became a replica", SPILE_REASON_READONLY);
  redis_server_run(server, "REPLICAOF NO ONE");

  for (int i = 0; i < FAULT_KEYS_MAX; i++)
    redis_server_run(server, "SET rl:{%d}:default 7 EX 1000", i);
  measure_server(server, "somebody else's value under the key", SPILE_REASON_FOREIGN);
  redis_server_run(server, "FLUSHALL");

  redis_server_run(server, "CLIENT PAUSE 4000 ALL");
  measure_server(server, "`CLIENT PAUSE`", SPILE_REASON_CONNECT);
  redis_server_run(server, "PING");

  (void)kill(redis_server_pid(server), SIGSTOP);
  measure_server(server, "the server is stopped (SIGSTOP)", SPILE_REASON_CONNECT);
  (void)kill(redis_server_pid(server), SIGCONT);

  /* One connection, and somebody who may wait for longer has it. */
  spile_limiter *limiter = open_limiter(redis_server_unix_uri(server), 0, 1);
  warm_up(limiter);
  (void)kill(redis_server_pid(server), SIGSTOP);
  spile_limit *quick[3] = {limits[0], limits[1], limits[2]};
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = def.refill_tokens = 1000;
  def.refill_period_ms = 1000;
  def.timeout_ms = 10000;
  cr_assert(eq(int, spile_limit_create(&limits[0], &def, NULL), SPILE_OK));
  pthread_t thread;
  cr_assert(pthread_create(&thread, NULL, hold_link, limiter) == 0);
  (void)poll(NULL, 0, 50);
  spile_limit *patient = limits[0];
  limits[0] = quick[0];
  measure(&(row){
      .name = "every connection is in use", .limiter = limiter, .reason = SPILE_REASON_BUSY, .deadline_ms = REDIS_MS});
  (void)kill(redis_server_pid(server), SIGCONT);
  (void)pthread_join(thread, NULL);
  spile_limit_unref(patient);
  spile_close(limiter);

  redis_server_run(server, "CONFIG SET requirepass secret");
  measure_server(server, "a password is missing", SPILE_REASON_AUTH);
}

static void row_breaker(void) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.breaker_wait_ms = 3600000;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, "redis://127.0.0.1:1", &options, &error) == SPILE_OK, "%s", error.message);
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, spile_take(limiter, limits[0], "k", 1, 1, NULL), SPILE_EUNAVAILABLE));
  measure(
      &(row){.name = "any of these, five times in a row before", .limiter = limiter, .reason = SPILE_REASON_BREAKER});
  spile_close(limiter);
}

/* ---- LMDB ---- */

static int fail_call;
static int fail_error;

static void fail_begin(void) {
  seam_arm(&(seam_plan){.call = (seam_call)fail_call, .at = 1, .fails = INT_MAX, .error = fail_error});
}

static void measure_call(spile_limiter *limiter, const char *name, seam_call call, int error, int reason) {
  fail_call = (int)call;
  fail_error = error;
  measure(&(row){.name = name,
                 .limiter = limiter,
                 .reason = reason,
                 .deadline_ms = LMDB_MS,
                 .before = fail_begin,
                 .after = seam_disarm});
}

/* A process that takes the lock in front of LMDB and then does nothing more. */
static pid_t holder_start(const char *uri) {
  int ready[2];
  cr_assert(pipe(ready) == 0);
  pid_t holder = fork();
  cr_assert(holder >= 0);
  if (holder == 0) {
    spile_store *store;
    bool held = spile_store_open(&store, uri, NULL, NULL) == SPILE_OK &&
                spile__lmdb_lock_take(&((spile__lmdb_store *)store)->env->side.board->lock, 1000) == 0;
    (void)!write(ready[1], &held, 1);
    for (;;)
      (void)pause();
  }
  bool held = false;
  cr_assert(read(ready[0], &held, 1) == 1 && held);
  (void)close(ready[0]);
  (void)close(ready[1]);
  (void)kill(holder, SIGSTOP);
  return holder;
}

static void rows_lmdb(void) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  temp_dir_make(dir);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store?sync=full&map_size=8MiB", dir);
  spile_limiter *limiter = open_limiter(uri, LMDB_MS, 0);
  warm_up(limiter);
  measure_call(limiter, "the disk is full (ENOSPC)", SEAM_PWRITE, ENOSPC, SPILE_REASON_IO);
  measure_call(limiter, "a write fails (EIO)", SEAM_PWRITE, EIO, SPILE_REASON_IO);
  measure_call(limiter, "a sync fails (EIO)", SEAM_FDATASYNC, EIO, SPILE_REASON_IO);
  warm_up(limiter);

  pid_t holder = holder_start(uri);
  measure(&(row){.name = "a process is stopped while it writes",
                 .limiter = limiter,
                 .reason = SPILE_REASON_LOCKED,
                 .deadline_ms = LMDB_MS});
  (void)kill(holder, SIGKILL);
  (void)waitpid(holder, NULL, 0);
  int64_t began_us = now_us();
  warm_up(limiter);
  int64_t took_us = now_us() - began_us;
  (void)printf("| … and then killed: the next take | none | yes |");
  show_times(&took_us, 1);
  spile_close(limiter);
  temp_dir_remove(dir);
}

/* ---- Memory, and no room ---- */

static void row_memory(void) {
  /* Every take brings a limit that is new to the store, whose copy finds no memory. */
  spile_limiter *limiter = open_limiter("memory:?keys=100", 0, 0);
  fail_call = SEAM_ALLOCATE;
  fail_error = ENOMEM;
  measure(&(row){.name = "no memory for a limit that is new",
                 .limiter = limiter,
                 .reason = SPILE_REASON_MEMORY,
                 .code = SPILE_ENOMEM,
                 .before = fail_begin,
                 .after = seam_disarm});
  spile_close(limiter);
}

/* What a new key gets where there is no room, by its limit's on_full. */
static void row_full(const char *name, const char *uri) {
  static const char *const words[3] = {"fail", "open", "closed"};
  static const int results[3] = {SPILE_EFULL, SPILE_ALLOWED, SPILE_DENIED};
  spile_limiter *limiter = open_limiter(uri, LMDB_MS, 0);
  int64_t took_us[3 * ROUNDS];
  int n = 0;
  char key[256];
  (void)printf("| %s |", name);
  for (int policy = 0; policy < 3; policy++) {
    char text[64];
    spile_limit *limit;
    spile_decision decision = {0};
    (void)snprintf(text, sizeof(text), "5/d,on_full=%s", words[policy]);
    cr_assert(eq(int, spile_limit_parse(&limit, text, NULL), SPILE_OK));
    int result = SPILE_ALLOWED;
    for (int i = 0; i < 100000 && decision.decided_by != SPILE_BY_FULL && result != SPILE_EFULL; i++) {
      int len = snprintf(key, sizeof(key), "%d-%0200d", policy, i);
      result = spile_take(limiter, limit, key, (size_t)len, 1, &decision);
    }
    for (int i = 0; i < ROUNDS; i++) {
      int len = snprintf(key, sizeof(key), "more-%d-%0200d", policy, i);
      int64_t began_us = now_us();
      result = spile_take(limiter, limit, key, (size_t)len, 1, &decision);
      took_us[n++] = now_us() - began_us;
      cr_assert(result == results[policy] && decision.store_error == SPILE_REASON_NONE, "%s, on_full=%s: %d: %s", name,
                words[policy], result, decision.detail);
    }
    (void)printf(" `%s`, `%s` |", spile_code_name(result), spile_decided_by_name(decision.decided_by));
    spile_limit_unref(limit);
  }
  show_times(took_us, 3 * ROUNDS);
  spile_close(limiter);
}

Test(failure_table, every_fault_is_told_by_its_name_and_in_time) {
  limits_make();
  policies_show();
  table_begin("Redis, deadline 25 ms");
  rows_no_server();
  redis_server *server = redis_server_start();
  rows_network(server);
  rows_server(server);
  redis_server_free(server);
  row_breaker();
  (void)printf("\n");

  table_begin("LMDB, `sync=full`, deadline 100 ms");
  rows_lmdb();
  (void)printf("\n");

  table_begin("memory");
  row_memory();
  (void)printf("\n| no room for a new key | `on_full=fail` | `on_full=open` | `on_full=closed` | median | nine of ten "
               "| longest |\n");
  (void)printf("|---|---|---|---|---|---|---|\n");
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  temp_dir_make(dir);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store?map_size=256KiB", dir);
  row_full("memory", "memory:?keys=10");
  row_full("LMDB", uri);
  temp_dir_remove(dir);
  limits_drop();
}
