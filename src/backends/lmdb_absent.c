/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the place of the LMDB store where the build has no LMDB.
 */
#include "backends/address.h"
#include "backends/backends.h"

static int absent(spile_error *error) {
  return spile__store_fail(error, SPILE_ENOTSUP, SPILE_REASON_NONE,
                           "this build has no LMDB store; rebuild with -Dlmdb=enabled");
}

int spile__lmdb_open(spile_store **out, const spile__store_config *config, spile_error *error) {
  (void)config;
  *out = NULL;
  return absent(error);
}

int spile__lmdb_repair(const spile__store_config *config, char *moved_to, size_t size, spile_error *error) {
  (void)config;
  (void)moved_to;
  (void)size;
  return absent(error);
}
