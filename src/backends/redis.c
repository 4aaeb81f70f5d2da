/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis store: the buckets lie on a server and lua/take.lua decides about them there, in one round trip.
 *
 * The script answers with the reading of each bucket before the take, and the caller's core makes outcome and waits of
 * it with the functions that serve every other store. What comes from the server is believed only within the bounds of
 * the shape that was asked about.
 *
 * The script is called by its hash. A server that does not know it says NOSCRIPT and has done nothing; then it is
 * loaded and called again. That is the only command that is ever sent twice.
 *
 * A store has a few connections, which its calls borrow; waiting for one counts into the deadline.
 */
#include "backends/redis.h"

#include <string.h>

#include "backends/address.h"
#include "backends/sha1.h"
#include "core/algorithm.h"
#include "core/checked.h"
#include "core/text.h"
#include "take_lua.h"

#define TIMEOUT_DEFAULT_MS 25

/* A letter, four numbers of a shape and their colons; and three numbers more. */
#define SHAPE_SIZE (1 + 4 * 21)
#define ARGUMENTS_SIZE (SHAPE_SIZE + 3 * 22)

/* A bucket's answer is one integer or a few. */
static const spile__redis_bounds take_bounds = {
    .bulk_max = 1024, .elements_max = SPILE_REQUESTS_MAX, .total_max = 16384};

/* ---- Borrowing ---- */

int spile__redis_borrow(spile__redis_store *store, int64_t deadline_ms, spile__redis_link **out, spile_error *error) {
  *out = spile__redis_pool_take(&store->pool, deadline_ms);
  if (*out != NULL)
    return SPILE_OK;
  return spile__store_fail(
      error, SPILE_EUNAVAILABLE, SPILE_REASON_BUSY,
      "all %zu connections were busy until too late; nothing was charged; allow more, or more time: %s", store->n_links,
      store->address.target);
}

