/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory store beside what no exact, keyed limiter can do without: hashing the key so that nobody outside can make
 * collisions, and changing one cache line that belongs to it.
 *
 * Keys are uniform over the table. A key's bytes are read from a stream in the order of their use, as a server has just
 * read them from a request, so they are near; its bucket is wherever it is. Every take is checked to be what it is
 * meant to be: a benchmark of errors would be fast.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "core/siphash.h"

#define STREAM ((size_t)1 << 20)
#define THREADS_MAX 2
#define NOW_MS INT64_C(1700000000000)
#define VECTOR_MAX 8

static const char *const about =
    "ns of a thread's processor time per key taken, smaller is better; 2 threads: of the slower one, per key of both\n"
    "floor: SipHash-1-3 of the key and a read-modify-write of one 64-byte line, in a table of the same size\n"
    "given time: options.now_ms returns a constant; clock: the store's own. No bucket is full";

static int64_t keys_option;
static int64_t rounds_option = 15;
static int64_t ops_option = 100000;

typedef struct memory_line {
  _Alignas(64) _Atomic uint64_t words[8];
} memory_line;

/* What the rows of one table work on. */
typedef struct memory_world {
  char (*stream)[BENCH_KEY_LEN]; /* STREAM keys in random order */
  memory_line *lines;
  size_t line_count;
  uint64_t secret[2];
  spile_limiter *given;
  spile_limiter *given_fraction;
  spile_limiter *clock;
  spile_limit *limit;
  spile_limit *fraction; /* several units a millisecond, so that instants have remainders */
  spile_limit *hot;      /* its one key is empty */
} memory_world;

typedef struct memory_job memory_job;

struct memory_job {
  memory_world *world;
  /* Does `count` takes from the stream's place `at` on. @return how many keys were taken as they should */
  size_t (*work)(const memory_job *job, size_t at, size_t count);
  spile_limiter *limiter;
  const spile_limit *limit;
  size_t threads;
  size_t vector;
  size_t at;
};

static int64_t constant_now(void *clock) {
  (void)clock;
  return NOW_MS;
}

static const char *stream_key(const memory_world *world, size_t at) {
  return world->stream[at % STREAM];
}

static memory_line *world_line(const memory_world *world, const char *key) {
  uint64_t hash = spile__siphash64(world->secret, key, BENCH_KEY_LEN);
  return &world->lines[(hash >> 32) * world->line_count >> 32];
}

/* ---- What is measured ---- */

/* Plain loads and stores, atomic only by name, so that two threads may do it: one update of a line may be lost. */
static size_t work_floor(const memory_job *job, size_t at, size_t count) {
  for (size_t i = 0; i < count; i++) {
    memory_line *line = world_line(job->world, stream_key(job->world, at + i));
    uint64_t value = atomic_load_explicit(&line->words[1], memory_order_relaxed);
    atomic_store_explicit(&line->words[1], value + 1, memory_order_relaxed);
  }
  return count;
}

static size_t work_add(const memory_job *job, size_t at, size_t count) {
  for (size_t i = 0; i < count; i++) {
    memory_line *line = world_line(job->world, stream_key(job->world, at + i));
    atomic_fetch_add_explicit(&line->words[1], 1, memory_order_relaxed);
  }
  return count;
}

static size_t work_clock(const memory_job *job, size_t at, size_t count) {
  (void)job;
  (void)at;
  size_t done = 0;
  for (size_t i = 0; i < count; i++)
    done += bench_now_ns() != 0;
  return done;
}

static size_t work_take(const memory_job *job, size_t at, size_t count) {
  size_t done = 0;
  spile_decision decision;
  for (size_t i = 0; i < count; i++) {
    const char *key = stream_key(job->world, at + i);
    done += spile_take(job->limiter, job->limit, key, BENCH_KEY_LEN, 1, &decision) == SPILE_ALLOWED;
  }
  return done;
}

static size_t work_denied(const memory_job *job, size_t at, size_t count) {
  (void)at;
  size_t done = 0;
  spile_decision decision;
  for (size_t i = 0; i < count; i++)
    done += spile_take(job->limiter, job->world->hot, "hot", 3, 1, &decision) == SPILE_DENIED;
  return done;
}

static size_t work_vector(const memory_job *job, size_t at, size_t count) {
  size_t done = 0;
  spile_request requests[VECTOR_MAX];
  spile_decision decision;
  for (size_t i = 0; i < count; i += job->vector) {
    for (size_t j = 0; j < job->vector; j++)
      requests[j] = (spile_request){job->limit, stream_key(job->world, at + i + j), BENCH_KEY_LEN, 1};
    if (spile_take_all(job->limiter, requests, job->vector, &decision, NULL) == SPILE_ALLOWED)
      done += job->vector;
  }
  return done;
}

