/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The meter: what acknowledged charges alone say about the promise of each algorithm, from its definition.
 *
 *   token_bucket,      what fills at each charge and drains at the rate, net of refunds, holds at most the capacity
 *   leaky_bucket       after a take, and the debt more after a charge. And between two refunds, over any readings of a
 *                      clock, stepping or not, at most capacity + debt + N·(latest − earliest)
 *   fixed_window       the net of one window is at most the capacity
 *   sliding_window     so is the net of this window and, of that of the one before, the part that is left of this one
 *   sliding_log        the net of the last W ms is at most the capacity
 *
 * What the meter holds is never more than what the server counts: a charge that nobody heard of is not in it; an
 * allowance counts its cost, a take up to what it was granted, a charge what it was told to have charged, rounded down.
 * A refund is the other way round: it is taken off when the server runs it, heard of or not, as far as there is
 * anything, from where the algorithm takes it (the level; this window; the newest of a log). So a bound that is passed
 * here is passed there. A refund that comes late, when somebody else's take may be under way, begins a new account.
 *
 * A window's number never goes back, so where the clock stepped back by less than the tolerance a charge counts in the
 * window of its reading or in a later one that something was written in. Until the clock is past them, the meter holds
 * what those windows have together against as many capacities. For the same reason a new account begins with the
 * windows that may be up to a second ahead. A log forgets at every write what has left the window then, and so does the
 * meter.
 */
#include "sim_oracles.h"

#define TOLERANCE_MS 1000

void sim_meter_reset(sim_oracles *oracles, size_t bucket) {
  oracles->meters[bucket].begun = false;
}

void sim_meter_reset_all(sim_oracles *oracles) {
  for (size_t i = 0; i < oracles->n_buckets; i++)
    sim_meter_reset(oracles, i);
}

static sim_meter *meter_of(sim_oracles *oracles, const sim_item *item, int64_t server_ms) {
  sim_meter *meter = &oracles->meters[item->bucket];
  if (meter->begun)
    return meter;
  meter->begun = true;
  meter->at_ms = meter->earliest_ms = meter->latest_ms = server_ms;
  meter->level = meter->total = meter->count = meter->before = 0;
  meter->n = 0;
  meter->first = server_ms / item->limit.period_ms;
  meter->last = (server_ms + TOLERANCE_MS) / item->limit.period_ms;
  return meter;
}

/* ---- Buckets ---- */

static void level_drain(sim_meter *meter, const model_limit *limit, int64_t server_ms) {
  model_int passed_ms = (model_int)server_ms - meter->at_ms;
  meter->level -= passed_ms > 0 ? passed_ms * limit->refill : 0;
  if (meter->level < 0)
    meter->level = 0;
  meter->at_ms = server_ms;
}

static const char *level_charge(sim_meter *meter, const model_limit *limit, int64_t tokens, bool asked,
                                int64_t server_ms) {
  level_drain(meter, limit, server_ms);
  meter->earliest_ms = server_ms < meter->earliest_ms ? server_ms : meter->earliest_ms;
  meter->latest_ms = server_ms > meter->latest_ms ? server_ms : meter->latest_ms;
  model_int units = (model_int)tokens * limit->period_ms;
  meter->level += units;
  meter->total += units;
  model_int full = (model_int)limit->capacity * limit->period_ms;
  model_int deepest = full + (model_int)limit->debt * limit->period_ms;
  if (meter->level > (asked ? full : deepest))
    return "by the level";
  model_int span_ms = (model_int)meter->latest_ms - meter->earliest_ms;
  return meter->total > deepest + span_ms * limit->refill ? "by the total" : NULL;
}

static void level_refund(sim_meter *meter, const model_limit *limit, int64_t tokens, int64_t server_ms) {
  level_drain(meter, limit, server_ms);
  meter->level -= (model_int)tokens * limit->period_ms;
  if (meter->level < 0)
    meter->level = 0;
  meter->total = 0;
  meter->earliest_ms = meter->latest_ms = server_ms;
}

/* ---- Windows of counts ---- */

