/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithms on a Redis server: its processor time for a take of 1, 2, 4 or 8 keys, and what it keeps for a key.
 *
 * The library's script runs without the library's client, many commands are sent together, and the server's clock is
 * its own, as in production. There a log cannot stand still; so before each sample of allowed takes the logs that it
 * will use are written anew, one entry short, by a script of the benchmark's. That they are what the library writes is
 * seen by the answers: the library's script refuses a log that is none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/redis.h"
#include "bench_algorithms.h"
#include "bench_server.h"
#include "core/algorithm.h"
#include "take_lua.h"

#define LENGTHS 4
#define MIXES 2
#define WORDS_MAX (3 + 5 * BENCH_VECTOR_MAX)
#define KEY_LEN_MAX 64
#define DEPTH 64       /* commands sent together */
#define FILL_MAX 100   /* logs written by one command */
#define SUBJECT_LEN 10 /* with "rl:{}:default" a name of 23 bytes, as in bench_redis */

static const size_t lengths[LENGTHS] = {1, 2, 4, BENCH_VECTOR_MAX};

/* KEYS: the logs. ARGV: shape, entries, window. The entries are of the last milliseconds, of one token each. */
static const char fill_lua[] = "local time = redis.call('TIME')\n"
                               "local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)\n"
                               "local entries = tonumber(ARGV[2])\n"
                               "local pieces = {ARGV[1] .. '=' .. struct.pack('>I2', 0)}\n"
                               "for i = 1, entries do\n"
                               "  pieces[i + 1] = struct.pack('>I6I2', now_ms - entries + i, i)\n"
                               "end\n"
                               "local value = table.concat(pieces)\n"
                               "local expires = string.format('%d', now_ms + tonumber(ARGV[3]) + 1000)\n"
                               "for i = 1, #KEYS do\n"
                               "  redis.call('SET', KEYS[i], value, 'PXAT', expires)\n"
                               "end\n"
                               "return 1\n";

typedef struct redis_world {
  bench_server server;
  char take_sha[BENCH_SHA_LEN + 1];
  char fill_sha[BENCH_SHA_LEN + 1];
  size_t takes;
} redis_world;

typedef struct redis_kind {
  redis_world *world;
  const bench_kind *kind;
  const spile__algorithm *algorithm;
  spile_limit *limit;
  const spile_spec *spec;
  size_t keys; /* a multiple of BENCH_VECTOR_MAX */
  char shape[80];
} redis_kind;

static void kind_init(redis_kind *kind, redis_world *world, const bench_kind *of, const bench_redis_options *options) {
  *kind = (redis_kind){.world = world, .kind = of, .limit = bench_limit(of->text)};
  kind->keys = bench_kind_keys(of, options->keys, options->entries) / BENCH_VECTOR_MAX * BENCH_VECTOR_MAX;
  kind->spec = spile_limit_spec(kind->limit);
  kind->algorithm = spile__algorithm_get(kind->spec->algorithm);
  const spile_shape *shape = &kind->spec->shape;
  if (kind->algorithm->window)
    (void)snprintf(kind->shape, sizeof(kind->shape), "%s%lld:%lld", kind->algorithm->mark, (long long)shape->capacity,
                   (long long)shape->period_ms);
  else
    (void)snprintf(kind->shape, sizeof(kind->shape), "%s%lld:%lld:%lld:", kind->algorithm->mark,
                   (long long)shape->capacity, (long long)shape->refill, (long long)shape->period_ms);
}

/* ---- Commands ---- */

/* The name of a bucket's key, NUL-terminated. */
static void key_make(const redis_kind *kind, char name[KEY_LEN_MAX], size_t number) {
  char subject[SUBJECT_LEN + 1];
  (void)snprintf(subject, sizeof(subject), "%010llu", (unsigned long long)number % 10000000000);
  const spile_item item = {.key = subject, .key_len = SUBJECT_LEN, .spec = kind->spec};
  name[spile__redis_key_encode(name, "rl", false, &item)] = '\0';
}

static void command_send(redis_world *world, int argc, const char **argv) {
  redisContext *connection = world->server.connection;
  if (redisAppendCommandArgv(connection, argc, argv, NULL) != REDIS_OK)
    bench_fatal("redis-server: %s", connection->errstr);
}

/* The last three of the four arguments that a bucket has. */
typedef struct redis_numbers {
  char words[3][24];
} redis_numbers;

static void numbers_make(const redis_kind *kind, redis_numbers *numbers, int64_t cost) {
  const spile_shape *shape = &kind->spec->shape;
  int64_t unit = kind->algorithm->window ? 1 : shape->period_ms;
  size_t size = sizeof(numbers->words[0]);
  (void)snprintf(numbers->words[0], size, "%lld", (long long)(cost * unit));
  (void)snprintf(numbers->words[1], size, "%lld", (long long)((shape->capacity - cost) * unit));
  if (kind->algorithm->window)
    (void)snprintf(numbers->words[2], size, "=%lld", (long long)cost);
  else
    (void)snprintf(numbers->words[2], size, "%lld", (long long)shape->refill);
}

