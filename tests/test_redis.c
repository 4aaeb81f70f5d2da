/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis store on a real server.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/redis.h"
#include "core/limit.h"
#include "redis_server.h"
#include "redis_store.h"

#define SHIFT_MS INT64_C(10000000000000)
#define T0 INT64_C(1700000000000)

static spile_item item_of(const char *key, const spile_spec *spec, int64_t cost) {
  return (spile_item){.key = key, .key_len = strlen(key), .spec = spec, .cost = cost};
}

/* Every key of the server has an end. @return how many there are */
static size_t assert_all_expire(redis_server *server) {
  redisReply *keys = redis_server_command(server, "KEYS *");
  for (size_t i = 0; i < keys->elements; i++) {
    int64_t left_ms = redis_server_integer(server, "PTTL %b", keys->element[i]->str, keys->element[i]->len);
    cr_assert(left_ms > 0 || left_ms == -2, "%s: PTTL %" PRId64, keys->element[i]->str, left_ms);
  }
  size_t n = keys->elements;
  freeReplyObject(keys);
  return n;
}

/* ---- Expiry and numbers ---- */

Test(redis, redis_01_every_key_expires) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec one = spec_of(1, 1, 60000);
  spile_spec sixty = spec_of(60, 1, 1000);
  ASSERT_ALLOWED(store_take(store, "allowed", &sixty, 1, SPILE_STORE_TIME), 59);
  ASSERT_ALLOWED(store_take(store, "refused", &one, 1, SPILE_STORE_TIME), 0);
  cr_assert(eq(int, store_take(store, "refused", &one, 1, SPILE_STORE_TIME).code, SPILE_DENIED));
  ASSERT_ALLOWED(store_peek(store, "peeked", &sixty, 1, SPILE_STORE_TIME), 60);
  cr_assert(eq(sz, assert_all_expire(server), 2));
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS rl:{peeked}:default"), 0));
  store_close(store);

  /* A client that dies amid its takes. */
  for (int round = 0; round < 5; round++) {
    redis_server_run(server, "FLUSHALL");
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
      spile_store *own = store_open(redis_server_unix_uri(server), false);
      char key[16];
      for (int i = 0;; i++) {
        (void)snprintf(key, sizeof(key), "%d", i);
        (void)store_take(own, key, &sixty, 1, SPILE_STORE_TIME);
      }
    }
    while (redis_server_integer(server, "DBSIZE") < 20)
      (void)poll(NULL, 0, 1);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    cr_assert(assert_all_expire(server) >= 20);
  }
  redis_server_free(server);
}

Test(redis, redis_03_a_full_time_below_a_second) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), true);
  spile_spec spec = spec_of(1, 3, 1000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, 0), 0);
  cr_assert(redis_server_integer(server, "PEXPIRETIME spile-sim:rl:{k}:default") - SHIFT_MS >= 334);
  ASSERT_DENIED(store_take(store, "k", &spec, 1, 0), 334);
  ASSERT_DENIED(store_take(store, "k", &spec, 1, 333), 1);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, 334), 0);
  store_close(store);
  redis_server_free(server);
}

Test(redis, redis_04_buckets_live_until_they_are_full) {
  redis_server *server = redis_server_start();
  static const struct {
    int64_t capacity, tokens, period_ms, full_ms;
  } rows[] = {{60, 1, 1000, 60000}, {5, 1, 20000, 100000}, {100, 7, 1000, 14286}, {1, 3, 1000, 334}};
  for (int given = 0; given < 2; given++) {
    spile_store *store = store_open(redis_server_unix_uri(server), given);
    for (size_t i = 0; i < 4; i++) {
      spile_spec spec = spec_of(rows[i].capacity, rows[i].tokens, rows[i].period_ms);
      char key[8];
      (void)snprintf(key, sizeof(key), "%zu", i);
      ASSERT_ALLOWED(store_take(store, key, &spec, rows[i].capacity, given ? 0 : SPILE_STORE_TIME), 0);
      int64_t left_ms = given ? redis_server_integer(server, "PEXPIRETIME spile-sim:rl:{%s}:default", key) - SHIFT_MS
                              : redis_server_integer(server, "PTTL rl:{%s}:default", key);
      /* On the server's clock some of the second of tolerance may be over already. */
      cr_assert(left_ms >= rows[i].full_ms && left_ms <= 2 * rows[i].full_ms + 60000, "%s: %" PRId64, key, left_ms);
    }
    store_close(store);
  }
  spile_store *store = store_open(redis_server_unix_uri(server), true);
  spile_spec sixty = spec_of(60, 1, 1000);
  ASSERT_ALLOWED(store_peek(store, "0", &sixty, 0, 59999), 59);
  ASSERT_ALLOWED(store_peek(store, "0", &sixty, 0, 60000), 60);
  store_close(store);
  redis_server_free(server);
}

