/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanging the limits in force: as a whole, while takes run, and without a new bucket for anybody.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <spile/sys/store.h>
#include <spile/testing.h>

#include "limits/limits.h"
#include "limits_text.h"
#include "temp_dir.h"

#define HOUR_MS INT64_C(3600000)

#define FILE_WITH(search, other)                                                                        \
  "{\"on_store_error\":\"closed\",\"limits\":{\"default\":{\"capacity\":" other ",\"refill\":\"1/s\"}," \
  "\"POST /search\":{\"capacity\":" search ",\"refill\":\"1/h\"}}}"

/* What a server does on a signal: a file that cannot be loaded leaves the old limits in force. */
static int reload(spile_limiter *limiter, const char *text) {
  limits_text *loaded = limits_text_of(text);
  int result = loaded->result;
  if (result == SPILE_OK)
    cr_assert(eq(int, spile_set_limits(limiter, loaded->limits, NULL), SPILE_OK));
  limits_text_finish(loaded);
  return result;
}

/* One request for POST /search by the limits in force. */
static int search_take(spile_limiter *limiter, spile_decision *decision) {
  spile_limits *limits = spile_current_limits(limiter);
  cr_assert(limits != NULL);
  int64_t cost;
  const spile_limit *limit = spile_route_limit(spile_limits_find(limits, "POST", "/search", NULL), 0, &cost, NULL);
  int result = spile_take(limiter, limit, "ip=192.0.2.1", 12, cost, decision);
  spile_limits_unref(limits);
  return result;
}

static void expect_denied(spile_limiter *limiter, const char *when) {
  spile_decision decision;
  cr_assert(search_take(limiter, &decision) == SPILE_DENIED, "%s", when);
  cr_assert(decision.retry_after_ms == HOUR_MS, "%s: %lld", when, (long long)decision.retry_after_ms);
}

static void reload_run(const char *uri) {
  spile_fake_clock *clock = spile_fake_clock_new(INT64_C(1700000000000));
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, uri, &options, &error) == SPILE_OK, "%s", error.message);
  cr_assert(spile_current_limits(limiter) == NULL);
  cr_assert(eq(int, reload(limiter, FILE_WITH("5", "60")), SPILE_OK));
  spile_decision decision;
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, search_take(limiter, &decision), SPILE_ALLOWED));
  expect_denied(limiter, "emptied");
  cr_assert(eq(int, reload(limiter, FILE_WITH("5", "60")), SPILE_OK));
  expect_denied(limiter, "the same file");
  cr_assert(eq(int, reload(limiter, FILE_WITH("5", "61")), SPILE_OK));
  expect_denied(limiter, "another route changed");
  cr_assert(eq(int, reload(limiter, FILE_WITH("5.5", "61")), SPILE_ECONFIG));
  expect_denied(limiter, "a broken file");
  cr_assert(eq(int, reload(limiter, FILE_WITH("10", "61")), SPILE_OK));
  expect_denied(limiter, "more capacity");
  spile_fake_clock_advance(clock, HOUR_MS);
  cr_assert(eq(int, search_take(limiter, &decision), SPILE_ALLOWED));
  cr_assert(eq(i64, decision.capacity, 10));
  cr_assert(eq(int, spile_set_limits(limiter, NULL, NULL), SPILE_OK));
  cr_assert(spile_current_limits(limiter) == NULL);
  spile_close(limiter);
  spile_fake_clock_free(clock);
}

Test(limits_reload, CONF_04_a_reload_keeps_the_buckets_of_the_memory_store) {
  reload_run("memory:");
}

Test(limits_reload, CONF_04_a_reload_keeps_the_buckets_of_an_lmdb_store) {
  char directory[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 16];
  spile_limiter *limiter;
  temp_dir_make(directory);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store", directory);
  int built = spile_open(&limiter, uri, NULL, NULL);
  if (built == SPILE_OK) {
    spile_close(limiter);
    reload_run(uri);
  }
  /* A build without LMDB says so, and has nothing to keep. */
  cr_assert(built == SPILE_OK || built == SPILE_ENOTSUP);
  temp_dir_remove(directory);
}

