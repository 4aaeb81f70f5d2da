/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lua/take.lua by itself, on a real server, against its twin src/core/bucket.c.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/algorithm.h"
#include "core/checked.h"
#include "core/limit.h"
#include "redis_server.h"
#include "take_lua.h"

#define SHIFT_MS INT64_C(10000000000000)

/* Calls the script with arguments as they are. `arguments` ends with NULL. */
static redisReply *eval(redis_server *server, const char *const *keys, const char *const *arguments) {
  const char *argv[64] = {"EVAL", spile__take_lua};
  size_t argv_len[64] = {4, sizeof(spile__take_lua) - 1};
  char count[16];
  int argc = 3;
  int n = 0;
  for (; keys[n] != NULL; n++)
    argv[argc++] = keys[n];
  for (int i = 0; arguments[i] != NULL; i++)
    argv[argc++] = arguments[i];
  (void)snprintf(count, sizeof(count), "%d", n);
  argv[2] = count;
  for (int i = 2; i < argc; i++)
    argv_len[i] = strlen(argv[i]);
  return redis_server_command_argv(server, argc, argv, argv_len);
}

#define EVAL(server, keys, ...) eval(server, keys, (const char *const[]){__VA_ARGS__, NULL})
#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void assert_integer(redisReply *reply, int64_t want) {
  cr_assert(reply->type == REDIS_REPLY_INTEGER, "not an integer: %s",
            reply->type == REDIS_REPLY_ERROR ? reply->str : "");
  cr_assert(eq(i64, reply->integer, want));
  freeReplyObject(reply);
}

static void assert_error(redisReply *reply, const char *start) {
  cr_assert(eq(int, reply->type, REDIS_REPLY_ERROR));
  cr_assert(strncmp(reply->str, start, strlen(start)) == 0, "\"%s\" does not begin with \"%s\"", reply->str, start);
  freeReplyObject(reply);
}

static void assert_value(redis_server *server, const char *key, const char *want) {
  redisReply *reply = redis_server_command(server, "GET %s", key);
  if (want == NULL)
    cr_assert(eq(int, reply->type, REDIS_REPLY_NIL));
  else
    cr_assert(reply->type == REDIS_REPLY_STRING && strcmp(reply->str, want) == 0, "%s holds \"%s\", not \"%s\"", key,
              reply->str != NULL ? reply->str : "nothing", want);
  freeReplyObject(reply);
}

/* REDIS-02 */
Test(take_lua, redis_02_wrong_arguments_write_nothing) {
  redis_server *server = redis_server_start();
  static const struct {
    const char *name;
    const char *arguments[6];
  } rows[] = {
      {"N 0", {"5:0:1000:", "1000", "4000", "0"}},
      {"N 0 in the argument", {"5:1:1000:", "1000", "4000", "0"}},
      {"a shape with a word", {"abc:1:1000:", "1000", "4000", "1"}},
      {"an empty shape", {"", "1000", "4000", "1"}},
      {"a shape of two numbers", {"5:1:", "1000", "4000", "1"}},
      {"a shape of five numbers", {"5:1:1000:1:1:", "1000", "4000", "1"}},
      {"a shape without its last colon", {"5:1:1000", "1000", "4000", "1"}},
      {"a shape with a remainder", {"5:3:1000:2", "1000", "4000", "3"}},
      {"a leading zero", {"05:1:1000:", "1000", "4000", "1"}},
      {"a debt of zero", {"5:1:1000:0:", "1000", "4000", "1"}},
      {"not in lowest terms", {"5:2:1000:", "1000", "4000", "2"}},
      {"a period above ten years", {"1:1:315360000001:", "315360000001", "0", "1"}},
      {"a full time above ten years", {"2:1:315360000000:", "315360000000", "315360000000", "1"}},
      {"products above 2^53", {"9007199254740991:1:1:", "1", "9007199254740990", "1"}},
      {"a number without end", {"5:1:1e400:", "1000", "4000", "1"}},
      {"room as a word", {"5:1:1000:", "1000", "abc", "1"}},
      {"room with a fraction", {"5:1:1000:", "1000", "4000.0", "1"}},
      {"cost as a word", {"5:1:1000:", "abc", "4000", "1"}},
      {"cost 1e400", {"5:1:1000:", "1e400", "4000", "1"}},
      {"cost below zero", {"5:1:1000:", "-1000", "6000", "1"}},
      {"cost not in whole tokens", {"5:1:1000:", "1500", "3500", "1"}},
      {"cost and room that do not add up", {"5:1:1000:", "1000", "5000", "1"}},
      {"N other than the shape's", {"5:3:1000:", "1000", "4000", "1"}},
      {"one argument missing", {"5:1:1000:", "1000", "4000"}},
      {"all but one missing", {"5:1:1000:"}},
      {"one too many", {"5:1:1000:", "1000", "4000", "1", "11700000000000", "1"}},
      {"a time that is not shifted", {"5:1:1000:", "1000", "4000", "1", "1700000000000"}},
      {"a time beyond the last", {"5:1:1000:", "1000", "4000", "1", "20000000000001"}},
      {"a time as a word", {"5:1:1000:", "1000", "4000", "1", "now"}},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    redisReply *reply = eval(server, KEYS("k"), rows[i].arguments);
    cr_expect(reply->type == REDIS_REPLY_ERROR, "%s: no error", rows[i].name);
    freeReplyObject(reply);
    cr_expect(redis_server_integer(server, "EXISTS k") == 0, "%s: something was written", rows[i].name);
    redis_server_run(server, "DEL k");
  }
  assert_error(EVAL(server, KEYS(NULL), "5:1:1000:", "1000", "4000", "1"), "ERR");

  /* The second bucket's fault comes to light before the first one's write. */
  assert_error(EVAL(server, KEYS("k", "l"), "5:1:1000:", "1000", "4000", "1", "5:1:1000:", "1000", "4000", "0"), "ERR");
  assert_error(EVAL(server, KEYS("k", "l"), "5:1:1000:", "1000", "4000", "1"), "ERR");
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS k l"), 0));
  redis_server_free(server);
}

