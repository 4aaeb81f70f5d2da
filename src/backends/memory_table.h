/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the memory store: one cache line an entry, found without a lock.
 *
 * The keyed hash of a bucket names its home, the entry at which looking for it begins. It lies there or among the
 * entries that follow; how far the farthest bucket of a home lies is written in the home itself, so a bucket that is
 * not there is known to be missing after as many looks, mostly one. SPILE__MEMORY_PROBES_MAX is the farthest. An entry
 * never moves; it may be given to another key when its bucket is full again, since a full bucket and none are the same.
 *
 * `head` is the upper 56 bits of the hash of the bucket that lies here, 0 in an entry that was never used, and in the
 * low 8 bits the reach: how many entries to look at for buckets whose home this is.
 *
 * `word` is at once the state of the bucket, the entry's lock and its version:
 *
 *   63      locked: somebody changes more than the word
 *   62..60  generation: moves with every change under the lock
 *   59..44  rem, where N fits 16 bits; else it stands in `rest` and is changed under the lock only
 *   43..0   full_at_ms
 *
 * A state that is no instant is changed under the lock only. It stands packed in `rest`, or in lines of its own that
 * `rest` names; and the generation has all of the bits 62 to 44, since full_at_ms may stay the same for long. Lines are
 * a pool of fixed size; a bucket that finds no line in it is treated as one that finds no entry.
 *
 * Reading goes: load the word unlocked, compare the key, decide, and then either swap the word for the new one or look
 * whether it is still the same. Whatever changed the key in between has changed the word. (That it changed eight times
 * to the same instant between two loads of one thread is left out of account.) Everything a reader may look at while it
 * changes is atomic: loads acquire and stores release, so one who sees a new key also sees the lock.
 */
#ifndef SPILE_BACKENDS_MEMORY_TABLE_H
#define SPILE_BACKENDS_MEMORY_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backends/memory.h"
#include "core/algorithm.h"

_Static_assert(SPILE__MEMORY_PROBES_MAX <= 255, "a reach has 8 bits");

#define WORD_LOCKED (UINT64_C(1) << 63)
#define WORD_GENERATION_SHIFT 60
#define WORD_REM_SHIFT 44
#define WORD_FULL_AT_MASK ((UINT64_C(1) << WORD_REM_SHIFT) - 1)
#define WORD_REM_MASK UINT64_C(0xffff)

#define HEAD_REACH UINT64_C(0xff)

#define INLINE_WORDS 4
#define LINE_WORDS 7
#define NO_LINE UINT32_MAX

typedef struct memory_entry {
  _Alignas(64) _Atomic uint64_t head;
  _Atomic uint64_t word;
  _Atomic uint64_t rest;              /* of the state: what the word does not hold */
  _Atomic uint32_t shape;             /* id of the memory_limit it was last written under; key_len above it */
  _Atomic uint32_t tail;              /* first line of what does not fit below, or NO_LINE */
  _Atomic uint64_t key[INLINE_WORDS]; /* zero-padded */
} memory_entry;

_Static_assert(sizeof(memory_entry) == 64, "an entry is a cache line");

/* Where the rest of a long key stands, or a state. */
typedef struct memory_line {
  _Alignas(64) _Atomic uint64_t words[LINE_WORDS];
  _Atomic uint32_t next;
} memory_line;

typedef struct memory_pool {
  memory_line *lines;
  uint32_t count;
  uint32_t used;
  uint32_t free; /* first of a list, or NO_LINE */
  pthread_mutex_t lock;
} memory_pool;

/* `rest` where the state stands in lines: how many numbers, and the first line. */
#define REST_LINES (UINT64_C(1) << 63)
#define REST_NUMBERS_SHIFT 32

/* A spec that was seen, copied. Lives as long as the table. */
typedef struct memory_limit {
  spile_spec spec;
  uint32_t id;
  uint32_t bucket_id; /* the id of the first limit with this name and algorithm: names the bucket with the key */
  const spile__algorithm *algorithm;
  bool wide;        /* N passes 16 bits */
  bool lines;       /* a state may need lines */
  uint32_t swap_id; /* its id where the word holds the state whole, so that swapping the word changes it; else no id */
} memory_limit;

/* An id has 19 bits beside the 13 of a key's length. */
#define LIMIT_ID_BITS 19
#define LIMITS_MAX ((1 << LIMIT_ID_BITS) - 1)
#define LIMIT_SLOTS (1 << (LIMIT_ID_BITS + 1))
_Static_assert(SPILE_KEY_LEN_MAX < 1 << (32 - LIMIT_ID_BITS), "a key's length fits beside an id");
#define STRIPES 64

typedef struct memory_table {
  memory_entry *entries;
  size_t entry_count;
  size_t keys_max;
  atomic_size_t keys_used; /* entries that were ever used, at most keys_max: a third of the table is always free */
  bool given_time;
  uint64_t secret[2];

  memory_pool keys;
  memory_pool states;
  atomic_size_t reclaim_at; /* where looking for lines of full buckets goes on */

  _Atomic(memory_limit *) *limit_slots; /* LIMIT_SLOTS, by fingerprint */
  _Atomic(memory_limit *) *limits;      /* LIMITS_MAX, by id */
  uint32_t *bucket_slots;               /* LIMIT_SLOTS, by name and algorithm: id + 1 of the first limit of that name */
  uint32_t limit_count;
  pthread_mutex_t limits_lock;

  /* Adding a key takes the stripe of its hash, so that no key is added twice. */
  pthread_mutex_t stripes[STRIPES];

  void *map;
  size_t map_size;
} memory_table;

