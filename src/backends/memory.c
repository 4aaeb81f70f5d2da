/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory store: buckets of one process in a table that is mapped at open and never grows.
 *
 * The common call, one token or leaky bucket whose limit has not changed, is one look at one cache line and one
 * compare-and-swap of its word, and a denial not even that: it only reads. Everything else (several buckets, a changed
 * limit, a clock cut, a refill too fine for the word, a charge or a refund) locks its entries for a moment and goes
 * through the algorithm's table.
 *
 * A call for several buckets locks their entries one after the other and waits for none: if one is taken, it gives all
 * back and begins again. So no two calls can wait for each other, in whatever order they come.
 *
 * Time is the wall clock as it was at open plus the monotonic time since, so steps of the wall clock do not concern it.
 */
#include "backends/memory.h"

#include <string.h>

#include "backends/address.h"
#include "backends/backends.h"
#include "backends/memory_table.h"
#include "core/bucket.h"
#include "core/decide.h"

#define KEYS_DEFAULT 100000
#define KEYS_MAX 100000000

typedef struct memory_store {
  spile_store base;
  spile_env own_env;
  const spile_env *env; /* own_env */
  int64_t offset_ms;    /* wall clock minus monotonic clock at open */
  memory_table table;
  atomic_size_t clean_at;
} memory_store;

static memory_store *memory_of(spile_store *store) {
  return (memory_store *)(void *)((char *)store - offsetof(memory_store, base));
}

static int64_t memory_now(const memory_store *memory, int64_t given_ms) {
  if (given_ms != SPILE_STORE_TIME)
    return given_ms;
  int64_t now_ms = memory->offset_ms + memory->env->monotonic_ms(memory->env->user);
  return now_ms < 0 ? 0 : now_ms > SPILE_TIME_MAX_MS ? SPILE_TIME_MAX_MS : now_ms;
}

static int no_room(spile_call *call, size_t item) {
  call->full_item = item;
  return spile__store_fail(
      call->error, SPILE_EFULL, SPILE_REASON_NONE,
      "the memory store has no room for another key or a larger state; open it with a larger keys=");
}

/* A limit that is new to the table could not be noted in it. */
static int limit_failed(memory_store *memory, int full_code, spile_error *error) {
  if (!spile__memory_limits_full(&memory->table))
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE,
                             "no memory for a limit that is new to the "
                             "memory store; nothing was charged");
  return spile__store_fail(error, full_code, SPILE_REASON_NONE,
                           "the memory store has met %d limits, the most it can tell apart; limits that changed count "
                           "each time: open a new store",
                           LIMITS_MAX);
}

static int no_limit(memory_store *memory, spile_call *call, size_t item) {
  call->full_item = item;
  return limit_failed(memory, SPILE_EFULL, call->error);
}

/* ---- One bucket ---- */

/*
 * Unlocks an entry with the state of a reading, of `old` before it.
 * @param spare  a line that is there for it, or NO_LINE: one is taken if need be
 * @return false: there is no room for the state, and the entry is still locked
 */
SPILE__OUT_OF_LINE static bool entry_write(memory_table *table, memory_entry *entry, uint64_t word,
                                           const memory_limit *limit, const spile_reading *after, int64_t now_ms,
                                           const spile__state *old, uint32_t spare) {
  spile__state state;
  if (!limit->algorithm->state(&limit->spec.shape, after, now_ms, old, &state)) {
    spile__memory_unlock_with(table, entry, word, limit, NULL, spare);
    return true;
  }
  if (spare == NO_LINE && spile__memory_needs_line(entry, limit, &state)) {
    spare = spile__memory_line_take(table, now_ms);
    if (spare == NO_LINE)
      return false;
  }
  spile__memory_unlock_with(table, entry, word, limit, &state, spare);
  return true;
}

typedef enum entry_done { ENTRY_DONE, ENTRY_AGAIN, ENTRY_NO_ROOM, ENTRY_NOT } entry_done;