Test(take_lua, redis_02_wrong_arguments_of_what_is_no_take_write_nothing) {
  redis_server *server = redis_server_start();
  static const struct {
    const char *name;
    const char *arguments[7];
  } rows[] = {
      {"an unknown word", {"5:1:1000:", "1", "0", "give"}},
      {"a word in capitals", {"5:1:1000:", "1", "0", "CHARGE"}},
      {"a cost below zero", {"5:1:1000:", "-1", "0", "charge"}},
      {"a cost with a fraction", {"5:1:1000:", "1.5", "0", "refund"}},
      {"a cost that is not exact", {"5:1:1000:", "9007199254740993", "0", "charge"}},
      {"a cost without end", {"5:1:1000:", "1e400", "0", "charge"}},
      {"a charge with a most", {"5:1:1000:", "1", "2", "charge"}},
      {"a refund with a most", {"f5:1000", "1", "2", "refund"}},
      {"a least above the most", {"5:1:1000:", "3", "2", "upto"}},
      {"a most above the capacity", {"5:1:1000:", "3", "6", "upto"}},
      {"a most above the capacity of a window", {"f5:1000", "3", "6", "upto"}},
      {"a most as a word", {"5:1:1000:", "3", "all", "upto"}},
      {"a shape out of bounds", {"0:1:1000:", "1", "0", "charge"}},
      {"a shape not in lowest terms", {"5:2:1000:", "1", "0", "charge"}},
      {"a window out of bounds", {"e1001:1000", "1", "0", "charge"}},
      {"a window without a letter", {"5:1000", "1", "0", "charge"}},
      {"one too many", {"5:1:1000:", "1", "0", "charge", "11700000000000", "1"}},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    assert_error(eval(server, KEYS("k"), rows[i].arguments), "ERR");
    cr_expect(redis_server_integer(server, "EXISTS k") == 0, "%s: something was written", rows[i].name);
  }
  /* All buckets of a call have one verb, whichever comes first. */
  static const char *const fourth[][2] = {{"charge", "refund"}, {"charge", "1"}, {"upto", "charge"}, {"1", "charge"}};
  for (size_t i = 0; i < sizeof(fourth) / sizeof(fourth[0]); i++) {
    assert_error(EVAL(server, KEYS("k", "l"), "5:1:1000:", "1000", "4000", fourth[i][0], "5:1:1000:", "1000", "4000",
                      fourth[i][1]),
                 "ERR");
    assert_error(EVAL(server, KEYS("k", "l"), "5:1:1000:", "1", "0", fourth[i][0], "5:1:1000:", "1", "0", fourth[i][1]),
                 "ERR");
  }
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS k l"), 0));
  /* Nor is one charged that a take would find as it is used to. */
  freeReplyObject(EVAL(server, KEYS("l"), "5:1:3600000:", "3600000", "14400000", "1"));
  int64_t expires = redis_server_integer(server, "PEXPIRETIME l");
  assert_error(
      EVAL(server, KEYS("k", "l"), "5:1:3600000:", "1", "0", "charge", "5:1:3600000:", "3600000", "14400000", "1"),
      "ERR");
  assert_error(
      EVAL(server, KEYS("l", "k"), "5:1:3600000:", "3600000", "14400000", "1", "5:1:3600000:", "1", "0", "charge"),
      "ERR");
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS k"), 0));
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME l"), expires));
  redis_server_free(server);
}

Test(take_lua, a_charge_goes_to_the_debt_and_a_refund_removes_what_is_full) {
  redis_server *server = redis_server_start();
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "9", "0", "charge", "10000000000000"), 0);
  assert_value(server, "k", "5:3:1000:2:1"); /* 7,000 units: 2,333 ms and a third */
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 2333 + 1000));
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "6", "0", "refund", "10000000000000"), 7000);
  assert_value(server, "k", "5:3:1000:2:1");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 333 + 1000));
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "0", "0", "refund", "10000000000000"), 1000);
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "1", "0", "refund", "10000000000000"), 1000);
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS k"), 0));
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "1", "0", "refund", "10000000000000"), 0);
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "0", "0", "charge", "10000000000000"), 0);
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS k"), 0));
  assert_integer(EVAL(server, KEYS("k"), "5:3:1000:2:", "9007199254740991", "0", "charge"), 0);
  assert_value(server, "k", "5:3:1000:2:1");
  assert_integer(EVAL(server, KEYS("u"), "5:3:1000:2:", "1", "4", "upto", "10000000000000"), 0);
  assert_value(server, "u", "5:3:1000:2:1"); /* 4,000 units */
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME u"), SHIFT_MS + 1333 + 1000));
  redis_server_free(server);
}

Test(take_lua, the_value_is_the_shape_and_a_remainder_that_is_not_zero) {
  redis_server *server = redis_server_start();
  assert_integer(EVAL(server, KEYS("n1"), "60:1:1000:", "1000", "59000", "1", "10000000005000"), 0);
  assert_value(server, "n1", "60:1:1000:");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n1"), SHIFT_MS + 5000 + 1000 + 1000));

  /* 1000/3 ms for a token: 333 and one third. */
  assert_integer(EVAL(server, KEYS("n3"), "5:3:1000:", "1000", "4000", "3", "10000000000000"), 0);
  assert_value(server, "n3", "5:3:1000:1");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n3"), SHIFT_MS + 333 + 1000));
  assert_integer(EVAL(server, KEYS("n3"), "5:3:1000:", "2000", "3000", "3", "10000000000000"), 1000);
  assert_value(server, "n3", "5:3:1000:");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n3"), SHIFT_MS + 1000 + 1000));

  assert_integer(EVAL(server, KEYS("d"), "5:3:1000:2:", "1000", "4000", "3", "10000000000000"), 0);
  assert_value(server, "d", "5:3:1000:2:1");
  redis_server_free(server);
}

/* A leaky bucket is the same, but for the letter before its shape. */
Test(take_lua, a_leaky_bucket_says_so_in_its_value) {
  redis_server *server = redis_server_start();
  assert_integer(EVAL(server, KEYS("k"), "l5:3:1000:", "1000", "4000", "3", "10000000000000"), 0);
  assert_value(server, "k", "l5:3:1000:1");
  assert_integer(EVAL(server, KEYS("k"), "l5:3:500:", "500", "2000", "3", "10000000000000"), 500);
  assert_value(server, "k", "l5:3:500:1");
  assert_error(EVAL(server, KEYS("k"), "5:3:1000:", "1000", "4000", "3", "10000000000000"), "VERSION ");
  assert_integer(EVAL(server, KEYS("t"), "5:3:1000:", "1000", "4000", "3", "10000000000000"), 0);
  assert_error(EVAL(server, KEYS("t"), "l5:3:1000:", "1000", "4000", "3", "10000000000000"), "FOREIGN ");
  assert_error(EVAL(server, KEYS("x"), "m5:3:1000:", "1000", "4000", "3", "10000000000000"), "ERR ");
  assert_error(EVAL(server, KEYS("x"), "ll5:3:1000:", "1000", "4000", "3", "10000000000000"), "ERR ");
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS x"), 0));
  redis_server_free(server);
}

static void assert_numbers(redisReply *reply, size_t n, const int64_t *want) {
  cr_assert(reply->type == REDIS_REPLY_ARRAY, "not an array: %s", reply->type == REDIS_REPLY_ERROR ? reply->str : "");
  cr_assert(eq(sz, reply->elements, n));
  for (size_t i = 0; i < n; i++) {
    cr_assert(eq(int, reply->element[i]->type, REDIS_REPLY_INTEGER));
    cr_assert(eq(i64, reply->element[i]->integer, want[i]));
  }
  freeReplyObject(reply);
}

