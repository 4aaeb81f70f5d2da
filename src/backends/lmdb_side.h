/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file beside the data in which the processes of one directory meet.
 */
#ifndef SPILE_BACKENDS_LMDB_SIDE_H
#define SPILE_BACKENDS_LMDB_SIDE_H

#include <spile/sys/store.h>

#include "backends/lmdb_key.h"
#include "backends/lmdb_lock.h"

#define SPILE__LMDB_SIDE_NAME "spile.lock"
#define SPILE__LMDB_BOOT_ID_LEN 36

/* What the file holds, mapped by all. */
typedef struct spile__lmdb_board {
  /* These five stay as they are in every build. */
  char magic[8];
  uint32_t clean; /* 1: the last to close wrote everything to the disk */
  uint32_t loose; /* 1: somebody wrote without syncing since it was clean */
  char boot_id[SPILE__LMDB_BOOT_ID_LEN];
  uint32_t layout; /* of what follows in this build; another one does not join */

  uint64_t pid_namespace;
  int64_t map_size; /* that all use */
  spile__lmdb_lock lock;
  /* Guarded by the lock. A holder that dies may leave any bytes in them. */
  uint32_t inserts;           /* new buckets, for what happens every so many */
  spile__lmdb_place sweep_at; /* where the sweep goes on */
} spile__lmdb_board;

typedef struct spile__lmdb_side {
  int fd; /* -1: not open */
  spile__lmdb_board *board;
  bool alone;     /* nobody else uses the directory, and nobody may join before spile__lmdb_side_share */
  bool untrusted; /* the data was being written without syncing when the host went down */
  bool known;     /* alone: somebody had data here before */
  char boot_id[SPILE__LMDB_BOOT_ID_LEN];
} spile__lmdb_side;

/*
 * Opens or makes the file in the directory `dir_fd`, alone when nobody else has it open.
 * @param timeout_ms  how long to wait for somebody who is opening or closing it
 * @return SPILE_OK; SPILE_EUNAVAILABLE; on failure spile__lmdb_side_close is still due
 */
int spile__lmdb_side_open(spile__lmdb_side *side, int dir_fd, int64_t map_size, int64_t timeout_ms,
                          const spile_env *env, spile_error *error);

/* Says, on the disk, that the data is in use, and whether it is written without syncing. */
int spile__lmdb_side_mark(spile__lmdb_side *side, bool loose, spile_error *error);

/* Lets others join. */
void spile__lmdb_side_share(spile__lmdb_side *side);

/* @return true when nobody else uses the directory any more; then nobody may join before the file is closed */
bool spile__lmdb_side_last(spile__lmdb_side *side);

/* Says that everything is on the disk; for the last one. */
void spile__lmdb_side_clean(spile__lmdb_side *side);

/* Closes and unmaps; in a forked child it takes nothing from the parent. */
void spile__lmdb_side_close(spile__lmdb_side *side);

#endif
