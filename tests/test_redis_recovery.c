/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of a real server that end, while one store stays open: the first real decision comes within a second after the
 * end, and nothing is charged twice. No breaker stands before the store here.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "backends/redis.h"
#include "redis_server.h"
#include "redis_store.h"

/* The library's second, and what a busy machine may add. */
#define RECOVERY_MAX_MS (1000 + 2000)
#define TIMEOUT_MS 50     /* where the server stands still */
#define PATIENCE_MS 20000 /* where it answers, on any machine */

/* ---- A load of four threads ---- */

#define LOADERS 4

typedef struct traffic {
  spile_store *store;
  spile_spec spec;
  int64_t timeout_ms;
  atomic_bool ending;
  atomic_int allowed;
  atomic_int failed;
  atomic_int unclear; /* failures after which a charge is possible */
  pthread_t threads[LOADERS];
} traffic;

static void *load_run(void *user) {
  traffic *self = user;
  while (!atomic_load(&self->ending)) {
    answer got = store_take_within(self->store, "k", &self->spec, self->timeout_ms);
    if (got.code == SPILE_ALLOWED) {
      atomic_fetch_add(&self->allowed, 1);
      continue;
    }
    cr_assert(got.code == SPILE_EUNAVAILABLE, "%d: %s", got.code, got.error.message);
    if (got.error.reason == SPILE_REASON_TIMEOUT || got.error.reason == SPILE_REASON_CLOSED)
      atomic_fetch_add(&self->unclear, 1);
    atomic_fetch_add(&self->failed, 1);
    (void)poll(NULL, 0, 1);
  }
  return NULL;
}

/* Takes from one bucket that nothing refills meanwhile, so that every charge shows. */
static void load_begin(traffic *self, const char *uri, int64_t timeout_ms) {
  *self = (traffic){.spec = spec_of(1000000, 1, 300000), .timeout_ms = timeout_ms};
  self->store = store_open(uri, false);
  for (int i = 0; i < LOADERS; i++)
    cr_assert(pthread_create(&self->threads[i], NULL, load_run, self) == 0);
}

static void load_pass(traffic *self, int takes) {
  int from = atomic_load(&self->allowed);
  for (int64_t until_ms = store_monotonic_ms() + 20000; atomic_load(&self->allowed) < from + takes;) {
    cr_assert(store_monotonic_ms() < until_ms, "the load does not go on");
    (void)poll(NULL, 0, 1);
  }
}

/* How long until a take that began after now is allowed. */
static int64_t load_recovers(traffic *self) {
  int64_t start_ms = store_monotonic_ms();
  load_pass(self, LOADERS + 1);
  return store_monotonic_ms() - start_ms;
}

static void load_end(traffic *self) {
  atomic_store(&self->ending, true);
  for (int i = 0; i < LOADERS; i++)
    (void)pthread_join(self->threads[i], NULL);
}

/* What the bucket lacks is what was allowed, and at most what is not known. */
static void load_balance(traffic *self) {
  answer got = store_peek(self->store, "k", &self->spec, 1, SPILE_STORE_TIME);
  cr_assert(got.code == SPILE_ALLOWED, "%s", got.error.message);
  int64_t charged = 1000000 - got.decision.remaining;
  int allowed = atomic_load(&self->allowed);
  cr_assert(charged >= allowed && charged <= allowed + atomic_load(&self->unclear),
            "%" PRId64 " charged, %d allowed, %d not known", charged, allowed, atomic_load(&self->unclear));
}

#define ASSERT_RECOVERED(name, took_ms)                                                  \
  do {                                                                                   \
    int64_t recovered_ms = (took_ms);                                                    \
    cr_log_info("%s: first real decision after %" PRId64 " ms", name, recovered_ms);     \
    cr_assert(recovered_ms < RECOVERY_MAX_MS, "%s: %" PRId64 " ms", name, recovered_ms); \
  } while (0)

/* ---- The faults ---- */

Test(redis_recovery, redis_14_a_server_that_was_killed_is_used_again_when_it_is_back) {
  redis_server *server = redis_server_start();
  static const char *const names[] = {"killed and back, unix socket", "killed and back, TCP"};
  const char *uris[] = {redis_server_unix_uri(server), redis_server_tcp_uri(server)};
  for (int i = 0; i < 2; i++) {
    traffic load;
    load_begin(&load, uris[i], TIMEOUT_MS);
    load_pass(&load, 50);
    redis_server_stop(server);
    int failed = atomic_load(&load.failed);
    while (atomic_load(&load.failed) < failed + 20)
      (void)poll(NULL, 0, 1);
    redis_server_restart(server);
    ASSERT_RECOVERED(names[i], load_recovers(&load));
    load_end(&load);
    store_close(load.store);
  }
  redis_server_free(server);
}

