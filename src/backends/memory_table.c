/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/memory_table.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/limit.h"
#include "core/siphash.h"

/* ---- The map ---- */

static size_t round_up(size_t size) {
  return (size + 4095) & ~(size_t)4095;
}

/* A state of 1,000 numbers has 143 lines: a table of one key has room for it. */
#define STATE_LINES 2
#define STATE_LINES_MIN 143

static void pool_init(memory_pool *pool, void *lines, size_t count) {
  *pool = (memory_pool){.lines = lines, .count = (uint32_t)count, .free = NO_LINE};
  (void)pthread_mutex_init(&pool->lock, NULL);
}

bool spile__memory_table_init(memory_table *table, size_t keys, bool given_time, const spile_env *env) {
  *table = (memory_table){.keys_max = keys, .given_time = given_time};
  if (!env->random(env->user, table->secret, sizeof(table->secret)))
    return false;
  /*
   * A third of the entries stays unused. With load a = 2/3 the chance that a key finds its first k entries used falls
   * as (a·e^(1−a))^k = 0.93^k: 10^-8 at 255, in a table that holds all its keys.
   */
  table->entry_count = keys + keys / 2 + 2;
  size_t states = STATE_LINES * keys + STATE_LINES_MIN;
  size_t entries_size = round_up(table->entry_count * sizeof(memory_entry));
  size_t keys_size = round_up(keys * sizeof(memory_line));
  size_t states_size = round_up(states * sizeof(memory_line));
  size_t limit_slots_size = round_up(LIMIT_SLOTS * sizeof(*table->limit_slots));
  size_t limits_size = round_up(LIMITS_MAX * sizeof(*table->limits));
  size_t bucket_slots_size = round_up(LIMIT_SLOTS * sizeof(*table->bucket_slots));
  table->map_size = entries_size + keys_size + states_size + limit_slots_size + limits_size + bucket_slots_size;
  /* Pages come as they are used; they are zero, which is an unused entry. */
  table->map = mmap(NULL, table->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table->map == MAP_FAILED)
    return false;
  char *at = table->map;
  table->entries = (memory_entry *)(void *)at;
  at += entries_size;
  pool_init(&table->keys, at, keys);
  at += keys_size;
  pool_init(&table->states, at, states);
  at += states_size;
  table->limit_slots = (_Atomic(memory_limit *) *)(void *)at;
  at += limit_slots_size;
  table->limits = (_Atomic(memory_limit *) *)(void *)at;
  at += limits_size;
  table->bucket_slots = (uint32_t *)(void *)at;
  (void)pthread_mutex_init(&table->limits_lock, NULL);
  for (size_t i = 0; i < STRIPES; i++)
    (void)pthread_mutex_init(&table->stripes[i], NULL);
  return true;
}

void spile__memory_table_finish(memory_table *table, const spile_env *env) {
  for (uint32_t id = 0; id < table->limit_count; id++)
    env->allocate(env->allocate_user, atomic_load_explicit(&table->limits[id], memory_order_relaxed), 0);
  (void)pthread_mutex_destroy(&table->keys.lock);
  (void)pthread_mutex_destroy(&table->states.lock);
  (void)pthread_mutex_destroy(&table->limits_lock);
  for (size_t i = 0; i < STRIPES; i++)
    (void)pthread_mutex_destroy(&table->stripes[i]);
  (void)munmap(table->map, table->map_size);
}

/* ---- Limits ---- */

const memory_limit *spile__memory_limit_by_id(const memory_table *table, uint32_t id) {
  return atomic_load_explicit(&table->limits[id], memory_order_acquire);
}

static bool limit_is(const memory_limit *limit, const spile_spec *spec) {
  return limit->spec.fingerprint == spec->fingerprint && spile__shape_equal(&limit->spec.shape, &spec->shape) &&
         spile__spec_same_bucket(&limit->spec, spec);
}

/* The copy of a spec, or NULL with the slot where it belongs. */
static const memory_limit *limit_find(const memory_table *table, const spile_spec *spec, size_t *slot) {
  for (*slot = spec->fingerprint % LIMIT_SLOTS;; *slot = (*slot + 1) % LIMIT_SLOTS) {
    const memory_limit *limit = atomic_load_explicit(&table->limit_slots[*slot], memory_order_acquire);
    if (limit == NULL || limit_is(limit, spec))
      return limit;
  }
}

