/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LMDB store when processes are killed, stopped or forked, hosts go down, and files are not what they should be.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lmdb_rig.h"

#define HOUR_MS 3600000

/* Memory that a test shares with its children. */
static void *shared_new(size_t size) {
  void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(made != MAP_FAILED);
  return made;
}

static void nap(void) {
  (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void wait_until(atomic_int *flag, int value) {
  while (atomic_load(flag) != value)
    nap();
}

/* A child that runs until it is killed, also when the test ends before that. */
static pid_t fork_bound(void) {
  pid_t child = fork();
  if (child == 0)
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

static void kill_child(pid_t child) {
  (void)kill(child, SIGKILL);
  (void)waitpid(child, NULL, 0);
}

/* ---- Killed ---- */

/* LMDB-01 */
Test(lmdb_faults, lmdb_01_a_killed_reader_does_not_fill_the_map) {
  lmdb_rig rig;
  rig_start(&rig);
  atomic_int *reading = shared_new(sizeof(*reading));
  spile_spec spec = spec_of("default", 100000, 1, 1000);
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store?map_size=256KiB");
    (void)take_one(own, &spec, "other");
    spile__lmdb_view view;
    spile_error error = {0};
    if (spile__lmdb_view_begin(&view, ((spile__lmdb_store *)own)->env, &rig.env, INT64_MAX, &error) != SPILE_OK)
      _exit(1);
    atomic_store(reading, 1);
    for (;;)
      (void)pause();
  }
  wait_until(reading, 1);
  spile_store *store = rig_open(&rig, "store?map_size=256KiB");
  kill_child(child);
  for (int i = 0; i < 100000; i++)
    cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  struct stat status;
  cr_assert(eq(int, stat(rig_path(&rig, "store/data.mdb"), &status), 0));
  cr_assert(eq(i64, (int64_t)status.st_size, 256 << 10));
  rig_close(store);
  rig_stop(&rig);
}

/* A reader that lives and stands still holds its pages rightfully: the store says so, and goes on when it does. */
Test(lmdb_faults, a_stopped_reader_is_named_when_it_fills_the_map) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100000, 1, 1000);
  spile_store *store = rig_open(&rig, "store?map_size=128KiB");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  spile__lmdb_env *env = ((spile__lmdb_store *)store)->env;
  MDB_txn *reader = spile__lmdb_reader_take(env);
  cr_assert(reader != NULL);
  asked got;
  int taken = 0;
  do {
    got = ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 1, SPILE_STORE_TIME, 30);
    cr_assert(lt(int, ++taken, 1000));
  } while (got.outcome == SPILE_ALLOWED);
  cr_assert(eq(int, got.outcome, SPILE_EUNAVAILABLE));
  cr_assert(eq(int, got.error.reason, SPILE_REASON_LOCKED));
  cr_assert(strstr(got.error.message, "while it reads") != NULL);
  /* A new key finds the map no fuller than that, and clearing no better. */
  got = ask(store, SPILE_VERB_TAKE, &spec, "new", 3, 1, SPILE_STORE_TIME, 30);
  cr_assert(eq(int, got.outcome, SPILE_EUNAVAILABLE));
  cr_assert(eq(int, got.error.reason, SPILE_REASON_LOCKED));
  spile_item item = {.key = "k", .key_len = 1, .spec = &spec};
  spile_error error = {0};
  int64_t deadline_ms = rig.env.monotonic_ms(NULL) + RIG_PATIENCE_MS;
  cr_assert(eq(int, store->ops->clear(store, &item, deadline_ms, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_LOCKED));
  spile__lmdb_reader_give(env, reader);
  for (int i = 0; i < 1000; i++)
    cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}

/* What the workers of the kill loop tell. */
typedef struct ledger {
  atomic_long acknowledged;
  atomic_int errors;
  char message[240]; /* of one of them */
  atomic_long takes[4];
} ledger;

