/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of programs that use spile: a clock that stands still until told, and a store that answers what it is told
 * and remembers what it was asked.
 */
#ifndef SPILE_TESTING_H
#define SPILE_TESTING_H

#include <spile/sys/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The fake clock ---- */

/*
 * Use: spile_fake_clock *clock = spile_fake_clock_new(1000);
 *      options.now_ms = spile_fake_clock_now; options.sleep_ms = spile_fake_clock_sleep; options.clock = clock;
 * Thread-safety: safe.
 */
typedef struct spile_fake_clock spile_fake_clock;

/** A clock that reads now_ms; NULL when there is no memory. Freed by spile_fake_clock_free, after its limiters. */
spile_fake_clock *spile_fake_clock_new(int64_t now_ms);
void spile_fake_clock_free(spile_fake_clock *clock);

/** For options.now_ms. */
int64_t spile_fake_clock_now(void *clock);

/** For options.sleep_ms: moves the clock on by `ms` and returns at once. */
void spile_fake_clock_sleep(void *clock, int64_t ms);

/** Sets the clock, forward or back. */
void spile_fake_clock_set(spile_fake_clock *clock, int64_t now_ms);

/** Moves the clock by `ms`, which may be negative. */
void spile_fake_clock_advance(spile_fake_clock *clock, int64_t ms);

/* ---- The scripted store ---- */

/* One decide call as the scripted store saw it. Keys and names are copies that live as long as the store. */
typedef struct spile_scripted_call {
  spile_verb verb;
  size_t n;
  struct {
    const char *key; /* NUL added behind key_len bytes */
    size_t key_len;
    const char *name; /* NUL-terminated */
    spile_shape shape;
    int64_t cost;
  } items[SPILE_REQUESTS_MAX];
  int64_t now_ms;
  int64_t deadline_ms;
  int64_t most; /* of a take up to; else 0 */
} spile_scripted_call;

/* Thread-safety: safe. */
typedef struct spile_scripted_store spile_scripted_store;

/** A store without answers; NULL when there is no memory. Hand spile_scripted_store_base to spile_open_store, which
 * owns it from then on; without a limiter, free it by its own close. */
spile_scripted_store *spile_scripted_store_new(void);
spile_store *spile_scripted_store_base(spile_scripted_store *store);

/**
 * Queues an answer: each decide call gets the first one that no call has got yet. Without a queued answer a call
 * succeeds with full buckets, and answers queued afterwards are for the calls that follow.
 *
 * @param code      SPILE_OK or the error to return
 * @param reason    with an error: its reason
 * @param readings  with SPILE_OK: n readings for the first n items; items beyond read 0 (full)
 * @return false when there is no memory
 */
bool spile_scripted_store_answer(spile_scripted_store *store, int code, spile_reason reason,
                                 const spile_reading *readings, size_t n);

/** How many decide calls came, and the i-th, counted from 0, or NULL. */
size_t spile_scripted_store_calls(spile_scripted_store *store);
const spile_scripted_call *spile_scripted_store_call(spile_scripted_store *store, size_t i);

#ifdef __cplusplus
}
#endif
#endif
