/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a real server does to its clients when it fails, under load, with the breaker on. Four threads take all the
 * time, half of them under a limit that is open, half under one that is closed. Until the fault ends every answer is
 * the store's or labelled as the policy's; after it the store must answer again within a second and the time for which
 * the breaker had just then decided to wait.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spile/spile.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "redis_server.h"

#define THREADS 4
#define TIMEOUT_MS 25
#define BREAKER_WAIT_MS 100
#define FAULT_MS 1500
/* Scheduling of a busy machine. */
#define SLACK_MS 2000

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

typedef struct load {
  spile_limiter *limiter;
  spile_limit *open;
  spile_limit *closed;
  atomic_bool ending;
  atomic_uint_least64_t keys; /* a new one for each take, so that each take writes */
  atomic_uint_least64_t answered;
  atomic_uint_least64_t reasons[SPILE_REASONS_MAX];
  atomic_uint_least64_t unlabelled;
  atomic_int_least64_t answered_ms; /* when the store answered last */
  atomic_int_least64_t since_ms;    /* the first answer to a take that began at this time or later … */
  atomic_int_least64_t first_ms;    /* … came at this time */
  atomic_int_least64_t took_max_ms;
  pthread_t threads[THREADS];
} load;

static void load_judge(load *self, bool open, int result, const spile_decision *decision, int64_t began_ms) {
  if (decision->decided_by == SPILE_BY_STORE) {
    bool sound = result == SPILE_ALLOWED && decision->store_error == SPILE_REASON_NONE && decision->remaining == 4;
    (void)atomic_fetch_add(sound ? &self->answered : &self->unlabelled, 1);
    int64_t since_ms = atomic_load(&self->since_ms);
    int64_t none = 0;
    if (since_ms > 0 && began_ms >= since_ms)
      (void)atomic_compare_exchange_strong(&self->first_ms, &none, now_ms());
    return;
  }
  bool labelled = decision->decided_by == SPILE_BY_POLICY && decision->store_error != SPILE_REASON_NONE &&
                  result == (open ? SPILE_ALLOWED : SPILE_DENIED) && decision->remaining == SPILE_UNKNOWN &&
                  decision->retry_after_ms == SPILE_UNKNOWN && decision->reset_after_ms == SPILE_UNKNOWN;
  if (!labelled)
    (void)atomic_fetch_add(&self->unlabelled, 1);
  (void)atomic_fetch_add(&self->reasons[decision->store_error], 1);
}

static void *load_run(void *user) {
  load *self = user;
  while (!atomic_load(&self->ending)) {
    uint64_t number = atomic_fetch_add(&self->keys, 1);
    char key[32];
    int len = snprintf(key, sizeof(key), "%" PRIu64, number);
    bool open = number % 2 == 0;
    spile_decision decision;
    int64_t began_ms = now_ms();
    int result = spile_take(self->limiter, open ? self->open : self->closed, key, (size_t)len, 1, &decision);
    int64_t took_ms = now_ms() - began_ms;
    int64_t most_ms = atomic_load(&self->took_max_ms);
    while (took_ms > most_ms && !atomic_compare_exchange_weak(&self->took_max_ms, &most_ms, took_ms))
      continue;
    load_judge(self, open, result, &decision, began_ms);
    /* As fast as a server's requests come, not as fast as an open breaker can answer. */
    (void)nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
  }
  return NULL;
}

static void load_start(load *self, const char *uri) {
  *self = (load){.limiter = NULL};
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = TIMEOUT_MS;
  options.breaker_wait_ms = BREAKER_WAIT_MS;
  spile_error error = {0};
  cr_assert(spile_open(&self->limiter, uri, &options, &error) == SPILE_OK, "%s", error.message);
  cr_assert(eq(int, spile_limit_parse(&self->open, "5/10s,on_store_error=open", &error), SPILE_OK));
  cr_assert(eq(int, spile_limit_parse(&self->closed, "5/10s,on_store_error=closed", &error), SPILE_OK));
  for (int i = 0; i < THREADS; i++)
    cr_assert(pthread_create(&self->threads[i], NULL, load_run, self) == 0);
}

static void load_stop(load *self) {
  atomic_store(&self->ending, true);
  for (int i = 0; i < THREADS; i++)
    (void)pthread_join(self->threads[i], NULL);
  spile_limit_unref(self->open);
  spile_limit_unref(self->closed);
  spile_close(self->limiter);
}

static void wait_answered(load *self, uint64_t more) {
  uint64_t until = atomic_load(&self->answered) + more;
  for (int64_t end_ms = now_ms() + 20000; atomic_load(&self->answered) < until; (void)poll(NULL, 0, 5))
    cr_assert(now_ms() < end_ms, "the store does not answer");
}

static spile_counters counters_of(const load *self) {
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(self->limiter, &counters), SPILE_OK));
  return counters;
}

/*
 * The longest that the breaker can be waiting now: the first wait, doubled by each time it opened again without an
 * answer between, at most six times, and a fifth more by the draw.
 */
static int64_t breaker_wait_max_ms(const load *self, uint64_t opened_before) {
  spile_counters counters = counters_of(self);
  int64_t wait_ms = BREAKER_WAIT_MS;
  for (uint64_t i = 1; i < counters.breaker_opened - opened_before && i <= 6; i++)
    wait_ms *= 2;
  return counters.breaker == SPILE_BREAKER_CLOSED ? 0 : wait_ms * 6 / 5;
}

typedef struct server_fault {
  const char *name;
  void (*begin)(redis_server *server);
  void (*end)(redis_server *server);
  int reason;         /* what most of the failures say, beside the breaker */
  bool breaker_opens; /* the store is seen as failing, not as refusing */
} server_fault;

