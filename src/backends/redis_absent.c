/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for the Redis store in a build without hiredis.
 */
#include "backends/address.h"
#include "backends/backends.h"

int spile__redis_open(spile_store **out, const spile__store_config *config, bool unix_socket, spile_error *error) {
  (void)config;
  *out = NULL;
  return spile__store_fail(error, SPILE_ENOTSUP, SPILE_REASON_NONE,
                           "this build has no Redis store (%s:); build it with hiredis and -Dredis=enabled",
                           unix_socket ? "redis+unix" : "redis");
}