/* Where the first limit of this name and algorithm is noted, as id + 1; 0: there is none. Under the lock. */
static uint32_t *limit_bucket_slot(memory_table *table, const spile_spec *spec) {
  const uint64_t key[2] = {(uint64_t)spec->algorithm, 0};
  size_t slot = spile__siphash64(key, spec->name, spec->name_len) % LIMIT_SLOTS;
  while (table->bucket_slots[slot] != 0 &&
         !spile__spec_same_bucket(&spile__memory_limit_by_id(table, table->bucket_slots[slot] - 1)->spec, spec))
    slot = (slot + 1) % LIMIT_SLOTS;
  return &table->bucket_slots[slot];
}

static const memory_limit *limit_add(memory_table *table, const spile_spec *spec, size_t slot, const spile_env *env) {
  if (table->limit_count == LIMITS_MAX)
    return NULL;
  memory_limit *limit = env->allocate(env->allocate_user, NULL, sizeof(*limit) + spec->name_len);
  if (limit == NULL)
    return NULL;
  char *name = (char *)(limit + 1);
  memcpy(name, spec->name, spec->name_len);
  const spile__algorithm *algorithm = spile__algorithm_get(spec->algorithm);
  bool wide = spec->shape.refill > (int64_t)WORD_REM_MASK;
  *limit = (memory_limit){.spec = *spec,
                          .id = table->limit_count,
                          .algorithm = algorithm,
                          .wide = wide,
                          .lines = !algorithm->instant && spec->shape.capacity > algorithm->pack_max,
                          .swap_id = algorithm->instant && !wide ? table->limit_count : LIMITS_MAX};
  limit->spec.name = name;
  limit->bucket_id = limit->id;
  uint32_t *first = limit_bucket_slot(table, spec);
  if (*first == 0)
    *first = limit->id + 1;
  limit->bucket_id = *first - 1;
  atomic_store_explicit(&table->limits[limit->id], limit, memory_order_release);
  table->limit_count++;
  atomic_store_explicit(&table->limit_slots[slot], limit, memory_order_release);
  return limit;
}

const memory_limit *spile__memory_limit_get(memory_table *table, const spile_spec *spec, const spile_env *env) {
  size_t slot;
  const memory_limit *limit = limit_find(table, spec, &slot);
  if (limit != NULL)
    return limit;
  (void)pthread_mutex_lock(&table->limits_lock);
  limit = limit_find(table, spec, &slot);
  if (limit == NULL)
    limit = limit_add(table, spec, slot, env);
  (void)pthread_mutex_unlock(&table->limits_lock);
  return limit;
}

bool spile__memory_limits_full(memory_table *table) {
  (void)pthread_mutex_lock(&table->limits_lock);
  bool full = table->limit_count == LIMITS_MAX;
  (void)pthread_mutex_unlock(&table->limits_lock);
  return full;
}

/* ---- Keys ---- */

/* Up to eight bytes as a word, zero-padded. */
static inline uint64_t key_word(const unsigned char *at, size_t left) {
  uint64_t word = 0;
  memcpy(&word, at, left < 8 ? left : 8);
  return word;
}

void spile__memory_probe_init(memory_probe *probe, const memory_table *table, const memory_limit *limit,
                              const void *key, size_t key_len) {
  probe->limit = limit;
  probe->key = key;
  probe->key_len = key_len;
  uint64_t hash = spile__siphash64_pair(table->secret, limit->bucket_id, key, key_len);
  /* The high half of the hash, scaled to the table. */
  probe->home = (size_t)(((hash >> 32) * table->entry_count) >> 32);
  hash &= ~HEAD_REACH;
  probe->hash = hash != 0 ? hash : HEAD_REACH + 1;
  memset(probe->start, 0, sizeof(probe->start));
  memcpy(probe->start, key, key_len < sizeof(probe->start) ? key_len : sizeof(probe->start));
}

