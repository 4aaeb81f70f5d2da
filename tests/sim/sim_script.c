/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lua/take.lua, by way of the core: that the two decide alike is what tests/test_differential.c shows on a real server.
 * What is added here is what surrounds a script there: expiry, and writes that a replica or a server without memory
 * refuses. Faults are planted where somebody could have made them.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/bucket.h"
#include "core/decide.h"
#include "core/limit.h"
#include "sim_server.h"

/* ---- Buckets ---- */

sim_bucket *sim_bucket_find(sim_server *server, const char *name, size_t len) {
  for (size_t i = 0; i < server->n_buckets; i++) {
    sim_bucket *bucket = &server->buckets[i];
    if (bucket->name_len == len && memcmp(bucket->name, name, len) == 0)
      return bucket;
  }
  if (server->n_buckets == SIM_BUCKETS || len > sizeof(server->buckets[0].name))
    abort();
  sim_bucket *bucket = &server->buckets[server->n_buckets++];
  bucket->stored = false;
  bucket->name_len = len;
  memcpy(bucket->name, name, len);
  return bucket;
}

/* The numbers that a state has here. */
static size_t state_size(const spile__state *state) {
  return offsetof(spile__state, numbers) + (state->n > 3 ? state->n : 3) * sizeof(state->numbers[0]);
}

void sim_buckets_copy(sim_bucket *to, const sim_bucket *from, size_t n) {
  for (size_t i = 0; i < n; i++)
    memcpy(&to[i], &from[i], offsetof(sim_bucket, state) + state_size(&from[i].state));
}

void sim_bucket_expire(sim_bucket *bucket, int64_t now_ms) {
  if (bucket->stored && bucket->slack_ms != SIM_KEEPS_FOREVER && now_ms > bucket->expires_ms + bucket->slack_ms)
    bucket->stored = false;
}

/* Redis gets to an expired key when it is asked for it, or when it comes by. */
static int64_t slack_draw(const sim_server *server) {
  if (!server->expires_late)
    return 0;
  int64_t kind = sim_below(server->random, 3);
  return kind == 0 ? 0 : kind == 1 ? sim_magnitude(server->random, 100000) : SIM_KEEPS_FOREVER;
}

/* ---- Reading ---- */

/* The bucket of an item as a planted fault reads it. @return the state to read */
static const spile__state *item_misread(const sim_server *server, const sim_script_item *item, int64_t cost,
                                        int64_t now_ms) {
  sim_bucket *bucket = item->bucket;
  spile__state *state = &bucket->state;
  bool window = item->algorithm->window;
  bool other = !spile__shape_equal(&state->shape, &item->spec.shape);
  switch ((int)server->planted) {
  case SIM_PLANT_FULL_AT_GOES_BACK:
    if (!window && cost > 0 && now_ms < bucket->written_ms) {
      state->bucket.full_at_ms -= bucket->written_ms - now_ms;
      bucket->written_ms = now_ms;
    }
    return state;
  case SIM_PLANT_CHANGE_REFILLS:
    return !window && other ? NULL : state;
  case SIM_PLANT_CHANGE_FORGETS_A_WINDOW:
    return window && other ? NULL : state;
  case SIM_PLANT_WINDOW_GOES_BACK:
    return item->spec.algorithm == SPILE_FIXED_WINDOW && state->window.start_ms > now_ms ? NULL : state;
  case SIM_PLANT_LOG_FORGETS_EARLY:
    if (item->algorithm->log && cost > 0 &&
        state->log[0] >> SPILE__LOG_TOKENS_BITS == now_ms + 1 - state->shape.period_ms)
      memmove(state->log, state->log + 1, --state->n * sizeof(state->log[0]));
    return state;
  default:
    return state;
  }
}

static void item_read(const sim_server *server, sim_script *script, size_t i, int64_t now_ms) {
  sim_script_item *item = &script->more[i];
  spile_reading *reading = &script->items[i].reading;
  const spile_shape *shape = &item->spec.shape;
  sim_bucket_expire(item->bucket, now_ms);
  item->old = item->bucket->stored ? item_misread(server, item, script->items[i].cost, now_ms) : NULL;
  item->rewrite = item->algorithm->read(shape, item->old, now_ms, item->wanted, reading);
  if (server->planted == SIM_PLANT_NO_CUT && item->rewrite && !item->algorithm->window &&
      spile__shape_equal(&item->old->shape, shape)) {
    reading->values[0] = shape->capacity * shape->period_ms + 1000 * shape->refill;
    item->rewrite = false;
  }
  if (server->planted == SIM_PLANT_WINDOW_BEFORE_FORGOTTEN && item->spec.algorithm == SPILE_SLIDING_WINDOW)
    reading->values[0] = 0;
}

