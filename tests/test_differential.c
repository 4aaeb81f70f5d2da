/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same random steps through the model and the C core, the memory store, LMDB and Redis: every number of every
 * answer has to be the same. One line a subject says how many answers were compared.
 *
 *   SPILE_SEED=N     other steps; the default is fixed, so that a run can be repeated
 *   SPILE_STEPS=N    that many for every subject, such as 5000000 for a long run (give meson test -t 0 with it)
 *
 * A comparison that cannot find a fault proves nothing. The last test breaks the core in ways that have been shipped
 * elsewhere, one at a time, and expects each to be found.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/testing.h>

#include "core/algorithm.h"
#include "core/checked.h"
#include "core/decide.h"
#include "core/limit.h"
#include "redis_server.h"
#include "steps.h"
#include "temp_dir.h"

static uint64_t number_from_env(const char *name, uint64_t fallback) {
  const char *text = getenv(name);
  if (text == NULL || *text == '\0')
    return fallback;
  char *end;
  errno = 0;
  uint64_t number = strtoull(text, &end, 10);
  bool whole = errno == 0 && *end == '\0';
  cr_assert(whole, "%s is no number: %s", name, text);
  return number;
}

static void expect_agreement(const steps_subject *subject, uint64_t steps) {
  steps_result result;
  uint64_t seed = number_from_env("SPILE_SEED", 20240229);
  steps_run(subject, seed, number_from_env("SPILE_STEPS", steps), &result);
  printf("differential: %s: %" PRIu64 " steps, %" PRIu64 " differences (SPILE_SEED=%" PRIu64 "; %" PRIu64
         " denied, %" PRIu64 " never, %" PRIu64 " in buckets of other numbers, %" PRIu64 " promises kept, %" PRIu64
         " of them to a cost of 0, %" PRIu64 " charges, %" PRIu64 " not in full, %" PRIu64 " refunds, %" PRIu64
         " granted up to)\n",
         subject->name, result.compared, result.differences, seed, result.denied, result.never, result.changed,
         result.promises, result.free_promises, result.charges, result.uncharged, result.refunds, result.granted);
  (void)fflush(stdout);
  cr_assert(result.differences == 0, "%s", result.difference);
  /* The steps go where the faults are: no kind of answer is rare. */
  cr_assert(result.denied > result.compared / 10 && result.never > result.compared / 100);
  cr_assert(result.compared - result.denied - result.never > result.compared / 10);
  cr_assert(result.changed > result.compared / 20 && result.promises > result.compared / 50);
  cr_assert(result.free_promises > result.compared / 2000);
  cr_assert(result.charges > result.compared / 20 && result.uncharged > result.compared / 50);
  cr_assert(result.refunds > result.compared / 20 && result.granted > result.compared / 50);
}

/* ---- The core over a plain array ---- */

#define ALGORITHMS SPILE_SLIDING_LOG /* the last one */

typedef struct core_subject {
  spile__algorithm algorithms[ALGORITHMS + 1]; /* the core's by spile_algorithm, one of them perhaps broken */
  bool denial_writes;
  bool all_or_nothing;
  bool peek_writes;
  bool grants_scarcest;
  bool refunds_stay; /* what a refund leaves is written only where something is left */
  bool clock_held;   /* decides at the latest time ever seen */
  int64_t latest_ms;
  bool stored[STEPS_BUCKETS];
} core_subject;

/* Of the subject that is running: they are too large to be copied with it. */
static spile__state core_states[STEPS_BUCKETS];

static core_subject core_sound(void) {
  core_subject core = {.denial_writes = true, .all_or_nothing = true, .grants_scarcest = true};
  for (int i = 1; i <= ALGORITHMS; i++)
    core.algorithms[i] = *spile__algorithm_get((spile_algorithm)i);
  return core;
}

static void core_write(core_subject *core, size_t bucket, const spile_item *item, const spile_reading *reading,
                       int64_t now_ms) {
  const spile__algorithm *algorithm = &core->algorithms[item->spec->algorithm];
  spile__state *state = &core_states[bucket];
  core->stored[bucket] =
      algorithm->state(&item->spec->shape, reading, now_ms, core->stored[bucket] ? state : NULL, state);
}

/* Charges also what does not fit, as a planted fault may ask for: the core itself may assert that it does. */
static void core_charge(const core_subject *core, const spile_spec *spec, spile_reading *after, int64_t cost) {
  const spile__algorithm *algorithm = &core->algorithms[spec->algorithm];
  if (spile__algorithm_get(spec->algorithm)->fits(&spec->shape, after, cost)) {
    algorithm->charge(&spec->shape, after, cost);
    return;
  }
  after->values[spec->algorithm == SPILE_SLIDING_WINDOW] += cost * (algorithm->instant ? spec->shape.period_ms : 1);
  after->values[3] += algorithm->log ? cost : 0;
}