/* Whether what is behind the inline part of a key is the same. Lines may be changing; then the word tells. */
static bool tail_is(const memory_table *table, const memory_entry *entry, const memory_probe *probe) {
  const unsigned char *at = (const unsigned char *)probe->key + sizeof(probe->start);
  size_t left = probe->key_len - sizeof(probe->start);
  uint32_t line = atomic_load_explicit(&entry->tail, memory_order_acquire);
  while (left > 0) {
    if (line >= table->keys.count)
      return false;
    for (size_t i = 0; i < LINE_WORDS && left > 0; i++) {
      if (atomic_load_explicit(&table->keys.lines[line].words[i], memory_order_acquire) != key_word(at, left))
        return false;
      size_t step = left < 8 ? left : 8;
      at += step;
      left -= step;
    }
    line = atomic_load_explicit(&table->keys.lines[line].next, memory_order_acquire);
  }
  return true;
}

static inline bool entry_is(const memory_table *table, const memory_entry *entry, const memory_probe *probe) {
  uint32_t shape = atomic_load_explicit(&entry->shape, memory_order_acquire);
  if (entry_key_len(shape) != probe->key_len)
    return false;
  for (size_t i = 0; i < INLINE_WORDS; i++) {
    if (atomic_load_explicit(&entry->key[i], memory_order_acquire) != probe->start[i])
      return false;
  }
  if (probe->key_len > sizeof(probe->start) && !tail_is(table, entry, probe))
    return false;
  return entry_limit_id(shape) == probe->limit->id ||
         spile__memory_limit_by_id(table, entry_limit_id(shape))->bucket_id == probe->limit->bucket_id;
}

size_t spile__memory_key_copy(const memory_table *table, const memory_entry *entry, unsigned char *out) {
  size_t len = entry_key_len(atomic_load_explicit(&entry->shape, memory_order_acquire));
  size_t done = 0;
  uint32_t line = atomic_load_explicit(&entry->tail, memory_order_acquire);
  for (size_t i = 0; done < len; i++) {
    uint64_t word;
    if (i < INLINE_WORDS) {
      word = atomic_load_explicit(&entry->key[i], memory_order_acquire);
    } else {
      size_t in_line = (i - INLINE_WORDS) % LINE_WORDS;
      if (in_line == 0 && i > INLINE_WORDS && line < table->keys.count)
        line = atomic_load_explicit(&table->keys.lines[line].next, memory_order_acquire);
      word = line < table->keys.count
                 ? atomic_load_explicit(&table->keys.lines[line].words[in_line], memory_order_acquire)
                 : 0;
    }
    size_t step = len - done < 8 ? len - done : 8;
    memcpy(out + done, &word, step);
    done += step;
  }
  return len;
}

/* ---- Lines ---- */

/* Under the pool's lock, as the next two. */
static void pool_release(memory_pool *pool, uint32_t line) {
  while (line != NO_LINE) {
    uint32_t next = atomic_load_explicit(&pool->lines[line].next, memory_order_relaxed);
    atomic_store_explicit(&pool->lines[line].next, pool->free, memory_order_release);
    pool->free = line;
    line = next;
  }
}

/* Takes a line that is the last of its chain. @return NO_LINE: there is none */
static uint32_t pool_take(memory_pool *pool) {
  uint32_t line = pool->free;
  if (line != NO_LINE)
    pool->free = atomic_load_explicit(&pool->lines[line].next, memory_order_relaxed);
  else if (pool->used < pool->count)
    line = pool->used++;
  if (line != NO_LINE)
    atomic_store_explicit(&pool->lines[line].next, NO_LINE, memory_order_release);
  return line;
}

/* Takes lines for the rest of a key and fills them. @return false: there are not enough */
static bool tail_take(memory_pool *pool, const memory_probe *probe, uint32_t *first) {
  const unsigned char *at = (const unsigned char *)probe->key + sizeof(probe->start);
  size_t left = probe->key_len - sizeof(probe->start);
  _Atomic uint32_t *link = NULL;
  *first = NO_LINE;
  while (left > 0) {
    uint32_t line = pool_take(pool);
    if (line == NO_LINE) {
      pool_release(pool, *first);
      return false;
    }
    for (size_t i = 0; i < LINE_WORDS; i++) {
      atomic_store_explicit(&pool->lines[line].words[i], left > 0 ? key_word(at, left) : 0, memory_order_release);
      size_t step = left < 8 ? left : 8;
      at += step;
      left -= step;
    }
    if (link == NULL)
      *first = line;
    else
      atomic_store_explicit(link, line, memory_order_release);
    link = &pool->lines[line].next;
  }
  return true;
}

/* ---- Entries ---- */

