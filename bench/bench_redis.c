/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis store beside what any limiter on Redis can do at best and what many do: the round trip of a PING, the call
 * of a script that does nothing, and the token bucket that is found in many articles, which keeps floats in a hash and
 * writes on every call.
 *
 * What a take costs the server is what limits a fleet, and is measured as the processor time of the server's main
 * thread over many commands that are sent together; there the library's own script runs without the library's client.
 * What a take costs its caller is the wait for one answer, and there the whole library runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_server.h"
#include "take_lua.h"

#define CAPACITY 1000000
#define BUCKETS_MAX 15
#define WORDS_MAX (3 + BUCKETS_MAX * 5)
#define KEY_LEN_MAX 64

static const char *const about =
    "its own redis-server on a unix socket and a processor of its own, no persistence; uniform keys, none full\n"
    "1: median us of a call that waits for its answer. 2: us of the server's main thread per bucket, by INFO cpu\n"
    "seed: TIME, HMGET, HSET, PEXPIRE in floats. N: units a millisecond; N = 1 is every 1/s, 10/s, 100/m, 1000/d";

static int64_t keys_option = 100000;
static int64_t rounds_option = 11;
static int64_t ops_option = 500;
static int64_t depth_option = 64;
static int64_t batches_option = 60;

/* The bucket as it is usually written for Redis. */
static const char seed_lua[] = "local time = redis.call('TIME')\n"
                               "local now = time[1] + time[2] / 1000000\n"
                               "local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])\n"
                               "local state = redis.call('HMGET', KEYS[1], 'tokens', 'ts')\n"
                               "local tokens = tonumber(state[1]) or capacity\n"
                               "local ts = tonumber(state[2]) or now\n"
                               "tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)\n"
                               "local allowed, retry = 0, 0\n"
                               "if tokens >= cost then\n"
                               "  allowed = 1\n"
                               "  tokens = tokens - cost\n"
                               "else\n"
                               "  retry = math.ceil((cost - tokens) / rate * 1000)\n"
                               "end\n"
                               "redis.call('HSET', KEYS[1], 'tokens', tokens, 'ts', now)\n"
                               "redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 2000))\n"
                               "return {allowed, math.floor(tokens), retry}\n";

/* A limit as text, as the script sees it, and what the key's name ends in. */
typedef struct redis_limit {
  const char *text;
  const char *name;
  const char *shape;
  const char *units; /* N */
  int64_t period_ms; /* P */
} redis_limit;

static const redis_limit limit_one = {"1/s,capacity=1000000,name=one", "one", "1000000:1:1000:", "1", 1000};
static const redis_limit limit_three = {"3/100ms,capacity=1000000,name=three", "three", "1000000:3:100:", "3", 100};

typedef struct redis_world {
  bench_server server;
  spile_limiter *limiter;
  spile_limit *one;
  spile_limit *three;
  char take_sha[BENCH_SHA_LEN + 1];
  char seed_sha[BENCH_SHA_LEN + 1];
  char noop_sha[BENCH_SHA_LEN + 1];
  uint64_t random;
} redis_world;

static size_t key_any(redis_world *world) {
  return (size_t)(bench_random(&world->random) % (uint64_t)keys_option);
}

/* ---- Commands ---- */

/* A command in the making; what its words point to lives as long as it. */
typedef struct redis_command {
  int argc;
  const char *argv[WORDS_MAX];
  char keys[BUCKETS_MAX][KEY_LEN_MAX];
  char numbers[2][24];
} redis_command;

static void command_word(redis_command *command, const char *word) {
  command->argv[command->argc++] = word;
}

static void command_send(redis_world *world, const redis_command *command) {
  redisContext *connection = world->server.connection;
  const char **argv = (const char **)(uintptr_t)command->argv;
  if (redisAppendCommandArgv(connection, command->argc, argv, NULL) != REDIS_OK)
    bench_fatal("redis-server: %s", connection->errstr);
}

/* The take of `cost` tokens from n buckets, in the words of the store. */
static void command_take(redis_command *command, const redis_world *world, const redis_limit *limit,
                         const size_t *numbers, size_t n, int64_t cost) {
  static const char *const counts[] = {"0", "1", "2",  "3",  "4",  "5",  "6",  "7",
                                       "8", "9", "10", "11", "12", "13", "14", "15"};
  command->argc = 0;
  command_word(command, "EVALSHA");
  command_word(command, world->take_sha);
  command_word(command, counts[n]);
  for (size_t i = 0; i < n; i++) {
    char key[BENCH_KEY_LEN];
    bench_key_make(key, numbers[i]);
    (void)snprintf(command->keys[i], KEY_LEN_MAX, "rl:{%.*s}:%s", BENCH_KEY_LEN, key, limit->name);
    command_word(command, command->keys[i]);
  }
  (void)snprintf(command->numbers[0], sizeof(command->numbers[0]), "%lld", (long long)(cost * limit->period_ms));
  (void)snprintf(command->numbers[1], sizeof(command->numbers[1]), "%lld",
                 (long long)((CAPACITY - cost) * limit->period_ms));
  for (size_t i = 0; i < n; i++) {
    command_word(command, limit->shape);
    command_word(command, command->numbers[0]);
    command_word(command, command->numbers[1]);
    command_word(command, limit->units);
  }
}