Test(redis, redis_04_windows_live_until_they_count_nothing) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), true);
  static const struct {
    spile_algorithm algorithm;
    const char *key;
    int64_t least_ms; /* after a take 6,000 ms into the window */
  } rows[] = {{SPILE_LEAKY_BUCKET, "k}:default:leaky_bucket", 1000},
              {SPILE_FIXED_WINDOW, "k}:default:fixed_window", 54000},
              {SPILE_SLIDING_WINDOW, "k}:default:sliding_window", 114000},
              {SPILE_SLIDING_LOG, "k}:default:sliding_log", 60000}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_spec spec = spec_of(60, 1, 1000);
    spec.algorithm = rows[i].algorithm;
    if (rows[i].algorithm != SPILE_LEAKY_BUCKET)
      spec.shape = (spile_shape){.capacity = 60, .refill = 1, .period_ms = 60000};
    spile__spec_finish(&spec);
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, 666000), 59);
    int64_t left_ms = redis_server_integer(server, "PEXPIRETIME spile-sim:rl:{%s", rows[i].key) - SHIFT_MS - 666000;
    cr_assert(left_ms >= rows[i].least_ms && left_ms <= 2 * rows[i].least_ms + 60000, "%s: %" PRId64, rows[i].key,
              left_ms);
    ASSERT_ALLOWED(store_peek(store, "k", &spec, 0, 666000 + rows[i].least_ms - 1), 59);
    ASSERT_ALLOWED(store_peek(store, "k", &spec, 0, 666000 + rows[i].least_ms), 60);
  }
  store_close(store);
  redis_server_free(server);
}

Test(redis, redis_05_loses_no_digit_near_2_to_53) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), true);
  spile_spec huge = spec_of(INT64_C(9000000000000000), 1000000000, 1000);
  ASSERT_ALLOWED(store_take(store, "a", &huge, 1, T0), INT64_C(8999999999999999));
  ASSERT_ALLOWED(store_take(store, "a", &huge, 1, T0), INT64_C(8999999999999998));
  ASSERT_ALLOWED(store_peek(store, "a", &huge, 1, T0), INT64_C(8999999999999998));
  redisReply *value = redis_server_command(server, "GET spile-sim:rl:{a}:default");
  cr_assert(eq(str, value->str, "9000000000000000:1000000:1:2"));
  freeReplyObject(value);

  spile_spec seven = spec_of(100, 7, 1000);
  ASSERT_ALLOWED(store_take(store, "b", &seven, 100, T0), 0);
  cr_assert(redis_server_integer(server, "PEXPIRETIME spile-sim:rl:{b}:default") - SHIFT_MS - T0 >= 14286);
  store_close(store);
  redis_server_free(server);
}

Test(redis, redis_06_a_wait_of_half_a_millisecond_is_one) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), true);
  spile_spec spec = spec_of(1, 2000, 1000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, T0), 0);
  ASSERT_DENIED(store_take(store, "k", &spec, 1, T0), 1);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, T0 + 1), 0);
  store_close(store);
  redis_server_free(server);
}

Test(redis, several_buckets_are_taken_together_or_not_at_all) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_tcp_uri(server), true);
  spile_spec burst = spec_of(2, 1, 1000);
  spile_spec day = spec_of(10, 10, 86400000);
  day.name = "day";
  day.name_len = 3;
  spile_item items[2] = {item_of("k", &burst, 1), item_of("k", &day, 1)};
  ASSERT_ALLOWED(store_take_items(store, items, 2, T0), 1);
  ASSERT_ALLOWED(store_take_items(store, items, 2, T0), 0);
  ASSERT_DENIED(store_take_items(store, items, 2, T0), 1000);
  ASSERT_ALLOWED(store_peek(store, "k", &day, 1, T0), 8);

  spile_item many[SPILE_REQUESTS_MAX];
  char keys[SPILE_REQUESTS_MAX][8];
  for (size_t i = 0; i < SPILE_REQUESTS_MAX; i++) {
    (void)snprintf(keys[i], sizeof(keys[i]), "%zu", i);
    many[i] = item_of(keys[i], &day, 1);
  }
  ASSERT_ALLOWED(store_take_items(store, many, SPILE_REQUESTS_MAX, T0), 9);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), SPILE_REQUESTS_MAX + 2));
  store_close(store);
  redis_server_free(server);
}

/* ---- The script ---- */

Test(redis, redis_07_a_script_gone_from_the_server_is_sent_again) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(5, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  redis_server_run(server, "SCRIPT FLUSH");
  redis_server_run(server, "CONFIG RESETSTAT");
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
  /* One call that found no script, one load and one call: one more round trip. */
  redisReply *info = redis_server_command(server, "INFO commandstats");
  cr_assert(strstr(info->str, "cmdstat_evalsha:calls=2,") != NULL, "%s", info->str);
  cr_assert(strstr(info->str, "cmdstat_script|load:calls=1,") != NULL, "%s", info->str);
  freeReplyObject(info);
  redis_server_restart(server);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  store_close(store);
  redis_server_free(server);
}

/* ---- Deadlines ---- */

