/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open LMDB directory, one for each in a process however often it is opened.
 */
#ifndef SPILE_BACKENDS_LMDB_ENV_H
#define SPILE_BACKENDS_LMDB_ENV_H

#include <lmdb.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "backends/backends.h"
#include "backends/lmdb_side.h"

#define SPILE__LMDB_DATA_NAME "data.mdb"
#define SPILE__LMDB_LOCK_NAME "lock.mdb" /* LMDB's own */

/* Idle read-only transactions a process keeps, which is how many threads may read at once. */
#define SPILE__LMDB_READERS 16

typedef struct spile__lmdb_settings {
  char path[4096];
  unsigned sync_flags; /* MDB_NOSYNC, MDB_NOMETASYNC or 0 */
  int64_t map_size;
} spile__lmdb_settings;

/* Reads an address, what is behind "lmdb:". @return SPILE_OK; SPILE_ECONFIG */
int spile__lmdb_settings_read(spile__lmdb_settings *out, const char *address, spile_error *error);

typedef struct spile__lmdb_env {
  MDB_env *mdb; /* NULL: it could not be opened anew; guarded by the lock on the board */
  MDB_dbi dbi;
  spile__lmdb_side side;
  int dir_fd;
  uint64_t secret[2]; /* for the hashes of long keys */
  size_t page_size;
  size_t pages;   /* in the map */
  size_t reserve; /* pages that new buckets leave free */
  _Atomic(MDB_txn *) readers[SPILE__LMDB_READERS];
  /* Written under the lock on the board. */
  atomic_uint reader_count;
  unsigned reader_pause; /* writes until one more reader is tried after a failure */
  /* Guarded by the registry. */
  struct spile__lmdb_env *next;
  unsigned references;
  dev_t device; /* of LMDB's lock file, which a process must not open twice */
  ino_t inode;
  ino_t data_inode;
  unsigned sync_flags;
  int64_t map_size;
} spile__lmdb_env;

/*
 * Opens a directory, or adds a reference to it when this process has it open.
 * @return SPILE_OK; SPILE_ECONFIG, it is open with other settings; SPILE_ENOMEM; SPILE_EUNAVAILABLE
 */
int spile__lmdb_env_open(spile__lmdb_env **out, const spile__lmdb_settings *settings, const spile__store_config *config,
                         spile_error *error);

/* Drops a reference. NULL is fine. `forked`: the env was opened by a process that this one is a fork of. */
void spile__lmdb_env_close(spile__lmdb_env *env, bool forked);

/* What a process does alone in a directory. @return SPILE_OK or an error */
typedef int spile__lmdb_work(int dir_fd, void *user, spile_error *error);

/*
 * Does something with a directory that nobody has open, in this process or another, nor can open meanwhile.
 * @return what `work` returned; SPILE_EUNAVAILABLE, with reason BUSY when somebody has it open
 */
int spile__lmdb_alone(int dir_fd, const spile__store_config *config, spile__lmdb_work *work, void *user,
                      spile_error *error);

/*
 * Opens the data file of an env whose side file and directory are open; alone, it is checked before.
 * @param path  for messages
 */
int spile__lmdb_data_open(spile__lmdb_env *env, const char *path, const spile_env *outside, spile_error *error);

/* Reads the database's hash key, or makes it. Under the lock. */
int spile__lmdb_secret_open(spile__lmdb_env *env, const spile_env *outside, spile_error *error);

/*
 * Begins to write, under the lock. After a write that failed halfway, LMDB refuses everything until it is closed; then
 * it is closed and opened here, once no thread of this process reads.
 * @return a result of LMDB
 */
int spile__lmdb_write_begin(spile__lmdb_env *env, MDB_txn **txn);

/*
 * The lock before any write. @return SPILE_OK; SPILE_EUNAVAILABLE with reason BUSY at the deadline
 */
int spile__lmdb_env_lock(spile__lmdb_env *env, const spile_env *outside, int64_t deadline_ms, spile_error *error);
void spile__lmdb_env_unlock(spile__lmdb_env *env);

/* An idle read-only transaction, made to see the latest commit; NULL when there is none. Give it back. */
MDB_txn *spile__lmdb_reader_take(spile__lmdb_env *env);
void spile__lmdb_reader_give(spile__lmdb_env *env, MDB_txn *txn);

/*
 * Makes one more, under the lock: LMDB notes it in a table under a lock of its own, which has no deadline. Up to a
 * bound, and where LMDB's table is full, none.
 */
void spile__lmdb_reader_add(spile__lmdb_env *env);

/* Ends all of them, under the lock. @return false: some are in use and were waited for in vain; nothing has changed */
bool spile__lmdb_readers_end(spile__lmdb_env *env);

/* The database as it is now, to read. */
typedef struct spile__lmdb_view {
  MDB_txn *txn;
  bool locked; /* no reader was to be had, so it is a write transaction under the lock */
} spile__lmdb_view;

int spile__lmdb_view_begin(spile__lmdb_view *view, spile__lmdb_env *env, const spile_env *outside, int64_t deadline_ms,
                           spile_error *error);
void spile__lmdb_view_end(spile__lmdb_view *view, spile__lmdb_env *env);

/*
 * Whether the pages left allow `adds` new buckets in one transaction: known keys and cleaning need some of them.
 * Without a reader to look with it says yes; the write will tell.
 */
bool spile__lmdb_env_has_room(spile__lmdb_env *env, size_t adds);

/*
 * Whether somebody reads what is no longer the latest, so that the pages that were freed since cannot be used: for
 * long only who is stopped. Under the lock.
 */
bool spile__lmdb_readers_behind(spile__lmdb_env *env);

/* As in the store contract; leaves it as it is while no reader is idle. */
void spile__lmdb_env_usage(spile__lmdb_env *env, spile_usage *usage);

/* Fills the error from a result of LMDB, with `what` could not be done, and returns SPILE_EUNAVAILABLE. */
int spile__lmdb_fail(spile_error *error, int result, const char *what);

/* The same for errno and a path. */
int spile__lmdb_path_fail(spile_error *error, const char *what, const char *path);

#endif