/* The general form under the lock: any algorithm, any shape. @return ENTRY_AGAIN: the entry has changed, look again */
SPILE__OUT_OF_LINE static entry_done entry_take(memory_table *table, memory_entry *entry, uint64_t word,
                                                const memory_probe *probe, spile_call *call, int64_t now_ms) {
  if (!spile__memory_lock(entry, word))
    return ENTRY_AGAIN;
  spile__state state;
  spile__memory_state(table, entry, word, &state);
  bool rewrite = spile__item_read(call->items, call->verb, &state, now_ms);
  spile__effect effect = spile__call_effect(call);
  spile_reading after;
  bool changes = spile__item_apply(call, call->items, &effect, &after);
  if (!changes && !rewrite) {
    spile__memory_unlock(entry, word);
    return ENTRY_DONE;
  }
  if (entry_write(table, entry, word, probe->limit, &after, now_ms, &state, NO_LINE))
    return ENTRY_DONE;
  spile__memory_unlock(entry, word);
  return changes ? ENTRY_NO_ROOM : ENTRY_DONE;
}

/*
 * Reads a token or leaky bucket of unchanged shape from its word alone: the debt, as bucket.c makes it of a state.
 * @return false: it takes the general form
 */
static inline bool entry_read_short(const memory_entry *entry, uint64_t word, const memory_limit *limit,
                                    spile_reading *out, int64_t now_ms) {
  uint32_t shape = atomic_load_explicit(&entry->shape, memory_order_acquire);
  if (entry_limit_id(shape) != limit->swap_id)
    return false;
  bool cut;
  int64_t debt = spile__bucket_debt(&limit->spec.shape, word_full_at_ms(word), word_rem(word), now_ms, &cut);
  *out = (spile_reading){{debt}};
  return !cut;
}

/* The word of a bucket with this debt, in the generation of `word`. */
static inline uint64_t word_with_debt(uint64_t word, const memory_limit *limit, int64_t debt, int64_t now_ms) {
  int64_t full_at_ms;
  int64_t rem;
  spile__bucket_instant(&limit->spec.shape, debt, now_ms, &full_at_ms, &rem);
  return (word & UINT64_C(7) << WORD_GENERATION_SHIFT) | (uint64_t)rem << WORD_REM_SHIFT | (uint64_t)full_at_ms;
}

/* The whole of a take on the word alone. The same decision as bucket.c makes of a state: debt, fit, new instant. */
static inline entry_done entry_take_short(memory_entry *entry, uint64_t word, const memory_limit *limit,
                                          spile_item *item, int64_t now_ms) {
  if (!entry_read_short(entry, word, limit, &item->reading, now_ms))
    return ENTRY_NOT;
  int64_t debt = item->reading.values[0];
  if (!spile__bucket_debt_fits(&limit->spec.shape, debt, item->cost))
    return atomic_load_explicit(&entry->word, memory_order_acquire) == word ? ENTRY_DONE : ENTRY_AGAIN;
  uint64_t next = word_with_debt(word, limit, debt + item->cost * limit->spec.shape.period_ms, now_ms);
  return atomic_compare_exchange_strong_explicit(&entry->word, &word, next, memory_order_acq_rel, memory_order_relaxed)
             ? ENTRY_DONE
             : ENTRY_AGAIN;
}

/* Reads a state into an item. @return as spile__item_read */
SPILE__OUT_OF_LINE static bool entry_read(const memory_table *table, const memory_entry *entry, uint64_t word,
                                          spile_verb verb, spile_item *item, int64_t now_ms) {
  spile__state state;
  spile__memory_state(table, entry, word, &state);
  return spile__item_read(item, verb, &state, now_ms);
}

/* Reads an entry without a lock. @return false: the entry has changed meanwhile, look again */
static inline bool entry_peek(const memory_table *table, memory_entry *entry, uint64_t word, const memory_limit *limit,
                              spile_verb verb, spile_item *item, int64_t now_ms, bool *rewrite) {
  *rewrite = !entry_read_short(entry, word, limit, &item->reading, now_ms) &&
             entry_read(table, entry, word, verb, item, now_ms);
  return atomic_load_explicit(&entry->word, memory_order_acquire) == word;
}