static void command_seed(redis_command *command, const redis_world *world, size_t number, const char *capacity,
                         const char *rate, const char *cost) {
  char key[BENCH_KEY_LEN];
  bench_key_make(key, number);
  (void)snprintf(command->keys[0], KEY_LEN_MAX, "rl:{%.*s}:seed", BENCH_KEY_LEN, key);
  command->argc = 0;
  command_word(command, "EVALSHA");
  command_word(command, world->seed_sha);
  command_word(command, "1");
  command_word(command, command->keys[0]);
  command_word(command, capacity);
  command_word(command, rate);
  command_word(command, cost);
}

/* ---- One call at a time ---- */

typedef struct redis_job {
  redis_world *world;
  /* Does it once. @return how long it took, in ns */
  int64_t (*call)(const struct redis_job *job);
  const spile_limit *limit;
  int64_t cost;
  int expected;
} redis_job;

static int64_t call_ping(const redis_job *job) {
  const char *words[] = {"PING"};
  int64_t start_ns = bench_now_ns();
  bench_server_run(&job->world->server, 1, words);
  return bench_now_ns() - start_ns;
}

static int64_t call_seed(const redis_job *job) {
  redis_command command;
  command_seed(&command, job->world, key_any(job->world), "1000000", "1", "1");
  int64_t start_ns = bench_now_ns();
  bench_server_run(&job->world->server, command.argc, command.argv);
  return bench_now_ns() - start_ns;
}

static int64_t call_script(const redis_job *job) {
  redis_command command;
  size_t number = key_any(job->world);
  command_take(&command, job->world, &limit_one, &number, 1, 1);
  int64_t start_ns = bench_now_ns();
  bench_server_run(&job->world->server, command.argc, command.argv);
  return bench_now_ns() - start_ns;
}

static int64_t call_take(const redis_job *job) {
  char key[BENCH_KEY_LEN];
  spile_decision decision;
  bench_key_make(key, key_any(job->world));
  int64_t start_ns = bench_now_ns();
  int result = spile_take(job->world->limiter, job->limit, key, sizeof(key), job->cost, &decision);
  int64_t took_ns = bench_now_ns() - start_ns;
  /* On a busy machine an answer may come after the deadline; that call is not one to measure. */
  if (result > 0 && result != job->expected)
    bench_fatal("a take was %s", spile_outcome_name(result));
  return result == job->expected ? took_ns : INT64_MAX;
}

static double job_run(void *user) {
  const redis_job *job = user;
  double *took_us = bench_allocate((size_t)ops_option, sizeof(*took_us));
  for (size_t i = 0; i < (size_t)ops_option; i++)
    took_us[i] = (double)job->call(job) / 1000;
  double median = bench_quantile(took_us, (size_t)ops_option, 0.5);
  free(took_us);
  return median;
}

static void waits_run(redis_world *world) {
  redis_job jobs[] = {
      {world, call_ping, NULL, 0, 0},
      {world, call_take, world->one, 1, SPILE_ALLOWED},
      {world, call_take, world->one, CAPACITY, SPILE_DENIED},
      {world, call_take, world->three, 1, SPILE_ALLOWED},
      {world, call_take, world->three, CAPACITY, SPILE_DENIED},
      {world, call_script, NULL, 0, 0},
      {world, call_seed, NULL, 0, 0},
  };
  static const char *const names[] = {
      "PING (hiredis)",           "spile_take allowed, N = 1",
      "spile_take denied, N = 1", "spile_take allowed, N = 3",
      "spile_take denied, N = 3", "its script alone, allowed, N = 1",
      "seed (hiredis)",
  };
  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = "1. one call at a time, unix socket";
  table->unit = "us";
  table->rounds = (size_t)rounds_option;
  for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
    bench_row *row = bench_table_add(table, names[i], job_run, &jobs[i]);
    row->base[0] = i > 0 ? names[0] : NULL;
    row->aim_ratio = jobs[i].limit != NULL ? 1.35 : 0;
  }
  bench_table_run(table);
  free(table);
}

