/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For whoever writes a store.
 *
 * A store keeps buckets and decides about them. Its verb is the whole decision, made in one atomic step: there is no
 * get and no set, so no store can be raced between the two. What a decision is, how a bucket refills and what is
 * reported is not the store's to know: it reads and writes a state through the core, or, where the state lives on a
 * server, answers with a *reading* from which the caller's core makes outcome and waits. Every store therefore reports
 * alike.
 *
 * What wraps a store (a breaker, a cache of denials) is a store too: it implements this table around another one.
 */
#ifndef SPILE_SYS_STORE_H
#define SPILE_SYS_STORE_H

#include <spile/metrics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What is limited ---- */

/*
 * The numbers of a limit in the form that the arithmetic uses. A token is `period_ms` units, a millisecond adds
 * `refill` units, refill and period_ms have no common factor. Within the bounds refill ≥ 1, (capacity + debt)·period_ms
 * + 1001·refill ≤ 2^53 − 1, period_ms and the refill from the deepest debt ≤ 315,360,000,000 ms every product the core
 * makes is exact in int64_t and in a double.
 *
 * Of a window capacity is how many tokens it admits and period_ms its length; refill is 1 and debt 0. The bounds are
 * those that spile_limit_parse tells.
 */
typedef struct spile_shape {
  int64_t capacity;  /* C, tokens */
  int64_t refill;    /* N, units per millisecond */
  int64_t period_ms; /* P, units per token */
  int64_t debt;      /* tokens a bucket may be below zero */
} spile_shape;

/* A limit as a store sees it; immutable while any call uses it. */
typedef struct spile_spec {
  const char *name; /* not NUL-terminated by promise; 1 to SPILE_NAME_LEN_MAX bytes */
  size_t name_len;
  spile_algorithm algorithm;
  spile_on_full on_full;
  spile_on_store_error on_store_error;
  int64_t timeout_ms; /* 0: the limiter's */
  spile_shape shape;
  uint64_t fingerprint; /* equal specs have equal ones; the reverse must be checked */
} spile_spec;

/*
 * What the store read about one bucket, converted to the item's shape. Its meaning belongs to the algorithm; values
 * that are not named are 0.
 *
 *   token_bucket, leaky_bucket   the debt before the take in units, 0 to (capacity + debt)·P + 1000·N
 *   fixed_window                 the tokens this window has given, 0 to capacity; the ms until it ends, 1 to its length
 *                                and 1000 more
 *   sliding_window               the tokens the window before has given, 0 to capacity; the other two as above
 *   sliding_log                  the tokens that count, 0 to capacity; the ms until the item's cost fits, 0 when it
 *                                does; the ms until nothing counts, 0 when nothing does: both at most window + 1000.
 *                                In a charge the second is 0; in a refund it is the third as it will be afterwards.
 *                                ABI 3: the ms until the oldest token does not count, 0 when nothing does or the store
 *                                does not say
 */
typedef struct spile_reading {
  int64_t values[4];
} spile_reading;

/* One bucket of a call. A bucket is named by the key, the name of the spec and its algorithm, never by its numbers. */
typedef struct spile_item {
  const void *key;
  size_t key_len; /* 1 to SPILE_KEY_LEN_MAX */
  const spile_spec *spec;
  int64_t cost;          /* 0 or more; in a take up to the least that it asks for */
  spile_reading reading; /* out, written when the call succeeds */
} spile_item;

typedef enum spile_verb {
  SPILE_VERB_TAKE = 1, /* charge every item its cost if each has it; else charge none */
  SPILE_VERB_PEEK = 2, /* read only; nothing is written, whatever is found */

  /* ABI 3 */
  SPILE_VERB_CHARGE = 3,     /* charge every item its cost, whether it has it or not, as far as its shape's debt goes */
  SPILE_VERB_REFUND = 4,     /* give every item its cost back, as far as it owes that much */
  SPILE_VERB_TAKE_UP_TO = 5, /* as a take; then charge every item the most, up to `most`, that all of them have */
} spile_verb;

#define SPILE_STORE_TIME (-1) /* for now_ms: the store's own clock */

typedef struct spile_call {
  spile_verb verb;
  spile_item *items;   /* 1 to SPILE_REQUESTS_MAX, no bucket twice; in a take no cost is above its capacity */
  size_t n;            /* in a take up to no capacity is below `most` either */
  int64_t now_ms;      /* a given time, 0 to SPILE_TIME_MAX_MS, or SPILE_STORE_TIME */
  int64_t deadline_ms; /* on the monotonic clock (CLOCK_MONOTONIC), in milliseconds; INT64_MAX: none */
  size_t full_item;    /* out with SPILE_EFULL: the item that found no room */
  spile_error *error;  /* never NULL; filled on failure */
  uint64_t full_items; /* 0; out with SPILE_EFULL, where known: all that need room which is not there for all of them,
                          bit i for item i. The strictest on_full of them decides, else that of full_item */
  size_t failed_item;  /* SIZE_MAX; out with SPILE_EUNAVAILABLE, where one item is the cause: which */
  int64_t most;        /* ABI 3: of a take up to, the cost of every item or more; else 0 */
} spile_call;

