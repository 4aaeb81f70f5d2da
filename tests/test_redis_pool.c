/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links of a store and who gets one: the order of the queue, its deadline, which connection is used again.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/redis.h"
#include "limiter/env.h"
#include "redis_server.h"
#include "redis_standin.h"
#include "redis_store.h"

#define PATIENCE_MS 20000

static spile__redis_store *inside(spile_store *store) {
  return (spile__redis_store *)store;
}

static spile__redis_link *borrow(spile_store *store) {
  spile__redis_link *link;
  spile_error error = {0};
  int result = spile__redis_borrow(inside(store), store_monotonic_ms() + PATIENCE_MS, &link, &error);
  cr_assert(result == SPILE_OK, "%s", error.message);
  return link;
}

/* ---- The queue ---- */

#define WAITERS 8
#define GOT_NONE (-1)
#define GOT_NOTHING_YET (-2)

typedef struct waiter {
  spile__redis_pool *pool;
  const spile_env *env;
  int64_t wait_ms;
  atomic_int *turn;  /* counts who got a link */
  atomic_int got_as; /* out: the how manieth; GOT_NONE; GOT_NOTHING_YET */
  pthread_t thread;
} waiter;

static void *waiter_run(void *user) {
  waiter *self = user;
  spile__redis_link *link = spile__redis_pool_take(self->pool, self->env, store_monotonic_ms() + self->wait_ms);
  atomic_store(&self->got_as, link != NULL ? atomic_fetch_add(self->turn, 1) : GOT_NONE);
  if (link != NULL)
    spile__redis_pool_give(self->pool, link);
  return NULL;
}

static size_t queue_len(spile__redis_pool *pool) {
  (void)pthread_mutex_lock(&pool->lock);
  size_t n = pool->n_waiting;
  (void)pthread_mutex_unlock(&pool->lock);
  return n;
}

static uint64_t ever_queued(spile__redis_pool *pool) {
  (void)pthread_mutex_lock(&pool->lock);
  uint64_t n = pool->n_queued;
  (void)pthread_mutex_unlock(&pool->lock);
  return n;
}

/* One after the other: the next comes when the one before has its place. */
static void waiters_line_up(waiter *waiters, size_t n, spile__redis_pool *pool, const spile_env *env,
                            atomic_int *turn) {
  for (size_t i = 0; i < n; i++) {
    uint64_t before = ever_queued(pool);
    waiters[i].pool = pool;
    waiters[i].env = env;
    waiters[i].turn = turn;
    atomic_init(&waiters[i].got_as, GOT_NOTHING_YET);
    cr_assert(pthread_create(&waiters[i].thread, NULL, waiter_run, &waiters[i]) == 0);
    /* On a slow machine its time may be over before it asks; then it never has a place. The queue's length would not
     * tell: others leave. */
    while (ever_queued(pool) == before && atomic_load(&waiters[i].got_as) == GOT_NOTHING_YET)
      (void)poll(NULL, 0, 1);
  }
}

Test(redis_pool, whoever_waits_longest_gets_the_next_link) {
  spile_env env;
  spile__env_init(&env);
  spile__redis_link link = {.handle = -1};
  spile__redis_pool pool = {.n_free = 0};
  spile__redis_pool_init(&pool, &link, 1);
  for (int round = 0; round < 20; round++) {
    atomic_int turn = 0;
    waiter waiters[WAITERS] = {{0}};
    for (size_t i = 0; i < WAITERS; i++)
      waiters[i].wait_ms = PATIENCE_MS;
    spile__redis_link *lent = spile__redis_pool_take(&pool, &env, store_monotonic_ms());
    cr_assert(lent == &link);
    waiters_line_up(waiters, WAITERS, &pool, &env, &turn);
    spile__redis_pool_give(&pool, lent);
    for (int i = 0; i < WAITERS; i++) {
      (void)pthread_join(waiters[i].thread, NULL);
      cr_assert(atomic_load(&waiters[i].got_as) == i, "round %d: number %d was served as %d", round, i,
                atomic_load(&waiters[i].got_as));
    }
    cr_assert(eq(sz, queue_len(&pool), 0));
    cr_assert(eq(sz, pool.n_free, 1));
  }
  spile__redis_pool_finish(&pool);
}

