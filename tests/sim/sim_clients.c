/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/redis.h"
#include "limiter/limiter.h"
#include "sim.h"

/* ---- The environment of the clients ---- */

static int64_t env_monotonic_ms(void *user) {
  return sim_world_now_ms(&((sim *)user)->world);
}

static bool env_random(void *user, void *bytes, size_t size) {
  sim *s = user;
  if (sim_swarm_draw(&s->world.swarm, &s->random, SIM_MOMENT_RANDOM) != SIM_NO_FAULT)
    return false;
  for (size_t i = 0; i < size; i++)
    ((unsigned char *)bytes)[i] = (unsigned char)sim_next(&s->random);
  return true;
}

static void *env_allocate(void *user, void *block, size_t size) {
  sim *s = user;
  if (size == 0) {
    s->blocks -= block != NULL;
    free(block);
    return NULL;
  }
  if (sim_swarm_draw(&s->world.swarm, &s->random, SIM_MOMENT_ALLOCATE) != SIM_NO_FAULT)
    return NULL;
  void *moved = realloc(block, size);
  s->blocks += block == NULL && moved != NULL;
  return moved;
}

/* One event is one line, and no line has a secret. */
static void env_log(void *user, spile_log_level level, const char *line) {
  (void)level;
  sim *s = user;
  for (const char *c = line; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7f)
      sim_oracles_fail(&s->oracles, "a control character in the log");
  }
  if (strstr(line, "s3cret") != NULL)
    sim_oracles_fail(&s->oracles, "the password in the log");
}

void sim_env_init(sim *s) {
  s->env = (spile_env){.monotonic_ms = env_monotonic_ms,
                       .realtime_ms = env_monotonic_ms,
                       .random = env_random,
                       .allocate = env_allocate,
                       .log = env_log,
                       .user = s,
                       .allocate_user = s,
                       .log_user = s};
}

/* ---- Limits ---- */

static void numbers_draw(sim *s, int64_t numbers[4]) {
  static const int64_t periods_ms[] = {1, 1000, 60000, 3600000, 86400000, SIM_TEN_YEARS_MS};
  sim_random *random = &s->random;
  numbers[2] = periods_ms[sim_below(random, 6)];
  switch (sim_below(random, 5)) {
  case 0: /* everyday */
    numbers[1] = 1 + sim_below(random, 100);
    numbers[0] = sim_once_in(random, 2) ? numbers[1] : 1 + sim_below(random, 100);
    break;
  case 1: /* slow, small */
    numbers[1] = 1;
    numbers[2] = 1 + sim_below(random, 100000);
    numbers[0] = 1 + sim_below(random, 6);
    break;
  case 2: /* odd */
    numbers[1] = 1 + sim_below(random, 1000);
    numbers[2] = 1 + sim_below(random, 20000);
    numbers[0] = 1 + sim_below(random, 50);
    break;
  case 3: /* more than one token a millisecond */
    numbers[1] = sim_magnitude(random, INT64_C(8998242961279));
    numbers[2] = 1 + sim_below(random, 5);
    numbers[0] = sim_magnitude(random, INT64_C(9007199254740991));
    break;
  default:
    numbers[1] = sim_magnitude(random, INT64_C(9007199254740991));
    numbers[2] = sim_magnitude(random, SIM_TEN_YEARS_MS);
    numbers[0] = sim_magnitude(random, INT64_C(9007199254740991));
    break;
  }
}

static void window_draw(sim *s, spile_algorithm algorithm, int64_t numbers[4]) {
  static const int64_t usual_ms[] = {1, 1000, 60000, 3600000, 86400000, SIM_TEN_YEARS_MS};
  sim_random *random = &s->random;
  numbers[1] = 0;
  switch (sim_below(random, 4)) {
  case 0: /* everyday */
    numbers[0] = 1 + sim_below(random, 100);
    numbers[2] = usual_ms[sim_below(random, 6)];
    break;
  case 1: /* small, odd */
    numbers[0] = 1 + sim_below(random, 6);
    numbers[2] = 1 + sim_below(random, 20000);
    break;
  case 2: /* short */
    numbers[0] = sim_magnitude(random, 1000);
    numbers[2] = 1 + sim_below(random, 5);
    break;
  default:
    numbers[0] = sim_magnitude(random, INT64_C(9007199254740991));
    numbers[2] = sim_magnitude(random, SIM_TEN_YEARS_MS);
    break;
  }
  if (algorithm == SPILE_SLIDING_LOG)
    numbers[0] = 1 + (numbers[0] - 1) % SIM_LOG_MAX;
}

