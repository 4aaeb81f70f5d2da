/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory store under threads: what is charged adds up, and nobody reads what never was.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backends/memory.h"
#include "core/algorithm.h"
#include "core/decide.h"
#include "core/limit.h"
#include "memory_rig.h"

typedef struct log_crowd {
  spile_store *store;
  const spile_spec *spec;
  const spile_spec *other;
  _Atomic int64_t charged;
  atomic_int wrong; /* answers that cannot be */
  atomic_bool done;
} log_crowd;

/* Takes and denials of logs that grow and shrink, alone and with another bucket. */
static void *log_crowd_take(void *user) {
  log_crowd *crowd = user;
  for (int64_t i = 0; i < 4000; i++) {
    spile_error error = {0};
    spile_item items[2] = {item_of(crowd->spec, "k"), item_of(crowd->other, "k")};
    items[0].cost = 1 + i % 3;
    items[1].cost = 1;
    spile_call call = {.verb = SPILE_VERB_TAKE, .items = items, .n = 1 + (size_t)(i % 2), .now_ms = i, .error = &error};
    bool good = crowd->store->ops->decide(crowd->store, &call) == SPILE_OK &&
                spile__sliding_log.reading_valid(&crowd->spec->shape, &items[0].reading, items[0].cost);
    atomic_fetch_add(&crowd->wrong, !good);
    /* A thread that is a second behind the others finds the other bucket cut to empty, and charges neither. */
    if (good && spile__items_fit(items, call.n))
      atomic_fetch_add(&crowd->charged, items[0].cost);
  }
  return NULL;
}

/* Peeks read lines that others are changing: what they tell must be a state that once was. */
static void *log_crowd_peek(void *user) {
  log_crowd *crowd = user;
  int64_t last = 0;
  while (!atomic_load(&crowd->done)) {
    spile_error error = {0};
    spile_item item = item_of(crowd->spec, "k");
    item.cost = 1;
    spile_call call = {.verb = SPILE_VERB_PEEK, .items = &item, .n = 1, .now_ms = 4000, .error = &error};
    bool good = crowd->store->ops->decide(crowd->store, &call) == SPILE_OK &&
                spile__sliding_log.reading_valid(&crowd->spec->shape, &item.reading, 1);
    /* Nothing is forgotten within an hour. */
    atomic_fetch_add(&crowd->wrong, !good || item.reading.values[0] < last);
    last = item.reading.values[0];
  }
  return NULL;
}

Test(memory_threads, mem_02_a_log_lets_exactly_its_capacity_through_many_threads) {
  spile_store *store = store_open("?keys=100", true);
  spile_spec log = log_of("log", 1000, 3600000);
  spile_spec other = spec_of("other", 1000000, 1000000, 1);
  log_crowd crowd = {.store = store, .spec = &log, .other = &other};
  pthread_t takers[4];
  pthread_t peeker;
  cr_assert(pthread_create(&peeker, NULL, log_crowd_peek, &crowd) == 0);
  for (int i = 0; i < 4; i++)
    cr_assert(pthread_create(&takers[i], NULL, log_crowd_take, &crowd) == 0);
  for (int i = 0; i < 4; i++)
    (void)pthread_join(takers[i], NULL);
  atomic_store(&crowd.done, true);
  (void)pthread_join(peeker, NULL);
  cr_assert(eq(int, atomic_load(&crowd.wrong), 0));
  cr_assert(eq(i64, atomic_load(&crowd.charged), 1000));
  store->ops->close(store, false);
}

typedef struct round_takers {
  spile_store *store;
  const spile_spec *spec;
  char key[16];
  pthread_barrier_t start;
  pthread_barrier_t end;
  atomic_int allowed;
  atomic_int seen[101];
  atomic_bool stop;
} round_takers;

static void *round_take(void *user) {
  round_takers *t = user;
  for (;;) {
    (void)pthread_barrier_wait(&t->start);
    if (atomic_load(&t->stop))
      return NULL;
    spile_reading reading;
    if (take(t->store, t->spec, t->key, 1, 0, &reading) == SPILE_OK && reading.values[0] <= INT64_C(99) * 3600000) {
      atomic_fetch_add(&t->allowed, 1);
      atomic_fetch_add(&t->seen[reading.values[0] / 3600000], 1);
    }
    (void)pthread_barrier_wait(&t->end);
  }
}

