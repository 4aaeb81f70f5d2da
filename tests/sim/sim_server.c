/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server around its script: a clock, commands and replies as bytes, and the ways to lose all of it.
 */
#include "sim_server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/sha1.h"
#include "core/limit.h"
#include "sim_oracles.h"
#include "take_lua.h"

#define ARGS_MAX (3 + 5 * SIM_ITEMS_MAX)
#define TEN_YEARS_MS INT64_C(315360000000)

/* ---- The clock ---- */

int64_t sim_server_now_ms(const sim_server *server) {
  __int128 passed_us = server->world->now_us - server->since_us;
  return (server->clock_us + (int64_t)(passed_us * (1000000 + server->drift_ppm) / 1000000)) / 1000;
}

int64_t sim_server_reaches_us(const sim_server *server, int64_t clock_ms) {
  __int128 ahead_us = (__int128)clock_ms * 1000 - server->clock_us;
  __int128 speed = 1000000 + server->drift_ppm;
  if (ahead_us <= 0)
    return 0;
  return server->since_us + (int64_t)((ahead_us * 1000000 + speed - 1) / speed);
}

static void clock_set(sim_server *server, int64_t step_ms, int64_t drift_ppm) {
  __int128 passed_us = server->world->now_us - server->since_us;
  server->clock_us += (int64_t)(passed_us * (1000000 + server->drift_ppm) / 1000000) + step_ms * 1000;
  server->since_us = server->world->now_us;
  server->drift_ppm = drift_ppm;
}

/* ---- Commands ---- */

typedef struct sim_command {
  size_t argc;
  const char *argv[ARGS_MAX];
  size_t argv_len[ARGS_MAX];
} sim_command;

static bool command_is(const sim_command *command, const char *word) {
  return command->argv_len[0] == strlen(word) && memcmp(command->argv[0], word, command->argv_len[0]) == 0;
}

static void reply(sim_server *server, sim_conn *conn, const char *text, sim_call *call, bool answer) {
  sim_world_reply(server->world, conn, text, strlen(text), call, answer);
}

/* A decimal number up to what is not a digit. */
static int64_t number_parse(const char **at) {
  int64_t number = 0;
  while (**at >= '0' && **at <= '9')
    number = number * 10 + (*(*at)++ - '0');
  return number;
}

static int64_t argument_number(const sim_command *command, size_t i) {
  const char *at = command->argv[i];
  return number_parse(&at);
}

/* The arguments, as the script has them; what it refuses the store never sends, so that ends the run. */
static void items_parse(sim_server *server, const sim_command *command, sim_script_item *items, size_t n) {
  for (size_t i = 0; i < n; i++) {
    size_t at = 3 + n + 4 * i;
    const char *shape = command->argv[at];
    int64_t numbers[4] = {0};
    for (size_t j = 0; j < 4 && shape < command->argv[at] + command->argv_len[at]; j++, shape++)
      numbers[j] = number_parse(&shape);
    int64_t cost = argument_number(command, at + 1);
    int64_t room = argument_number(command, at + 2);
    items[i].shape = (spile_shape){numbers[0], numbers[1], numbers[2], numbers[3]};
    bool good = spile__shape_valid(&items[i].shape) && cost % numbers[2] == 0 &&
                cost + room == numbers[0] * numbers[2] && argument_number(command, at + 3) == numbers[1];
    if (!good)
      sim_oracles_fail(server->world->oracles, "the script refuses its arguments");
    items[i].cost = good ? cost / numbers[2] : 0;
    if (!good)
      items[i].shape = (spile_shape){.capacity = 1, .refill = 1, .period_ms = 1};
    items[i].bucket = sim_bucket_find(server, command->argv[3 + i], command->argv_len[3 + i]);
  }
}

static const char *error_draw(const sim_server *server) {
  static const char *const errors[] = {
      "-READONLY You can't write against a read only replica.\r\n",
      "-LOADING Redis is loading the dataset in memory\r\n",
      "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
      "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
      "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
      "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
      "-CLUSTERDOWN The cluster is down\r\n",
      "-MOVED 3999 127.0.0.1:6381\r\n",
      "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
      "-NOREPLICAS Not enough good replicas to write.\r\n",
      "-NOAUTH Authentication required.\r\n",
      "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
      "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
      "-FOREIGN the value is not a bucket\r\n",
      "-VERSION the bucket was written in a later format\r\n",
      "-ERR something else \x1b[31m went wrong\r\n",
      "-ERR Error running script (call to f_0): @user_script:1: @user_script: 1: -READONLY You can't write\r\n",
      "-ERR unknown command 'EVALSHA'\r\n",
      "-E\r\n",
      "-\r\n",
  };
  return errors[sim_below(server->random, sizeof(errors) / sizeof(errors[0]))];
}