static int64_t debt_draw(sim *s, int64_t capacity) {
  if (!s->mix.algorithms || sim_once_in(&s->random, 2))
    return 0;
  switch (sim_below(&s->random, 4)) {
  case 0:
    return sim_magnitude(&s->random, INT64_C(1) << 40);
  case 1:
    return 1 + sim_below(&s->random, capacity);
  default:
    return 1 + sim_below(&s->random, 6);
  }
}

static void anything_draw(sim *s, spile_algorithm algorithm, int64_t numbers[4]) {
  numbers[3] = 0;
  if (algorithm >= SPILE_FIXED_WINDOW) {
    window_draw(s, algorithm, numbers);
    return;
  }
  numbers_draw(s, numbers);
  numbers[3] = debt_draw(s, numbers[0]);
}

/* What somebody might make of a limit that is in use: a smaller or larger capacity or debt, another period. */
static void variation_draw(sim *s, const model_limit *from, int64_t numbers[4]) {
  bool window = from->algorithm >= SPILE_FIXED_WINDOW;
  numbers[0] = from->capacity;
  numbers[1] = window ? 0 : from->refill;
  numbers[2] = from->period_ms;
  numbers[3] = from->debt;
  switch (sim_below(&s->random, window ? 3 : 5)) {
  case 0:
    numbers[0] = 1 + sim_below(&s->random, from->capacity);
    break;
  case 1:
    numbers[0] += sim_magnitude(&s->random, 10);
    if (from->algorithm == SPILE_SLIDING_LOG && numbers[0] > SIM_LOG_MAX)
      numbers[0] = SIM_LOG_MAX;
    break;
  case 2:
    numbers[2] = 1 + sim_below(&s->random, 2 * from->period_ms);
    break;
  case 3:
    numbers[3] = sim_below(&s->random, from->debt + 1);
    break;
  default:
    numbers[3] += sim_magnitude(&s->random, 1000);
    break;
  }
}

/* @param from  NULL, or a limit of which this may be a variation */
static void limit_draw(sim *s, sim_limit *out, const char *name, spile_algorithm algorithm, const model_limit *from) {
  int64_t numbers[4];
  bool varies = from != NULL && s->mix.algorithms && sim_once_in(&s->random, 2);
  do {
    if (varies)
      variation_draw(s, from, numbers);
    else
      anything_draw(s, algorithm, numbers);
  } while (!model_limit_of(&out->model, algorithm, numbers[0], numbers[1], numbers[2], numbers[3]));
  out->on_store_error = (int)sim_below(&s->random, 4);
  out->timeout_ms = sim_once_in(&s->random, 4) ? sim_between(&s->random, 5, 60) : 0;
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.name = name;
  def.capacity = numbers[0];
  def.refill_tokens = numbers[1];
  def.refill_period_ms = numbers[2];
  def.algorithm = (int)algorithm;
  def.debt = numbers[3];
  def.on_store_error = out->on_store_error;
  def.timeout_ms = out->timeout_ms;
  spile_error error = {0};
  if (spile_limit_create(&out->limit, &def, &error) != SPILE_OK)
    sim_oracles_fail(&s->oracles, "a limit is refused: %s", error.message);
}

void sim_mix_draw(sim *s) {
  s->mix = (sim_mix){.algorithms = sim_once_in(&s->random, 2)};
  if (sim_once_in(&s->random, 2))
    return;
  int64_t *each[] = {&s->mix.charge, &s->mix.refund, &s->mix.up_to};
  for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++)
    *each[i] = sim_once_in(&s->random, 4) ? 0 : 200 >> sim_below(&s->random, 4);
}

/* Two limits on each key, so that a bucket has to be found by key, name and algorithm. */
void sim_targets_draw(sim *s) {
  static const struct {
    const char *bytes;
    size_t len;
  } keys[] = {{"a", 1}, {"{a}:", 4}, {"\0\xff%", 3}, {"A", 1}};
  s->n_targets = (size_t)sim_between(&s->random, 1, 6);
  spile_algorithm algorithm = SPILE_TOKEN_BUCKET;
  for (size_t i = 0; i < s->n_targets; i++) {
    sim_target *target = &s->targets[i];
    target->key_len = keys[i / 2].len;
    memcpy(target->key, keys[i / 2].bytes, target->key_len);
    target->variant = 0;
    spile_algorithm other = algorithm;
    if (s->mix.algorithms)
      algorithm = (spile_algorithm)sim_between(&s->random, SPILE_TOKEN_BUCKET, SPILE_SLIDING_LOG);
    bool by_algorithm = i % 2 == 1 && algorithm != other && sim_once_in(&s->random, 2);
    const char *name = i % 2 == 0 || by_algorithm ? "default" : "POST /b";
    limit_draw(s, &target->variants[0], name, algorithm, NULL);
    limit_draw(s, &target->variants[1], name, algorithm, &target->variants[0].model);
  }
}

