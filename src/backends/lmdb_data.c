/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data file: what has to be true before LMDB may have it, and how it is had again when LMDB has given up.
 *
 * LMDB maps its files. A mapped page that the disk has no room for, that was cut off or that holds wrong numbers ends
 * the process. So, by whoever is alone in the directory and may still change things: the file is checked page by page
 * (lmdb_check.c), LMDB's table of readers gets its room on the disk, and the data file is made as long as the map (it
 * is sparse: only what is used takes room). Who joins others finds all that done, and looks only whether the file was
 * cut.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/address.h"
#include "backends/lmdb_check.h"
#include "backends/lmdb_env.h"

/* All readers of all processes. LMDB's table of them takes 64 bytes each, and 128 before the first. */
#define READERS_ALL 1022
#define LOCK_FILE_LEN 65536

/* A millisecond apart: processes that are being killed need some. */
#define MAP_TRIES 1000

/* A quarter of the map, at most 128 pages, is for known keys and for cleaning, which need pages even to free some. */
#define RESERVE_PART 4
#define RESERVE_MAX 128

/* ---- Before LMDB ---- */

/* What the last boot left behind is no more than a guess: begin with nothing. */
static int data_discard(int dir_fd, const char *path, const spile_env *outside, spile_error *error) {
  if (unlinkat(dir_fd, SPILE__LMDB_DATA_NAME, 0) != 0 && errno != ENOENT)
    return spile__lmdb_path_fail(error, "remove the data that the last boot left unwritten", path);
  char line[256];
  (void)snprintf(line, sizeof(line),
                 "lmdb: the host went down while sync=none was in use; the store starts empty: %.160s", path);
  outside->log(outside->log_user, SPILE_LOG_WARNING, line);
  return SPILE_OK;
}

/* @param fresh  out: there are no data yet */
static int data_check(int dir_fd, const spile_env *outside, bool *fresh, spile_error *error) {
  int fd = openat(dir_fd, SPILE__LMDB_DATA_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  *fresh = fd < 0 && errno == ENOENT;
  if (fd < 0)
    return *fresh ? SPILE_OK : spile__lmdb_path_fail(error, "open the LMDB data file", SPILE__LMDB_DATA_NAME);
  int result = spile__lmdb_check(fd, outside, fresh, error);
  (void)close(fd);
  if (result == SPILE_OK && *fresh && unlinkat(dir_fd, SPILE__LMDB_DATA_NAME, 0) != 0)
    return spile__lmdb_path_fail(error, "remove an unfinished data file", SPILE__LMDB_DATA_NAME);
  return result;
}

/* A store that begins may be a path that is wrong; one that begins anew has lost what it held. */
static void data_tell_fresh(const spile__lmdb_env *env, const char *path, const spile_env *outside) {
  char line[256];
  if (env->side.known)
    (void)snprintf(
        line, sizeof(line),
        "lmdb: the data file is gone or was cut to nothing; the store starts empty, and every key may take its "
        "capacity once more: %.120s",
        path);
  else
    (void)snprintf(line, sizeof(line), "lmdb: a new store begins in %.160s", path);
  outside->log(outside->log_user, env->side.known ? SPILE_LOG_WARNING : SPILE_LOG_INFO, line);
}

/* Nobody in this process has the file open, or closing it here would drop LMDB's locks. */
static int readers_make_room(int dir_fd, spile_error *error) {
  int fd = openat(dir_fd, SPILE__LMDB_LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0)
    return spile__lmdb_path_fail(error, "open LMDB's lock file", SPILE__LMDB_LOCK_NAME);
  int failed = posix_fallocate(fd, 0, LOCK_FILE_LEN);
  (void)close(fd);
  return failed == 0 ? SPILE_OK : spile__lmdb_fail(error, failed, "make room for LMDB's lock file");
}

/* ---- With LMDB ---- */

/* The file against the pages it says it has; alone, it is made as long as the map. */
static int data_measure(spile__lmdb_env *env, spile_error *error) {
  int fd = -1;
  MDB_envinfo info;
  MDB_stat shape;
  struct stat status;
  (void)mdb_env_info(env->mdb, &info);
  (void)mdb_env_stat(env->mdb, &shape);
  if (mdb_env_get_fd(env->mdb, &fd) != 0 || fstat(fd, &status) != 0)
    return spile__lmdb_fail(error, errno, "read the size of the LMDB data file");
  env->page_size = shape.ms_psize;
  env->pages = info.me_mapsize / env->page_size;
  env->reserve = env->pages / RESERVE_PART < RESERVE_MAX ? env->pages / RESERVE_PART : RESERVE_MAX;
  /* A new file has its two first pages only once it was opened. */
  if ((uint64_t)status.st_size / env->page_size < info.me_last_pgno + 1)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT,
                             "the LMDB data file is shorter than the pages in use, so it was cut; close the store "
                             "everywhere and run \"spile repair\", which moves it aside");
  if (!env->side.alone || (uint64_t)status.st_size >= info.me_mapsize)
    return SPILE_OK;
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < info.me_mapsize)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "map_size is above the largest file this process may write (ulimit -f)");
  if (ftruncate(fd, (off_t)info.me_mapsize) != 0)
    return spile__lmdb_fail(error, errno, "make the LMDB data file as long as map_size; use a smaller one");
  return SPILE_OK;
}

