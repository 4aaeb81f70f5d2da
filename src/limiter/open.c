/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening: options checked, the environment made from them, the store found by the scheme of its address.
 */
#include <string.h>

#include "backends/backends.h"
#include "core/checked.h"
#include "core/text.h"
#include "limiter/breaker.h"
#include "limiter/env.h"
#include "limiter/limiter.h"
#include "limiter/meter.h"

#define CONNECTIONS_MAX 64
#define IPV6_PREFIX_MIN 32
#define IPV6_PREFIX_MAX 128
#define IPV6_PREFIX_DEFAULT 64
#define CONNECTIONS_DEFAULT 4
#define BREAKER_FAILURES_MAX 1000000
#define BREAKER_FAILURES_DEFAULT 5
#define BREAKER_WAIT_DEFAULT_MS 1000

bool spile__key_prefix_valid(const char *prefix, size_t len) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  return len >= 1 && len <= SPILE__KEY_PREFIX_LEN_MAX && strspn(prefix, allowed) == len;
}

/*
 * The caller's options in this version's struct. A caller from before a member existed leaves it zero, the default; one
 * from after may set only zeros in what this version does not know.
 */
static int options_read(spile_options *out, const spile_options *options, spile_error *error) {
  memset(out, 0, sizeof(*out));
  if (options == NULL)
    return SPILE_OK;
  size_t size = options->struct_size;
  if (size < offsetof(spile_options, timeout_ms) + sizeof(options->timeout_ms) || size > 4096)
    return spile__fail(error, SPILE_EINVAL, "the options were not started by SPILE_OPTIONS_INIT", NULL);
  const unsigned char *bytes = (const unsigned char *)options;
  for (size_t i = sizeof(*out); i < size; i++) {
    if (bytes[i] != 0)
      return spile__fail(error, SPILE_EINVAL, "an option is set that this version of the library does not know", NULL);
  }
  memcpy(out, options, size < sizeof(*out) ? size : sizeof(*out));

  if (out->timeout_ms < 0 || out->timeout_ms > SPILE__TIMEOUT_MAX_MS)
    return spile__fail(error, SPILE_EINVAL, "timeout_ms is #; it must be 0 to 3600000", &out->timeout_ms);
  if (out->breaker_failures < SPILE_BREAKER_OFF || out->breaker_failures > BREAKER_FAILURES_MAX)
    return spile__fail(error, SPILE_EINVAL, "breaker_failures is #; it must be -1 to 1000000",
                       (int64_t[]){out->breaker_failures});
  if (out->breaker_wait_ms < 0 || out->breaker_wait_ms > SPILE__TIMEOUT_MAX_MS)
    return spile__fail(error, SPILE_EINVAL, "breaker_wait_ms is #; it must be 0 to 3600000", &out->breaker_wait_ms);
  if (out->on_store_error < SPILE_ON_STORE_ERROR_DEFAULT || out->on_store_error > SPILE_ON_STORE_ERROR_CLOSED)
    return spile__fail(error, SPILE_EINVAL, "on_store_error is #; it must be a spile_on_store_error",
                       (int64_t[]){out->on_store_error});
  if (out->connections < 0 || out->connections > CONNECTIONS_MAX)
    return spile__fail(error, SPILE_EINVAL, "connections is #; it must be 0 to 64", (int64_t[]){out->connections});
  if (out->ipv6_prefix != 0 && (out->ipv6_prefix < IPV6_PREFIX_MIN || out->ipv6_prefix > IPV6_PREFIX_MAX))
    return spile__fail(error, SPILE_EINVAL, "ipv6_prefix is #; it must be 32 to 128, or 0 for 64",
                       (int64_t[]){out->ipv6_prefix});
  if (out->key_prefix != NULL) {
    if (!spile__key_prefix_valid(out->key_prefix, strlen(out->key_prefix)))
      return spile__fail(error, SPILE_EINVAL, "key_prefix must be " SPILE__KEY_PREFIX_FORM, NULL);
  }
  return SPILE_OK;
}

/* What a store may touch: the system, but for what the options put in its place. */
static void env_from(spile_env *env, const spile_options *options) {
  spile__env_init(env);
  if (options->allocate != NULL) {
    env->allocate = options->allocate;
    env->allocate_user = options->allocate_user;
  }
  if (options->log != NULL) {
    env->log = options->log;
    env->log_user = options->log_user;
  }
}