/* ---- The server's time ---- */

typedef struct redis_load {
  redis_world *world;
  const redis_limit *limit; /* NULL: not a take */
  const char *other;        /* then: "ping", "noop" or "seed" */
  size_t buckets;
  int64_t cost;
  bool hot; /* always the same key */
} redis_load;

static void load_send(const redis_load *load) {
  redis_world *world = load->world;
  redis_command command = {.argc = 0};
  if (load->limit != NULL) {
    /* Neighbours, so that no bucket is named twice. */
    size_t numbers[BUCKETS_MAX];
    size_t first = load->hot ? 0 : key_any(world);
    for (size_t i = 0; i < load->buckets; i++)
      numbers[i] = (first + i) % (size_t)keys_option;
    command_take(&command, world, load->limit, numbers, load->buckets, load->cost);
  } else if (strcmp(load->other, "seed") == 0) {
    command_seed(&command, world, key_any(world), "1000000", "1", "1");
  } else if (strcmp(load->other, "noop") == 0) {
    command_word(&command, "EVALSHA");
    command_word(&command, world->noop_sha);
    command_word(&command, "0");
  } else {
    command_word(&command, "PING");
  }
  command_send(world, &command);
}

/* Whether the debt that the script found is one that leads to the answer which is measured. */
static bool debt_is_meant(const redis_load *load, const redisReply *reply) {
  int64_t room = (CAPACITY - load->cost) * load->limit->period_ms;
  return reply->type == REDIS_REPLY_INTEGER && reply->integer > 0 && (load->cost == 1) == (reply->integer <= room);
}

static void load_check(const redis_load *load, const redisReply *reply) {
  if (load->limit == NULL)
    return;
  bool meant = load->buckets == 1 ? debt_is_meant(load, reply) : reply->elements == load->buckets;
  for (size_t i = 0; i < reply->elements && meant; i++)
    meant = debt_is_meant(load, reply->element[i]);
  if (!meant)
    bench_fatal("the script did not answer as it should");
}

static double load_run(void *user) {
  const redis_load *load = user;
  bench_server *server = &load->world->server;
  double before_us = bench_server_cpu_us(server);
  for (int64_t batch = 0; batch < batches_option; batch++) {
    for (int64_t i = 0; i < depth_option; i++)
      load_send(load);
    for (int64_t i = 0; i < depth_option; i++) {
      redisReply *reply = bench_server_reply(server);
      load_check(load, reply);
      freeReplyObject(reply);
    }
  }
  return (bench_server_cpu_us(server) - before_us) / (double)(batches_option * depth_option) / (double)load->buckets;
}

static void loads_run(redis_world *world) {
  redis_load loads[] = {
      {world, NULL, "ping", 1, 0, false},
      {world, NULL, "noop", 1, 0, false},
      {world, NULL, "seed", 1, 0, false},
      {world, &limit_one, NULL, 1, 1, false},
      {world, &limit_one, NULL, 1, CAPACITY, false},
      {world, &limit_one, NULL, 1, CAPACITY, true},
      {world, &limit_three, NULL, 1, 1, false},
      {world, &limit_three, NULL, 1, CAPACITY, false},
      {world, &limit_three, NULL, 1, CAPACITY, true},
      {world, &limit_one, NULL, BUCKETS_MAX, 1, false},
      {world, &limit_one, NULL, BUCKETS_MAX, CAPACITY, false},
  };
  static const struct {
    const char *name;
    double aim;
  } rows[] = {
      {"PING", 0},
      {"a script that does nothing", 0},
      {"seed", 0},
      {"take allowed, N = 1", 0.62},
      {"take denied, N = 1", 0},
      {"take denied, N = 1, one hot key", 0.40},
      {"take allowed, N = 3", 0.75},
      {"take denied, N = 3", 0},
      {"take denied, N = 3, one hot key", 0.40},
      {"take_all of 15 allowed, N = 1", 0.45},
      {"take_all of 15 denied, N = 1", 0},
  };
  char title[96];
  (void)snprintf(title, sizeof(title), "2. the server's processor time per bucket, %lld commands sent together",
                 (long long)depth_option);
  bench_table *table = bench_allocate(1, sizeof(*table));
  table->title = title;
  table->unit = "us";
  table->rounds = (size_t)rounds_option;
  for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
    bench_row *row = bench_table_add(table, rows[i].name, load_run, &loads[i]);
    row->base[0] = i != 2 ? "seed" : NULL;
    row->aim_ratio = rows[i].aim;
  }
  bench_table_run(table);
  free(table);
}