/* ---- Clients ---- */

void sim_client_open(sim *s, sim_client *client) {
  spile__store_config config = {
      .address = s->address, .env = &s->env, .key_prefix = "rl", .connections = client->options.connections};
  spile_store *store = NULL;
  spile_error error = {0};
  client->limiter = NULL;
  client->takes = client->failures = client->charged = client->refunded = client->unsettled = 0;
  while (client->limiter == NULL && !s->oracles.failed) {
    int result = spile__redis_open_over(&store, &config, false, &sim_transport, &s->world, &error);
    if (result == SPILE_OK) {
      store = sim_tap_init(&client->tap, s, store);
      result = spile_open_store(&client->limiter, store, &client->options, &error);
      if (result != SPILE_OK)
        store->ops->close(store, false);
    }
    if (result != SPILE_OK && result != SPILE_ENOMEM)
      sim_oracles_fail(&s->oracles, "opening failed: %s", error.message);
    error = (spile_error){0};
  }
  /* The clock and the random numbers are no option of a limiter; its breaker uses this environment as well. */
  if (client->limiter != NULL)
    client->limiter->env = s->env;
  sim_watch_init(&client->watch, client->options.breaker_failures, client->options.breaker_wait_ms);
}

/* Every take is counted once by its outcome, and once by reason where the store did not answer. */
static void counters_judge(sim *s, const sim_client *client) {
  spile_counters counters = SPILE_COUNTERS_INIT;
  if (spile_count(client->limiter, &counters) != SPILE_OK)
    sim_oracles_fail(&s->oracles, "the counters cannot be read");
  uint64_t takes = counters.allowed + counters.denied + counters.never + counters.unavailable;
  uint64_t failures = 0;
  for (int i = 0; i < SPILE_REASONS_MAX; i++)
    failures += counters.store_errors[i];
  if (takes != client->takes || failures != client->failures)
    sim_oracles_fail(&s->oracles, "counted %" PRIu64 " takes and %" PRIu64 " failures of %" PRIu64 " and %" PRIu64,
                     takes, failures, client->takes, client->failures);
  if (counters.charged != client->charged || counters.refunded != client->refunded ||
      counters.unsettled != client->unsettled)
    sim_oracles_fail(&s->oracles, "counted %" PRIu64 " charges, %" PRIu64 " refunds and %" PRIu64 " of neither",
                     counters.charged, counters.refunded, counters.unsettled);
}

void sim_client_close(sim *s, sim_client *client) {
  if (client->limiter == NULL)
    return;
  counters_judge(s, client);
  spile_close(client->limiter);
  client->limiter = NULL;
}

void sim_clients_draw(sim *s) {
  static const char *const addresses[] = {"127.0.0.1:6379", "me:s3cret@[::1]:6379/3", "s3cret@127.0.0.1"};
  size_t address = (size_t)sim_below(&s->random, 2);
  (void)snprintf(s->address, sizeof(s->address), "%s", addresses[address]);
  s->n_clients = (size_t)sim_between(&s->random, 1, SIM_CLIENTS_MAX);
  for (size_t i = 0; i < s->n_clients; i++) {
    sim_client *client = &s->clients[i];
    client->options = (spile_options)SPILE_OPTIONS_INIT;
    client->options.timeout_ms = sim_once_in(&s->random, 2) ? 25 : sim_between(&s->random, 5, 100);
    client->options.allocate = env_allocate;
    client->options.allocate_user = s;
    client->options.log = env_log;
    client->options.log_user = s;
    client->options.breaker_failures = (int)sim_between(&s->random, 1, 6);
    client->options.breaker_wait_ms = sim_magnitude(&s->random, 1000);
    client->options.on_store_error = sim_once_in(&s->random, 4) ? (int)sim_below(&s->random, 4) : 0;
    client->options.connections = (int)sim_between(&s->random, 1, 4);
    sim_client_open(s, client);
  }
}
