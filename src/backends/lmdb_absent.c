/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the place of the LMDB store where the build has no LMDB.
 */
#include "backends/address.h"
#include "backends/backends.h"

int spile__lmdb_open(spile_store **out, const spile__store_config *config, spile_error *error) {
  (void)config;
  *out = NULL;
  return spile__store_fail(error, SPILE_ENOTSUP, SPILE_REASON_NONE,
                           "this build has no LMDB store; rebuild with -Dlmdb=enabled");
}
