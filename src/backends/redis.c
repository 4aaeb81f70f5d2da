/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis store: the buckets lie on a server and lua/take.lua decides about them there, in one round trip.
 *
 * The script answers with the debt of each bucket before the take, and the caller's core makes outcome and waits of it
 * with the functions that serve every other store. What comes from the server is believed only within the bounds of the
 * shape that was asked about.
 *
 * The script is called by its hash. A server that does not know it says NOSCRIPT and has done nothing; then it is
 * loaded and called again. That is the only command that is ever sent twice.
 *
 * A store has one connection, which its callers take in turn; waiting for the turn counts into the deadline.
 */
#include "backends/redis.h"

#include <string.h>
#include <time.h>

#include "backends/address.h"
#include "backends/sha1.h"
#include "core/algorithm.h"
#include "core/checked.h"
#include "core/text.h"
#include "take_lua.h"

/* The thread sanitizer does not know the call that waits on the monotonic clock and would miss what it orders. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LOCK_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define LOCK_SANITIZED 1
#endif

#define TIMEOUT_DEFAULT_MS 25

/* Four numbers of a shape and their colons; and three numbers more. */
#define SHAPE_SIZE (4 * 21)
#define ARGUMENTS_SIZE (SHAPE_SIZE + 3 * 21)

/* A bucket's answer is one integer. */
static const spile__redis_bounds take_bounds = {
    .bulk_max = 1024, .elements_max = SPILE_REQUESTS_MAX, .total_max = 16384};

/* ---- The lock ---- */

/* Takes the lock within wait_ms. @return 0 or an errno value */
static int lock_wait(pthread_mutex_t *lock, int64_t wait_ms) {
#ifdef LOCK_SANITIZED
  clockid_t clock = CLOCK_REALTIME;
#else
  clockid_t clock = CLOCK_MONOTONIC;
#endif
  struct timespec until;
  (void)clock_gettime(clock, &until);
  int64_t nanoseconds = until.tv_nsec + wait_ms % 1000 * 1000000;
  until.tv_sec += (time_t)(wait_ms / 1000 + nanoseconds / 1000000000);
  until.tv_nsec = (long)(nanoseconds % 1000000000);
#ifdef LOCK_SANITIZED
  return pthread_mutex_timedlock(lock, &until);
#else
  return pthread_mutex_clocklock(lock, clock, &until);
#endif
}

int spile__redis_lock(spile__redis_store *store, int64_t deadline_ms, spile_error *error) {
  if (pthread_mutex_trylock(&store->lock) == 0)
    return SPILE_OK;
  /* The environment's clock may be another than the system's, so only the distance is carried over. */
  int64_t left_ms = deadline_ms - store->env->monotonic_ms(store->env->user);
  if (left_ms > 0 && lock_wait(&store->lock, left_ms) == 0)
    return SPILE_OK;
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_BUSY,
                           "the connection to %s was in use by other calls until the deadline; nothing was charged",
                           store->address.target);
}

/* ---- The command of a take ---- */

/* EVALSHA, the hash, the number of keys; a key and four arguments for each bucket; a given time. */
typedef struct redis_command {
  const char *argv[3 + 5 * SPILE_REQUESTS_MAX + 1];
  size_t argv_len[3 + 5 * SPILE_REQUESTS_MAX + 1];
  int argc;
} redis_command;

static void command_put(redis_command *command, const char *argument, size_t len) {
  command->argv[command->argc] = argument;
  command->argv_len[command->argc] = len;
  command->argc++;
}

/* Room for every name and argument of a call, so that none of them moves while they are collected. */
static bool scratch_reserve(spile__redis_store *store, const spile_call *call) {
  size_t size = 2 * 21;
  for (size_t i = 0; i < call->n; i++)
    size += spile__redis_key_size(store->key_prefix, &call->items[i]) + ARGUMENTS_SIZE;
  store->scratch.len = 0;
  return spile__redis_buffer_reserve(store->env, &store->scratch, size);
}

static void scratch_key(spile__redis_store *store, redis_command *command, bool simulated, const spile_item *item) {
  char *at = store->scratch.bytes + store->scratch.len;
  size_t len = spile__redis_key_encode(at, store->key_prefix, simulated, item);
  store->scratch.len += len;
  command_put(command, at, len);
}

static void scratch_number(spile__redis_store *store, redis_command *command, int64_t number) {
  spile__text text;
  char *at = store->scratch.bytes + store->scratch.len;
  spile__text_init(&text, at, store->scratch.size - store->scratch.len);
  spile__text_put_number(&text, number);
  size_t len = (size_t)(text.at - at);
  store->scratch.len += len + 1;
  command_put(command, at, len);
}