void spile__memory_pause(unsigned *turns) {
  /* A holder works for less than a microsecond; one that was put to sleep needs the processor. */
  if (++*turns % 64 == 0)
    (void)sched_yield();
#if defined(__x86_64__) || defined(__i386__)
  else
    __builtin_ia32_pause();
#endif
}

static inline uint64_t word_wait(const memory_entry *entry) {
  unsigned turns = 0;
  uint64_t word;
  while ((word = atomic_load_explicit(&entry->word, memory_order_acquire)) & WORD_LOCKED)
    spile__memory_pause(&turns);
  return word;
}

/*
 * spile__memory_find; where `busy` is not NULL it does not wait, but says so when an entry that may be the one is
 * locked. The key of a locked entry may be changing, so nothing more can be known.
 */
static memory_entry *table_find(const memory_table *table, const memory_probe *probe, uint64_t *word, size_t *looked,
                                bool *busy) {
  size_t at = probe->home;
  uint64_t head = atomic_load_explicit(&table->entries[at].head, memory_order_acquire);
  size_t reach = head & HEAD_REACH;
  for (size_t i = 0; i < reach; i++) {
    memory_entry *entry = &table->entries[at];
    if (i > 0)
      head = atomic_load_explicit(&entry->head, memory_order_acquire);
    if (looked != NULL)
      *looked = i + 1;
    if ((head & ~HEAD_REACH) == probe->hash) {
      *word = atomic_load_explicit(&entry->word, memory_order_acquire);
      if ((*word & WORD_LOCKED) != 0) {
        if (busy != NULL) {
          *busy = true;
          return NULL;
        }
        *word = word_wait(entry);
      }
      if (entry_is(table, entry, probe))
        return entry;
    }
    if (++at == table->entry_count)
      at = 0;
  }
  return NULL;
}

memory_entry *spile__memory_find(const memory_table *table, const memory_probe *probe, uint64_t *word, size_t *looked) {
  return table_find(table, probe, word, looked, NULL);
}

bool spile__memory_absent(const memory_table *table, const memory_probe *probe) {
  uint64_t word;
  bool busy = false;
  return table_find(table, probe, &word, NULL, &busy) == NULL && !busy;
}

bool spile__memory_lock(memory_entry *entry, uint64_t word) {
  return atomic_compare_exchange_strong_explicit(&entry->word, &word, word | WORD_LOCKED, memory_order_acq_rel,
                                                 memory_order_relaxed);
}

void spile__memory_unlock(memory_entry *entry, uint64_t word) {
  atomic_store_explicit(&entry->word, word, memory_order_release);
}

/* The word of a state of nothing, or the generation and the rest of the word of an instant. */
static inline uint64_t word_next_generation(uint64_t word) {
  uint64_t generation = ((word >> WORD_GENERATION_SHIFT) + 1) & 7;
  return generation << WORD_GENERATION_SHIFT;
}

static size_t lines_of(size_t numbers) {
  return (numbers + LINE_WORDS - 1) / LINE_WORDS;
}

static size_t rest_numbers(uint64_t rest) {
  return (rest & REST_LINES) != 0 ? (size_t)((rest & ~REST_LINES) >> REST_NUMBERS_SHIFT) : 0;
}

bool spile__memory_needs_line(const memory_entry *entry, const memory_limit *limit, const spile__state *state) {
  uint64_t packed;
  if (!limit->lines || limit->algorithm->pack(state, &packed))
    return false;
  uint64_t rest = atomic_load_explicit(&entry->rest, memory_order_relaxed);
  return lines_of(spile__state_numbers(limit->algorithm, state)) > lines_of(rest_numbers(rest));
}

/*
 * Writes the numbers of a state into the chain of lines that begins at `line`, as far as it goes, and then the spare
 * one.
 * @return the first line that is not needed, or NO_LINE
 */
static uint32_t lines_write(memory_pool *pool, uint32_t *line, uint32_t spare, const int64_t *numbers, size_t n) {
  if (*line == NO_LINE) {
    *line = spare;
    spare = NO_LINE;
  }
  SPILE__ASSERT(*line != NO_LINE);
  uint32_t at = *line;
  for (size_t i = 0;;) {
    for (size_t j = 0; j < LINE_WORDS && i < n; j++, i++)
      atomic_store_explicit(&pool->lines[at].words[j], (uint64_t)numbers[i], memory_order_release);
    uint32_t next = atomic_load_explicit(&pool->lines[at].next, memory_order_relaxed);
    if (i == n) {
      atomic_store_explicit(&pool->lines[at].next, NO_LINE, memory_order_release);
      return next;
    }
    if (next == NO_LINE) {
      atomic_store_explicit(&pool->lines[at].next, spare, memory_order_release);
      next = spare;
      spare = NO_LINE;
    }
    at = next;
  }
}