/* Charges, or gives back, what the call asks of an item. @return what could not be charged */
static int64_t core_settle(const core_subject *core, const spile_call *call, const spile_item *item,
                           spile_reading *after) {
  const spile__algorithm *algorithm = &core->algorithms[item->spec->algorithm];
  const spile_shape *shape = &item->spec->shape;
  if (call->verb == SPILE_VERB_REFUND) {
    algorithm->refund(shape, after, item->cost);
    return 0;
  }
  if (algorithm->force != NULL)
    return algorithm->force(shape, after, item->cost);
  int64_t room = algorithm->room(shape, after);
  int64_t tokens = item->cost < room ? item->cost : room;
  if (tokens > 0)
    core_charge(core, item->spec, after, tokens);
  return item->cost - tokens;
}

static int64_t core_granted(const core_subject *core, const spile_call *call) {
  int64_t granted = call->most;
  for (size_t j = 0; j < call->n; j++) {
    const spile_spec *spec = call->items[j].spec;
    int64_t room = core->algorithms[spec->algorithm].room(&spec->shape, &call->items[j].reading);
    if (room < granted && (core->grants_scarcest || j == 0))
      granted = room;
  }
  return granted;
}

/* The decision of the call, from those of its items. */
static int core_strictest(const spile_call *call, const size_t *firsts, const spile_decision *each, bool charged,
                          spile_decision *decision) {
  bool settled = call->verb == SPILE_VERB_CHARGE || call->verb == SPILE_VERB_REFUND;
  if (!settled && !(charged && call->verb == SPILE_VERB_TAKE_UP_TO)) {
    int outcome = spile__decide(call->items, call->n, charged, decision, NULL);
    decision->index = (uint32_t)firsts[decision->index];
    return outcome;
  }
  *decision = each[firsts[0]];
  for (size_t j = 1; j < call->n; j++) {
    const spile_decision *own = &each[firsts[j]];
    int64_t uncharged = own->uncharged > decision->uncharged ? own->uncharged : decision->uncharged;
    int64_t delay_ms = own->delay_ms > decision->delay_ms ? own->delay_ms : decision->delay_ms;
    if (own->remaining < decision->remaining ||
        (own->remaining == decision->remaining && own->reset_after_ms > decision->reset_after_ms))
      *decision = *own;
    decision->uncharged = uncharged;
    decision->delay_ms = delay_ms;
  }
  size_t deciding = 0;
  while (firsts[deciding] != decision->index)
    deciding++;
  decision->capacity = call->items[deciding].spec->shape.capacity;
  return SPILE_ALLOWED;
}

static int core_decide(void *self, spile_verb verb, int64_t most, int64_t now_ms, const spile_request *requests,
                       const size_t *buckets, size_t n, spile_decision *decision, spile_decision *each) {
  core_subject *core = self;
  core->latest_ms = now_ms > core->latest_ms ? now_ms : core->latest_ms;
  if (core->clock_held)
    now_ms = core->latest_ms;

  spile_item items[SPILE_REQUESTS_MAX] = {{0}};
  size_t firsts[SPILE_REQUESTS_MAX] = {0};
  size_t item_of[SPILE_REQUESTS_MAX];
  spile_call call = {.verb = verb, .items = items, .most = most};
  bool settles = verb == SPILE_VERB_CHARGE || verb == SPILE_VERB_REFUND;
  bool never = false;
  for (size_t i = 0; i < n; i++) {
    const spile_spec *spec = spile_limit_spec(requests[i].limit);
    size_t j = 0;
    while (j < call.n && buckets[firsts[j]] != buckets[i])
      j++;
    item_of[i] = j;
    if (j == call.n) {
      firsts[call.n] = i;
      items[call.n++] = (spile_item){.spec = spec};
    }
    items[j].cost = spile__add_saturate(items[j].cost, requests[i].cost);
    never = never || (!settles && items[j].cost > spec->shape.capacity);
    call.most = spec->shape.capacity < call.most ? spec->shape.capacity : call.most;
  }
  if (never) {
    call.verb = SPILE_VERB_PEEK;
    call.most = 0;
  }

  bool moved[SPILE_REQUESTS_MAX];
  bool fit[SPILE_REQUESTS_MAX];
  bool all_fit = true;
  for (size_t j = 0; j < call.n; j++) {
    size_t bucket = buckets[firsts[j]];
    const spile_shape *shape = &items[j].spec->shape;
    const spile__algorithm *algorithm = &core->algorithms[items[j].spec->algorithm];
    moved[j] = algorithm->read(shape, core->stored[bucket] ? &core_states[bucket] : NULL, now_ms,
                               spile__cost_read(call.verb, items[j].cost), &items[j].reading);
    fit[j] = items[j].cost <= shape->capacity && algorithm->fits(shape, &items[j].reading, items[j].cost);
    all_fit = all_fit && fit[j];
  }
  int64_t granted = core_granted(core, &call);
  bool take = call.verb == SPILE_VERB_TAKE || call.verb == SPILE_VERB_TAKE_UP_TO;
  int64_t uncharged[SPILE_REQUESTS_MAX] = {0};
  for (size_t j = 0; j < call.n; j++) {
    spile_reading after = items[j].reading;
    if (settles)
      uncharged[j] = core_settle(core, &call, &items[j], &after);
    else if (take && (all_fit || (!core->all_or_nothing && fit[j])))
      core_charge(core, items[j].spec, &after, verb == SPILE_VERB_TAKE ? items[j].cost : granted);
    bool changed = memcmp(&after, &items[j].reading, sizeof(after)) != 0;
    bool corrects = moved[j] && core->denial_writes;
    if (core->refunds_stay && verb == SPILE_VERB_REFUND && after.values[0] == 0)
      changed = corrects = false;
    if ((spile__item_pays(&call, &items[j]) && (changed || corrects)) || (core->peek_writes && moved[j]))
      core_write(core, buckets[firsts[j]], &items[j], &after, now_ms);
    if (settles)
      items[j].reading = after;
  }

  /* What is told: settled items are read as they are afterwards. */
  bool charged = take && all_fit;
  for (size_t j = 0; j < call.n; j++) {
    items[j].cost = settles ? 0 : charged && verb == SPILE_VERB_TAKE_UP_TO ? granted : items[j].cost;
    spile__verdict verdict;
    core->algorithms[items[j].spec->algorithm].report(&items[j].spec->shape, &items[j].reading, items[j].cost, charged,
                                                      &verdict);
    if (settles) {
      verdict.outcome = SPILE_ALLOWED;
      verdict.retry_after_ms = verdict.delay_ms = 0;
    }
    for (size_t i = 0; i < n; i++) {
      if (item_of[i] == j)
        each[i] = (spile_decision){.outcome = verdict.outcome,
                                   .decided_by = SPILE_BY_STORE,
                                   .index = (uint32_t)i,
                                   .remaining = verdict.remaining,
                                   .retry_after_ms = verdict.retry_after_ms,
                                   .reset_after_ms = verdict.reset_after_ms,
                                   .delay_ms = verdict.delay_ms,
                                   .grows_after_ms = verdict.grows_after_ms,
                                   .granted = charged && verb == SPILE_VERB_TAKE_UP_TO ? granted : 0,
                                   .uncharged = uncharged[j]};
    }
  }
  return core_strictest(&call, firsts, each, charged, decision);
}