static void scratch_shape(spile__redis_store *store, redis_command *command, const spile_shape *shape) {
  spile__text text;
  char *at = store->scratch.bytes + store->scratch.len;
  spile__text_init(&text, at, store->scratch.size - store->scratch.len);
  const int64_t numbers[4] = {shape->capacity, shape->refill, shape->period_ms, shape->debt};
  for (int i = 0; i < 4 && (i < 3 || shape->debt > 0); i++) {
    spile__text_put_number(&text, numbers[i]);
    spile__text_put(&text, ":");
  }
  size_t len = (size_t)(text.at - at);
  store->scratch.len += len + 1;
  command_put(command, at, len);
}

static void take_make(spile__redis_store *store, const spile_call *call, redis_command *command) {
  bool given = call->now_ms != SPILE_STORE_TIME;
  command->argc = 0;
  command_put(command, "EVALSHA", 7);
  command_put(command, store->script_sha, 40);
  scratch_number(store, command, (int64_t)call->n);
  for (size_t i = 0; i < call->n; i++)
    scratch_key(store, command, given, &call->items[i]);
  for (size_t i = 0; i < call->n; i++) {
    const spile_shape *shape = &call->items[i].spec->shape;
    /* A peek is a take of nothing: the script then writes nothing, and the caller judges by the readings. */
    int64_t cost = call->verb == SPILE_VERB_TAKE ? call->items[i].cost : 0;
    SPILE__ASSERT(cost <= shape->capacity);
    scratch_shape(store, command, shape);
    scratch_number(store, command, cost * shape->period_ms);
    scratch_number(store, command, (shape->capacity - cost) * shape->period_ms);
    scratch_number(store, command, shape->refill);
  }
  if (given)
    scratch_number(store, command, call->now_ms + SPILE__REDIS_SHIFT_MS);
}

static int memory_fail(spile_error *error) {
  return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for the command");
}

/* Sends the take; `*out` is its reply, which may be an error. */
static int take_send(spile__redis_store *store, const spile_call *call, redis_command *command, redisReply **out) {
  spile__redis_link *link = &store->link;
  link->out.len = 0;
  if (!spile__redis_command(store->env, &link->out, command->argc, command->argv, command->argv_len))
    return memory_fail(call->error);
  int result = spile__redis_link_call(link, call->deadline_ms, &take_bounds, 1, out, call->error);
  if (result != SPILE_OK || !spile__redis_is_error(*out, "NOSCRIPT"))
    return result;

  /* Loaded and not just sent: servers forget scripts that were only sent. One more round trip for both. */
  freeReplyObject(*out);
  *out = NULL;
  const char *load[3] = {"SCRIPT", "LOAD", spile__take_lua};
  const size_t load_len[3] = {6, 4, sizeof(spile__take_lua) - 1};
  if (!spile__redis_command(store->env, &link->out, 3, load, load_len) ||
      !spile__redis_command(store->env, &link->out, command->argc, command->argv, command->argv_len))
    return memory_fail(call->error);
  redisReply *replies[2];
  result = spile__redis_link_call(link, call->deadline_ms, &take_bounds, 2, replies, call->error);
  if (result != SPILE_OK)
    return result;
  /* When loading was refused, why is worth more than a second NOSCRIPT. */
  bool refused = replies[0]->type == REDIS_REPLY_ERROR && spile__redis_is_error(replies[1], "NOSCRIPT");
  *out = replies[refused ? 0 : 1];
  freeReplyObject(replies[refused ? 1 : 0]);
  return SPILE_OK;
}

/* ---- The readings ---- */

static bool reading_take(spile_item *item, const redisReply *reply) {
  if (reply->type != REDIS_REPLY_INTEGER)
    return false;
  const spile_spec *spec = item->spec;
  spile_reading reading = {.values = {reply->integer}};
  if (!spile__algorithm_get(spec->algorithm)->reading_valid(&spec->shape, &reading))
    return false;
  item->reading = reading;
  return true;
}

/* Whether the reply is what the script gives for these items: one integer, or an array of as many as there are items.
 */
static bool readings_take(spile_call *call, const redisReply *reply) {
  if (call->n == 1)
    return reading_take(&call->items[0], reply);
  bool valid = reply->type == REDIS_REPLY_ARRAY && reply->elements == call->n;
  for (size_t i = 0; i < call->n && valid; i++)
    valid = reading_take(&call->items[i], reply->element[i]);
  return valid;
}

static int redis_decide_locked(spile__redis_store *store, spile_call *call) {
  redis_command command;
  if (!scratch_reserve(store, call))
    return memory_fail(call->error);
  take_make(store, call, &command);
  redisReply *reply = NULL;
  int result = take_send(store, call, &command, &reply);
  if (result != SPILE_OK)
    return result;
  if (!readings_take(call, reply))
    result = spile__redis_link_refused(&store->link, reply, call->error);
  freeReplyObject(reply);
  return result;
}