Test(redis_pool, who_gives_up_leaves_the_queue_and_the_others_their_places) {
  spile_env env;
  spile__env_init(&env);
  spile__redis_link link = {.handle = -1};
  spile__redis_pool pool = {.n_free = 0};
  spile__redis_pool_init(&pool, &link, 1);
  atomic_int turn = 0;
  waiter waiters[WAITERS] = {{0}};
  for (size_t i = 0; i < WAITERS; i++)
    waiters[i].wait_ms = i % 2 == 0 ? 30 : PATIENCE_MS;
  spile__redis_link *lent = spile__redis_pool_take(&pool, &env, store_monotonic_ms());
  waiters_line_up(waiters, WAITERS, &pool, &env, &turn);
  for (size_t i = 0; i < WAITERS; i += 2) {
    (void)pthread_join(waiters[i].thread, NULL);
    cr_assert(eq(int, atomic_load(&waiters[i].got_as), GOT_NONE));
  }
  spile__redis_pool_give(&pool, lent);
  for (int i = 1; i < WAITERS; i += 2) {
    (void)pthread_join(waiters[i].thread, NULL);
    cr_assert(eq(int, atomic_load(&waiters[i].got_as), i / 2));
  }
  spile__redis_pool_finish(&pool);
}

/* A link that comes back while somebody waits never lies free, so a thread that takes without a pause cannot win. */
typedef struct hog {
  spile_store *store;
  const spile_spec *spec;
  atomic_bool *ending;
  int64_t longest_ms;
  int takes;
  int failed;
  pthread_t thread;
} hog;

static void *hog_run(void *user) {
  hog *self = user;
  while (!atomic_load(self->ending)) {
    answer got = store_take(self->store, "shared", self->spec, 1, SPILE_STORE_TIME);
    self->failed += got.code < 0;
    self->takes++;
    if (got.took_ms > self->longest_ms)
      self->longest_ms = got.took_ms;
  }
  return NULL;
}

Test(redis_pool, no_thread_starves_when_many_share_two_links) {
  enum { HOGS = 16 };
  redis_server *server = redis_server_start();
  spile_store *store = store_open_over(redis_server_unix_uri(server), 2, NULL, NULL);
  spile_spec spec = spec_of(1000000, 1, 1000);
  atomic_bool ending = false;
  hog hogs[HOGS];
  for (int i = 0; i < HOGS; i++) {
    hogs[i] = (hog){.store = store, .spec = &spec, .ending = &ending};
    cr_assert(pthread_create(&hogs[i].thread, NULL, hog_run, &hogs[i]) == 0);
  }
  (void)poll(NULL, 0, 700);
  atomic_store(&ending, true);
  int64_t longest_ms = 0;
  int least = INT32_MAX;
  int most = 0;
  for (int i = 0; i < HOGS; i++) {
    (void)pthread_join(hogs[i].thread, NULL);
    cr_assert(eq(int, hogs[i].failed, 0));
    longest_ms = hogs[i].longest_ms > longest_ms ? hogs[i].longest_ms : longest_ms;
    least = hogs[i].takes < least ? hogs[i].takes : least;
    most = hogs[i].takes > most ? hogs[i].takes : most;
  }
  cr_log_info("16 threads, 2 links: %d to %d takes each, the longest took %" PRId64 " ms", least, most, longest_ms);
  cr_assert(least * 3 > most, "from %d to %d takes", least, most);
  store_close(store);
  redis_server_free(server);
}

/* ---- The deadline ---- */