/* The clock is in this window, or something of it may have counted in a later one. */
static void windows_reach(sim_meter *meter, const model_limit *limit, int64_t server_ms) {
  int64_t number = server_ms / limit->period_ms;
  if (number < meter->first)
    meter->first = number;
  if (number <= meter->last)
    return;
  bool one = meter->first == meter->last;
  meter->before = one && number == meter->last + 1 ? meter->count : 0;
  meter->count = 0;
  meter->first = meter->last = number;
}

static const char *windows_charge(sim_meter *meter, const model_limit *limit, int64_t tokens, int64_t server_ms) {
  windows_reach(meter, limit, server_ms);
  meter->count += tokens;
  if (meter->first < meter->last)
    return meter->count > (model_int)limit->capacity * (meter->last - meter->first + 1) ? "by some windows" : NULL;
  model_int used = meter->count * limit->period_ms;
  if (limit->algorithm == SPILE_SLIDING_WINDOW)
    used += meter->before * (limit->period_ms - server_ms % limit->period_ms);
  return used > (model_int)limit->capacity * limit->period_ms ? "by the window" : NULL;
}

static void windows_refund(sim_meter *meter, const model_limit *limit, int64_t tokens, int64_t server_ms) {
  windows_reach(meter, limit, server_ms);
  meter->count -= meter->count < tokens ? meter->count : tokens;
}

/* ---- Logs ---- */

static void log_expire(sim_meter *meter, const model_limit *limit, int64_t server_ms) {
  size_t gone = 0;
  while (gone < meter->n && meter->entries[gone].at_ms <= server_ms - limit->period_ms)
    gone++;
  meter->n -= gone;
  for (size_t i = 0; i < meter->n && gone > 0; i++)
    meter->entries[i] = meter->entries[i + gone];
}

/* A new entry is never older than the newest, of which the server has one that is as new. */
static const char *log_charge(sim_meter *meter, const model_limit *limit, int64_t tokens, int64_t server_ms) {
  log_expire(meter, limit, server_ms);
  int64_t newest_ms = meter->n > 0 ? meter->entries[meter->n - 1].at_ms : server_ms;
  int64_t sum = tokens;
  for (size_t i = 0; i < meter->n; i++)
    sum += meter->entries[i].tokens;
  if (sum > limit->capacity)
    return "by the log";
  meter->entries[meter->n].at_ms = server_ms > newest_ms ? server_ms : newest_ms;
  meter->entries[meter->n++].tokens = tokens;
  return NULL;
}

static void log_refund(sim_meter *meter, int64_t tokens) {
  for (; meter->n > 0 && tokens >= meter->entries[meter->n - 1].tokens; meter->n--)
    tokens -= meter->entries[meter->n - 1].tokens;
  if (meter->n > 0)
    meter->entries[meter->n - 1].tokens -= tokens;
}

/* ---- The meter ---- */

void sim_meter_served(sim_oracles *oracles, const sim_item *item, int64_t server_ms) {
  sim_meter *meter = meter_of(oracles, item, server_ms);
  if (item->limit.algorithm == SPILE_SLIDING_LOG)
    log_expire(meter, &item->limit, server_ms);
  else if (model_is_window(&item->limit))
    windows_reach(meter, &item->limit, server_ms);
}

void sim_meter_charge(sim_oracles *oracles, const sim_item *item, int64_t tokens, bool asked, int64_t server_ms) {
  sim_meter *meter = meter_of(oracles, item, server_ms);
  const char *passed;
  oracles->charges++;
  if (item->limit.algorithm == SPILE_SLIDING_LOG)
    passed = log_charge(meter, &item->limit, tokens, server_ms);
  else if (model_is_window(&item->limit))
    passed = windows_charge(meter, &item->limit, tokens, server_ms);
  else
    passed = level_charge(meter, &item->limit, tokens, asked, server_ms);
  if (passed != NULL)
    sim_oracles_fail(oracles, "bucket %zu admitted more than its limit allows (%s)", item->bucket, passed);
}

void sim_meter_refund(sim_oracles *oracles, const sim_item *item, int64_t server_ms) {
  sim_meter *meter = meter_of(oracles, item, server_ms);
  if (item->limit.algorithm == SPILE_SLIDING_LOG)
    log_refund(meter, item->cost);
  else if (model_is_window(&item->limit))
    windows_refund(meter, &item->limit, item->cost, server_ms);
  else
    level_refund(meter, &item->limit, item->cost, server_ms);
}