#define ASSERT_NUMBERS(reply, ...) \
  assert_numbers(reply, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})

static void assert_first(redisReply *reply, int64_t want) {
  cr_assert(reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->integer == want);
  freeReplyObject(reply);
}

Test(take_lua, a_fixed_window_is_its_count_and_ends_with_the_window) {
  redis_server *server = redis_server_start();
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "f5:1000", "2", "3", "=2", "10000000002400"), 0, 600);
  assert_value(server, "k", "f5:1000=2");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 3000 + 1000));
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "f5:1000", "3", "2", "=3", "10000000002999"), 2, 1);
  assert_value(server, "k", "f5:1000=5");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 3000 + 1000));
  /* A denial and a peek write nothing. */
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "f5:1000", "1", "4", "=1", "10000000002999"), 5, 1);
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "f5:1000", "0", "5", "=1", "10000000003000"), 0, 1000);
  assert_value(server, "k", "f5:1000=5");
  /* A denied take writes the new numbers. */
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "f4:1500", "1", "3", "=1", "10000000002999"), 4, 1);
  assert_value(server, "k", "f4:1500=4");
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "f4:1500", "1", "3", "=1", "10000000003000"), 0, 1500);
  assert_value(server, "k", "f4:1500=1");
  redis_server_free(server);
}

Test(take_lua, a_sliding_window_is_two_counts_and_ends_with_the_next) {
  redis_server *server = redis_server_start();
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "w60:60000", "40", "20", "=40", "10000000006000"), 0, 0, 54000);
  assert_value(server, "k", "w60:60000=40:0");
  /* REDIS-04: at least until 2*W - 6000 from then. */
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 120000 + 1000));
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "w60:60000", "30", "30", "=30", "10000000074999"), 40, 0, 45001);
  assert_value(server, "k", "w60:60000=40:0");
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "w60:60000", "30", "30", "=30", "10000000075000"), 40, 0, 45000);
  assert_value(server, "k", "w60:60000=30:40");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 180000 + 1000));
  /* Only the window before counts, and a denied take writes new numbers: that ends with this window. */
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "w60:30000", "60", "0", "=60", "10000000120000"), 30, 0, 30000);
  assert_value(server, "k", "w60:30000=0:30");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 150000 + 1000));
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "w60:30000", "0", "60", "=1", "10000000150000"), 0, 0, 30000);
  redis_server_free(server);
}

static void assert_bytes(redis_server *server, const char *key, const char *want, size_t len) {
  redisReply *reply = redis_server_command(server, "GET %s", key);
  cr_assert(reply->type == REDIS_REPLY_STRING && reply->len == len && memcmp(reply->str, want, len) == 0, "%s", key);
  freeReplyObject(reply);
}

#define ASSERT_BYTES(server, key, want) assert_bytes(server, key, want, sizeof(want) - 1)

Test(take_lua, a_sliding_log_is_its_entries_and_ends_with_the_newest) {
  redis_server *server = redis_server_start();
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e5:60000", "2", "3", "=2", "10000000000007"), 0, 0, 0, 0);
  ASSERT_BYTES(server, "k",
               "e5:60000=\0\0"
               "\0\0\0\0\0\7\0\2");
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e5:60000", "1", "4", "=1", "10000000000007"), 2, 0, 60000, 60000);
  ASSERT_BYTES(server, "k",
               "e5:60000=\0\0"
               "\0\0\0\0\0\7\0\3");
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e5:60000", "2", "3", "=2", "10000000000300"), 3, 0, 59707, 59707);
  ASSERT_BYTES(server, "k",
               "e5:60000=\0\0"
               "\0\0\0\0\0\7\0\3"
               "\0\0\0\0\1\x2c\0\5");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), SHIFT_MS + 300 + 60000 + 1000));
  /* The wait is the oldest's for up to 3, the next one's for more. */
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e5:60000", "3", "2", "=3", "10000000000300"), 5, 59707, 60000, 59707);
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e5:60000", "0", "5", "=4", "10000000000300"), 5, 60000, 60000, 59707);
  /* The first entry is forgotten; its count stays the count before the next. */
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e5:60000", "1", "4", "=1", "10000000060007"), 2, 0, 293, 293);
  ASSERT_BYTES(server, "k",
               "e5:60000=\0\3"
               "\0\0\0\0\1\x2c\0\5"
               "\0\0\0\0\xea\x67\0\6");
  /* A denied take writes new numbers, without what passes them. */
  ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e2:60000", "2", "0", "=2", "10000000060007"), 2, 60000, 60000, 293);
  ASSERT_BYTES(server, "k",
               "e2:60000=\0\4"
               "\0\0\0\0\1\x2c\0\5"
               "\0\0\0\0\xea\x67\0\6");
  redis_server_free(server);
}

/* Counts that go round at 2^16 are what they differ by. */
Test(take_lua, a_sliding_log_counts_on_past_its_two_bytes) {
  redis_server *server = redis_server_start();
  for (int64_t i = 0; i < 200; i++) {
    char now[32];
    (void)snprintf(now, sizeof(now), "%" PRId64, SHIFT_MS + 1000 * i);
    ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e1000:1000", "1000", "0", "=1000", now), 0, 0, 0, 0);
    ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e1000:1000", "0", "1000", "=1", now), 1000, 1000, 1000, 1000);
    (void)snprintf(now, sizeof(now), "%" PRId64, SHIFT_MS + 1000 * i + 999);
    ASSERT_NUMBERS(EVAL(server, KEYS("k"), "e1000:1000", "1", "999", "=1", now), 1000, 1, 1, 1);
  }
  /* While something counts all along. */
  for (int64_t i = 0; i < 400; i++) {
    char now[32];
    (void)snprintf(now, sizeof(now), "%" PRId64, SHIFT_MS + 500000 + 500 * i);
    redisReply *reply = EVAL(server, KEYS("l"), "e1000:1000", "500", "500", "=500", now);
    cr_assert(reply->type == REDIS_REPLY_ARRAY && reply->element[0]->integer == (i == 0 ? 0 : 500), "step %" PRId64, i);
    freeReplyObject(reply);
  }
  redis_server_free(server);
}