Test(redis_pool, a_take_that_waits_for_a_link_ends_by_its_deadline) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open_over(redis_server_unix_uri(server), 2, NULL, NULL);
  spile_spec spec = spec_of(5, 1, 3600000);
  spile__redis_link *links[2] = {borrow(store), borrow(store)};
  answer got = store_take_within(store, "k", &spec, 40);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_BUSY);
  cr_assert(strstr(got.error.message, "all 2 connections") != NULL, "%s", got.error.message);
  cr_assert(got.took_ms >= 40 && got.took_ms < 300, "%" PRId64 " ms", got.took_ms);
  spile_item item = {.key = "k", .key_len = 1, .spec = &spec};
  spile_error error = {0};
  cr_assert(eq(int, store->ops->clear(store, &item, store_monotonic_ms() + 10, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_BUSY));
  spile__redis_return(inside(store), links[0]);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  spile__redis_return(inside(store), links[1]);
  /* A deadline that has passed sends nothing. */
  redis_server_run(server, "CONFIG RESETSTAT");
  ASSERT_UNAVAILABLE(store_take_within(store, "k", &spec, 0), SPILE_REASON_BUSY);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
  redisReply *info = redis_server_command(server, "INFO stats");
  cr_assert(strstr(info->str, "total_connections_received:0\r\n") != NULL, "%s", info->str);
  freeReplyObject(info);
  store_close(store);
  redis_server_free(server);
}

Test(redis_pool, as_many_links_as_were_asked_for_and_not_more) {
  static const int rows[][2] = {{0, 4}, {1, 1}, {64, 64}};
  for (size_t i = 0; i < 3; i++) {
    spile_store *store = store_open_over("redis://127.0.0.1:1", rows[i][0], NULL, NULL);
    cr_assert(eq(sz, inside(store)->n_links, (size_t)rows[i][1]));
    for (int n = 0; n < rows[i][1]; n++)
      (void)borrow(store);
    spile__redis_link *link;
    spile_error error = {0};
    cr_assert(eq(int, spile__redis_borrow(inside(store), store_monotonic_ms(), &link, &error), SPILE_EUNAVAILABLE));
    cr_assert(link == NULL);
    store_close(store);
  }
  spile_env env;
  spile__env_init(&env);
  static const int wrong[] = {-1, 65};
  for (size_t i = 0; i < 2; i++) {
    spile__store_config config = {.address = "127.0.0.1:1", .env = &env, .key_prefix = "rl", .connections = wrong[i]};
    spile_store *store;
    spile_error error = {0};
    cr_assert(eq(int, spile__redis_open(&store, &config, false, &error), SPILE_EINVAL));
    cr_assert(strstr(error.message, "1 to 64") != NULL, "%s", error.message);
  }
}

/* ---- Which link ---- */

Test(redis_pool, the_link_used_last_is_used_first_and_others_are_opened_when_needed) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open_over(redis_server_unix_uri(server), 3, NULL, NULL);
  spile_spec spec = spec_of(1000, 1, 3600000);
  for (int i = 0; i < 10; i++)
    cr_assert(store_take(store, "k", &spec, 1, SPILE_STORE_TIME).code == SPILE_ALLOWED);
  spile__redis_link *first = borrow(store);
  cr_assert(first->handle >= 0);
  spile__redis_link *second = borrow(store);
  cr_assert(second->handle < 0, "a second connection was made though one was enough");
  spile__redis_return(inside(store), first);
  spile__redis_return(inside(store), second);
  /* The one without a connection went below. */
  spile__redis_link *again = borrow(store);
  cr_assert(again == first);
  cr_assert(store_take(store, "k", &spec, 1, SPILE_STORE_TIME).code == SPILE_ALLOWED);
  spile__redis_return(inside(store), again);
  again = borrow(store);
  cr_assert(again == first);
  spile__redis_return(inside(store), again);
  store_close(store);
  redis_server_free(server);
}

/* REDIS-14, with more than one link: those that died idle cost no take. */
Test(redis_pool, redis_14_every_link_that_died_idle_is_replaced_in_the_take_that_finds_it) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open_over(redis_server_tcp_uri(server), 4, NULL, NULL);
  spile_spec spec = spec_of(1000, 1, 3600000);
  spile__redis_link *links[4];
  for (int round = 0; round < 2; round++) {
    /* Every link gets a connection. */
    for (int i = 0; i < 4; i++) {
      cr_assert(store_take(store, "k", &spec, 1, SPILE_STORE_TIME).code == SPILE_ALLOWED);
      links[i] = borrow(store);
      cr_assert(links[i]->handle >= 0);
    }
    for (int i = 0; i < 4; i++)
      spile__redis_return(inside(store), links[i]);
    if (round == 0)
      redis_server_restart(server);
  }
  store_close(store);
  redis_server_free(server);
}

