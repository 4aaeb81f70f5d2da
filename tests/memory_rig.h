/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory stores for tests that reach below the limiter, and what is asked of them.
 */
#ifndef SPILE_TESTS_MEMORY_RIG_H
#define SPILE_TESTS_MEMORY_RIG_H

#include <spile/sys/store.h>

/* Opens "memory:ADDRESS"; the test fails when it does not open. */
spile_store *store_open(const char *address, bool given_time);

/* A token bucket, and a sliding log. */
spile_spec spec_of(const char *name, int64_t capacity, int64_t tokens, int64_t period_ms);
spile_spec log_of(const char *name, int64_t capacity, int64_t window_ms);

spile_item item_of(const spile_spec *spec, const char *key);
/* Takes at `now_ms` from one bucket. @return as spile_store_ops.decide; `reading` may be NULL */
int take(spile_store *store, const spile_spec *spec, const char *key, int64_t cost, int64_t now_ms,
         spile_reading *reading);

#endif