/* A value of another algorithm, numbers out of bounds, and what nobody writes. */
static const struct {
  const char *shape;
  const char *value;
  const char *word;
  bool ends_wrong; /* nothing is wrong but the expiry, which is not the end of a window */
} window_values[] = {
    {"f5:1000", "5:1:1000:", "FOREIGN "},
    {"f5:1000", "f5:1000", "FOREIGN "},
    {"f5:1000", "f5:1000=", "FOREIGN "},
    {"f5:1000", "f5:1000=0", "FOREIGN "},
    {"f5:1000", "f5:1000=6", "FOREIGN "},
    {"f5:1000", "f5:1000=1.5", "FOREIGN "},
    {"f5:1000", "f5:10001", "FOREIGN "},
    {"f5:1000", "f5:1000=-1", "FOREIGN "},
    {"f5:1000", "f5:0=1", "FOREIGN "},
    {"f5:1000", "f0:1000=1", "FOREIGN "},
    {"f5:1000", "f05:1000=1", "FOREIGN "},
    {"f5:1000", "f5:1000=1 ", "FOREIGN "},
    {"f5:1000", "f5:315360000001=1", "FOREIGN "},
    {"f5:1000", "f9007199254740993:1=1", "FOREIGN "},
    {"f5:1000", "l5:1:1000:", "VERSION "},
    {"f5:1000", "z5:1000=1", "VERSION "},
    {"f5:1000", "", "FOREIGN "},
    {"w5:1000", "w5:1000=", "FOREIGN "},
    {"w5:1000", "w5:1000=1", "FOREIGN "},
    {"w5:1000", "w5:1000=1:", "FOREIGN "},
    {"w5:1000", "w5:1000=0:0", "FOREIGN "},
    {"w5:1000", "w5:1000=6:0", "FOREIGN "},
    {"w5:1000", "w5:1000=0:6", "FOREIGN "},
    {"w5:1000", "w5:1000=1:-1", "FOREIGN "},
    {"w5:1000", "w50039995860:60000=1:1", "FOREIGN "},
    {"w5:1000", "f5:1000=1", "VERSION "},
    {"w5:1000", "5:1:1000:", "FOREIGN "},
    {"e5:1000", "e5:1000=", "FOREIGN "},
    {"e5:1000", "e5:1000=12", "FOREIGN "},
    {"e5:1000", "e5:1000=1234567", "FOREIGN "},
    {"e5:1000", "e5:1000=123456789", "FOREIGN "},
    {"e5:1000", "e5:1000=1234567890", "FOREIGN "},
    {"e5:1000", "e5:1000=12345678901", "FOREIGN "},
    {"e5:1000", "e1001:1000=1234567890", "FOREIGN "},
    {"e5:1000", "5:1:1000:", "FOREIGN "},
    {"e5:1000", "w5:1000=1:1", "VERSION "},
    {"w5:1000", "w5:1000=1:1", "FOREIGN ", true},
    {"f5:1000", "f5:1000=1", "FOREIGN ", true},
};

Test(take_lua, values_that_are_no_window_are_errors_and_stay) {
  redis_server *server = redis_server_start();
  for (size_t i = 0; i < sizeof(window_values) / sizeof(window_values[0]); i++) {
    redis_server_run(server, "SET k %s PXAT 10000000101500", window_values[i].value);
    const char *shape = window_values[i].shape;
    for (int others = 0; others < 2; others++) {
      redisReply *reply = others == 0 ? EVAL(server, KEYS("k"), shape, "1", "4", "=1", "10000000100200")
                                      : EVAL(server, KEYS("new", "k"), "5:1:1000:", "1000", "4000", "1", shape, "1",
                                             "4", "=1", "10000000100200");
      cr_expect(reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, window_values[i].word, 8) == 0, "\"%s\": %s",
                window_values[i].value, reply->type == REDIS_REPLY_ERROR ? reply->str : "no error");
      freeReplyObject(reply);
      cr_assert(eq(i64, redis_server_integer(server, "EXISTS new"), 0));
      assert_value(server, "k", window_values[i].value);
    }
    /* On the server's clock as well: its short path asks no letter. Now and then its window does end then. */
    if (window_values[i].ends_wrong)
      continue;
    redis_server_run(server, "SET k %s PX 100000", window_values[i].value);
    redisReply *reply = EVAL(server, KEYS("k"), shape, "1", "4", "=1");
    cr_expect(reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, window_values[i].word, 8) == 0, "\"%s\": %s",
              window_values[i].value, reply->type == REDIS_REPLY_ERROR ? reply->str : "no error");
    freeReplyObject(reply);
    assert_value(server, "k", window_values[i].value);
  }
  redis_server_free(server);
}