/* ---- The environment of a store ---- */

/* Everything outside that a store may touch, so that tests and simulators can stand in for it. All thread-safe. */
typedef struct spile_env {
  int64_t (*monotonic_ms)(void *user); /* for deadlines */
  int64_t (*realtime_ms)(void *user);  /* milliseconds since 1970 */
  /* Fills `size` bytes, unguessable. @return false when the system has none */
  bool (*random)(void *user, void *bytes, size_t size);
  void *(*allocate)(void *user, void *block, size_t size); /* as realloc; size 0 frees */
  void (*log)(void *user, spile_log_level level, const char *line);
  void *user; /* passed to the clocks and random */
  void *allocate_user;
  void *log_user;
  int64_t (*monotonic_ns)(void *user); /* to measure with: any start, does not go back */
} spile_env;

/* ---- The store ---- */

typedef struct spile_store spile_store;

#define SPILE_STORE_ABI 3

typedef struct spile_store_ops {
  uint32_t abi;     /* SPILE_STORE_ABI of the header it was written against */
  const char *name; /* "memory", "lmdb", … */
  /* The deadline of a call unless the caller sets one, at most 3,600,000 ms. 0: calls never block. Then deadline_ms is
   * INT64_MAX whatever options and limits say, and no breaker stands before the store, since one that cannot be slow is
   * not helped by not being asked. A store that wraps another must hand on its number: with a 0 around one that blocks
   * nothing ends its calls. */
  int64_t timeout_ms;

  /* ABI 1 */

  /**
   * Must. Decides a call in one atomic step.
   *
   * The items fit when each one's reading leaves room for its cost. A take that fits charges every item; one that does
   * not charges none and writes only, for each item with a cost above 0, a conversion to a new shape or a clock cut
   * that the reading found; if that write fails, for whatever reason, the denial stands. A peek writes nothing. An
   * absent bucket and one that is full again are the same.
   *
   * ABI 3: a store whose abi is less is never asked to charge, refund or take up to. One that cannot do these answers
   * SPILE_ENOTSUP. A charge and a refund go through whatever the readings say; they write the items with a cost above 0
   * whose reading they change or for which there is a conversion or a cut to write. A bucket that a refund fills is
   * removed. A take up to that fits charges as spile_take_up_to tells and may come to nothing, and is then as a denial.
   * What each comes to is the core's to tell the caller, from the readings before it.
   *
   * May block until call->deadline_ms, not longer. May be called by many threads at once.
   *
   * @return SPILE_OK, every reading is written; SPILE_EFULL, a new bucket found no room, full_item says which, nothing
   *         is charged; SPILE_EUNAVAILABLE, error->reason says why and whether the take may have been charged (without
   *         a reason it is PROTOCOL: nobody knows), error->message what is wrong and what to do, without the key;
   *         SPILE_ENOMEM. By the reason the breaker knows what to stop (docs/failure.md): IO, READONLY, REFUSED, AUTH
   *         and LOCKED of a take stop charges and not denials; FOREIGN, CORRUPT and FORMAT concern their bucket alone
   */
  int (*decide)(spile_store *store, spile_call *call);

  /** Must. Forgets the bucket of an item (cost and reading are not used). @return SPILE_OK, SPILE_EUNAVAILABLE */
  int (*clear)(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error);

  /**
   * May. Removes the next few buckets of a kind in bounded time.
   *
   * @param now_ms  as in a call
   * @param again   out: true while there is more to do
   */
  int (*clean)(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
               spile_error *error);

  /** May. Shows what is stored; see spile_each. */
  int (*each)(spile_store *store, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
              spile_error *error);

  /** Must. Frees the store. `forked`: this is a child of the process that opened it; touch nothing that is shared. */
  void (*close)(spile_store *store, bool forked);

  /* ABI 2 */

  /**
   * May. How much of its room the store uses, soon and without waiting for takes.
   *
   * @param usage  every number is SPILE_UNKNOWN; the store sets those that it knows
   */
  void (*usage)(spile_store *store, spile_usage *usage);
} spile_store_ops;

/* The first member of every store's own struct. */
struct spile_store {
  const spile_store_ops *ops;
};

/**
 * Opens one of the library's stores by its address, to wrap it in one of your own.
 *
 * @param out  the store, closed by its ops->close; NULL on failure
 * @return as spile_open. Without a limiter nobody guards it against use after fork.
 */
int spile_store_open(spile_store **out, const char *uri, const spile_options *options,
                     spile_error *error) SPILE_MUST_USE;

/**
 * Opens a limiter over a store of your own.
 *
 * @param store  owned by the limiter from success on: spile_close closes it
 * @return as spile_open
 */
int spile_open_store(spile_limiter **out, spile_store *store, const spile_options *options,
                     spile_error *error) SPILE_MUST_USE;

/** The spec of a limit; lives as long as the limit. */
const spile_spec *spile_limit_spec(const spile_limit *limit);

#ifdef __cplusplus
}
#endif
#endif