static bool item_fits(const sim_server *server, const sim_script *script, size_t i) {
  const sim_script_item *item = &script->more[i];
  const spile_shape *shape = &item->spec.shape;
  const spile_reading *reading = &script->items[i].reading;
  int64_t cost = script->items[i].cost;
  if (server->planted == SIM_PLANT_GREATER_FOR_GREATER_OR_EQUAL && !item->algorithm->window && cost > 0)
    return reading->values[0] < (shape->capacity - cost) * shape->period_ms;
  if (server->planted == SIM_PLANT_CAPACITY_PLUS_ONE && !item->algorithm->window)
    return reading->values[0] <= (shape->capacity + 1 - cost) * shape->period_ms;
  return item->algorithm->fits(shape, reading, cost);
}

/* ---- Writing ---- */

static void item_write(const sim_server *server, const sim_script *script, size_t i, const spile_reading *reading,
                       int64_t now_ms) {
  const sim_script_item *item = &script->more[i];
  const spile_shape *shape = &item->spec.shape;
  sim_bucket *bucket = item->bucket;
  spile__state *state = &bucket->state;
  bucket->stored = item->algorithm->state(shape, reading, now_ms, item->old, state);
  if (!bucket->stored)
    return;
  bool instant = item->algorithm->instant;
  int64_t full_at_ms = instant ? state->bucket.full_at_ms : item->algorithm->full_at_ms(state);
  bucket->written_ms = now_ms;
  bucket->expires_ms = full_at_ms + 1000;
  bucket->slack_ms = slack_draw(server);
  if (!instant)
    return;
  int64_t ahead_ms = full_at_ms - now_ms;
  switch ((int)server->planted) {
  case SIM_PLANT_FRACTION_LOST:
    state->bucket.rem = 0;
    break;
  case SIM_PLANT_EXPIRY_FROM_NOW:
    if (script->call.verb == SPILE_VERB_TAKE)
      bucket->expires_ms = now_ms + script->items[i].cost * shape->period_ms / shape->refill + 1000;
    break;
  case SIM_PLANT_EXPIRY_BEFORE_FULL:
    bucket->expires_ms = now_ms + ahead_ms - ahead_ms / 10 - 1;
    bucket->slack_ms = 0;
    break;
  case SIM_PLANT_EXPIRY_WITHOUT_TOLERANCE:
    bucket->expires_ms = full_at_ms;
    bucket->slack_ms = 0;
    break;
  default:
    break;
  }
}

/* Whether an instant under the same value becomes another one, which is all that changes then. */
static bool item_moves(const sim_script *script, size_t i, const spile_reading *reading, int64_t now_ms) {
  const sim_script_item *item = &script->more[i];
  if (!item->algorithm->instant || item->old == NULL || !spile__shape_equal(&item->old->shape, &item->spec.shape))
    return false;
  int64_t full_at_ms;
  int64_t rem;
  spile__bucket_instant(&item->spec.shape, reading->values[0], now_ms, &full_at_ms, &rem);
  return rem == item->old->bucket.rem;
}

/* Whether what is left of an item is nothing, so that its key is removed. */
static bool item_removes(const sim_script *script, size_t i, const spile_reading *reading) {
  bool two = script->more[i].spec.algorithm == SPILE_SLIDING_WINDOW;
  return reading->values[0] == 0 && (!two || reading->values[1] == 0);
}

/* What a take leaves that goes through. */
static spile_reading item_taken(const sim_script *script, size_t i) {
  const sim_script_item *item = &script->more[i];
  spile_reading after = script->items[i].reading;
  /* A planted fault takes what the core would not. */
  if (item->algorithm->instant)
    after.values[0] += script->items[i].cost * item->spec.shape.period_ms;
  else
    item->algorithm->charge(&item->spec.shape, &after, script->items[i].cost);
  return after;
}

/* What planted faults write for an item of a take that does not go through, or of nothing. @return whether any does */
static bool item_keeps_wrongly(const sim_server *server, const sim_script *script, size_t i, spile_reading *after) {
  const sim_script_item *item = &script->more[i];
  const spile_shape *shape = &item->spec.shape;
  int64_t cost = script->items[i].cost;
  if (item->algorithm->window || script->call.verb != SPILE_VERB_TAKE)
    return false;
  int64_t full = shape->capacity * shape->period_ms;
  int64_t charged = after->values[0] + cost * shape->period_ms;
  switch ((int)server->planted) {
  case SIM_PLANT_COST_0_WRITES:
    return item->rewrite;
  case SIM_PLANT_DENIAL_CHARGES:
    if (cost == 0 || after->values[0] >= full)
      return false;
    after->values[0] = charged < full ? charged : full;
    return true;
  case SIM_PLANT_DENIAL_RESTARTS:
    after->values[0] = full;
    return cost > 0 && script->call.n == 1;
  case SIM_PLANT_NOT_ALL_OR_NOTHING:
    if (cost == 0 || !item_fits(server, script, i))
      return false;
    after->values[0] = charged;
    return true;
  default:
    return false;
  }
}

