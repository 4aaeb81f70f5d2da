/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each reply of a server comes to: its reason, whether the connection is kept, how often the take was sent.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis.h"
#include "core/limit.h"
#include "redis_standin.h"
#include "redis_store.h"

#define LUA_5 "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4a8b9b1b2a3b0a3c): @user_script:1: "

static const struct reply_row {
  const char *reply; /* without its end */
  spile_reason reason;
  bool closed;
  int sent; /* how often the server saw the take */
} rows[] = {
    {"-NOSCRIPT No matching script. Please use EVAL.", SPILE_REASON_REFUSED, false, 2},
    {"-NOSCRIPT No matching script.", SPILE_REASON_REFUSED, false, 2},
    {"-READONLY You can't write against a read only replica.", SPILE_REASON_READONLY, true, 1},
    {"-READONLY You can't write against a read only replica. script: f, on @user_script:9.", SPILE_REASON_READONLY,
     true, 1},
    {"-LOADING Redis is loading the dataset in memory", SPILE_REASON_LOADING, false, 1},
    {"-LOADING Valkey is loading the dataset in memory", SPILE_REASON_LOADING, false, 1},
    {"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", SPILE_REASON_REFUSED, true,
     1},
    {"-MOVED 3999 127.0.0.1:6381", SPILE_REASON_REFUSED, true, 1},
    {"-MOVED 3999 :6381", SPILE_REASON_REFUSED, true, 1},
    {"-ASK 3999 127.0.0.1:6381", SPILE_REASON_REFUSED, true, 1},
    {"-CROSSSLOT Keys in request don't hash to the same slot", SPILE_REASON_REFUSED, false, 1},
    {"-CLUSTERDOWN The cluster is down", SPILE_REASON_REFUSED, false, 1},
    {"-CLUSTERDOWN Hash slot not served", SPILE_REASON_REFUSED, false, 1},
    {"-TRYAGAIN Multiple keys request during rehashing of slot", SPILE_REASON_REFUSED, false, 1},
    {"-OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script:1.", SPILE_REASON_OOM, false,
     1},
    {"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
     SPILE_REASON_REFUSED, false, 1},
    {"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", SPILE_REASON_REFUSED,
     false, 1},
    {"-NOREPLICAS Not enough good replicas to write.", SPILE_REASON_REFUSED, false, 1},
    {"-NOAUTH Authentication required.", SPILE_REASON_AUTH, true, 1},
    {"-WRONGPASS invalid username-password pair or user is disabled.", SPILE_REASON_AUTH, true, 1},
    {"-NOPERM this user has no permissions to run the 'evalsha' command", SPILE_REASON_AUTH, false, 1},
    {"-NOPERM ACL failure in script: User u has no permissions to run the 'set' command script: f, on @user_script:9.",
     SPILE_REASON_AUTH, false, 1},
    {"-ERR The user executing the script can't run this command or subcommand script: f, on @user_script:9.",
     SPILE_REASON_AUTH, false, 1},
    {"-ERR Unknown Redis command called from script script: f, on @user_script:9.", SPILE_REASON_REFUSED, false, 1},
    {"-DENIED Redis is running in protected mode because protected mode is enabled", SPILE_REASON_AUTH, true, 1},
    {"-WRONGTYPE Operation against a key holding the wrong kind of value", SPILE_REASON_FOREIGN, false, 1},
    {"-FOREIGN the value is not a bucket", SPILE_REASON_FOREIGN, false, 1},
    {"-VERSION the bucket was written in a later format", SPILE_REASON_FORMAT, false, 1},
    {"-ERR max number of clients reached", SPILE_REASON_REFUSED, true, 1},
    {"-ERR max number of clients + cluster connections reached", SPILE_REASON_REFUSED, true, 1},
    {"-ERR invalid password", SPILE_REASON_AUTH, true, 1},
    {"-ERR value is not an integer or out of range", SPILE_REASON_FOREIGN, false, 1},
    {"-ERR unknown command 'EVALSHA', with args beginning with: 'f' '1' 'rl:{k -READONLY}:default'",
     SPILE_REASON_REFUSED, false, 1},
    {"-ERR DB index is out of range", SPILE_REASON_REFUSED, false, 1},
    {"-ERR spile: there are four arguments a key", SPILE_REASON_REFUSED, false, 1},
    {"-ERR", SPILE_REASON_REFUSED, false, 1},
    {"-", SPILE_REASON_REFUSED, false, 1},
    /* Only a whole word counts. */
    {"-OOMPH is another word", SPILE_REASON_REFUSED, false, 1},
    {"-READONLYISH is another word", SPILE_REASON_REFUSED, false, 1},
    {"-readonly is another word", SPILE_REASON_REFUSED, false, 1},
    /* As servers before 7.0 wrap what a command in a script says. */
    {"-" LUA_5 "@user_script: 1: -READONLY You can't write against a read only replica.", SPILE_REASON_READONLY, true,
     1},
    {"-" LUA_5 "-OOM command not allowed when used memory > 'maxmemory'.", SPILE_REASON_OOM, false, 1},
    {"-@user_script: 1: -READONLY You can't write against a read only replica.", SPILE_REASON_READONLY, true, 1},
    {"-" LUA_5 "@user_script: 1: -WRONGTYPE Operation against a key", SPILE_REASON_FOREIGN, false, 1},
    {"-" LUA_5 "@user_script: 1: Unknown Redis command called from Lua script", SPILE_REASON_REFUSED, false, 1},
    {"-@user_script: 1: -", SPILE_REASON_REFUSED, false, 1},
    /* What is no error but no answer either. */
    {"+OK", SPILE_REASON_PROTOCOL, true, 1},
    {"$-1", SPILE_REASON_PROTOCOL, true, 1},
    {"*1\r\n:0", SPILE_REASON_PROTOCOL, true, 1},
    {"*1\r\n-READONLY within", SPILE_REASON_PROTOCOL, true, 1},
    {":-1", SPILE_REASON_PROTOCOL, true, 1},
    {":6001", SPILE_REASON_PROTOCOL, true, 1},
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

Test(redis_replies, redis_11_each_reply_has_its_reason_and_none_is_asked_twice) {
  spile_spec spec = spec_of(5, 1, 1000);
  for (size_t i = 0; i < N_ROWS; i++) {
    char bytes[512];
    (void)snprintf(bytes, sizeof(bytes), "%s\r\n", rows[i].reply);
    const standin_answer answers[] = {{.bytes = ":0\r\n"}, {.bytes = bytes}, {.bytes = bytes}, {.bytes = ":0\r\n"}};
    /* The second one answers a command that is sent again. */
    const standin_answer once[] = {answers[0], answers[1], answers[3]};
    bool twice = rows[i].sent == 2;
    redis_standin *standin = standin_start(NULL, twice ? answers : once, twice ? 4 : 3);
    spile_store *store = store_open(standin_uri(standin), false);
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
    answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
    cr_expect(got.code == SPILE_EUNAVAILABLE && got.error.reason == (int)rows[i].reason, "%s: code %d, %s: %s",
              rows[i].reply, got.code, spile_reason_name(got.error.reason), got.error.message);
    cr_expect(standin_takes(standin) == 1 + rows[i].sent, "%s: sent %d times", rows[i].reply,
              standin_takes(standin) - 1);
    cr_expect(standin_loads(standin) == rows[i].sent - 1, "%s: loaded %d times", rows[i].reply, standin_loads(standin));
    bool closed = ((spile__redis_store *)store)->links[0].handle < 0;
    cr_expect(closed == rows[i].closed, "%s: the connection was %s", rows[i].reply, closed ? "closed" : "kept");
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
    cr_expect(standin_connections(standin) == 1 + rows[i].closed, "%s: %d connections", rows[i].reply,
              standin_connections(standin));
    store_close(store);
    standin_stop(standin);
  }
}

/* REDIS-06: what the script cannot say of a window is no answer. */
Test(redis_replies, redis_06_numbers_of_windows_are_checked) {
  static const struct {
    spile_algorithm algorithm;
    const char *reply; /* to a take of 2 */
    bool good;
  } windows[] = {
      {SPILE_FIXED_WINDOW, "*2\r\n:3\r\n:1000", true},
      {SPILE_FIXED_WINDOW, "*2\r\n:3\r\n:2000", true}, /* a clock a second behind */
      {SPILE_FIXED_WINDOW, "*2\r\n:3\r\n:2001", false},
      {SPILE_FIXED_WINDOW, "*2\r\n:3\r\n:0", false},
      {SPILE_FIXED_WINDOW, "*2\r\n:6\r\n:1000", false},
      {SPILE_FIXED_WINDOW, "*2\r\n:-1\r\n:1000", false},
      {SPILE_FIXED_WINDOW, "*2\r\n:-9223372036854775808\r\n:1000", false},
      {SPILE_FIXED_WINDOW, ":3", false},
      {SPILE_FIXED_WINDOW, "*1\r\n:3", false},
      {SPILE_FIXED_WINDOW, "*3\r\n:3\r\n:1000\r\n:0", false},
      {SPILE_FIXED_WINDOW, "*2\r\n:3\r\n$-1", false},
      {SPILE_FIXED_WINDOW, "*2\r\n:3\r\n*1\r\n:1000", false},
      {SPILE_SLIDING_WINDOW, "*3\r\n:5\r\n:3\r\n:1", true},
      {SPILE_SLIDING_WINDOW, "*3\r\n:6\r\n:3\r\n:1", false},
      {SPILE_SLIDING_WINDOW, "*3\r\n:5\r\n:6\r\n:1", false},
      {SPILE_SLIDING_WINDOW, "*3\r\n:5\r\n:3\r\n:2001", false},
      {SPILE_SLIDING_WINDOW, "*2\r\n:5\r\n:3", false},
      {SPILE_SLIDING_LOG, "*4\r\n:3\r\n:0\r\n:7\r\n:7", true},
      {SPILE_SLIDING_LOG, "*4\r\n:4\r\n:7\r\n:7\r\n:2", true},
      {SPILE_SLIDING_LOG, "*4\r\n:0\r\n:0\r\n:0\r\n:0", true},
      {SPILE_SLIDING_LOG, "*4\r\n:4\r\n:0\r\n:7\r\n:7", false}, /* denied without a wait */
      {SPILE_SLIDING_LOG, "*4\r\n:3\r\n:1\r\n:7\r\n:7", false}, /* a wait without a denial */
      {SPILE_SLIDING_LOG, "*4\r\n:4\r\n:8\r\n:7\r\n:7", false},
      {SPILE_SLIDING_LOG, "*4\r\n:0\r\n:0\r\n:7\r\n:0", false},
      {SPILE_SLIDING_LOG, "*4\r\n:4\r\n:7\r\n:2001\r\n:7", false},
      {SPILE_SLIDING_LOG, "*4\r\n:3\r\n:0\r\n:7\r\n:8", false},
      {SPILE_SLIDING_LOG, "*4\r\n:3\r\n:0\r\n:7\r\n:-1", false},
      {SPILE_SLIDING_LOG, "*3\r\n:3\r\n:0\r\n:7", false},
  };
  for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
    spile_spec spec = spec_of(5, 5, 1000);
    spec.algorithm = windows[i].algorithm;
    spec.shape = (spile_shape){.capacity = 5, .refill = 1, .period_ms = 1000};
    spile__spec_finish(&spec);
    char bytes[128];
    (void)snprintf(bytes, sizeof(bytes), "%s\r\n", windows[i].reply);
    const standin_answer answers[] = {{.bytes = bytes}};
    redis_standin *standin = standin_start(NULL, answers, 1);
    spile_store *store = store_open(standin_uri(standin), false);
    answer got = store_take(store, "k", &spec, 2, SPILE_STORE_TIME);
    if (windows[i].good)
      cr_expect(got.code > 0, "row %zu: %s", i, got.error.message);
    else
      cr_expect(got.code == SPILE_EUNAVAILABLE && got.error.reason == SPILE_REASON_PROTOCOL, "row %zu", i);
    store_close(store);
    standin_stop(standin);
  }
}

