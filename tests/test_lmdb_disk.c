/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LMDB store when the disk fails: full, broken, read-only, or gone.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault_seam.h"
#include "lmdb_rig.h"

#define HOUR_MS 3600000

static asked take(spile_store *store, const spile_spec *spec, const char *key) {
  return ask(store, SPILE_VERB_TAKE, spec, key, strlen(key), 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
}

static void expect_reason(const asked *got, int reason, const char *word) {
  cr_assert(got->outcome == SPILE_EUNAVAILABLE, "%d %s", got->outcome, got->error.message);
  cr_assert(got->error.reason == reason, "%d %s", got->error.reason, got->error.message);
  cr_assert(strstr(got->error.message, word) != NULL, "%s", got->error.message);
}

static void expect_closed(lmdb_rig *rig, const char *tail, int reason, const char *word) {
  spile_store *store;
  asked got = {.outcome = rig_try(rig, tail, "rl", false, &store, &got.error)};
  cr_assert(store == NULL);
  expect_reason(&got, reason, word);
}

/* ---- Full ---- */

/* A file system of its own for this test's process. @return false: not permitted here */
static bool mount_small(const char *path, const char *options) {
  return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
         mount("tmpfs", path, "tmpfs", 0, options) == 0;
}

static void fill(const char *path) {
  int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
  cr_assert(fd >= 0);
  static const char zeros[4096];
  while (write(fd, zeros, sizeof(zeros)) > 0)
    ;
  cr_assert(eq(int, errno, ENOSPC));
  (void)close(fd);
}

/* Takes of ever new keys until one fails. */
static asked take_until_failure(spile_store *store, const spile_spec *spec) {
  asked got;
  int i = 0;
  do {
    char key[200];
    (void)snprintf(key, sizeof(key), "%0150d", i);
    got = take(store, spec, key);
    cr_assert(lt(int, ++i, 100000));
  } while (got.outcome == SPILE_ALLOWED);
  return got;
}

Test(lmdb_disk, a_full_disk_is_an_error_and_ends_with_the_want_of_room) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 2, 1, HOUR_MS);
  bool mounted = mount_small(rig.dir, "size=600k");
  if (!mounted)
    (void)fprintf(stderr, "no mount namespace here: the largest file is limited instead\n");
  spile_store *store = rig_open(&rig, "store?map_size=8MiB");
  cr_assert(eq(int, take_one(store, &spec, "drained"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "drained"), SPILE_ALLOWED));
  if (!mounted) {
    (void)signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {.rlim_cur = 400 << 10, .rlim_max = RLIM_INFINITY};
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &limit), 0));
  }
  asked got = take_until_failure(store, &spec);
  expect_reason(&got, SPILE_REASON_IO, mounted ? "is not known; the disk is full: make room" : "File too large");
  /* Who is denied needs no room. */
  cr_assert(eq(int, take_one(store, &spec, "drained"), SPILE_DENIED));

  if (mounted)
    cr_assert(eq(int, mount("tmpfs", rig.dir, "tmpfs", MS_REMOUNT, "size=4m"), 0));
  else
    cr_assert(eq(int, setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}), 0));
  cr_assert(eq(int, take_one(store, &spec, "new"), SPILE_ALLOWED));
  rig_close(store);
  store = rig_open(&rig, "store?map_size=8MiB");
  cr_assert(eq(int, take_one(store, &spec, "new"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "new"), SPILE_DENIED));
  rig_close(store);
  if (mounted)
    (void)umount2(rig.dir, MNT_DETACH);
  rig_stop(&rig);
}

/* A mapped page that the disk has no room for would be a SIGBUS, so the mapped files have all their room first. */
Test(lmdb_disk, a_disk_that_is_full_before_opening_is_an_error_at_every_size) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 2, 1, HOUR_MS);
  int refused = 0;
  int opened = 0;
  /* Without a mount every write from the n-th on fails, which misses only what is not a write. */
  bool mounted = mount_small(rig.dir, "size=1m");
  if (!mounted)
    (void)fprintf(stderr, "no mount namespace here: the n-th write fails instead\n");
  for (int room = 0; room < 40; room++) {
    if (mounted) {
      fill(rig_path(&rig, "spare"));
      struct stat status;
      cr_assert(eq(int, stat(rig_path(&rig, "spare"), &status), 0));
      cr_assert(eq(int, truncate(rig_path(&rig, "spare"), status.st_size - room * 4096), 0));
    } else {
      fault_set(&(fault_plan){.skip = room, .fails = 1 << 30, .error = ENOSPC});
    }
    spile_store *store;
    spile_error error;
    int result = rig_try(&rig, "store?map_size=1MiB", "rl", false, &store, &error);
    fault_clear();
    if (result == SPILE_OK) {
      opened++;
      rig_close(store);
    } else {
      refused++;
      cr_assert(eq(int, result, SPILE_EUNAVAILABLE));
      cr_assert(error.reason == SPILE_REASON_IO, "room for %d pages: %s", room, error.message);
    }
    /* With room again nothing of the failure is left. */
    (void)unlink(rig_path(&rig, "spare"));
    store = rig_open(&rig, "store?map_size=1MiB");
    cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
    rig_close(store);
    temp_dir_remove(rig_path(&rig, "store"));
  }
  cr_assert(lt(int, 0, refused));
  cr_assert(lt(int, 0, opened));
  if (mounted)
    (void)umount2(rig.dir, MNT_DETACH);
  rig_stop(&rig);
}