static void worker_run(lmdb_rig *rig, const spile_spec *spec, ledger *book, int number) {
  spile_store *store = rig_open(rig, "store?map_size=16MiB");
  for (;;) {
    asked got = ask(store, SPILE_VERB_TAKE, spec, "k", 1, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    if (got.outcome == SPILE_ALLOWED) {
      (void)atomic_fetch_add(&book->acknowledged, 1);
    } else if (atomic_fetch_add(&book->errors, 1) == 0) {
      memcpy(book->message, got.error.message, sizeof(book->message));
    }
    (void)atomic_fetch_add(&book->takes[number], 1);
  }
}

static pid_t worker_start(lmdb_rig *rig, const spile_spec *spec, ledger *book, int number) {
  pid_t child = fork_bound();
  if (child == 0)
    worker_run(rig, spec, book, number);
  return child;
}

/* A kill may fall between the commit and the acknowledgement: at most one token a kill is charged and not told. */
Test(lmdb_faults, a_kill_loses_no_acknowledged_take_and_charges_at_most_one_more) {
  enum { KILLS = 300 };
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100000000, 1, 1);
  ledger *book = shared_new(sizeof(*book));
  pid_t workers[4];
  for (int i = 0; i < 4; i++)
    workers[i] = worker_start(&rig, &spec, book, i);
  srand(7);
  for (int kills = 0; kills < KILLS; kills++) {
    int i = rand() % 4;
    long before = atomic_load(&book->takes[i]);
    while (atomic_load(&book->takes[i]) == before && atomic_load(&book->errors) == 0) {
      cr_assert(waitpid(workers[i], NULL, WNOHANG) == 0, "a worker ended by itself");
      nap();
    }
    /* Killed at any moment of a take: nothing is waited for. */
    (void)nanosleep(&(struct timespec){.tv_nsec = rand() % 1000000}, NULL);
    kill_child(workers[i]);
    workers[i] = worker_start(&rig, &spec, book, i);
  }
  for (int i = 0; i < 4; i++)
    kill_child(workers[i]);
  cr_assert(book->errors == 0, "%d, such as %s", book->errors, book->message);
  spile_store *store = rig_open(&rig, "store?map_size=16MiB");
  asked left = ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(int, left.outcome, SPILE_ALLOWED));
  /* The clock stands still, so nothing came back. */
  int64_t charged = 100000000 - left.decision.remaining;
  cr_assert(ge(i64, charged, book->acknowledged));
  cr_assert(le(i64, charged - book->acknowledged, KILLS + 4));
  cr_assert(lt(i64, KILLS, book->acknowledged));
  rig_close(store);
  rig_stop(&rig);
}

/* Where LMDB's table of readers has its transaction number, which is `number`. */
static off_t table_number_at(int fd, uint64_t number) {
  uint64_t words[16];
  cr_assert(eq(sz, (size_t)pread(fd, words, sizeof(words), 0), sizeof(words)));
  off_t found = -1;
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    cr_assert(words[i] != number || found < 0, "the number stands twice");
    found = words[i] == number ? (off_t)(i * sizeof(words[0])) : found;
  }
  cr_assert(found >= 0, "no number %ld in LMDB's lock file", (long)number);
  return found;
}

/* An opener was killed after it had begun LMDB's table anew, and its lock on it is the last that the system lets go. */
Test(lmdb_faults, a_table_that_a_killed_opener_left_half_made_is_not_gone_on_with) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100000, 1, 1000);
  atomic_long *last = shared_new(sizeof(*last));
  atomic_int *holding = shared_new(sizeof(*holding));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store?map_size=1MiB");
    for (int i = 0; i < 500; i++)
      (void)take_one(own, &spec, "k");
    atomic_store(last, (long)last_write(own));
    for (;;)
      (void)pause();
  }
  while (atomic_load(last) == 0)
    nap();
  kill_child(child);
  int fd = open(rig_path(&rig, "store/lock.mdb"), O_RDWR | O_CLOEXEC);
  cr_assert(le(int, 0, fd));
  uint64_t none = 0;
  cr_assert(pwrite(fd, &none, sizeof(none), table_number_at(fd, (uint64_t)*last)) == sizeof(none));
  pid_t holder = fork_bound();
  if (holder == 0) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
    atomic_store(holding, fcntl(fd, F_SETLK, &lock) == 0 ? 1 : -1);
    for (;;)
      (void)pause();
  }
  (void)close(fd);
  wait_until(holding, 1);

  spile_store *store = NULL;
  spile_error error;
  cr_assert(eq(int, rig_try(&rig, "store?map_size=1MiB", "rl", false, &store, &error), SPILE_EUNAVAILABLE));
  cr_assert(store == NULL);
  kill_child(holder);
  store = rig_open(&rig, "store?map_size=1MiB");
  cr_assert(le(sz, (size_t)*last, last_write(store)));
  asked left = ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(int, left.outcome, SPILE_ALLOWED));
  cr_assert(eq(i64, left.decision.remaining, 100000 - 501));
  rig_close(store);
  rig_stop(&rig);
}