/* @return a result of LMDB */
static int data_map_once(spile__lmdb_env *env) {
  char path[64];
  (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", env->dir_fd);
  int result = mdb_env_create(&env->mdb);
  if (result != 0)
    return result;
  (void)mdb_env_set_maxreaders(env->mdb, READERS_ALL);
  (void)mdb_env_set_mapsize(env->mdb, (size_t)env->side.board->map_size);
  result = mdb_env_open(env->mdb, path, env->sync_flags | MDB_NOTLS, 0600);
  if (result != 0) {
    mdb_env_close(env->mdb);
    env->mdb = NULL;
  }
  return result;
}

/*
 * Whether LMDB's table goes on from the last transaction in the data.
 *
 * Who opens LMDB as the first begins its table anew, with transaction number 0, and then takes the number over from the
 * data. One that is killed in between leaves the 0, and whoever was waiting for it takes the table for a good one: its
 * transactions would be numbered from 1 on again and overwrite pages in use. A commit writes the data before the table,
 * so that may be one behind.
 *
 * Who closes LMDB as the last ends the table's locks. One that was waiting to join then has a table whose locks are no
 * longer valid.
 */
static bool data_goes_on(const spile__lmdb_env *env) {
  MDB_envinfo info;
  MDB_txn *txn = NULL;
  (void)mdb_env_info(env->mdb, &info);
  int failed = mdb_txn_begin(env->mdb, NULL, MDB_RDONLY, &txn);
  if (failed != 0)
    return failed != EINVAL; /* another fault is told by the first use */
  size_t number = mdb_txn_id(txn);
  mdb_txn_abort(txn);
  return number + 1 >= info.me_last_txnid;
}

/* Everybody who meets such a table lets go of it, so the next one begins it anew. @return a result of LMDB */
static int data_map(spile__lmdb_env *env) {
  for (int tries = 0; tries < MAP_TRIES; tries++) {
    int result = data_map_once(env);
    if (result != 0 || data_goes_on(env))
      return result;
    mdb_env_close(env->mdb);
    env->mdb = NULL;
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return EBUSY;
}

static int data_identify(spile__lmdb_env *env, const char *path, spile_error *error) {
  struct stat lock;
  struct stat data;
  if (fstatat(env->dir_fd, SPILE__LMDB_LOCK_NAME, &lock, AT_SYMLINK_NOFOLLOW) != 0 ||
      fstatat(env->dir_fd, SPILE__LMDB_DATA_NAME, &data, AT_SYMLINK_NOFOLLOW) != 0)
    return spile__lmdb_path_fail(error, "find LMDB's files", path);
  env->device = lock.st_dev;
  env->inode = lock.st_ino;
  env->data_inode = data.st_ino;
  return SPILE_OK;
}

/* LMDB would make another file, beside the one that they use: two stores, each of which admits all that both may. */
static int data_join(int dir_fd, spile_error *error) {
  struct stat status;
  if (fstatat(dir_fd, SPILE__LMDB_DATA_NAME, &status, AT_SYMLINK_NOFOLLOW) == 0)
    return SPILE_OK;
  if (errno != ENOENT)
    return spile__lmdb_path_fail(error, "find LMDB's data file", SPILE__LMDB_DATA_NAME);
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                           "\"" SPILE__LMDB_DATA_NAME "\" was removed while other processes have it open; close the "
                           "store everywhere, then open it again");
}

int spile__lmdb_data_open(spile__lmdb_env *env, const char *path, const spile_env *outside, spile_error *error) {
  bool fresh = false;
  int result = SPILE_OK;
  if (env->side.alone) {
    if (env->side.untrusted)
      result = data_discard(env->dir_fd, path, outside, error);
    if (result == SPILE_OK)
      result = data_check(env->dir_fd, outside, &fresh, error);
    if (result == SPILE_OK && fresh && !env->side.untrusted)
      data_tell_fresh(env, path, outside);
    if (result == SPILE_OK)
      result = readers_make_room(env->dir_fd, error);
  } else {
    result = data_join(env->dir_fd, error);
  }
  if (result != SPILE_OK)
    return result;
  int failed = data_map(env);
  if (failed != 0) {
    /* Half a file that was to be new must not look like a damaged one. */
    if (fresh)
      (void)unlinkat(env->dir_fd, SPILE__LMDB_DATA_NAME, 0);
    return spile__lmdb_fail(error, failed, "open the LMDB directory");
  }
  result = data_measure(env, error);
  return result == SPILE_OK ? data_identify(env, path, error) : result;
}

static int secret_make(spile__lmdb_env *env, MDB_txn *txn, MDB_val *key, const spile_env *outside, spile_error *error) {
  MDB_stat shape;
  int result = mdb_stat(txn, env->dbi, &shape);
  if (result != 0)
    return spile__lmdb_fail(error, result, "read the hash key");
  if (shape.ms_entries > 0)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_FOREIGN,
                             "the LMDB directory holds another program's database; give the store a directory of its "
                             "own");
  if (!outside->random(outside->user, env->secret, sizeof(env->secret)))
    return spile__lmdb_fail(error, EIO, "get random bytes from the system for a hash key");
  unsigned char bytes[SPILE__LMDB_SECRET_LEN];
  spile__lmdb_secret_write(bytes, env->secret);
  MDB_val value = {sizeof(bytes), bytes};
  result = mdb_put(txn, env->dbi, key, &value, 0);
  return result == 0 ? SPILE_OK : spile__lmdb_fail(error, result, "store the hash key");
}