Test(differential, the_core_answers_as_the_model) {
  core_subject core = core_sound();
  steps_subject subject = {.name = "core", .decide = core_decide, .self = &core};
  expect_agreement(&subject, 2000000);
}

/* ---- Stores, through the public functions ---- */

typedef struct store_subject {
  spile_fake_clock *clock;
  spile_limiter *limiter;
} store_subject;

static int store_decide(void *self, spile_verb verb, int64_t most, int64_t now_ms, const spile_request *requests,
                        const size_t *buckets, size_t n, spile_decision *decision, spile_decision *each) {
  store_subject *store = self;
  spile_limiter *limiter = store->limiter;
  const spile_request *one = requests;
  (void)buckets;
  spile_fake_clock_set(store->clock, now_ms);
  each[0] = (spile_decision){0};
  int outcome = SPILE_EINVAL;
  switch (verb) {
  case SPILE_VERB_TAKE:
    outcome = n > 1 ? spile_take_all(limiter, requests, n, decision, each)
                    : spile_take(limiter, one->limit, one->key, one->key_len, one->cost, decision);
    break;
  case SPILE_VERB_PEEK:
    outcome = n > 1 ? spile_peek_all(limiter, requests, n, decision, each)
                    : spile_peek(limiter, one->limit, one->key, one->key_len, one->cost, decision);
    break;
  case SPILE_VERB_CHARGE:
    outcome = n > 1 ? spile_charge_all(limiter, requests, n, decision, each)
                    : spile_charge(limiter, one->limit, one->key, one->key_len, one->cost, decision);
    break;
  case SPILE_VERB_REFUND:
    outcome = n > 1 ? spile_refund_all(limiter, requests, n, decision, each)
                    : spile_refund(limiter, one->limit, one->key, one->key_len, one->cost, decision);
    break;
  case SPILE_VERB_TAKE_UP_TO:
    outcome = n > 1 ? spile_take_up_to_all(limiter, requests, n, one->cost, most, decision, each)
                    : spile_take_up_to(limiter, one->limit, one->key, one->key_len, one->cost, most, decision);
    break;
  }
  if (n == 1)
    each[0] = *decision;
  return outcome;
}

static void store_agrees(const char *name, const char *uri, uint64_t steps) {
  store_subject store = {.clock = spile_fake_clock_new(0)};
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = store.clock;
  options.timeout_ms = 10000; /* a machine under load is not what is tested */
  spile_error error = {0};
  int opened = spile_open(&store.limiter, uri, &options, &error);
  cr_assert(opened == SPILE_OK, "%s: %s", uri, error.message);
  steps_subject subject = {.name = name, .decide = store_decide, .self = &store};
  expect_agreement(&subject, steps);
  spile_close(store.limiter);
  spile_fake_clock_free(store.clock);
}

Test(differential, the_memory_store_answers_as_the_model) {
  store_agrees("memory", "memory:", 1000000);
}

Test(differential, the_lmdb_store_answers_as_the_model) {
  char directory[TEMP_DIR_LEN];
  temp_dir_make(directory);
  char uri[TEMP_DIR_LEN + 32];
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/db?sync=none", directory);
  store_agrees("lmdb", uri, 250000);
  temp_dir_remove(directory);
}

