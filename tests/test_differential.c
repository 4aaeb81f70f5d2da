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
         " denied, %" PRIu64 " never, %" PRIu64 " in buckets of other numbers, %" PRIu64 " promises kept)\n",
         subject->name, result.compared, result.differences, seed, result.denied, result.never, result.changed,
         result.promises);
  (void)fflush(stdout);
  cr_assert(result.differences == 0, "%s", result.difference);
  /* The steps go where the faults are: no kind of answer is rare. */
  cr_assert(result.denied > result.compared / 10 && result.never > result.compared / 100);
  cr_assert(result.compared - result.denied - result.never > result.compared / 10);
  cr_assert(result.changed > result.compared / 20 && result.promises > result.compared / 50);
}

/* ---- The core over a plain array ---- */

#define ALGORITHMS SPILE_SLIDING_LOG /* the last one */

typedef struct core_subject {
  spile__algorithm algorithms[ALGORITHMS + 1]; /* the core's by spile_algorithm, one of them perhaps broken */
  bool denial_writes;
  bool all_or_nothing;
  bool peek_writes;
  bool clock_held; /* decides at the latest time ever seen */
  int64_t latest_ms;
  bool stored[STEPS_BUCKETS];
} core_subject;

/* Of the subject that is running: they are too large to be copied with it. */
static spile__state core_states[STEPS_BUCKETS];

static core_subject core_sound(void) {
  core_subject core = {.denial_writes = true, .all_or_nothing = true};
  for (int i = 1; i <= ALGORITHMS; i++)
    core.algorithms[i] = *spile__algorithm_get((spile_algorithm)i);
  return core;
}

static void core_write(core_subject *core, size_t bucket, const spile_item *item, int64_t cost, int64_t now_ms) {
  const spile__algorithm *algorithm = &core->algorithms[item->spec->algorithm];
  spile_reading reading = item->reading;
  if (cost > 0)
    algorithm->charge(&item->spec->shape, &reading, cost);
  spile__state *state = &core_states[bucket];
  core->stored[bucket] =
      algorithm->state(&item->spec->shape, &reading, now_ms, core->stored[bucket] ? state : NULL, state);
}

static int core_decide(void *self, bool take, int64_t now_ms, const spile_request *requests, const size_t *buckets,
                       size_t n, spile_decision *decision, spile_decision *each) {
  core_subject *core = self;
  core->latest_ms = now_ms > core->latest_ms ? now_ms : core->latest_ms;
  if (core->clock_held)
    now_ms = core->latest_ms;

  spile_item items[SPILE_REQUESTS_MAX] = {{0}};
  size_t firsts[SPILE_REQUESTS_MAX] = {0};
  size_t item_of[SPILE_REQUESTS_MAX];
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    size_t j = 0;
    while (j < count && buckets[firsts[j]] != buckets[i])
      j++;
    item_of[i] = j;
    if (j == count) {
      firsts[count] = i;
      items[count++] = (spile_item){.spec = spile_limit_spec(requests[i].limit)};
    }
    items[j].cost = spile__add_saturate(items[j].cost, requests[i].cost);
  }

  bool moved[SPILE_REQUESTS_MAX];
  bool fit[SPILE_REQUESTS_MAX];
  bool never = false;
  bool all_fit = true;
  for (size_t j = 0; j < count; j++) {
    size_t bucket = buckets[firsts[j]];
    const spile_shape *shape = &items[j].spec->shape;
    const spile__algorithm *algorithm = &core->algorithms[items[j].spec->algorithm];
    moved[j] = algorithm->read(shape, core->stored[bucket] ? &core_states[bucket] : NULL, now_ms, items[j].cost,
                               &items[j].reading);
    bool fits = items[j].cost <= shape->capacity;
    never = never || !fits;
    fit[j] = fits && algorithm->fits(shape, &items[j].reading, items[j].cost);
    all_fit = all_fit && fit[j];
  }
  bool charged = take && all_fit;
  for (size_t j = 0; j < count; j++) {
    bool writes = (take && !never && items[j].cost > 0) || core->peek_writes;
    if (!writes)
      continue;
    if (charged || (!core->all_or_nothing && take && fit[j]))
      core_write(core, buckets[firsts[j]], &items[j], items[j].cost, now_ms);
    else if (moved[j] && core->denial_writes)
      core_write(core, buckets[firsts[j]], &items[j], 0, now_ms);
  }

  int outcome = spile__decide(items, count, charged, decision, NULL);
  decision->index = (uint32_t)firsts[decision->index];
  for (size_t i = 0; i < n; i++) {
    const spile_item *item = &items[item_of[i]];
    spile__verdict verdict;
    core->algorithms[item->spec->algorithm].report(&item->spec->shape, &item->reading, item->cost, charged, &verdict);
    each[i] = (spile_decision){.outcome = verdict.outcome,
                               .decided_by = SPILE_BY_STORE,
                               .index = (uint32_t)i,
                               .remaining = verdict.remaining,
                               .retry_after_ms = verdict.retry_after_ms,
                               .reset_after_ms = verdict.reset_after_ms,
                               .delay_ms = verdict.delay_ms};
  }
  return outcome;
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

static int store_decide(void *self, bool take, int64_t now_ms, const spile_request *requests, const size_t *buckets,
                        size_t n, spile_decision *decision, spile_decision *each) {
  store_subject *store = self;
  (void)buckets;
  spile_fake_clock_set(store->clock, now_ms);
  if (n > 1 && take)
    return spile_take_all(store->limiter, requests, n, decision, each);
  if (n > 1)
    return spile_peek_all(store->limiter, requests, n, decision, each);
  int outcome = (take ? spile_take : spile_peek)(store->limiter, requests->limit, requests->key, requests->key_len,
                                                 requests->cost, decision);
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

/* Takes of one millisecond are one entry of one token (CORE-16 b). */
static bool bug_equal_times_are_one(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                    const spile__state *old, spile__state *out) {
  spile_reading one = *reading;
  if (old != NULL && old->n > 0 && spile__sliding_log.full_at_ms(old) - old->shape.period_ms == now_ms &&
      one.values[3] == 1)
    one.values[3] = 0;
  return spile__sliding_log.state(shape, &one, now_ms, old, out);
}

/* A denied take leaves an entry (CORE-16 c): here, whatever is written for it. */
static bool bug_refused_takes_count(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                    const spile__state *old, spile__state *out) {
  spile_reading more = *reading;
  if (more.values[3] == 0 && more.values[0] < shape->capacity)
    more.values[3] = 1;
  return spile__sliding_log.state(shape, &more, now_ms, old, out);
}

/* A new entry is as old as the clock says, also before the newest. */
static bool bug_new_entry_before_the_newest(const spile_shape *shape, const spile_reading *reading, int64_t now_ms,
                                            const spile__state *old, spile__state *out) {
  bool stored = spile__sliding_log.state(shape, reading, now_ms, old, out);
  if (stored && reading->values[3] > 0 && out->n == 1)
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

typedef struct planted {
  const char *name;
  core_subject core;
} planted;

Test(differential, catches_planted_bugs) {
  const core_subject sound = core_sound();
  static planted bugs[35];
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