Test(redis, redis_09_a_late_answer_serves_nobody) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec a = spec_of(5, 1, 3600000);
  spile_spec b = spec_of(100, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "warm", &a, 1, SPILE_STORE_TIME), 4);
  redis_server_run(server, "CLIENT PAUSE 300 ALL");
  ASSERT_UNAVAILABLE(store_take_within(store, "a", &a, 50), SPILE_REASON_TIMEOUT);
  /* Answered when the pause is over. */
  redis_server_run(server, "PING");
  ASSERT_ALLOWED(store_take(store, "b", &b, 1, SPILE_STORE_TIME), 99);
  store_close(store);
  redis_server_free(server);
}

Test(redis, a_take_ends_by_its_deadline_when_the_server_stands_still) {
  redis_server *server = redis_server_start();
  spile_store *stores[3] = {store_open(redis_server_unix_uri(server), false),
                            store_open(redis_server_tcp_uri(server), false),
                            store_open(redis_server_tcp_uri(server), false)};
  spile_spec spec = spec_of(5, 1, 3600000);
  /* The third has no connection yet. */
  for (int i = 0; i < 2; i++)
    (void)store_take(stores[i], "k", &spec, 1, SPILE_STORE_TIME);
  cr_assert(kill(redis_server_pid(server), SIGSTOP) == 0);
  for (int i = 0; i < 3; i++) {
    answer got = store_take_within(stores[i], "k", &spec, 250);
    ASSERT_UNAVAILABLE(got, i < 2 ? SPILE_REASON_TIMEOUT : SPILE_REASON_CONNECT);
    cr_assert(got.took_ms >= 250 && got.took_ms < 5000, "%" PRId64 " ms", got.took_ms);
  }
  cr_assert(kill(redis_server_pid(server), SIGCONT) == 0);
  for (int i = 0; i < 3; i++) {
    answer got = store_take(stores[i], "other", &spec, 1, SPILE_STORE_TIME);
    ASSERT_ALLOWED(got, 4 - i);
    store_close(stores[i]);
  }
  redis_server_free(server);
}

/* ---- What servers refuse ---- */

Test(redis, redis_11_a_full_server_is_its_own_reason) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(2, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "known", &spec, 1, SPILE_STORE_TIME), 1);
  redis_server_run(server, "CONFIG SET maxmemory 1");
  ASSERT_UNAVAILABLE(store_take(store, "new", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_OOM);
  ASSERT_ALLOWED(store_take(store, "known", &spec, 1, SPILE_STORE_TIME), 0);
  cr_assert(eq(int, store_take(store, "known", &spec, 1, SPILE_STORE_TIME).code, SPILE_DENIED));
  store_close(store);
  redis_server_free(server);
}

Test(redis, redis_11_what_others_stored_is_left_alone) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(5, 1, 1000);
  redis_server_run(server, "RPUSH rl:{list}:default a b");
  redis_server_run(server, "SET rl:{text}:default 42 PX 100000");
  redis_server_run(server, "SET rl:{later}:default w1:42 PX 100000");
  redis_server_run(server, "SET rl:{endless}:default 5:1:1000:");
  ASSERT_UNAVAILABLE(store_take(store, "list", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_FOREIGN);
  ASSERT_UNAVAILABLE(store_take(store, "text", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_FOREIGN);
  ASSERT_UNAVAILABLE(store_take(store, "endless", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_FOREIGN);
  ASSERT_UNAVAILABLE(store_take(store, "later", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_FORMAT);
  spile_item items[2] = {item_of("new", &spec, 1), item_of("list", &spec, 1)};
  ASSERT_UNAVAILABLE(store_take_items(store, items, 2, SPILE_STORE_TIME), SPILE_REASON_FOREIGN);
  cr_assert(strstr(store_take_items(store, items, 2, SPILE_STORE_TIME).error.message, "FOREIGN bucket 2: ") != NULL);
  cr_assert(eq(i64, redis_server_integer(server, "LLEN rl:{list}:default"), 2));
  cr_assert(eq(i64, redis_server_integer(server, "STRLEN rl:{text}:default"), 2));
  cr_assert(eq(i64, redis_server_integer(server, "STRLEN rl:{later}:default"), 5));
  cr_assert(eq(i64, redis_server_integer(server, "PTTL rl:{endless}:default"), -1));
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS rl:{new}:default"), 0));
  ASSERT_ALLOWED(store_take(store, "new", &spec, 1, SPILE_STORE_TIME), 4);
  store_close(store);
  redis_server_free(server);
}

static void count_line(void *user, spile_log_level level, const char *line) {
  if (level == SPILE_LOG_WARNING)
    (void)snprintf(user, 300, "%s", line);
}

static bool visit_nothing(void *user, const spile_stored *stored) {
  (void)user, (void)stored;
  return true;
}

/* Of several limits the answer names the one whose key somebody else wrote, and a list says how many it leaves out. */
Test(redis, redis_11_what_others_stored_is_told_by_limit_and_number) {
  static const char *const values[] = {"text", "w1:42", "5:1:1000:"};
  redis_server *server = redis_server_start();
  char line[300] = "";
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = 20000;
  options.log = count_line;
  options.log_user = line;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, redis_server_unix_uri(server), &options, NULL), SPILE_OK));
  spile_limit *limits[3];
  spile_request requests[3];
  for (int i = 0; i < 3; i++) {
    char text[32];
    (void)snprintf(text, sizeof(text), "%d/s,name=limit%d", 5 + i, i);
    cr_assert(eq(int, spile_limit_parse(&limits[i], text, NULL), SPILE_OK));
    requests[i] = (spile_request){limits[i], "secret", 6, 1};
  }
  for (uint32_t at = 0; at < 3; at++) {
    for (int value = 0; value < 3; value++) {
      redis_server_run(server, "FLUSHDB");
      redis_server_run(server, value < 2 ? "SET rl:{secret}:limit%d %s PX 100000" : "SET rl:{secret}:limit%d %s",
                       (int)at, values[value]);
      spile_decision d;
      cr_assert(eq(int, spile_take_all(limiter, requests, 3, &d, NULL), SPILE_EUNAVAILABLE));
      cr_assert(eq(u32, d.index, at));
      cr_assert(strstr(d.detail, spile_limit_name(limits[at])) != NULL && strstr(d.detail, "secret") == NULL, "%s",
                d.detail);
    }
  }
  redis_server_run(server, "RPUSH rl:{list}:default a");
  spile_error error = {0};
  cr_assert(eq(int, spile_each(limiter, visit_nothing, NULL, &error), SPILE_OK));
  cr_assert(strstr(line, "left out 2 keys") != NULL, "%s", line);
  for (int i = 0; i < 3; i++)
    spile_limit_unref(limits[i]);
  spile_close(limiter);
  redis_server_free(server);
}

