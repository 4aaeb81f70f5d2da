/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "backends/backends.h"
#include "core/algorithm.h"
#include "core/limit.h"
#include "limiter/env.h"

static spile_env env;

spile_store *store_open(const char *address, bool given_time) {
  spile__env_init(&env);
  spile__store_config config = {.address = address, .env = &env, .key_prefix = "rl", .given_time = given_time};
  spile_store *store;
  spile_error error = {0};
  cr_assert(spile__memory_open(&store, &config, &error) == SPILE_OK, "%s", error.message);
  return store;
}

spile_spec spec_of(const char *name, int64_t capacity, int64_t tokens, int64_t period_ms) {
  spile_spec spec = {.name = name, .name_len = strlen(name), .algorithm = SPILE_TOKEN_BUCKET};
  cr_assert(eq(int, spile__shape_make(&spec.shape, capacity, tokens, period_ms, 0, NULL), SPILE_OK));
  spile__spec_finish(&spec);
  return spec;
}

int take(spile_store *store, const spile_spec *spec, const char *key, int64_t cost, int64_t now_ms,
         spile_reading *reading) {
  spile_error error = {0};
  spile_item item = {.key = key, .key_len = strlen(key), .spec = spec, .cost = cost};
  spile_call call = {.verb = SPILE_VERB_TAKE, .items = &item, .n = 1, .now_ms = now_ms, .error = &error};
  int result = store->ops->decide(store, &call);
  if (reading != NULL)
    *reading = item.reading;
  return result;
}

spile_item item_of(const spile_spec *spec, const char *key) {
  return (spile_item){.key = key, .key_len = strlen(key), .spec = spec};
}

spile_spec log_of(const char *name, int64_t capacity, int64_t window_ms) {
  spile_spec spec = {.name = name, .name_len = strlen(name), .algorithm = SPILE_SLIDING_LOG};
  cr_assert(eq(int, spile__sliding_log.shape_make(&spec.shape, capacity, 0, window_ms, 0, NULL), SPILE_OK));
  spile__spec_finish(&spec);
  return spec;
}
