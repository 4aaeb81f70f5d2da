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

static void redis_is_a_replica(void) {
  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
}

static void redis_has_no_replicas(void) {
  redis_server_run(server, "CONFIG SET min-replicas-to-write 1");
}

static void redis_is_full(void) {
  redis_server_run(server, "CONFIG SET maxmemory 1");
}

static void redis_gives_no_right(void) {
  redis_server_run(server, "ACL SETUSER default -set -pexpireat -del");
}

static void (*const redis_refuse_writes[])(void) = {redis_is_a_replica, redis_has_no_replicas, redis_is_full,
                                                    redis_gives_no_right, NULL};

static const store_fixture fixture = {
    .start = redis_start, .stop = redis_stop, .shared = true, .refuse_writes = redis_refuse_writes};

#define CHECK(check) CONFORMANCE_TEST(conformance_redis, check, &fixture)
CONFORMANCE_CHECKS(CHECK)