/* Opens, takes and closes, over and over. */
static pid_t opener_start(lmdb_rig *rig, const spile_spec *spec, atomic_long *acknowledged) {
  pid_t child = fork_bound();
  while (child == 0) {
    spile_store *store = rig_open(rig, "store?map_size=1MiB");
    if (take_one(store, spec, "k") == SPILE_ALLOWED)
      (void)atomic_fetch_add(acknowledged, 1);
    rig_close(store);
  }
  return child;
}

Test(lmdb_faults, kills_while_opening_and_closing_lose_nothing_and_lock_nobody_out) {
  enum { KILLS = 200, OPENERS = 3 };
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100000000, 1, 1);
  atomic_long *acknowledged = shared_new(sizeof(*acknowledged));
  pid_t openers[OPENERS];
  for (int i = 0; i < OPENERS; i++)
    openers[i] = opener_start(&rig, &spec, acknowledged);
  srand(11);
  for (int kills = 0; kills < KILLS; kills++) {
    long before = atomic_load(acknowledged);
    while (atomic_load(acknowledged) == before)
      nap();
    /* Likewise, of opening, taking or closing. */
    (void)nanosleep(&(struct timespec){.tv_nsec = rand() % 2000000}, NULL);
    int i = rand() % OPENERS;
    cr_assert(waitpid(openers[i], NULL, WNOHANG) == 0, "an opener ended by itself");
    kill_child(openers[i]);
    openers[i] = opener_start(&rig, &spec, acknowledged);
  }
  for (int i = 0; i < OPENERS; i++)
    kill_child(openers[i]);
  spile_store *store = rig_open(&rig, "store?map_size=1MiB");
  asked left = ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  int64_t charged = 100000000 - left.decision.remaining;
  cr_assert(ge(i64, charged, *acknowledged));
  cr_assert(le(i64, charged - *acknowledged, KILLS + OPENERS));
  rig_close(store);
  rig_stop(&rig);
}

/* Runs `tail` to its end unless it makes its n-th system call first, before which it is killed. @return whether it was
 */
static bool killed_at(lmdb_rig *rig, const spile_spec *spec, const char *tail, int n) {
  pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
      _exit(2);
    (void)raise(SIGSTOP);
    spile_store *store = rig_open(rig, tail);
    (void)take_one(store, spec, "k");
    rig_close(store);
    _exit(0);
  }
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  bool stopped = WIFSTOPPED(status);
  cr_assert(stopped, "no permission to trace a child: %d", status);
  /* A stop at the entry of each call and one at its end. */
  for (int stops = 0; stops < 2 * n; stops++) {
    cr_assert(eq(int, (int)ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0));
    cr_assert(eq(int, waitpid(child, &status, 0), child));
    if (WIFEXITED(status)) {
      cr_assert(eq(int, status, 0));
      return false;
    }
    stopped = WIFSTOPPED(status);
    cr_assert(stopped);
  }
  kill_child(child);
  return true;
}

static void kill_at_each_call(bool is_new) {
  spile_spec spec = spec_of("default", 100000, 1, HOUR_MS / 1000);
  lmdb_rig rig;
  rig_start(&rig);
  if (!is_new)
    rig_close(rig_open(&rig, "store?map_size=256KiB"));
  int n = 1;
  int64_t charged = 0;
  for (;; n++) {
    bool killed = killed_at(&rig, &spec, "store?map_size=256KiB", n);
    spile_store *store = rig_open(&rig, "store?map_size=256KiB");
    asked left = ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    int64_t more = 100000 - left.decision.remaining - charged;
    cr_assert(left.outcome == SPILE_ALLOWED && more >= 0 && more <= 1, "call %d", n);
    charged = is_new ? 0 : charged + more;
    cr_assert(eq(int, take_one(store, &spec, "other"), SPILE_ALLOWED));
    rig_close(store);
    if (is_new)
      temp_dir_remove(rig_path(&rig, "store"));
    if (!killed)
      break;
  }
  (void)fprintf(stderr, "killed before each of %d system calls of %s store\n", n - 1, is_new ? "a new" : "an old");
  cr_assert(lt(int, 50, n));
  rig_stop(&rig);
}

