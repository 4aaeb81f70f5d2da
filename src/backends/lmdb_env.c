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
 * LMDB is given the directory by the descriptor that was looked at, so it opens what was checked, wherever the path
 * leads by then. The data file itself is lmdb_data.c's.
 */
#include "backends/lmdb_env.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/address.h"

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
    (void)close(env->dir_fd);
    env->dir_fd = -1;
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
    return spile__store_fail(
        error, SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT,
        "cannot %s: the LMDB data is damaged or not ours (%s); close it everywhere, run \"spile repair\"", what,
        mdb_strerror(result));
  case MDB_PANIC:
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "cannot %s: an earlier write failed halfway (%s); it opens anew once its calls have ended",
                             what, mdb_strerror(result));
  case ESTALE:
    return spile__store_fail(
        error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
        "cannot %s: a write failed halfway, then the LMDB files were removed or replaced; open it again", what);
  case MDB_MAP_FULL:
    return spile__store_fail(
        error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
        "cannot %s: the LMDB map has no page left; close it everywhere, open it with a larger map_size", what);
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
  long holder = failed == ETIMEDOUT ? spile__lmdb_lock_holder(&env->side.board->lock) : 0;
  if (failed == ETIMEDOUT && holder <= 0)
    return spile__store_fail(
        error, SPILE_EUNAVAILABLE, SPILE_REASON_LOCKED,
        "LMDB was locked up to the deadline; nothing was charged; let a process that is stopped go "
        "on, or end it");
  if (failed == ETIMEDOUT)
    return spile__store_fail(
        error, SPILE_EUNAVAILABLE, SPILE_REASON_LOCKED,
        "LMDB was locked up to the deadline; nothing was charged; thread %ld held it: if stopped, let "
        "it go on or end it",
        holder);
  return spile__store_fail(
      error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
      "the lock in \"spile.lock\" cannot be used (%s); close the store everywhere and open it again", strerror(failed));
}

void spile__lmdb_env_unlock(spile__lmdb_env *env) {
  spile__lmdb_lock_give(&env->side.board->lock);
}

/* ---- Opening ---- */

int spile__lmdb_path_fail(spile_error *error, const char *what, const char *path) {
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO, "cannot %s: %s: %s", what, strerror(errno),
                           path);
}

static int directory_fail(spile_error *error, const char *verb, const char *path) {
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                           "cannot %s the LMDB directory: %s: %s; name one that this user may make and write to", verb,
                           strerror(errno), path);
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
    /* Whether one that is there may be gone through is told by the opening. */
    struct stat status;
    if (mkdir(part, 0700) != 0 && errno != EEXIST && stat(part, &status) != 0)
      return directory_fail(error, "make", part);
    part[i] = path[i];
  }
  *dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *dir_fd >= 0 ? SPILE_OK : directory_fail(error, "open", path);
}