Test(limits_reload, a_limiter_of_another_prefix_does_not_take_them) {
  spile_limits *limits = limits_of("{\n  \"key_prefix\":\"shop\",\"on_store_error\":\"open\",\"limits\":{\"default\":"
                                   "\"unlimited\"}}");
  spile_options options = SPILE_OPTIONS_INIT;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  cr_assert(eq(int, spile_set_limits(limiter, limits, &error), SPILE_ECONFIG));
  cr_assert(eq(str, error.message,
               "test.json:2:3: key_prefix: \"shop\" is not the limiter's, \"rl\"; write that, or open the limiter with "
               "options.key_prefix as the file has it"));
  cr_assert(eq(int, error.column, 3));
  cr_assert(spile_current_limits(limiter) == NULL);
  spile_close(limiter);
  options.key_prefix = spile_limits_key_prefix(limits);
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  cr_assert(eq(int, spile_set_limits(limiter, limits, NULL), SPILE_OK));
  spile_limits *current = spile_current_limits(limiter);
  cr_assert(current == limits);
  spile_limits_unref(current);
  cr_assert(eq(int, spile_set_limits(NULL, limits, NULL), SPILE_EINVAL));
  cr_assert(spile_current_limits(NULL) == NULL);
  /* The limiter owns them until it is closed. */
  spile_limits_unref(limits);
  current = spile_current_limits(limiter);
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(current, "GET", "/", NULL), "default"));
  spile_limits_unref(current);
  spile_close(limiter);
}

#define BY_API_KEY(where) \
  "{\"on_store_error\":\"open\",\"key\":[\"ip\"],\"limits\":{\"default\":\"unlimited\"" where "}"

Test(limits_reload, limits_by_api_key_are_refused_where_no_secret_can_hash_it) {
  static const struct {
    const char *text;
    const char *told; /* NULL: nothing needs the secret */
  } rows[] = {
      {BY_API_KEY(",\"GET /\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"tenant\",\n\"api_key\"]}}"),
       "test.json:2:1: limits[\"GET /\"].key[1]: the limit \"GET /\" is by \"api_key\""},
      {BY_API_KEY("},\n\"always\":[{\"name\":\"all\",\"capacity\":1,\"refill\":\"1/s\",\n \"key\":\"api_key\"}]"),
       "test.json:3:2: always[0].key: the limit \"always#all\""},
      {BY_API_KEY("},\"tiers\":{\"pro\":{\"default\":{\"capacity\":1,\"refill\":\"1/s\",\"shadow\":true,\n\"key\":["
                  "\"api_key\",\"ip\"]}}}"),
       "test.json:2:8: tiers.pro.default.key[0]: the limit \"default\""},
      {"{\"on_store_error\":\"open\",\n\"key\":[\"api_key\",\"ip\"],\"limits\":{\"default\":{\"capacity\":1,"
       "\"refill\":\"1/s\"}}}",
       "test.json:2:8: key[0]: the limit \"default\""},
      {BY_API_KEY(",\"GET /\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"header:api_key\",\"tenant\"]}}"), NULL},
  };
  spile_limits *before = limits_of(FILE_WITH("5", "60"));
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", NULL, NULL), SPILE_OK));
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    cr_assert(eq(int, spile_set_limits(limiter, before, NULL), SPILE_OK));
    spile_limits *limits = limits_of(rows[i].text);
    spile_error error = {0};
    int wanted = rows[i].told != NULL ? SPILE_ECONFIG : SPILE_OK;
    cr_assert(spile_set_limits(limiter, limits, &error) == wanted, "row %zu: %s", i, error.message);
    cr_assert(eq(int, spile_set_limits(limiter, limits, NULL), wanted));
    if (rows[i].told != NULL)
      cr_assert(strncmp(error.message, rows[i].told, strlen(rows[i].told)) == 0 &&
                    strstr(error.message, "secret_file") != NULL,
                "row %zu: %s", i, error.message);
    spile_limits *current = spile_current_limits(limiter);
    cr_assert(current == (rows[i].told != NULL ? before : limits), "row %zu", i);
    spile_limits_unref(current);
    spile_limits_unref(limits);
  }
  spile_limits_unref(before);
  spile_close(limiter);
}

