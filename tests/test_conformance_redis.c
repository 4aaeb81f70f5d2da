/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

#include "redis_server.h"

static redis_server *server;

static const char *redis_start(void) {
  server = redis_server_start();
  return redis_server_unix_uri(server);
}

static void redis_stop(void) {
  redis_server_free(server);
}

static const store_fixture fixture = {.start = redis_start, .stop = redis_stop, .shared = true};

#define CHECK(check) CONFORMANCE_TEST(conformance_redis, check, &fixture)
CONFORMANCE_CHECKS(CHECK)