/* What a take asks for: from each of n neighbours, which are of one kind or by turns of two, a token or all it can. */
typedef struct redis_take {
  const redis_kind *kinds[2];
  size_t n;
  bool allowed;
} redis_take;

static const redis_kind *take_kind(const redis_take *take, size_t item) {
  return take->kinds[item % 2];
}

static int64_t take_cost(const redis_take *take, size_t item) {
  return take->allowed ? 1 : take_kind(take, item)->spec->shape.capacity;
}

static void take_send(const redis_take *take, size_t first) {
  char names[BENCH_VECTOR_MAX][KEY_LEN_MAX];
  redis_numbers numbers[BENCH_VECTOR_MAX];
  char n[24];
  const char *argv[WORDS_MAX];
  int argc = 0;
  (void)snprintf(n, sizeof(n), "%zu", take->n);
  argv[argc++] = "EVALSHA";
  argv[argc++] = take->kinds[0]->world->take_sha;
  argv[argc++] = n;
  for (size_t i = 0; i < take->n; i++) {
    key_make(take_kind(take, i), names[i], first + i);
    argv[argc++] = names[i];
  }
  for (size_t i = 0; i < take->n; i++) {
    numbers_make(take_kind(take, i), &numbers[i], take_cost(take, i));
    argv[argc++] = take_kind(take, i)->shape;
    for (size_t j = 0; j < 3; j++)
      argv[argc++] = numbers[i].words[j];
  }
  command_send(take->kinds[0]->world, argc, argv);
}

/* ---- Answers ---- */

/* Whether a bucket has room for the cost; a fault ends the program. */
static bool reading_fits(const redis_kind *kind, const redisReply *reply, int64_t cost) {
  spile_reading reading = {{0}};
  size_t n = kind->algorithm->values;
  for (size_t i = 0; i < n; i++) {
    const redisReply *value = reply;
    if (n > 1)
      value = reply->type == REDIS_REPLY_ARRAY && reply->elements == n ? reply->element[i] : NULL;
    if (value == NULL || value->type != REDIS_REPLY_INTEGER)
      bench_fatal("%s: the script did not answer as it should", kind->kind->name);
    reading.values[i] = value->integer;
  }
  return kind->algorithm->fits(&kind->spec->shape, &reading, cost);
}

static void take_check(const redis_take *take, const redisReply *reply) {
  size_t n = take->n;
  if (n > 1 && (reply->type != REDIS_REPLY_ARRAY || reply->elements != n))
    bench_fatal("%s: the script did not answer for %zu keys", take->kinds[0]->kind->name, n);
  for (size_t i = 0; i < n; i++) {
    const redis_kind *kind = take_kind(take, i);
    if (reading_fits(kind, n > 1 ? reply->element[i] : reply, take_cost(take, i)) != take->allowed)
      bench_fatal("%s: a take was not %s", kind->kind->name, take->allowed ? "allowed" : "denied");
  }
}

/* Takes from the first keys, `count` times from the next n. */
static void takes_run(const redis_take *take, size_t count) {
  bench_server *server = &take->kinds[0]->world->server;
  for (size_t done = 0; done < count;) {
    size_t sent = 0;
    for (; sent < DEPTH && done + sent < count; sent++)
      take_send(take, (done + sent) * take->n % take->kinds[0]->keys);
    for (size_t i = 0; i < sent; i++) {
      redisReply *reply = bench_server_reply(server);
      take_check(take, reply);
      freeReplyObject(reply);
    }
    done += sent;
  }
}

/* Takes a token from each of the first keys, `n` keys at a time. */
static void keys_make(const redis_kind *kind, size_t n) {
  const redis_take take = {{kind, kind}, n, true};
  takes_run(&take, kind->keys / n);
}

/* Writes the first `count` logs with one entry less than they will have. */
static void logs_fill(const redis_kind *kind, size_t count) {
  char names[FILL_MAX][KEY_LEN_MAX];
  char numbers[3][24];
  const char *argv[3 + FILL_MAX + 3];
  (void)snprintf(numbers[1], sizeof(numbers[1]), "%zu", kind->kind->entries - 1);
  (void)snprintf(numbers[2], sizeof(numbers[2]), "%lld", (long long)kind->spec->shape.period_ms);
  for (size_t at = 0; at < count;) {
    size_t n = 0;
    for (; n < FILL_MAX && at < count; n++, at++) {
      key_make(kind, names[n], at);
      argv[3 + n] = names[n];
    }
    (void)snprintf(numbers[0], sizeof(numbers[0]), "%zu", n);
    argv[0] = "EVALSHA";
    argv[1] = kind->world->fill_sha;
    argv[2] = numbers[0];
    argv[3 + n] = kind->shape;
    argv[4 + n] = numbers[1];
    argv[5 + n] = numbers[2];
    bench_server_run(&kind->world->server, (int)n + 6, argv);
  }
}