Test(differential, the_redis_store_answers_as_the_model) {
  redis_server *server = redis_server_start();
  store_agrees("redis", redis_server_unix_uri(server), 150000);
  redis_server_free(server);
}

/* ---- Planted faults ---- */

static void bug_retry_rounds_down(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                  spile__verdict *out) {
  spile__token_bucket.report(shape, reading, cost, charged, out);
  if (out->outcome == SPILE_DENIED)
    out->retry_after_ms = (reading->values[0] - (shape->capacity - cost) * shape->period_ms) / shape->refill;
}

static void bug_reset_rounds_down(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                  spile__verdict *out) {
  spile__token_bucket.report(shape, reading, cost, charged, out);
  out->reset_after_ms = (reading->values[0] + (charged ? cost * shape->period_ms : 0)) / shape->refill;
}

static void bug_remaining_rounds_up(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                    spile__verdict *out) {
  spile__token_bucket.report(shape, reading, cost, charged, out);
  int64_t debt = reading->values[0] + (charged ? cost * shape->period_ms : 0);
  int64_t level = shape->capacity * shape->period_ms - debt;
  out->remaining = level > 0 ? spile__div_ceil(level, shape->period_ms) : 0;
}

/* A take must leave a unit behind: > where >= is right. */
static bool bug_fits_leaves_a_unit(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return reading->values[0] < (shape->capacity - cost) * shape->period_ms || cost == 0;
}

/* The instant far ahead is believed. */
static bool bug_no_cut(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                       spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  if (state == NULL || !spile__shape_equal(shape, &state->shape) || !moved)
    return moved;
  int64_t ahead_ms = state->bucket.full_at_ms - now_ms;
  out->values[0] = spile__mul_saturate(ahead_ms, shape->refill);
  return false;
}

/* The cut comes as soon as the bucket looks emptier than empty, and pays back what a clock that disagrees hid. */
static bool bug_cut_without_tolerance(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                      spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  int64_t empty = shape->capacity * shape->period_ms;
  if (out->values[0] <= empty)
    return moved;
  out->values[0] = empty;
  return true;
}

/* The cut comes at the edge, not past it. */
static bool bug_cut_at_the_edge(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  int64_t empty = shape->capacity * shape->period_ms;
  if (out->values[0] < empty + SPILE__TOLERANCE_MS * shape->refill)
    return moved;
  out->values[0] = empty;
  return true;
}

/* A bucket that was not touched while it was full is paid for the idle time. */
static bool bug_idle_time_earns(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  if (state != NULL && out->values[0] == 0 && now_ms - state->bucket.full_at_ms < 1000 &&
      spile__shape_equal(shape, &state->shape))
    out->values[0] = (state->bucket.full_at_ms - now_ms) * shape->refill + state->bucket.rem;
  return moved;
}

/* A clock that stepped back makes the bucket look fuller: the distance counts, not its sign. */
static bool bug_clock_back_earns(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                 spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  int64_t empty = shape->capacity * shape->period_ms;
  if (out->values[0] > empty)
    out->values[0] = out->values[0] < 2 * empty ? 2 * empty - out->values[0] : 0;
  return moved;
}

/* A conversion keeps whole tokens only. */
static bool bug_conversion_drops_the_fraction(const spile_shape *shape, const spile__state *state, int64_t now_ms,
                                              int64_t cost, spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  if (state != NULL && moved && !spile__shape_equal(shape, &state->shape))
    out->values[0] = spile__div_ceil(out->values[0], shape->period_ms) * shape->period_ms;
  return moved;
}

/* A conversion multiplies and divides in doubles, past what they count exactly. */
static bool bug_conversion_in_doubles(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                      spile_reading *out) {
  bool moved = spile__token_bucket.read(shape, state, now_ms, cost, out);
  int64_t empty = shape->capacity * shape->period_ms;
  if (state == NULL || !moved || spile__shape_equal(shape, &state->shape) || out->values[0] >= empty)
    return moved;
  spile_reading old;
  (void)spile__token_bucket.read(&state->shape, state, now_ms, cost, &old);
  int64_t old_level = state->shape.capacity * state->shape.period_ms - old.values[0];
  double product = (double)old_level * (double)shape->period_ms;
  double quotient = product / (double)state->shape.period_ms;
  if (quotient < 0 || quotient > (double)SPILE__EXACT_MAX)
    return moved;
  int64_t level = (int64_t)quotient;
  out->values[0] = level > empty ? 0 : empty - level;
  return moved;
}

/* The stored debt is read as if it had been made under the new numbers. */
static bool bug_no_conversion(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                              spile_reading *out) {
  if (state == NULL)
    return spile__token_bucket.read(shape, NULL, now_ms, cost, out);
  spile__state mine = *state;
  mine.shape = *shape;
  mine.bucket.rem %= shape->refill;
  return spile__token_bucket.read(shape, &mine, now_ms, cost, out);
}

/* What is left of a millisecond is lost at every write. */
static bool bug_remainder_lost(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                               const spile__state *old, spile__state *out) {
  bool stored = spile__token_bucket.state(shape, reading, now_ms, old, out);
  out->bucket.rem = 0;
  return stored;
}