Test(redis, a_replica_is_left_and_tried_anew) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(5, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_READONLY);
  cr_assert(eq(int, ((spile__redis_store *)store)->links[0].handle, -1));
  redis_server_run(server, "REPLICAOF NO ONE");
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
  store_close(store);
  redis_server_free(server);
}

/* ---- Passwords ---- */

/* The server's address with something before the host. */
static char *uri_with(const redis_server *server, const char *userinfo) {
  char *uri = malloc(256);
  cr_assert(uri != NULL);
  (void)snprintf(uri, 256, "redis://%s%s", userinfo, redis_server_tcp_uri(server) + strlen("redis://"));
  return uri;
}

static void assert_login(const char *uri, int reason) {
  spile_spec spec = spec_of(1000, 1, 1000);
  spile_store *store = store_open(uri, false);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  if (reason == SPILE_REASON_NONE)
    cr_assert(got.code == SPILE_ALLOWED, "%s", got.error.message);
  else
    ASSERT_UNAVAILABLE(got, reason);
  cr_assert(strstr(got.error.message, "s3cret") == NULL && strstr(got.error.message, "wr0ng") == NULL, "%s",
            got.error.message);
  store_close(store);
}

static void assert_login_with(const redis_server *server, const char *userinfo, int reason) {
  char *uri = uri_with(server, userinfo);
  assert_login(uri, reason);
  free(uri);
}

