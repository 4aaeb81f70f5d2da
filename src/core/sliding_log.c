/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sliding log: every take is remembered for as long as it counts, which is while its time is above now − W. So any
 * window of length W admits the capacity and no more, exactly; the price is a state that grows with what was taken.
 *
 * An entry is an instant and how many tokens were taken at it: a take of several is one entry, and takes of one
 * millisecond are one. There are never more entries than tokens that count, so the capacity is the bound of both.
 *
 * The clock rule: what was taken more than the tolerance ahead counts as taken now; and a new entry is never older than
 * the newest. When the numbers of the limit change, entries go on counting by their own times under the new length;
 * what passes the new capacity is forgotten, the oldest first.
 *
 * A charge is an entry of as many tokens as there are. A refund takes the newest tokens back, whenever they were taken.
 *
 * A reading is how many tokens count, how long the item's cost has to wait, how long until nothing counts, and how long
 * until the oldest does not. For a refund nothing has to wait, and in that place stands how long until nothing counts
 * once it is made. What was charged or given back is how much more counts than in the state that was read.
 *
 * lua/take.lua makes the same decision with the same names; a change here is a change there.
 */
#include <string.h>

#include "core/limit.h"
#include "core/text.h"
#include "core/window.h"

enum { USED, WAIT_MS, RESET_MS, OLDEST_MS };

_Static_assert(SPILE__LOG_MAX < 1 << SPILE__LOG_TOKENS_BITS, "an entry has room for all tokens of a log");

static inline int64_t entry_at_ms(int64_t entry) {
  return entry >> SPILE__LOG_TOKENS_BITS;
}

static inline int64_t entry_tokens(int64_t entry) {
  return entry & ((1 << SPILE__LOG_TOKENS_BITS) - 1);
}

static int log_shape_make(spile_shape *out, int64_t capacity, int64_t tokens, int64_t window_ms, int64_t debt,
                          spile_error *error) {
  int result = spile__window_make(out, capacity, tokens, window_ms, debt, error);
  if (result != SPILE_OK)
    return result;
  if (capacity > SPILE__LOG_MAX)
    return spile__fail(error, SPILE_ECONFIG,
                       "capacity is # tokens, # more than the # that a sliding_log can remember one by one; write "
                       "sliding_window, which counts nearly as exactly and any number",
                       (int64_t[]){capacity, capacity - SPILE__LOG_MAX, SPILE__LOG_MAX});
  return SPILE_OK;
}

static bool log_shape_valid(const spile_shape *shape) {
  spile_shape made;
  return log_shape_make(&made, shape->capacity, 0, shape->period_ms, 0, NULL) == SPILE_OK &&
         spile__shape_equal(&made, shape);
}

static int64_t log_full_time_ms(const spile_shape *shape) {
  return shape->period_ms;
}

/* ---- What counts ---- */

/* The entries that count, oldest first. */
typedef struct log_view {
  const int64_t *entries;
  size_t n;
  bool moved; /* by the clock rule or a change of the limit */
} log_view;

static void view_add(int64_t *entries, size_t *n, int64_t at_ms, int64_t tokens) {
  if (*n > 0 && entry_at_ms(entries[*n - 1]) == at_ms)
    entries[*n - 1] += tokens;
  else if (tokens > 0)
    entries[(*n)++] = spile__log_entry(at_ms, tokens);
}

/*
 * Entries more than the tolerance ahead become one of now. It comes before those that are ahead within the tolerance,
 * so that the order stays.
 */
static SPILE__OUT_OF_LINE void view_cut(log_view *view, int64_t now_ms, int64_t *room) {
  size_t ahead = 0;
  while (ahead < view->n && entry_at_ms(view->entries[ahead]) <= now_ms)
    ahead++;
  size_t kept = ahead;
  while (kept < view->n && entry_at_ms(view->entries[kept]) <= now_ms + SPILE__TOLERANCE_MS)
    kept++;
  int64_t tokens = 0;
  for (size_t i = kept; i < view->n; i++)
    tokens += entry_tokens(view->entries[i]);
  /* Those of now go to an entry that is there, or move the kept ones by one. */
  bool joins = ahead > 0 && entry_at_ms(view->entries[ahead - 1]) == now_ms;
  size_t to = ahead + (joins || tokens == 0 ? 0 : 1);
  memmove(room + to, view->entries + ahead, (kept - ahead) * sizeof(*room));
  memmove(room, view->entries, ahead * sizeof(*room));
  size_t n = ahead;
  view_add(room, &n, now_ms, tokens);
  *view = (log_view){.entries = room, .n = to + (kept - ahead), .moved = true};
}

/* Leaves out the entries that do not count in a window of this length. */
static void view_expire(log_view *view, int64_t window_ms, int64_t now_ms) {
  size_t i = 0;
  while (i < view->n && entry_at_ms(view->entries[i]) <= now_ms - window_ms)
    i++;
  view->entries += i;
  view->n -= i;
}

