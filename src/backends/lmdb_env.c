/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a directory, with the care LMDB leaves to its users.
 *
 * One process must not open one environment twice: closing either would drop the file locks of both, without a word. So
 * a registry knows what is open, by the identity of LMDB's lock file and not by a path, and hands out references.
 *
 * A forked child inherits the registry, the mapping and the descriptors, but none of it is its own. In the child the
 * registry is emptied at once, so that the child can open its own environment; what it inherited stays as it is until
 * the process ends: closing LMDB's descriptor would drop the locks of the child's own environment, and freeing what a
 * thread of the parent may have been changing at that moment could crash.
 *
 * The data file is made as long as the map (it is sparse: only what is used takes room). So a file that is shorter than
 * the pages in use has been cut, and is refused before reading it would end the process.
 */
#include "backends/lmdb_env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/address.h"

#define DATA_NAME "data.mdb"
#define LOCK_NAME "lock.mdb"

/* All readers of all processes; LMDB's table of them takes 64 bytes each. */
#define READERS_ALL 1022
#define LOCK_FILE_LEN (64 * 1024)

/* A quarter of the map, at most 128 pages, is for known keys and for cleaning, which need pages even to free some. */
#define RESERVE_PART 4
#define RESERVE_MAX 128

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;
static spile__lmdb_env *registry;  /* what this process has open */
static spile__lmdb_env *inherited; /* what it got by fork; never freed, only kept in sight of leak checkers */

static void registry_before_fork(void) {
  (void)pthread_mutex_lock(&registry_mutex);
}

static void registry_after_fork(void) {
  (void)pthread_mutex_unlock(&registry_mutex);
}

/* The side file's lock belongs to the open file, which parent and child share: the parent's close has to end it. */
static void registry_in_child(void) {
  while (registry != NULL) {
    spile__lmdb_env *env = registry;
    registry = env->next;
    env->next = inherited;
    inherited = env;
    (void)close(env->side.fd);
    env->side.fd = -1;
  }
  (void)pthread_mutex_unlock(&registry_mutex);
}

static void registry_watch(void) {
  (void)pthread_atfork(registry_before_fork, registry_after_fork, registry_in_child);
}

int spile__lmdb_fail(spile_error *error, int result, const char *what) {
  switch (result) {
  case MDB_INVALID:
  case MDB_VERSION_MISMATCH:
  case MDB_CORRUPTED:
  case MDB_PAGE_NOTFOUND:
  case MDB_INCOMPATIBLE:
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT,
                             "cannot %s: the LMDB data is damaged or not ours (%s); move the directory aside", what,
                             mdb_strerror(result));
  case MDB_PANIC:
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "cannot %s: an earlier write failed halfway (%s); close the store and open it again", what,
                             mdb_strerror(result));
  case MDB_MAP_FULL:
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "cannot %s: the LMDB map has no page left; open with a larger map_size", what);
  default:
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO, "cannot %s: %s", what, mdb_strerror(result));
  }
}

/* ---- The lock ---- */

int spile__lmdb_env_lock(spile__lmdb_env *env, const spile_env *outside, int64_t deadline_ms, spile_error *error) {
  int64_t wait_ms = deadline_ms - outside->monotonic_ms(outside->user);
  int failed = spile__lmdb_lock_take(&env->side.board->lock, wait_ms);
  if (failed == 0)
    return SPILE_OK;
  if (failed == ETIMEDOUT)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_BUSY,
                             "the queue for the LMDB store did not move by the deadline");
  return spile__store_fail(
      error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
      "the lock in \"spile.lock\" cannot be used (%s); close the store everywhere and open it again", strerror(failed));
}

void spile__lmdb_env_unlock(spile__lmdb_env *env) {
  spile__lmdb_lock_give(&env->side.board->lock);
}

/* ---- Opening ---- */

static int path_fail(spile_error *error, const char *what, const char *path) {
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO, "cannot %s: %s: %s", what, strerror(errno),
                           path);
}