Test(lmdb_faults, a_kill_at_any_system_call_of_making_a_store_leaves_one_that_opens) {
  kill_at_each_call(true);
}

Test(lmdb_faults, a_kill_at_any_system_call_of_using_a_store_leaves_one_that_opens) {
  kill_at_each_call(false);
}

Test(lmdb_faults, lets_exactly_the_capacity_through_eight_processes) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100, 1, HOUR_MS);
  ledger *book = shared_new(sizeof(*book));
  pid_t workers[8];
  for (int i = 0; i < 8; i++) {
    workers[i] = fork_bound();
    if (workers[i] != 0)
      continue;
    spile_store *store = rig_open(&rig, "store");
    for (int take = 0; take < 50; take++)
      (void)atomic_fetch_add(&book->acknowledged, take_one(store, &spec, "k") == SPILE_ALLOWED);
    rig_close(store);
    _exit(0);
  }
  for (int i = 0; i < 8; i++)
    child_done(workers[i]);
  cr_assert(eq(i64, book->acknowledged, 100));
  rig_stop(&rig);
}

/* ---- Stopped ---- */

Test(lmdb_faults, a_stopped_holder_costs_others_their_deadline_and_no_more) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 2, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "drained"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "drained"), SPILE_ALLOWED));
  atomic_int *holding = shared_new(sizeof(*holding));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    spile__lmdb_env *env = ((spile__lmdb_store *)own)->env;
    spile_error error = {0};
    if (spile__lmdb_env_lock(env, &rig.env, INT64_MAX, &error) != SPILE_OK)
      _exit(1);
    atomic_store(holding, 1);
    while (atomic_load(holding) == 1)
      nap();
    spile__lmdb_env_unlock(env);
    rig_close(own);
    _exit(0);
  }
  wait_until(holding, 1);
  (void)kill(child, SIGSTOP);
  int64_t from_ms = rig.env.monotonic_ms(NULL);
  asked got = ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 1, SPILE_STORE_TIME, 50);
  int64_t waited_ms = rig.env.monotonic_ms(NULL) - from_ms;
  cr_assert(eq(int, got.outcome, SPILE_EUNAVAILABLE));
  cr_assert(eq(int, got.error.reason, SPILE_REASON_LOCKED));
  cr_assert(waited_ms >= 49 && waited_ms < 1000, "waited %lld ms", (long long)waited_ms);
  char holder[32];
  (void)snprintf(holder, sizeof(holder), "thread %d held it", (int)child);
  cr_assert(strstr(got.error.message, holder) != NULL, "%s", got.error.message);
  cr_assert(le(sz, strlen(got.error.message), sizeof(got.decision.detail) - 1), "%s", got.error.message);
  /* Who reads does not queue. */
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "drained", 7, 1, SPILE_STORE_TIME, 0).outcome, SPILE_DENIED));
  cr_assert(eq(int, ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 1, SPILE_STORE_TIME, 0).outcome, SPILE_ALLOWED));
  spile_item item = {.key = "k", .key_len = 1, .spec = &spec};
  bool again;
  from_ms = rig.env.monotonic_ms(NULL);
  got.error.code = 0;
  cr_assert(eq(int, store->ops->clear(store, &item, from_ms + 20, &got.error), SPILE_EUNAVAILABLE));
  got.error.code = 0;
  cr_assert(eq(int, store->ops->clean(store, SPILE_CLEAN_FULL, SPILE_STORE_TIME, from_ms + 40, &again, &got.error),
               SPILE_EUNAVAILABLE));

  atomic_store(holding, 0);
  (void)kill(child, SIGCONT);
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  child_done(child);
  rig_close(store);
  rig_stop(&rig);
}

typedef struct denied_thread {
  pthread_t id;
  spile_store *store;
  const spile_spec *spec;
  int denied;
} denied_thread;