Test(take_lua, redis_02_wrong_arguments_of_a_window_write_nothing) {
  redis_server *server = redis_server_start();
  static const char *const rows[][4] = {
      {"f0:1000", "1", "0", "=1"},
      {"f5:0", "1", "4", "=1"},
      {"f05:1000", "1", "4", "=1"},
      {"f5:1000=", "1", "4", "=1"},
      {"f5:1000:", "1", "4", "=1"},
      {"f5", "1", "4", "=1"},
      {"f", "1", "4", "=1"},
      {"f5:1000", "1", "4", "1"},
      {"f5:1000", "1", "4", "="},
      {"f5:1000", "1", "4", "=x"},
      {"f5:1000", "1", "4", "=2"},
      {"f5:1000", "1", "5", "=1"},
      {"f5:1000", "-1", "6", "=1"},
      {"f5:1000", "6", "-1", "=6"},
      {"f5:1000", "1.5", "3.5", "=1"},
      {"f5:1000", "0", "5", "=6"},
      {"f5:1e3", "1", "4", "=1"},
      {"f5:315360000001", "1", "4", "=1"},
      {"f9007199254740992:1", "1", "9007199254740991", "=1"},
      {"g5:1000", "1", "4", "=1"},
      {"e1001:1000", "1", "1000", "=1"},
      {"w50039995860:60000", "1", "50039995859", "=1"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    assert_error(EVAL(server, KEYS("k"), rows[i][0], rows[i][1], rows[i][2], rows[i][3]), "ERR");
    assert_error(EVAL(server, KEYS("k"), rows[i][0], rows[i][1], rows[i][2], rows[i][3], "10000000000000"), "ERR");
    cr_assert(redis_server_integer(server, "EXISTS k") == 0, "row %zu", i);
  }
  redis_server_free(server);
}

Test(take_lua, windows_end_on_the_servers_clock) {
  redis_server *server = redis_server_start();
  /* Ten years: no window of it ends during the test. */
  assert_first(EVAL(server, KEYS("f"), "f5:315360000000", "1", "4", "=1"), 0);
  assert_first(EVAL(server, KEYS("f"), "f5:315360000000", "1", "4", "=1"), 1);
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME f") % INT64_C(315360000000), 1000));
  assert_first(EVAL(server, KEYS("e"), "e5:315360000000", "1", "4", "=1"), 0);
  assert_first(EVAL(server, KEYS("e"), "e5:315360000000", "1", "4", "=1"), 1);
  int64_t left_ms = redis_server_integer(server, "PTTL e");
  cr_assert(left_ms > INT64_C(315360000000) && left_ms <= INT64_C(315360001000), "%" PRId64, left_ms);
  assert_first(EVAL(server, KEYS("w"), "w5:315360000000", "1", "4", "=1"), 0);
  redisReply *reply = EVAL(server, KEYS("w"), "w5:315360000000", "1", "4", "=1");
  cr_assert(reply->type == REDIS_REPLY_ARRAY && reply->elements == 3);
  cr_assert(reply->element[0]->integer == 0 && reply->element[1]->integer == 1);
  freeReplyObject(reply);
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME w") % INT64_C(315360000000), 1000));
  redis_server_free(server);
}

Test(take_lua, on_the_servers_clock_every_bucket_ends_a_second_after_it_is_full) {
  redis_server *server = redis_server_start();
  for (int i = 0; i < 3; i++)
    freeReplyObject(EVAL(server, KEYS("a"), "60:1:60000:", "60000", "3540000", "1"));
  int64_t left_ms = redis_server_integer(server, "PTTL a");
  cr_assert(left_ms > 180000 && left_ms <= 181000, "%" PRId64, left_ms);
  assert_value(server, "a", "60:1:60000:");
  for (int i = 0; i < 3; i++)
    freeReplyObject(EVAL(server, KEYS("b"), "60:7:60000:", "60000", "3540000", "7"));
  left_ms = redis_server_integer(server, "PTTL b");
  cr_assert(left_ms > 25714 && left_ms <= 26714 + 1, "%" PRId64, left_ms);
  redis_server_free(server);
}

/* However long the script runs: several buckets are charged as of one instant, and move by what each was taken. */
Test(take_lua, on_the_servers_clock_several_buckets_move_by_exactly_what_is_taken) {
  redis_server *server = redis_server_start();
  static const char *const names[] = {"a", "b", "f", "w"};
  int64_t before[4];
  for (int step = 0; step <= 300; step++) {
    redisReply *reply =
        EVAL(server, KEYS("a", "b", "f", "w"), "1000:1:60000:", "60000", "59940000", "1", "1000:7:60000:", "60000",
             "59940000", "7", "f1000:315360000000", "2", "998", "=2", "w1000:315360000000", "3", "997", "=3");
    cr_assert(reply->type == REDIS_REPLY_ARRAY && reply->elements == 4);
    cr_assert(eq(i64, reply->element[2]->element[0]->integer, 2 * step));
    cr_assert(eq(i64, reply->element[3]->element[1]->integer, 3 * step));
    freeReplyObject(reply);
    for (int i = 0; i < 4 && step == 0; i++)
      before[i] = redis_server_integer(server, "PEXPIRETIME %s", names[i]);
  }
  assert_value(server, "a", "1000:1:60000:");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME a"), before[0] + INT64_C(300) * 60000));
  /* 301 of 60000/7 ms, of which the first one's 8571 and three sevenths stood before. */
  assert_value(server, "b", "1000:7:60000:");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME b"), before[1] + INT64_C(301) * 60000 / 7 - 8571));
  assert_value(server, "f", "f1000:315360000000=602");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME f"), before[2]));
  assert_value(server, "w", "w1000:315360000000=903:0");
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME w"), before[3]));
  redis_server_free(server);
}

Test(take_lua, a_denial_and_a_cost_of_zero_write_nothing) {
  redis_server *server = redis_server_start();
  assert_integer(EVAL(server, KEYS("k"), "1:1:1000:", "0", "1000", "1", "10000000000000"), 0);
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS k"), 0));
  assert_integer(EVAL(server, KEYS("k"), "1:1:1000:", "1000", "0", "1", "10000000000000"), 0);
  redisReply *before = redis_server_command(server, "DUMP k");
  int64_t expires = redis_server_integer(server, "PEXPIRETIME k");
  assert_integer(EVAL(server, KEYS("k"), "1:1:1000:", "1000", "0", "1", "10000000000400"), 600);
  assert_integer(EVAL(server, KEYS("k"), "1:1:1000:", "0", "1000", "1", "10000000000400"), 600);
  /* Not even under another shape. */
  assert_integer(EVAL(server, KEYS("k"), "1:1:2000:", "0", "2000", "1", "10000000000400"), 1200);
  redisReply *after = redis_server_command(server, "DUMP k");
  cr_assert(before->len == after->len && memcmp(before->str, after->str, before->len) == 0);
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME k"), expires));
  freeReplyObject(before);
  freeReplyObject(after);
  redis_server_free(server);
}

Test(take_lua, a_denied_take_writes_the_new_shape) {
  redis_server *server = redis_server_start();
  assert_integer(EVAL(server, KEYS("k"), "1:1:86400000:", "86400000", "0", "1", "10000000000000"), 0);
  assert_integer(EVAL(server, KEYS("k"), "1:1:1000:", "1000", "0", "1", "10000000000000"), 1000);
  assert_value(server, "k", "1:1:1000:");
  assert_integer(EVAL(server, KEYS("k"), "1:1:1000:", "1000", "0", "1", "10000000001000"), 0);

  /* A conversion that fills a bucket removes it when the take is denied by another one. */
  assert_integer(EVAL(server, KEYS("big"), "10:1:1000:", "1000", "9000", "1", "10000000000000"), 0);
  redisReply *reply =
      EVAL(server, KEYS("big", "k"), "5:1:1000:", "1000", "4000", "1", "1:1:1000:", "1000", "0", "1", "10000000000000");
  cr_assert(eq(int, reply->type, REDIS_REPLY_ARRAY));
  cr_assert(eq(i64, reply->element[0]->integer, 0));
  freeReplyObject(reply);
  assert_value(server, "big", NULL);
  redis_server_free(server);
}

Test(take_lua, values_of_others_are_errors_and_stay) {
  redis_server *server = redis_server_start();
  static const struct {
    const char *value;
    const char *word;
  } rows[] = {
      {"hello world", "VERSION "},
      {"w1:5:1", "VERSION "},
      {"", "FOREIGN "},
      {"42", "FOREIGN "},
      {"5:1:1000", "FOREIGN "},
      {"5:1:1000:1", "FOREIGN "},
      {"5:3:1000:3", "FOREIGN "},
      {"5:3:1000:-1", "FOREIGN "},
      {"5:3:1000:01", "FOREIGN "},
      {"5:3:1000:0", "FOREIGN "},
      {"5:3:1000:1.5", "FOREIGN "},
      {"5:3:1000:1 ", "FOREIGN "},
      {"5:3:1000:0x1", "FOREIGN "},
      {"0:1:1000:", "FOREIGN "},
      {"5:0:1000:", "FOREIGN "},
      {"5:2:1000:", "FOREIGN "},
      {"5:1:315360000001:", "FOREIGN "},
      {"9007199254740992:1:1:", "FOREIGN "},
      {"5:3:1000:1:1:1", "FOREIGN "},
      {" 5:3:1000:", "FOREIGN "},
      {"5:3:1000:\n", "FOREIGN "},
      {"{\"level\":5}", "FOREIGN "},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    /* A shape each of them might be taken for. */
    static const char *const shapes[] = {"5:3:1000:", "5:1:1000:", "9:1:1000:"};
    for (size_t j = 0; j < 3; j++) {
      redis_server_run(server, "SET k %s PX 100000", rows[i].value);
      const char *N = j == 0 ? "3" : "1";
      const char *room = j == 2 ? "8000" : "4000";
      redisReply *reply = EVAL(server, KEYS("k"), shapes[j], "1000", room, N);
      cr_expect(reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, rows[i].word, 8) == 0, "\"%s\": %s",
                rows[i].value, reply->type == REDIS_REPLY_ERROR ? reply->str : "no error");
      freeReplyObject(reply);
      assert_error(EVAL(server, KEYS("k", "new"), shapes[j], "1000", room, N, shapes[j], "1000", room, N),
                   rows[i].word);
      cr_assert(eq(i64, redis_server_integer(server, "EXISTS new"), 0));
      assert_value(server, "k", rows[i].value);
    }
  }

  /* Ours but for the expiry. */
  redis_server_run(server, "SET k 5:1:1000:");
  assert_error(EVAL(server, KEYS("k"), "5:1:1000:", "1000", "4000", "1"), "FOREIGN ");
  assert_error(EVAL(server, KEYS("k"), "5:1:1000:", "1000", "4000", "1", "10000000000000"), "FOREIGN ");
  cr_assert(eq(i64, redis_server_integer(server, "PTTL k"), -1));

  /* Another type, alone and in a vector, with an expiry and without. */
  redis_server_run(server, "DEL k");
  redis_server_run(server, "RPUSH k a");
  for (int i = 0; i < 2; i++) {
    assert_error(EVAL(server, KEYS("k"), "5:1:1000:", "1000", "4000", "1"), "WRONGTYPE ");
    assert_error(EVAL(server, KEYS("k"), "5:1:1000:", "1000", "4000", "1", "10000000000000"), "WRONGTYPE ");
    assert_error(EVAL(server, KEYS("new", "k"), "5:1:1000:", "1000", "4000", "1", "5:1:1000:", "1000", "4000", "1"),
                 "FOREIGN ");
    cr_assert(eq(i64, redis_server_integer(server, "EXISTS new"), 0));
    cr_assert(eq(i64, redis_server_integer(server, "LLEN k"), 1));
    redis_server_run(server, "PEXPIRE k 100000");
  }
  redis_server_free(server);
}