Test(redis_replies, every_error_of_the_table_is_tried_here) {
  size_t n;
  const spile__redis_refusal *refusals = spile__redis_refusals(&n);
  for (size_t i = 0; i < n; i++) {
    size_t row = 0;
    while (row < N_ROWS && (rows[row].reply[0] != '-' || spile__redis_refusal_of(rows[row].reply + 1) != &refusals[i]))
      row++;
    cr_expect(row < N_ROWS, "no reply here is a %s", refusals[i].word);
  }
}

#define SHA_PLACE " script: 0123456789abcdef0123456789abcdef01234567, on @user_script:1."

/* A decision keeps 127 characters of a message, which the place in the script would fill. */
Test(redis_replies, the_advice_reaches_a_decision_whatever_the_server_says) {
  static const struct {
    const char *reply;
    const char *message; /* NULL: any that ends in the advice */
  } told[] = {
      {"OOM command not allowed when used memory > 'maxmemory'." SHA_PLACE,
       "the server says \"OOM command not allowed when used memory > 'maxmemory'.\"; give the server more memory"},
      {"WRONGTYPE Operation against a key holding the wrong kind of value" SHA_PLACE,
       "the server says \"WRONGTYPE Operation against a key holding the wrong kind of value\"; "
       "use another key prefix, or remove the key"},
      {"ERR spile: there are four arguments a key" SHA_PLACE,
       "the server says \"ERR spile: there are four arguments a key\"; nothing was charged"},
      {"NOPERM this user has no permissions to run the 'evalsha' command",
       "the server says \"NOPERM this user has no permissions to run the 'evalsha' command\"; give it the rights of "
       "docs/stores.md"},
      {"NOPERM ACL failure in script: User alice has no permissions to run the 'pexpiretime' command" SHA_PLACE,
       "the server says \"User alice has no permissions to run the 'pexpiretime' command\"; give it the rights of "
       "docs/stores.md"},
      {"ERR The user executing the script can't run this command or subcommand" SHA_PLACE,
       "the server says \"ERR The user executing the script can't run this command or subcommand\"; give it the rights "
       "of "
       "docs/stores.md"},
      {LUA_5 "@user_script: 1: -READONLY You can't write against a read only replica.",
       "the server says \"READONLY You can't write against a read only replica.\"; point the address at the primary"},
  };
  spile__redis_names names = {.peers.n = 1};
  spile__redis_link link = {.handle = -1, .names = &names, .generation = 1};
  cr_assert(eq(int, pthread_mutex_init(&names.lock, NULL), 0));
  size_t n;
  const spile__redis_refusal *refusals = spile__redis_refusals(&n);
  const size_t n_told = sizeof(told) / sizeof(told[0]);
  for (size_t i = 0; i < n_told + n; i++) {
    char text[400];
    (void)snprintf(text, sizeof(text),
                   i < n_told
                       ? "%s"
                       : "%s 0123456789 0123456789 0123456789 0123456789 0123456789"
                         " 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789" SHA_PLACE,
                   i < n_told ? told[i].reply : refusals[i - n_told].word);
    redisReply reply = {.type = REDIS_REPLY_ERROR, .str = text, .len = strlen(text)};
    spile_error error = {0};
    cr_expect(eq(int, spile__redis_link_refused(&link, &reply, &error), SPILE_EUNAVAILABLE));
    cr_expect(le(sz, strlen(error.message), sizeof(((spile_decision *)0)->detail) - 1), "%s", error.message);
    if (i < n_told) {
      cr_expect(eq(str, error.message, (char *)told[i].message));
    } else {
      const char *advice = refusals[i - n_told].advice;
      cr_expect(strcmp(error.message + strlen(error.message) - strlen(advice), advice) == 0, "%s", error.message);
    }
  }
  (void)pthread_mutex_destroy(&names.lock);
}

Test(redis_replies, a_node_of_a_cluster_is_told_apart_from_a_server) {
  static const char *const words[] = {"MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "CROSSSLOT k", "CLUSTERDOWN k",
                                      "TRYAGAIN k"};
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
    cr_expect(strstr(spile__redis_refusal_of(words[i])->advice, "node of a cluster") != NULL, "%s", words[i]);
}

/* A vector's script may answer NOSCRIPT too; what was loaded once is not loaded again. */
Test(redis_replies, redis_07_a_script_is_loaded_once_and_the_take_runs) {
  const standin_answer answers[] = {{.bytes = "-NOSCRIPT no\r\n"}, {.bytes = ":0\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 2);
  spile_store *store = store_open(standin_uri(standin), false);
  spile_spec spec = spec_of(5, 1, 1000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  cr_assert(eq(int, standin_takes(standin), 3));
  cr_assert(eq(int, standin_loads(standin), 1));
  store_close(store);
  standin_stop(standin);
}
