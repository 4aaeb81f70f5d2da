/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory store beyond what every store must do: its bounds, its hash, its room.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "backends/memory.h"
#include "core/algorithm.h"
#include "core/decide.h"
#include "core/limit.h"
#include "core/siphash.h"
#include "limiter/env.h"
#include "memory_rig.h"

Test(memory, refuses_addresses_that_it_does_not_know) {
  const char *const bad[] = {"x",         "?keys=0",         "?keys=-1",
                             "?keys=1e3", "?keys=",          "?keys",
                             "?size=3",   "?keys=100000001", "?keys=99999999999999999999",
                             "?k%zz=1",   "?keys=1&keys=1",  "?keys=1&%6beys=2"};
  spile_env env;
  spile__env_init(&env);
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    spile__store_config config = {.address = bad[i], .env = &env, .key_prefix = "rl"};
    spile_store *store;
    spile_error error = {0};
    cr_assert(spile__memory_open(&store, &config, &error) == SPILE_ECONFIG, "%s", bad[i]);
    cr_assert(store == NULL && error.message[0] != '\0');
  }
}

Test(memory, takes_no_parameter_twice) {
  spile_error error = {0};
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=5&keys=6", NULL, &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "the parameter \"keys\" twice; write it once") != NULL, "%s", error.message);
}

Test(memory, mem_01_keeps_a_drained_victim_through_a_flood_of_new_keys) {
  spile_store *store = store_open("?keys=10000", true);
  size_t size = spile__memory_size(store);
  spile_spec spec = spec_of("default", 5, 1, 3600000);
  spile_reading reading;
  cr_assert(eq(int, take(store, &spec, "victim", 5, 0, NULL), SPILE_OK));
  int stored = 0;
  int refused = 0;
  for (int i = 0; i < 1000000; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "%d", i);
    int result = take(store, &spec, key, 1, 60000, NULL);
    cr_assert(result == SPILE_OK || result == SPILE_EFULL);
    result == SPILE_OK ? stored++ : refused++;
  }
  cr_assert(eq(int, stored, 9999));
  cr_assert(eq(int, refused, 990001));
  cr_assert(eq(sz, spile__memory_size(store), size));
  cr_assert(eq(int, take(store, &spec, "victim", 1, 60000, &reading), SPILE_OK));
  /* The debt of a bucket that was emptied at 0: 5 tokens less a minute. */
  cr_assert(eq(i64, reading.values[0], INT64_C(5) * 3600000 - 60000));
  /* When all are full again every new key finds room, wherever in the table it belongs. */
  for (int i = 0; i < 1000; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "late %d", i);
    cr_assert(eq(int, take(store, &spec, key, 1, 60000 + 6 * 3600000, NULL), SPILE_OK));
  }
  store->ops->close(store, false);
}