/* A bucket that is full: charged, it is new. */
static memory_added entry_add(memory_table *table, const memory_probe *probe, spile_call *call, int64_t now_ms) {
  memory_entry *entry;
  uint64_t word;
  memory_added added = spile__memory_add(table, probe, now_ms, &entry, &word);
  if (added != MEMORY_ADDED)
    return added;
  (void)spile__item_read(call->items, call->verb, NULL, now_ms);
  spile__effect effect = spile__call_effect(call);
  spile_reading after;
  (void)spile__item_apply(call, call->items, &effect, &after);
  if (entry_write(table, entry, word, probe->limit, &after, now_ms, NULL, NO_LINE))
    return MEMORY_ADDED;
  spile__memory_unlock_with(table, entry, word, probe->limit, NULL, NO_LINE);
  return MEMORY_NO_ROOM;
}

static int memory_decide_one(memory_store *memory, spile_call *call) {
  memory_table *table = &memory->table;
  spile_item *item = call->items;
  const memory_limit *limit = spile__memory_limit_get(table, item->spec, memory->env);
  if (limit == NULL)
    return no_limit(memory, call, 0);
  memory_probe probe;
  spile__memory_probe_init(&probe, table, limit, item->key, item->key_len);
  /* The entry is on its way while the clock is read. */
  spile__memory_prefetch(table, &probe);
  int64_t now_ms = memory_now(memory, call->now_ms);
  bool reads_only = !spile__item_pays(call, item);

  unsigned turns = 0;
  for (;; spile__memory_pause(&turns), now_ms = memory_now(memory, call->now_ms)) {
    uint64_t word;
    memory_entry *entry = spile__memory_find(table, &probe, &word, NULL);
    if (reads_only) {
      bool rewrite;
      if (entry == NULL) {
        (void)spile__item_read(item, call->verb, NULL, now_ms);
        return SPILE_OK;
      }
      if (entry_peek(table, entry, word, limit, call->verb, item, now_ms, &rewrite))
        return SPILE_OK;
    } else if (entry == NULL && call->verb == SPILE_VERB_REFUND) {
      /* A full bucket has nothing to get back. */
      (void)spile__item_read(item, call->verb, NULL, now_ms);
      return SPILE_OK;
    } else if (entry == NULL) {
      switch (entry_add(table, &probe, call, now_ms)) {
      case MEMORY_ADDED:
        return SPILE_OK;
      case MEMORY_NO_ROOM:
        return no_room(call, 0);
      case MEMORY_FOUND:
        break;
      }
    } else {
      entry_done done = ENTRY_NOT;
      if (call->verb == SPILE_VERB_TAKE)
        done = entry_take_short(entry, word, limit, item, now_ms);
      if (done == ENTRY_NOT)
        done = entry_take(table, entry, word, &probe, call, now_ms);
      if (done == ENTRY_DONE)
        return SPILE_OK;
      if (done == ENTRY_NO_ROOM)
        return no_room(call, 0);
    }
  }
}

/* ---- Several buckets ---- */

typedef struct memory_vector {
  memory_probe probes[SPILE_REQUESTS_MAX];
  memory_entry *entries[SPILE_REQUESTS_MAX]; /* NULL: there is none */
  uint64_t words[SPILE_REQUESTS_MAX];
  bool fresh[SPILE_REQUESTS_MAX];  /* added by this call: its bucket is full, whatever the word was */
  size_t held[SPILE_REQUESTS_MAX]; /* items whose entry is locked */
  size_t held_count;
  uint32_t spares[SPILE_REQUESTS_MAX]; /* of those: a line for the state, or NO_LINE where it needs none */
} memory_vector;

/*
 * Reads every bucket without a lock.
 * @return true when the call would have to write something that is not its own change
 */