int spile__lmdb_secret_open(spile__lmdb_env *env, const spile_env *outside, spile_error *error) {
  unsigned char name[sizeof(spile__lmdb_secret_key)];
  memcpy(name, spile__lmdb_secret_key, sizeof(name));
  MDB_val key = {sizeof(name), name};
  MDB_val value;
  MDB_txn *txn = NULL;
  int failed = mdb_txn_begin(env->mdb, NULL, 0, &txn);
  if (failed != 0)
    return spile__lmdb_fail(error, failed, "begin in the LMDB database");
  failed = mdb_dbi_open(txn, NULL, 0, &env->dbi);
  if (failed == 0)
    failed = mdb_get(txn, env->dbi, &key, &value);
  if (failed == 0 && !spile__lmdb_secret_read(env->secret, value.mv_data, value.mv_size))
    failed = MDB_CORRUPTED;
  int result = SPILE_OK;
  if (failed == MDB_NOTFOUND)
    result = secret_make(env, txn, &key, outside, error);
  else if (failed != 0)
    result = spile__lmdb_fail(error, failed, "read the hash key");
  if (result != SPILE_OK) {
    mdb_txn_abort(txn);
    return result;
  }
  /* The handle of the database becomes the environment's with a commit. */
  failed = mdb_txn_commit(txn);
  return failed == 0 ? SPILE_OK : spile__lmdb_fail(error, failed, "store the hash key");
}

/* ---- Anew ---- */

/* Whether the directory still has the files that were open: others may be using those. */
static bool data_is_same(const spile__lmdb_env *env) {
  struct stat lock;
  struct stat data;
  return fstatat(env->dir_fd, SPILE__LMDB_LOCK_NAME, &lock, AT_SYMLINK_NOFOLLOW) == 0 &&
         fstatat(env->dir_fd, SPILE__LMDB_DATA_NAME, &data, AT_SYMLINK_NOFOLLOW) == 0 && lock.st_ino == env->inode &&
         data.st_ino == env->data_inode;
}

/* Closes LMDB's environment and opens it again. @return a result of LMDB; MDB_PANIC while threads are reading */
static int data_reopen(spile__lmdb_env *env) {
  if (!data_is_same(env))
    return ESTALE;
  if (env->mdb != NULL) {
    if (!spile__lmdb_readers_end(env))
      return MDB_PANIC;
    mdb_env_close(env->mdb);
    env->mdb = NULL;
  }
  int result = data_map(env);
  MDB_txn *txn = NULL;
  if (result == 0)
    result = mdb_txn_begin(env->mdb, NULL, 0, &txn);
  if (result != 0)
    return result;
  MDB_dbi dbi;
  result = mdb_dbi_open(txn, NULL, 0, &dbi);
  if (result == 0)
    return mdb_txn_commit(txn);
  mdb_txn_abort(txn);
  return result;
}

int spile__lmdb_write_begin(spile__lmdb_env *env, MDB_txn **txn) {
  int result = env->mdb != NULL ? mdb_txn_begin(env->mdb, NULL, 0, txn) : MDB_PANIC;
  if (result != MDB_PANIC)
    return result;
  result = data_reopen(env);
  return result == 0 ? mdb_txn_begin(env->mdb, NULL, 0, txn) : result;
}