static void *denied_run(void *user) {
  denied_thread *self = user;
  for (int i = 0; i < 500; i++) {
    asked got = ask(self->store, SPILE_VERB_TAKE, self->spec, "drained", 7, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    self->denied += got.outcome == SPILE_DENIED;
  }
  return NULL;
}

/* More at once than have ever read in this process, which therefore cannot each have a reader. */
Test(lmdb_faults, a_stopped_holder_denies_no_thread_its_denial) {
  enum { THREADS = 24 };
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  atomic_int *holding = shared_new(sizeof(*holding));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    if (take_one(own, &spec, "drained") != SPILE_ALLOWED)
      _exit(1);
    atomic_store(holding, 1);
    wait_until(holding, 2);
    spile_error error = {0};
    if (spile__lmdb_env_lock(((spile__lmdb_store *)own)->env, &rig.env, INT64_MAX, &error) != SPILE_OK)
      _exit(1);
    atomic_store(holding, 3);
    for (;;)
      (void)pause();
  }
  wait_until(holding, 1);
  spile_store *store = rig_open(&rig, "store");
  atomic_store(holding, 2);
  wait_until(holding, 3);
  denied_thread threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    threads[i] = (denied_thread){.store = store, .spec = &spec};
    cr_assert(eq(int, pthread_create(&threads[i].id, NULL, denied_run, &threads[i]), 0));
  }
  for (int i = 0; i < THREADS; i++) {
    (void)pthread_join(threads[i].id, NULL);
    cr_assert(eq(int, threads[i].denied, 500));
  }
  kill_child(child);
  rig_close(store);
  rig_stop(&rig);
}

static int compare_ms(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static double clock_now_ms(void) {
  struct timespec at;
  (void)clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec * 1e3 + (double)at.tv_nsec / 1e6;
}

/* How late: printed for docs/failure.md; the bound here is one that a busy machine keeps. */
Test(lmdb_faults, a_take_behind_a_stopped_holder_ends_at_its_deadline) {
  enum { TRIES = 50 };
  static const int deadlines_ms[] = {1, 5, 25};
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  atomic_int *holding = shared_new(sizeof(*holding));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    spile_error error = {0};
    if (spile__lmdb_env_lock(((spile__lmdb_store *)own)->env, &rig.env, INT64_MAX, &error) != SPILE_OK)
      _exit(1);
    atomic_store(holding, 1);
    for (;;)
      (void)pause();
  }
  wait_until(holding, 1);
  (void)kill(child, SIGSTOP);
  cr_assert(
      eq(int, ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 1, SPILE_STORE_TIME, 1).error.reason, SPILE_REASON_LOCKED));
  for (size_t d = 0; d < sizeof(deadlines_ms) / sizeof(deadlines_ms[0]); d++) {
    double late[TRIES];
    for (int i = 0; i < TRIES; i++) {
      double from = clock_now_ms();
      asked got = ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 1, SPILE_STORE_TIME, deadlines_ms[d]);
      late[i] = clock_now_ms() - from - deadlines_ms[d];
      cr_assert(eq(int, got.outcome, SPILE_EUNAVAILABLE));
      cr_assert(eq(int, got.error.reason, SPILE_REASON_LOCKED));
      cr_assert(late[i] > -1.5 && late[i] < 1000, "%.3f ms late", late[i]);
    }
    qsort(late, TRIES, sizeof(late[0]), compare_ms);
    (void)fprintf(stderr, "deadline %2d ms, %d tries: late by median %.3f ms, max %.3f ms\n", deadlines_ms[d], TRIES,
                  late[TRIES / 2], late[TRIES - 1]);
  }
  kill_child(child);
  double from = clock_now_ms();
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  (void)fprintf(stderr, "first take after the holder was killed: %.3f ms\n", clock_now_ms() - from);
  rig_close(store);
  rig_stop(&rig);
}

/* ---- Forked ---- */