static bool vector_read(memory_store *memory, memory_vector *vector, spile_call *call, int64_t now_ms) {
  bool rewrites = false;
  for (size_t i = 0; i < call->n; i++) {
    spile_item *item = &call->items[i];
    bool rewrite = false;
    unsigned turns = 0;
    for (;; spile__memory_pause(&turns)) {
      vector->entries[i] = spile__memory_find(&memory->table, &vector->probes[i], &vector->words[i], NULL);
      if (vector->entries[i] != NULL) {
        if (!entry_peek(&memory->table, vector->entries[i], vector->words[i], vector->probes[i].limit, call->verb, item,
                        now_ms, &rewrite))
          continue;
      } else {
        (void)spile__item_read(item, call->verb, NULL, now_ms);
      }
      break;
    }
    rewrites = rewrites || (rewrite && spile__item_pays(call, item));
  }
  return rewrites;
}

/* Gives back what is held: fresh entries as full buckets, the others as they were. */
static void vector_release(memory_store *memory, memory_vector *vector) {
  while (vector->held_count > 0) {
    size_t i = vector->held[--vector->held_count];
    spile__memory_line_give(&memory->table, vector->spares[i]);
    if (vector->fresh[i])
      spile__memory_unlock_with(&memory->table, vector->entries[i], vector->words[i], vector->probes[i].limit, NULL,
                                NO_LINE);
    else
      spile__memory_unlock(vector->entries[i], vector->words[i]);
  }
}

/* What a refund found absent has nothing to get back, unless it came before all the others were held. */
SPILE__OUT_OF_LINE static bool vector_still_absent(const memory_store *memory, const memory_vector *vector,
                                                   const spile_call *call) {
  for (size_t i = 0; i < call->n; i++) {
    if (vector->fresh[i] && !spile__memory_absent(&memory->table, &vector->probes[i]))
      return false;
  }
  return true;
}

/*
 * Locks the entry of every item that was found, and adds those that are missing.
 * @return MEMORY_ADDED, all are held; MEMORY_FOUND, an entry has changed or is taken, begin again; MEMORY_NO_ROOM for
 *         item *at. Nothing is held in the last two.
 */
static memory_added vector_hold(memory_store *memory, memory_vector *vector, const spile_call *call, int64_t now_ms,
                                size_t *at) {
  memory_added held = MEMORY_ADDED;
  vector->held_count = 0;
  for (size_t i = 0; i < call->n && held == MEMORY_ADDED; i++) {
    vector->fresh[i] = vector->entries[i] == NULL;
    *at = i;
    if (vector->fresh[i] && (call->verb == SPILE_VERB_REFUND || !spile__item_pays(call, &call->items[i])))
      continue;
    if (vector->fresh[i])
      held = spile__memory_add(&memory->table, &vector->probes[i], now_ms, &vector->entries[i], &vector->words[i]);
    else
      held = spile__memory_lock(vector->entries[i], vector->words[i]) ? MEMORY_ADDED : MEMORY_FOUND;
    if (held != MEMORY_ADDED)
      continue;
    vector->held[vector->held_count++] = i;
    vector->spares[i] = NO_LINE;
    /* Taken before anything is decided, so that nothing can fail afterwards. A refund makes no state larger. */
    if (vector->probes[i].limit->lines && call->verb != SPILE_VERB_REFUND &&
        (vector->spares[i] = spile__memory_line_take(&memory->table, now_ms)) == NO_LINE)
      held = MEMORY_NO_ROOM;
  }
  if (held == MEMORY_ADDED && call->verb == SPILE_VERB_REFUND && !vector_still_absent(memory, vector, call))
    held = MEMORY_FOUND;
  if (held != MEMORY_ADDED)
    vector_release(memory, vector);
  return held;
}

/* Reads an item under its lock. @return as spile__item_read */
static inline bool vector_item_read(const memory_store *memory, const memory_vector *vector, size_t i, spile_call *call,
                                    int64_t now_ms) {
  spile_item *item = &call->items[i];
  if (vector->fresh[i])
    return spile__item_read(item, call->verb, NULL, now_ms);
  const memory_entry *entry = vector->entries[i];
  return !entry_read_short(entry, vector->words[i], vector->probes[i].limit, &item->reading, now_ms) &&
         entry_read(&memory->table, entry, vector->words[i], call->verb, item, now_ms);
}