/* What `rest` says of a state that is no instant; of none where it is NULL. Lines that are not needed are given back.
 */
static uint64_t rest_make(memory_table *table, uint64_t old, const memory_limit *limit, const spile__state *state,
                          uint32_t spare) {
  uint32_t line = (old & REST_LINES) != 0 ? (uint32_t)old : NO_LINE;
  uint64_t rest = 0;
  if (state == NULL || limit->algorithm->pack(state, &rest)) {
    if (line != NO_LINE) {
      (void)pthread_mutex_lock(&table->states.lock);
      pool_release(&table->states, line);
      (void)pthread_mutex_unlock(&table->states.lock);
    }
    spile__memory_line_give(table, spare);
    return rest;
  }
  size_t n = spile__state_numbers(limit->algorithm, state);
  bool wants_spare = lines_of(n) > lines_of(rest_numbers(old));
  uint32_t left = lines_write(&table->states, &line, spare, state->numbers, n);
  if (left != NO_LINE) {
    (void)pthread_mutex_lock(&table->states.lock);
    pool_release(&table->states, left);
    (void)pthread_mutex_unlock(&table->states.lock);
  }
  if (!wants_spare)
    spile__memory_line_give(table, spare);
  return REST_LINES | (uint64_t)n << REST_NUMBERS_SHIFT | line;
}

void spile__memory_unlock_with(memory_table *table, memory_entry *entry, uint64_t word, const memory_limit *limit,
                               const spile__state *state, uint32_t spare) {
  uint32_t shape = atomic_load_explicit(&entry->shape, memory_order_relaxed);
  atomic_store_explicit(&entry->shape, (shape & ~(uint32_t)LIMITS_MAX) | limit->id, memory_order_release);
  uint64_t next = word_next_generation(word);
  uint64_t old_rest = atomic_load_explicit(&entry->rest, memory_order_relaxed);
  uint64_t rest = 0; /* written also then, since another limit may have left its own */
  if (state != NULL && limit->algorithm->instant) {
    next |= (uint64_t)state->bucket.full_at_ms;
    if (limit->wide)
      rest = (uint64_t)state->bucket.rem;
    else
      next |= (uint64_t)state->bucket.rem << WORD_REM_SHIFT;
  } else if (state != NULL) {
    next = (((word & ~WORD_LOCKED) >> WORD_REM_SHIFT) + 1) << WORD_REM_SHIFT & ~WORD_LOCKED;
    next |= (uint64_t)limit->algorithm->full_at_ms(state);
  }
  if (!limit->algorithm->instant || (old_rest & REST_LINES) != 0)
    rest |= rest_make(table, old_rest, limit, limit->algorithm->instant ? NULL : state, spare);
  atomic_store_explicit(&entry->rest, rest, memory_order_release);
  atomic_store_explicit(&entry->word, next, memory_order_release);
}

/* A state that stands in lines. Whatever they hold, since they may be changing, nothing outside them is touched. */
static void state_load(const memory_table *table, const memory_limit *limit, uint64_t rest, spile__state *out) {
  const memory_pool *pool = &table->states;
  size_t n = rest_numbers(rest);
  size_t max = sizeof(out->numbers) / sizeof(out->numbers[0]);
  uint32_t line = (uint32_t)rest;
  out->shape = limit->spec.shape;
  n = n < max ? n : max;
  out->n = n;
  for (size_t i = 0; i < n; line = atomic_load_explicit(&pool->lines[line].next, memory_order_acquire)) {
    if (line >= pool->count) {
      while (i < n)
        out->numbers[i++] = 0;
      return;
    }
    for (size_t j = 0; j < LINE_WORDS && i < n; j++, i++)
      out->numbers[i] = (int64_t)atomic_load_explicit(&pool->lines[line].words[j], memory_order_acquire);
  }
}

