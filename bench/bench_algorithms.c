/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithms beside each other in every store: what a take costs, allowed and denied, and what a key takes up.
 *
 * In memory and LMDB the time is given, so that a log stands still at its length: from one take of a key to the next
 * the clock goes on by the window's share of one entry, and the take that adds an entry finds the oldest one over.
 * Every key is taken once before any is taken again, in an order that is not that of the keys.
 */
#include "bench_algorithms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <spile/metrics.h>

#define NOW_MS INT64_C(1700000000000)
#define HOUR_MS INT64_C(3600000)
#define SCATTER 1000003 /* a prime above any number of keys */
#define LINE_ENTRIES 7  /* of a log in one line of the memory store */

/* The LMDB store writes a log as a whole, so filling takes the square of its length. */
#define LMDB_ENTRIES_PART 5

const bench_kind bench_kinds[BENCH_KINDS] = {
    {"token_bucket", "1/m,capacity=1000000", 1, 1},
    {"leaky_bucket", "1/m,capacity=1000000,leaky_bucket", 1, 1},
    {"fixed_window", "1000000/d,fixed_window", 1, 1},
    {"sliding_window", "1000000/d,sliding_window", 1, 1},
    {"sliding_log of 10", "10/h,sliding_log", 10, HOUR_MS / 10},
    {"sliding_log of 100", "100/h,sliding_log", 100, HOUR_MS / 100},
    {"sliding_log of 1,000", "1000/h,sliding_log", 1000, HOUR_MS / 1000},
};

static const char *const about =
    "memory, lmdb: processor time of the calling thread for one take of one key of 24 bytes; the time is given\n"
    "redis: processor time of the server's main thread, by INFO cpu, for one take of 1, 2, 4 or 8 keys, pipelined\n"
    "a log has 10, 100 or 1,000 entries after the take; denied: a cost of the whole capacity";

static int64_t keys_option = 100000;
static int64_t entries_option = 1000000;
static int64_t rounds_option = 11;
static int64_t ops_option = 10000;
static int64_t takes_option = 2000;

size_t bench_kind_keys(const bench_kind *kind, int64_t keys, int64_t entries) {
  int64_t fit = entries / (int64_t)kind->entries;
  fit = fit < BENCH_VECTOR_MAX ? BENCH_VECTOR_MAX : fit;
  return (size_t)(kind->entries > 1 && fit < keys ? fit : keys);
}

/* ---- A store with one kind of buckets ---- */

typedef struct algorithm_store {
  const bench_kind *kind;
  spile_limiter *limiter;
  spile_limit *limit;
  int64_t now_ms;
  char (*names)[BENCH_KEY_LEN]; /* in the order in which they are taken */
  size_t keys;
  size_t allowed_at; /* the next key of each kind of take */
  size_t denied_at;
  double bytes; /* of a key */
} algorithm_store;

static int64_t store_now(void *clock) {
  return ((const algorithm_store *)clock)->now_ms;
}

/* @return false: this build does not have the store */
static bool store_open(algorithm_store *store, const bench_kind *kind, const char *uri, size_t keys) {
  *store = (algorithm_store){.kind = kind, .now_ms = NOW_MS, .keys = keys};
  spile_options options = SPILE_OPTIONS_INIT;
  spile_error error = {0};
  options.now_ms = store_now;
  options.clock = store;
  int result = spile_open(&store->limiter, uri, &options, &error);
  if (result == SPILE_ENOTSUP)
    return false;
  if (result != SPILE_OK)
    bench_fatal("%s: %s", uri, error.message);
  store->limit = bench_limit(kind->text);
  store->names = bench_allocate(keys, BENCH_KEY_LEN);
  for (size_t i = 0; i < keys; i++)
    bench_key_make(store->names[i], i * SCATTER % keys);
  return true;
}

static void store_close(algorithm_store *store) {
  spile_close(store->limiter);
  spile_limit_unref(store->limit);
  free(store->names);
}