/* A bucket that a conversion filled is kept, and is in debt again when the clock steps back. */
static bool bug_full_is_kept(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                             const spile__state *old, spile__state *out) {
  (void)spile__token_bucket.state(shape, reading, now_ms, old, out);
  return true;
}

/* ---- in the leaky bucket ---- */

/* The delay counts the take itself. */
static void bug_delay_after(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                            spile__verdict *out) {
  spile__leaky_bucket.report(shape, reading, cost, charged, out);
  if (out->outcome == SPILE_ALLOWED && charged)
    out->delay_ms = spile__div_ceil(reading->values[0] + cost * shape->period_ms, shape->refill);
}

static void bug_delay_rounds_down(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                  spile__verdict *out) {
  spile__leaky_bucket.report(shape, reading, cost, charged, out);
  if (out->outcome == SPILE_ALLOWED)
    out->delay_ms = reading->values[0] / shape->refill;
}

/* The drain starts anew with every take: what had drained of the last token is lost. */
static bool bug_drain_restarts(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                               const spile__state *old, spile__state *out) {
  spile_reading whole = *reading;
  whole.values[0] = spile__div_ceil(whole.values[0], shape->period_ms) * shape->period_ms;
  return spile__leaky_bucket.state(shape, &whole, now_ms, old, out);
}

/* ---- in the fixed window ---- */

/* What a window has given counts in the next one too. */
static bool bug_window_never_ends(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                  spile_reading *out) {
  if (state == NULL || now_ms < state->window.start_ms + state->shape.period_ms)
    return spile__fixed_window.read(shape, state, now_ms, cost, out);
  spile__state moved = *state;
  moved.window.start_ms = now_ms - now_ms % state->shape.period_ms;
  return spile__fixed_window.read(shape, &moved, now_ms, cost, out);
}

/* A window lasts a millisecond longer. */
static bool bug_window_ends_late(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                 spile_reading *out) {
  if (state != NULL && now_ms == state->window.start_ms + state->shape.period_ms)
    return spile__fixed_window.read(shape, state, now_ms - 1, cost, out);
  return spile__fixed_window.read(shape, state, now_ms, cost, out);
}

/* A clock that steps back begins a window anew. */
static bool bug_window_goes_back(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                 spile_reading *out) {
  if (state != NULL && state->window.start_ms > now_ms)
    state = NULL;
  return spile__fixed_window.read(shape, state, now_ms, cost, out);
}

/* A changed limit begins anew. */
static bool bug_change_forgets(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                               spile_reading *out) {
  if (state != NULL && !spile__shape_equal(shape, &state->shape))
    state = NULL;
  return spile__fixed_window.read(shape, state, now_ms, cost, out);
}

/* ---- in the sliding window ---- */

/* A count that is two windows old is carried into the one before (CORE-15 d). */
static bool bug_two_windows_old(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                spile_reading *out) {
  bool moved = spile__sliding_window.read(shape, state, now_ms, cost, out);
  if (state != NULL && now_ms >= state->sliding.start_ms + 2 * state->shape.period_ms &&
      spile__shape_equal(shape, &state->shape))
    out->values[0] = state->sliding.count;
  return moved;
}

/* The wait is to the end of the window (CORE-15 b). */
static void bug_waits_for_the_end(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                  spile__verdict *out) {
  spile__sliding_window.report(shape, reading, cost, charged, out);
  if (out->outcome == SPILE_DENIED)
    out->retry_after_ms = reading->values[2];
}

/* What the window before gave weighs as much as this one's all along. */
static bool bug_before_weighs_all(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return reading->values[0] + reading->values[1] + cost <= shape->capacity;
}

/* The state ends with its window, not with the next. */
static bool bug_forgets_before(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                               const spile__state *old, spile__state *out) {
  bool stored = spile__sliding_window.state(shape, reading, now_ms, old, out);
  out->sliding.before = 0;
  return stored && out->sliding.count > 0;
}

/* ---- in the sliding log ---- */

/* An entry counts while its time is at now − W too. */
static bool bug_counts_a_ms_longer(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                   spile_reading *out) {
  bool moved = spile__sliding_log.read(shape, state, now_ms, cost, out);
  if (state != NULL && out->values[0] == 0 && state->n > 0 && spile__sliding_log.full_at_ms(state) == now_ms &&
      spile__shape_equal(shape, &state->shape)) {
    out->values[0] = 1;
    out->values[1] = out->values[2] = 1;
  }
  return moved;
}

/* The wait follows the newest entry (CORE-16 a). */
static void bug_waits_for_the_newest(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                     spile__verdict *out) {
  spile__sliding_log.report(shape, reading, cost, charged, out);
  if (out->outcome == SPILE_DENIED)
    out->retry_after_ms = reading->values[2];
}

/* What was charged, or below zero given back, since the state was read. */
static int64_t log_charged(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                           const spile__state *old) {
  spile_reading before;
  (void)spile__sliding_log.read(shape, old, now_ms, 0, &before);
  return reading->values[0] - before.values[0];
}