void spile__memory_state(const memory_table *table, const memory_entry *entry, uint64_t word, spile__state *out) {
  uint32_t id = entry_limit_id(atomic_load_explicit(&entry->shape, memory_order_acquire));
  const memory_limit *limit = spile__memory_limit_by_id(table, id);
  if (!limit->algorithm->instant) {
    uint64_t rest = atomic_load_explicit(&entry->rest, memory_order_acquire);
    if ((rest & REST_LINES) != 0)
      state_load(table, limit, rest, out);
    else
      limit->algorithm->unpack(&limit->spec.shape, word_full_at_ms(word), rest, out);
    return;
  }
  out->shape = limit->spec.shape;
  out->bucket.full_at_ms = word_full_at_ms(word);
  out->bucket.rem = limit->wide ? (int64_t)atomic_load_explicit(&entry->rest, memory_order_acquire) : word_rem(word);
}

/*
 * Whether an entry may be given to another key at now_ms: its bucket is full, on the store's own clock for longer than
 * the clock tolerance. The comparison is strict, since full_at_ms leaves out a remainder.
 */
static bool entry_is_spare(const memory_table *table, const memory_entry *entry, uint64_t word, int64_t now_ms) {
  int64_t kept_ms = table->given_time ? 0 : SPILE__TOLERANCE_MS;
  if (word_full_at_ms(word) + kept_ms < now_ms)
    return true;
  /* At the time 0 an instant of 0 may still be a part of a millisecond ahead. */
  return word_full_at_ms(word) == 0 && word_rem(word) == 0 &&
         atomic_load_explicit(&entry->rest, memory_order_acquire) == 0;
}

/* Writes a key into an entry that this thread has locked. @return false: no room for a long key */
static bool entry_fill(memory_table *table, memory_entry *entry, const memory_probe *probe) {
  uint32_t tail = NO_LINE;
  (void)pthread_mutex_lock(&table->keys.lock);
  bool done = probe->key_len <= sizeof(probe->start) || tail_take(&table->keys, probe, &tail);
  if (done && !spile__memory_unused(entry))
    pool_release(&table->keys, atomic_load_explicit(&entry->tail, memory_order_relaxed));
  (void)pthread_mutex_unlock(&table->keys.lock);
  if (!done)
    return false;
  atomic_store_explicit(&entry->shape, (uint32_t)(probe->key_len << LIMIT_ID_BITS) | probe->limit->id,
                        memory_order_release);
  atomic_store_explicit(&entry->tail, tail, memory_order_release);
  for (size_t i = 0; i < INLINE_WORDS; i++)
    atomic_store_explicit(&entry->key[i], probe->start[i], memory_order_release);
  /* The reach is the home's, whoever lies here, and others may be raising it. */
  uint64_t head = atomic_load_explicit(&entry->head, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&entry->head, &head, probe->hash | (head & HEAD_REACH),
                                                memory_order_acq_rel, memory_order_relaxed)) {
  }
  return true;
}

static void keys_unreserve(memory_table *table) {
  atomic_fetch_sub_explicit(&table->keys_used, 1, memory_order_relaxed);
}

/* One more key, unless the table has all it may have. */
static bool keys_reserve(memory_table *table) {
  if (atomic_fetch_add_explicit(&table->keys_used, 1, memory_order_relaxed) < table->keys_max)
    return true;
  keys_unreserve(table);
  return false;
}

/* Makes sure that looking for buckets of this home goes as far as `reach` entries. */
static void home_extend(memory_entry *home, uint64_t reach) {
  uint64_t head = atomic_load_explicit(&home->head, memory_order_relaxed);
  while ((head & HEAD_REACH) < reach &&
         !atomic_compare_exchange_weak_explicit(&home->head, &head, (head & ~HEAD_REACH) | reach, memory_order_acq_rel,
                                                memory_order_relaxed)) {
  }
}

/* Locks an entry if it was never used. */
static bool entry_lock_unused(memory_table *table, memory_entry *entry, uint64_t *word) {
  while (spile__memory_unused(entry)) {
    /* Another thread may be filling it. Whoever does moves the word on, so a lock on this word finds it unused. */
    *word = word_wait(entry);
    if (!spile__memory_unused(entry) || !keys_reserve(table))
      return false;
    if (spile__memory_lock(entry, *word))
      return true;
    keys_unreserve(table);
  }
  return false;
}