/* LMDB-04 */
Test(lmdb_faults, lmdb_04_a_forked_child_opens_its_own_and_harms_nothing) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100, 1, HOUR_MS);
  ledger *book = shared_new(sizeof(*book));
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "other"), SPILE_ALLOWED));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    store->ops->close(store, true);
    for (int i = 0; i < 150; i++)
      (void)atomic_fetch_add(&book->acknowledged, take_one(own, &spec, "k") == SPILE_ALLOWED);
    rig_close(own);
    _exit(0);
  }
  for (int i = 0; i < 150; i++)
    (void)atomic_fetch_add(&book->acknowledged, take_one(store, &spec, "k") == SPILE_ALLOWED);
  child_done(child);
  cr_assert(eq(i64, book->acknowledged, 100));
  int dead = -1;
  cr_assert(eq(int, mdb_reader_check(((spile__lmdb_store *)store)->env->mdb, &dead), 0));
  for (int i = 0; i < 50; i++)
    cr_assert(eq(int, take_one(store, &spec, "after"), SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}

/* ---- The host ---- */

static spile__lmdb_board board_read(const lmdb_rig *rig) {
  spile__lmdb_board board;
  int fd = open(rig_path(rig, "store/spile.lock"), O_RDONLY);
  cr_assert(fd >= 0);
  cr_assert(eq(sz, (size_t)read(fd, &board, sizeof(board)), sizeof(board)));
  (void)close(fd);
  return board;
}

static void board_write(const lmdb_rig *rig, size_t offset, const void *bytes, size_t len) {
  int fd = open(rig_path(rig, "store/spile.lock"), O_RDWR);
  cr_assert(fd >= 0);
  cr_assert(eq(sz, (size_t)pwrite(fd, bytes, len, (off_t)offset), len));
  (void)close(fd);
}

/* As if the host had gone down since: the next one to open finds another boot's id. */
static void reboot(const lmdb_rig *rig) {
  char other[SPILE__LMDB_BOOT_ID_LEN];
  memset(other, 'x', sizeof(other));
  board_write(rig, offsetof(spile__lmdb_board, boot_id), other, sizeof(other));
}

/* Takes one token in a process that then closes the store, or dies without. */
static void take_and_end(lmdb_rig *rig, const char *tail, const spile_spec *spec, bool closes) {
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *store = rig_open(rig, tail);
    bool allowed = take_one(store, spec, "k") == SPILE_ALLOWED;
    if (closes)
      rig_close(store);
    _exit(!allowed);
  }
  child_done(child);
}

Test(lmdb_faults, an_unclean_boot_empties_only_what_was_not_synced) {
  static const struct {
    const char *name;
    const char *before; /* how it was open when the host went down … */
    bool closed;        /* … and whether it had been closed */
    bool rebooted;
    const char *after; /* how it is opened then */
    int want;          /* of a drained bucket */
  } rows[] = {
      {"none, power lost", "store?sync=none", false, true, "store?sync=none", SPILE_ALLOWED},
      {"none, then full", "store?sync=none", false, true, "store?sync=full", SPILE_ALLOWED},
      {"none, closed", "store?sync=none", true, true, "store?sync=none", SPILE_DENIED},
      {"none, killed", "store?sync=none", false, false, "store?sync=none", SPILE_DENIED},
      {"meta, power lost", "store?sync=meta", false, true, "store?sync=meta", SPILE_DENIED},
      {"full, power lost", "store?sync=full", false, true, "store?sync=full", SPILE_DENIED},
      {"full, then none", "store?sync=full", false, true, "store?sync=none", SPILE_DENIED},
  };
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    lmdb_rig rig;
    rig_start(&rig);
    take_and_end(&rig, rows[i].before, &spec, rows[i].closed);
    cr_assert(board_read(&rig).clean == rows[i].closed, "%s", rows[i].name);
    if (rows[i].rebooted)
      reboot(&rig);
    spile_store *store = rig_open(&rig, rows[i].after);
    cr_assert(take_one(store, &spec, "k") == rows[i].want, "%s", rows[i].name);
    bool told = strncmp(rig.log, "2 ", 2) == 0 && strstr(rig.log, "starts empty") != NULL;
    cr_assert(told == (rows[i].want == SPILE_ALLOWED), "%s: %s", rows[i].name, rig.log);
    cr_assert(board_read(&rig).clean == 0, "%s", rows[i].name);
    rig_close(store);
    cr_assert(board_read(&rig).clean == 1, "%s", rows[i].name);
    rig_stop(&rig);
  }
}

