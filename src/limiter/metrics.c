/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters by a limit's name.
 *
 * A row belongs to a name and stays until the limiter is closed, so what is counted never goes back, whatever limits
 * come and go under that name. Names come from a limits file or from a program, not from who asks, and still there is a
 * bound to how many get a row: what comes later is counted in one row for all.
 *
 * How threads share it: a row is found in a table of names, which is only ever added to; whoever swaps a row into the
 * empty slot where looking for its name ends has added it. Before that table stands another one by the fingerprint that
 * every limit carries, a guess which the name must confirm: it may be overwritten at any time. A row's counters are
 * spread over stripes, one per thread as far as they go, so that counting makes nobody wait. Only what the store did
 * not answer is counted in one place: takes that fail meet in the same log line anyway.
 */
#include "limiter/metrics.h"

#include <stdatomic.h>
#include <string.h>

#include "core/checked.h"
#include "core/siphash.h"
#include "core/text.h"
#include "limiter/limiter.h"

/* Where a take is counted, unless the store did not answer. */
enum {
  CELL_ALLOWED,
  CELL_DENIED,
  CELL_NEVER,
  CELL_FULL_OPEN,
  CELL_FULL_CLOSED,
  CELL_FULL_FAILED,
  CELL_SHADOW_ALLOWED,
  CELL_SHADOW_DENIED,
  CELL_SHADOW_FAILED,
  CELLS
};

/* … and if it did not. */
enum { ANSWER_OPEN, ANSWER_CLOSED, ANSWER_NONE, ANSWERS };

typedef struct metrics_stripe {
  _Alignas(64) atomic_uint_least64_t takes[CELLS];
  atomic_uint_least64_t calls[SPILE_METRICS_RANGES];
  atomic_uint_least64_t calls_ns;
} metrics_stripe;

_Static_assert(sizeof(metrics_stripe) == 256, "a stripe is whole cache lines, and no more than it needs");

typedef struct metrics_row {
  metrics_stripe stripes[LIMITER_STRIPES];
  atomic_uint_least64_t policy[ANSWERS][SPILE_REASONS_MAX];
  void *block; /* what was allocated, which is less aligned */
  size_t name_len;
  char name[SPILE_NAME_LEN_MAX + 1];
} metrics_row;

#define SLOTS 2048   /* by name; half of them at least stay empty, so looking ends */
#define GUESSES 2048 /* by fingerprint */
_Static_assert(SLOTS >= 2 * SPILE_METRICS_NAMES_MAX, "looking for a name that is not there must end soon");

struct spile__metrics {
  const spile_env *env;
  uint64_t secret[2]; /* names may come from outside after all: nobody may make them collide */
  metrics_row *other;
  atomic_size_t count;
  _Atomic(metrics_row *) slots[SLOTS];
  _Atomic(metrics_row *) guesses[GUESSES];
};

/* ---- Rows ---- */

static metrics_row *row_new(const spile_env *env, const char *name, size_t name_len) {
  void *block = env->allocate(env->allocate_user, NULL, sizeof(metrics_row) + _Alignof(metrics_row));
  if (block == NULL)
    return NULL;
  uintptr_t past = (uintptr_t)block % _Alignof(metrics_row);
  metrics_row *row = (metrics_row *)(void *)((char *)block + (past > 0 ? _Alignof(metrics_row) - past : 0));
  memset(row, 0, sizeof(*row));
  row->block = block;
  row->name_len = name_len;
  memcpy(row->name, name, name_len);
  return row;
}

static void row_free(const spile_env *env, metrics_row *row) {
  if (row != NULL)
    (void)env->allocate(env->allocate_user, row->block, 0);
}

static bool row_is(const metrics_row *row, const spile_spec *spec) {
  return row->name_len == spec->name_len && memcmp(row->name, spec->name, spec->name_len) == 0;
}

/* The row of a name, or NULL with the empty slot where it belongs. */
static metrics_row *row_find(spile__metrics *metrics, const spile_spec *spec, size_t *slot) {
  for (*slot = spile__siphash64(metrics->secret, spec->name, spec->name_len) % SLOTS;; *slot = (*slot + 1) % SLOTS) {
    metrics_row *row = atomic_load_explicit(&metrics->slots[*slot], memory_order_acquire);
    if (row == NULL || row_is(row, spec))
      return row;
  }
}