/* Locks an entry if it may be given to another key. */
static bool entry_lock_spare(const memory_table *table, memory_entry *entry, int64_t now_ms, uint64_t *word) {
  *word = atomic_load_explicit(&entry->word, memory_order_acquire);
  return !spile__memory_unused(entry) && (*word & WORD_LOCKED) == 0 && entry_is_spare(table, entry, *word, now_ms) &&
         spile__memory_lock(entry, *word);
}

/* Locks the first entry behind a home that a new key may have. @return it, with its distance, or NULL */
static memory_entry *entry_claim(memory_table *table, const memory_probe *probe, bool unused, bool spare,
                                 int64_t now_ms, uint64_t *word, size_t *distance) {
  size_t probes = table->entry_count < SPILE__MEMORY_PROBES_MAX ? table->entry_count : (size_t)SPILE__MEMORY_PROBES_MAX;
  for (*distance = 0; *distance < probes; ++*distance) {
    memory_entry *entry = &table->entries[(probe->home + *distance) % table->entry_count];
    if ((unused && entry_lock_unused(table, entry, word)) || (spare && entry_lock_spare(table, entry, now_ms, word)))
      return entry;
  }
  return NULL;
}

memory_added spile__memory_add(memory_table *table, const memory_probe *probe, int64_t now_ms, memory_entry **entry,
                               uint64_t *word) {
  pthread_mutex_t *stripe = &table->stripes[(probe->hash >> 8) % STRIPES];
  memory_added added = MEMORY_NO_ROOM;
  bool busy = false;
  (void)pthread_mutex_lock(stripe);
  if (table_find(table, probe, word, NULL, &busy) != NULL || busy) {
    added = MEMORY_FOUND;
  } else {
    /* On the store's clock any entry will do, the nearest first. Where the caller gives the time, spare ones are used
     * only when there are no others, so that no bucket is dropped before there is need. */
    size_t distance;
    *entry = entry_claim(table, probe, true, !table->given_time, now_ms, word, &distance);
    if (*entry == NULL && table->given_time)
      *entry = entry_claim(table, probe, false, true, now_ms, word, &distance);
    if (*entry != NULL) {
      bool unused = spile__memory_unused(*entry);
      if (entry_fill(table, *entry, probe)) {
        home_extend(&table->entries[probe->home], distance + 1);
        added = MEMORY_ADDED;
      } else {
        if (unused)
          keys_unreserve(table);
        spile__memory_unlock(*entry, *word);
      }
    }
  }
  (void)pthread_mutex_unlock(stripe);
  return added;
}

/* ---- Lines of states ---- */

/* How many entries are looked at for lines that their buckets need no more. */
#define RECLAIM_LOOKS 256

/* Takes the lines from a few entries whose buckets are full again. */
static void states_reclaim(memory_table *table, int64_t now_ms) {
  size_t at = atomic_fetch_add_explicit(&table->reclaim_at, RECLAIM_LOOKS, memory_order_relaxed);
  for (size_t i = 0; i < RECLAIM_LOOKS && i < table->entry_count; i++) {
    memory_entry *entry = &table->entries[(at + i) % table->entry_count];
    uint64_t word;
    if ((atomic_load_explicit(&entry->rest, memory_order_relaxed) & REST_LINES) == 0 ||
        !entry_lock_spare(table, entry, now_ms, &word))
      continue;
    uint32_t id = entry_limit_id(atomic_load_explicit(&entry->shape, memory_order_relaxed));
    spile__memory_unlock_with(table, entry, word, spile__memory_limit_by_id(table, id), NULL, NO_LINE);
  }
}

uint32_t spile__memory_line_take(memory_table *table, int64_t now_ms) {
  memory_pool *pool = &table->states;
  for (bool reclaimed = false;; reclaimed = true) {
    (void)pthread_mutex_lock(&pool->lock);
    uint32_t line = pool_take(pool);
    (void)pthread_mutex_unlock(&pool->lock);
    if (line != NO_LINE || reclaimed)
      return line;
    states_reclaim(table, now_ms);
  }
}

void spile__memory_line_give(memory_table *table, uint32_t line) {
  if (line == NO_LINE)
    return;
  (void)pthread_mutex_lock(&table->states.lock);
  pool_release(&table->states, line);
  (void)pthread_mutex_unlock(&table->states.lock);
}