Test(redis_pool, a_child_that_forked_amid_takes_closes_its_copy_and_the_parent_goes_on) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open_over(redis_server_unix_uri(server), 2, NULL, NULL);
  spile_spec spec = spec_of(1000000, 1, 1000);
  atomic_bool ending = false;
  hog hogs[4];
  for (int i = 0; i < 4; i++) {
    hogs[i] = (hog){.store = store, .spec = &spec, .ending = &ending};
    cr_assert(pthread_create(&hogs[i].thread, NULL, hog_run, &hogs[i]) == 0);
  }
  for (int i = 0; i < 20; i++) {
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
      store->ops->close(store, true);
      _exit(0);
    }
    int status;
    cr_assert(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
  }
  atomic_store(&ending, true);
  for (int i = 0; i < 4; i++) {
    (void)pthread_join(hogs[i].thread, NULL);
    cr_assert(eq(int, hogs[i].failed, 0));
  }
  store_close(store);
  redis_server_free(server);
}

static int frees;

static void *allocate_counted(void *user, void *block, size_t size) {
  (void)user;
  if (size > 0)
    return realloc(block, size);
  frees++;
  free(block);
  return NULL;
}

/* What a thread of the parent was using is in whatever state. */
Test(redis_pool, a_child_leaves_the_memory_of_a_lent_link_alone) {
  redis_server *server = redis_server_start();
  spile_env env;
  spile__env_init(&env);
  env.allocate = allocate_counted;
  spile__store_config config = {.address = redis_server_unix_uri(server) + strlen("redis+unix://"),
                                .env = &env,
                                .key_prefix = "rl",
                                .connections = 1};
  spile_spec spec = spec_of(5, 1, 1000);
  for (int lent = 0; lent < 2; lent++) {
    spile_store *store;
    spile_error error = {0};
    cr_assert(spile__redis_open(&store, &config, true, &error) == SPILE_OK);
    ASSERT_ALLOWED(store_peek(store, "k", &spec, 1, SPILE_STORE_TIME), 5);
    spile__redis_link *link = borrow(store);
    if (lent == 0)
      spile__redis_return(inside(store), link);
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
      frees = 0;
      store->ops->close(store, true);
      _exit(frees);
    }
    int status;
    /* The store; and the commands, the answers and the arguments of its link. */
    cr_assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    cr_assert(eq(int, WEXITSTATUS(status), lent == 0 ? 4 : 1));
    if (lent != 0)
      spile__redis_return(inside(store), link);
    store_close(store);
  }
  redis_server_free(server);
}

/* ---- Walks ---- */

static void *clean_run(void *user) {
  spile_store *store = user;
  bool again = true;
  while (again) {
    spile_error error = {0};
    int result = store->ops->clean(store, SPILE_CLEAN_SIMULATED, SPILE_STORE_TIME, store_monotonic_ms() + PATIENCE_MS,
                                   &again, &error);
    cr_assert(result == SPILE_OK, "%s", error.message);
  }
  return NULL;
}

Test(redis_pool, two_threads_clean_together) {
  redis_server *server = redis_server_start();
  spile_store *simulation = store_open(redis_server_unix_uri(server), true);
  spile_spec spec = spec_of(5, 1, 1000);
  char key[16];
  for (int i = 0; i < 1000; i++) {
    (void)snprintf(key, sizeof(key), "%d", i);
    ASSERT_ALLOWED(store_take(simulation, key, &spec, 1, 1000), 4);
  }
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    cr_assert(pthread_create(&threads[i], NULL, clean_run, simulation) == 0);
  for (int i = 0; i < 2; i++)
    (void)pthread_join(threads[i], NULL);
  /* A step of one thread may have skipped what the other moved the cursor over; one more walk finds the rest. */
  (void)clean_run(simulation);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 0));
  store_close(simulation);
  redis_server_free(server);
}