/* Unlocks an item with the state of a reading; its spare line is there, so this cannot fail. */
SPILE__OUT_OF_LINE static void vector_item_write(memory_store *memory, const memory_vector *vector, size_t i,
                                                 const spile_reading *after, int64_t now_ms) {
  const memory_limit *limit = vector->probes[i].limit;
  spile__state old;
  bool needs_old = limit->algorithm->log && !vector->fresh[i];
  if (needs_old)
    spile__memory_state(&memory->table, vector->entries[i], vector->words[i], &old);
  (void)entry_write(&memory->table, vector->entries[i], vector->words[i], limit, after, now_ms, needs_old ? &old : NULL,
                    vector->spares[i]);
}

/* Unlocks a token or leaky bucket of unchanged shape with the word of its new debt. @return false: not that simple */
static inline bool vector_item_write_short(const memory_vector *vector, size_t i, int64_t debt, int64_t now_ms) {
  const memory_limit *limit = vector->probes[i].limit;
  memory_entry *entry = vector->entries[i];
  if (vector->fresh[i] || debt == 0 ||
      entry_limit_id(atomic_load_explicit(&entry->shape, memory_order_relaxed)) != limit->swap_id)
    return false;
  uint64_t word = vector->words[i];
  uint64_t generation = ((word >> WORD_GENERATION_SHIFT) + 1) & 7;
  spile__memory_unlock(entry, word_with_debt(generation << WORD_GENERATION_SHIFT, limit, debt, now_ms));
  return true;
}

/* Decides over entries that are held, and gives them back. */
static void vector_decide(memory_store *memory, memory_vector *vector, spile_call *call, int64_t now_ms) {
  bool rewrite[SPILE_REQUESTS_MAX] = {false};
  for (size_t i = 0; i < call->n; i++)
    rewrite[i] = vector_item_read(memory, vector, i, call, now_ms);
  spile__effect effect = spile__call_effect(call);
  const bool take = call->verb == SPILE_VERB_TAKE;
  for (size_t j = 0; j < vector->held_count; j++) {
    size_t i = vector->held[j];
    const spile_item *item = &call->items[i];
    if (take ? item->cost == 0 || (!effect.goes && !rewrite[i]) : !spile__item_pays(call, item))
      continue;
    spile_reading after = item->reading;
    if (take && effect.goes)
      vector->probes[i].limit->algorithm->charge(&item->spec->shape, &after, item->cost);
    else if (!take && !spile__item_apply(call, item, &effect, &after) && !rewrite[i])
      continue;
    if (!vector_item_write_short(vector, i, after.values[0], now_ms))
      vector_item_write(memory, vector, i, &after, now_ms);
    vector->held[j--] = vector->held[--vector->held_count];
  }
  vector_release(memory, vector);
}

/* The items of a call that need room: new buckets, and states that lie in lines of their own. Holding ended at `at`. */
static uint64_t vector_needs_room(const memory_vector *vector, const spile_call *call, size_t at) {
  uint64_t needs = 0;
  for (size_t i = 0; i < call->n; i++) {
    bool fresh = i <= at ? vector->fresh[i] : vector->entries[i] == NULL;
    bool needy = fresh || vector->probes[i].limit->lines;
    needs |= (uint64_t)(call->items[i].cost > 0 && needy) << i;
  }
  return needs;
}

SPILE__OUT_OF_LINE static int memory_decide_several(memory_store *memory, spile_call *call) {
  memory_vector vector;
  for (size_t i = 0; i < call->n; i++) {
    const memory_limit *limit = spile__memory_limit_get(&memory->table, call->items[i].spec, memory->env);
    if (limit == NULL)
      return no_limit(memory, call, i);
    spile__memory_probe_init(&vector.probes[i], &memory->table, limit, call->items[i].key, call->items[i].key_len);
    spile__memory_prefetch(&memory->table, &vector.probes[i]);
  }
  unsigned turns = 0;
  for (;; spile__memory_pause(&turns)) {
    int64_t now_ms = memory_now(memory, call->now_ms);
    bool rewrites = vector_read(memory, &vector, call, now_ms);
    spile__effect effect = spile__call_effect(call);
    /* One bucket that refuses by itself is the answer, and nothing was locked for it. */
    if (call->verb == SPILE_VERB_PEEK || (!rewrites && !effect.goes))
      return SPILE_OK;
    size_t at;
    switch (vector_hold(memory, &vector, call, now_ms, &at)) {
    case MEMORY_ADDED:
      vector_decide(memory, &vector, call, now_ms);
      return SPILE_OK;
    case MEMORY_NO_ROOM:
      /* A denial stands, room or not. */
      if (!effect.goes)
        return SPILE_OK;
      call->full_items = vector_needs_room(&vector, call, at);
      return no_room(call, at);
    case MEMORY_FOUND:
      break;
    }
  }
}

