/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the server makes of the bytes that it gets: commands, the arguments of the script, replies as bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/decide.h"
#include "core/limit.h"
#include "sim_oracles.h"
#include "sim_server.h"
#include "take_lua.h"

#define ARGS_MAX (3 + 5 * SIM_ITEMS_MAX)

/* ---- Commands ---- */

typedef struct sim_command {
  size_t argc;
  const char *argv[ARGS_MAX];
  size_t argv_len[ARGS_MAX];
} sim_command;

static bool argument_is(const sim_command *command, size_t i, const char *word) {
  return command->argv_len[i] == strlen(word) && memcmp(command->argv[i], word, command->argv_len[i]) == 0;
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

/* The shape at argument `at`. @return false when it is none within the bounds */
static bool shape_parse(const sim_command *command, size_t at, sim_script_item *out) {
  static const spile_algorithm all[] = {SPILE_LEAKY_BUCKET, SPILE_FIXED_WINDOW, SPILE_SLIDING_WINDOW,
                                        SPILE_SLIDING_LOG};
  const char *text = command->argv[at];
  const char *end = text + command->argv_len[at];
  spile_algorithm algorithm = SPILE_TOKEN_BUCKET;
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    if (text < end && *text == spile__algorithm_get(all[i])->mark[0])
      algorithm = all[i];
  }
  text += algorithm != SPILE_TOKEN_BUCKET;
  int64_t numbers[4] = {0};
  for (size_t i = 0; i < 4 && text < end; i++, text++)
    numbers[i] = number_parse(&text);
  out->algorithm = spile__algorithm_get(algorithm);
  out->spec.algorithm = algorithm;
  out->spec.shape = (spile_shape){numbers[0], numbers[1], numbers[2], numbers[3]};
  if (out->algorithm->window)
    out->spec.shape = (spile_shape){.capacity = numbers[0], .refill = 1, .period_ms = numbers[1]};
  return out->algorithm->shape_valid(&out->spec.shape);
}

/* The three arguments of an item that follow its shape. @return false: the script refuses them */
static bool costs_parse(const sim_command *command, size_t at, sim_script *script, size_t i) {
  sim_script_item *item = &script->more[i];
  const spile_shape *shape = &item->spec.shape;
  int64_t cost = argument_number(command, at);
  int64_t room = argument_number(command, at + 1);
  script->items[i].cost = item->wanted = cost;
  if (script->call.verb != SPILE_VERB_TAKE) {
    script->call.most = room;
    item->wanted = spile__cost_read(script->call.verb, cost);
    if (script->call.verb == SPILE_VERB_TAKE_UP_TO)
      return cost <= room && room <= shape->capacity;
    return room == 0;
  }
  const char *last = command->argv[at + 2];
  if (item->algorithm->window) {
    bool marked = *last++ == '=';
    item->wanted = number_parse(&last);
    return marked && cost + room == shape->capacity && item->wanted <= shape->capacity &&
           (cost == 0 || cost == item->wanted);
  }
  script->items[i].cost = item->wanted = cost / shape->period_ms;
  return cost % shape->period_ms == 0 && cost + room == shape->capacity * shape->period_ms &&
         number_parse(&last) == shape->refill;
}

