/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading without waiting for a writer.
 *
 * A read-only transaction keeps its place in LMDB's table of readers when it is reset, and is renewed in a fraction of
 * a microsecond. A process keeps one from the start, and as many as its threads have needed at once, up to a bound. An
 * idle one holds no pages. Whoever finds none idle makes one more, under the lock, or where that is not to be had takes
 * the next that comes back; only when no more can be made it reads in a write transaction.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/lmdb_env.h"

/* After a reader could not be made, how often to go without before the next try. */
#define READER_PAUSE 1024

/* Looks for readers that are still in use, this long apart: 20 ms together. A read lasts microseconds. */
#define READER_LOOKS 100
#define READER_LOOK_NS 200000

/*
 * Whoever finds all readers of this process under way waits for the lock at first so long, then twice as long each
 * time, and looks so often for one that has come back in between. Who holds the lock may be stopped; readers come back
 * in microseconds.
 */
#define READER_TURN_MS 2
#define READER_TURN_LOOKS 1000

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

void spile__lmdb_reader_add(spile__lmdb_env *env) {
  if (env->mdb == NULL || atomic_load_explicit(&env->reader_count, memory_order_relaxed) >= SPILE__LMDB_READERS)
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
  (void)atomic_fetch_add_explicit(&env->reader_count, 1, memory_order_relaxed);
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

/* Looks for readers that come back. @return NULL: none did */
static MDB_txn *reader_await(spile__lmdb_env *env) {
  for (int looks = 0; looks < READER_TURN_LOOKS; looks++) {
    MDB_txn *txn = spile__lmdb_reader_take(env);
    if (txn != NULL)
      return txn;
    (void)sched_yield();
  }
  return NULL;
}

/*
 * Takes an idle reader, or the lock.
 * @return SPILE_OK, *txn is a reader, or NULL and the lock is held; SPILE_EUNAVAILABLE, neither was there in time
 */
static int reader_or_lock(MDB_txn **txn, spile__lmdb_env *env, const spile_env *outside, int64_t deadline_ms,
                          spile_error *error) {
  int64_t turn_ms = READER_TURN_MS;
  *txn = spile__lmdb_reader_take(env);
  while (*txn == NULL && atomic_load_explicit(&env->reader_count, memory_order_relaxed) > 0) {
    if (deadline_ms - outside->monotonic_ms(outside->user) <= turn_ms)
      break;
    if (spile__lmdb_lock_take(&env->side.board->lock, turn_ms) == 0)
      return SPILE_OK;
    *txn = reader_await(env);
    turn_ms *= 2;
  }
  return *txn != NULL ? SPILE_OK : spile__lmdb_env_lock(env, outside, deadline_ms, error);
}

/* LMDB writes each reader as "pid thread transaction", with a dash where it reads nothing, below a line of words. */
static int reader_line(const char *line, void *oldest) {
  const char *last = strrchr(line, ' ');
  if (last == NULL || last[1] < '0' || last[1] > '9')
    return 0;
  size_t number = strtoull(last + 1, NULL, 10);
  if (number < *(size_t *)oldest)
    *(size_t *)oldest = number;
  return 0;
}

bool spile__lmdb_readers_behind(spile__lmdb_env *env) {
  MDB_envinfo info;
  size_t oldest = SIZE_MAX;
  (void)mdb_env_info(env->mdb, &info);
  return mdb_reader_list(env->mdb, reader_line, &oldest) >= 0 && oldest < info.me_last_txnid;
}

int spile__lmdb_view_begin(spile__lmdb_view *view, spile__lmdb_env *env, const spile_env *outside, int64_t deadline_ms,
                           spile_error *error) {
  view->locked = false;
  int result = reader_or_lock(&view->txn, env, outside, deadline_ms, error);
  if (result != SPILE_OK || view->txn != NULL)
    return result;
  spile__lmdb_reader_add(env);
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
