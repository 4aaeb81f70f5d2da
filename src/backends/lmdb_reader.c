/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading without waiting for a writer.
 *
 * A read-only transaction keeps its place in LMDB's table of readers when it is reset, and is renewed in a fraction of
 * a microsecond. A process keeps as many as its threads have needed at once, up to a bound; whoever finds none idle
 * reads in a write transaction, under the lock. An idle one holds no pages.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "backends/lmdb_env.h"

/* After a reader could not be made, how often to go without before the next try. */
#define READER_PAUSE 1024

/* Looks for readers that are still in use, this long apart: 20 ms together. A read lasts microseconds. */
#define READER_LOOKS 100
#define READER_LOOK_NS 200000

void spile__lmdb_reader_give(spile__lmdb_env *env, MDB_txn *txn) {
  mdb_txn_reset(txn);
  for (size_t i = 0;; i = (i + 1) % SPILE__LMDB_READERS) {
    MDB_txn *none = NULL;
    if (atomic_compare_exchange_strong_explicit(&env->readers[i], &none, txn, memory_order_release,
                                                memory_order_relaxed))
      return;
  }
}

MDB_txn *spile__lmdb_reader_take(spile__lmdb_env *env) {
  for (size_t i = 0; i < SPILE__LMDB_READERS; i++) {
    if (atomic_load_explicit(&env->readers[i], memory_order_relaxed) == NULL)
      continue;
    MDB_txn *txn = atomic_exchange_explicit(&env->readers[i], NULL, memory_order_acquire);
    if (txn == NULL)
      continue;
    if (mdb_txn_renew(txn) == 0)
      return txn;
    spile__lmdb_reader_give(env, txn);
    return NULL;
  }
  return NULL;
}

/* LMDB notes a new reader in a table under a lock of its own that has no deadline: ours is held meanwhile. */
static void reader_add(spile__lmdb_env *env) {
  if (env->reader_count >= SPILE__LMDB_READERS || env->mdb == NULL)
    return;
  if (env->reader_pause > 0) {
    env->reader_pause--;
    return;
  }
  MDB_txn *txn = NULL;
  int result = mdb_txn_begin(env->mdb, NULL, MDB_RDONLY, &txn);
  if (result == MDB_READERS_FULL || result == EAGAIN) {
    (void)mdb_reader_check(env->mdb, NULL);
    result = mdb_txn_begin(env->mdb, NULL, MDB_RDONLY, &txn);
  }
  if (result != 0) {
    env->reader_pause = READER_PAUSE;
    return;
  }
  env->reader_count++;
  spile__lmdb_reader_give(env, txn);
}

bool spile__lmdb_readers_end(spile__lmdb_env *env) {
  MDB_txn *held[SPILE__LMDB_READERS];
  unsigned count = 0;
  for (int looks = 0;; looks++) {
    for (size_t i = 0; i < SPILE__LMDB_READERS; i++) {
      MDB_txn *txn = atomic_exchange_explicit(&env->readers[i], NULL, memory_order_acquire);
      if (txn != NULL)
        held[count++] = txn;
    }
    if (count == env->reader_count || looks == READER_LOOKS)
      break;
    (void)nanosleep(&(struct timespec){.tv_nsec = READER_LOOK_NS}, NULL);
  }
  bool all = count == env->reader_count;
  for (unsigned i = 0; i < count; i++) {
    if (all)
      mdb_txn_abort(held[i]);
    else
      spile__lmdb_reader_give(env, held[i]);
  }
  if (all) {
    env->reader_count = 0;
    env->reader_pause = 0;
  }
  return all;
}

/*
 * The pages that are free as of a reader, counted until there are `enough`. LMDB's first database lists the freed ones:
 * each value is a number of pages and that many page numbers.
 */
static size_t free_pages(const spile__lmdb_env *env, MDB_txn *reader, size_t enough) {
  MDB_envinfo info;
  (void)mdb_env_info(env->mdb, &info);
  size_t count = env->pages - info.me_last_pgno - 1;
  MDB_cursor *cursor = NULL;
  if (count >= enough || mdb_cursor_open(reader, 0, &cursor) != 0)
    return count;
  MDB_val key;
  MDB_val value;
  while (count < enough && mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
    size_t freed = 0;
    if (value.mv_size >= sizeof(freed))
      memcpy(&freed, value.mv_data, sizeof(freed));
    count += freed;
  }
  mdb_cursor_close(cursor);
  return count;
}

bool spile__lmdb_env_has_room(spile__lmdb_env *env, size_t adds) {
  MDB_txn *reader = spile__lmdb_reader_take(env);
  if (reader == NULL)
    return true;
  /* A new bucket may split its leaf and the branch above: four pages; and the list of freed ones is written anew. */
  size_t enough = env->reserve + 4 * adds + 4;
  bool room = free_pages(env, reader, enough) >= enough;
  spile__lmdb_reader_give(env, reader);
  return room;
}

void spile__lmdb_env_usage(spile__lmdb_env *env, spile_usage *usage) {
  MDB_txn *reader = spile__lmdb_reader_take(env);
  if (reader == NULL)
    return;
  MDB_stat shape;
  if (mdb_stat(reader, env->dbi, &shape) == 0)
    usage->buckets = (int64_t)shape.ms_entries - 1; /* the hash key is no bucket */
  size_t used = env->pages - free_pages(env, reader, SIZE_MAX);
  usage->bytes = (int64_t)(used * env->page_size);
  usage->bytes_max = (int64_t)(env->pages * env->page_size);
  spile__lmdb_reader_give(env, reader);
}

int spile__lmdb_view_begin(spile__lmdb_view *view, spile__lmdb_env *env, const spile_env *outside, int64_t deadline_ms,
                           spile_error *error) {
  view->locked = false;
  view->txn = spile__lmdb_reader_take(env);
  if (view->txn != NULL)
    return SPILE_OK;
  int result = spile__lmdb_env_lock(env, outside, deadline_ms, error);
  if (result != SPILE_OK)
    return result;
  reader_add(env);
  view->txn = spile__lmdb_reader_take(env);
  view->locked = view->txn == NULL;
  int failed = view->locked ? spile__lmdb_write_begin(env, &view->txn) : 0;
  if (!view->locked || failed != 0)
    spile__lmdb_env_unlock(env);
  return failed == 0 ? SPILE_OK : spile__lmdb_fail(error, failed, "begin to read from LMDB");
}

void spile__lmdb_view_end(spile__lmdb_view *view, spile__lmdb_env *env) {
  if (!view->locked) {
    spile__lmdb_reader_give(env, view->txn);
    return;
  }
  mdb_txn_abort(view->txn);
  spile__lmdb_env_unlock(env);
}