void spile__redis_return(spile__redis_store *store, spile__redis_link *link) {
  spile__redis_pool_give(&store->pool, link);
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
static bool scratch_reserve(const spile__redis_store *store, spile__redis_link *link, const spile_call *call) {
  size_t size = 2 * 21;
  for (size_t i = 0; i < call->n; i++)
    size += spile__redis_key_size(store->key_prefix, &call->items[i]) + ARGUMENTS_SIZE;
  link->scratch.len = 0;
  return spile__redis_buffer_reserve(link->env, &link->scratch, size);
}

static void scratch_key(spile__redis_buffer *scratch, redis_command *command, const char *prefix, bool simulated,
                        const spile_item *item) {
  char *at = scratch->bytes + scratch->len;
  size_t len = spile__redis_key_encode(at, prefix, simulated, item);
  scratch->len += len;
  command_put(command, at, len);
}

static void scratch_number_after(spile__redis_buffer *scratch, redis_command *command, const char *mark,
                                 int64_t number) {
  spile__text text;
  char *at = scratch->bytes + scratch->len;
  spile__text_init(&text, at, scratch->size - scratch->len);
  spile__text_put(&text, mark);
  spile__text_put_number(&text, number);
  size_t len = (size_t)(text.at - at);
  scratch->len += len + 1;
  command_put(command, at, len);
}

static void scratch_number(spile__redis_buffer *scratch, redis_command *command, int64_t number) {
  scratch_number_after(scratch, command, "", number);
}

static void scratch_shape(spile__redis_buffer *scratch, redis_command *command, const spile_spec *spec) {
  const spile_shape *shape = &spec->shape;
  spile__text text;
  char *at = scratch->bytes + scratch->len;
  spile__text_init(&text, at, scratch->size - scratch->len);
  spile__text_put(&text, spile__algorithm_get(spec->algorithm)->mark);
  bool window = spile__algorithm_get(spec->algorithm)->window;
  if (window) {
    spile__text_put_number(&text, shape->capacity);
    spile__text_put(&text, ":");
    spile__text_put_number(&text, shape->period_ms);
  }
  const int64_t numbers[4] = {shape->capacity, shape->refill, shape->period_ms, shape->debt};
  for (int i = 0; i < 4 && !window && (i < 3 || shape->debt > 0); i++) {
    spile__text_put_number(&text, numbers[i]);
    spile__text_put(&text, ":");
  }
  size_t len = (size_t)(text.at - at);
  scratch->len += len + 1;
  command_put(command, at, len);
}

/* The last three arguments of an item that is no take or peek. No bucket holds or owes as much as the largest cost. */
static void settle_arguments(spile__redis_buffer *scratch, redis_command *command, const spile_call *call,
                             int64_t cost) {
  const char *word = call->verb == SPILE_VERB_CHARGE ? "charge" : call->verb == SPILE_VERB_REFUND ? "refund" : "upto";
  scratch_number(scratch, command, cost < SPILE__EXACT_MAX ? cost : SPILE__EXACT_MAX);
  scratch_number(scratch, command, call->most);
  command_put(command, word, strlen(word));
}

static void take_make(const spile__redis_store *store, spile__redis_buffer *scratch, const spile_call *call,
                      redis_command *command) {
  bool given = call->now_ms != SPILE_STORE_TIME;
  command->argc = 0;
  command_put(command, "EVALSHA", 7);
  command_put(command, store->script_sha, 40);
  scratch_number(scratch, command, (int64_t)call->n);
  for (size_t i = 0; i < call->n; i++)
    scratch_key(scratch, command, store->key_prefix, given, &call->items[i]);
  for (size_t i = 0; i < call->n; i++) {
    const spile_shape *shape = &call->items[i].spec->shape;
    scratch_shape(scratch, command, call->items[i].spec);
    if (call->verb != SPILE_VERB_TAKE && call->verb != SPILE_VERB_PEEK) {
      settle_arguments(scratch, command, call, call->items[i].cost);
      continue;
    }
    /* A peek is a take of nothing: the script then writes nothing, and the caller judges by the readings. */
    int64_t cost = call->verb == SPILE_VERB_TAKE ? call->items[i].cost : 0;
    SPILE__ASSERT(cost <= shape->capacity);
    if (spile__algorithm_get(call->items[i].spec->algorithm)->window) {
      /* A cost above the capacity has no wait, and none is asked for. */
      int64_t wanted = call->items[i].cost;
      scratch_number(scratch, command, cost);
      scratch_number(scratch, command, shape->capacity - cost);
      scratch_number_after(scratch, command, "=", wanted <= shape->capacity ? wanted : 0);
      continue;
    }
    scratch_number(scratch, command, cost * shape->period_ms);
    scratch_number(scratch, command, (shape->capacity - cost) * shape->period_ms);
    scratch_number(scratch, command, shape->refill);
  }
  if (given)
    scratch_number(scratch, command, call->now_ms + SPILE__REDIS_SHIFT_MS);
}

static int memory_fail(spile_error *error) {
  return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for the command");
}

/* Sends the take; `*out` is its reply, which may be an error. */
static int take_send(spile__redis_link *link, const spile_call *call, redis_command *command, redisReply **out) {
  link->out.len = 0;
  if (!spile__redis_command(link->env, &link->out, command->argc, command->argv, command->argv_len))
    return memory_fail(call->error);
  int result = spile__redis_link_call(link, call->deadline_ms, &take_bounds, 1, out, call->error);
  if (result != SPILE_OK || (*out)->type != REDIS_REPLY_ERROR || !spile__redis_refusal_of((*out)->str)->again)
    return result;

  /* Loaded and not just sent: servers forget scripts that were only sent. One more round trip for both. */
  freeReplyObject(*out);
  *out = NULL;
  const char *load[3] = {"SCRIPT", "LOAD", spile__take_lua};
  const size_t load_len[3] = {6, 4, sizeof(spile__take_lua) - 1};
  if (!spile__redis_command(link->env, &link->out, 3, load, load_len) ||
      !spile__redis_command(link->env, &link->out, command->argc, command->argv, command->argv_len))
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

static bool reading_take(spile_item *item, spile_verb verb, const redisReply *reply) {
  const spile_spec *spec = item->spec;
  const spile__algorithm *algorithm = spile__algorithm_get(spec->algorithm);
  spile_reading reading = {{0}};
  if (algorithm->values > 1 && (reply->type != REDIS_REPLY_ARRAY || reply->elements != algorithm->values))
    return false;
  for (size_t i = 0; i < algorithm->values; i++) {
    const redisReply *value = algorithm->values > 1 ? reply->element[i] : reply;
    if (value->type != REDIS_REPLY_INTEGER)
      return false;
    reading.values[i] = value->integer;
  }
  if (!algorithm->reading_valid(&spec->shape, &reading, spile__cost_read(verb, item->cost)))
    return false;
  item->reading = reading;
  return true;
}

/* Whether the reply is what the script gives for these items: one reading, or an array of as many as there are items.
 */
static bool readings_take(spile_call *call, const redisReply *reply) {
  if (call->n == 1)
    return reading_take(&call->items[0], call->verb, reply);
  bool valid = reply->type == REDIS_REPLY_ARRAY && reply->elements == call->n;
  for (size_t i = 0; i < call->n && valid; i++)
    valid = reading_take(&call->items[i], call->verb, reply->element[i]);
  return valid;
}

/* Which item an error is about, where the server says so: of several the script does, as "… bucket 2: …". */
static void failed_item_take(spile_call *call, const redisReply *reply) {
  bool about_one = call->error->reason == SPILE_REASON_FOREIGN || call->error->reason == SPILE_REASON_FORMAT;
  if (reply->type != REDIS_REPLY_ERROR || !about_one)
    return;
  size_t item = 1;
  const char *at = call->n > 1 ? strstr(reply->str, " bucket ") : NULL;
  if (at != NULL) {
    item = 0;
    for (at += strlen(" bucket "); *at >= '0' && *at <= '9' && item <= SPILE_REQUESTS_MAX; at++)
      item = 10 * item + (size_t)(*at - '0');
  }
  if ((at != NULL || call->n == 1) && item >= 1 && item <= call->n)
    call->failed_item = item - 1;
}

static int redis_decide_on(const spile__redis_store *store, spile__redis_link *link, spile_call *call) {
  redis_command command;
  if (!scratch_reserve(store, link, call))
    return memory_fail(call->error);
  take_make(store, &link->scratch, call, &command);
  redisReply *reply = NULL;
  int result = take_send(link, call, &command, &reply);
  if (result != SPILE_OK)
    return result;
  if (!readings_take(call, reply)) {
    result = spile__redis_link_refused(link, reply, call->error);
    failed_item_take(call, reply);
  }
  freeReplyObject(reply);
  return result;
}

static int redis_decide(spile_store *base, spile_call *call) {
  spile__redis_store *store = (spile__redis_store *)base;
  spile__redis_link *link;
  int result = spile__redis_borrow(store, call->deadline_ms, &link, call->error);
  if (result != SPILE_OK)
    return result;
  result = redis_decide_on(store, link, call);
  spile__redis_return(store, link);
  return result;
}

/* ---- Clearing, opening, closing ---- */

int spile__redis_remove(spile__redis_link *link, int argc, const char **argv, const size_t *argv_len, int n,
                        int64_t deadline_ms, spile_error *error) {
  link->out.len = 0;
  if (!spile__redis_command(link->env, &link->out, argc, argv, argv_len))
    return memory_fail(error);
  redisReply *reply;
  int result = spile__redis_link_call(link, deadline_ms, &take_bounds, 1, &reply, error);
  if (result != SPILE_OK)
    return result;
  /* Another number is the answer to another command. */
  if (reply->type != REDIS_REPLY_INTEGER || reply->integer < 0 || reply->integer > n)
    result = spile__redis_link_refused(link, reply, error);
  freeReplyObject(reply);
  return result;
}

static int redis_clear_on(const spile__redis_store *store, spile__redis_link *link, const spile_item *item,
                          int64_t deadline_ms, spile_error *error) {
  link->scratch.len = 0;
  if (!spile__redis_buffer_reserve(link->env, &link->scratch, spile__redis_key_size(store->key_prefix, item)))
    return memory_fail(error);
  redis_command command = {.argc = 0};
  command_put(&command, "UNLINK", 6);
  scratch_key(&link->scratch, &command, store->key_prefix, store->given_time, item);
  return spile__redis_remove(link, command.argc, command.argv, command.argv_len, 1, deadline_ms, error);
}

static int redis_clear(spile_store *base, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  spile__redis_store *store = (spile__redis_store *)base;
  spile__redis_link *link;
  int result = spile__redis_borrow(store, deadline_ms, &link, error);
  if (result != SPILE_OK)
    return result;
  result = redis_clear_on(store, link, item, deadline_ms, error);
  spile__redis_return(store, link);
  return result;
}

/*
 * In a child this closes the child's copies of the sockets: nothing is sent and the parent's connections stay. A link
 * that a thread of the parent was using when it forked is in the middle of something, so its memory is left alone, and
 * so are the locks.
 */
static void redis_close(spile_store *base, bool forked) {
  spile__redis_store *store = (spile__redis_store *)base;
  const spile_env own_env = store->own_env;
  const spile_env *env = &own_env;
  for (size_t i = 0; i < store->n_links; i++) {
    spile__redis_link *link = &store->links[i];
    if (forked && link->lent) {
      if (link->handle >= 0)
        link->transport->close(link->transport_user, link->handle);
      continue;
    }
    spile__redis_link_close(link);
    spile__redis_buffer_free(env, &link->in);
    spile__redis_buffer_free(env, &link->out);
    spile__redis_buffer_free(env, &link->scratch);
  }
  spile__redis_names_close(&store->names, forked);
  if (!forked) {
    spile__redis_pool_finish(&store->pool);
    (void)pthread_mutex_destroy(&store->clean_lock);
  }
  explicit_bzero(&store->address, sizeof(store->address));
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
  if (config->connections < 0 || config->connections > SPILE__REDIS_LINKS_MAX)
    return spile__store_fail(error, SPILE_EINVAL, SPILE_REASON_NONE, "connections is %d; it must be 1 to %d",
                             config->connections, SPILE__REDIS_LINKS_MAX);
  size_t n_links = config->connections == 0 ? SPILE__REDIS_LINKS_DEFAULT : (size_t)config->connections;
  spile__redis_store *store =
      env->allocate(env->allocate_user, NULL, sizeof(*store) + n_links * sizeof(store->links[0]));
  if (store == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for the store");
  *store = (spile__redis_store){.base = {&redis_ops},
                                .own_env = *env,
                                .env = &store->own_env,
                                .given_time = config->given_time,
                                .names = {.env = &store->own_env,
                                          .transport = transport,
                                          .transport_user = transport_user,
                                          .address = &store->address},
                                .n_links = n_links};
  memcpy(store->key_prefix, config->key_prefix, strlen(config->key_prefix) + 1);
  int result = spile__redis_address_parse(&store->address, config->address, unix_socket, error);
  if (result != SPILE_OK) {
    explicit_bzero(&store->address, sizeof(store->address));
    (void)env->allocate(env->allocate_user, store, 0);
    return result;
  }
  spile__redis_names_open(&store->names);
  for (size_t i = 0; i < n_links; i++)
    store->links[i] = (spile__redis_link){.env = &store->own_env,
                                          .transport = transport,
                                          .transport_user = transport_user,
                                          .names = &store->names,
                                          .handle = -1};
  spile__redis_pool_init(&store->pool, &store->own_env, store->links, n_links);
  (void)pthread_mutex_init(&store->clean_lock, NULL);
  spile__sha1_hex(spile__take_lua, sizeof(spile__take_lua) - 1, store->script_sha);
  *out = &store->base;
  return SPILE_OK;
}

int spile__redis_open(spile_store **out, const spile__store_config *config, bool unix_socket, spile_error *error) {
  return spile__redis_open_over(out, config, unix_socket, &spile__redis_sockets, NULL, error);
}
