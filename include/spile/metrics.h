/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a limiter counts, and what it calls when somebody reaches a limit.
 *
 * What spile_count copies is always counted. options.metrics adds a row for each limit's name: takes by outcome and by
 * who decided, and how long the store took. A key never becomes a name here, and there are at most
 * SPILE_METRICS_NAMES_MAX names, so nobody can make the numbers grow by asking for more keys. docs/metrics.md has the
 * families for Prometheus and alert rules.
 */
#ifndef SPILE_METRICS_H
#define SPILE_METRICS_H

#include <spile/spile.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Counters by limit ---- */

/* For options.metrics. */
typedef enum spile_metrics_level {
  SPILE_METRICS_OFF = 0,    /* only what spile_count has */
  SPILE_METRICS_COUNTS = 1, /* takes of each limit; some ns on a take */
  SPILE_METRICS_TIMES = 2,  /* and how long the store took: two readings of a clock more on each call */
} spile_metrics_level;

/* Names that have a row of their own; what is taken under later names is counted in one row, of this name. */
#define SPILE_METRICS_NAMES_MAX 1024
#define SPILE_METRICS_OTHER "(other limits)"

/* Times are sorted into this many ranges, the last one without a bound. */
#define SPILE_METRICS_RANGES 22

/*
 * What was counted under a limit's name since the limiter was opened; another limit of that name, such as after a
 * reload, goes on with it. Each take that asked a limit is counted in exactly one member of its row, by what that limit
 * itself said: where another one of the same take denied, a limit that had the tokens counts it as allowed. May grow at
 * the end.
 */
typedef struct spile_metrics {
  const char *limit; /* the name, NUL-terminated */
  bool other;        /* the row of all names that found no room */

  uint64_t allowed; /* the store decided, or for never the numbers alone */
  uint64_t denied;
  uint64_t never;
  uint64_t full_open; /* a new key found no room, and on_full allowed, denied or failed */
  uint64_t full_closed;
  uint64_t full_failed;
  uint64_t policy_open[SPILE_REASONS_MAX];   /* the store did not answer, or was not asked for want of a subject, by
                                                spile_reason, and on_store_error allowed … */
  uint64_t policy_closed[SPILE_REASONS_MAX]; /* … denied … */
  uint64_t unavailable[SPILE_REASONS_MAX];   /* … or failed */
  uint64_t shadow_allowed;                   /* takes of a shadow limit: what it would have said */
  uint64_t shadow_denied;
  uint64_t shadow_failed; /* the store did not decide */

  /* SPILE_METRICS_TIMES: calls of the store that named this limit, peeks too, by how long they took. What the breaker
   * did not let through is not in it. calls[i] are those above spile_metrics_bound_ns(i - 1) and not above (i). */
  uint64_t calls[SPILE_METRICS_RANGES];
  uint64_t calls_ns; /* their times added up */
} spile_metrics;

/** The upper bound of a range: 1,000 ns, 2,500, 5,000, 10,000 … 5 s; INT64_MAX from the last range on. */
int64_t spile_metrics_bound_ns(size_t range);

/* Return false to end the walk. The row lives for the call. */
typedef bool spile_metrics_visitor(void *user, const spile_metrics *row);

/**
 * Shows the row of each limit's name that was counted, in no order; the one of SPILE_METRICS_OTHER only when it counted
 * something. Without options.metrics there are none.
 *
 * Each number is exact and never goes back. They are read one after the other while takes go on, so a take that ends
 * meanwhile may be in one of two numbers and not yet in the other; when no take is under way, all is exact.
 *
 * @return SPILE_OK; SPILE_EINVAL, limiter or visit is NULL; SPILE_EFORK
 * The visitor may take. Allocates nothing. Thread-safety: safe.
 */
int spile_metrics_each(spile_limiter *limiter, spile_metrics_visitor *visit, void *user);

/* How much of its room a store uses; SPILE_UNKNOWN where it cannot say. May grow at the end. */
typedef struct spile_usage {
  size_t struct_size; /* set by SPILE_USAGE_INIT */
  int64_t buckets;    /* stored; those full again included until something takes their place */
  int64_t buckets_max;
  int64_t bytes; /* of buckets_max or bytes_max a store knows one: where it has no room for a new bucket */
  int64_t bytes_max;
} spile_usage;

