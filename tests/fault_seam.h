/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seam below LMDB: a test program that links this has every write and sync of its process, LMDB's included, go
 * through here, where one may be made to fail as a disk does.
 */
#ifndef SPILE_TESTS_FAULT_SEAM_H
#define SPILE_TESTS_FAULT_SEAM_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fault_plan {
  int skip;    /* calls that succeed first */
  int fails;   /* calls that fail then */
  int error;   /* with this errno */
  bool metas;  /* only writes of LMDB's meta pages */
  bool synced; /* only fdatasync */
} fault_plan;

/* From now on. Counts begin at 0. */
void fault_set(const fault_plan *plan);
void fault_clear(void);

/* Calls that failed, and that were made, since fault_set. */
int fault_failed(void);
int fault_calls(void);

#endif
