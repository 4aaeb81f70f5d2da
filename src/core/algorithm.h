/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an algorithm is to the rest: a table of functions over a state and a reading. Each algorithm is one file in
 * src/core, which defines its table, and functions of the same names in lua/take.lua. Stores go through the table and
 * know no algorithm by name.
 *
 * A store reads a state into a *reading*, which is all that a decision is made of; charges the reading; and asks for
 * the state that it stands for. Between the two nothing of the state is needed, unless `log` says so.
 */
#ifndef SPILE_CORE_ALGORITHM_H
#define SPILE_CORE_ALGORITHM_H

#include <spile/sys/store.h>

/* The most entries of a log, and the largest capacity that it may have. */
#define SPILE__LOG_MAX 1000

/* What is stored about a bucket: the shape it was written under, and the algorithm's own numbers. */
typedef struct spile__state {
  spile_shape shape;
  size_t n; /* of the numbers, where the algorithm does not say how many they are */
  union {
    struct {
      int64_t full_at_ms; /* the bucket is full at full_at_ms + rem/N */
      int64_t rem;        /* 0 to N − 1 */
    } bucket;
    struct {
      int64_t start_ms; /* of the window, a multiple of its length */
      int64_t count;    /* tokens it has given; of a state that is stored 1 or more */
    } window;
    struct {
      int64_t start_ms; /* as above */
      int64_t count;    /* tokens this window has given … */
      int64_t before;   /* … and the one before it; not both 0 in a state that is stored */
    } sliding;
    int64_t log[SPILE__LOG_MAX];     /* entries, oldest first; see sliding_log.c */
    int64_t numbers[SPILE__LOG_MAX]; /* the same, for who only keeps them */
  };
} spile__state;

/* What one item's own limit says. */
typedef struct spile__verdict {
  int outcome;
  int64_t remaining;
  int64_t retry_after_ms;
  int64_t reset_after_ms;
  int64_t grows_after_ms; /* until remaining is one more; SPILE_UNKNOWN: it is the capacity already */
  int64_t delay_ms;       /* 0 unless it is allowed */
} spile__verdict;

typedef struct spile__algorithm {
  const char *name;
  const char *mark; /* how its shapes and states begin where they are text: a letter; "" for the first algorithm */
  bool instant;     /* the state is state.bucket, one instant, and decides as bucket.h does */
  bool window;      /* the limit is so many tokens in a window of time: capacity and period_ms, and no rate */
  size_t values;    /* of a reading, 1 or more: how many a server sends */
  size_t numbers;   /* of a state; 0: as many as it says */
  bool log;         /* a new state is made of the old one and the reading */

  /*
   * Makes the shape of a limit from its numbers as written, and checks every bound.
   * @return SPILE_OK; SPILE_ECONFIG with a message that names the bound and by how much it is passed
   */
  int (*shape_make)(spile_shape *out, int64_t capacity, int64_t tokens, int64_t period_ms, int64_t debt,
                    spile_error *error);

  /* Whether a shape, read from a store, is one that shape_make can have made. */
  bool (*shape_valid)(const spile_shape *shape);
  /* The longest time from a bucket that has nothing left to a full one, rounded up. */
  int64_t (*full_time_ms)(const spile_shape *shape);

  /*
   * Reads a state as of now_ms under `shape`, for a take of `cost`, or where that is below 0 for a refund of as much.
   * `state` NULL: no bucket, which is a full one.
   * @return true when the state is not what the shape and the clock make of it (another shape, a clock cut), so that a
   *         take with a cost has to write it, denied or not
   */
  bool (*read)(const spile_shape *shape, const spile__state *state, int64_t now_ms, int64_t cost, spile_reading *out);

  /* Whether a take of `cost`, 0 to capacity, succeeds. */
  bool (*fits)(const spile_shape *shape, const spile_reading *reading, int64_t cost);

  /* Charges a cost that fits, 0 included. */
  void (*charge)(const spile_shape *shape, spile_reading *reading, int64_t cost);

  /* The most that fits, in whole tokens; 0 where nothing does. */
  int64_t (*room)(const spile_shape *shape, const spile_reading *reading);

  /*
   * Charges a cost of 0 or more, whether it fits or not. NULL: what does not fit is not charged.
   * @return the whole tokens that were not charged, rounded up
   */
  int64_t (*force)(const spile_shape *shape, spile_reading *reading, int64_t cost);

  /* Gives back a cost of 0 or more, as far as it is owed; the reading is one that was read for this refund. */
  void (*refund)(const spile_shape *shape, spile_reading *reading, int64_t cost);

  /*
   * The state of a reading at now_ms, charged or not. `old`: the state it was read from, NULL for none; may be `out`.
   * Where `log` is false it is not asked for, and may be NULL always.
   * @return false when it equals an absent one, so that it need not be stored
   */
  bool (*state)(const spile_shape *shape, const spile_reading *reading, int64_t now_ms, const spile__state *old,
                spile__state *out);

  /* What to tell: `charged` when the reading is from before a take that was charged. */
  void (*report)(const spile_shape *shape, const spile_reading *reading, int64_t cost, bool charged,
                 spile__verdict *out);

  /* Whether a reading for a `cost`, as of read, that came from outside is one the algorithm can give. */
  bool (*reading_valid)(const spile_shape *shape, const spile_reading *reading, int64_t cost);

  /* Whether a stored state, whose shape is valid, is one the algorithm can have written. */
  bool (*state_valid)(const spile__state *state);

  /* When the state equals an absent one, in ms, rounded up: a store may drop it then. */
  int64_t (*full_at_ms)(const spile__state *state);

  /*
   * A state that is no instant, as full_at_ms and one word below 2^63, for a store that has little room; and back,
   * where the word 0 is the state of nothing. Both may be NULL for an instant. Whatever `word` is, unpack does no harm.
   * @return false: it takes more than that
   */
  bool (*pack)(const spile__state *state, uint64_t *word);
  void (*unpack)(const spile_shape *shape, int64_t full_at_ms, uint64_t word, spile__state *out);
  int64_t pack_max; /* up to this capacity pack never refuses */
} spile__algorithm;