/* ---- The store ---- */

static int memory_decide(spile_store *store, spile_call *call) {
  memory_store *memory = memory_of(store);
  return call->n == 1 ? memory_decide_one(memory, call) : memory_decide_several(memory, call);
}

static int memory_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)deadline_ms;
  memory_store *memory = memory_of(store);
  const memory_limit *limit = spile__memory_limit_get(&memory->table, item->spec, memory->env);
  if (limit == NULL)
    return limit_failed(memory, SPILE_EUNAVAILABLE, error);
  memory_probe probe;
  spile__memory_probe_init(&probe, &memory->table, limit, item->key, item->key_len);
  unsigned turns = 0;
  for (;; spile__memory_pause(&turns)) {
    uint64_t word;
    memory_entry *entry = spile__memory_find(&memory->table, &probe, &word, NULL);
    if (entry == NULL)
      return SPILE_OK;
    if (spile__memory_lock(entry, word)) {
      spile__memory_unlock_with(&memory->table, entry, word, limit, NULL, NO_LINE);
      return SPILE_OK;
    }
  }
}

/*
 * Buckets that are full again need no cleaning: a new key takes their place. All others go only where they are all of a
 * given time.
 */
static int memory_clean(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                        spile_error *error) {
  (void)now_ms;
  (void)deadline_ms;
  (void)error;
  memory_store *memory = memory_of(store);
  *again = false;
  if (what == SPILE_CLEAN_FULL || !memory->table.given_time)
    return SPILE_OK;
  size_t at = atomic_load_explicit(&memory->clean_at, memory_order_relaxed);
  size_t end = at + 4096 < memory->table.entry_count ? at + 4096 : memory->table.entry_count;
  for (; at < end; at++) {
    memory_entry *entry = &memory->table.entries[at];
    if (spile__memory_unused(entry))
      continue;
    uint64_t word = atomic_load_explicit(&entry->word, memory_order_acquire);
    unsigned turns = 0;
    while ((word & WORD_LOCKED) != 0 || !spile__memory_lock(entry, word)) {
      spile__memory_pause(&turns);
      word = atomic_load_explicit(&entry->word, memory_order_acquire);
    }
    uint32_t id = entry_limit_id(atomic_load_explicit(&entry->shape, memory_order_relaxed));
    spile__memory_unlock_with(&memory->table, entry, word, spile__memory_limit_by_id(&memory->table, id), NULL,
                              NO_LINE);
  }
  *again = end < memory->table.entry_count;
  atomic_store_explicit(&memory->clean_at, *again ? end : 0, memory_order_relaxed);
  return SPILE_OK;
}

static int memory_each(spile_store *store, int64_t given_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                       spile_error *error) {
  (void)timeout_ms;
  (void)error;
  memory_store *memory = memory_of(store);
  const memory_table *table = &memory->table;
  unsigned char key[SPILE_KEY_LEN_MAX];
  for (size_t at = 0; at < table->entry_count; at++) {
    const memory_entry *entry = &table->entries[at];
    uint64_t word = atomic_load_explicit(&entry->word, memory_order_acquire);
    if (spile__memory_unused(entry) || (word & WORD_LOCKED) != 0)
      continue;
    uint32_t id = entry_limit_id(atomic_load_explicit(&entry->shape, memory_order_acquire));
    size_t key_len = spile__memory_key_copy(table, entry, key);
    spile__state state;
    spile__memory_state(table, entry, word, &state);
    /* Changed meanwhile: shown the next time. */
    if (atomic_load_explicit(&entry->word, memory_order_acquire) != word)
      continue;
    const memory_limit *limit = spile__memory_limit_by_id(table, id);
    spile_stored stored = spile__stored_make(limit->spec.algorithm, &state, memory_now(memory, given_ms));
    if (stored.reset_after_ms == 0)
      continue;
    stored.key = key;
    stored.key_len = key_len;
    stored.name = limit->spec.name;
    stored.name_len = limit->spec.name_len;
    stored.simulated = table->given_time;
    if (!visit(user, &stored))
      break;
  }
  return SPILE_OK;
}

