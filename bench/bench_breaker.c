/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the breaker adds to a take of a store that is well, and what a take costs while it is open: around a store whose
 * decide does nothing, so that nothing hides the breaker.
 */
#include <pthread.h>
#include <stdlib.h>

#include "bench.h"
#include "limiter/breaker.h"
#include "limiter/env.h"

#define THREADS_MAX 64

static const char *const about =
    "ns of a thread's processor time per call of decide, smaller is better; several threads: the mean of all of them\n"
    "open: refused, the message included, with the machine's clock; open for charges: a peek of the store is in it";

static int64_t rounds_option = 21;
static int64_t ops_option = 100000;

/* ---- A store that does nothing, well or not ---- */

typedef struct idle_store {
  spile_store base;
  bool dead;
  bool unpaid; /* takes fail, peeks do not */
} idle_store;

static int idle_decide(spile_store *store, spile_call *call) {
  const idle_store *idle = (idle_store *)(void *)store;
  bool fails = idle->dead || (idle->unpaid && call->verb == SPILE_VERB_TAKE);
  if (!fails)
    return SPILE_OK;
  call->error->code = SPILE_EUNAVAILABLE;
  call->error->reason = idle->dead ? SPILE_REASON_TIMEOUT : SPILE_REASON_IO;
  return SPILE_EUNAVAILABLE;
}

static int idle_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)store;
  (void)item;
  (void)deadline_ms;
  (void)error;
  return SPILE_OK;
}

static void idle_close(spile_store *store, bool forked) {
  (void)store;
  (void)forked;
}

static const spile_store_ops idle_ops = {
    .abi = SPILE_STORE_ABI, .name = "idle", .decide = idle_decide, .clear = idle_clear, .close = idle_close};

/* ---- What is measured ---- */

/* Of an empty store, so that a cost of 1 fits and one of 2 does not. */
static spile_item any_item(void) {
  static const spile_spec spec = {.name = "default",
                                  .name_len = 7,
                                  .algorithm = SPILE_TOKEN_BUCKET,
                                  .shape = {.capacity = 1, .refill = 1, .period_ms = 1000}};
  return (spile_item){.key = "k", .key_len = 1, .spec = &spec, .cost = 1};
}

typedef struct breaker_job {
  spile_store *store;
  int want; /* what every call returns */
  size_t threads;
  int64_t cost;
} breaker_job;

typedef struct breaker_thread {
  const breaker_job *job;
  pthread_barrier_t *start;
  int64_t cpu_ns;
} breaker_thread;

static void *thread_run(void *user) {
  breaker_thread *thread = user;
  spile_store *store = thread->job->store;
  spile_error error;
  spile_item item = any_item();
  item.cost = thread->job->cost;
  spile_call call = {.verb = SPILE_VERB_TAKE,
                     .items = &item,
                     .n = 1,
                     .now_ms = SPILE_STORE_TIME,
                     .deadline_ms = INT64_MAX,
                     .error = &error};
  if (thread->start != NULL)
    (void)pthread_barrier_wait(thread->start);
  int64_t before_ns = bench_cpu_ns();
  for (int64_t i = 0; i < ops_option; i++) {
    error.code = 0;
    if (store->ops->decide(store, &call) != thread->job->want)
      bench_fatal("a call was not answered as it should be");
  }
  thread->cpu_ns = bench_cpu_ns() - before_ns;
  return NULL;
}

static double job_run(void *user) {
  const breaker_job *job = user;
  if (job->threads == 1) {
    breaker_thread thread = {.job = job};
    (void)thread_run(&thread);
    return (double)thread.cpu_ns / (double)ops_option;
  }
  breaker_thread threads[THREADS_MAX];
  pthread_t ids[THREADS_MAX];
  pthread_barrier_t start;
  (void)pthread_barrier_init(&start, NULL, (unsigned)job->threads);
  for (size_t i = 0; i < job->threads; i++) {
    threads[i] = (breaker_thread){.job = job, .start = &start};
    if (pthread_create(&ids[i], NULL, thread_run, &threads[i]) != 0)
      bench_fatal("cannot start a thread");
  }
  int64_t cpu_ns = 0;
  for (size_t i = 0; i < job->threads; i++) {
    (void)pthread_join(ids[i], NULL);
    cpu_ns += threads[i].cpu_ns;
  }
  (void)pthread_barrier_destroy(&start);
  return (double)cpu_ns / (double)job->threads / (double)ops_option;
}

/* Around `inner`; opened for an hour if that fails. */
static spile_store *breaker_around(idle_store *inner, const spile_env *env) {
  spile_store *store;
  if (spile__breaker_open(&store, &inner->base, env, 1000, 1, SPILE__BREAKER_WAIT_MAX_MS, NULL) != SPILE_OK)
    bench_fatal("out of memory");
  spile_error error = {0};
  spile_item item = any_item();
  spile_call call = {.verb = SPILE_VERB_TAKE, .items = &item, .n = 1, .deadline_ms = INT64_MAX, .error = &error};
  (void)store->ops->decide(store, &call);
  return store;
}

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "rounds that count"},
      {"ops", &ops_option, 1, 100000000, "calls in each sample of a thread"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  spile_env env;
  spile__env_init(&env);
  idle_store well = {.base = {&idle_ops}};
  idle_store dead = {.base = {&idle_ops}, .dead = true};
  idle_store unpaid = {.base = {&idle_ops}, .unpaid = true};
  spile_store *closed = breaker_around(&well, &env);
  spile_store *open = breaker_around(&dead, &env);
  spile_store *charges = breaker_around(&unpaid, &env);

  breaker_job jobs[] = {
      {&well.base, SPILE_OK, 1, 1},        {closed, SPILE_OK, 1, 1},         {closed, SPILE_OK, 8, 1},
      {open, SPILE_EUNAVAILABLE, 1, 1},    {open, SPILE_EUNAVAILABLE, 8, 1}, {open, SPILE_EUNAVAILABLE, 64, 1},
      {charges, SPILE_EUNAVAILABLE, 1, 1}, {charges, SPILE_OK, 1, 2}};
  static const char *const names[] = {
      "the store alone", "closed",           "closed, 8 threads",          "open",
      "open, 8 threads", "open, 64 threads", "open for charges, a charge", "open for charges, a denial"};
  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = "the breaker";
  table->unit = "ns";
  table->rounds = (size_t)rounds_option;
  for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
    bench_row *row = bench_table_add(table, names[i], job_run, &jobs[i]);
    if (jobs[i].store == closed)
      row->base[0] = names[0];
    if (jobs[i].store == open || jobs[i].store == charges)
      row->aim_value = 1000;
  }
  bench_table_run(table);
  closed->ops->close(closed, false);
  open->ops->close(open, false);
  charges->ops->close(charges, false);
  free(table);
  return 0;
}