/* ---- Broken ---- */

/* Every write and sync of a take fails in turn: nothing is charged by it, and the next one goes on. */
static void break_each_call(const char *tail, int error_number) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1000, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, tail);
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  int64_t charged = 1;
  int broken = 0;
  for (int skip = 0;; skip++) {
    fault_set(&(fault_plan){.skip = skip, .fails = 1, .error = error_number});
    asked got = take(store, &spec, "k");
    bool fell = fault_failed() > 0;
    fault_clear();
    if (!fell) {
      cr_assert(eq(int, got.outcome, SPILE_ALLOWED));
      break;
    }
    broken++;
    expect_reason(&got, SPILE_REASON_IO, strerror(error_number));
    asked left = ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    cr_assert(eq(int, left.outcome, SPILE_ALLOWED));
    cr_assert(eq(i64, left.decision.remaining, 1000 - charged));
    cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
    charged++;
  }
  cr_assert(ge(int, broken, 2));
  rig_close(store);
  store = rig_open(&rig, tail);
  asked left = ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(i64, left.decision.remaining, 1000 - charged - 1));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb_disk, a_failing_write_or_sync_costs_its_take_and_no_more) {
  static const char *const tails[] = {"store?sync=none", "store?sync=meta", "store?sync=full"};
  for (size_t i = 0; i < 3; i++) {
    break_each_call(tails[i], EIO);
    break_each_call(tails[i], ENOSPC);
  }
}

/* The breaker leaves the disk alone and not those who only read. */
Test(lmdb_disk, a_disk_that_does_not_write_opens_the_breaker_for_charges_and_not_for_denials) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = RIG_PATIENCE_MS;
  options.breaker_failures = 3;
  options.breaker_wait_ms = 3600000;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, rig_open(&rig, "store?sync=full"), &options, NULL), SPILE_OK));
  spile_limit *limit;
  cr_assert(eq(int, spile_limit_parse(&limit, "2/h", NULL), SPILE_OK));
  spile_decision d;
  cr_assert(eq(int, spile_take(limiter, limit, "drained", 7, 2, NULL), SPILE_ALLOWED));

  fault_set(&(fault_plan){.fails = 1000000, .error = ENOSPC});
  for (int i = 0; i < 20; i++) {
    cr_assert(eq(int, spile_take(limiter, limit, "fresh", 5, 1, &d), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, d.store_error, i < 3 ? SPILE_REASON_IO : SPILE_REASON_BREAKER), "%d: %s", i, d.detail);
    cr_assert(eq(int, spile_take(limiter, limit, "drained", 7, 1, &d), SPILE_DENIED));
    cr_assert(eq(int, d.decided_by, SPILE_BY_STORE));
    cr_assert(eq(i64, d.retry_after_ms, 1800000));
    cr_assert(eq(int, spile_peek(limiter, limit, "drained", 7, 0, &d), SPILE_ALLOWED));
  }
  int calls = fault_calls();
  cr_assert(eq(int, spile_take(limiter, limit, "fresh", 5, 1, &d), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, fault_calls(), calls), "the disk is left alone");
  fault_clear();
  spile_limit_unref(limit);
  spile_close(limiter);
  rig_stop(&rig);
}