#ifdef SPILE_TEST_SODIUM
Test(limits_reload, limits_by_api_key_are_taken_with_a_secret) {
  char directory[TEMP_DIR_LEN];
  char path[TEMP_DIR_LEN + 16];
  temp_dir_make(directory);
  (void)snprintf(path, sizeof(path), "%s/secret", directory);
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL && fputs("0123456789abcdef0123456789abcdef", file) >= 0 && fclose(file) == 0);
  spile_options options = SPILE_OPTIONS_INIT;
  options.secret_file = path;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  spile_limits *limits = limits_of(BY_API_KEY(",\"GET /\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"api_key\"]}}"));
  cr_assert(eq(int, spile_set_limits(limiter, limits, NULL), SPILE_OK));
  spile_limits_unref(limits);
  spile_close(limiter);
  temp_dir_remove(directory);
}
#endif

Test(limits_reload, a_forked_child_has_none_and_sets_none) {
  spile_limits *limits = limits_of(FILE_WITH("5", "60"));
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", NULL, NULL), SPILE_OK));
  cr_assert(eq(int, spile_set_limits(limiter, limits, NULL), SPILE_OK));
  pid_t child = fork();
  if (child == 0) {
    bool right = spile_current_limits(limiter) == NULL && spile_set_limits(limiter, limits, NULL) == SPILE_EFORK;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  cr_assert(child > 0 && waitpid(child, &status, 0) == child);
  cr_assert(eq(int, status, 0));
  spile_close(limiter);
  spile_limits_unref(limits);
}

/* ---- While takes run ---- */

enum { READERS = 3, EXCHANGES = 400 };

typedef struct race {
  spile_limiter *limiter;
  atomic_bool stop;
  atomic_size_t takes;
  atomic_size_t wrong;
} race;

/* Each file says the same in both of its entries, so a mixture of two files would show. */
static void *reader_run(void *user) {
  race *r = user;
  do {
    spile_limits *limits = spile_current_limits(r->limiter);
    const spile_route *search = spile_limits_find(limits, "POST", "/search", NULL);
    const spile_route *other = spile_limits_find(limits, "GET", "/", NULL);
    const spile_limit *limit = spile_route_limit(search, 0, NULL, NULL);
    bool same = spile_limit_capacity(limit) == spile_limit_capacity(spile_route_limit(other, 0, NULL, NULL));
    int result = spile_take(r->limiter, limit, "k", 1, 0, NULL);
    atomic_fetch_add(&r->wrong, same && result == SPILE_ALLOWED ? 0 : 1);
    atomic_fetch_add(&r->takes, 1);
    spile_limits_unref(limits);
  } while (!atomic_load(&r->stop));
  return NULL;
}

Test(limits_reload, limits_are_exchanged_as_a_whole_while_takes_run) {
  race r = {.takes = 0};
  pthread_t threads[READERS];
  cr_assert(eq(int, spile_open(&r.limiter, "memory:", NULL, NULL), SPILE_OK));
  cr_assert(eq(int, reload(r.limiter, FILE_WITH("5", "5")), SPILE_OK));
  for (size_t i = 0; i < READERS; i++)
    cr_assert(eq(int, pthread_create(&threads[i], NULL, reader_run, &r), 0));
  for (int i = 0; i < EXCHANGES; i++) {
    cr_assert(eq(int, reload(r.limiter, i % 2 == 0 ? FILE_WITH("7", "7") : FILE_WITH("9", "9")), SPILE_OK));
    cr_assert(eq(int, reload(r.limiter, FILE_WITH("7", "0")), SPILE_ECONFIG));
  }
  /* Every reader has been in between, however the machine is loaded. */
  while (atomic_load(&r.takes) < READERS * 100)
    (void)usleep(1000);
  atomic_store(&r.stop, true);
  for (size_t i = 0; i < READERS; i++)
    cr_assert(eq(int, pthread_join(threads[i], NULL), 0));
  cr_assert(eq(sz, atomic_load(&r.wrong), 0));
  spile_close(r.limiter);
}