/* By a hand or a backup that cut the file, or removed it and left the others. */
Test(lmdb_faults, data_that_are_gone_are_told) {
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  for (int cut = 0; cut < 2; cut++) {
    for (int closed = 0; closed < 2; closed++) {
      lmdb_rig rig;
      rig_start(&rig);
      spile_store *store = rig_open(&rig, "store");
      cr_assert(strncmp(rig.log, "3 ", 2) == 0 && strstr(rig.log, "a new store begins in") != NULL, "%s", rig.log);
      rig_close(store);
      take_and_end(&rig, "store", &spec, closed != 0);
      rig.log[0] = '\0';
      store = rig_open(&rig, "store");
      cr_assert(eq(str, rig.log, ""));
      cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
      rig_close(store);
      const char *path = rig_path(&rig, "store/data.mdb");
      cr_assert(eq(int, cut ? truncate(path, 0) : unlink(path), 0));
      store = rig_open(&rig, "store");
      cr_assert(strncmp(rig.log, "2 ", 2) == 0 && strstr(rig.log, "starts empty") != NULL, "%s", rig.log);
      cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
      rig_close(store);
      rig.log[0] = '\0';
      store = rig_open(&rig, "store");
      cr_assert(eq(str, rig.log, ""));
      rig_close(store);
      rig_stop(&rig);
    }
  }
}

Test(lmdb_faults, is_not_clean_while_another_process_has_it_open) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  take_and_end(&rig, "store", &spec, true);
  cr_assert(eq(int, (int)board_read(&rig).clean, 0));
  rig_close(store);
  cr_assert(eq(int, (int)board_read(&rig).clean, 1));
  rig_stop(&rig);
}

/* ---- Files ---- */

static void expect_closed(lmdb_rig *rig, const char *tail, int code, int reason, const char *word) {
  spile_store *store;
  spile_error error;
  int opened = rig_try(rig, tail, "rl", false, &store, &error);
  cr_assert(opened == code && store == NULL, "%d %s", opened, error.message);
  cr_assert(eq(int, error.reason, reason));
  cr_assert(strstr(error.message, word) != NULL, "%s", error.message);
}

Test(lmdb_faults, refuses_files_that_are_damaged) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  take_and_end(&rig, "store", &spec, true);
  cr_assert(eq(int, truncate(rig_path(&rig, "store/data.mdb"), 2 * 4096), 0));
  expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT, "spile repair");
  cr_assert(eq(int, truncate(rig_path(&rig, "store/data.mdb"), 100), 0));
  expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT, "spile repair");
  int fd = open(rig_path(&rig, "store/data.mdb"), O_WRONLY | O_TRUNC);
  char noise[8192];
  memset(noise, 'z', sizeof(noise));
  cr_assert(eq(sz, (size_t)write(fd, noise, sizeof(noise)), sizeof(noise)));
  (void)close(fd);
  expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT, "spile repair");
  cr_assert(eq(int, unlink(rig_path(&rig, "store/data.mdb")), 0));
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb_faults, makes_a_damaged_side_file_anew) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  take_and_end(&rig, "store", &spec, true);
  char noise[4096];
  memset(noise, 'z', sizeof(noise));
  board_write(&rig, 0, noise, sizeof(noise));
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  rig_close(store);
  cr_assert(eq(int, truncate(rig_path(&rig, "store/spile.lock"), 10), 0));
  store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb_faults, refuses_links_and_other_kinds_of_files) {
  lmdb_rig rig;
  rig_start(&rig);
  cr_assert(eq(int, mkdir(rig_path(&rig, "store"), 0700), 0));
  static const char *const names[] = {"store/data.mdb", "store/lock.mdb", "store/spile.lock"};
  for (size_t i = 0; i < 3; i++) {
    cr_assert(eq(int, symlink("/tmp/somewhere", rig_path(&rig, names[i])), 0));
    expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "not a regular file");
    cr_assert(eq(int, unlink(rig_path(&rig, names[i])), 0));
  }
  int fd = open(rig_path(&rig, "plain"), O_WRONLY | O_CREAT, 0600);
  (void)close(fd);
  expect_closed(&rig, "plain", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "LMDB directory");
  expect_closed(&rig, "plain/below", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "LMDB directory");
  rig_stop(&rig);
}