/* A meta page that cannot be written makes LMDB refuse everything until it is opened anew. */
Test(lmdb_disk, opens_itself_anew_after_a_meta_page_could_not_be_written) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  spile_store *second = rig_open(&rig, "store");
  spile__lmdb_env *env = ((spile__lmdb_store *)store)->env;
  for (int round = 0; round < 20; round++) {
    cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
    fault_set(&(fault_plan){.fails = 1, .error = EIO, .metas = true});
    asked got = take(store, &spec, "k");
    cr_assert(eq(int, fault_failed(), 1));
    fault_clear();
    expect_reason(&got, SPILE_REASON_IO, "Input/output error");
    /* LMDB itself would go on refusing. */
    MDB_txn *txn;
    cr_assert(eq(int, mdb_txn_begin(env->mdb, NULL, 0, &txn), MDB_PANIC));
    cr_assert(eq(int, take_one(second, &spec, "k"), SPILE_ALLOWED));
    asked left = ask(store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    cr_assert(eq(i64, left.decision.remaining, 100 - 2 * (round + 1)));
  }
  rig_close(second);
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb_disk, waits_for_a_read_under_way_before_it_opens_itself_anew) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  spile__lmdb_env *env = ((spile__lmdb_store *)store)->env;
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  MDB_txn *reader = spile__lmdb_reader_take(env);
  cr_assert(reader != NULL);
  fault_set(&(fault_plan){.fails = 1, .error = EIO, .metas = true});
  asked got = take(store, &spec, "k");
  fault_clear();
  expect_reason(&got, SPILE_REASON_IO, "");
  got = take(store, &spec, "k");
  expect_reason(&got, SPILE_REASON_IO, "opens anew");
  spile__lmdb_reader_give(env, reader);
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}

typedef struct panicked {
  spile_store *store;
  const spile_spec *spec;
  atomic_bool end;
  atomic_int allowed;
  atomic_int wrong;
} panicked;

static void *panicked_run(void *user) {
  panicked *shared = user;
  while (!atomic_load(&shared->end)) {
    asked got = take(shared->store, shared->spec, "k");
    if (got.outcome == SPILE_ALLOWED)
      (void)atomic_fetch_add(&shared->allowed, 1);
    else if (got.outcome != SPILE_EUNAVAILABLE || got.error.reason != SPILE_REASON_IO)
      (void)atomic_fetch_add(&shared->wrong, 1);
  }
  return NULL;
}

Test(lmdb_disk, opens_itself_anew_under_the_takes_of_many_threads) {
  enum { THREADS = 6, ROUNDS = 60 };
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 100000000, 1, 1);
  panicked shared = {.store = rig_open(&rig, "store"), .spec = &spec};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    cr_assert(eq(int, pthread_create(&threads[i], NULL, panicked_run, &shared), 0));
  int fell = 0;
  int64_t patience_ms = rig.env.monotonic_ms(NULL) + 3 * RIG_PATIENCE_MS;
  for (int round = 0; round < ROUNDS; round++) {
    int before = atomic_load(&shared.allowed);
    while (atomic_load(&shared.allowed) < before + 20) {
      cr_assert(rig.env.monotonic_ms(NULL) < patience_ms, "no take succeeds after round %d", round);
      (void)sched_yield();
    }
    fault_set(&(fault_plan){.fails = 1, .error = EIO, .metas = true});
    while (fault_failed() == 0)
      (void)sched_yield();
    fault_clear();
    fell++;
  }
  atomic_store(&shared.end, true);
  for (int i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL);
  cr_assert(eq(int, fell, ROUNDS));
  cr_assert(eq(int, atomic_load(&shared.wrong), 0));
  asked left = ask(shared.store, SPILE_VERB_PEEK, &spec, "k", 1, 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(i64, left.decision.remaining, 100000000 - atomic_load(&shared.allowed)));
  rig_close(shared.store);
  rig_stop(&rig);
}

/* ---- Read-only ---- */

Test(lmdb_disk, a_read_only_file_system_is_named) {
  lmdb_rig rig;
  rig_start(&rig);
  rig_close(rig_open(&rig, "store"));
  if (mount_small(rig.dir, "size=1m")) {
    rig_close(rig_open(&rig, "store?map_size=128KiB"));
    cr_assert(eq(int, mount("tmpfs", rig.dir, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0));
    expect_closed(&rig, "store", SPILE_REASON_IO, "Read-only file system");
    expect_closed(&rig, "new", SPILE_REASON_IO, "");
    (void)umount2(rig.dir, MNT_DETACH);
  } else {
    (void)fprintf(stderr, "no mount namespace here: every write fails instead\n");
    fault_set(&(fault_plan){.fails = 1 << 30, .error = EROFS});
    expect_closed(&rig, "new", SPILE_REASON_IO, "Read-only file system");
    fault_clear();
  }
  rig_stop(&rig);
}

/* ---- Gone ---- */

Test(lmdb_disk, goes_on_in_a_directory_that_was_removed_while_others_begin_a_new_one) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 2, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  temp_dir_remove(rig_path(&rig, "store"));
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  spile_store *other = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(other, &spec, "k"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  /* What is gone cannot be opened anew, and another one's files are not taken for it. */
  fault_set(&(fault_plan){.fails = 1, .error = EIO, .metas = true});
  asked got = take(store, &spec, "other");
  fault_clear();
  expect_reason(&got, SPILE_REASON_IO, "");
  got = take(store, &spec, "other");
  expect_reason(&got, SPILE_REASON_IO, "removed or replaced");
  cr_assert(eq(int, take_one(other, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  rig_close(other);
  rig_stop(&rig);
}