Test(redis, ops_04_logs_in_and_keeps_its_password_to_itself) {
  redis_server *server = redis_server_start();
  redis_server_run(server, "ACL SETUSER ann on >s3cret@/:%% ~rl:* +@all");
  redis_server_run(server, "ACL SETUSER poor on >s3cret ~rl:* +evalsha +script|load +get +pttl +pexpiretime +pexpireat "
                           "+psetex +set +mget");
  redis_server_run(server, "ACL SETUSER mute on >s3cret ~rl:* +ping");
  assert_login_with(server, "", SPILE_REASON_NONE);
  redis_server_run(server, "CONFIG SET requirepass s3cret");
  assert_login_with(server, "", SPILE_REASON_AUTH);
  assert_login_with(server, ":wr0ng@", SPILE_REASON_AUTH);
  assert_login_with(server, ":s3cret@", SPILE_REASON_NONE);
  assert_login_with(server, "default:s3cret@", SPILE_REASON_NONE);
  assert_login_with(server, "ann:wr0ng@", SPILE_REASON_AUTH);
  assert_login_with(server, "ann:s3cret%40%2F%3a%25@", SPILE_REASON_NONE);
  /* Neither INFO nor CLIENT is needed. */
  assert_login_with(server, "poor:s3cret@", SPILE_REASON_NONE);
  assert_login_with(server, "mute:s3cret@", SPILE_REASON_AUTH);

  (void)setenv("SPILE_REDIS_PASSWORD", "s3cret", 1);
  assert_login_with(server, "", SPILE_REASON_NONE);
  assert_login_with(server, "poor@", SPILE_REASON_NONE);
  assert_login_with(server, ":wr0ng@", SPILE_REASON_AUTH);
  (void)unsetenv("SPILE_REDIS_PASSWORD");

  char path[] = "/tmp/spile-password-XXXXXX";
  int fd = mkstemp(path);
  cr_assert(fd >= 0 && write(fd, "s3cret\n", 7) == 7 && close(fd) == 0);
  (void)setenv("SPILE_REDIS_PASSWORD_FILE", path, 1);
  assert_login_with(server, "", SPILE_REASON_NONE);
  assert_login(redis_server_unix_uri(server), SPILE_REASON_NONE);
  (void)unlink(path);
  spile_store *store;
  spile_error error = {0};
  cr_assert(eq(int, store_try_open(&store, redis_server_tcp_uri(server), false, &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "SPILE_REDIS_PASSWORD_FILE") != NULL);
  (void)unsetenv("SPILE_REDIS_PASSWORD_FILE");
  redis_server_free(server);
}

#define RIGHTS 8

/* What every key of the server holds and when it ends, as a text. */
static char *server_state(redis_server *server) {
  redisReply *reply = redis_server_command(
      server, "EVAL %s 0",
      "local told = {} local keys = redis.call('KEYS', '*') table.sort(keys) for i, key in ipairs(keys) do told[i] = "
      "key "
      ".. ' ' .. redis.call('GET', key) .. ' ' .. redis.call('PEXPIRETIME', key) end return table.concat(told, '\\n')");
  cr_assert(eq(int, reply->type, REDIS_REPLY_STRING));
  char *state = strdup(reply->str);
  freeReplyObject(reply);
  cr_assert(state != NULL);
  return state;
}

/* One right is missing. Whatever a vector is made of, it is charged whole or not at all, and the caller is told. */
Test(redis, a_missing_right_charges_nothing_of_a_vector) {
  static const char *const rights[RIGHTS] = {"get", "mget", "set", "psetex", "pttl", "pexpiretime", "pexpireat", "del"};
  redis_server *server = redis_server_start();
  spile_store *own = store_open(redis_server_unix_uri(server), false);
  char *uri = uri_with(server, "u:p@");
  spile_spec whole = spec_of(100, 1, 3600000);
  spile_spec part = spec_of(100, 7, 3600001);
  spile_spec window = {.name = "window", .name_len = 6, .algorithm = SPILE_FIXED_WINDOW};
  window.shape = (spile_shape){.capacity = 100, .refill = 1, .period_ms = 3600000};
  spile__spec_finish(&window);
  const spile_spec *const specs[] = {&whole, &part, &window};
  int refused = 0;
  for (int right = 0; right < RIGHTS; right++) {
    redis_server_run(server, "ACL SETUSER u reset on >p ~rl:* +evalsha +script|load +get +mget +set +psetex +pttl "
                             "+pexpiretime +pexpireat +del +time");
    redis_server_run(server, "ACL SETUSER u -%s", rights[right]);
    spile_store *store = store_open(uri, false);
    /* Three buckets, each of one of three kinds, new or known. */
    for (int kinds = 0; kinds < 6 * 6 * 6; kinds++) {
      spile_item items[3];
      redis_server_run(server, "FLUSHDB");
      for (int i = 0, left = kinds; i < 3; i++, left /= 6) {
        static const char *const names[3] = {"a", "b", "c"};
        items[i] = item_of(names[i], specs[left % 3], 1);
        if (left % 6 >= 3)
          cr_assert(store_take_items(own, &items[i], 1, SPILE_STORE_TIME).code == SPILE_ALLOWED);
      }
      char *before = server_state(server);
      answer got = store_take_items(store, items, 3, SPILE_STORE_TIME);
      if (got.code < 0) {
        char *after = server_state(server);
        cr_assert(strcmp(before, after) == 0, "without %s, %d, \"%s\":\n%s\nbecame\n%s", rights[right], kinds,
                  got.error.message, before, after);
        cr_assert(got.error.reason == SPILE_REASON_AUTH && strstr(got.error.message, "rights") != NULL, "%s",
                  got.error.message);
        free(after);
        refused++;
      }
      free(before);
    }
    store_close(store);
  }
  cr_assert(refused > 0);
  free(uri);
  store_close(own);
  redis_server_free(server);
}

Test(redis, uses_the_database_it_is_told) {
  redis_server *server = redis_server_start();
  spile_spec spec = spec_of(5, 1, 3600000);
  char uri[160];
  (void)snprintf(uri, sizeof(uri), "%s/3", redis_server_tcp_uri(server));
  spile_store *tcp = store_open(uri, false);
  (void)snprintf(uri, sizeof(uri), "%s?db=3", redis_server_unix_uri(server));
  spile_store *unix_socket = store_open(uri, false);
  (void)snprintf(uri, sizeof(uri), "%s/99", redis_server_tcp_uri(server));
  spile_store *none = store_open(uri, false);
  ASSERT_ALLOWED(store_take(tcp, "k", &spec, 1, SPILE_STORE_TIME), 4);
  ASSERT_ALLOWED(store_take(unix_socket, "k", &spec, 1, SPILE_STORE_TIME), 3);
  ASSERT_UNAVAILABLE(store_take(none, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_REFUSED);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 0));
  redis_server_run(server, "SELECT 3");
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 1));
  store_close(tcp);
  store_close(unix_socket);
  store_close(none);
  redis_server_free(server);
}

