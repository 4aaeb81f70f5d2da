/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LMDB stores for tests that reach below the limiter: in a directory of their own, on a clock that stands still until
 * it is moved, with the log kept.
 */
#ifndef SPILE_TESTS_LMDB_RIG_H
#define SPILE_TESTS_LMDB_RIG_H

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <sys/types.h>

#include "backends/lmdb_store.h"
#include "temp_dir.h"

#define RIG_START_MS INT64_C(1700000000000)
/* Longer than a busy machine takes for anything that is not stuck. */
#define RIG_PATIENCE_MS 20000

typedef struct lmdb_rig {
  spile_env env;
  char dir[TEMP_DIR_LEN];
  _Atomic int64_t now_ms; /* of the wall clock */
  char log[512];          /* the last line */
} lmdb_rig;

void rig_start(lmdb_rig *rig);
void rig_stop(lmdb_rig *rig);

/* Opens rig->dir/`tail`, such as "store?sync=full". @return as spile__lmdb_open */
int rig_try(lmdb_rig *rig, const char *tail, const char *prefix, bool given_time, spile_store **out,
            spile_error *error);
/* The same, in production under "rl"; the test fails when it does not open. */
spile_store *rig_open(lmdb_rig *rig, const char *tail);
void rig_close(spile_store *store);

/* The path of a file in rig->dir. */
const char *rig_path(const lmdb_rig *rig, const char *tail);

spile_spec spec_of(const char *name, int64_t capacity, int64_t tokens, int64_t period_ms);

/* What one bucket answers: SPILE_ALLOWED, SPILE_DENIED, or an error. */
typedef struct asked {
  int outcome;
  spile_decision decision;
  spile_error error;
} asked;
asked ask(spile_store *store, spile_verb verb, const spile_spec *spec, const void *key, size_t key_len, int64_t cost,
          int64_t now_ms, int64_t timeout_ms);
/* The outcome of a take of one token on the store's clock; a failure of the store fails the test. */
int take_one(spile_store *store, const spile_spec *spec, const char *key);

/* How many buckets the store shows, of production and of given times. */
typedef struct shown {
  size_t production;
  size_t simulated;
} shown;
shown show(spile_store *store);

/* Cleans until nothing is left to do. */
void clean_all(spile_store *store, spile_clean_what what, int64_t now_ms);

/* The number of the last transaction that wrote. */
size_t last_write(spile_store *store);

/* Waits for a child that must end with exit status 0. */
void child_done(pid_t child);

#endif