static void check(load *self, redis_server *server, const server_fault *fault) {
  wait_answered(self, 50);
  uint64_t opened_before = counters_of(self).breaker_opened;
  uint64_t reasons_before[SPILE_REASONS_MAX];
  for (int i = 0; i < SPILE_REASONS_MAX; i++)
    reasons_before[i] = atomic_load(&self->reasons[i]);
  fault->begin(server);
  (void)poll(NULL, 0, FAULT_MS);
  bool opened = counters_of(self).breaker_opened > opened_before;
  int64_t wait_ms = breaker_wait_max_ms(self, opened_before);
  if (fault->end != NULL)
    fault->end(server);
  int64_t ended_ms = now_ms();
  atomic_store(&self->first_ms, 0);
  atomic_store(&self->since_ms, ended_ms);
  wait_answered(self, 50);
  int64_t recovered_ms = atomic_load(&self->first_ms) - ended_ms;
  (void)printf("| %s |", fault->name);
  for (int i = 1; i < SPILE_REASONS_MAX; i++) {
    uint64_t met = atomic_load(&self->reasons[i]) - reasons_before[i];
    if (met > 0)
      (void)printf(" %s %" PRIu64, spile_reason_name(i), met);
  }
  (void)printf(" | %" PRIu64 " | %" PRId64 " ms | %" PRId64 " ms |\n", counters_of(self).breaker_opened - opened_before,
               wait_ms, recovered_ms);
  (void)fflush(stdout);
  cr_assert(atomic_load(&self->reasons[fault->reason]) > reasons_before[fault->reason], "%s: nothing failed as %s",
            fault->name, spile_reason_name(fault->reason));
  cr_assert(eq(int, opened, fault->breaker_opens));
  cr_assert(recovered_ms <= 1000 + wait_ms + SLACK_MS, "%s: %" PRId64 " ms", fault->name, recovered_ms);
}

static void run_fault(const server_fault *fault) {
  redis_server *server = redis_server_start();
  load l;
  load_start(&l, redis_server_unix_uri(server));
  check(&l, server, fault);
  load_stop(&l);
  cr_assert(eq(u64, atomic_load(&l.unlabelled), 0));
  cr_assert(lt(i64, atomic_load(&l.took_max_ms), TIMEOUT_MS + SLACK_MS));
  redis_server_free(server);
}

static void pause_begin(redis_server *server) {
  redis_server_run(server, "CLIENT PAUSE %d ALL", FAULT_MS);
}

Test(faults_server, client_pause) {
  run_fault(&(server_fault){"CLIENT PAUSE", pause_begin, NULL, SPILE_REASON_TIMEOUT, true});
}

static void stop_begin(redis_server *server) {
  (void)kill(redis_server_pid(server), SIGSTOP);
}

static void stop_end(redis_server *server) {
  (void)kill(redis_server_pid(server), SIGCONT);
}

Test(faults_server, sigstop) {
  run_fault(&(server_fault){"SIGSTOP", stop_begin, stop_end, SPILE_REASON_TIMEOUT, true});
}

static void memory_begin(redis_server *server) {
  redis_server_run(server, "CONFIG SET maxmemory-policy noeviction");
  redis_server_run(server, "CONFIG SET maxmemory 1");
}

static void memory_end(redis_server *server) {
  redis_server_run(server, "CONFIG SET maxmemory 0");
}

/* The server answers all the while, and known buckets may still be served: the breaker stays closed. */
Test(faults_server, out_of_memory_without_eviction) {
  run_fault(&(server_fault){"maxmemory, noeviction", memory_begin, memory_end, SPILE_REASON_OOM, false});
}

static void replica_begin(redis_server *server) {
  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
}

static void replica_end(redis_server *server) {
  redis_server_run(server, "REPLICAOF NO ONE");
}

Test(faults_server, replica) {
  run_fault(&(server_fault){"REPLICAOF", replica_begin, replica_end, SPILE_REASON_READONLY, true});
}

static void kill_begin(redis_server *server) {
  redis_server_stop(server);
}

static void kill_end(redis_server *server) {
  redis_server_restart(server);
}

Test(faults_server, killed_and_started_again) {
  run_fault(&(server_fault){"kill -9, restart without data", kill_begin, kill_end, SPILE_REASON_CONNECT, true});
}

/* Idle connections that are killed are replaced unseen; one that is killed in the middle of a take fails that take. */
Test(faults_server, client_kill) {
  redis_server *server = redis_server_start();
  load l;
  load_start(&l, redis_server_unix_uri(server));
  wait_answered(&l, 50);
  uint64_t answered_before = atomic_load(&l.answered);
  int64_t killed = 0;
  for (int64_t until_ms = now_ms() + FAULT_MS; now_ms() < until_ms; (void)poll(NULL, 0, 5))
    killed += redis_server_integer(server, "CLIENT KILL TYPE normal SKIPME yes");
  uint64_t answered = atomic_load(&l.answered) - answered_before;
  int64_t ended_ms = now_ms();
  atomic_store(&l.since_ms, ended_ms);
  wait_answered(&l, 50);
  uint64_t closed = atomic_load(&l.reasons[SPILE_REASON_CLOSED]);
  int64_t recovered_ms = atomic_load(&l.first_ms) - ended_ms;
  (void)printf("| CLIENT KILL every 5 ms, %" PRId64 " connections | closed %" PRIu64 " of %" PRIu64 " | | | %" PRId64
               " ms |\n",
               killed, closed, answered + closed, recovered_ms);
  load_stop(&l);
  cr_assert(lt(i64, 10, killed));
  cr_assert(lt(u64, 100, answered));
  cr_assert(eq(u64, atomic_load(&l.unlabelled), 0));
  cr_assert(le(i64, recovered_ms, 1000 + SLACK_MS));
  redis_server_free(server);
}