/* ---- Keys ---- */

Test(redis, redis_13_any_bytes_make_a_key_of_their_own) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(5, 1, 3600000);
  char thousand[1000];
  memset(thousand, 'x', sizeof(thousand));
  const struct {
    const char *key;
    size_t len;
    const char *name; /* in Redis */
  } rows[] = {
      {"user%20zz", 9, "rl:{user%2520zz}:default"},
      {"user%s%n", 8, "rl:{user%25s%25n}:default"},
      {"two words", 9, "rl:{two words}:default"},
      {"a\0b", 3, "rl:{a%00b}:default"},
      {"a", 1, "rl:{a}:default"},
      {"a\r\nb", 4, "rl:{a%0D%0Ab}:default"},
      {"a}b", 3, "rl:{a%7Db}:default"},
      {"{a", 2, "rl:{%7Ba}:default"},
      {"a:b", 3, "rl:{a%3Ab}:default"},
      {"tenant=acme/~*@#-._", 19, "rl:{tenant=acme/~*@#-._}:default"},
      {"\xc3\xa4", 2, "rl:{%C3%A4}:default"},
      {thousand, sizeof(thousand), NULL},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_item item = {.key = rows[i].key, .key_len = rows[i].len, .spec = &spec, .cost = 1};
    ASSERT_ALLOWED(store_take_items(store, &item, 1, SPILE_STORE_TIME), 4);
    if (rows[i].name != NULL)
      cr_assert(redis_server_integer(server, "EXISTS %s", rows[i].name) == 1, "%s", rows[i].name);
  }
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), (int64_t)(sizeof(rows) / sizeof(rows[0]))));
  store_close(store);
  redis_server_free(server);
}

Test(redis, a_given_time_never_touches_production_keys) {
  redis_server *server = redis_server_start();
  spile_store *production = store_open(redis_server_unix_uri(server), false);
  spile_store *simulation = store_open(redis_server_unix_uri(server), true);
  spile_spec spec = spec_of(5, 1, 3600000);
  ASSERT_ALLOWED(store_take(production, "k", &spec, 1, SPILE_STORE_TIME), 4);
  ASSERT_ALLOWED(store_take(simulation, "k", &spec, 5, T0), 0);
  ASSERT_ALLOWED(store_take(production, "k", &spec, 1, SPILE_STORE_TIME), 3);
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS rl:{k}:default spile-sim:rl:{k}:default"), 2));

  spile_item item = item_of("k", &spec, 0);
  spile_error error = {0};
  cr_assert(eq(int, simulation->ops->clear(simulation, &item, store_monotonic_ms() + 5000, &error), SPILE_OK));
  ASSERT_ALLOWED(store_take(simulation, "k", &spec, 1, T0), 4);
  ASSERT_ALLOWED(store_take(production, "k", &spec, 1, SPILE_STORE_TIME), 2);
  cr_assert(eq(int, production->ops->clear(production, &item, store_monotonic_ms() + 5000, &error), SPILE_OK));
  ASSERT_ALLOWED(store_take(production, "k", &spec, 1, SPILE_STORE_TIME), 4);
  ASSERT_ALLOWED(store_take(simulation, "k", &spec, 1, T0), 3);
  store_close(production);
  store_close(simulation);
  redis_server_free(server);
}

/* ---- The link ---- */

/* How many connections the store has. */
static int connections_named_spile(redis_server *server) {
  redisReply *list = redis_server_command(server, "CLIENT LIST");
  int n = 0;
  for (const char *at = list->str; (at = strstr(at, "name=spile ")) != NULL; at++)
    n++;
  freeReplyObject(list);
  return n;
}

Test(redis, redis_14_a_link_that_died_idle_is_replaced) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_tcp_uri(server), false);
  spile_spec spec = spec_of(5, 1, 3600000);
  redis_server_run(server, "CONFIG SET timeout 1");
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  cr_assert(eq(int, connections_named_spile(server), 1));
  for (int64_t until_ms = store_monotonic_ms() + 20000; connections_named_spile(server) > 0;) {
    cr_assert(store_monotonic_ms() < until_ms, "the server does not close idle connections");
    (void)poll(NULL, 0, 20);
  }
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
  redis_server_stop(server);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_CONNECT);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_CONNECT);
  redis_server_restart(server);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  store_close(store);
  redis_server_free(server);
}

typedef struct taker {
  spile_store *store;
  const spile_spec *spec;
  int allowed;
  int failed;
} taker;

static void *taker_run(void *user) {
  taker *self = user;
  for (int i = 0; i < 250; i++) {
    answer got = store_take(self->store, "shared", self->spec, 1, SPILE_STORE_TIME);
    self->allowed += got.code == SPILE_ALLOWED;
    self->failed += got.code < 0;
  }
  return NULL;
}