static void readings_reply(sim_server *server, sim_conn *conn, const sim_script_item *items, size_t n, sim_call *call) {
  char text[32 * (SIM_ITEMS_MAX + 1)];
  char *at = text;
  if (n > 1)
    at += sprintf(at, "*%zu\r\n", n);
  for (size_t i = 0; i < n; i++) {
    char digits[20];
    size_t len = 0;
    for (int64_t left = items[i].reading.values[0]; left > 0 || len == 0; left /= 10)
      digits[len++] = (char)('0' + left % 10);
    *at++ = ':';
    while (len > 0)
      *at++ = digits[--len];
    *at++ = '\r';
    *at++ = '\n';
  }
  sim_world_reply(server->world, conn, text, (size_t)(at - text), call, true);
}

/* A take under other numbers begins a new account. */
static void limits_note(sim_server *server, const sim_call *call) {
  for (size_t i = 0; i < call->n && call->verb == SIM_TAKE; i++) {
    model_limit *limit = &server->limits[call->items[i].bucket];
    if (memcmp(limit, &call->items[i].limit, sizeof(*limit)) == 0)
      continue;
    *limit = call->items[i].limit;
    server->epoch++;
    sim_meter_reset(server->world->oracles, call->items[i].bucket);
  }
}

/* From here on the call is one that may have been run. */
static void call_served(sim_server *server, sim_call *call, bool charged) {
  server->takes++;
  bool oom = server->oom_until_us > server->world->now_us;
  int64_t now_ms = sim_server_now_ms(server);
  limits_note(server, call);
  call->served++;
  call->charged = charged;
  call->served_ms = now_ms;
  call->epoch = server->epoch;
  if (charged && call->told_uncharged)
    sim_oracles_fail(server->world->oracles, "call %llu was told that nothing was charged, and is charged now",
                     (unsigned long long)call->number);
  if (call->served > 1 && call->lied)
    call->imagined = false; /* a second copy of an older NOSCRIPT had it sent again; it may have run once more */
  else if (call->served > 1 && charged)
    sim_oracles_fail(server->world->oracles, "call %llu was run twice", (unsigned long long)call->number);
  sim_worlds_imagine(server->world->oracles, call, now_ms, oom);
}

static void evalsha(sim_server *server, sim_conn *conn, const sim_command *command, sim_call *call) {
  if (!server->knows_script || memcmp(command->argv[1], server->script_sha, 40) != 0) {
    reply(server, conn, "-NOSCRIPT No matching script. Please use EVAL.\r\n", call, true);
    return;
  }
  sim_script_item items[SIM_ITEMS_MAX];
  size_t n = (size_t)argument_number(command, 2);
  if (n < 1 || n > SIM_ITEMS_MAX || command->argc != 3 + 5 * n || call == NULL) {
    sim_oracles_fail(server->world->oracles, "EVALSHA with %zu arguments for %zu keys", command->argc, n);
    return;
  }
  items_parse(server, command, items, n);
  bool charged = false;
  const char *error = sim_script_run(server, items, n, &charged);
  if (error != NULL) {
    reply(server, conn, error, call, true);
    return;
  }
  call_served(server, call, charged && call->verb == SIM_TAKE);
  readings_reply(server, conn, items, n, call);
}

static void unlink_run(sim_server *server, sim_conn *conn, const sim_command *command, sim_call *call) {
  if (server->readonly_until_us > server->world->now_us) {
    reply(server, conn, "-READONLY You can't write against a read only replica.\r\n", call, true);
    return;
  }
  sim_bucket *bucket = sim_bucket_find(server, command->argv[1], command->argv_len[1]);
  bool was = bucket->stored;
  bucket->stored = false;
  call_served(server, call, false);
  sim_meter_reset(server->world->oracles, call->items[0].bucket);
  server->epoch++;
  reply(server, conn, was ? ":1\r\n" : ":0\r\n", call, true);
}

static void info(sim_server *server, sim_conn *conn, sim_call *call) {
  char text[160];
  char body[120];
  int len = snprintf(body, sizeof(body), "# Server\r\nredis_version:%s\r\nredis_mode:standalone\r\n",
                     conn->too_old ? "6.2.14" : "7.0.15");
  (void)snprintf(text, sizeof(text), "$%d\r\n%s\r\n", len, body);
  reply(server, conn, text, call, false);
}

