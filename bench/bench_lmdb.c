/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LMDB store beside bare LMDB: one transaction that finds a record, changes it and commits, with the same flags and
 * records of the same size. What the store adds is the look before the lock, its own fair lock and the arithmetic.
 *
 * LMDB may be open only once in a process, and what is asked here is how processes share. So every sample is taken by
 * worker processes that were forked before anything was opened, each with a limiter and a bare environment of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define WORKERS 2
#define RECORD_LEN 56
#define MAP_SIZE ((size_t)1 << 30)
#define LATENCIES_MAX ((size_t)1 << 20)
#define CAPACITY 80000
#define FILL 64  /* buckets in one transaction while the database is filled */
#define READS 16 /* reads timed together: the clock costs a tenth of one */

static const char *const about =
    "1 process: median us of one transaction or take; 2 processes: us of both for each, so half is twice the rate\n"
    "bare: begin, cursor get, put in place, commit; bare read: renew, get, reset; uniform keys of 24 bytes\n"
    "denied: a bucket that lacks the tokens. Lost on power failure: none everything, meta the last take, full nothing";

static int64_t keys_option = 100000;
static int64_t rounds_option = 7;
static int64_t ms_option = 100;

typedef enum lmdb_work { WORK_END, WORK_OPEN, WORK_DISK, WORK_BARE, WORK_TAKE, WORK_BARE_READ, WORK_DENIED } lmdb_work;

typedef struct lmdb_mode {
  const char *name;
  unsigned flags;
} lmdb_mode;

/* What a worker writes for the others to read. */
typedef struct lmdb_sample {
  size_t count;
  size_t failed; /* takes without an answer */
  double elapsed_us;
  double latencies_us[LATENCIES_MAX];
} lmdb_sample;

typedef struct lmdb_worker {
  pid_t pid;
  int orders; /* the parent writes one lmdb_work … */
  int done;   /* … and reads a byte when it is done */
  lmdb_sample *sample;
} lmdb_worker;

/* What a worker works on. */
typedef struct lmdb_world {
  spile_limiter *limiter;
  spile_limit *limit;
  MDB_env *env;
  MDB_dbi dbi;
  MDB_txn *reader;
  int disk;
  uint64_t random;
} lmdb_world;

static void check(int result, const char *what) {
  if (result != 0)
    bench_fatal("%s: %s", what, mdb_strerror(result));
}

/* ---- What is measured ---- */

static void key_any(lmdb_world *world, char key[BENCH_KEY_LEN]) {
  bench_key_make(key, bench_random(&world->random) % (uint64_t)keys_option);
}

static bool disk_write(lmdb_world *world) {
  static const char page[4096] = {1};
  return pwrite(world->disk, page, sizeof(page), 0) == (ssize_t)sizeof(page) && fdatasync(world->disk) == 0;
}

static bool bare_write(lmdb_world *world) {
  char key[BENCH_KEY_LEN];
  char record[RECORD_LEN];
  key_any(world, key);
  MDB_val name = {sizeof(key), key};
  MDB_val value;
  MDB_txn *txn;
  MDB_cursor *cursor;
  check(mdb_txn_begin(world->env, NULL, 0, &txn), "mdb_txn_begin");
  check(mdb_cursor_open(txn, world->dbi, &cursor), "mdb_cursor_open");
  check(mdb_cursor_get(cursor, &name, &value, MDB_SET_KEY), "mdb_cursor_get");
  memcpy(record, value.mv_data, sizeof(record));
  record[8]++;
  value = (MDB_val){sizeof(record), record};
  check(mdb_cursor_put(cursor, &name, &value, MDB_CURRENT), "mdb_cursor_put");
  mdb_cursor_close(cursor);
  check(mdb_txn_commit(txn), "mdb_txn_commit");
  return true;
}

static bool bare_read(lmdb_world *world) {
  char key[BENCH_KEY_LEN];
  key_any(world, key);
  MDB_val name = {sizeof(key), key};
  MDB_val value;
  check(mdb_txn_renew(world->reader), "mdb_txn_renew");
  int result = mdb_get(world->reader, world->dbi, &name, &value);
  mdb_txn_reset(world->reader);
  return result == 0 && value.mv_size == RECORD_LEN;
}

static bool take(lmdb_world *world, int64_t cost, int expected) {
  char key[BENCH_KEY_LEN];
  key_any(world, key);
  spile_decision decision;
  int result = spile_take(world->limiter, world->limit, key, sizeof(key), cost, &decision);
  if (result > 0 && result != expected)
    bench_fatal("a take was %s", spile_outcome_name(result));
  return result == expected;
}