/* ---- Threads ---- */

typedef struct memory_thread {
  const memory_job *job;
  pthread_barrier_t *start;
  size_t at;
  size_t done;
  int64_t cpu_ns;
} memory_thread;

static void *thread_run(void *user) {
  memory_thread *thread = user;
  (void)pthread_barrier_wait(thread->start);
  int64_t began_ns = bench_cpu_ns();
  thread->done = thread->job->work(thread->job, thread->at, (size_t)ops_option);
  thread->cpu_ns = bench_cpu_ns() - began_ns;
  return NULL;
}

/* The processor time of the thread that needed most, over what all threads did. */
static double job_run(void *user) {
  memory_job *job = user;
  pthread_barrier_t start;
  pthread_t ids[THREADS_MAX];
  memory_thread threads[THREADS_MAX];
  (void)pthread_barrier_init(&start, NULL, (unsigned)job->threads);
  for (size_t i = 0; i < job->threads; i++) {
    threads[i] = (memory_thread){.job = job, .start = &start, .at = job->at + i * STREAM / THREADS_MAX};
    if (i > 0 && pthread_create(&ids[i], NULL, thread_run, &threads[i]) != 0)
      bench_fatal("cannot start a thread");
  }
  (void)thread_run(&threads[0]);
  int64_t cpu_ns = threads[0].cpu_ns;
  size_t done = threads[0].done;
  for (size_t i = 1; i < job->threads; i++) {
    (void)pthread_join(ids[i], NULL);
    cpu_ns = threads[i].cpu_ns > cpu_ns ? threads[i].cpu_ns : cpu_ns;
    done += threads[i].done;
  }
  (void)pthread_barrier_destroy(&start);
  if (done != job->threads * (size_t)ops_option)
    bench_fatal("%zu of %zu takes were not answered as they should be", job->threads * (size_t)ops_option - done,
                job->threads * (size_t)ops_option);
  job->at += (size_t)ops_option;
  return (double)cpu_ns / (double)done;
}

/* ---- The tables ---- */

static spile_limiter *limiter_open(size_t keys, bool given_time) {
  char uri[64];
  (void)snprintf(uri, sizeof(uri), "memory:?keys=%zu", keys);
  return bench_open(uri, given_time ? constant_now : NULL);
}

/* Takes each key once, so that it has a bucket that is not full. */
static void limiter_fill(spile_limiter *limiter, const spile_limit *limit, size_t keys) {
  char key[BENCH_KEY_LEN];
  for (size_t i = 0; i < keys; i++) {
    bench_key_make(key, i);
    if (spile_take(limiter, limit, key, BENCH_KEY_LEN, 1, NULL) != SPILE_ALLOWED)
      bench_fatal("key %zu found no bucket", i);
  }
}