/* What planted faults make of a charge or a refund. */
static void item_settle_wrongly(const sim_server *server, const sim_script *script, size_t i, spile_reading *after) {
  const sim_script_item *item = &script->more[i];
  const spile_shape *shape = &item->spec.shape;
  int64_t more = script->items[i].cost - script->items[i].reading.values[1];
  switch ((int)server->planted) {
  case SIM_PLANT_DEBT_FORGOTTEN:
    if (script->call.verb == SPILE_VERB_CHARGE && !item->algorithm->window &&
        after->values[0] > shape->capacity * shape->period_ms)
      after->values[0] = shape->capacity * shape->period_ms;
    break;
  case SIM_PLANT_WINDOW_BEFORE_REFUNDED:
    if (script->call.verb == SPILE_VERB_REFUND && item->spec.algorithm == SPILE_SLIDING_WINDOW && more > 0)
      after->values[0] -= more < after->values[0] ? more : after->values[0];
    break;
  default:
    break;
  }
}

/* What is to be written about an item: what it pays or gets, or a correction that can wait for the next take. */
typedef struct item_change {
  bool writes;
  bool corrects;
  bool in_place; /* may move the expiry alone */
  spile_reading after;
} item_change;

static item_change item_change_of(const sim_server *server, const sim_script *script, size_t i,
                                  const spile__effect *effect, bool moves) {
  const sim_script_item *item = &script->more[i];
  bool take = script->call.verb == SPILE_VERB_TAKE;
  item_change change = {.in_place = take ? moves : script->call.n == 1, .after = script->items[i].reading};
  if (take && effect->goes && script->items[i].cost > 0) {
    change.after = item_taken(script, i);
    change.writes = true;
    return change;
  }
  if (!take) {
    (void)spile__item_apply(&script->call, &script->items[i], effect, &change.after);
    item_settle_wrongly(server, script, i, &change.after);
    change.writes = memcmp(&change.after, &script->items[i].reading, sizeof(change.after)) != 0;
  }
  if (change.writes || item_keeps_wrongly(server, script, i, &change.after)) {
    change.writes = true;
    return change;
  }
  change.in_place = change.corrects = true;
  change.writes = item->rewrite && spile__item_pays(&script->call, &script->items[i]);
  return change;
}

/*
 * Writes what a call comes to. A removal and a later instant for the same value need no memory, and after any write the
 * server refuses a script nothing more. A correction that is refused waits.
 */
static const char *items_write(const sim_server *server, const sim_script *script, const spile__effect *effect,
                               int64_t now_ms) {
  bool readonly = server->readonly_until_us > server->world->now_us;
  bool oom = server->oom_until_us > server->world->now_us;
  bool moves = true;
  for (size_t i = 0; i < script->call.n && effect->goes && script->call.verb == SPILE_VERB_TAKE; i++) {
    spile_reading after = script->items[i].cost > 0 ? item_taken(script, i) : script->items[i].reading;
    moves = moves && (script->items[i].cost == 0 || item_moves(script, i, &after, now_ms));
  }
  for (size_t i = 0; i < script->call.n; i++) {
    item_change change = item_change_of(server, script, i, effect, moves);
    if (!change.writes)
      continue;
    bool moves_it = change.in_place && item_moves(script, i, &change.after, now_ms);
    bool needs_memory = !moves_it && !item_removes(script, i, &change.after);
    if (readonly || (oom && needs_memory)) {
      if (change.corrects)
        continue;
      return readonly ? "-READONLY You can't write against a read only replica. script: 0, on @user_script:1.\r\n"
                      : "-OOM command not allowed when used memory > 'maxmemory'. script: 0, on @user_script:1.\r\n";
    }
    oom = false;
    item_write(server, script, i, &change.after, now_ms);
  }
  return NULL;
}

/* ---- The script ---- */

const char *sim_script_run(sim_server *server, sim_script *script, bool *charged) {
  int64_t now_ms = sim_server_now_ms(server);
  bool take = script->call.verb == SPILE_VERB_TAKE;
  bool fits = true;
  bool costs = false;
  for (size_t i = 0; i < script->call.n; i++) {
    item_read(server, script, i, now_ms);
    fits = fits && (sim_script_settles(script) || item_fits(server, script, i));
    costs = costs || script->items[i].cost > 0;
  }
  spile__effect effect = take ? (spile__effect){.goes = fits} : spile__call_effect(&script->call);
  if (server->planted == SIM_PLANT_PEEK_CHARGES && take && !costs && script->call.n > 1 && fits &&
      !script->more[0].algorithm->window && script->items[0].reading.values[0] == 0) {
    const spile_reading one = {.values = {script->more[0].spec.shape.period_ms}};
    item_write(server, script, 0, &one, now_ms);
  }
  const char *error = items_write(server, script, &effect, now_ms);
  *charged = error == NULL && fits;
  return error;
}