Test(take_lua, a_full_server_still_serves_known_buckets_and_denies) {
  redis_server *server = redis_server_start();
  freeReplyObject(EVAL(server, KEYS("n1"), "5:1:3600000:", "3600000", "14400000", "1"));
  freeReplyObject(EVAL(server, KEYS("old"), "2:1:3600000:", "7200000", "0", "1"));
  redis_server_run(server, "CONFIG SET maxmemory-policy noeviction");
  redis_server_run(server, "CONFIG SET maxmemory 1");

  int64_t before = redis_server_integer(server, "PEXPIRETIME n1");
  redisReply *reply = EVAL(server, KEYS("n1"), "5:1:3600000:", "3600000", "14400000", "1");
  cr_assert(eq(int, reply->type, REDIS_REPLY_INTEGER));
  freeReplyObject(reply);
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n1"), before + 3600000));

  /* A denial is a read; one that would write a new shape stands as well, and the old shape stays. */
  reply = EVAL(server, KEYS("old"), "2:1:3600000:", "3600000", "3600000", "1");
  cr_assert(reply->type == REDIS_REPLY_INTEGER && reply->integer > 3600000);
  freeReplyObject(reply);
  reply = EVAL(server, KEYS("old"), "2:1:60000:", "60000", "60000", "1");
  cr_assert(reply->type == REDIS_REPLY_INTEGER && reply->integer > 60000);
  freeReplyObject(reply);
  assert_value(server, "old", "2:1:3600000:");

  /* A new bucket has no room, and then nothing of a vector is charged. */
  assert_error(EVAL(server, KEYS("new"), "5:1:3600000:", "3600000", "14400000", "1"), "OOM ");
  before = redis_server_integer(server, "PEXPIRETIME n1");
  assert_error(EVAL(server, KEYS("new", "n1"), "5:1:3600000:", "3600000", "14400000", "1", "5:1:3600000:", "3600000",
                    "14400000", "1"),
               "OOM ");
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS new"), 0));
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n1"), before));

  /* In whatever order: once a script has written, the server would let it go through. */
  assert_error(EVAL(server, KEYS("n1", "new"), "5:1:3600000:", "3600000", "14400000", "1", "5:1:3600000:", "3600000",
                    "14400000", "1"),
               "OOM ");
  cr_assert(eq(i64, redis_server_integer(server, "EXISTS new"), 0));
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n1"), before));

  /* Known ones go on, also beside one that is asked for nothing. */
  reply =
      EVAL(server, KEYS("n1", "new"), "5:1:3600000:", "3600000", "14400000", "1", "5:1:3600000:", "0", "18000000", "1");
  cr_assert(eq(int, reply->type, REDIS_REPLY_ARRAY));
  freeReplyObject(reply);
  cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME n1"), before + 3600000));
  redis_server_free(server);
}

/* ---- Against the core ---- */

#define BUCKETS 12
#define STEPS 50000
#define PIPELINE 100

typedef struct test_bucket {
  bool stored;
  spile__state state;
} test_bucket;

typedef struct test_step {
  size_t n;
  size_t buckets[4];
  spile_shape shapes[4];
  int64_t debts[4];
} test_step;

static uint64_t random_state;

static uint64_t random_next(void) {
  /* xorshift64*, Vigna 2016. */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * UINT64_C(2685821657736338717);
}

static int64_t random_below(int64_t n) {
  return (int64_t)(random_next() % (uint64_t)n);
}

static spile_shape random_shape(void) {
  static const struct {
    int64_t capacity, tokens, period_ms, debt;
  } shapes[] = {
      {5, 1, 1000, 0},
      {10, 1, 1000, 0},
      {10, 3, 1000, 0},
      {7, 7, 999, 4},
      {1, 2000, 1000, 0},
      {60, 1, 1000, 30},
      {100, 333, 1000, 0},
      {3, 1, 86400000, 0},
      {INT64_C(9000000000000), 999983, 1000, 0},
      {2, 1, INT64_C(100000000003), 1},
      {INT64_C(8998000000000000), 1000000, 1, 0},
      {50, 50, 7, 50},
  };
  size_t i = (size_t)random_below(sizeof(shapes) / sizeof(shapes[0]));
  spile_shape shape;
  cr_assert(eq(
      int, spile__shape_make(&shape, shapes[i].capacity, shapes[i].tokens, shapes[i].period_ms, shapes[i].debt, NULL),
      SPILE_OK));
  return shape;
}