/* Who is root becomes another user; who is not has only its own files to be kept from. */
Test(lmdb_faults, refuses_what_belongs_to_another_user_or_may_not_be_written) {
  lmdb_rig rig;
  rig_start(&rig);
  if (geteuid() != 0) {
    cr_assert(eq(int, chmod(rig.dir, 0500), 0));
    expect_closed(&rig, "new", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "directory");
    cr_assert(eq(int, chmod(rig.dir, 0700), 0));
    rig_stop(&rig);
    return;
  }
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  take_and_end(&rig, "store", &spec, true);
  cr_assert(eq(int, chmod(rig.dir, 0755), 0));
  pid_t child = fork_bound();
  if (child == 0) {
    if (setuid(65534) != 0)
      _exit(1);
    expect_closed(&rig, "new", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "directory");
    expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "Permission denied");
    _exit(0);
  }
  child_done(child);
  cr_assert(eq(int, chmod(rig_path(&rig, "store"), 0755), 0));
  child = fork_bound();
  if (child == 0) {
    if (setuid(65534) != 0)
      _exit(1);
    expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "another user");
    _exit(0);
  }
  child_done(child);
  rig_stop(&rig);
}

Test(lmdb_faults, says_that_the_map_is_above_the_largest_file_allowed) {
  lmdb_rig rig;
  rig_start(&rig);
  const struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
  cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));
  expect_closed(&rig, "store?map_size=2MiB", SPILE_EUNAVAILABLE, SPILE_REASON_IO, "ulimit -f");
  spile_store *store = rig_open(&rig, "store?map_size=1MiB");
  rig_close(store);
  rig_stop(&rig);
}

/* The kernel finds the lock's holder by its thread number, which another namespace would read as somebody else. */
Test(lmdb_faults, refuses_to_join_processes_of_another_pid_namespace) {
  lmdb_rig rig;
  rig_start(&rig);
  atomic_int *stage = shared_new(sizeof(*stage));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    atomic_store(stage, 1);
    wait_until(stage, 2);
    rig_close(own);
    _exit(0);
  }
  wait_until(stage, 1);
  const uint64_t elsewhere = 1;
  board_write(&rig, offsetof(spile__lmdb_board, pid_namespace), &elsewhere, sizeof(elsewhere));
  expect_closed(&rig, "store", SPILE_EUNAVAILABLE, SPILE_REASON_REFUSED, "PID namespace");
  atomic_store(stage, 2);
  child_done(child);
  rig_close(rig_open(&rig, "store"));
  rig_stop(&rig);
}

/* With no place left in LMDB's table of readers, reading goes the way of writing. */
Test(lmdb_faults, goes_on_when_the_table_of_readers_is_full) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 2, 1, HOUR_MS);
  atomic_int *stage = shared_new(sizeof(*stage));
  pid_t child = fork_bound();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    MDB_txn *txn;
    while (mdb_txn_begin(((spile__lmdb_store *)own)->env->mdb, NULL, MDB_RDONLY, &txn) == 0)
      mdb_txn_reset(txn);
    atomic_store(stage, 1);
    for (;;)
      (void)pause();
  }
  wait_until(stage, 1);
  spile_store *store = rig_open(&rig, "store");
  for (int i = 0; i < 3; i++) {
    cr_assert(eq(int, take_one(store, &spec, "k"), i < 2 ? SPILE_ALLOWED : SPILE_DENIED));
    cr_assert(zero(ptr, (void *)spile__lmdb_reader_take(((spile__lmdb_store *)store)->env)));
  }
  cr_assert(eq(sz, show(store).production, 1));
  kill_child(child);
  /* Later tries find room again, after the dead process is struck from the table. */
  bool found = false;
  for (int i = 0; i < 5000 && !found; i++) {
    (void)ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    MDB_txn *reader = spile__lmdb_reader_take(((spile__lmdb_store *)store)->env);
    found = reader != NULL;
    if (found)
      spile__lmdb_reader_give(((spile__lmdb_store *)store)->env, reader);
  }
  cr_assert(found);
  rig_close(store);
  rig_stop(&rig);
}