/* Makes the directory and its parents where they are missing, and opens it. */
static int directory_open(int *dir_fd, const char *path, spile_error *error) {
  char part[sizeof(((spile__lmdb_settings *)0)->path)];
  size_t len = strlen(path);
  memcpy(part, path, len + 1);
  for (size_t i = 1; i <= len; i++) {
    if (path[i] != '/' && path[i] != '\0')
      continue;
    part[i] = '\0';
    if (mkdir(part, 0700) != 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
      return path_fail(error, "make the LMDB directory", part);
    part[i] = path[i];
  }
  *dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *dir_fd >= 0 ? SPILE_OK : path_fail(error, "open the LMDB directory", path);
}

/* A file that somebody else put there could be made to hold anything, or to point anywhere. */
static int file_check(int dir_fd, const char *name, spile_error *error) {
  struct stat status;
  if (fstatat(dir_fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? SPILE_OK : path_fail(error, "read the LMDB directory", name);
  if (!S_ISREG(status.st_mode))
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "\"%s\" of the LMDB directory is not a regular file; remove it or use another directory",
                             name);
  if (geteuid() != 0 && status.st_uid != geteuid())
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "\"%s\" of the LMDB directory belongs to another user; use a directory of your own", name);
  return SPILE_OK;
}

static spile__lmdb_env *registry_find(int dir_fd) {
  struct stat status;
  if (fstatat(dir_fd, LOCK_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return NULL;
  for (spile__lmdb_env *env = registry; env != NULL; env = env->next) {
    if (env->device == status.st_dev && env->inode == status.st_ino)
      return env;
  }
  return NULL;
}

static int env_share(spile__lmdb_env *env, const spile__lmdb_settings *settings, spile_error *error) {
  if (env->sync_flags != settings->sync_flags || env->map_size != settings->map_size)
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "this process has the LMDB directory open with another sync or map_size; use the same");
  env->references++;
  return SPILE_OK;
}

/* What the last boot left behind is no more than a guess: begin with nothing. */
static int data_discard(int dir_fd, const spile__lmdb_settings *settings, const spile_env *outside,
                        spile_error *error) {
  if (unlinkat(dir_fd, DATA_NAME, 0) != 0 && errno != ENOENT)
    return path_fail(error, "remove the data that the last boot left unwritten", settings->path);
  char line[256];
  (void)snprintf(line, sizeof(line),
                 "lmdb: the host went down while sync=none was in use; the store starts empty: %.160s", settings->path);
  outside->log(outside->log_user, SPILE_LOG_WARNING, line);
  return SPILE_OK;
}

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
                             "the LMDB data file is shorter than the pages in use, so it was cut; move the directory "
                             "aside");
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

/*
 * LMDB maps its lock file and makes it sparse; a page of it that finds no room on the disk would be a SIGBUS in whoever
 * touches it first. So the first to open gives it all the room it can need.
 */
static int lock_file_fill(int dir_fd, spile_error *error) {
  int fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0)
    return spile__lmdb_fail(error, errno, "open LMDB's lock file");
  int failed = posix_fallocate(fd, 0, LOCK_FILE_LEN);
  (void)close(fd);
  return failed == 0 ? SPILE_OK : spile__lmdb_fail(error, failed, "give LMDB's lock file its room on the disk");
}

static int data_open(spile__lmdb_env *env, const spile__lmdb_settings *settings, spile_error *error) {
  int result = mdb_env_create(&env->mdb);
  if (result != 0)
    return spile__lmdb_fail(error, result, "make an LMDB environment");
  (void)mdb_env_set_maxreaders(env->mdb, READERS_ALL);
  (void)mdb_env_set_mapsize(env->mdb, (size_t)env->side.board->map_size);
  result = mdb_env_open(env->mdb, settings->path, settings->sync_flags | MDB_NOTLS, 0600);
  if (result != 0) {
    (void)spile__lmdb_fail(error, result, "open the LMDB directory");
    mdb_env_close(env->mdb);
    env->mdb = NULL;
    return SPILE_EUNAVAILABLE;
  }
  return data_measure(env, error);
}

/* Whether nobody has used the database: what others put there may be ordered in ways that ours is not. */
static bool database_is_new(const spile__lmdb_env *env, MDB_txn *txn) {
  unsigned flags = 0;
  MDB_stat shape;
  return mdb_dbi_flags(txn, env->dbi, &flags) == 0 && flags == 0 && mdb_stat(txn, env->dbi, &shape) == 0 &&
         shape.ms_entries == 0;
}

/* Reads the database's hash key, or makes it. Under the lock. */
static int secret_open(spile__lmdb_env *env, const spile_env *outside, spile_error *error) {
  static unsigned char name[] = {SPILE__LMDB_META, 'h', 'a', 's', 'h'};
  MDB_val key = {sizeof(name), name};
  MDB_val value;
  MDB_txn *txn = NULL;
  int result = mdb_txn_begin(env->mdb, NULL, 0, &txn);
  if (result != 0)
    return spile__lmdb_fail(error, result, "begin in the LMDB database");
  result = mdb_dbi_open(txn, NULL, 0, &env->dbi);
  if (result == 0)
    result = mdb_get(txn, env->dbi, &key, &value);
  if (result == 0) {
    bool fits = value.mv_size == sizeof(env->secret);
    if (fits)
      memcpy(env->secret, value.mv_data, sizeof(env->secret));
    /* The handle of the database becomes the environment's with a commit. */
    result = mdb_txn_commit(txn);
    return fits && result == 0 ? SPILE_OK : spile__lmdb_fail(error, fits ? result : MDB_INVALID, "read the hash key");
  }
  if (result == MDB_NOTFOUND && !database_is_new(env, txn)) {
    mdb_txn_abort(txn);
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_FOREIGN,
                             "the LMDB database in this directory is not one of spile; use another directory");
  }
  if (result != MDB_NOTFOUND || !outside->random(outside->user, env->secret, sizeof(env->secret))) {
    mdb_txn_abort(txn);
    return result != MDB_NOTFOUND ? spile__lmdb_fail(error, result, "read the hash key")
                                  : spile__lmdb_fail(error, EIO, "get random bytes from the system for a hash key");
  }
  value = (MDB_val){sizeof(env->secret), env->secret};
  result = mdb_put(txn, env->dbi, &key, &value, 0);
  if (result == 0)
    result = mdb_txn_commit(txn);
  else
    mdb_txn_abort(txn);
  return result == 0 ? SPILE_OK : spile__lmdb_fail(error, result, "store the hash key");
}