static bool work_once(lmdb_world *world, lmdb_work work) {
  switch (work) {
  case WORK_DISK:
    return disk_write(world);
  case WORK_BARE:
    return bare_write(world);
  case WORK_TAKE:
    return take(world, 1, SPILE_ALLOWED);
  case WORK_BARE_READ:
    return bare_read(world);
  case WORK_DENIED:
    return take(world, CAPACITY, SPILE_DENIED);
  case WORK_END:
  case WORK_OPEN:
    break;
  }
  return false;
}

static void work_for_a_while(lmdb_world *world, lmdb_work work, lmdb_sample *sample) {
  size_t group = work == WORK_BARE_READ || work == WORK_DENIED ? READS : 1;
  int64_t start_ns = bench_now_ns();
  int64_t end_ns = start_ns + ms_option * 1000000;
  int64_t before_ns = start_ns;
  sample->count = sample->failed = 0;
  while (before_ns < end_ns && sample->count < LATENCIES_MAX) {
    for (size_t i = 0; i < group; i++)
      sample->failed += !work_once(world, work);
    int64_t after_ns = bench_now_ns();
    sample->latencies_us[sample->count++] = (double)(after_ns - before_ns) / 1000 / (double)group;
    before_ns = after_ns;
  }
  sample->elapsed_us = (double)(before_ns - start_ns) / 1000 / (double)group;
}

/* ---- Workers ---- */

static void bare_fill(lmdb_world *world) {
  char key[BENCH_KEY_LEN];
  char record[RECORD_LEN] = {1};
  MDB_txn *txn;
  check(mdb_txn_begin(world->env, NULL, 0, &txn), "mdb_txn_begin");
  for (size_t i = 0; i < (size_t)keys_option; i++) {
    bench_key_make(key, i);
    MDB_val name = {sizeof(key), key};
    MDB_val value = {sizeof(record), record};
    check(mdb_put(txn, world->dbi, &name, &value, 0), "mdb_put");
  }
  check(mdb_txn_commit(txn), "mdb_txn_commit");
}

static void limiter_fill(lmdb_world *world) {
  char keys[FILL][BENCH_KEY_LEN];
  spile_request requests[FILL];
  for (size_t i = 0; i < (size_t)keys_option;) {
    size_t n = 0;
    for (; n < FILL && i < (size_t)keys_option; n++, i++) {
      bench_key_make(keys[n], i);
      requests[n] = (spile_request){world->limit, keys[n], BENCH_KEY_LEN, 1};
    }
    spile_decision decision;
    if (spile_take_all(world->limiter, requests, n, &decision, NULL) != SPILE_ALLOWED)
      bench_fatal("the buckets could not be made: %s", decision.detail);
  }
}

static void world_open(lmdb_world *world, const char *directory, const lmdb_mode *mode, bool fill) {
  char path[BENCH_PATH_LEN + 64];
  *world = (lmdb_world){.random = (uint64_t)getpid()};
  /* A bucket is not full again for an hour a token, longer than any run. */
  world->limit = bench_limit("1/h,capacity=80000");
  (void)snprintf(path, sizeof(path), "lmdb:%s/spile?sync=%s&map_size=1GiB", directory, mode->name);
  world->limiter = bench_open(path, NULL);

  check(mdb_env_create(&world->env), "mdb_env_create");
  check(mdb_env_set_mapsize(world->env, MAP_SIZE), "mdb_env_set_mapsize");
  (void)snprintf(path, sizeof(path), "%s/bare", directory);
  check(mdb_env_open(world->env, path, mode->flags | MDB_NOTLS, 0600), path);
  MDB_txn *txn;
  check(mdb_txn_begin(world->env, NULL, 0, &txn), "mdb_txn_begin");
  check(mdb_dbi_open(txn, NULL, 0, &world->dbi), "mdb_dbi_open");
  check(mdb_txn_commit(txn), "mdb_txn_commit");
  if (fill) {
    bare_fill(world);
    limiter_fill(world);
  }
  check(mdb_txn_begin(world->env, NULL, MDB_RDONLY, &world->reader), "mdb_txn_begin");
  mdb_txn_reset(world->reader);

  (void)snprintf(path, sizeof(path), "%s/disk", directory);
  world->disk = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (world->disk < 0 || ftruncate(world->disk, 4096) != 0)
    bench_fatal("%s: %s", path, strerror(errno));
}

