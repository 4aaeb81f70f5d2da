/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that are killed at any instant, over the stores that processes share. What a worker was told is in a ledger
 * of shared memory, written after the take returns; what was charged is in the store. A kill may leave one charge that
 * nobody was told of; nothing else may differ.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <sched.h>
#include <signal.h>
#include <spile/spile.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "redis_server.h"
#include "temp_dir.h"

enum { WORKERS = 4, KILLS = 300, CAPACITY = 10000000 };

typedef struct ledger {
  atomic_llong started; /* takes that a worker began */
  atomic_llong allowed;
  atomic_llong denied;
  atomic_llong failed;
} ledger;

static ledger *ledger_new(void) {
  void *at = mmap(NULL, sizeof(ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(at != MAP_FAILED);
  return at;
}

static spile_limiter *open_store(const char *uri) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = 20000;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, uri, &options, &error) == SPILE_OK, "%s", error.message);
  return limiter;
}

static spile_limit *limit_of(int64_t capacity) {
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = capacity;
  /* Hardly any, and yet a large bucket must be full in fewer than ten years. */
  def.refill_tokens = capacity > 1000 ? capacity / 10000 : 1;
  def.refill_period_ms = 3600000;
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_create(&limit, &def, NULL), SPILE_OK));
  return limit;
}

/* A worker takes until it is killed, or `takes` times. */
static pid_t worker_start(const char *uri, const spile_limit *limit, ledger *book, long long takes) {
  pid_t pid = fork();
  cr_assert(ge(int, pid, 0));
  if (pid > 0)
    return pid;
  spile_limiter *limiter = open_store(uri);
  for (long long i = 0; i < takes; i++) {
    atomic_fetch_add(&book->started, 1);
    int result = spile_take(limiter, limit, "k", 1, 1, NULL);
    atomic_fetch_add(result == SPILE_ALLOWED  ? &book->allowed
                     : result == SPILE_DENIED ? &book->denied
                                              : &book->failed,
                     1);
  }
  spile_close(limiter);
  _exit(0);
}

/* Waits until the workers have begun so many takes in all, so that a kill meets work and not only forks. */
static void progress_wait(ledger *book, long long takes) {
  while (atomic_load(&book->started) < takes)
    (void)sched_yield();
}

static void kill_workers(const char *uri) {
  spile_limiter *limiter = open_store(uri);
  spile_limit *limit = limit_of(CAPACITY);
  ledger *book = ledger_new();
  pid_t workers[WORKERS];
  uint64_t seed = 7;
  for (int i = 0; i < WORKERS; i++)
    workers[i] = worker_start(uri, limit, book, INT64_MAX);
  for (int i = 0; i < KILLS; i++) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    progress_wait(book, atomic_load(&book->started) + 1 + (long long)(seed >> 60));
    int victim = (int)(seed >> 33) % WORKERS;
    cr_assert(kill(workers[victim], SIGKILL) == 0);
    int status;
    cr_assert(waitpid(workers[victim], &status, 0) == workers[victim]);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    cr_assert(killed, "a worker ended by itself: %x", status);
    workers[victim] = worker_start(uri, limit, book, INT64_MAX);
  }
  for (int i = 0; i < WORKERS; i++) {
    cr_assert(kill(workers[i], SIGKILL) == 0);
    (void)waitpid(workers[i], NULL, 0);
  }
  /* A request that a killed worker had sent may still be on its way; the store answers this one behind it. */
  spile_decision d;
  int result = spile_take(limiter, limit, "k", 1, 1, &d);
  cr_assert(result == SPILE_ALLOWED, "%s", d.detail);
  long long allowed = atomic_load(&book->allowed) + 1;
  long long charged = CAPACITY - d.remaining;
  long long refilled = 100; /* 1,000 tokens an hour, and no run of this takes six minutes */
  fprintf(stderr, "kill: %d kills, %lld told, %lld charged, %lld failed\n", KILLS + WORKERS, allowed, charged,
          atomic_load(&book->failed));
  cr_assert(eq(i64, atomic_load(&book->failed), 0));
  cr_assert(charged >= allowed - refilled, "lost: %lld of %lld", allowed - charged, allowed);
  cr_assert(charged - allowed <= KILLS + WORKERS, "%lld charges too many", charged - allowed);
  spile_limit_unref(limit);
  spile_close(limiter);
}

/* Eight workers on a bucket of 100 that does not refill meanwhile, some of them killed: never more than 100 are told.
 */
static void kill_at_the_edge(const char *uri) {
  spile_limit *limit = limit_of(100);
  ledger *book = ledger_new();
  pid_t workers[8];
  for (int i = 0; i < 8; i++)
    workers[i] = worker_start(uri, limit, book, 60);
  progress_wait(book, 20);
  for (int i = 0; i < 3; i++)
    (void)kill(workers[i], SIGKILL);
  for (int i = 0; i < 8; i++)
    cr_assert(waitpid(workers[i], NULL, 0) == workers[i]);
  spile_limiter *limiter = open_store(uri);
  long long allowed = atomic_load(&book->allowed);
  while (spile_allow(limiter, limit, "k"))
    allowed++;
  fprintf(stderr, "kill: %lld of 100 told, 3 workers of 8 killed\n", allowed);
  cr_assert(allowed <= 100 && allowed >= 97, "%lld", allowed);
  cr_assert(eq(i64, atomic_load(&book->failed), 0));
  spile_limit_unref(limit);
  spile_close(limiter);
}

Test(kill, lmdb_loses_nothing_and_charges_at_most_once_more_for_each_kill) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 16];
  temp_dir_make(dir);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store", dir);
  kill_workers(uri);
  temp_dir_remove(dir);
}

Test(kill, redis_loses_nothing_and_charges_at_most_once_more_for_each_kill) {
  redis_server *server = redis_server_start();
  kill_workers(redis_server_unix_uri(server));
  redis_server_free(server);
}

Test(kill, lmdb_lets_no_more_than_the_capacity_through) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 16];
  temp_dir_make(dir);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store", dir);
  kill_at_the_edge(uri);
  temp_dir_remove(dir);
}

Test(kill, redis_lets_no_more_than_the_capacity_through) {
  redis_server *server = redis_server_start();
  kill_at_the_edge(redis_server_unix_uri(server));
  redis_server_free(server);
}