/* Takes of one millisecond are one entry of one token (CORE-16 b). */
static bool bug_equal_times_are_one(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                    const spile__state *old, spile__state *out) {
  spile_reading one = *reading;
  if (old != NULL && old->n > 0 && spile__sliding_log.full_at_ms(old) - old->shape.period_ms == now_ms &&
      log_charged(shape, reading, now_ms, old) == 1)
    one.values[0]--;
  return spile__sliding_log.state(shape, &one, now_ms, old, out);
}

/* A denied take leaves an entry (CORE-16 c): here, whatever is written for it. */
static bool bug_refused_takes_count(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                    const spile__state *old, spile__state *out) {
  spile_reading more = *reading;
  if (log_charged(shape, reading, now_ms, old) == 0 && more.values[0] < shape->capacity)
    more.values[0]++;
  return spile__sliding_log.state(shape, &more, now_ms, old, out);
}

/* A new entry is as old as the clock says, also before the newest. */
static bool bug_new_entry_before_the_newest(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                            const spile__state *old, spile__state *out) {
  bool charged = log_charged(shape, reading, now_ms, old) > 0;
  bool stored = spile__sliding_log.state(shape, reading, now_ms, old, out);
  if (stored && charged && out->n == 1)
    out->log[0] = spile__log_entry(now_ms, out->log[0] & 1023);
  return stored;
}

/* Of what passes a smaller capacity the newest is forgotten. */
static bool bug_forgets_the_newest(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                   spile_reading *out) {
  bool moved = spile__sliding_log.read(shape, state, now_ms, cost, out);
  if (state != NULL && moved && state->n > 1 && shape->capacity < state->shape.capacity &&
      out->values[0] == shape->capacity && out->values[2] > 1)
    out->values[2]--;
  return moved;
}

/* ---- in charge, refund and take up to ---- */

/* A charge goes a token deeper than the debt. */
static int64_t bug_charges_too_deep(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  spile_shape deeper = *shape;
  deeper.debt++;
  return spile__token_bucket.force(&deeper, reading, cost);
}

/* A part of a token that was not charged is not told. */
static int64_t bug_uncharged_rounds_down(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  int64_t left = (shape->capacity + shape->debt) * shape->period_ms - reading->values[0];
  int64_t uncharged = spile__token_bucket.force(shape, reading, cost);
  return uncharged > 0 && left > 0 && left % shape->period_ms != 0 ? uncharged - 1 : uncharged;
}

/* A bucket that a clock which stepped back shows deeper than its debt is lifted to it by a charge. */
static int64_t bug_charge_lifts(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  int64_t uncharged = spile__token_bucket.force(shape, reading, cost);
  int64_t deepest = (shape->capacity + shape->debt) * shape->period_ms;
  reading->values[0] = reading->values[0] > deepest ? deepest : reading->values[0];
  return uncharged;
}

/* A charge without a debt is one of whole tokens, and leaves a part of one. */
static int64_t bug_charges_whole_tokens(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  int64_t room = spile__token_bucket.room(shape, reading);
  if (shape->debt > 0 || cost <= room)
    return spile__token_bucket.force(shape, reading, cost);
  reading->values[0] += room * shape->period_ms; /* as charging does, which may assert that it fits */
  return cost - room;
}

/* A refund gives the part of a token that is left of the debt as well. */
static void bug_refund_rounds_up(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  spile__token_bucket.refund(shape, reading, cost);
  if (cost > 0 && reading->values[0] < shape->period_ms)
    reading->values[0] = 0;
}

/* What is granted rounds up. */
static int64_t bug_room_rounds_up(const spile_shape *shape, const spile_reading *reading) {
  int64_t left = shape->capacity * shape->period_ms - reading->values[0];
  return left <= 0 ? 0 : spile__div_ceil(left, shape->period_ms);
}

/* A debt deeper than the new limit's is kept. */
static bool bug_keeps_the_old_debt(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                                   spile_reading *out) {
  spile_shape deeper = *shape;
  if (state != NULL && !spile__shape_equal(shape, &state->shape))
    deeper.debt = state->shape.debt > shape->debt ? state->shape.debt : shape->debt;
  return spile__token_bucket.read(&deeper, state, now_ms, cost, out);
}

/* A charge counts past the capacity. */
static int64_t bug_window_counts_past_capacity(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  (void)shape;
  reading->values[0] = spile__add_saturate(reading->values[0], cost);
  return 0;
}

/* A refund takes a window below zero. */
static void bug_window_below_zero(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  reading->values[0] -= cost < shape->capacity ? cost : shape->capacity;
}

/* A refund takes back from the window before as well. */
static void bug_refunds_the_window_before(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  int64_t rest = cost - (cost < reading->values[1] ? cost : reading->values[1]);
  spile__sliding_window.refund(shape, reading, cost);
  reading->values[0] -= rest < reading->values[0] ? rest : reading->values[0];
}

/* What the window before gave is not in the way of a charge. */
static int64_t bug_room_beside_the_window_before(const spile_shape *shape, const spile_reading *reading) {
  return shape->capacity - reading->values[1];
}