static void command_run(sim_server *server, sim_conn *conn, const sim_command *command, sim_call *call) {
  bool take = command_is(command, "EVALSHA");
  bool clear = command_is(command, "UNLINK");
  if (take || clear) {
    if (server->loading_until_us > server->world->now_us)
      reply(server, conn, "-LOADING Redis is loading the dataset in memory\r\n", call, true);
    else if (sim_swarm_draw(&server->world->swarm, server->random, SIM_MOMENT_SERVE) == SIM_ERROR_REPLY)
      reply(server, conn, error_draw(server), call, true);
    else if (take)
      evalsha(server, conn, command, call);
    else
      unlink_run(server, conn, command, call);
  } else if (command_is(command, "SCRIPT")) {
    server->knows_script = command->argc == 3 && command->argv_len[2] == sizeof(spile__take_lua) - 1 &&
                           memcmp(command->argv[2], spile__take_lua, command->argv_len[2]) == 0;
    char text[64];
    (void)snprintf(text, sizeof(text), "$40\r\n%s\r\n", server->script_sha);
    reply(server, conn, text, call, false);
  } else if (command_is(command, "INFO")) {
    info(server, conn, call);
  } else if (command_is(command, "AUTH") || command_is(command, "SELECT") || command_is(command, "CLIENT")) {
    reply(server, conn, "+OK\r\n", call, false);
  } else {
    sim_oracles_fail(server->world->oracles, "a command that the server does not know");
  }
}

/* Reads "$12\r\n" or "*3\r\n" with a number up to `most`. @return 1; 0, not all of it is there; -1, it is none */
static int header_parse(const char **at, const char *end, char type, int64_t most, int64_t *out) {
  if (*at >= end)
    return 0;
  if (**at != type)
    return -1;
  const char *line_end = memchr(*at, '\n', (size_t)(end - *at));
  if (line_end == NULL)
    return 0;
  const char *digits = *at + 1;
  *out = number_parse(&digits);
  *at = line_end + 1;
  return *out <= most && digits + 2 == *at ? 1 : -1;
}

/* @return bytes of the first whole command; 0, it is not all there; -1, it is none */
static ssize_t command_parse(const char *bytes, size_t len, sim_command *out) {
  const char *at = bytes;
  const char *end = bytes + len;
  int64_t argc;
  int found = header_parse(&at, end, '*', ARGS_MAX, &argc);
  out->argc = found > 0 ? (size_t)argc : 0;
  for (size_t i = 0; i < out->argc && found > 0; i++) {
    int64_t size;
    found = header_parse(&at, end, '$', SIM_OUT_SIZE, &size);
    if (found > 0 && end - at < size + 2)
      found = 0;
    if (found <= 0)
      break;
    out->argv[i] = at;
    out->argv_len[i] = (size_t)size;
    at += size + 2;
  }
  return found > 0 ? at - bytes : found;
}

/* The call whose byte stands at a position; what is before it is done with. */
static sim_call *mark_at(sim_wire *wire, uint64_t position) {
  size_t i = 0;
  while (i < wire->n_marks && wire->marks[i].end <= position)
    i++;
  sim_wire_forget_marks(wire, i);
  return wire->n_marks > 0 ? wire->marks[0].call : NULL;
}

void sim_server_read(sim_server *server, sim_conn *conn) {
  sim_wire *wire = &conn->out;
  while (!conn->server_closed) {
    sim_command command;
    ssize_t size = command_parse(wire->bytes + (wire->read - wire->base), (size_t)(wire->seen - wire->read), &command);
    if (size < 0)
      sim_oracles_fail(server->world->oracles, "what a client sent is no command");
    if (size <= 0)
      return;
    sim_call *call = mark_at(wire, wire->read);
    command_run(server, conn, &command, call);
    wire->read += (uint64_t)size;
  }
}

/* ---- What happens to a server ---- */

static void connections_end(sim_server *server, bool at_once) {
  static const int thens[] = {EPIPE, ECONNRESET, 0, -ECONNRESET};
  for (size_t i = 0; i < SIM_CONNS; i++) {
    sim_conn *conn = &server->world->conns[i];
    if (conn->used)
      sim_world_drop(server->world, conn, thens[at_once ? 3 : sim_below(server->random, 4)]);
  }
}

static void idle_close(sim_server *server) {
  sim_world *world = server->world;
  sim_conn *conn = &world->conns[sim_below(server->random, SIM_CONNS)];
  bool idle = conn->used && conn->open && (world->call == NULL || conn->talking != world->call->number);
  if (idle)
    sim_world_drop(world, conn, sim_once_in(server->random, 2) ? EPIPE : ECONNRESET);
}