/* A file that somebody else put there could be made to hold anything, or to point anywhere. */
static int file_check(int dir_fd, const char *name, spile_error *error) {
  struct stat status;
  if (fstatat(dir_fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? SPILE_OK : spile__lmdb_path_fail(error, "read the LMDB directory", name);
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
  if (fstatat(dir_fd, SPILE__LMDB_LOCK_NAME, &status, AT_SYMLINK_NOFOLLOW) != 0)
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

static int env_begin(spile__lmdb_env *env, const spile__store_config *config, spile_error *error) {
  const spile_env *outside = config->env;
  int64_t deadline_ms = outside->monotonic_ms(outside->user) + config->timeout_ms;
  int result = spile__lmdb_env_lock(env, outside, deadline_ms, error);
  if (result != SPILE_OK)
    return result;
  (void)mdb_reader_check(env->mdb, NULL);
  result = spile__lmdb_secret_open(env, outside, error);
  if (result == SPILE_OK)
    spile__lmdb_reader_add(env);
  spile__lmdb_env_unlock(env);
  return result;
}

static int env_open(spile__lmdb_env *env, const spile__lmdb_settings *settings, const spile__store_config *config,
                    spile_error *error) {
  const spile_env *outside = config->env;
  bool loose = (settings->sync_flags & MDB_NOSYNC) != 0;
  env->sync_flags = settings->sync_flags;
  env->map_size = settings->map_size;
  env->references = 1;
  int result = spile__lmdb_side_open(&env->side, env->dir_fd, settings->map_size, config->timeout_ms, outside, error);
  if (result == SPILE_OK)
    result = spile__lmdb_data_open(env, settings->path, outside, error);
  if (result == SPILE_OK)
    result = spile__lmdb_side_mark(&env->side, loose, error);
  if (result == SPILE_OK)
    result = env_begin(env, config, error);
  if (result != SPILE_OK)
    return result;

  if (env->side.board->map_size != settings->map_size) {
    char line[256];
    (void)snprintf(line, sizeof(line),
                   "lmdb: map_size is %lld, as others have it; to change it close the store everywhere first: %.120s",
                   (long long)env->side.board->map_size, settings->path);
    outside->log(outside->log_user, SPILE_LOG_WARNING, line);
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
  if (env->dir_fd >= 0)
    (void)close(env->dir_fd);
  free(env);
}

/*
 * The environment belongs to the process and not to one limiter, so it does not come from a limiter's allocator. A new
 * one takes the descriptor of the directory, and leaves -1.
 */
static int registry_open(spile__lmdb_env **out, int *dir_fd, const spile__lmdb_settings *settings,
                         const spile__store_config *config, spile_error *error) {
  spile__lmdb_env *env = registry_find(*dir_fd);
  if (env != NULL) {
    int result = env_share(env, settings, error);
    *out = result == SPILE_OK ? env : NULL;
    return result;
  }
  env = calloc(1, sizeof(*env));
  if (env == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "out of memory for an LMDB environment");
  env->side.fd = -1;
  env->dir_fd = *dir_fd;
  *dir_fd = -1;
  int result = env_open(env, settings, config, error);
  if (result != SPILE_OK) {
    env_free(env);
    return result;
  }
  env->next = registry;
  registry = env;
  *out = env;
  return SPILE_OK;
}

static int directory_check(int dir_fd, spile_error *error) {
  int result = file_check(dir_fd, SPILE__LMDB_DATA_NAME, error);
  if (result == SPILE_OK)
    result = file_check(dir_fd, SPILE__LMDB_LOCK_NAME, error);
  if (result == SPILE_OK)
    result = file_check(dir_fd, SPILE__LMDB_SIDE_NAME, error);
  return result;
}

int spile__lmdb_env_open(spile__lmdb_env **out, const spile__lmdb_settings *settings, const spile__store_config *config,
                         spile_error *error) {
  *out = NULL;
  (void)pthread_once(&registry_once, registry_watch);
  int dir_fd = -1;
  int result = directory_open(&dir_fd, settings->path, error);
  if (result != SPILE_OK)
    return result;
  result = directory_check(dir_fd, error);
  if (result == SPILE_OK) {
    (void)pthread_mutex_lock(&registry_mutex);
    result = registry_open(out, &dir_fd, settings, config, error);
    (void)pthread_mutex_unlock(&registry_mutex);
  }
  if (dir_fd >= 0)
    (void)close(dir_fd);
  return result;
}

/* As spile__lmdb_alone, in the registry's time. */
static int registry_alone(int dir_fd, const spile__store_config *config, spile__lmdb_work *work, void *user,
                          spile_error *error) {
  spile__lmdb_side side = {.fd = -1};
  int result = SPILE_EUNAVAILABLE;
  bool free_here = registry_find(dir_fd) == NULL;
  if (free_here)
    result = spile__lmdb_side_open(&side, dir_fd, 0, config->timeout_ms, config->env, error);
  if (!free_here || (result == SPILE_OK && !side.alone))
    result = spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_BUSY,
                               "the LMDB directory is in use by %s; close it there first",
                               free_here ? "another process" : "this process");
  if (result == SPILE_OK)
    result = work(dir_fd, user, error);
  spile__lmdb_side_close(&side);
  return result;
}

int spile__lmdb_alone(int dir_fd, const spile__store_config *config, spile__lmdb_work *work, void *user,
                      spile_error *error) {
  (void)pthread_once(&registry_once, registry_watch);
  int result = directory_check(dir_fd, error);
  if (result != SPILE_OK)
    return result;
  (void)pthread_mutex_lock(&registry_mutex);
  result = registry_alone(dir_fd, config, work, user, error);
  (void)pthread_mutex_unlock(&registry_mutex);
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