static size_t resident_bytes(void) {
  unsigned long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%*u %llu", &pages) != 1)
    bench_fatal("cannot read /proc/self/statm");
  (void)fclose(file);
  return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void world_init(memory_world *world, size_t keys) {
  uint64_t random = keys;
  *world = (memory_world){.line_count = keys + keys / 2 + 2, .secret = {bench_random(&random), bench_random(&random)}};
  world->stream = bench_allocate(STREAM, BENCH_KEY_LEN);
  for (size_t i = 0; i < STREAM; i++)
    bench_key_make(world->stream[i], bench_random(&random) % keys);
  world->lines = aligned_alloc(64, world->line_count * sizeof(memory_line));
  if (world->lines == NULL)
    bench_fatal("out of memory for %zu lines; ask for fewer keys", world->line_count);
  memset(world->lines, 0, world->line_count * sizeof(memory_line));
  world->limit = bench_limit("1/m,capacity=5000000");
  world->fraction = bench_limit("7/s,capacity=100000000,name=fraction");
  world->hot = bench_limit("1/d,capacity=1,name=hot");

  world->given = limiter_open(keys + 1, true);
  limiter_fill(world->given, world->limit, keys);
  if (spile_take(world->given, world->hot, "hot", 3, 1, NULL) != SPILE_ALLOWED)
    bench_fatal("the hot key found no bucket");
  world->given_fraction = limiter_open(keys, true);
  limiter_fill(world->given_fraction, world->fraction, keys);

  world->clock = limiter_open(keys, false);
  size_t before = resident_bytes();
  limiter_fill(world->clock, world->limit, keys);
  double bytes = (double)(resident_bytes() - before) / (double)keys;
  /* Below that the table's own pages are what is seen. */
  if (keys >= 100000)
    (void)printf("\n%zu keys in a store opened for as many: %.0f bytes of resident memory for each; aim 96: %s\n", keys,
                 bytes, bytes < 96.5 ? "met" : "missed");
}

static void world_finish(memory_world *world) {
  spile_close(world->given);
  spile_close(world->given_fraction);
  spile_close(world->clock);
  spile_limit_unref(world->limit);
  spile_limit_unref(world->fraction);
  spile_limit_unref(world->hot);
  free(world->lines);
  free(world->stream);
}

static void table_fill(bench_table *table, memory_job *jobs, memory_world *world, size_t keys) {
  spile_limiter *given = world->given;
  const spile_limit *limit = world->limit;
  const struct {
    const char *name;
    const char *base[2];
    memory_job job;
    double aim_ratio;
    double aim_ns;
  } rows[] = {
      {.name = "floor", .job = {.work = work_floor}},
      {.name = "clock", .job = {.work = work_clock}},
      {.name = "take, given time",
       .base = {"floor"},
       .job = {.work = work_take, .limiter = given, .limit = limit},
       .aim_ratio = keys >= 1000000 ? 3.0 : 0,
       .aim_ns = keys <= 1000 ? 15 : 0},
      {.name = "take, given time, 7/s",
       .base = {"take, given time"},
       .job = {.work = work_take, .limiter = world->given_fraction, .limit = world->fraction}},
      {.name = "take, clock",
       .base = {"clock", "take, given time"},
       .job = {.work = work_take, .limiter = world->clock, .limit = limit},
       .aim_ratio = keys == 100000 ? 1.25 : 0},
      {.name = "take_all of 2, given time",
       .base = {"take, given time"},
       .job = {.work = work_vector, .limiter = given, .limit = limit, .vector = 2}},
      {.name = "take_all of 8, given time",
       .base = {"take, given time"},
       .job = {.work = work_vector, .limiter = given, .limit = limit, .vector = VECTOR_MAX}},
      {.name = "denied, one hot key", .base = {"floor"}, .job = {.work = work_denied, .limiter = given}},
      {.name = "2 threads: floor", .base = {"floor"}, .job = {.work = work_floor, .threads = 2}},
      {.name = "2 threads: hash + atomic add", .base = {"floor"}, .job = {.work = work_add, .threads = 2}},
      {.name = "2 threads: take, given time",
       .base = {"2 threads: hash + atomic add"},
       .job = {.work = work_take, .limiter = given, .limit = limit, .threads = 2},
       .aim_ratio = keys == 100000 ? 1.25 : 0},
      {.name = "2 threads: take, clock",
       .base = {"take, clock"},
       .job = {.work = work_take, .limiter = world->clock, .limit = limit, .threads = 2}},
      {.name = "2 threads: denied, one hot key",
       .base = {"denied, one hot key"},
       .job = {.work = work_denied, .limiter = given, .threads = 2},
       .aim_ratio = 0.59},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    jobs[i] = rows[i].job;
    jobs[i].world = world;
    jobs[i].threads = jobs[i].threads == 0 ? 1 : jobs[i].threads;
    bench_row *row = bench_table_add(table, rows[i].name, job_run, &jobs[i]);
    memcpy(row->base, rows[i].base, sizeof(row->base));
    row->aim_ratio = rows[i].aim_ratio;
    row->aim_value = rows[i].aim_ns;
  }
}

static void keys_run(size_t keys) {
  memory_world world;
  memory_job jobs[BENCH_ROWS_MAX];
  char title[64];
  bench_table *table = bench_allocate(1, sizeof(*table));
  world_init(&world, keys);
  (void)snprintf(title, sizeof(title), "%zu keys, uniform", keys);
  table->title = title;
  table->unit = "ns";
  table->rounds = (size_t)rounds_option;
  table_fill(table, jobs, &world, keys);
  bench_table_run(table);
  world_finish(&world);
  free(table);
}

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"keys", &keys_option, 0, 50000000, "keys in the table; 0: 1,000, 100,000 and 1,000,000 in turn"},
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "rounds that count"},
      {"ops", &ops_option, 8, 100000000, "keys taken in each sample of a thread, a multiple of 8"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  if (ops_option % VECTOR_MAX != 0)
    bench_fatal("--ops needs a multiple of %d", VECTOR_MAX);
  if (keys_option > 0) {
    keys_run((size_t)keys_option);
    return 0;
  }
  keys_run(1000);
  keys_run(100000);
  keys_run(1000000);
  return 0;
}