static void memory_close(spile_store *store, bool forked) {
  (void)forked;
  memory_store *memory = memory_of(store);
  spile_env env = memory->own_env;
  spile__memory_table_finish(&memory->table, &env);
  (void)env.allocate(env.allocate_user, memory, 0);
}

/* Adding a key counts it before it knows that there is room, so the count may be above for a moment. */
static void memory_usage(spile_store *store, spile_usage *usage) {
  memory_table *table = &memory_of(store)->table;
  size_t used = atomic_load_explicit(&table->keys_used, memory_order_relaxed);
  usage->buckets = (int64_t)(used < table->keys_max ? used : table->keys_max);
  usage->buckets_max = (int64_t)table->keys_max;
}

static const spile_store_ops memory_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "memory",
    .timeout_ms = 0,
    .decide = memory_decide,
    .clear = memory_clear,
    .clean = memory_clean,
    .each = memory_each,
    .close = memory_close,
    .usage = memory_usage,
};

/* ---- Opening ---- */

static int memory_param(void *user, const char *name, const char *value, spile_error *error) {
  int64_t *keys = user;
  if (strcmp(name, "keys") != 0)
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "unknown parameter \"%s\" of memory:; known is keys", name);
  if (!spile__number_parse(value, 1, KEYS_MAX, keys))
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE, "keys=%s is not a whole number from 1 to %d",
                             value, KEYS_MAX);
  return SPILE_OK;
}

int spile__memory_open(spile_store **out, const spile__store_config *config, spile_error *error) {
  *out = NULL;
  char path[256];
  int64_t keys = KEYS_DEFAULT;
  int result = spile__address_split(config->address, path, sizeof(path), memory_param, &keys, error);
  if (result != SPILE_OK)
    return result;
  if (path[0] != '\0')
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "memory: has no path; write memory: or memory:?keys=N");
  const spile_env *env = config->env;
  memory_store *memory = env->allocate(env->allocate_user, NULL, sizeof(*memory));
  if (memory == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "out of memory for a memory store");
  *memory = (memory_store){.base = {&memory_ops},
                           .own_env = *env,
                           .env = &memory->own_env,
                           .offset_ms = env->realtime_ms(env->user) - env->monotonic_ms(env->user)};
  if (!spile__memory_table_init(&memory->table, (size_t)keys, config->given_time, env)) {
    env->allocate(env->allocate_user, memory, 0);
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE,
                             "no address space for a table of %lld keys, or no random numbers", (long long)keys);
  }
  *out = &memory->base;
  return SPILE_OK;
}

/* ---- For tests ---- */

static const memory_limit *item_probe(memory_store *memory, const spile_item *item, memory_probe *probe) {
  const memory_limit *limit = spile__memory_limit_get(&memory->table, item->spec, memory->env);
  if (limit != NULL)
    spile__memory_probe_init(probe, &memory->table, limit, item->key, item->key_len);
  return limit;
}

size_t spile__memory_probes(spile_store *store, const spile_item *item) {
  memory_store *memory = memory_of(store);
  memory_probe probe;
  uint64_t word;
  size_t looked = 0;
  if (item_probe(memory, item, &probe) != NULL)
    (void)spile__memory_find(&memory->table, &probe, &word, &looked);
  return looked;
}

uint64_t spile__memory_hash(spile_store *store, const spile_item *item) {
  memory_probe probe;
  return item_probe(memory_of(store), item, &probe) != NULL ? probe.hash : 0;
}

size_t spile__memory_size(const spile_store *store) {
  return ((const memory_store *)(const void *)store)->table.map_size;
}
