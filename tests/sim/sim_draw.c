/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked: costs that are likely to matter, by what the call before left.
 */
#include <string.h>

#include "sim.h"

/* What the call before said is left, or 0. */
static int64_t left_told(const sim *s) {
  return s->decision.decided_by == SPILE_BY_STORE ? s->decision.remaining : 0;
}

static int64_t cost_draw(sim *s, const model_limit *limit) {
  int64_t left = left_told(s);
  switch (sim_below(&s->random, 16)) {
  case 0:
    return 0;
  case 1:
    return limit->capacity;
  case 2:
    return sim_once_in(&s->random, 4) ? limit->capacity + sim_magnitude(&s->random, INT64_C(1) << 40) : 1;
  case 3:
    return left < limit->capacity ? left + 1 : limit->capacity;
  case 4:
    return left < limit->capacity ? left : limit->capacity;
  case 5:
    return (limit->capacity + 1) / 2;
  case 6:
    return 1 + sim_below(&s->random, limit->capacity);
  default:
    return limit->capacity < 100 || sim_once_in(&s->random, 8) ? 1 : limit->capacity / 8;
  }
}

/* To empty, to the deepest debt, and past it. */
static int64_t charge_draw(sim *s, const model_limit *limit) {
  switch (sim_below(&s->random, 8)) {
  case 0:
    return limit->capacity + limit->debt + sim_below(&s->random, 3) - 1;
  case 1:
    return left_told(s) + limit->debt + sim_below(&s->random, 2);
  case 2:
    return limit->debt;
  case 3:
    return sim_once_in(&s->random, 4) ? sim_magnitude(&s->random, INT64_MAX) : 1;
  default:
    return cost_draw(s, limit);
  }
}

/* To full, and past it. */
static int64_t refund_draw(sim *s, const model_limit *limit) {
  int64_t taken = limit->capacity - left_told(s);
  taken = taken < 0 ? 0 : taken;
  switch (sim_below(&s->random, 8)) {
  case 0:
    return taken + sim_below(&s->random, 2);
  case 1:
    return taken > 0 ? taken - 1 : 0;
  case 2:
    return sim_once_in(&s->random, 4) ? sim_magnitude(&s->random, INT64_MAX) : limit->capacity;
  case 3:
    return cost_draw(s, limit);
  default:
    return 1;
  }
}

/* The most of a take up to of which the least is known. */
static int64_t most_draw(sim *s, const sim_item *item) {
  switch (sim_below(&s->random, 4)) {
  case 0:
    return item->cost;
  case 1:
    return INT64_MAX;
  default:
    return item->cost + sim_magnitude(&s->random, item->limit.capacity + 1) - 1;
  }
}

static sim_verb verb_draw(sim *s) {
  int64_t kind = sim_below(&s->random, 400);
  if (kind < 20)
    return kind == 0 ? SIM_CLEAR : SIM_PEEK;
  const sim_mix *mix = &s->mix;
  int64_t drawn = mix->charge + mix->refund + mix->up_to > 0 ? sim_below(&s->random, 1000) : 1000;
  if (drawn < mix->charge)
    return SIM_CHARGE;
  if (drawn < mix->charge + mix->refund)
    return SIM_REFUND;
  return drawn < mix->charge + mix->refund + mix->up_to ? SIM_TAKE_UP_TO : SIM_TAKE;
}

/* What can never be is only read. */
static void call_settle_verb(sim_call *call) {
  for (size_t i = 0; i < call->n && sim_verb_takes(call->verb); i++) {
    if (call->items[i].cost > call->items[i].limit.capacity)
      call->verb = SIM_PEEK;
  }
}

sim_call *sim_call_draw(sim *s) {
  sim_call *call = sim_call_new(s, verb_draw(s));
  bool alone = call->verb == SIM_CLEAR || call->verb == SIM_TAKE_UP_TO;
  bool several = !alone && s->n_targets > 1 && sim_once_in(&s->random, 10);
  call->n = several ? (size_t)sim_between(&s->random, 2, s->n_targets < SIM_ITEMS_MAX ? (int64_t)s->n_targets : 3) : 1;
  size_t target = (size_t)sim_below(&s->random, (int64_t)s->n_targets);
  for (size_t i = 0; i < call->n; i++) {
    sim_item *item = &call->items[i];
    item->bucket = (target + i) % s->n_targets;
    item->limit = sim_item_limit(s, item)->model;
    if (call->verb == SIM_CHARGE)
      item->cost = charge_draw(s, &item->limit);
    else if (call->verb == SIM_REFUND)
      item->cost = refund_draw(s, &item->limit);
    else if (call->verb != SIM_CLEAR)
      item->cost = cost_draw(s, &item->limit);
  }
  if (call->verb == SIM_TAKE_UP_TO)
    call->most = most_draw(s, &call->items[0]);
  call_settle_verb(call);
  return call;
}

sim_call *sim_call_again(sim *s) {
  sim_call *call = sim_call_new(s, s->last.asked);
  call->n = s->last.n;
  call->most = s->last.most;
  memcpy(call->items, s->last.items, sizeof(call->items));
  for (size_t i = 0; i < call->n; i++)
    call->items[i].limit = sim_item_limit(s, &call->items[i])->model;
  call_settle_verb(call);
  return call;
}