/* Takes each key as often as its state has entries. */
static void store_fill(algorithm_store *store) {
  spile_request requests[SPILE_REQUESTS_MAX];
  spile_decision decision;
  for (size_t entry = 0; entry < store->kind->entries; entry++) {
    store->now_ms += store->kind->step_ms;
    for (size_t i = 0; i < store->keys;) {
      size_t n = 0;
      for (; n < SPILE_REQUESTS_MAX && i < store->keys; n++, i++)
        requests[n] = (spile_request){store->limit, store->names[i], BENCH_KEY_LEN, 1};
      if (spile_take_all(store->limiter, requests, n, &decision, NULL) != SPILE_ALLOWED)
        bench_fatal("%s: the buckets could not be made: %s", store->kind->name, decision.detail);
    }
  }
  store->allowed_at = store->keys;
}

/* ---- Time ---- */

typedef struct algorithm_row {
  algorithm_store *store;
  int expected;
  double unit_ns;
} algorithm_row;

static double row_run(void *user) {
  const algorithm_row *row = user;
  algorithm_store *store = row->store;
  bool allowed = row->expected == SPILE_ALLOWED;
  size_t *at = allowed ? &store->allowed_at : &store->denied_at;
  int64_t cost = allowed ? 1 : spile_limit_capacity(store->limit);
  spile_decision decision;
  size_t wrong = 0;
  int64_t began_ns = bench_cpu_ns();
  for (int64_t i = 0; i < ops_option; i++) {
    if (*at == store->keys) {
      *at = 0;
      store->now_ms += allowed ? store->kind->step_ms : 0;
    }
    const char *key = store->names[(*at)++];
    wrong += spile_take(store->limiter, store->limit, key, BENCH_KEY_LEN, cost, &decision) != row->expected;
  }
  double took_ns = (double)(bench_cpu_ns() - began_ns);
  if (wrong > 0)
    bench_fatal("%s: %zu of %lld takes were not answered as they should be", store->kind->name, wrong,
                (long long)ops_option);
  return took_ns / (double)ops_option / row->unit_ns;
}

static void times_run(const char *title, const char *unit, double unit_ns, algorithm_store *stores, int expected) {
  algorithm_row rows[BENCH_KINDS];
  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = title;
  table->unit = unit;
  table->rounds = (size_t)rounds_option;
  for (size_t i = 0; i < BENCH_KINDS; i++) {
    rows[i] = (algorithm_row){&stores[i], expected, unit_ns};
    bench_row *row = bench_table_add(table, bench_kinds[i].name, row_run, &rows[i]);
    row->base[0] = i > 0 ? bench_kinds[0].name : NULL;
  }
  bench_table_run(table);
  free(table);
}

static void bytes_print(const char *title, const algorithm_store *stores) {
  (void)printf("\n%s\n", title);
  for (size_t i = 0; i < BENCH_KINDS; i++)
    (void)printf("  %-40s %9.1f of %zu keys\n", bench_kinds[i].name, stores[i].bytes, stores[i].keys);
}

/* ---- Memory ---- */