/* A bucket to look for. */
typedef struct memory_probe {
  const memory_limit *limit;
  const void *key;
  size_t key_len;
  uint64_t hash;                /* low 8 bits 0 */
  size_t home;                  /* the entry at which looking begins */
  uint64_t start[INLINE_WORDS]; /* the first bytes of the key, zero-padded */
} memory_probe;

bool spile__memory_table_init(memory_table *table, size_t keys, bool given_time, const spile_env *env);
void spile__memory_table_finish(memory_table *table, const spile_env *env);

/* The copy of a spec. @return NULL: more than LIMITS_MAX, or no memory */
const memory_limit *spile__memory_limit_get(memory_table *table, const spile_spec *spec, const spile_env *env);
/* After the above gave NULL: whether it is for more than LIMITS_MAX, and not for want of memory. */
bool spile__memory_limits_full(memory_table *table);
const memory_limit *spile__memory_limit_by_id(const memory_table *table, uint32_t id);

void spile__memory_probe_init(memory_probe *probe, const memory_table *table, const memory_limit *limit,
                              const void *key, size_t key_len);

/*
 * Finds an entry and an unlocked word of it that was loaded before its key was compared. Waits for locked entries, so
 * no entry may be held.
 * @param looked  NULL or out: how many entries were looked at
 * @return NULL: there is none
 */
memory_entry *spile__memory_find(const memory_table *table, const memory_probe *probe, uint64_t *word, size_t *looked);

/* Whether there is no entry, for who holds others: where that cannot be known without waiting it says false. */
bool spile__memory_absent(const memory_table *table, const memory_probe *probe);

typedef enum memory_added { MEMORY_NO_ROOM, MEMORY_ADDED, MEMORY_FOUND } memory_added;

/*
 * Adds an entry and returns it locked, with the word to unlock it by. Never waits for a locked entry, so others may be
 * held meanwhile.
 * @return MEMORY_ADDED; MEMORY_FOUND, another thread was faster; MEMORY_NO_ROOM
 */
memory_added spile__memory_add(memory_table *table, const memory_probe *probe, int64_t now_ms, memory_entry **entry,
                               uint64_t *word);

/* Locks an entry that still has this word. */
bool spile__memory_lock(memory_entry *entry, uint64_t word);

/* Unlocks an entry unchanged. */
void spile__memory_unlock(memory_entry *entry, uint64_t word);

/*
 * Takes one line for a state. When there is none, some entries are looked at whether their buckets are full again at
 * now_ms, and lose theirs. Never waits for a locked entry, so others may be held meanwhile.
 * @return NO_LINE: none is to be had
 */
uint32_t spile__memory_line_take(memory_table *table, int64_t now_ms);
void spile__memory_line_give(memory_table *table, uint32_t line);

/* Whether a locked entry needs one more line than it has for this state; it never needs two more. */
bool spile__memory_needs_line(const memory_entry *entry, const memory_limit *limit, const spile__state *state);

/*
 * Unlocks an entry with a new state, or full where `state` is NULL.
 * @param spare  a line for the case that the state needs one more, or NO_LINE where it does not; taken over
 */
void spile__memory_unlock_with(memory_table *table, memory_entry *entry, uint64_t word, const memory_limit *limit,
                               const spile__state *state, uint32_t spare);

/* The state of an entry whose word this is; exact only under the lock, or when the word is still the same afterwards.
 */
void spile__memory_state(const memory_table *table, const memory_entry *entry, uint64_t word, spile__state *out);

/* Copies the key of an entry; the caller checks afterwards that the word is still the same. @return its length */
size_t spile__memory_key_copy(const memory_table *table, const memory_entry *entry, unsigned char *out);

/* Asks for the cache line at which looking begins. */
static inline void spile__memory_prefetch(const memory_table *table, const memory_probe *probe) {
  __builtin_prefetch(&table->entries[probe->home]);
}

/* Waits a little for somebody else's lock; `turns` counts from 0. */
void spile__memory_pause(unsigned *turns);

/* Whether an entry was never used. */
static inline bool spile__memory_unused(const memory_entry *entry) {
  return (atomic_load_explicit(&entry->head, memory_order_acquire) & ~HEAD_REACH) == 0;
}

static inline int64_t word_full_at_ms(uint64_t word) {
  return (int64_t)(word & WORD_FULL_AT_MASK);
}

static inline int64_t word_rem(uint64_t word) {
  return (int64_t)(word >> WORD_REM_SHIFT & WORD_REM_MASK);
}

static inline uint32_t entry_limit_id(uint32_t shape) {
  return shape & LIMITS_MAX;
}

static inline size_t entry_key_len(uint32_t shape) {
  return shape >> LIMIT_ID_BITS;
}

#endif