static _Noreturn void worker_run(lmdb_worker *worker, const char *directory, const lmdb_mode *mode, bool first) {
  lmdb_world world = {0};
  lmdb_work work;
  while (read(worker->orders, &work, sizeof(work)) == (ssize_t)sizeof(work) && work != WORK_END) {
    if (work == WORK_OPEN)
      world_open(&world, directory, mode, first);
    else
      work_for_a_while(&world, work, worker->sample);
    if (write(worker->done, "", 1) != 1)
      break;
  }
  spile_close(world.limiter);
  _exit(0);
}

static void worker_start(lmdb_worker *worker, const char *directory, const lmdb_mode *mode, bool first) {
  int orders[2];
  int done[2];
  if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(done, O_CLOEXEC) != 0)
    bench_fatal("pipe: %s", strerror(errno));
  pid_t parent = getpid();
  (void)fflush(stdout);
  worker->pid = fork();
  if (worker->pid < 0)
    bench_fatal("fork: %s", strerror(errno));
  if (worker->pid == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
      _exit(1);
    (void)close(orders[1]);
    (void)close(done[0]);
    worker->orders = orders[0];
    worker->done = done[1];
    worker_run(worker, directory, mode, first);
  }
  (void)close(orders[0]);
  (void)close(done[1]);
  worker->orders = orders[1];
  worker->done = done[0];
}

static void worker_order(lmdb_worker *worker, lmdb_work work) {
  if (write(worker->orders, &work, sizeof(work)) != (ssize_t)sizeof(work))
    bench_fatal("a worker has ended");
}

static void worker_wait(lmdb_worker *worker) {
  char byte;
  if (read(worker->done, &byte, 1) != 1)
    bench_fatal("a worker has ended; its message is above");
}

/* ---- Rows ---- */

typedef struct lmdb_row {
  const char *name;
  lmdb_worker *workers;
  size_t processes;
  lmdb_work work;
  /* Of each round, with the one that does not count. */
  size_t rounds;
  double rate[BENCH_ROUNDS_MAX + 1];
  double p50_us[BENCH_ROUNDS_MAX + 1];
  double p99_us[BENCH_ROUNDS_MAX + 1];
  double max_us[BENCH_ROUNDS_MAX + 1];
  size_t failed;
} lmdb_row;

static double row_run(void *user) {
  lmdb_row *row = user;
  static double all[WORKERS * LATENCIES_MAX];
  size_t count = 0;
  double rate = 0;
  for (size_t i = 0; i < row->processes; i++)
    worker_order(&row->workers[i], row->work);
  for (size_t i = 0; i < row->processes; i++) {
    worker_wait(&row->workers[i]);
    const lmdb_sample *sample = row->workers[i].sample;
    memcpy(all + count, sample->latencies_us, sample->count * sizeof(all[0]));
    count += sample->count;
    rate += (double)sample->count / sample->elapsed_us * 1e6;
    row->failed += sample->failed;
  }
  size_t round = row->rounds++;
  row->rate[round] = rate;
  row->p50_us[round] = bench_quantile(all, count, 0.5);
  row->p99_us[round] = bench_quantile(all, count, 0.99);
  row->max_us[round] = bench_quantile(all, count, 1);
  return row->processes == 1 ? row->p50_us[round] : 1e6 / rate;
}

/* How often as much as one process does: the median over the rounds. */
static double row_gain(const lmdb_row *row, const lmdb_row *alone) {
  double gains[BENCH_ROUNDS_MAX];
  for (size_t i = 1; i < row->rounds; i++)
    gains[i - 1] = row->rate[i] / alone->rate[i];
  return bench_quantile(gains, row->rounds - 1, 0.5);
}

/* Rates, and the waits, which are the medians over the rounds; of the longest wait, the longest. */
static void rates_print(lmdb_row *rows, size_t count) {
  (void)printf("\n  %-24s %11s %9s %9s %9s %7s %12s\n", "", "per second", "p50 us", "p99 us", "max us", "failed",
               "x 1 process");
  /* Sorting what a row has measured takes it out of its rounds, so what compares rounds comes first. */
  double gains[BENCH_ROWS_MAX];
  for (size_t i = 0; i < count; i++) {
    const lmdb_row *alone = rows;
    while (alone->work != rows[i].work)
      alone++;
    gains[i] = row_gain(&rows[i], alone);
  }
  for (size_t i = 0; i < count; i++) {
    lmdb_row *row = &rows[i];
    size_t n = row->rounds - 1;
    (void)printf("  %-24s %11.0f %9.1f %9.1f %9.0f %7zu %12.2f\n", row->name, bench_quantile(row->rate + 1, n, 0.5),
                 bench_quantile(row->p50_us + 1, n, 0.5), bench_quantile(row->p99_us + 1, n, 0.5),
                 bench_quantile(row->max_us + 1, n, 1), row->failed, gains[i]);
  }
  (void)fflush(stdout);
}