Test(memory_threads, mem_02_lets_exactly_100_of_200_threads_through_in_a_thousand_rounds) {
  static round_takers t;
  spile_spec spec = spec_of("default", 100, 1, 3600000);
  t.store = store_open("?keys=2000", true);
  t.spec = &spec;
  (void)pthread_barrier_init(&t.start, NULL, 201);
  (void)pthread_barrier_init(&t.end, NULL, 201);
  pthread_t ids[200];
  for (int i = 0; i < 200; i++)
    cr_assert(eq(int, pthread_create(&ids[i], NULL, round_take, &t), 0));
  for (int round = 0; round < 1000; round++) {
    (void)snprintf(t.key, sizeof(t.key), "%d", round);
    atomic_store(&t.allowed, 0);
    memset(&t.seen, 0, sizeof(t.seen));
    (void)pthread_barrier_wait(&t.start);
    (void)pthread_barrier_wait(&t.end);
    cr_assert(eq(int, atomic_load(&t.allowed), 100));
    for (int i = 0; i < 100; i++)
      cr_assert(eq(int, atomic_load(&t.seen[i]), 1));
  }
  atomic_store(&t.stop, true);
  (void)pthread_barrier_wait(&t.start);
  for (int i = 0; i < 200; i++)
    (void)pthread_join(ids[i], NULL);
  t.store->ops->close(t.store, false);
}

typedef struct flood {
  spile_store *store;
  const spile_spec *spec;
  int thread;
  size_t most_probes;
  int failed;
} flood;

static void *flood_run(void *user) {
  flood *f = user;
  for (int i = 0; i < 20000; i++) {
    char key[24];
    (void)snprintf(key, sizeof(key), "%d:%d", f->thread, i);
    int result = take(f->store, f->spec, key, 1, 1000, NULL);
    if (result != SPILE_OK && result != SPILE_EFULL)
      f->failed++;
    spile_item item = item_of(f->spec, key);
    size_t probes = spile__memory_probes(f->store, &item);
    if (probes > f->most_probes)
      f->most_probes = probes;
  }
  return NULL;
}

Test(memory_threads, mem_03_looks_at_a_bounded_number_of_entries_while_full) {
  spile_store *store = store_open("?keys=50000", true);
  spile_spec spec = spec_of("default", 5, 1, 3600000);
  pthread_t ids[8];
  flood floods[8];
  for (int i = 0; i < 8; i++) {
    floods[i] = (flood){.store = store, .spec = &spec, .thread = i};
    cr_assert(eq(int, pthread_create(&ids[i], NULL, flood_run, &floods[i]), 0));
  }
  for (int i = 0; i < 8; i++) {
    (void)pthread_join(ids[i], NULL);
    cr_assert(eq(int, floods[i].failed, 0));
    cr_assert(le(sz, floods[i].most_probes, SPILE__MEMORY_PROBES_MAX));
  }
  store->ops->close(store, false);
}

typedef struct churn {
  spile_store *store;
  const spile_spec *specs;
  int thread;
  int failed;
} churn;

/* Few entries, many keys that are full at once: every kind of entry change runs against every other. */
static void *churn_run(void *user) {
  churn *c = user;
  uint64_t seed = (uint64_t)c->thread * 977 + 1;
  for (int i = 0; i < 20000; i++) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    char keys[3][80];
    spile_item items[3];
    spile_error error = {0};
    size_t n = 1 + (seed >> 60) % 3;
    for (size_t j = 0; j < n; j++) {
      (void)snprintf(keys[j], sizeof(keys[j]), (seed >> 50) % 4 == 0 ? "%060d" : "%d",
                     (int)((seed >> (8 * j + 8)) % 40 * 3 + j));
      items[j] = (spile_item){.key = keys[j],
                              .key_len = strlen(keys[j]),
                              .spec = &c->specs[(seed >> (40 + j)) % 3],
                              .cost = (int64_t)((seed >> 30) % 3)};
    }
    spile_call call = {.verb = (seed >> 57) % 4 == 0 ? SPILE_VERB_PEEK : SPILE_VERB_TAKE,
                       .items = items,
                       .n = n,
                       .now_ms = SPILE_STORE_TIME,
                       .error = &error};
    int result = c->store->ops->decide(c->store, &call);
    if (result != SPILE_OK && result != SPILE_EFULL)
      c->failed++;
    for (size_t j = 0; j < n && result == SPILE_OK; j++) {
      const spile_shape *shape = &items[j].spec->shape;
      if (items[j].reading.values[0] < 0 ||
          items[j].reading.values[0] > shape->capacity * shape->period_ms + 1000 * shape->refill)
        c->failed++;
    }
    if ((seed >> 45) % 64 == 0 && c->store->ops->clear(c->store, &items[0], 0, &error) != SPILE_OK)
      c->failed++;
  }
  return NULL;
}

Test(memory_threads, stays_in_range_while_entries_change_hands_under_threads) {
  spile_store *store = store_open("?keys=60", false);
  spile_spec specs[3] = {spec_of("a", 5, 1, 1), spec_of("a", 7, 3, 2), spec_of("a", 5, 70001, 70000)};
  pthread_t ids[4];
  churn churns[4];
  for (int i = 0; i < 4; i++) {
    churns[i] = (churn){.store = store, .specs = specs, .thread = i};
    cr_assert(eq(int, pthread_create(&ids[i], NULL, churn_run, &churns[i]), 0));
  }
  for (int i = 0; i < 4; i++) {
    (void)pthread_join(ids[i], NULL);
    cr_assert(eq(int, churns[i].failed, 0));
  }
  store->ops->close(store, false);
}