static void threads_share(int connections) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open_over(redis_server_unix_uri(server), connections, NULL, NULL);
  spile_spec spec = spec_of(1234, 1, 86400000);
  taker takers[8];
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) {
    takers[i] = (taker){.store = store, .spec = &spec};
    cr_assert(pthread_create(&threads[i], NULL, taker_run, &takers[i]) == 0);
  }
  int allowed = 0;
  int failed = 0;
  for (int i = 0; i < 8; i++) {
    (void)pthread_join(threads[i], NULL);
    allowed += takers[i].allowed;
    failed += takers[i].failed;
  }
  cr_assert(eq(int, failed, 0));
  cr_assert(eq(int, allowed, 1234));
  int made = connections_named_spile(server);
  int most = connections == 0 ? 4 : connections;
  cr_assert(made >= 1 && made <= most, "%d connections", made);
  store_close(store);
  redis_server_free(server);
}

Test(redis, eight_threads_share_the_connections_and_count_exactly) {
  threads_share(0);
  threads_share(1);
  threads_share(64);
}

/* On the server's clock, where takes and time race: never more than capacity + rate · (time + 1 ms). */
Test(redis, admits_no_more_than_the_rate_on_the_servers_clock) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec specs[2] = {spec_of(5, 1, 10), spec_of(5, 3, 20)};
  for (int i = 0; i < 2; i++) {
    const char *key = i == 0 ? "a" : "b";
    int64_t allowed = 0;
    int64_t start_ms = store_monotonic_ms();
    int64_t elapsed_ms = 0;
    while (elapsed_ms < 400) {
      allowed += store_take(store, key, &specs[i], 1, SPILE_STORE_TIME).code == SPILE_ALLOWED;
      elapsed_ms = store_monotonic_ms() - start_ms;
    }
    /* Two readings of a clock of whole milliseconds may be 1 ms short of the span between them. */
    int64_t bound = 5 + specs[i].shape.refill * (elapsed_ms + 2) / specs[i].shape.period_ms;
    cr_assert(allowed <= bound, "%" PRId64 " > %" PRId64, allowed, bound);
    /* And something came back meanwhile; how much of it was asked for is the machine's business. */
    cr_assert(allowed > 5, "%" PRId64 " of %" PRId64, allowed, bound);
  }
  store_close(store);
  redis_server_free(server);
}

Test(redis, a_forked_child_closes_its_copy_without_a_word) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(5, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  int64_t id = redis_server_integer(server, "EVAL %s 0", "return redis.call('INCR', 'n')");
  cr_assert(eq(i64, id, 1));
  pid_t child = fork();
  cr_assert(child >= 0);
  if (child == 0) {
    store->ops->close(store, true);
    _exit(0);
  }
  int status;
  cr_assert(waitpid(child, &status, 0) == child && status == 0);
  redis_server_run(server, "CONFIG RESETSTAT");
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
  /* On the same connection. */
  redisReply *info = redis_server_command(server, "INFO stats");
  cr_assert(strstr(info->str, "total_connections_received:0") != NULL);
  freeReplyObject(info);
  store_close(store);
  redis_server_free(server);
}

/* ---- Housekeeping ---- */

static int clean_all(spile_store *store, spile_clean_what what, int64_t now_ms, int *steps) {
  bool again = true;
  int result = SPILE_OK;
  for (*steps = 0; again && result == SPILE_OK; ++*steps) {
    spile_error error = {0};
    result = store->ops->clean(store, what, now_ms, store_monotonic_ms() + 20000, &again, &error);
    cr_assert(result == SPILE_OK, "%s", error.message);
  }
  return result;
}

Test(redis, cleans_simulated_buckets_and_nothing_else) {
  redis_server *server = redis_server_start();
  spile_store *production = store_open(redis_server_unix_uri(server), false);
  spile_store *simulation = store_open(redis_server_unix_uri(server), true);
  spile_spec spec = spec_of(5, 1, 1000);
  char key[16];
  for (int i = 0; i < 1500; i++) {
    (void)snprintf(key, sizeof(key), "%d", i);
    ASSERT_ALLOWED(store_take(simulation, key, &spec, i % 2 == 0 ? 1 : 5, T0), i % 2 == 0 ? 4 : 0);
  }
  ASSERT_ALLOWED(store_take(production, "k", &spec, 1, SPILE_STORE_TIME), 4);
  redis_server_run(server, "SET spile-sim:other x");
  redis_server_run(server, "SET spile-sim:rl2:{k}:default 5:1:1000: PXAT %lld", (long long)(SHIFT_MS + T0 + 9000));
  redis_server_run(server, "SET spile-sim:rl:{foreign}:default x");

  /* Half of them are full one second after T0, and gone one second later; of the others none. */
  int steps;
  (void)clean_all(simulation, SPILE_CLEAN_FULL, T0 + 1999, &steps);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 1504));
  (void)clean_all(simulation, SPILE_CLEAN_FULL, T0 + 2000, &steps);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 754));
  cr_assert(steps > 2, "%d", steps);
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS spile-sim:rl:{0}:default spile-sim:rl:{1}:default"), 1));

  /* On its own clock a store has nothing to clean but what was simulated. */
  (void)clean_all(production, SPILE_CLEAN_FULL, SPILE_STORE_TIME, &steps);
  (void)clean_all(production, SPILE_CLEAN_PREFIX, SPILE_STORE_TIME, &steps);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 754));

  (void)clean_all(simulation, SPILE_CLEAN_PREFIX, T0, &steps);
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 3));
  (void)clean_all(production, SPILE_CLEAN_SIMULATED, SPILE_STORE_TIME, &steps);
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS rl:{k}:default spile-sim:other"), 2));
  cr_assert(eq(i64, redis_server_integer(server, "DBSIZE"), 2));
  store_close(production);
  store_close(simulation);
  redis_server_free(server);
}