/* ---- Time ---- */

typedef struct redis_row {
  redis_take take;
  char name[40];
} redis_row;

static double row_run(void *user) {
  const redis_row *row = user;
  const redis_take *take = &row->take;
  const redis_kind *kind = take->kinds[0];
  bool log = kind->kind->entries > 1;
  size_t count = kind->world->takes;
  if (log && count > kind->keys / take->n)
    count = kind->keys / take->n;
  if (log && take->allowed)
    logs_fill(kind, count * take->n);
  double before_us = bench_server_cpu_us(&kind->world->server);
  takes_run(take, count);
  return (bench_server_cpu_us(&kind->world->server) - before_us) / (double)count;
}

/* What is often asked for together, by turns. Neither is a log. */
static const struct {
  const char *name;
  size_t kinds[2]; /* of bench_kinds */
} mixes[MIXES] = {{"token and fixed", {0, 2}}, {"token and sliding", {0, 3}}};

static void times_run(const redis_kind *kinds, const char *title, int64_t rounds, bool allowed) {
  redis_row rows[BENCH_KINDS + MIXES][LENGTHS];
  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = title;
  table->unit = "us";
  table->rounds = (size_t)rounds;
  for (size_t i = 0; i < BENCH_KINDS + MIXES; i++) {
    bool mixed = i >= BENCH_KINDS;
    const char *name = mixed ? mixes[i - BENCH_KINDS].name : bench_kinds[i].name;
    const redis_kind *first = mixed ? &kinds[mixes[i - BENCH_KINDS].kinds[0]] : &kinds[i];
    const redis_kind *second = mixed ? &kinds[mixes[i - BENCH_KINDS].kinds[1]] : &kinds[i];
    for (size_t j = mixed ? 1 : 0; j < LENGTHS; j++) {
      redis_row *row = &rows[i][j];
      *row = (redis_row){.take = {{first, second}, lengths[j], allowed}};
      (void)snprintf(row->name, sizeof(row->name), "%s, %zu", name, lengths[j]);
      /* Beside one of the kind; a mix beside one token bucket. */
      bench_table_add(table, row->name, row_run, row)->base[0] = j > 0 ? rows[mixed ? 0 : i][0].name : NULL;
    }
  }
  bench_table_run(table);
  free(table);
}

/* ---- Memory ---- */

/* What the server keeps for a key when all were made in takes of n; all are there afterwards. */
static double bytes_per_key(const redis_kind *kind, size_t n) {
  const char *flush[] = {"FLUSHALL", "SYNC"};
  bench_server_run(&kind->world->server, 2, flush);
  double before = bench_server_memory(&kind->world->server);
  if (kind->kind->entries > 1)
    logs_fill(kind, kind->keys);
  keys_make(kind, n);
  return (bench_server_memory(&kind->world->server) - before) / (double)kind->keys;
}

static void bytes_run(const redis_kind *kinds) {
  char name[KEY_LEN_MAX];
  (void)printf("\nredis, used_memory a key, with its name, its expiry and the tables in it, made in takes of\n  %-40s",
               "");
  for (size_t j = 0; j < LENGTHS; j++)
    (void)printf(" %9zu", lengths[j]);
  (void)printf("\n");
  for (size_t i = 0; i < BENCH_KINDS; i++) {
    (void)printf("  %-40s", bench_kinds[i].name);
    for (size_t j = 0; j < LENGTHS; j++)
      (void)printf(" %9.1f", bytes_per_key(&kinds[i], lengths[j]));
    key_make(&kinds[i], name, 0);
    (void)printf(" of %zu keys of %zu bytes\n", kinds[i].keys, strlen(name));
  }
}

void bench_algorithms_redis(const bench_redis_options *options) {
  redis_world world = {.takes = (size_t)options->takes};
  redis_kind kinds[BENCH_KINDS];
  bench_server_start(&world.server);
  /* Beside the server, not in its place. */
  bench_pin(1);
  bench_server_load(&world.server, spile__take_lua, world.take_sha);
  bench_server_load(&world.server, fill_lua, world.fill_sha);
  for (size_t i = 0; i < BENCH_KINDS; i++)
    kind_init(&kinds[i], &world, &bench_kinds[i], options);
  bytes_run(kinds);
  for (size_t i = 0; i < BENCH_KINDS; i++) {
    if (bench_kinds[i].entries > 1)
      logs_fill(&kinds[i], kinds[i].keys);
    keys_make(&kinds[i], 1);
  }
  times_run(kinds, "redis, the server's processor time of a take of n keys, allowed", options->rounds, true);
  times_run(kinds, "redis, the server's processor time of a take of n keys, denied", options->rounds, false);
  for (size_t i = 0; i < BENCH_KINDS; i++)
    spile_limit_unref(kinds[i].limit);
  bench_server_stop(&world.server);
}