extern const spile__algorithm spile__token_bucket;
extern const spile__algorithm spile__leaky_bucket;
extern const spile__algorithm spile__fixed_window;
extern const spile__algorithm spile__sliding_window;
extern const spile__algorithm spile__sliding_log;

/* An entry of a log: the instant above ten bits of tokens. */
#define SPILE__LOG_TOKENS_BITS 10
static inline int64_t spile__log_entry(int64_t at_ms, int64_t tokens) {
  return at_ms * (1 << SPILE__LOG_TOKENS_BITS) + tokens;
}

/* How many numbers a state has. */
static inline size_t spile__state_numbers(const spile__algorithm *algorithm, const spile__state *state) {
  return algorithm->numbers > 0 ? algorithm->numbers : state->n;
}

/* The table of an algorithm, or NULL for a number that is none. */
const spile__algorithm *spile__algorithm_get(spile_algorithm algorithm);

/* The algorithm of a word. @return false: there is none */
bool spile__algorithm_find(const char *word, size_t len, spile_algorithm *out);

/* What to show of a stored state at now_ms; key, name and `simulated` are left for the caller. */
spile_stored spile__stored_make(spile_algorithm algorithm, const spile__state *state, int64_t now_ms);

/* The cost that an algorithm reads for: a charge is no question, and a refund goes the other way. */
static inline int64_t spile__cost_read(spile_verb verb, int64_t cost) {
  return verb == SPILE_VERB_CHARGE ? 0 : verb == SPILE_VERB_REFUND ? -cost : cost;
}

/* Reads the state of an item's bucket into its reading; as the algorithm's `read`. */
static inline bool spile__item_read(spile_item *item, spile_verb verb, const spile__state *state, int64_t now_ms) {
  return spile__algorithm_get(item->spec->algorithm)
      ->read(&item->spec->shape, state, now_ms, spile__cost_read(verb, item->cost), &item->reading);
}

/* Whether what a store read about an item is what it can have read. */
static inline bool spile__item_valid(const spile_item *item, spile_verb verb) {
  return spile__algorithm_get(item->spec->algorithm)
      ->reading_valid(&item->spec->shape, &item->reading, spile__cost_read(verb, item->cost));
}

#endif