#define SPILE_USAGE_INIT \
  { sizeof(spile_usage), SPILE_UNKNOWN, SPILE_UNKNOWN, SPILE_UNKNOWN, SPILE_UNKNOWN }

/**
 * Reads how full the store is. memory: buckets and buckets_max; lmdb: buckets, bytes and bytes_max of the map; redis:
 * nothing, ask the server.
 *
 * @return SPILE_OK, also where nothing is known; SPILE_EINVAL, an argument is NULL or not started by SPILE_USAGE_INIT;
 *         SPILE_EFORK
 * Does not wait for takes. Thread-safety: safe.
 */
int spile_usage_read(spile_limiter *limiter, spile_usage *usage);

/**
 * Writes all of it in Prometheus' text format (version 0.0.4), the same in any locale. The answer to a scrape has
 * Content-Type: text/plain; version=0.0.4.
 *
 * @param buffer  gets the text and a NUL, or an empty text when it is too short for that; may be NULL when size is 0
 * @param size    of buffer in bytes
 * @param needed  out: bytes for the text as it is now and its NUL. Above `size` nothing was written: ask again with
 *                some more than that, since counters get longer and limits more
 * @return SPILE_OK, also when the buffer was too short; SPILE_EINVAL, limiter or needed is NULL; SPILE_EFORK
 *
 * Numbers may tear as spile_metrics_each says; within a histogram the count is the sum of the ranges. Allocates
 * nothing. Thread-safety: safe.
 */
int spile_metrics_text(spile_limiter *limiter, char *buffer, size_t size, size_t *needed);

/* ---- Hooks ---- */

#define SPILE_SUBJECT_KEY_LEN 16

/* What a hook gets to know. Lives for the call, with all it points to. May grow at the end. */
struct spile_event {
  const char *limit;              /* the limit's name; of an entry that is "blocked" the entry, as route */
  const char *route;              /* the entry of the limits file, such as "POST /search"; NULL where there is none */
  uint64_t subject_hash;          /* stands for the key: see spile_subject_hash; 0: there is no key */
  const spile_decision *decision; /* on_denied: of the take; on_near_limit: what this limit says */
};

/*
 * options.on_denied is called for each take that is denied or never, whoever decided (decision->decided_by tells), with
 * the limit that decided; a spile_wait is one take, told by how it ended. Told without a key, subject_hash 0, are a
 * request of spile_http_check that is denied as its caller has nothing that a closed limit's key asks for
 * (SPILE_REASON_SUBJECT), one that is denied as there is no memory for its keys, and one whose entry in the limits file
 * is "blocked" (SPILE_NEVER by SPILE_BY_LIMITS).
 *
 * options.on_near_limit is called when a take brings a bucket below options.near_limit_percent of its capacity: it had
 * at least that many tokens before, and has fewer now. Both numbers come from the one decision, so of all takes of all
 * processes just one sees a crossing, nothing needs to be remembered, and a bucket that refills above the mark and
 * falls again is told again.
 *
 * Both are called by the thread that takes, after its decision, outside of any lock; the take returns when they do, so
 * they must not block. They may call the library: takes made inside a hook are counted and call no hook. Peeks,
 * refusals of arguments and shadow limits call none.
 */

/**
 * The 64-bit hash that stands for a key in events and log lines: SipHash-1-3 under options.subject_key, or under a
 * random key that the limiter drew when it was opened. Who does not have that key can neither find the key from the
 * hash nor make another with the same one; two keys share a hash by chance once in 2^64 pairs.
 *
 * @return 0 when an argument is NULL or key_len is 0, or the limiter has no key, since none of metrics, hooks, log of
 *         denials and subject_key was asked for
 * Thread-safety: safe.
 */
uint64_t spile_subject_hash(const spile_limiter *limiter, const void *key, size_t key_len);

#ifdef __cplusplus
}
#endif
#endif