static int64_t view_used(const log_view *view) {
  int64_t used = 0;
  for (size_t i = 0; i < view->n; i++)
    used += entry_tokens(view->entries[i]);
  return used;
}

/* Forgets the oldest tokens above the capacity. `room` may be where the entries stand already. */
static SPILE__OUT_OF_LINE void view_clamp(log_view *view, int64_t capacity, int64_t *room) {
  int64_t excess = view_used(view) - capacity;
  size_t i = 0;
  for (; excess > 0 && excess >= entry_tokens(view->entries[i]); i++)
    excess -= entry_tokens(view->entries[i]);
  size_t n = view->n - i;
  for (size_t j = 0; j < n; j++)
    room[j] = view->entries[i + j];
  if (excess > 0)
    room[0] -= excess;
  view->entries = room;
  view->n = n;
}

/*
 * What counts of a state at now_ms under `shape`. A log of which nothing counts is an absent one under every shape.
 * @param room  for SPILE__LOG_MAX entries, used where the state's own do not do; may be the state's own
 */
static log_view view_make(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t *room) {
  log_view view = {0};
  if (state == NULL || state->n == 0)
    return view;
  view.entries = state->log;
  view.n = state->n;
  if (entry_at_ms(view.entries[view.n - 1]) > now_ms + SPILE__TOLERANCE_MS)
    view_cut(&view, now_ms, room);
  view_expire(&view, state->shape.period_ms, now_ms);
  if (view.n == 0) {
    view.moved = false;
  } else if (!spile__shape_equal(shape, &state->shape)) {
    view_expire(&view, shape->period_ms, now_ms);
    view_clamp(&view, shape->capacity, room);
    view.moved = true;
  }
  return view;
}

/* ---- The table ---- */

/* The wait of a take that lacks `need` tokens: until the entries that hold them do not count. */
static int64_t view_wait_ms(const log_view *view, int64_t need, int64_t window_ms, int64_t now_ms) {
  size_t i = 0;
  while ((need -= entry_tokens(view->entries[i])) > 0)
    i++;
  return entry_at_ms(view->entries[i]) + window_ms - now_ms;
}

/* How long until nothing counts when the newest tokens are taken back; 0 when nothing is left. */
static int64_t view_reset_without_ms(const log_view *view, int64_t tokens, int64_t window_ms, int64_t now_ms) {
  size_t n = view->n;
  for (; n > 0 && tokens >= entry_tokens(view->entries[n - 1]); n--)
    tokens -= entry_tokens(view->entries[n - 1]);
  return n > 0 ? entry_at_ms(view->entries[n - 1]) + window_ms - now_ms : 0;
}

static bool log_read(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost,
                     spile_reading *out) {
  int64_t room[SPILE__LOG_MAX];
  log_view view = view_make(shape, state, now_ms, room);
  int64_t used = view_used(&view);
  *out = (spile_reading){.values = {[USED] = used}};
  if (view.n > 0) {
    out->values[RESET_MS] = entry_at_ms(view.entries[view.n - 1]) + shape->period_ms - now_ms;
    out->values[OLDEST_MS] = entry_at_ms(view.entries[0]) + shape->period_ms - now_ms;
  }
  if (cost < 0)
    out->values[WAIT_MS] = view_reset_without_ms(&view, -cost, shape->period_ms, now_ms);
  else if (cost <= shape->capacity && used > shape->capacity - cost && view.n > 0)
    out->values[WAIT_MS] = view_wait_ms(&view, used - (shape->capacity - cost), shape->period_ms, now_ms);
  return view.moved;
}

static bool log_fits(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return reading->values[USED] <= shape->capacity - cost;
}

/* A new entry is made now, or as late as the newest; in both cases something counts for at least a window. */
static int64_t reset_after_charge_ms(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  return cost > 0 ? spile__window_max(reading->values[RESET_MS], shape->period_ms) : reading->values[RESET_MS];
}

static void log_charge(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  SPILE__ASSERT(log_fits(shape, reading, cost));
  reading->values[RESET_MS] = reset_after_charge_ms(shape, reading, cost);
  if (reading->values[USED] == 0 && cost > 0)
    reading->values[OLDEST_MS] = shape->period_ms;
  reading->values[USED] += cost;
}

static int64_t log_room(const spile_shape *shape, const spile_reading *reading) {
  return shape->capacity - reading->values[USED];
}

static void log_refund(const spile_shape *shape, spile_reading *reading, int64_t cost) {
  (void)shape;
  int64_t tokens = spile__window_min(cost, reading->values[USED]);
  if (tokens == 0)
    return;
  reading->values[USED] -= tokens;
  reading->values[RESET_MS] = reading->values[WAIT_MS];
  reading->values[WAIT_MS] = 0;
  if (reading->values[USED] == 0)
    reading->values[OLDEST_MS] = 0;
}

/* Takes the newest tokens from some entries. */
static void entries_remove(int64_t *entries, size_t *n, int64_t tokens) {
  for (; *n > 0 && tokens >= entry_tokens(entries[*n - 1]); --*n)
    tokens -= entry_tokens(entries[*n - 1]);
  if (*n > 0)
    entries[*n - 1] -= tokens;
}

