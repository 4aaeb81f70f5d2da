/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the stores of this library are opened. Each is built or answers "not built in" (…_absent.c); the build picks.
 * A store knows the core, the store contract and this header, not the limiter and no other store.
 */
#ifndef SPILE_BACKENDS_H
#define SPILE_BACKENDS_H

#include <spile/sys/store.h>

#define SPILE__KEY_PREFIX_LEN_MAX 64

typedef struct spile__store_config {
  const char *address;    /* the URI behind the scheme's colon, and behind "//" where it has one */
  const spile_env *env;   /* copied */
  const char *key_prefix; /* 1 to 64 of A-Z a-z 0-9 - . _ ~; copied */
  bool given_time;        /* every call will give its time: buckets are kept apart, under a mark */
  int64_t timeout_ms;     /* of one call as the caller set it, or 0: opening may use it to bound what it waits for */
  int connections;        /* for a store with connections: the most it may use at a time, 1 to 64 */
} spile__store_config;

/*
 * Opens a store.
 * @param out  the store, closed by its ops->close; NULL on failure
 * @return SPILE_OK; SPILE_ECONFIG, the address cannot be read; SPILE_ENOTSUP, not built in; SPILE_ENOMEM;
 *         SPILE_EUNAVAILABLE
 */
int spile__memory_open(spile_store **out, const spile__store_config *config, spile_error *error);
int spile__lmdb_open(spile_store **out, const spile__store_config *config, spile_error *error);
/*
 * Moves a damaged data file aside; see spile_repair. `moved_to` holds "" when it is called.
 */
int spile__lmdb_repair(const spile__store_config *config, char *moved_to, size_t size, spile_error *error);
/* `unix_socket`: the address is a path (redis+unix:), not a host. */
int spile__redis_open(spile_store **out, const spile__store_config *config, bool unix_socket, spile_error *error);

#endif