static void restart(sim_server *server, bool keeping) {
  sim_world *world = server->world;
  connections_end(server, false);
  server->knows_script = false;
  server->down_until_us = world->now_us + (sim_once_in(server->random, 2) ? sim_below(server->random, 3000000) : 0);
  server->loading_until_us =
      server->down_until_us + (sim_once_in(server->random, 2) ? sim_below(server->random, 1000000) : 0);
  if (keeping)
    return;
  server->n_buckets = 0;
  server->epoch++;
  sim_worlds_wipe(world->oracles);
  sim_meter_reset_all(world->oracles);
  sim_server_replicate(server);
}

static void failover(sim_server *server) {
  connections_end(server, true);
  server->knows_script = false;
  memcpy(server->buckets, server->before, sizeof(server->buckets));
  server->n_buckets = server->n_before;
  server->epoch++;
  sim_worlds_restore(server->world->oracles);
  sim_meter_reset_all(server->world->oracles);
}

static void clock_step(sim_server *server, int64_t step_ms, bool within) {
  int64_t now_ms = sim_server_now_ms(server);
  bool outside = now_ms + step_ms < TEN_YEARS_MS || now_ms + step_ms > SPILE_TIME_MAX_MS - 2 * TEN_YEARS_MS;
  if (outside && !within)
    step_ms = -step_ms;
  if (step_ms < 0) {
    for (size_t i = 0; i < server->n_buckets; i++)
      sim_bucket_expire(&server->buckets[i], now_ms);
    for (size_t i = 0; i < server->n_before; i++)
      sim_bucket_expire(&server->before[i], now_ms);
    sim_worlds_forget_expired(server->world->oracles, now_ms);
  }
  clock_set(server, step_ms, server->drift_ppm);
  if (within)
    return;
  server->epoch++;
  sim_meter_reset_all(server->world->oracles);
}

void sim_server_replicate(sim_server *server) {
  memcpy(server->before, server->buckets, sizeof(server->before));
  server->n_before = server->n_buckets;
  sim_worlds_copy(server->world->oracles);
}

void sim_server_blow(sim_server *server, sim_fault blow) {
  int64_t now_us = server->world->now_us;
  switch ((int)blow) {
  case SIM_SCRIPT_FLUSH:
    server->knows_script = false;
    break;
  case SIM_RESTART_EMPTY:
    restart(server, false);
    break;
  case SIM_RESTART_KEEPING:
    restart(server, true);
    break;
  case SIM_FAILOVER:
    failover(server);
    break;
  case SIM_READONLY:
    server->readonly_until_us = now_us + sim_below(server->random, 3000000);
    break;
  case SIM_OUT_OF_MEMORY:
    server->oom_until_us = now_us + sim_below(server->random, 3000000);
    break;
  case SIM_STALL:
    server->stalled_until_us = now_us + sim_below(server->random, 200000);
    break;
  case SIM_CLOCK_WITHIN: {
    /* Never more than a second apart: what steps of more admit is another promise. */
    int64_t ahead_ms = sim_between(server->random, 0, 1000);
    clock_step(server, ahead_ms - server->ahead_ms, true);
    server->ahead_ms = ahead_ms;
    break;
  }
  case SIM_CLOCK_STEP: {
    int64_t step_ms = 1000 + sim_magnitude(server->random, TEN_YEARS_MS);
    clock_step(server, sim_once_in(server->random, 2) ? step_ms : -step_ms, false);
    break;
  }
  case SIM_CLOCK_DRIFT:
    clock_set(server, 0, sim_between(server->random, -50000, 50000));
    break;
  case SIM_IDLE_CLOSE:
    idle_close(server);
    break;
  default:
    break;
  }
}

void sim_server_heal(sim_server *server) {
  server->down_until_us = server->loading_until_us = server->readonly_until_us = server->oom_until_us =
      server->stalled_until_us = 0;
}

void sim_server_init(sim_server *server, sim_world *world, sim_random *random, sim_planted planted) {
  /* The name of the script is the same for all runs and takes long to work out. */
  static char sha[41];
  if (sha[0] == '\0')
    spile__sha1_hex(spile__take_lua, sizeof(spile__take_lua) - 1, sha);
  memset(server, 0, sizeof(*server));
  memcpy(server->script_sha, sha, sizeof(sha));
  server->random = random;
  server->world = world;
  server->planted = planted;
  server->since_us = world->now_us;
  server->clock_us = INT64_C(1700000000000000) + sim_below(random, 1000000000);
  server->expires_late = sim_once_in(random, 2);
  server->knows_script = sim_once_in(random, 2);
}