typedef struct lmdb_line {
  const char *name;
  size_t processes;
  lmdb_work work;
  const char *base;
  double aim;
} lmdb_line;

static void table_run(const char *title, lmdb_worker *workers, const lmdb_line *lines, size_t count) {
  lmdb_row *rows = bench_allocate(count, sizeof(*rows));
  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = title;
  table->unit = "us";
  table->rounds = (size_t)rounds_option;
  for (size_t i = 0; i < count; i++) {
    rows[i].name = lines[i].name;
    rows[i].workers = workers;
    rows[i].processes = lines[i].processes;
    rows[i].work = lines[i].work;
    bench_row *row = bench_table_add(table, rows[i].name, row_run, &rows[i]);
    row->base[0] = lines[i].base;
    row->aim_ratio = lines[i].aim;
  }
  bench_table_run(table);
  rates_print(rows, count);
  free(table);
  free(rows);
}

static void tables_run(const lmdb_mode *mode, lmdb_worker *workers) {
  char title[128];
  bool durable = (mode->flags & MDB_NOSYNC) == 0;
  const lmdb_line alone[] = {
      {"bare", 1, WORK_BARE, NULL, 0},
      {"take", 1, WORK_TAKE, "bare", durable ? 1.1 : 1.2},
      {"bare read", 1, WORK_BARE_READ, NULL, 0},
      {"denied", 1, WORK_DENIED, "bare read", 1.5},
      {"4 KiB and fdatasync", 1, WORK_DISK, "bare", 0},
  };
  (void)snprintf(title, sizeof(title), "sync=%s, %lld keys, one process", mode->name, (long long)keys_option);
  table_run(title, workers, alone, sizeof(alone) / sizeof(alone[0]) - !durable);

  /* Readers keep pages from being used again, so what two processes leave behind slows each of them from then on. */
  const lmdb_line shared[] = {
      {"bare", 1, WORK_BARE, NULL, 0},
      {"take", 1, WORK_TAKE, "bare", 0},
      {"denied", 1, WORK_DENIED, NULL, 0},
      {"2 processes: bare", 2, WORK_BARE, NULL, 0},
      {"2 processes: take", 2, WORK_TAKE, "2 processes: bare", 0},
      {"2 processes: denied", 2, WORK_DENIED, "denied", 0},
  };
  (void)snprintf(title, sizeof(title), "sync=%s, %lld keys, one process and two in turn", mode->name,
                 (long long)keys_option);
  table_run(title, workers, shared, sizeof(shared) / sizeof(shared[0]));
}

static void mode_run(const lmdb_mode *mode) {
  char directory[BENCH_PATH_LEN];
  char path[BENCH_PATH_LEN + 8];
  lmdb_worker workers[WORKERS];
  bench_directory_make(directory);
  (void)snprintf(path, sizeof(path), "%s/bare", directory);
  if (mkdir(path, 0700) != 0)
    bench_fatal("%s: %s", path, strerror(errno));
  for (size_t i = 0; i < WORKERS; i++) {
    workers[i].sample =
        mmap(NULL, sizeof(lmdb_sample), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (workers[i].sample == MAP_FAILED)
      bench_fatal("mmap: %s", strerror(errno));
    worker_start(&workers[i], directory, mode, i == 0);
    worker_order(&workers[i], WORK_OPEN);
    worker_wait(&workers[i]);
  }
  tables_run(mode, workers);
  for (size_t i = 0; i < WORKERS; i++) {
    worker_order(&workers[i], WORK_END);
    (void)waitpid(workers[i].pid, NULL, 0);
    (void)close(workers[i].orders);
    (void)close(workers[i].done);
    (void)munmap(workers[i].sample, sizeof(lmdb_sample));
  }
  bench_directory_remove(directory);
}

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"keys", &keys_option, 1, 2000000, "keys in the database"},
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "rounds that count"},
      {"ms", &ms_option, 1, 10000, "milliseconds of each sample"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  static const lmdb_mode modes[] = {{"none", MDB_NOSYNC}, {"meta", MDB_NOMETASYNC}, {"full", 0}};
  for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
    mode_run(&modes[i]);
  return 0;
}