/* A refund takes the oldest tokens back. */
static bool bug_refunds_the_oldest(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                   const spile__state *old, spile__state *out) {
  int64_t tokens = -log_charged(shape, reading, now_ms, old);
  if (tokens <= 0 || old == NULL)
    return spile__sliding_log.state(shape, reading, now_ms, old, out);
  spile_reading nothing = *reading;
  nothing.values[0] += tokens;
  if (!spile__sliding_log.state(shape, &nothing, now_ms, old, out))
    return false;
  size_t i = 0;
  for (; i < out->n && tokens >= (out->log[i] & 1023); i++)
    tokens -= out->log[i] & 1023;
  memmove(out->log, out->log + i, (out->n - i) * sizeof(out->log[0]));
  out->n -= i;
  if (out->n > 0)
    out->log[0] -= tokens;
  return out->n > 0;
}

/* A refund leaves the time until nothing counts as it was. */
static void bug_refund_keeps_the_reset(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  int64_t reset_ms = reading->values[2];
  spile__sliding_log.refund(shape, reading, cost);
  if (reading->values[0] > 0)
    reading->values[2] = reset_ms;
}

/* ---- in when one more is left ---- */

/* What is left grows when all is back. */
static void bug_grows_when_full(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                spile__verdict *out) {
  spile__leaky_bucket.report(shape, reading, cost, charged, out);
  if (out->reset_after_ms > 0)
    out->grows_after_ms = out->reset_after_ms;
}

/* A token takes as long to come whatever has come of it. */
static void bug_grows_a_whole_token_later(const spile_shape *shape, const spile_reading *reading, int64_t cost,
                                          bool charged, spile__verdict *out) {
  spile__token_bucket.report(shape, reading, cost, charged, out);
  if (out->reset_after_ms > 0)
    out->grows_after_ms = spile__div_ceil(shape->period_ms, shape->refill);
}

static void bug_grows_rounds_down(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                                  spile__verdict *out) {
  spile__token_bucket.report(shape, reading, cost, charged, out);
  int64_t debt = reading->values[0] + (charged ? cost * shape->period_ms : 0);
  if (out->reset_after_ms > 0)
    out->grows_after_ms = (debt - (shape->capacity - out->remaining - 1) * shape->period_ms) / shape->refill;
}

/* What is left grows at the end of the window. */
static void bug_grows_with_the_window(const spile_shape *shape, const spile_reading *reading, int64_t cost,
                                      bool charged, spile__verdict *out) {
  spile__sliding_window.report(shape, reading, cost, charged, out);
  if (out->reset_after_ms > 0)
    out->grows_after_ms = reading->values[2];
}

/* A take makes its own entry the oldest. */
static void bug_grows_with_the_newest(const spile_shape *shape, const spile_reading *reading, int64_t cost,
                                      bool charged, spile__verdict *out) {
  spile__sliding_log.report(shape, reading, cost, charged, out);
  if (out->reset_after_ms > 0)
    out->grows_after_ms = out->reset_after_ms;
}

typedef struct planted {
  const char *name;
  core_subject core;
} planted;