/* Whatever the order, the strictest on_full of those without room decides, and each limit says its own. */
Test(memory, mem_01_the_strictest_of_those_without_room_decides) {
  static const struct {
    const char *kinds; /* k: known, with 2 left; o, c, f: new, with on_full open, closed, fail */
    int result;
    char named; /* the kind of the limit that is named */
  } rows[] = {
      {"k", SPILE_ALLOWED, 'k'},     {"ko", SPILE_ALLOWED, 'o'},   {"ok", SPILE_ALLOWED, 'o'},
      {"kc", SPILE_DENIED, 'c'},     {"ck", SPILE_DENIED, 'c'},    {"kf", SPILE_EFULL, 'f'},
      {"fk", SPILE_EFULL, 'f'},      {"oc", SPILE_DENIED, 'c'},    {"co", SPILE_DENIED, 'c'},
      {"cf", SPILE_EFULL, 'f'},      {"fc", SPILE_EFULL, 'f'},     {"of", SPILE_EFULL, 'f'},
      {"kocf", SPILE_EFULL, 'f'},    {"fcok", SPILE_EFULL, 'f'},   {"cokc", SPILE_DENIED, 'c'},
      {"ookoo", SPILE_ALLOWED, 'o'}, {"oooo", SPILE_ALLOWED, 'o'},
  };
  for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
    for (int each_wanted = 0; each_wanted < 2; each_wanted++) {
      spile_limiter *limiter;
      cr_assert(eq(int, spile_open(&limiter, "memory:?keys=1", NULL, NULL), SPILE_OK));
      size_t n = strlen(rows[row].kinds);
      spile_limit *known;
      cr_assert(eq(int, spile_limit_parse(&known, "3/h,name=k", NULL), SPILE_OK));
      spile_decision d;
      cr_assert(eq(int, spile_take(limiter, known, "k", 1, 1, &d), SPILE_ALLOWED));
      spile_request requests[8];
      for (size_t i = 0; i < n; i++) {
        char kind = rows[row].kinds[i];
        char text[80];
        (void)snprintf(text, sizeof(text), "5/h,name=%c%zu,on_full=%s", kind, i,
                       kind == 'o'   ? "open"
                       : kind == 'c' ? "closed"
                                     : "fail");
        spile_limit *limit = spile_limit_ref(known);
        if (kind != 'k') {
          spile_limit_unref(limit);
          cr_assert(eq(int, spile_limit_parse(&limit, text, NULL), SPILE_OK));
        }
        requests[i] = (spile_request){limit, "k", 1, 1};
      }
      spile_decision each[8];
      int result = spile_take_all(limiter, requests, n, &d, each_wanted ? each : NULL);
      cr_assert(result == rows[row].result, "%s: %s", rows[row].kinds, spile_code_name(result));
      cr_assert(d.name[0] == rows[row].named, "%s: %s", rows[row].kinds, d.name);
      cr_assert(eq(str, (char *)(uintptr_t)d.name, (char *)(uintptr_t)spile_limit_name(requests[d.index].limit)));
      cr_assert(eq(i64, d.capacity, rows[row].named == 'k' ? 3 : 5));
      cr_assert(strlen(d.detail) == 0 ? rows[row].named == 'k' : rows[row].named != 'k', "%s: %s", rows[row].kinds,
                d.detail);
      bool charged = result == SPILE_ALLOWED;
      for (size_t i = 0; i < n && each_wanted; i++) {
        char kind = rows[row].kinds[i];
        int want = kind == 'c' ? SPILE_DENIED : kind == 'f' ? 0 : SPILE_ALLOWED;
        int by = kind == 'k' ? SPILE_BY_STORE : kind == 'f' ? SPILE_BY_NOBODY : SPILE_BY_FULL;
        cr_assert(each[i].outcome == want && each[i].decided_by == by, "%s[%zu]: %d by %s", rows[row].kinds, i,
                  each[i].outcome, spile_decided_by_name(each[i].decided_by));
        cr_assert(eq(u32, each[i].index, (uint32_t)i));
        cr_assert(eq(i64, each[i].remaining, kind != 'k' ? SPILE_UNKNOWN : charged ? 1 : 2));
        cr_assert(strlen(each[i].detail) == 0 ? kind == 'k' : kind != 'k', "%s[%zu]: %s", rows[row].kinds, i,
                  each[i].detail);
      }
      cr_assert(eq(int, spile_peek(limiter, known, "k", 1, 1, &d), SPILE_ALLOWED));
      cr_assert(eq(i64, d.remaining, charged && strchr(rows[row].kinds, 'k') != NULL ? 1 : 2));
      for (size_t i = 0; i < n; i++)
        spile_limit_unref((spile_limit *)(uintptr_t)requests[i].limit);
      spile_limit_unref(known);
      spile_close(limiter);
    }
  }
}