/* The arguments, as the script has them; what it refuses the store never sends. */
static bool script_parse(sim_server *server, const sim_command *command, sim_script *script, size_t n) {
  size_t last = 3 + n + 3;
  script->call = (spile_call){.verb = argument_is(command, last, "charge")   ? SPILE_VERB_CHARGE
                                      : argument_is(command, last, "refund") ? SPILE_VERB_REFUND
                                      : argument_is(command, last, "upto")   ? SPILE_VERB_TAKE_UP_TO
                                                                             : SPILE_VERB_TAKE,
                              .items = script->items,
                              .n = n};
  for (size_t i = 0; i < n; i++) {
    sim_script_item *item = &script->more[i];
    size_t at = 3 + n + 4 * i;
    *item = (sim_script_item){.bucket = sim_bucket_find(server, command->argv[3 + i], command->argv_len[3 + i])};
    script->items[i] = (spile_item){.spec = &item->spec};
    if (!shape_parse(command, at, item) || !costs_parse(command, at + 1, script, i))
      return false;
  }
  return true;
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

static char *put_number(char *at, char type, int64_t number) {
  char digits[20];
  size_t len = 0;
  for (int64_t left = number; left > 0 || len == 0; left /= 10)
    digits[len++] = (char)('0' + left % 10);
  *at++ = type;
  while (len > 0)
    *at++ = digits[--len];
  *at++ = '\r';
  *at++ = '\n';
  return at;
}

static void readings_reply(sim_server *server, sim_conn *conn, const sim_script *script, sim_call *call) {
  char text[24 * (5 * SIM_ITEMS_MAX + 1)];
  char *at = text;
  if (script->call.n > 1)
    at = put_number(at, '*', (int64_t)script->call.n);
  for (size_t i = 0; i < script->call.n; i++) {
    size_t values = script->more[i].algorithm->values;
    if (values > 1)
      at = put_number(at, '*', (int64_t)values);
    for (size_t j = 0; j < values; j++)
      at = put_number(at, ':', script->items[i].reading.values[j]);
  }
  sim_world_reply(server->world, conn, text, (size_t)(at - text), call, true);
}

/*
 * A call under other numbers begins a new account. So does a refund that comes when nobody waits for it any more: what
 * was charged meanwhile is told to the meter later.
 */
static void meter_note(sim_server *server, const sim_call *call, int64_t now_ms) {
  sim_oracles *oracles = server->world->oracles;
  bool writes = sim_verb_takes(call->verb) || sim_verb_settles(call->verb);
  for (size_t i = 0; i < call->n && writes; i++) {
    const sim_item *item = &call->items[i];
    model_limit *limit = &server->limits[item->bucket];
    bool other = memcmp(limit, &item->limit, sizeof(*limit)) != 0;
    *limit = item->limit;
    if (other || (call->verb == SIM_REFUND && !call->running)) {
      server->epoch++;
      sim_meter_reset(oracles, item->bucket);
    }
    sim_meter_served(oracles, item, now_ms);
    if (call->verb == SIM_REFUND && call->running)
      sim_meter_refund(oracles, item, now_ms);
  }
}

/* From here on the call is one that may have been run. */
static void call_served(sim_server *server, sim_call *call, bool charged) {
  server->takes++;
  bool refuses = server->oom_until_us > server->world->now_us || server->readonly_until_us > server->world->now_us;
  int64_t now_ms = sim_server_now_ms(server);
  meter_note(server, call, now_ms);
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
  sim_worlds_imagine(server->world->oracles, call, now_ms, refuses);
}

static void evalsha(sim_server *server, sim_conn *conn, const sim_command *command, sim_call *call) {
  if (!server->knows_script || memcmp(command->argv[1], server->script_sha, 40) != 0) {
    reply(server, conn, "-NOSCRIPT No matching script. Please use EVAL.\r\n", call, true);
    return;
  }
  size_t n = (size_t)argument_number(command, 2);
  if (n < 1 || n > SIM_ITEMS_MAX || command->argc != 3 + 5 * n || call == NULL) {
    sim_oracles_fail(server->world->oracles, "EVALSHA with %zu arguments for %zu keys", command->argc, n);
    return;
  }
  sim_script script;
  if (!script_parse(server, command, &script, n)) {
    sim_oracles_fail(server->world->oracles, "the script refuses its arguments");
    return;
  }
  bool charged = false;
  const char *error = sim_script_run(server, &script, &charged);
  if (error != NULL) {
    reply(server, conn, error, call, true);
    return;
  }
  call_served(server, call, charged && call->verb != SIM_PEEK);
  readings_reply(server, conn, &script, call);
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
  bool take = argument_is(command, 0, "EVALSHA");
  bool clear = argument_is(command, 0, "UNLINK");
  if (take || clear) {
    if (server->loading_until_us > server->world->now_us)
      reply(server, conn, "-LOADING Redis is loading the dataset in memory\r\n", call, true);
    else if (sim_swarm_draw(&server->world->swarm, server->random, SIM_MOMENT_SERVE) == SIM_ERROR_REPLY)
      reply(server, conn, error_draw(server), call, true);
    else if (take)
      evalsha(server, conn, command, call);
    else
      unlink_run(server, conn, command, call);
  } else if (argument_is(command, 0, "SCRIPT")) {
    server->knows_script = command->argc == 3 && command->argv_len[2] == sizeof(spile__take_lua) - 1 &&
                           memcmp(command->argv[2], spile__take_lua, command->argv_len[2]) == 0;
    char text[64];
    (void)snprintf(text, sizeof(text), "$40\r\n%s\r\n", server->script_sha);
    reply(server, conn, text, call, false);
  } else if (argument_is(command, 0, "INFO")) {
    info(server, conn, call);
  } else if (argument_is(command, 0, "AUTH") || argument_is(command, 0, "SELECT") ||
             argument_is(command, 0, "CLIENT")) {
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