/* ---- Memory ---- */

/* Sends one command for each key and reads the answers. */
static void each_key(redis_world *world, void (*make)(redis_command *, redis_world *, size_t)) {
  for (size_t i = 0; i < (size_t)keys_option;) {
    size_t sent = 0;
    for (; sent < (size_t)depth_option && i < (size_t)keys_option; sent++, i++) {
      redis_command command;
      make(&command, world, i);
      command_send(world, &command);
    }
    for (; sent > 0; sent--)
      freeReplyObject(bench_server_reply(&world->server));
  }
}

/* Half full, so that there is debt for days and there are tokens for any run. */
static void make_one(redis_command *command, redis_world *world, size_t number) {
  command_take(command, world, &limit_one, &number, 1, CAPACITY / 2);
}

static void make_three(redis_command *command, redis_world *world, size_t number) {
  command_take(command, world, &limit_three, &number, 1, CAPACITY / 2);
}

static void make_seed(redis_command *command, redis_world *world, size_t number) {
  command_seed(command, world, number, "1000000", "1", "500000");
}

/* Half of a bucket of a usual size, under a key of 23 bytes. */
static void make_usual(redis_command *command, const redis_world *world, size_t number, const char *shape,
                       const char *cost, const char *room, const char *units) {
  command->argc = 0;
  (void)snprintf(command->keys[0], KEY_LEN_MAX, "rl:{%010zu}:default", number % 10000000000);
  const char *const words[] = {"EVALSHA", world->take_sha, "1", command->keys[0], shape, cost, room, units};
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
    command_word(command, words[i]);
}

static void make_usual_one(redis_command *command, redis_world *world, size_t number) {
  make_usual(command, world, number, "60:1:60000:", "1800000", "1800000", "1");
}

static void make_usual_seven(redis_command *command, redis_world *world, size_t number) {
  make_usual(command, world, number, "60:7:60000:", "1800000", "1800000", "7");
}

static void make_usual_seed(redis_command *command, redis_world *world, size_t number) {
  command_seed(command, world, number, "60", "0.0166", "30");
  (void)snprintf(command->keys[0], KEY_LEN_MAX, "rl:{%010zu}:default", number % 10000000000);
}

static double bytes_per_key(redis_world *world, void (*make)(redis_command *, redis_world *, size_t)) {
  const char *flush[] = {"FLUSHALL"};
  bench_server_run(&world->server, 1, flush);
  double before = bench_server_memory(&world->server);
  each_key(world, make);
  return (bench_server_memory(&world->server) - before) / (double)keys_option;
}

static void memory_run(redis_world *world) {
  double one = bytes_per_key(world, make_usual_one);
  double seven = bytes_per_key(world, make_usual_seven);
  double seed = bytes_per_key(world, make_usual_seed);
  (void)printf("\n3. used_memory per key of 23 bytes, its expiry and the tables in it\n");
  (void)printf("  value 60:1:60000:   %6.1f bytes, %.2f x seed; aim 164 bytes: %s\n", one, one / seed,
               one <= 164 ? "met" : "missed");
  (void)printf("  value 60:7:60000:R  %6.1f bytes, %.2f x seed; aim 164 bytes: %s\n", seven, seven / seed,
               seven <= 164 ? "met" : "missed");
  (void)printf("  seed                %6.1f bytes\n", seed);
}

/* ---- The program ---- */

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"keys", &keys_option, BUCKETS_MAX, 5000000, "buckets of each limit"},
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "rounds that count"},
      {"ops", &ops_option, 1, 1000000, "calls in each sample of table 1"},
      {"depth", &depth_option, 1, 10000, "commands sent together in table 2"},
      {"batches", &batches_option, 1, 1000000, "how often they are, in each sample of table 2"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  redis_world world = {.random = 1};
  bench_server_start(&world.server);
  /* Beside the server, not in its place: else the scheduler's choice is what is measured. */
  bench_pin(1);
  bench_server_load(&world.server, spile__take_lua, world.take_sha);
  bench_server_load(&world.server, seed_lua, world.seed_sha);
  bench_server_load(&world.server, "return 1", world.noop_sha);
  world.limiter = bench_open(world.server.uri, NULL);
  world.one = bench_limit(limit_one.text);
  world.three = bench_limit(limit_three.text);
  each_key(&world, make_one);
  each_key(&world, make_three);
  each_key(&world, make_seed);
  waits_run(&world);
  loads_run(&world);
  memory_run(&world);
  spile_limit_unref(world.one);
  spile_limit_unref(world.three);
  spile_close(world.limiter);
  bench_server_stop(&world.server);
  return 0;
}