Test(memory, mem_01_counts_and_answers_by_on_full) {
  spile_limiter *limiter;
  spile_fake_clock *clock = spile_fake_clock_new(0);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=1", &options, NULL), SPILE_OK));
  spile_limit *limits[3];
  const char *const texts[] = {"1/h,capacity=5", "1/h,capacity=5,on_full=open,name=o",
                               "1/h,capacity=5,on_full=fail,name=f"};
  for (int i = 0; i < 3; i++)
    cr_assert(eq(int, spile_limit_parse(&limits[i], texts[i], NULL), SPILE_OK));
  spile_decision d;
  cr_assert(eq(int, spile_take(limiter, limits[0], "known", 5, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(limiter, limits[0], "new", 3, 1, &d), SPILE_DENIED));
  cr_assert(eq(int, d.decided_by, SPILE_BY_FULL));
  cr_assert(eq(i64, d.remaining, SPILE_UNKNOWN));
  cr_assert(eq(i64, d.retry_after_ms, SPILE_UNKNOWN));
  cr_assert(eq(i64, d.capacity, 5));
  cr_assert(eq(int, spile_take(limiter, limits[1], "new", 3, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, d.decided_by, SPILE_BY_FULL));
  cr_assert(eq(int, spile_take(limiter, limits[2], "new", 3, 1, &d), SPILE_EFULL));
  cr_assert(eq(int, d.outcome, 0));
  cr_assert(d.detail[0] != '\0');
  /* Never is never, room or not; a peek needs no room; a known key goes on. */
  cr_assert(eq(int, spile_take(limiter, limits[0], "new", 3, 6, &d), SPILE_NEVER));
  cr_assert(eq(int, spile_peek(limiter, limits[0], "new", 3, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(int, spile_take(limiter, limits[0], "known", 5, 1, &d), SPILE_ALLOWED));
  cr_assert(eq(i64, d.remaining, 3));
  /* A denial stands where another bucket of the vector has no room; and an open one is left out of the sum. */
  spile_request requests[2] = {{limits[0], "known", 5, 4}, {limits[1], "new", 3, 1}};
  spile_decision each[2];
  cr_assert(eq(int, spile_take_all(limiter, requests, 2, &d, each), SPILE_DENIED));
  cr_assert(eq(int, d.decided_by, SPILE_BY_STORE));
  cr_assert(eq(i64, d.retry_after_ms, 3600000));
  requests[0].cost = 3;
  cr_assert(eq(int, spile_take_all(limiter, requests, 2, &d, each), SPILE_ALLOWED));
  cr_assert(eq(int, d.decided_by, SPILE_BY_FULL));
  cr_assert(eq(int, each[0].decided_by, SPILE_BY_STORE));
  cr_assert(eq(i64, each[0].remaining, 0));
  cr_assert(eq(int, each[1].decided_by, SPILE_BY_FULL));
  cr_assert(eq(int, each[1].outcome, SPILE_ALLOWED));
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.full, 4));
  /* Each take is counted by one of these. */
  cr_assert(eq(u64, counters.allowed, 4));
  cr_assert(eq(u64, counters.denied, 2));
  cr_assert(eq(u64, counters.never, 1));
  cr_assert(eq(u64, counters.unavailable, 1));
  for (int i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
  spile_close(limiter);
  spile_fake_clock_free(clock);
}

/* Lines for states: 2 a key and 143, of seven entries each. */
Test(memory, mem_01_logs_that_find_no_room_are_told_so_and_known_ones_go_on) {
  spile_store *store = store_open("?keys=4", true);
  spile_spec log = log_of("log", 1000, 60000);
  spile_spec bucket = spec_of("bucket", 5, 1, 3600000);
  for (int64_t i = 0; i < 1000; i++)
    cr_assert(eq(int, take(store, &log, "a", 1, i, NULL), SPILE_OK));
  /* The other eight lines; one entry needs none. */
  int64_t n = 0;
  while (take(store, &log, "b", 1, 1000 + n, NULL) == SPILE_OK)
    n++;
  cr_assert(eq(i64, n, 56));
  /* A known log goes on where it needs no more room, and denies. */
  spile_reading reading;
  cr_assert(eq(int, take(store, &log, "b", 1, 1000 + n - 1, &reading), SPILE_OK));
  cr_assert(eq(i64, reading.values[0], 56));
  cr_assert(eq(int, take(store, &log, "a", 1, 1000, &reading), SPILE_OK));
  cr_assert(eq(i64, reading.values[0], 1000));
  cr_assert(eq(int, take(store, &log, "b", 1000, 2000, &reading), SPILE_OK));
  cr_assert(lt(i64, 0, reading.values[1]));
  /* A vector with it charges nothing. */
  spile_error error = {0};
  spile_item items[2] = {item_of(&bucket, "b"), item_of(&log, "b")};
  items[0].cost = items[1].cost = 1;
  spile_call call = {.verb = SPILE_VERB_TAKE, .items = items, .n = 2, .now_ms = 2000, .error = &error};
  cr_assert(eq(int, store->ops->decide(store, &call), SPILE_EFULL));
  cr_assert(eq(sz, call.full_item, 1));
  cr_assert(eq(int, take(store, &bucket, "b", 0, 2000, &reading), SPILE_OK));
  cr_assert(eq(i64, reading.values[0], 0));
  /* Where nothing counts any more, the lines are taken back. */
  cr_assert(eq(int, take(store, &log, "c", 1, 61500, NULL), SPILE_OK));
  for (int64_t i = 0; i < 1000; i++)
    cr_assert(eq(int, take(store, &log, "c", 1, 62000 + i, NULL), SPILE_OK));
  cr_assert(eq(int, take(store, &log, "c", 0, 62999, &reading), SPILE_OK));
  cr_assert(eq(i64, reading.values[0], 1000));
  store->ops->close(store, false);
}

/* Sliding windows too large to be packed into their entry. */
Test(memory, counts_past_31_bits_stand_in_lines) {
  spile_store *store = store_open("?keys=1", true);
  spile_spec spec = {.name = "w", .name_len = 1, .algorithm = SPILE_SLIDING_WINDOW};
  int64_t large = INT64_C(3002399751580);
  cr_assert(eq(int, spile__sliding_window.shape_make(&spec.shape, large, 0, 1000, 0, NULL), SPILE_OK));
  spile__spec_finish(&spec);
  spile_reading reading;
  for (int64_t i = 0; i < 1000; i++) {
    cr_assert(eq(int, take(store, &spec, "k", large, 4000 * i, &reading), SPILE_OK));
    cr_assert(eq(i64, reading.values[1], 0));
    cr_assert(eq(int, take(store, &spec, "k", 1, 4000 * i, &reading), SPILE_OK));
    cr_assert(eq(i64, reading.values[1], large));
    cr_assert(eq(int, take(store, &spec, "k", 3, 4000 * i + 1999, &reading), SPILE_OK));
    cr_assert(eq(i64, reading.values[0], large));
  }
  store->ops->close(store, false);
}

/* How many entries are probed in all to look up `count` keys that were put in. */
static size_t probes_of(char (*keys)[16], size_t count) {
  spile_store *store = store_open("?keys=100000", true);
  spile_spec spec = spec_of("default", 5, 1, 3600000);
  size_t total = 0;
  for (size_t i = 0; i < count; i++)
    cr_assert(eq(int, take(store, &spec, keys[i], 1, 0, NULL), SPILE_OK));
  for (size_t i = 0; i < count; i++) {
    spile_item item = item_of(&spec, keys[i]);
    total += spile__memory_probes(store, &item);
  }
  store->ops->close(store, false);
  return total;
}

Test(memory, mem_04_is_not_slowed_by_keys_made_to_collide_without_the_secret) {
  enum { count = 100000 };
  static char colliding[count][16];
  static char plain[count][16];
  /* Under a key of zero all of these would begin their search in one hundredth of the table. */
  const uint64_t zero[2] = {0, 0};
  uint64_t candidate = 0;
  for (size_t i = 0; i < count; i++) {
    do {
      (void)snprintf(colliding[i], sizeof(colliding[i]), "%llx", (unsigned long long)candidate++);
    } while (spile__siphash64_pair(zero, 0, colliding[i], strlen(colliding[i])) >> 32 > UINT32_MAX / 100);
    (void)snprintf(plain[i], sizeof(plain[i]), "p%zu", i);
  }
  size_t attacked = probes_of(colliding, count);
  size_t usual = probes_of(plain, count);
  cr_assert(attacked <= 3 * usual, "%zu probes for the colliding keys, %zu for the others", attacked, usual);
}

Test(memory, mem_04_draws_another_secret_for_each_table) {
  spile_spec spec = spec_of("default", 5, 1, 1000);
  spile_item item = item_of(&spec, "k");
  spile_store *a = store_open("", true);
  spile_store *b = store_open("", true);
  cr_assert(ne(u64, spile__memory_hash(a, &item), spile__memory_hash(b, &item)));
  a->ops->close(a, false);
  b->ops->close(b, false);
}

Test(memory, refuses_more_limits_than_it_can_name_as_no_room) {
  spile_store *store = store_open("?keys=10", true);
  char name[16];
  for (int i = 0; i < (1 << 19) - 1; i++) {
    /* One bucket under ever new numbers: a limit that is reloaded all the time. */
    spile_spec spec = spec_of("default", i + 1, 1, 1000);
    cr_assert(eq(int, take(store, &spec, "k", 1, 0, NULL), SPILE_OK));
  }
  (void)snprintf(name, sizeof(name), "one more");
  spile_spec spec = spec_of(name, 1, 1, 1000);
  spile_error error = {0};
  spile_item item = {.key = "k", .key_len = 1, .spec = &spec, .cost = 1};
  spile_call call = {.verb = SPILE_VERB_TAKE, .items = &item, .n = 1, .error = &error};
  cr_assert(eq(int, store->ops->decide(store, &call), SPILE_EFULL));
  cr_assert(strstr(error.message, "524287 limits") != NULL, "%s", error.message);
  error = (spile_error){0};
  cr_assert(eq(int, store->ops->clear(store, &item, 0, &error), SPILE_EUNAVAILABLE));
  cr_assert(strstr(error.message, "524287 limits") != NULL, "%s", error.message);
  store->ops->close(store, false);
}

/* An allocator that fails at the n-th call, once or from then on. */
typedef struct failing {
  int calls;
  int fail_at;
  bool for_good;
  int blocks;
} failing;

static void *failing_allocate(void *user, void *block, size_t size) {
  failing *f = user;
  if (size == 0) {
    f->blocks -= block != NULL;
    free(block);
    return NULL;
  }
  f->calls++;
  if (f->calls == f->fail_at || (f->for_good && f->calls > f->fail_at))
    return NULL;
  f->blocks += block == NULL;
  return realloc(block, size);
}

/* Opens, takes under limits that are new, of one and of several buckets, and clears. @return how many calls failed */
static int use_failing(failing *f) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.allocate = failing_allocate;
  options.allocate_user = f;
  spile_limiter *limiter;
  spile_error error = {0};
  int result = spile_open(&limiter, "memory:?keys=100", &options, &error);
  if (result != SPILE_OK) {
    cr_assert(eq(int, result, SPILE_ENOMEM));
    cr_assert(error.message[0] != '\0');
    return 1;
  }
  int failures = 0;
  spile_request requests[3];
  spile_limit *limits[3];
  for (int i = 0; i < 3; i++) {
    char text[64];
    (void)snprintf(text, sizeof(text), "5/d,name=limit-%d", i);
    cr_assert(eq(int, spile_limit_parse(&limits[i], text, NULL), SPILE_OK));
    requests[i] = (spile_request){.limit = limits[i], .key = "k", .key_len = 1, .cost = 1};
  }
  /* Each twice: what failed for want of memory works once there is some, and never as "no room". */
  for (int i = 0; i < 4; i++) {
    spile_decision decision;
    result = i % 2 == 0 ? spile_take(limiter, limits[0], "k", 1, 1, &decision)
                        : spile_take_all(limiter, requests, 3, &decision, NULL);
    cr_assert(result == SPILE_ALLOWED || result == SPILE_ENOMEM, "%d", result);
    failures += result == SPILE_ENOMEM;
    if (result == SPILE_ENOMEM)
      cr_assert(strstr(decision.detail, "no memory for a limit") != NULL, "%s", decision.detail);
  }
  spile_counters counters = SPILE_COUNTERS_INIT;
  cr_assert(eq(int, spile_count(limiter, &counters), SPILE_OK));
  cr_assert(eq(u64, counters.full, 0));
  cr_assert(eq(u64, counters.allowed, (uint64_t)(4 - failures)));
  result = spile_clear(limiter, limits[1], "k", 1, &error);
  cr_assert(result == SPILE_OK || result == SPILE_ENOMEM);
  failures += result == SPILE_ENOMEM;
  for (int i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
  spile_close(limiter);
  return failures;
}

Test(memory, says_out_of_memory_at_whichever_allocation_fails_and_goes_on_after_it) {
  for (int for_good = 0; for_good < 2; for_good++) {
    int fail_at = 1;
    for (;; fail_at++) {
      failing f = {.fail_at = fail_at, .for_good = for_good != 0};
      int failures = use_failing(&f);
      cr_assert(eq(int, f.blocks, 0));
      if (f.calls < fail_at) {
        cr_assert(eq(int, failures, 0));
        break;
      }
      cr_assert(lt(int, 0, failures));
    }
    /* The limiter, the store, and each of the three limits. */
    cr_assert(ge(int, fail_at, 6));
  }
}