static const char *key_prefix_of(const spile_options *options) {
  return options->key_prefix != NULL ? options->key_prefix : "rl";
}

static void limiter_free(spile_limiter *limiter) {
  spile__watch_close(limiter->watch);
  spile__slot_finish(&limiter->limits);
  explicit_bzero(&limiter->secret, sizeof(limiter->secret));
  limiter->env.allocate(limiter->env.allocate_user, limiter, 0);
}

/* A limiter without a store. */
static int limiter_new(spile_limiter **out, const spile_options *options, spile_error *error) {
  spile_env env;
  env_from(&env, options);
  spile_limiter *limiter = env.allocate(env.allocate_user, NULL, sizeof(*limiter));
  if (limiter == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for a limiter", NULL);
  memset(limiter, 0, sizeof(*limiter));
  spile__fork_watch();
  limiter->env = env;
  limiter->fork_generation = spile__fork_generation();
  limiter->timeout_ms = options->timeout_ms;
  limiter->on_store_error = (spile_on_store_error)options->on_store_error;
  limiter->now_ms = options->now_ms;
  limiter->sleep_ms = options->sleep_ms;
  limiter->clock = options->clock;
  const char *prefix = key_prefix_of(options);
  memcpy(limiter->key_prefix, prefix, strlen(prefix));
  spile__slot_init(&limiter->limits);
  limiter->ipv6_prefix = options->ipv6_prefix != 0 ? (unsigned)options->ipv6_prefix : IPV6_PREFIX_DEFAULT;
  if (options->secret_file != NULL) {
    int result = spile__secret_load(&limiter->secret, options->secret_file, error);
    if (result != SPILE_OK) {
      limiter_free(limiter);
      return result;
    }
  }
  *out = limiter;
  return SPILE_OK;
}

/*
 * Puts a store under a limiter, with a breaker around it unless it never blocks: a store that cannot be slow cannot be
 * helped by not being asked. The store stays the caller's on failure.
 */
static int limiter_guard(spile_limiter *limiter, spile_store *store, const spile_options *options, spile_error *error) {
  if (store->ops->timeout_ms == 0)
    limiter->timeout_ms = 0;
  else if (limiter->timeout_ms == 0)
    limiter->timeout_ms = store->ops->timeout_ms;
  limiter->store = store;
  if (limiter->timeout_ms == 0 || options->breaker_failures == SPILE_BREAKER_OFF)
    return SPILE_OK;
  int failures = options->breaker_failures != 0 ? options->breaker_failures : BREAKER_FAILURES_DEFAULT;
  int64_t wait_ms = options->breaker_wait_ms > 0 ? options->breaker_wait_ms : BREAKER_WAIT_DEFAULT_MS;
  int result =
      spile__breaker_open(&limiter->breaker, store, &limiter->env, limiter->timeout_ms, failures, wait_ms, error);
  if (result == SPILE_OK)
    limiter->store = limiter->breaker;
  return result;
}

/* The same with all that is told of takes, and the store measured below the breaker where that was asked for. */
static int limiter_adopt(spile_limiter *limiter, spile_store *store, const spile_options *options, spile_error *error) {
  int result = spile__watch_open(&limiter->watch, options, &limiter->env, error);
  if (result != SPILE_OK || options->metrics != SPILE_METRICS_TIMES)
    return result == SPILE_OK ? limiter_guard(limiter, store, options, error) : result;
  spile_store *meter;
  result = spile__meter_open(&meter, store, spile__watch_metrics(limiter->watch), &limiter->env, error);
  if (result != SPILE_OK)
    return result;
  result = limiter_guard(limiter, meter, options, error);
  if (result != SPILE_OK)
    (void)spile__meter_remove(meter);
  return result;
}

/* What follows `scheme` in the address, or NULL. */
static const char *after_scheme(const char *uri, const char *scheme) {
  size_t len = strlen(scheme);
  return strncmp(uri, scheme, len) == 0 ? uri + len : NULL;
}

/* What a store is opened with; `env` is filled and pointed to. */
static void config_from(spile__store_config *config, spile_env *env, const char *address,
                        const spile_options *options) {
  env_from(env, options);
  *config = (spile__store_config){
      .address = address,
      .env = env,
      .key_prefix = key_prefix_of(options),
      .given_time = options->now_ms != NULL,
      .timeout_ms = options->timeout_ms,
      .connections = options->connections > 0 ? options->connections : CONNECTIONS_DEFAULT,
  };
}

static int store_open(spile_store **out, const char *uri, const spile_options *options, spile_error *error) {
  spile_env env;
  spile__store_config config;
  config_from(&config, &env, uri, options);
  if ((config.address = after_scheme(uri, "memory:")) != NULL)
    return spile__memory_open(out, &config, error);
  if ((config.address = after_scheme(uri, "lmdb:")) != NULL)
    return spile__lmdb_open(out, &config, error);
  if ((config.address = after_scheme(uri, "redis+unix://")) != NULL)
    return spile__redis_open(out, &config, true, error);
  if ((config.address = after_scheme(uri, "redis://")) != NULL)
    return spile__redis_open(out, &config, false, error);
  /* The address itself stays out of the message: it may hold a password. */
  return spile__fail(error, SPILE_ECONFIG,
                     "the store address begins with no known scheme; write memory:, lmdb:PATH, redis://HOST or "
                     "redis+unix:///PATH",
                     NULL);
}

int spile_store_open(spile_store **out, const char *uri, const spile_options *given, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  if (uri == NULL)
    return spile__fail(error, SPILE_EINVAL, "the store address is NULL", NULL);
  spile_options options;
  int result = options_read(&options, given, error);
  return result == SPILE_OK ? store_open(out, uri, &options, error) : result;
}

int spile_open(spile_limiter **out, const char *uri, const spile_options *options, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  spile_store *store;
  int result = spile_store_open(&store, uri, options, error);
  if (result != SPILE_OK)
    return result;
  result = spile_open_store(out, store, options, error);
  if (result != SPILE_OK)
    store->ops->close(store, false);
  return result;
}

int spile_open_store(spile_limiter **out, spile_store *store, const spile_options *given, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  if (store == NULL || store->ops == NULL || store->ops->abi < 1 || store->ops->abi > SPILE_STORE_ABI ||
      store->ops->decide == NULL || store->ops->clear == NULL || store->ops->close == NULL)
    return spile__fail(error, SPILE_EINVAL, "the store is NULL, of another ABI, or lacks decide, clear or close", NULL);
  if (store->ops->timeout_ms < 0 || store->ops->timeout_ms > SPILE__TIMEOUT_MAX_MS)
    return spile__fail(error, SPILE_EINVAL, "timeout_ms of the store is #; it must be 0 to 3600000",
                       &store->ops->timeout_ms);
  spile_options options;
  spile_limiter *limiter = NULL;
  int result = options_read(&options, given, error);
  if (result == SPILE_OK)
    result = limiter_new(&limiter, &options, error);
  if (result != SPILE_OK)
    return result;
  result = limiter_adopt(limiter, store, &options, error);
  if (result != SPILE_OK) {
    limiter_free(limiter);
    return result;
  }
  *out = limiter;
  return SPILE_OK;
}

void spile_close(spile_limiter *limiter) {
  if (limiter == NULL)
    return;
  limiter->store->ops->close(limiter->store, limiter->fork_generation != spile__fork_generation());
  limiter_free(limiter);
}

int spile_repair(const char *uri, const spile_options *given, char *moved_to, size_t size, spile_error *error) {
  if (moved_to != NULL && size == 0)
    return spile__fail(error, SPILE_EINVAL, "moved_to has no room", NULL);
  if (moved_to != NULL)
    moved_to[0] = '\0';
  if (uri == NULL)
    return spile__fail(error, SPILE_EINVAL, "the store address is NULL", NULL);
  const char *address = after_scheme(uri, "lmdb:");
  if (address == NULL)
    return spile__fail(error, SPILE_ENOTSUP, "only a store lmdb:PATH has files to repair", NULL);
  spile_options options;
  int result = options_read(&options, given, error);
  if (result != SPILE_OK)
    return result;
  spile_env env;
  spile__store_config config;
  config_from(&config, &env, address, &options);
  return spile__lmdb_repair(&config, moved_to, size, error);
}