/* The row that is in the slot, or further on, when another thread added the same name meanwhile. */
static metrics_row *row_add(spile__metrics *metrics, const spile_spec *spec, size_t slot) {
  if (atomic_fetch_add_explicit(&metrics->count, 1, memory_order_relaxed) >= SPILE_METRICS_NAMES_MAX) {
    atomic_fetch_sub_explicit(&metrics->count, 1, memory_order_relaxed);
    return metrics->other;
  }
  metrics_row *row = row_new(metrics->env, spec->name, spec->name_len);
  metrics_row *found = NULL;
  while (row != NULL && found == NULL) {
    if (atomic_compare_exchange_strong_explicit(&metrics->slots[slot], &found, row, memory_order_release,
                                                memory_order_acquire))
      return row;
    /* Somebody took the slot: for this name, or for another one, and then it goes on behind it. */
    found = row_find(metrics, spec, &slot);
  }
  row_free(metrics->env, row);
  atomic_fetch_sub_explicit(&metrics->count, 1, memory_order_relaxed);
  return found != NULL ? found : metrics->other;
}

SPILE__OUT_OF_LINE static metrics_row *row_get_slowly(spile__metrics *metrics, const spile_spec *spec) {
  size_t slot = 0;
  metrics_row *row = row_find(metrics, spec, &slot);
  if (row == NULL)
    row = row_add(metrics, spec, slot);
  /* Only its own row is a good guess. */
  if (row != metrics->other)
    atomic_store_explicit(&metrics->guesses[spec->fingerprint % GUESSES], row, memory_order_release);
  return row;
}

static inline metrics_row *row_get(spile__metrics *metrics, const spile_spec *spec) {
  metrics_row *row = atomic_load_explicit(&metrics->guesses[spec->fingerprint % GUESSES], memory_order_acquire);
  return row != NULL && row_is(row, spec) ? row : row_get_slowly(metrics, spec);
}

/* ---- Counting ---- */