/* What the core makes of the step: the readings, and the states after it. */
static void step_model(test_bucket *buckets, test_step *step, const int64_t *costs, int64_t now_ms) {
  const spile__algorithm *algorithm = &spile__token_bucket;
  spile_reading readings[4];
  bool rewrites[4];
  bool fits = true;
  for (size_t i = 0; i < step->n; i++) {
    test_bucket *at = &buckets[step->buckets[i]];
    rewrites[i] = algorithm->read(&step->shapes[i], at->stored ? &at->state : NULL, now_ms, costs[i], &readings[i]);
    step->debts[i] = readings[i].values[0];
    fits = fits && algorithm->fits(&step->shapes[i], &readings[i], costs[i]);
  }
  for (size_t i = 0; i < step->n; i++) {
    test_bucket *at = &buckets[step->buckets[i]];
    if (costs[i] == 0 || (!fits && !rewrites[i]))
      continue;
    if (fits)
      algorithm->charge(&step->shapes[i], &readings[i], costs[i]);
    at->stored = algorithm->state(&step->shapes[i], &readings[i], now_ms, NULL, &at->state);
  }
}

static size_t shape_print(char *out, size_t size, const spile_shape *shape) {
  int len =
      snprintf(out, size, "%" PRId64 ":%" PRId64 ":%" PRId64 ":", shape->capacity, shape->refill, shape->period_ms);
  if (shape->debt > 0)
    len += snprintf(out + len, size - (size_t)len, "%" PRId64 ":", shape->debt);
  return (size_t)len;
}