static double resident_bytes(void) {
  unsigned long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%*u %llu", &pages) != 1)
    bench_fatal("cannot read /proc/self/statm");
  (void)fclose(file);
  return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/*
 * A store has two lines for each of its keys, and a log's first entry needs none. So logs need a store for more keys
 * than there are logs, and the others get buckets: a table that is nearly empty would show pages in place of entries.
 */
static void memory_open(algorithm_store *store, const bench_kind *kind) {
  char uri[64];
  size_t keys = bench_kind_keys(kind, keys_option, entries_option);
  size_t lines = kind->entries > 1 ? kind->entries / LINE_ENTRIES + 1 : 0;
  size_t room = lines > 2 ? keys * lines / 2 : keys;
  (void)snprintf(uri, sizeof(uri), "memory:?keys=%zu", room);
  if (!store_open(store, kind, uri, keys))
    bench_fatal("the memory store is missing");

  spile_limit *other = bench_limit("1/d,capacity=1000,name=other");
  double before = resident_bytes();
  char key[BENCH_KEY_LEN];
  for (size_t i = 0; i < room - keys; i++) {
    bench_key_make(key, i);
    if (spile_take(store->limiter, other, key, sizeof(key), 1, NULL) != SPILE_ALLOWED)
      bench_fatal("key %zu found no bucket", i);
  }
  double filled = resident_bytes();
  store_fill(store);
  store->bytes = (resident_bytes() - filled) / (double)keys;
  /* The logs lie in pages that are there already; their entries cost what those of the others did. */
  if (room > keys)
    store->bytes += (filled - before) / (double)(room - keys);
  spile_limit_unref(other);
}

static void memory_run(void) {
  algorithm_store stores[BENCH_KINDS];
  for (size_t i = 0; i < BENCH_KINDS; i++)
    memory_open(&stores[i], &bench_kinds[i]);
  times_run("memory, allowed", "ns", 1, stores, SPILE_ALLOWED);
  times_run("memory, denied", "ns", 1, stores, SPILE_DENIED);
  bytes_print("memory, resident bytes a key in a store that is full", stores);
  for (size_t i = 0; i < BENCH_KINDS; i++)
    store_close(&stores[i]);
}

/* ---- LMDB ---- */

static double used_bytes(const algorithm_store *store) {
  spile_usage usage = SPILE_USAGE_INIT;
  if (spile_usage_read(store->limiter, &usage) != SPILE_OK || usage.bytes == SPILE_UNKNOWN)
    bench_fatal("the LMDB store does not tell how full it is");
  return (double)usage.bytes;
}

static bool lmdb_open(algorithm_store *store, const bench_kind *kind, const char *directory) {
  char uri[BENCH_PATH_LEN + 80];
  size_t keys = bench_kind_keys(kind, keys_option, entries_option / LMDB_ENTRIES_PART);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/%zu?sync=none&map_size=1GiB", directory, (size_t)(kind - bench_kinds));
  if (!store_open(store, kind, uri, keys))
    return false;
  /* A store tells how full it is from its first read on. */
  if (spile_peek(store->limiter, store->limit, store->names[0], BENCH_KEY_LEN, 1, NULL) != SPILE_ALLOWED)
    bench_fatal("%s: an empty store does not answer", uri);
  double before = used_bytes(store);
  store_fill(store);
  store->bytes = (used_bytes(store) - before) / (double)keys;
  return true;
}

static void lmdb_run(void) {
  algorithm_store stores[BENCH_KINDS];
  char directory[BENCH_PATH_LEN];
  bench_directory_make(directory);
  size_t open = 0;
  while (open < BENCH_KINDS && lmdb_open(&stores[open], &bench_kinds[open], directory))
    open++;
  if (open == BENCH_KINDS) {
    times_run("lmdb, sync=none, allowed", "us", 1000, stores, SPILE_ALLOWED);
    times_run("lmdb, sync=none, denied", "us", 1000, stores, SPILE_DENIED);
    bytes_print("lmdb, bytes of the map in use for a key", stores);
  } else {
    (void)printf("\nlmdb: this build has no LMDB store; -Dlmdb=enabled adds it\n");
  }
  for (size_t i = 0; i < open; i++)
    store_close(&stores[i]);
  bench_directory_remove(directory);
}

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"keys", &keys_option, BENCH_VECTOR_MAX, 1000000, "keys of each algorithm; for logs at most …"},
      {"entries", &entries_option, 1000, 100000000, "… as have so many entries together; in LMDB a fifth"},
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "rounds that count"},
      {"ops", &ops_option, 1, 100000000, "takes in each sample of memory and lmdb"},
      {"takes", &takes_option, 1, 1000000, "takes in each sample of redis; of logs as many as there are keys for"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  memory_run();
  lmdb_run();
  const bench_redis_options redis = {keys_option, entries_option, rounds_option, takes_option};
  bench_algorithms_redis(&redis);
  return 0;
}