static void count_up(atomic_uint_least64_t *counter) {
  atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static void row_count(metrics_row *row, size_t cell) {
  count_up(&row->stripes[spile__stripe()].takes[cell]);
}

static size_t shadow_cell(const spile_decision *decision) {
  if (decision->decided_by != SPILE_BY_STORE && decision->decided_by != SPILE_BY_LIMITS)
    return CELL_SHADOW_FAILED;
  return decision->outcome == SPILE_ALLOWED ? CELL_SHADOW_ALLOWED : CELL_SHADOW_DENIED;
}

static void row_count_unanswered(metrics_row *row, const spile_decision *decision) {
  size_t answer = ANSWER_NONE;
  if (decision->outcome != 0)
    answer = decision->outcome == SPILE_ALLOWED ? ANSWER_OPEN : ANSWER_CLOSED;
  count_up(&row->policy[answer][decision->store_error]);
}

void spile__metrics_take(spile__metrics *metrics, const spile_spec *spec, int result, const spile_decision *decision,
                         bool shadow) {
  metrics_row *row = row_get(metrics, spec);
  if (shadow)
    row_count(row, shadow_cell(decision));
  else if (decision->decided_by == SPILE_BY_STORE || decision->decided_by == SPILE_BY_LIMITS)
    row_count(row, (size_t)(decision->outcome - SPILE_ALLOWED) + CELL_ALLOWED);
  else if (decision->decided_by == SPILE_BY_FULL)
    row_count(row, decision->outcome == SPILE_ALLOWED ? CELL_FULL_OPEN : CELL_FULL_CLOSED);
  else if (result == SPILE_EFULL)
    row_count(row, CELL_FULL_FAILED);
  else
    row_count_unanswered(row, decision);
}

/* 1, 2.5 and 5 of each power of ten, from a microsecond to five seconds. */
static const int64_t bounds_ns[SPILE_METRICS_RANGES - 1] = {
    1000,    2500,     5000,     10000,    25000,     50000,     100000,    250000,     500000,     1000000,   2500000,
    5000000, 10000000, 25000000, 50000000, 100000000, 250000000, 500000000, 1000000000, 2500000000, 5000000000};

int64_t spile_metrics_bound_ns(size_t range) {
  return range < SPILE_METRICS_RANGES - 1 ? bounds_ns[range] : INT64_MAX;
}

void spile__metrics_call(spile__metrics *metrics, const spile_spec *spec, int64_t took_ns) {
  if (took_ns < 0)
    took_ns = 0;
  size_t range = 0;
  while (range < SPILE_METRICS_RANGES - 1 && took_ns > bounds_ns[range])
    range++;
  metrics_stripe *stripe = &row_get(metrics, spec)->stripes[spile__stripe()];
  count_up(&stripe->calls[range]);
  atomic_fetch_add_explicit(&stripe->calls_ns, (uint64_t)took_ns, memory_order_relaxed);
}

/* ---- Reading ---- */

static uint64_t counter_read(const atomic_uint_least64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

static void row_read(const metrics_row *row, spile_metrics *out) {
  uint64_t takes[CELLS] = {0};
  *out = (spile_metrics){.limit = row->name};
  for (size_t i = 0; i < LIMITER_STRIPES; i++) {
    const metrics_stripe *stripe = &row->stripes[i];
    for (size_t j = 0; j < CELLS; j++)
      takes[j] += counter_read(&stripe->takes[j]);
    for (size_t j = 0; j < SPILE_METRICS_RANGES; j++)
      out->calls[j] += counter_read(&stripe->calls[j]);
    out->calls_ns += counter_read(&stripe->calls_ns);
  }
  out->allowed = takes[CELL_ALLOWED];
  out->denied = takes[CELL_DENIED];
  out->never = takes[CELL_NEVER];
  out->full_open = takes[CELL_FULL_OPEN];
  out->full_closed = takes[CELL_FULL_CLOSED];
  out->full_failed = takes[CELL_FULL_FAILED];
  out->shadow_allowed = takes[CELL_SHADOW_ALLOWED];
  out->shadow_denied = takes[CELL_SHADOW_DENIED];
  out->shadow_failed = takes[CELL_SHADOW_FAILED];
  for (size_t i = 0; i < SPILE_REASONS_MAX; i++) {
    out->policy_open[i] = counter_read(&row->policy[ANSWER_OPEN][i]);
    out->policy_closed[i] = counter_read(&row->policy[ANSWER_CLOSED][i]);
    out->unavailable[i] = counter_read(&row->policy[ANSWER_NONE][i]);
  }
}

static bool metrics_counted(const spile_metrics *row) {
  uint64_t sum = row->allowed + row->denied + row->never + row->full_open + row->full_closed + row->full_failed +
                 row->shadow_allowed + row->shadow_denied + row->shadow_failed;
  for (size_t i = 0; i < SPILE_REASONS_MAX; i++)
    sum += row->policy_open[i] + row->policy_closed[i] + row->unavailable[i];
  for (size_t i = 0; i < SPILE_METRICS_RANGES; i++)
    sum += row->calls[i];
  return sum > 0;
}

void spile__metrics_each(const spile__metrics *metrics, spile_metrics_visitor *visit, void *user) {
  spile_metrics out;
  for (size_t i = 0; i < SLOTS; i++) {
    const metrics_row *row = atomic_load_explicit(&metrics->slots[i], memory_order_acquire);
    if (row == NULL)
      continue;
    row_read(row, &out);
    if (!visit(user, &out))
      return;
  }
  row_read(metrics->other, &out);
  out.other = true;
  if (metrics_counted(&out))
    (void)visit(user, &out);
}

/* ---- Opening ---- */

int spile__metrics_open(spile__metrics **out, const spile_env *env, spile_error *error) {
  *out = NULL;
  spile__metrics *metrics = env->allocate(env->allocate_user, NULL, sizeof(*metrics));
  if (metrics == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for the metrics", NULL);
  memset(metrics, 0, sizeof(*metrics));
  metrics->env = env;
  int result = SPILE_OK;
  metrics->other = row_new(env, SPILE_METRICS_OTHER, sizeof(SPILE_METRICS_OTHER) - 1);
  if (metrics->other == NULL)
    result = spile__fail(error, SPILE_ENOMEM, "out of memory for the metrics", NULL);
  else if (!env->random(env->user, metrics->secret, sizeof(metrics->secret)))
    result =
        spile__fail(error, SPILE_EUNAVAILABLE, "the system gave no random numbers for the metrics; open again", NULL);
  if (result == SPILE_OK)
    *out = metrics;
  else
    spile__metrics_close(metrics);
  return result;
}

void spile__metrics_close(spile__metrics *metrics) {
  if (metrics == NULL)
    return;
  for (size_t i = 0; i < SLOTS; i++)
    row_free(metrics->env, atomic_load_explicit(&metrics->slots[i], memory_order_relaxed));
  row_free(metrics->env, metrics->other);
  (void)metrics->env->allocate(metrics->env->allocate_user, metrics, 0);
}