static bool log_state(const spile_shape *shape, const spile_reading *reading, int64_t now_ms, const spile__state *old,
                      spile__state *out) {
  log_view view = view_make(shape, old, now_ms, out->log);
  int64_t charged = reading->values[USED] - view_used(&view);
  /* Forwards, since the entries may stand further back in `out` itself. */
  for (size_t i = 0; i < view.n; i++)
    out->log[i] = view.entries[i];
  size_t n = view.n;
  int64_t newest_ms = n > 0 ? entry_at_ms(out->log[n - 1]) : 0;
  if (charged < 0)
    entries_remove(out->log, &n, -charged);
  else
    view_add(out->log, &n, spile__window_max(now_ms, newest_ms), charged);
  out->shape = *shape;
  out->n = n;
  return n > 0;
}

static void log_report(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                       spile__verdict *out) {
  spile_reading after = *reading;
  *out = (spile__verdict){0};
  if (cost > shape->capacity) {
    out->outcome = SPILE_NEVER;
    out->retry_after_ms = SPILE_UNKNOWN;
  } else if (log_fits(shape, reading, cost)) {
    out->outcome = SPILE_ALLOWED;
    if (charged)
      log_charge(shape, &after, cost);
  } else {
    out->outcome = SPILE_DENIED;
    out->retry_after_ms = reading->values[WAIT_MS];
  }
  out->remaining = log_room(shape, &after);
  out->reset_after_ms = after.values[RESET_MS];
  /* A store that does not say when the oldest goes says when all have gone. */
  if (after.values[USED] == 0)
    out->grows_after_ms = SPILE_UNKNOWN;
  else
    out->grows_after_ms = after.values[OLDEST_MS] > 0 ? after.values[OLDEST_MS] : after.values[RESET_MS];
}

/*
 * There is a wait exactly where the cost does not fit, or where a refund leaves something; and what counts ends exactly
 * where something does, the oldest of it no later. A store may leave out the oldest.
 */
static bool log_reading_valid(const spile_shape *shape, const spile_reading *reading, int64_t cost) {
  int64_t used = reading->values[USED];
  int64_t wait_ms = reading->values[WAIT_MS];
  int64_t reset_ms = reading->values[RESET_MS];
  int64_t oldest_ms = reading->values[OLDEST_MS];
  bool waits = cost < 0 ? used > -cost : cost <= shape->capacity && used > shape->capacity - cost;
  return used >= 0 && used <= shape->capacity && wait_ms >= 0 && wait_ms <= reset_ms && (wait_ms > 0) == waits &&
         (reset_ms > 0) == (used > 0) && reset_ms <= shape->period_ms + SPILE__TOLERANCE_MS && oldest_ms >= 0 &&
         oldest_ms <= reset_ms;
}

static bool log_state_valid(const spile__state *state) {
  if (state->n < 1 || state->n > SPILE__LOG_MAX)
    return false;
  int64_t used = 0;
  for (size_t i = 0; i < state->n; i++) {
    int64_t at_ms = entry_at_ms(state->log[i]);
    used += entry_tokens(state->log[i]);
    if (at_ms < 0 || at_ms > SPILE_TIME_MAX_MS + SPILE__TOLERANCE_MS || entry_tokens(state->log[i]) == 0 ||
        (i > 0 && at_ms <= entry_at_ms(state->log[i - 1])))
      return false;
  }
  return used <= state->shape.capacity;
}

static int64_t log_full_at_ms(const spile__state *state) {
  return entry_at_ms(state->log[state->n - 1]) + state->shape.period_ms;
}

/* One entry: full_at_ms tells its instant. */
static bool log_pack(const spile__state *state, uint64_t *word) {
  *word = (uint64_t)entry_tokens(state->log[0]);
  return state->n == 1;
}

static void log_unpack(const spile_shape *shape, int64_t full_at_ms, uint64_t word, spile__state *out) {
  out->shape = *shape;
  out->n = word > 0 ? 1 : 0;
  out->log[0] = spile__log_entry(full_at_ms - shape->period_ms, (int64_t)(word & ((1 << SPILE__LOG_TOKENS_BITS) - 1)));
}

const spile__algorithm spile__sliding_log = {
    .name = "sliding_log",
    .mark = "e",
    .window = true,
    .values = 4,
    .numbers = 0,
    .log = true,
    .shape_make = log_shape_make,
    .shape_valid = log_shape_valid,
    .full_time_ms = log_full_time_ms,
    .read = log_read,
    .fits = log_fits,
    .charge = log_charge,
    .room = log_room,
    .refund = log_refund,
    .state = log_state,
    .report = log_report,
    .reading_valid = log_reading_valid,
    .state_valid = log_state_valid,
    .full_at_ms = log_full_at_ms,
    .pack = log_pack,
    .unpack = log_unpack,
    .pack_max = 0,
};