Test(differential, catches_planted_bugs) {
  const core_subject sound = core_sound();
  static planted bugs[55];
  size_t n = 0;
#define PLANT(label, member, value)                  \
  bugs[n] = (planted){.name = label, .core = sound}; \
  bugs[n++].core.member = value
  PLANT("retry rounds down", algorithms[SPILE_TOKEN_BUCKET].report, bug_retry_rounds_down);
  PLANT("reset rounds down", algorithms[SPILE_TOKEN_BUCKET].report, bug_reset_rounds_down);
  PLANT("remaining rounds up", algorithms[SPILE_TOKEN_BUCKET].report, bug_remaining_rounds_up);
  PLANT("a take leaves a unit", algorithms[SPILE_TOKEN_BUCKET].fits, bug_fits_leaves_a_unit);
  PLANT("no cut", algorithms[SPILE_TOKEN_BUCKET].read, bug_no_cut);
  PLANT("cut without tolerance", algorithms[SPILE_TOKEN_BUCKET].read, bug_cut_without_tolerance);
  PLANT("cut at the edge", algorithms[SPILE_TOKEN_BUCKET].read, bug_cut_at_the_edge);
  PLANT("idle time at full earns", algorithms[SPILE_TOKEN_BUCKET].read, bug_idle_time_earns);
  PLANT("a clock that steps back earns", algorithms[SPILE_TOKEN_BUCKET].read, bug_clock_back_earns);
  PLANT("conversion to whole tokens", algorithms[SPILE_TOKEN_BUCKET].read, bug_conversion_drops_the_fraction);
  PLANT("conversion in doubles", algorithms[SPILE_TOKEN_BUCKET].read, bug_conversion_in_doubles);
  PLANT("no conversion", algorithms[SPILE_TOKEN_BUCKET].read, bug_no_conversion);
  PLANT("remainder lost", algorithms[SPILE_TOKEN_BUCKET].state, bug_remainder_lost);
  PLANT("what a conversion filled is kept", algorithms[SPILE_TOKEN_BUCKET].state, bug_full_is_kept);
  PLANT("the delay counts the take itself", algorithms[SPILE_LEAKY_BUCKET].report, bug_delay_after);
  PLANT("the delay rounds down", algorithms[SPILE_LEAKY_BUCKET].report, bug_delay_rounds_down);
  PLANT("the drain starts anew at each take", algorithms[SPILE_LEAKY_BUCKET].state, bug_drain_restarts);
  PLANT("a window never ends", algorithms[SPILE_FIXED_WINDOW].read, bug_window_never_ends);
  PLANT("a window ends late", algorithms[SPILE_FIXED_WINDOW].read, bug_window_ends_late);
  PLANT("a clock that steps back begins a window anew", algorithms[SPILE_FIXED_WINDOW].read, bug_window_goes_back);
  PLANT("a changed window begins anew", algorithms[SPILE_FIXED_WINDOW].read, bug_change_forgets);
  PLANT("a count two windows old weighs", algorithms[SPILE_SLIDING_WINDOW].read, bug_two_windows_old);
  PLANT("the wait is to the end of the window", algorithms[SPILE_SLIDING_WINDOW].report, bug_waits_for_the_end);
  PLANT("the window before weighs all", algorithms[SPILE_SLIDING_WINDOW].fits, bug_before_weighs_all);
  PLANT("the window before is forgotten at a write", algorithms[SPILE_SLIDING_WINDOW].state, bug_forgets_before);
  PLANT("an entry counts a ms longer", algorithms[SPILE_SLIDING_LOG].read, bug_counts_a_ms_longer);
  PLANT("the wait follows the newest entry", algorithms[SPILE_SLIDING_LOG].report, bug_waits_for_the_newest);
  PLANT("equal times are one token", algorithms[SPILE_SLIDING_LOG].state, bug_equal_times_are_one);
  PLANT("what is written for a denial counts", algorithms[SPILE_SLIDING_LOG].state, bug_refused_takes_count);
  PLANT("a new entry before the newest", algorithms[SPILE_SLIDING_LOG].state, bug_new_entry_before_the_newest);
  PLANT("the newest is forgotten", algorithms[SPILE_SLIDING_LOG].read, bug_forgets_the_newest);
  PLANT("a denial loses conversion and cut", denial_writes, false);
  PLANT("who fits pays although another denies", all_or_nothing, false);
  PLANT("a peek writes", peek_writes, true);
  PLANT("time never goes back", clock_held, true);
  PLANT("a charge goes too deep", algorithms[SPILE_TOKEN_BUCKET].force, bug_charges_too_deep);
  PLANT("what was not charged rounds down", algorithms[SPILE_TOKEN_BUCKET].force, bug_uncharged_rounds_down);
  PLANT("a charge lifts a bucket that is too deep", algorithms[SPILE_TOKEN_BUCKET].force, bug_charge_lifts);
  PLANT("a charge is of whole tokens", algorithms[SPILE_TOKEN_BUCKET].force, bug_charges_whole_tokens);
  PLANT("a refund rounds up", algorithms[SPILE_TOKEN_BUCKET].refund, bug_refund_rounds_up);
  PLANT("what is granted rounds up", algorithms[SPILE_TOKEN_BUCKET].room, bug_room_rounds_up);
  PLANT("a conversion keeps the old debt", algorithms[SPILE_TOKEN_BUCKET].read, bug_keeps_the_old_debt);
  PLANT("a charge passes the capacity", algorithms[SPILE_FIXED_WINDOW].force, bug_window_counts_past_capacity);
  PLANT("a refund goes below zero", algorithms[SPILE_FIXED_WINDOW].refund, bug_window_below_zero);
  PLANT("the window before is refunded", algorithms[SPILE_SLIDING_WINDOW].refund, bug_refunds_the_window_before);
  PLANT("the window before takes no room", algorithms[SPILE_SLIDING_WINDOW].room, bug_room_beside_the_window_before);
  PLANT("the oldest is refunded", algorithms[SPILE_SLIDING_LOG].state, bug_refunds_the_oldest);
  PLANT("a refund keeps the reset", algorithms[SPILE_SLIDING_LOG].refund, bug_refund_keeps_the_reset);
  PLANT("a leaky bucket grows when it is full", algorithms[SPILE_LEAKY_BUCKET].report, bug_grows_when_full);
  PLANT("a part of a token is lost", algorithms[SPILE_TOKEN_BUCKET].report, bug_grows_a_whole_token_later);
  PLANT("a bucket grows early", algorithms[SPILE_TOKEN_BUCKET].report, bug_grows_rounds_down);
  PLANT("a sliding window grows at its end", algorithms[SPILE_SLIDING_WINDOW].report, bug_grows_with_the_window);
  PLANT("a log grows with its newest", algorithms[SPILE_SLIDING_LOG].report, bug_grows_with_the_newest);
  PLANT("what the first has is granted", grants_scarcest, false);
  PLANT("a refund that fills is not written", refunds_stay, true);
#undef PLANT
  cr_assert(n == sizeof(bugs) / sizeof(bugs[0]));
  for (size_t i = 0; i < n; i++) {
    steps_subject subject = {.name = bugs[i].name, .decide = core_decide, .self = &bugs[i].core};
    steps_result result;
    steps_run(&subject, number_from_env("SPILE_SEED", 20240229), 100000, &result);
    cr_expect(result.differences > 0, "not found in %" PRIu64 " steps: %s", result.compared, bugs[i].name);
    printf("differential: planted \"%s\": found at step %" PRIu64 "\n", bugs[i].name, result.compared);
  }
}
