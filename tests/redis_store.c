/* SPDX-License-Identifier: Apache-2.0 */
#include "redis_store.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <time.h>

#include "backends/redis.h"
#include "core/decide.h"
#include "core/limit.h"
#include "limiter/env.h"

/* Longer than any answer takes on a busy machine. */
#define PATIENCE_MS 20000

int64_t store_monotonic_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

spile_spec spec_of(int64_t capacity, int64_t tokens, int64_t period_ms) {
  spile_spec spec = {.name = "default", .name_len = 7, .algorithm = SPILE_TOKEN_BUCKET};
  spile_error error = {0};
  cr_assert(spile__shape_make(&spec.shape, capacity, tokens, period_ms, 0, &error) == SPILE_OK, "%s", error.message);
  spile__spec_finish(&spec);
  return spec;
}

static int64_t monotonic_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static spile_env env;

static spile__store_config config_of(const char *uri, bool *unix_socket) {
  spile__env_init(&env);
  *unix_socket = strncmp(uri, "redis+unix://", 13) == 0;
  return (spile__store_config){
      .address = uri + (*unix_socket ? 13 : 8), .env = &env, .key_prefix = "rl", .timeout_ms = PATIENCE_MS};
}

int store_try_open(spile_store **out, const char *uri, bool given_time, spile_error *error) {
  bool unix_socket;
  spile__store_config config = config_of(uri, &unix_socket);
  config.given_time = given_time;
  return spile__redis_open(out, &config, unix_socket, error);
}

spile_store *store_open_over(const char *uri, int connections, const spile__redis_transport *transport, void *user) {
  bool unix_socket;
  spile__store_config config = config_of(uri, &unix_socket);
  config.connections = connections;
  spile_store *store;
  spile_error error = {0};
  int result = spile__redis_open_over(&store, &config, unix_socket,
                                      transport != NULL ? transport : &spile__redis_sockets, user, &error);
  cr_assert(result == SPILE_OK, "%s", error.message);
  return store;
}

spile_store *store_open(const char *uri, bool given_time) {
  spile_store *store;
  spile_error error = {0};
  int result = store_try_open(&store, uri, given_time, &error);
  cr_assert(result == SPILE_OK, "%s", error.message);
  return store;
}

void store_close(spile_store *store) {
  store->ops->close(store, false);
}

answer store_ask(spile_store *store, spile_verb verb, spile_item *items, size_t n, int64_t now_ms, int64_t timeout_ms) {
  answer out = {0};
  int64_t start_ms = store_monotonic_ms();
  spile_call call = {.verb = verb,
                     .items = items,
                     .n = n,
                     .now_ms = now_ms,
                     .deadline_ms = start_ms + timeout_ms,
                     .error = &out.error};
  out.code = store->ops->decide(store, &call);
  out.late_us = monotonic_us() - call.deadline_ms * 1000;
  out.took_ms = store_monotonic_ms() - start_ms;
  spile__decision_clear(&out.decision);
  if (out.code == SPILE_OK)
    out.code = spile__decide_call(&call, &out.decision, NULL);
  else
    cr_assert(eq(int, out.error.code, out.code));
  return out;
}

static answer ask_one(spile_store *store, spile_verb verb, const char *key, const spile_spec *spec, int64_t cost,
                      int64_t now_ms, int64_t timeout_ms) {
  spile_item item = {.key = key, .key_len = strlen(key), .spec = spec, .cost = cost};
  return store_ask(store, verb, &item, 1, now_ms, timeout_ms);
}

answer store_take(spile_store *store, const char *key, const spile_spec *spec, int64_t cost, int64_t now_ms) {
  return ask_one(store, SPILE_VERB_TAKE, key, spec, cost, now_ms, PATIENCE_MS);
}

answer store_peek(spile_store *store, const char *key, const spile_spec *spec, int64_t cost, int64_t now_ms) {
  return ask_one(store, SPILE_VERB_PEEK, key, spec, cost, now_ms, PATIENCE_MS);
}

answer store_take_within(spile_store *store, const char *key, const spile_spec *spec, int64_t timeout_ms) {
  return ask_one(store, SPILE_VERB_TAKE, key, spec, 1, SPILE_STORE_TIME, timeout_ms);
}

answer store_take_items(spile_store *store, spile_item *items, size_t n, int64_t now_ms) {
  return store_ask(store, SPILE_VERB_TAKE, items, n, now_ms, PATIENCE_MS);
}