/* REDIS-07: none of the takes fails, none is charged twice. */
Test(redis_recovery, redis_07_a_script_flushed_amid_a_load_costs_no_take) {
  redis_server *server = redis_server_start();
  traffic load;
  load_begin(&load, redis_server_unix_uri(server), PATIENCE_MS);
  for (int i = 0; i < 50; i++) {
    load_pass(&load, 20);
    redis_server_run(server, "SCRIPT FLUSH");
  }
  ASSERT_RECOVERED("SCRIPT FLUSH", load_recovers(&load));
  load_end(&load);
  cr_assert(eq(int, atomic_load(&load.failed), 0));
  load_balance(&load);
  store_close(load.store);
  redis_server_free(server);
}

Test(redis_recovery, connections_killed_amid_a_load_are_made_anew) {
  redis_server *server = redis_server_start();
  traffic load;
  load_begin(&load, redis_server_tcp_uri(server), TIMEOUT_MS);
  for (int i = 0; i < 30; i++) {
    load_pass(&load, 20);
    redis_server_run(server, "CLIENT KILL TYPE normal SKIPME yes");
  }
  ASSERT_RECOVERED("CLIENT KILL", load_recovers(&load));
  load_end(&load);
  load_balance(&load);
  store_close(load.store);
  redis_server_free(server);
}

Test(redis_recovery, a_paused_server_is_used_again_after_the_pause) {
  redis_server *server = redis_server_start();
  traffic load;
  load_begin(&load, redis_server_unix_uri(server), TIMEOUT_MS);
  load_pass(&load, 50);
  /* Read before: the pause may be over before this thread goes on. */
  int failed = atomic_load(&load.failed);
  redis_server_run(server, "CLIENT PAUSE 1000 ALL");
  while (atomic_load(&load.failed) < failed + LOADERS)
    (void)poll(NULL, 0, 1);
  /* Answered when the pause is over. */
  redis_server_run(server, "PING");
  ASSERT_RECOVERED("CLIENT PAUSE", load_recovers(&load));
  load_end(&load);
  load_balance(&load);
  store_close(load.store);
  redis_server_free(server);
}

Test(redis_recovery, a_stopped_server_is_used_again_when_it_goes_on) {
  redis_server *server = redis_server_start();
  traffic load;
  load_begin(&load, redis_server_tcp_uri(server), TIMEOUT_MS);
  load_pass(&load, 50);
  cr_assert(kill(redis_server_pid(server), SIGSTOP) == 0);
  int failed = atomic_load(&load.failed);
  while (atomic_load(&load.failed) < failed + 2 * LOADERS)
    (void)poll(NULL, 0, 1);
  cr_assert(kill(redis_server_pid(server), SIGCONT) == 0);
  ASSERT_RECOVERED("SIGSTOP", load_recovers(&load));
  load_end(&load);
  load_balance(&load);
  store_close(load.store);
  redis_server_free(server);
}

Test(redis_recovery, redis_10_a_replica_that_is_promoted_again_is_used) {
  redis_server *server = redis_server_start();
  traffic load;
  load_begin(&load, redis_server_unix_uri(server), PATIENCE_MS);
  load_pass(&load, 50);
  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
  int failed = atomic_load(&load.failed);
  while (atomic_load(&load.failed) < failed + 20)
    (void)poll(NULL, 0, 1);
  redis_server_run(server, "REPLICAOF NO ONE");
  ASSERT_RECOVERED("REPLICAOF", load_recovers(&load));
  load_end(&load);
  cr_assert(eq(int, atomic_load(&load.unclear), 0));
  load_balance(&load);
  store_close(load.store);
  redis_server_free(server);
}

Test(redis_recovery, redis_11_a_server_out_of_memory_denies_and_takes_new_keys_when_it_has_some) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(2, 1, 3600000);
  redis_server_run(server, "CONFIG SET maxmemory-policy noeviction");
  ASSERT_ALLOWED(store_take(store, "known", &spec, 2, SPILE_STORE_TIME), 0);
  redis_server_run(server, "CONFIG SET maxmemory 1");
  ASSERT_UNAVAILABLE(store_take(store, "new", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_OOM);
  cr_assert(eq(int, store_take(store, "known", &spec, 1, SPILE_STORE_TIME).code, SPILE_DENIED));
  redis_server_run(server, "CONFIG SET maxmemory 0");
  int64_t start_ms = store_monotonic_ms();
  ASSERT_ALLOWED(store_take(store, "new", &spec, 1, SPILE_STORE_TIME), 1);
  ASSERT_RECOVERED("maxmemory", store_monotonic_ms() - start_ms);
  store_close(store);
  redis_server_free(server);
}