static int redis_decide(spile_store *base, spile_call *call) {
  spile__redis_store *store = (spile__redis_store *)base;
  int result = spile__redis_lock(store, call->deadline_ms, call->error);
  if (result != SPILE_OK)
    return result;
  result = redis_decide_locked(store, call);
  (void)pthread_mutex_unlock(&store->lock);
  return result;
}

/* ---- Clearing, opening, closing ---- */

int spile__redis_run(spile__redis_store *store, int argc, const char **argv, const size_t *argv_len,
                     int64_t deadline_ms, spile_error *error) {
  spile__redis_link *link = &store->link;
  link->out.len = 0;
  if (!spile__redis_command(store->env, &link->out, argc, argv, argv_len))
    return memory_fail(error);
  redisReply *reply;
  int result = spile__redis_link_call(link, deadline_ms, &take_bounds, 1, &reply, error);
  if (result != SPILE_OK)
    return result;
  if (reply->type != REDIS_REPLY_INTEGER)
    result = spile__redis_link_refused(link, reply, error);
  freeReplyObject(reply);
  return result;
}

static int redis_clear_locked(spile__redis_store *store, const spile_item *item, int64_t deadline_ms,
                              spile_error *error) {
  store->scratch.len = 0;
  if (!spile__redis_buffer_reserve(store->env, &store->scratch, spile__redis_key_size(store->key_prefix, item)))
    return memory_fail(error);
  redis_command command = {.argc = 0};
  command_put(&command, "UNLINK", 6);
  scratch_key(store, &command, store->given_time, item);
  return spile__redis_run(store, command.argc, command.argv, command.argv_len, deadline_ms, error);
}

static int redis_clear(spile_store *base, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  spile__redis_store *store = (spile__redis_store *)base;
  int result = spile__redis_lock(store, deadline_ms, error);
  if (result != SPILE_OK)
    return result;
  result = redis_clear_locked(store, item, deadline_ms, error);
  (void)pthread_mutex_unlock(&store->lock);
  return result;
}

static void redis_close(spile_store *base, bool forked) {
  spile__redis_store *store = (spile__redis_store *)base;
  const spile_env own_env = store->own_env;
  const spile_env *env = &own_env;
  /* In a child this closes the child's copy of the socket: nothing is sent and the parent's connection stays. */
  spile__redis_link_close(&store->link);
  spile__redis_buffer_free(env, &store->link.in);
  spile__redis_buffer_free(env, &store->link.out);
  spile__redis_buffer_free(env, &store->scratch);
  explicit_bzero(&store->address, sizeof(store->address));
  /* A thread of the parent may hold the child's copy of the lock. */
  if (!forked)
    (void)pthread_mutex_destroy(&store->lock);
  (void)env->allocate(env->allocate_user, store, 0);
}

static const spile_store_ops redis_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "redis",
    .timeout_ms = TIMEOUT_DEFAULT_MS,
    .decide = redis_decide,
    .clear = redis_clear,
    .clean = spile__redis_clean,
    .each = spile__redis_each,
    .close = redis_close,
};

int spile__redis_open_over(spile_store **out, const spile__store_config *config, bool unix_socket,
                           const spile__redis_transport *transport, void *transport_user, spile_error *error) {
  *out = NULL;
  const spile_env *env = config->env;
  spile__redis_store *store = env->allocate(env->allocate_user, NULL, sizeof(*store));
  if (store == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for the store");
  *store = (spile__redis_store){.base = {&redis_ops},
                                .own_env = *env,
                                .env = &store->own_env,
                                .given_time = config->given_time,
                                .link = {.env = &store->own_env,
                                         .transport = transport,
                                         .transport_user = transport_user,
                                         .address = &store->address,
                                         .handle = -1}};
  memcpy(store->key_prefix, config->key_prefix, strlen(config->key_prefix) + 1);
  (void)pthread_mutex_init(&store->lock, NULL);
  spile__sha1_hex(spile__take_lua, sizeof(spile__take_lua) - 1, store->script_sha);
  int result = spile__redis_address_parse(&store->address, config->address, unix_socket, error);
  if (result != SPILE_OK) {
    redis_close(&store->base, false);
    return result;
  }
  *out = &store->base;
  return SPILE_OK;
}

int spile__redis_open(spile_store **out, const spile__store_config *config, bool unix_socket, spile_error *error) {
  return spile__redis_open_over(out, config, unix_socket, &spile__redis_sockets, NULL, error);
}
