/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis store as the tests drive it: opened by its own function, asked through its own table.
 */
#ifndef SPILE_TESTS_REDIS_STORE_H
#define SPILE_TESTS_REDIS_STORE_H

#include <spile/sys/store.h>

#include "backends/redis_transport.h"

typedef struct answer {
  int code; /* what the call returned; for an answer the outcome */
  spile_decision decision;
  spile_error error;
  int64_t took_ms;
  int64_t late_us; /* how long after its deadline it ended; below zero: before */
} answer;

/* The spec of capacity and tokens/period, named "default". */
spile_spec spec_of(int64_t capacity, int64_t tokens, int64_t period_ms);

/* Opens a store by its URI, or says why not. */
int store_try_open(spile_store **out, const char *uri, bool given_time, spile_error *error);
spile_store *store_open(const char *uri, bool given_time);
/* With so many connections, 0 for the default, over a transport, NULL for real sockets. */
spile_store *store_open_over(const char *uri, int connections, const spile__redis_transport *transport, void *user);
void store_close(spile_store *store);

/* A take of one bucket, a peek, and a take of several, with a time limit that no healthy server needs, or another. */
answer store_take(spile_store *store, const char *key, const spile_spec *spec, int64_t cost, int64_t now_ms);
answer store_peek(spile_store *store, const char *key, const spile_spec *spec, int64_t cost, int64_t now_ms);
answer store_take_within(spile_store *store, const char *key, const spile_spec *spec, int64_t timeout_ms);
answer store_take_items(spile_store *store, spile_item *items, size_t n, int64_t now_ms);
answer store_ask(spile_store *store, spile_verb verb, spile_item *items, size_t n, int64_t now_ms, int64_t timeout_ms);

int64_t store_monotonic_ms(void);

/* Checks that there was no answer, for this reason, and that a message says so. */
#define ASSERT_UNAVAILABLE(got, want)                                                                \
  do {                                                                                               \
    answer got_answer = (got);                                                                       \
    cr_assert(got_answer.code == SPILE_EUNAVAILABLE && got_answer.error.reason == (int)(want),       \
              "code %d, reason %s: %s", got_answer.code, spile_reason_name(got_answer.error.reason), \
              got_answer.error.message);                                                             \
    cr_assert(got_answer.error.message[0] != '\0');                                                  \
  } while (0)

#define ASSERT_ALLOWED(got, want_remaining)                                                             \
  do {                                                                                                  \
    answer got_answer = (got);                                                                          \
    cr_assert(got_answer.code == SPILE_ALLOWED && got_answer.decision.remaining == (want_remaining),    \
              "code %d, remaining %lld: %s", got_answer.code, (long long)got_answer.decision.remaining, \
              got_answer.error.message);                                                                \
  } while (0)

#define ASSERT_DENIED(got, want_retry_ms)                                                                \
  do {                                                                                                   \
    answer got_answer = (got);                                                                           \
    cr_assert(got_answer.code == SPILE_DENIED && got_answer.decision.retry_after_ms == (want_retry_ms),  \
              "code %d, retry %lld: %s", got_answer.code, (long long)got_answer.decision.retry_after_ms, \
              got_answer.error.message);                                                                 \
  } while (0)

#endif