/* Appends the command of the step to the connection's pipeline. */
static void step_send(redisContext *connection, const char *script, const test_step *step, const int64_t *costs,
                      int64_t now_ms) {
  char text[21][100];
  const char *argv[3 + 4 + 17];
  size_t argv_len[3 + 4 + 17];
  int argc = 0;
  int texts = 0;
#define PUT(...)                                                   \
  do {                                                             \
    (void)snprintf(text[texts], sizeof(text[texts]), __VA_ARGS__); \
    argv[argc] = text[texts++];                                    \
    argv_len[argc] = strlen(argv[argc]);                           \
    argc++;                                                        \
  } while (0)
  argv[argc] = "EVAL";
  argv_len[argc++] = 4;
  argv[argc] = script;
  argv_len[argc++] = strlen(script);
  PUT("%zu", step->n);
  static const char *const keys[BUCKETS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
  for (size_t i = 0; i < step->n; i++) {
    argv[argc] = keys[step->buckets[i]];
    argv_len[argc++] = 1;
  }
  for (size_t i = 0; i < step->n; i++) {
    const spile_shape *shape = &step->shapes[i];
    argv_len[argc] = shape_print(text[texts], sizeof(text[texts]), shape);
    argv[argc++] = text[texts++];
    PUT("%" PRId64, costs[i] * shape->period_ms);
    PUT("%" PRId64, (shape->capacity - costs[i]) * shape->period_ms);
    PUT("%" PRId64, shape->refill);
  }
  PUT("%" PRId64, now_ms + SHIFT_MS);
#undef PUT
  cr_assert(eq(int, redisAppendCommandArgv(connection, argc, argv, argv_len), REDIS_OK));
}

static void step_check(redisContext *connection, const test_step *step, uint64_t number, uint64_t seed) {
  void *result;
  cr_assert(eq(int, redisGetReply(connection, &result), REDIS_OK));
  redisReply *reply = result;
  cr_assert(reply->type != REDIS_REPLY_ERROR, "seed %" PRIu64 " step %" PRIu64 ": %s", seed, number, reply->str);
  for (size_t i = 0; i < step->n; i++) {
    const redisReply *one = step->n == 1 ? reply : reply->element[i];
    cr_assert(one->type == REDIS_REPLY_INTEGER && one->integer == step->debts[i],
              "seed %" PRIu64 " step %" PRIu64 " bucket %zu: debt %lld, not %" PRId64, seed, number, i, one->integer,
              step->debts[i]);
  }
  freeReplyObject(reply);
}

static void states_check(redis_server *server, const test_bucket *buckets) {
  for (int i = 0; i < BUCKETS; i++) {
    char name[2] = {(char)('a' + i), '\0'};
    if (!buckets[i].stored) {
      assert_value(server, name, NULL);
      continue;
    }
    char value[100];
    size_t len = shape_print(value, sizeof(value), &buckets[i].state.shape);
    if (buckets[i].state.bucket.rem > 0)
      (void)snprintf(value + len, sizeof(value) - len, "%" PRId64, buckets[i].state.bucket.rem);
    assert_value(server, name, value);
    cr_assert(eq(i64, redis_server_integer(server, "PEXPIRETIME %s", name),
                 buckets[i].state.bucket.full_at_ms + SHIFT_MS + 1000));
  }
}

/* Random takes, limits that change, clocks that step: the script says what the core says, and stores what it stores. */
static void differ(const char *script, uint64_t seed) {
  redis_server *server = redis_server_start();
  redisContext *connection = redis_server_connection(server);
  test_bucket buckets[BUCKETS] = {0};
  spile_shape shapes[BUCKETS];
  random_state = seed;
  for (int i = 0; i < BUCKETS; i++)
    shapes[i] = random_shape();
  int64_t now_ms = INT64_C(1700000000000);
  uint64_t denied = 0;
  for (uint64_t done = 0; done < STEPS; done += PIPELINE) {
    static test_step steps[PIPELINE];
    for (size_t i = 0; i < PIPELINE; i++) {
      test_step *step = &steps[i];
      int64_t costs[4];
      step->n = random_below(2) == 0 ? 1 : 1 + (size_t)random_below(4);
      size_t first = (size_t)random_below(BUCKETS);
      for (size_t j = 0; j < step->n; j++) {
        step->buckets[j] = (first + 5 * j) % BUCKETS;
        spile_shape *shape = &shapes[step->buckets[j]];
        if (random_below(50) == 0)
          *shape = random_shape();
        step->shapes[j] = *shape;
        static const int64_t parts[] = {0, 1, 1, 1, 1, 2, 4};
        int64_t part = parts[random_below(7)];
        costs[j] = part <= 1 ? part : (shape->capacity + part - 1) / part;
        if (random_below(20) == 0)
          costs[j] = shape->capacity;
      }
      switch (random_below(12)) {
      case 0:
        now_ms += random_below(5000);
        break;
      case 1:
        now_ms -= random_below(3000);
        break;
      case 2:
        now_ms += random_below(400) == 0 ? random_below(INT64_C(200000000000)) : 1;
        break;
      case 3:
        now_ms -= random_below(200) == 0 ? random_below(INT64_C(500000000000)) : 1;
        break;
      default:
        now_ms += random_below(3);
        break;
      }
      if (now_ms < 0 || now_ms > INT64_C(3000000000000))
        now_ms = INT64_C(1700000000000);
      step_model(buckets, step, costs, now_ms);
      for (size_t j = 0; j < step->n; j++)
        denied += step->debts[j] > (step->shapes[j].capacity - costs[j]) * step->shapes[j].period_ms;
      step_send(connection, script, step, costs, now_ms);
    }
    for (size_t i = 0; i < PIPELINE; i++)
      step_check(connection, &steps[i], done + i, seed);
    states_check(server, buckets);
  }
  /* The steps reach both sides. */
  cr_assert(denied > STEPS / 20 && denied < STEPS, "%" PRIu64 " denied", denied);
  redis_server_free(server);
}

Test(take_lua, agrees_with_the_core_where_the_time_is_given) {
  differ(spile__take_lua, 20240611);
}

/* Copies `text` with its one occurrence of `from` replaced. */
static char *replaced(const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  cr_assert(at != NULL && strstr(at + 1, from) == NULL, "\"%s\" is not there exactly once", from);
  size_t size = strlen(text) + strlen(to) + 1;
  char *out = malloc(size);
  cr_assert(out != NULL);
  (void)snprintf(out, size, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  return out;
}

/* The short path asks the server's clock; here it is told the time instead, and is the same text otherwise. */
Test(take_lua, agrees_with_the_core_on_its_short_path) {
  char *let_in = replaced(spile__take_lua, "not ARGV[5] then", "not ARGV[6] then");
  char *script = replaced(let_in, "call('PTTL', key)", "(call('PEXPIRETIME', key) - ARGV[5])");
  differ(script, 20240612);
  free(script);
  free(let_in);
}

/* Without what is usual apart: everything goes the long way. */
Test(take_lua, agrees_with_the_core_the_long_way) {
  char *script = replaced(spile__take_lua, "local usual = not values and not verb", "local usual = false");
  differ(script, 20240614);
  free(script);
}

/* What a step of a window's life answers and leaves, in the key `a` and in another one. */
static void windows_same(redis_server *server, const char *what, const redisReply *a, redisReply *b, const char *key) {
  cr_assert(a->type == b->type, "%s: %s %s", what, a->str != NULL ? a->str : "", b->str != NULL ? b->str : "");
  cr_assert(a->type == REDIS_REPLY_ARRAY && a->elements == b->elements, "%s: %s", what, a->str != NULL ? a->str : "");
  for (size_t i = 0; i < a->elements; i++)
    cr_assert(a->element[i]->integer == b->element[i]->integer, "%s: value %zu: %lld, %lld", what, i,
              a->element[i]->integer, b->element[i]->integer);
  freeReplyObject(b);
  redisReply *value = redis_server_command(server, "GET a");
  redisReply *other = redis_server_command(server, "GET %s", key);
  cr_assert(value->type == other->type && (value->type == REDIS_REPLY_NIL || strcmp(value->str, other->str) == 0),
            "%s: %s, %s", what, value->str != NULL ? value->str : "nothing",
            other->str != NULL ? other->str : "nothing");
  freeReplyObject(value);
  freeReplyObject(other);
  cr_assert(
      eq(i64, redis_server_integer(server, "PEXPIRETIME a"), redis_server_integer(server, "PEXPIRETIME %s", key)));
}

/* Of a script that is called like EVAL, but has one key. */
static redisReply *eval_of(redis_server *server, const char *script, const char *key, const char *shape,
                           char (*text)[32]) {
  const char *argv[] = {"EVAL", script, "1", key, shape, text[0], text[1], text[2], text[3]};
  size_t argv_len[9];
  for (size_t i = 0; i < 9; i++)
    argv_len[i] = strlen(argv[i]);
  return redis_server_command_argv(server, 9, argv, argv_len);
}

/*
 * The long way, that of several and of a given time, which the differential test compares with the core, and that of
 * one on the server's own clock, told the time.
 */
Test(take_lua, windows_agree_on_every_path) {
  redis_server *server = redis_server_start();
  char *general = replaced(spile__take_lua, "local usual = not values and not verb", "local usual = false");
  char *let_in = replaced(spile__take_lua, "not ARGV[5] then", "not ARGV[6] then");
  char *script = replaced(let_in, "call('PTTL', key)", "(call('PEXPIRETIME', key) - ARGV[5])");
  static const char *const shapes[] = {"f5:1000", "f5:1500", "f8:1000", "w5:1000", "w5:1500", "w8:1000"};
  random_state = 20240613;
  int64_t now_ms = INT64_C(1700000000000);
  uint64_t denied = 0;
  for (int step = 0; step < 12000; step++) {
    if (step % 4000 == 0)
      redis_server_run(server, "DEL a b c");
    size_t kind = step < 6000 ? 0 : 3;
    if (step == 6000)
      redis_server_run(server, "DEL a b c");
    const char *shape = shapes[kind + (random_below(30) == 0 ? (size_t)random_below(3) : 0)];
    int64_t capacity = shape[1] - '0';
    int64_t cost = random_below(4) == 0 ? random_below(capacity + 1) : 1;
    bool peek = random_below(5) == 0;
    now_ms += random_below(20) == 0   ? random_below(2500)
              : random_below(20) == 0 ? -random_below(1200)
                                      : random_below(120);
    char text[4][32];
    (void)snprintf(text[0], sizeof(text[0]), "%" PRId64, peek ? 0 : cost);
    (void)snprintf(text[1], sizeof(text[1]), "%" PRId64, peek ? capacity : capacity - cost);
    (void)snprintf(text[2], sizeof(text[2]), "=%" PRId64, cost);
    (void)snprintf(text[3], sizeof(text[3]), "%" PRId64, now_ms + SHIFT_MS);
    redisReply *reply = eval_of(server, general, "a", shape, text);
    char what[160];
    (void)snprintf(what, sizeof(what), "step %d: %s %s %s %s at %s", step, shape, text[0], text[1], text[2], text[3]);
    denied += reply->elements == 2 && reply->element[0]->integer > capacity - cost;
    windows_same(server, what, reply, eval_of(server, script, "b", shape, text), "b");
    windows_same(server, what, reply, eval_of(server, spile__take_lua, "c", shape, text), "c");
    freeReplyObject(reply);
  }
  cr_assert(denied > 500, "%" PRIu64 " denied", denied);
  free(script);
  free(let_in);
  free(general);
  redis_server_free(server);
}