static int env_begin(spile__lmdb_env *env, const spile__store_config *config, spile_error *error) {
  const spile_env *outside = config->env;
  int64_t deadline_ms = outside->monotonic_ms(outside->user) + config->timeout_ms;
  int result = spile__lmdb_env_lock(env, outside, deadline_ms, error);
  if (result != SPILE_OK)
    return result;
  (void)mdb_reader_check(env->mdb, NULL);
  result = secret_open(env, outside, error);
  spile__lmdb_env_unlock(env);
  return result;
}

static int env_open(spile__lmdb_env *env, int dir_fd, const spile__lmdb_settings *settings,
                    const spile__store_config *config, spile_error *error) {
  bool loose = (settings->sync_flags & MDB_NOSYNC) != 0;
  int result = spile__lmdb_side_open(&env->side, dir_fd, settings->map_size, config->timeout_ms, config->env, error);
  if (result == SPILE_OK && env->side.untrusted)
    result = data_discard(dir_fd, settings, config->env, error);
  if (result == SPILE_OK && env->side.alone)
    result = lock_file_fill(dir_fd, error);
  if (result == SPILE_OK)
    result = data_open(env, settings, error);
  if (result == SPILE_OK)
    result = spile__lmdb_side_mark(&env->side, loose, error);
  if (result == SPILE_OK)
    result = env_begin(env, config, error);
  if (result != SPILE_OK)
    return result;

  struct stat status;
  if (fstatat(dir_fd, LOCK_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return path_fail(error, "find LMDB's lock file", settings->path);
  env->device = status.st_dev;
  env->inode = status.st_ino;
  env->sync_flags = settings->sync_flags;
  env->map_size = settings->map_size;
  env->references = 1;
  if (env->side.board->map_size != settings->map_size) {
    char line[256];
    (void)snprintf(line, sizeof(line), "lmdb: map_size is %lld as long as others have it open: %.160s",
                   (long long)env->side.board->map_size, settings->path);
    config->env->log(config->env->log_user, SPILE_LOG_WARNING, line);
  }
  if (env->side.alone)
    spile__lmdb_side_share(&env->side);
  return SPILE_OK;
}

/* Frees an environment, open or half open, that is in no registry. */
static void env_free(spile__lmdb_env *env) {
  for (size_t i = 0; i < SPILE__LMDB_READERS; i++) {
    if (env->readers[i] != NULL)
      mdb_txn_abort(env->readers[i]);
  }
  if (env->mdb != NULL && spile__lmdb_side_last(&env->side) && mdb_env_sync(env->mdb, 1) == 0)
    spile__lmdb_side_clean(&env->side);
  if (env->mdb != NULL)
    mdb_env_close(env->mdb);
  spile__lmdb_side_close(&env->side);
  free(env);
}

/* The environment belongs to the process and not to one limiter, so it does not come from a limiter's allocator. */
static int registry_open(spile__lmdb_env **out, int dir_fd, const spile__lmdb_settings *settings,
                         const spile__store_config *config, spile_error *error) {
  spile__lmdb_env *env = registry_find(dir_fd);
  if (env != NULL) {
    int result = env_share(env, settings, error);
    *out = result == SPILE_OK ? env : NULL;
    return result;
  }
  env = calloc(1, sizeof(*env));
  if (env == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "out of memory for an LMDB environment");
  int result = env_open(env, dir_fd, settings, config, error);
  if (result != SPILE_OK) {
    env_free(env);
    return result;
  }
  env->next = registry;
  registry = env;
  *out = env;
  return SPILE_OK;
}

int spile__lmdb_env_open(spile__lmdb_env **out, const spile__lmdb_settings *settings, const spile__store_config *config,
                         spile_error *error) {
  *out = NULL;
  (void)pthread_once(&registry_once, registry_watch);
  int dir_fd = -1;
  int result = directory_open(&dir_fd, settings->path, error);
  if (result != SPILE_OK)
    return result;
  result = file_check(dir_fd, DATA_NAME, error);
  if (result == SPILE_OK)
    result = file_check(dir_fd, LOCK_NAME, error);
  if (result == SPILE_OK)
    result = file_check(dir_fd, "spile.lock", error);
  if (result == SPILE_OK) {
    (void)pthread_mutex_lock(&registry_mutex);
    result = registry_open(out, dir_fd, settings, config, error);
    (void)pthread_mutex_unlock(&registry_mutex);
  }
  (void)close(dir_fd);
  return result;
}

void spile__lmdb_env_close(spile__lmdb_env *env, bool forked) {
  if (env == NULL || forked)
    return;
  (void)pthread_mutex_lock(&registry_mutex);
  env->references--;
  if (env->references == 0) {
    spile__lmdb_env **at = &registry;
    while (*at != env)
      at = &(*at)->next;
    *at = env->next;
    env_free(env);
  }
  (void)pthread_mutex_unlock(&registry_mutex);
}
