/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock in front of LMDB's: it keeps deadlines, survives its holder, and is taken in turn.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backends/lmdb_lock.h"

/* Long enough for anything on a busy machine that is not stuck. */
#define PATIENCE_MS 20000

/* Shared by the processes of a test. */
typedef struct table {
  spile__lmdb_lock lock;
  atomic_int held;
  atomic_int counter;
} table;

static table *table_new(void) {
  table *made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(made != MAP_FAILED);
  cr_assert(eq(int, spile__lmdb_lock_init(&made->lock), 0));
  return made;
}

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void nap(void) {
  (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* A child that runs until it is killed, also when the test ends before that. */
static pid_t fork_bound(void) {
  pid_t child = fork();
  if (child == 0)
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

/* A process that takes the lock and stays. */
static pid_t holder_start(table *shared) {
  pid_t child = fork_bound();
  if (child == 0) {
    if (spile__lmdb_lock_take(&shared->lock, PATIENCE_MS) != 0)
      _exit(1);
    atomic_store(&shared->held, 1);
    for (;;)
      (void)pause();
  }
  while (atomic_load(&shared->held) == 0)
    nap();
  return child;
}

Test(lmdb_lock, is_free_again_once_given_back) {
  table *shared = table_new();
  for (int i = 0; i < 3; i++) {
    cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, 0), 0));
    spile__lmdb_lock_give(&shared->lock);
  }
}

Test(lmdb_lock, held_by_another_process_is_waited_for_until_the_deadline) {
  table *shared = table_new();
  pid_t child = holder_start(shared);
  int64_t from = now_ms();
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, 60), ETIMEDOUT));
  int64_t waited = now_ms() - from;
  cr_assert(waited >= 59 && waited < PATIENCE_MS, "waited %lld ms", (long long)waited);
  from = now_ms();
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, 0), ETIMEDOUT));
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, -5), ETIMEDOUT));
  cr_assert(lt(i64, now_ms() - from, PATIENCE_MS));
  (void)kill(child, SIGKILL);
  (void)waitpid(child, NULL, 0);
}

Test(lmdb_lock, goes_to_the_next_when_its_holder_is_killed) {
  table *shared = table_new();
  for (int i = 0; i < 20; i++) {
    atomic_store(&shared->held, 0);
    pid_t child = holder_start(shared);
    (void)kill(child, SIGKILL);
    cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, PATIENCE_MS), 0));
    spile__lmdb_lock_give(&shared->lock);
    (void)waitpid(child, NULL, 0);
  }
}

Test(lmdb_lock, is_not_lost_on_a_holder_that_was_stopped_and_goes_on) {
  table *shared = table_new();
  pid_t child = fork_bound();
  if (child == 0) {
    for (;;) {
      if (spile__lmdb_lock_take(&shared->lock, PATIENCE_MS) != 0)
        _exit(1);
      atomic_store(&shared->held, 1);
      (void)atomic_fetch_add(&shared->counter, 1);
      nap();
      atomic_store(&shared->held, 0);
      spile__lmdb_lock_give(&shared->lock);
    }
  }
  /* Stop it until it is caught holding. */
  do {
    (void)kill(child, SIGCONT);
    nap();
    (void)kill(child, SIGSTOP);
    int status;
    cr_assert(eq(int, waitpid(child, &status, WUNTRACED), child));
    bool stopped = WIFSTOPPED(status);
    cr_assert(stopped);
  } while (atomic_load(&shared->held) == 0);
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, 30), ETIMEDOUT));
  (void)kill(child, SIGCONT);
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, PATIENCE_MS), 0));
  spile__lmdb_lock_give(&shared->lock);
  (void)kill(child, SIGKILL);
  (void)waitpid(child, NULL, 0);
}

/* The state letter of a process, such as S for asleep. */
static char process_state(pid_t pid) {
  char path[64];
  char text[256] = {0};
  (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY);
  cr_assert(fd >= 0);
  ssize_t got = read(fd, text, sizeof(text) - 1);
  (void)close(fd);
  cr_assert(got > 0);
  const char *behind_name = strrchr(text, ')');
  cr_assert(behind_name != NULL);
  return behind_name[2];
}

Test(lmdb_lock, goes_to_those_who_wait_in_the_order_they_came) {
  enum { WAITERS = 4 };
  table *shared = table_new();
  int *turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  cr_assert(turn != MAP_FAILED);
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, 0), 0));
  pid_t waiters[WAITERS];
  for (int i = 0; i < WAITERS; i++) {
    waiters[i] = fork_bound();
    if (waiters[i] == 0) {
      atomic_store(&shared->held, i + 1);
      int failed = spile__lmdb_lock_take(&shared->lock, PATIENCE_MS);
      turn[i] = atomic_fetch_add(&shared->counter, 1);
      if (failed == 0)
        spile__lmdb_lock_give(&shared->lock);
      _exit(failed != 0);
    }
    while (atomic_load(&shared->held) != i + 1 || process_state(waiters[i]) != 'S')
      nap();
  }
  /* Who gives it back and wants it again at once, being awake, is the last all the same. */
  spile__lmdb_lock_give(&shared->lock);
  cr_assert(eq(int, spile__lmdb_lock_take(&shared->lock, PATIENCE_MS), 0));
  cr_assert(eq(int, atomic_load(&shared->counter), WAITERS));
  spile__lmdb_lock_give(&shared->lock);
  for (int i = 0; i < WAITERS; i++) {
    int status;
    cr_assert(eq(int, waitpid(waiters[i], &status, 0), waiters[i]));
    cr_assert(eq(int, status, 0));
    cr_assert(eq(int, turn[i], i));
  }
}
