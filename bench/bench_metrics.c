/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What counting by limit, measuring the store, hooks and the log add to a take of the memory store, which is the
 * cheapest there is. Every row takes the same few keys in the same order at a constant time, so the table is in the
 * cache and what is added is seen.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/metrics.h>

#include "bench.h"

#define KEYS 256
#define THREADS_MAX 2
#define NOW_MS INT64_C(1700000000000)

static const char *const about =
    "ns of a thread's processor time per take, smaller is better; 2 threads: of the slower one, per take of one "
    "thread\n"
    "off: no metrics, no hooks; counts and times: options.metrics; every row at a constant given time";

static int64_t rounds_option = 31;
static int64_t ops_option = 200000;

static int64_t constant_now(void *clock) {
  (void)clock;
  return NOW_MS;
}

static void hook(void *user, const spile_event *event) {
  atomic_store_explicit((atomic_uint_least64_t *)user, event->subject_hash, memory_order_relaxed);
}

static void log_line(void *user, spile_log_level level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
}

typedef struct metrics_job {
  spile_limiter *limiter;
  const spile_limit *limit;
  int want; /* the result of every take */
  size_t threads;
} metrics_job;

typedef struct metrics_thread {
  const metrics_job *job;
  pthread_barrier_t *start;
  int64_t cpu_ns;
  char first; /* of its keys, so that threads do not share buckets */
} metrics_thread;

static void *thread_run(void *user) {
  metrics_thread *thread = user;
  const metrics_job *job = thread->job;
  char keys[KEYS][BENCH_KEY_LEN];
  for (size_t i = 0; i < KEYS; i++) {
    bench_key_make(keys[i], i);
    keys[i][0] = thread->first;
  }
  (void)pthread_barrier_wait(thread->start);
  int64_t began_ns = bench_cpu_ns();
  spile_decision decision;
  for (size_t i = 0; i < (size_t)ops_option; i++) {
    if (spile_take(job->limiter, job->limit, keys[i % KEYS], BENCH_KEY_LEN, 1, &decision) != job->want)
      bench_fatal("a take was not answered as it should be");
  }
  thread->cpu_ns = bench_cpu_ns() - began_ns;
  return NULL;
}

static double job_run(void *user) {
  const metrics_job *job = user;
  pthread_barrier_t start;
  pthread_t ids[THREADS_MAX];
  metrics_thread threads[THREADS_MAX];
  (void)pthread_barrier_init(&start, NULL, (unsigned)job->threads);
  for (size_t i = 0; i < job->threads; i++) {
    threads[i] = (metrics_thread){.job = job, .start = &start, .first = (char)('a' + i)};
    if (i > 0 && pthread_create(&ids[i], NULL, thread_run, &threads[i]) != 0)
      bench_fatal("cannot start a thread");
  }
  (void)thread_run(&threads[0]);
  int64_t cpu_ns = threads[0].cpu_ns;
  for (size_t i = 1; i < job->threads; i++) {
    (void)pthread_join(ids[i], NULL);
    cpu_ns = threads[i].cpu_ns > cpu_ns ? threads[i].cpu_ns : cpu_ns;
  }
  (void)pthread_barrier_destroy(&start);
  return (double)cpu_ns / (double)ops_option;
}

static spile_limiter *limiter_open(const spile_options *given, bool drained, const spile_limit *drained_limit) {
  spile_options options = *given;
  options.now_ms = constant_now;
  spile_limiter *limiter;
  spile_error error = {0};
  if (spile_open(&limiter, "memory:?keys=2000", &options, &error) != SPILE_OK)
    bench_fatal("%s", error.message);
  char key[BENCH_KEY_LEN];
  for (size_t i = 0; i < KEYS * THREADS_MAX && drained; i++) {
    bench_key_make(key, i % KEYS);
    key[0] = (char)('a' + i / KEYS);
    if (spile_take(limiter, drained_limit, key, BENCH_KEY_LEN, 1, NULL) != SPILE_ALLOWED)
      bench_fatal("a key found no bucket");
  }
  return limiter;
}

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "rounds that count"},
      {"ops", &ops_option, 8, 100000000, "takes in each sample of a thread"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  spile_limit *plenty = bench_limit("1/m,capacity=5000000,name=POST /search");
  spile_limit *drained = bench_limit("1/d,capacity=1,name=POST /export");
  atomic_uint_least64_t sink = 0;

  static const char *const names[] = {"off",         "counts",         "times",        "near hook",
                                      "denied, off", "denied, counts", "denied, hook", "denied, log 1/s"};
  spile_options opened[8];
  for (size_t i = 0; i < 8; i++) {
    opened[i] = (spile_options)SPILE_OPTIONS_INIT;
    opened[i].hook_user = &sink;
  }
  opened[1].metrics = opened[5].metrics = SPILE_METRICS_COUNTS;
  opened[2].metrics = SPILE_METRICS_TIMES;
  opened[3].on_near_limit = hook;
  opened[6].on_denied = hook;
  opened[7].log_denied_per_s = 1;
  opened[7].log = log_line;

  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = "memory store, 256 keys";
  table->unit = "ns";
  table->rounds = (size_t)rounds_option;
  metrics_job jobs[16];
  char titles[16][64];
  size_t count = 0;
  for (size_t threads = 1; threads <= THREADS_MAX; threads++) {
    for (size_t i = 0; i < 8; i++, count++) {
      bool denied = i >= 4;
      jobs[count] = (metrics_job){.limiter = limiter_open(&opened[i], denied, drained),
                                  .limit = denied ? drained : plenty,
                                  .want = denied ? SPILE_DENIED : SPILE_ALLOWED,
                                  .threads = threads};
      (void)snprintf(titles[count], sizeof(titles[count]), "%s%s", threads > 1 ? "2 threads: " : "", names[i]);
      bench_row *row = bench_table_add(table, titles[count], job_run, &jobs[count]);
      if (i % 4 != 0)
        row->base[0] = titles[count - i % 4];
    }
  }
  bench_table_run(table);
  while (count > 0)
    spile_close(jobs[--count].limiter);
  spile_limit_unref(plenty);
  spile_limit_unref(drained);
  free(table);
  return 0;
}
