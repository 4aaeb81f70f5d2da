/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lua/take.lua, by way of the core: that the two decide alike is what tests/test_differential.c shows on a real server.
 * What is added here is what surrounds a script there: expiry, and writes that a replica or a server without memory
 * refuses. Faults are planted where somebody could have made them.
 */
#include <stdlib.h>
#include <string.h>

#include "core/bucket.h"
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
  *bucket = (sim_bucket){.name_len = len};
  memcpy(bucket->name, name, len);
  return bucket;
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

/* ---- The script ---- */

static void item_read(const sim_server *server, sim_script_item *item, int64_t now_ms) {
  sim_bucket *bucket = item->bucket;
  sim_planted planted = server->planted;
  sim_bucket_expire(bucket, now_ms);
  if (planted == SIM_PLANT_FULL_AT_GOES_BACK && bucket->stored && item->cost > 0 && now_ms < bucket->written_ms) {
    bucket->state.bucket.full_at_ms -= bucket->written_ms - now_ms;
    bucket->written_ms = now_ms;
  }
  const spile__state *state = bucket->stored ? &bucket->state : NULL;
  if (planted == SIM_PLANT_CHANGE_REFILLS && state != NULL && !spile__shape_equal(&state->shape, &item->shape))
    state = NULL;
  item->rewrite = spile__token_bucket.read(&item->shape, state, now_ms, item->cost, &item->reading);
  if (planted == SIM_PLANT_NO_CUT && item->rewrite && spile__shape_equal(&state->shape, &item->shape)) {
    item->reading.values[0] = item->shape.capacity * item->shape.period_ms + 1000 * item->shape.refill;
    item->rewrite = false;
  }
}

static bool item_fits(const sim_server *server, const sim_script_item *item) {
  int64_t debt = item->reading.values[0];
  if (server->planted == SIM_PLANT_GREATER_FOR_GREATER_OR_EQUAL && item->cost > 0)
    return debt < (item->shape.capacity - item->cost) * item->shape.period_ms;
  if (server->planted == SIM_PLANT_CAPACITY_PLUS_ONE)
    return debt <= (item->shape.capacity + 1 - item->cost) * item->shape.period_ms;
  return spile__token_bucket.fits(&item->shape, &item->reading, item->cost);
}

static void item_write(const sim_server *server, const sim_script_item *item, int64_t debt, int64_t now_ms) {
  sim_bucket *bucket = item->bucket;
  spile_reading reading = {.values = {debt}};
  bucket->stored = spile__token_bucket.state(&item->shape, &reading, now_ms, NULL, &bucket->state);
  bucket->written_ms = now_ms;
  bucket->expires_ms = bucket->state.bucket.full_at_ms + 1000;
  bucket->slack_ms = slack_draw(server);
  int64_t ahead_ms = bucket->state.bucket.full_at_ms - now_ms;
  switch ((int)server->planted) {
  case SIM_PLANT_FRACTION_LOST:
    bucket->state.bucket.rem = 0;
    break;
  case SIM_PLANT_EXPIRY_FROM_NOW:
    bucket->expires_ms = now_ms + item->cost * item->shape.period_ms / item->shape.refill + 1000;
    break;
  case SIM_PLANT_EXPIRY_BEFORE_FULL:
    bucket->expires_ms = now_ms + ahead_ms - ahead_ms / 10 - 1;
    bucket->slack_ms = 0;
    break;
  case SIM_PLANT_EXPIRY_WITHOUT_TOLERANCE:
    bucket->expires_ms = bucket->state.bucket.full_at_ms;
    bucket->slack_ms = 0;
    break;
  default:
    break;
  }
}

/* Whether a write needs memory: all but a later instant for the same value does. */
static bool item_needs_memory(const sim_script_item *item, int64_t debt, int64_t now_ms) {
  const sim_bucket *bucket = item->bucket;
  if (!bucket->stored || !spile__shape_equal(&bucket->state.shape, &item->shape))
    return true;
  int64_t full_at_ms;
  int64_t rem;
  spile__bucket_instant(&item->shape, debt, now_ms, &full_at_ms, &rem);
  return rem != bucket->state.bucket.rem;
}

static int64_t item_charged(const sim_script_item *item) {
  return item->reading.values[0] + item->cost * item->shape.period_ms;
}

/* What a denial, or a take of nothing, writes. */
static void items_keep(const sim_server *server, sim_script_item *items, size_t n, int64_t now_ms, bool oom) {
  for (size_t i = 0; i < n; i++) {
    sim_script_item *item = &items[i];
    int64_t debt = item->reading.values[0];
    bool charges = item->cost > 0;
    if (server->planted == SIM_PLANT_COST_0_WRITES)
      charges = true;
    int64_t full = item->shape.capacity * item->shape.period_ms;
    if (server->planted == SIM_PLANT_DENIAL_CHARGES && charges && debt < full) {
      debt = item_charged(item) < full ? item_charged(item) : full;
      item->rewrite = true;
    }
    if (server->planted == SIM_PLANT_DENIAL_RESTARTS && charges && n == 1) {
      debt = full;
      item->rewrite = true;
    }
    if (server->planted == SIM_PLANT_NOT_ALL_OR_NOTHING && charges && item_fits(server, item)) {
      debt = item_charged(item);
      item->rewrite = true;
    }
    if (!charges || !item->rewrite)
      continue;
    /* Without memory the denial stands. A removal needs none, and lets the script write from then on. */
    bool removes = debt == 0;
    if (oom && !removes && item_needs_memory(item, debt, now_ms))
      continue;
    oom = false;
    item_write(server, item, debt, now_ms);
  }
}

const char *sim_script_run(sim_server *server, sim_script_item *items, size_t n, bool *charged) {
  int64_t now_ms = sim_server_now_ms(server);
  bool readonly = server->readonly_until_us > server->world->now_us;
  bool oom = server->oom_until_us > server->world->now_us;
  bool fits = true;
  bool writes = false;
  bool costs = false;
  for (size_t i = 0; i < n; i++) {
    item_read(server, &items[i], now_ms);
    fits = fits && item_fits(server, &items[i]);
    costs = costs || items[i].cost > 0;
  }
  for (size_t i = 0; i < n; i++)
    writes = writes || (items[i].cost > 0 && (fits || items[i].rewrite));
  if (writes && readonly)
    return "-READONLY You can't write against a read only replica. script: 0, on @user_script:1.\r\n";
  *charged = false;
  if (!fits || !costs) {
    if (server->planted == SIM_PLANT_PEEK_CHARGES && n > 1 && fits && items[0].reading.values[0] == 0)
      item_write(server, &items[0], items[0].shape.period_ms, now_ms);
    items_keep(server, items, n, now_ms, oom);
    *charged = fits;
    return NULL;
  }

  size_t first = 0;
  while (items[first].cost == 0)
    first++;
  if (oom && item_needs_memory(&items[first], item_charged(&items[first]), now_ms))
    return "-OOM command not allowed when used memory > 'maxmemory'. script: 0, on @user_script:1.\r\n";
  for (size_t i = 0; i < n; i++) {
    if (items[i].cost > 0)
      item_write(server, &items[i], item_charged(&items[i]), now_ms);
  }
  *charged = true;
  return NULL;
}
