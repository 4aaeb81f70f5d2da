/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LMDB store among its own files: deciding is in lmdb.c, walking over what is stored in lmdb_walk.c.
 */
#ifndef SPILE_BACKENDS_LMDB_STORE_H
#define SPILE_BACKENDS_LMDB_STORE_H

#include "backends/lmdb_env.h"

typedef struct spile__lmdb_store {
  spile_store base;
  spile_env own_outside;
  const spile_env *outside; /* own_outside */
  char key_prefix[SPILE__KEY_PREFIX_LEN_MAX + 1];
  bool given_time;
  spile__lmdb_env *env;
  atomic_bool clean_anew; /* an earlier clean was given up: the next begins at the start */
  /* Guarded by the lock of the env. */
  spile__lmdb_place clean_at;
  spile__lmdb_place room_at; /* where looking for room among given-time buckets goes on */
} spile__lmdb_store;

/* Counts new buckets and, every so many, drops a few that have been full for a while. Under the lock, after a commit.
 */
void spile__lmdb_sweep(spile__lmdb_store *store, size_t inserts);

/* Tries to make room for a new bucket, as of now_ms, in bounded time. Under the lock, without a transaction. */
void spile__lmdb_make_room(spile__lmdb_store *store, int64_t now_ms, size_t adds);

/* As in the store contract. */
int spile__lmdb_clean(spile_store *base, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                      spile_error *error);
int spile__lmdb_each(spile_store *base, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                     spile_error *error);

#endif