typedef struct seen {
  int n;
  int simulated;
  int stop_after;
  char last_key[64];
  spile_stored last;
  spile_store *store; /* asked from within the walk */
} seen;

static bool see(void *user, const spile_stored *stored) {
  seen *self = user;
  self->n++;
  self->simulated += stored->simulated;
  self->last = *stored;
  (void)snprintf(self->last_key, sizeof(self->last_key), "%.*s|%.*s", (int)stored->key_len, (const char *)stored->key,
                 (int)stored->name_len, stored->name);
  if (self->store != NULL) {
    spile_spec spec = spec_of(5, 1, 1000);
    cr_assert(store_peek(self->store, "x", &spec, 1, SPILE_STORE_TIME).code > 0);
  }
  return self->n != self->stop_after;
}

static seen see_all(spile_store *store, int64_t now_ms, int stop_after) {
  seen out = {.stop_after = stop_after};
  spile_error error = {0};
  int result = store->ops->each(store, now_ms, 20000, see, &out, &error);
  cr_assert(result == SPILE_OK, "%s", error.message);
  return out;
}

Test(redis, shows_what_is_stored) {
  redis_server *server = redis_server_start();
  spile_store *production = store_open(redis_server_unix_uri(server), false);
  spile_store *simulation = store_open(redis_server_unix_uri(server), true);
  spile_spec spec = spec_of(100, 7, 1000);
  spec.name = "POST /a:b";
  spec.name_len = 9;
  cr_assert(eq(int, see_all(production, SPILE_STORE_TIME, 0).n, 0));

  ASSERT_ALLOWED(store_take(simulation, "tenant={x}", &spec, 50, T0), 50);
  seen one = see_all(simulation, T0 + 1000, 0);
  cr_assert(eq(int, one.n, 1));
  cr_assert(eq(str, one.last_key, "tenant={x}|POST /a:b"));
  cr_assert(eq(str, (char *)one.last.algorithm, "token_bucket"));
  cr_assert(eq(i64, one.last.capacity, 100));
  cr_assert(eq(i64, one.last.refill_tokens, 7));
  cr_assert(eq(i64, one.last.refill_period_ms, 1000));
  cr_assert(eq(i64, one.last.remaining, 57));
  /* 43 tokens at 7 a second: 6142.86 ms. */
  cr_assert(eq(i64, one.last.reset_after_ms, 6143));
  cr_assert(one.last.simulated);

  ASSERT_ALLOWED(store_take(production, "p", &spec, 50, SPILE_STORE_TIME), 50);
  redis_server_run(server, "SET rl:{text}:default 42 PX 100000");
  redis_server_run(server, "SET rl:{endless}:default 5:1:1000:");
  redis_server_run(server, "RPUSH rl:{list}:default a");
  redis_server_run(server, "SET rl:{odd}:%%41 5:1:1000: PX 100000");
  redis_server_run(server, "SET rlx:{k}:default 5:1:1000: PX 100000");
  seen both = see_all(production, SPILE_STORE_TIME, 0);
  cr_assert(eq(int, both.n, 2));
  cr_assert(eq(int, both.simulated, 1));
  cr_assert(eq(int, see_all(simulation, T0, 0).n, 1));
  cr_assert(eq(int, see_all(production, SPILE_STORE_TIME, 1).simulated, 0));

  char key[16];
  for (int i = 0; i < 1000; i++) {
    (void)snprintf(key, sizeof(key), "%d", i);
    ASSERT_ALLOWED(store_take(production, key, &spec, 1, SPILE_STORE_TIME), 99);
  }
  seen many = {.store = production};
  spile_error error = {0};
  cr_assert(eq(int, production->ops->each(production, SPILE_STORE_TIME, 20000, see, &many, &error), SPILE_OK));
  cr_assert(many.n >= 1002, "%d", many.n);
  cr_assert(eq(int, see_all(production, SPILE_STORE_TIME, 7).n, 7));
  store_close(production);
  store_close(simulation);
  redis_server_free(server);
}
