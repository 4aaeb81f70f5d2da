/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Redis store against servers that answer badly, late or not at all, and the parts that are pure: names, addresses,
 * frames, the hash of a script.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "backends/redis.h"
#include "backends/sha1.h"
#include "limiter/env.h"
#include "redis_server.h"
#include "redis_standin.h"
#include "redis_store.h"

static spile_item item_of(const char *key, const spile_spec *spec, int64_t cost) {
  return (spile_item){.key = key, .key_len = strlen(key), .spec = spec, .cost = cost};
}

/* ---- Answers that are none ---- */

/* REDIS-06 */
Test(redis_link, redis_06_an_answer_of_the_wrong_form_is_no_decision) {
  static const struct {
    const char *name;
    const char *bytes;
  } rows[] = {
      {"an array for one bucket", "*1\r\n:0\r\n"},
      {"nothing", "$-1\r\n"},
      {"no array", "*-1\r\n"},
      {"a text", "$1\r\n0\r\n"},
      {"a status", "+0\r\n"},
      {"below zero", ":-1\r\n"},
      {"the smallest integer", ":-9223372036854775808\r\n"},
      {"a debt above the deepest and the tolerance", ":6001\r\n"},
      {"the largest integer", ":9223372036854775807\r\n"},
      {"a number with a fraction", ":0.5\r\n"},
      {"an empty number", ":\r\n"},
      {"a number too long", ":00000000000000000000\r\n"},
      {"a type of RESP3", ",0\r\n"},
      {"two answers", ":0\r\n:0\r\n"},
      {"an answer and half of one", ":0\r\n:"},
      {"HTTP", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"},
      {"a line that ends in a bare newline", ":0\n"},
      {"a huge string", "$536870912\r\n"},
      {"a huge array", "*2147483647\r\n"},
      {"a huge array within an array", "*1\r\n*2147483647\r\n"},
      {"a length below nothing", "$-2\r\n"},
      {"a string without its end", "$1\r\n000"},
      {"arrays without end", "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:0\r\n"},
  };
  spile_spec spec = spec_of(5, 1, 1000);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const standin_answer answers[] = {{.bytes = rows[i].bytes}, {.bytes = ":1000\r\n"}};
    redis_standin *standin = standin_start(NULL, answers, 2);
    spile_store *store = store_open(standin_uri(standin), false);
    answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
    cr_expect(got.code == SPILE_EUNAVAILABLE && got.error.reason == SPILE_REASON_PROTOCOL, "%s: code %d, %s: %s",
              rows[i].name, got.code, spile_reason_name(got.error.reason), got.error.message);
    cr_expect(got.decision.remaining == SPILE_UNKNOWN);
    /* The next take is on a new link and in step. */
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
    cr_expect(standin_connections(standin) == 2, "%s: %d connections", rows[i].name, standin_connections(standin));
    store_close(store);
    standin_stop(standin);
  }
}

Test(redis_link, redis_06_a_vector_needs_an_integer_for_each_bucket) {
  static const char *const rows[] = {
      "*2\r\n:0\r\n:0\r\n",                             /* one short */
      "*3\r\n:0\r\n$-1\r\n:0\r\n",                      /* a nil in the middle */
      "*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n",                 /* one too many */
      ":0\r\n",                                         /* one integer */
      "*3\r\n:0\r\n:0\r\n:-1\r\n",                      /* below zero */
      "*3\r\n:0\r\n:0\r\n*1\r\n:0\r\n",                 /* an array within */
      "*3\r\n:0\r\n:0\r\n:6001\r\n",                    /* above the deepest */
      "*0\r\n",                                         /* empty */
      "*65\r\n",                                        /* more than any call asks for */
      "*3\r\n:0\r\n:0\r\n-OOM command not allowed\r\n", /* an error within */
  };
  spile_spec spec = spec_of(5, 1, 1000);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const standin_answer answers[] = {{.bytes = rows[i]}, {.bytes = "*3\r\n:0\r\n:1000\r\n:6000\r\n"}};
    redis_standin *standin = standin_start(NULL, answers, 2);
    spile_store *store = store_open(standin_uri(standin), false);
    spile_item items[3] = {item_of("a", &spec, 1), item_of("b", &spec, 1), item_of("c", &spec, 1)};
    ASSERT_UNAVAILABLE(store_take_items(store, items, 3, SPILE_STORE_TIME), SPILE_REASON_PROTOCOL);
    /* Up to the tolerance a debt is believed: 6,000 owed, room for 4,000. */
    ASSERT_DENIED(store_take_items(store, items, 3, SPILE_STORE_TIME), 2000);
    store_close(store);
    standin_stop(standin);
  }
}

Test(redis_link, a_message_stays_one_short_line) {
  static char bytes[2048];
  bytes[0] = '-';
  memset(bytes + 1, '\x1b', 2000);
  (void)snprintf(bytes + 2001, 8, "\r\n");
  const standin_answer answers[] = {{.bytes = bytes}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  spile_store *store = store_open(standin_uri(standin), false);
  spile_spec spec = spec_of(5, 1, 1000);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_REFUSED);
  cr_assert(strpbrk(got.error.message, "\x1b\r\n") == NULL);
  cr_assert(strlen(got.error.message) < sizeof(got.error.message));
  store_close(store);
  standin_stop(standin);
}

Test(redis_link, redis_07_a_server_that_never_knows_the_script_is_asked_once_more) {
  const standin_answer answers[] = {{.bytes = "-NOSCRIPT No matching script. Please use EVAL.\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  spile_store *store = store_open(standin_uri(standin), false);
  spile_spec spec = spec_of(5, 1, 1000);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_REFUSED);
  cr_assert(eq(int, standin_takes(standin), 2));
  cr_assert(eq(int, standin_loads(standin), 1));
  cr_assert(eq(int, standin_connections(standin), 1));
  store_close(store);
  standin_stop(standin);
}

/* ---- Lost and late answers ---- */

/* REDIS-08 */
Test(redis_link, redis_08_nothing_is_sent_twice) {
  redis_server *server = redis_server_start();
  spile_spec spec = spec_of(5, 1, 3600000);
  static const struct {
    standin_answer lost;
    spile_reason reason;
  } rows[] = {{{.swallow = true, .then = STANDIN_STALL}, SPILE_REASON_TIMEOUT},
              {{.swallow = true, .then = STANDIN_CLOSE}, SPILE_REASON_CLOSED}};
  for (size_t i = 0; i < 2; i++) {
    redis_server_run(server, "FLUSHALL");
    /* The first two make the server know the script. */
    const standin_answer answers[] = {{0}, {0}, rows[i].lost, {0}};
    redis_standin *standin = standin_start(server, answers, 4);
    spile_store *store = store_open(standin_uri(standin), false);
    redis_server_run(server, "SCRIPT FLUSH");
    cr_assert(eq(int, store_take(store, "warm", &spec, 1, SPILE_STORE_TIME).code, SPILE_ALLOWED));
    cr_assert(eq(int, standin_takes(standin), 2));
    answer got = store_take_within(store, "k", &spec, 100);
    ASSERT_UNAVAILABLE(got, rows[i].reason);
    cr_assert(strstr(got.error.message, "not known") != NULL, "%s", got.error.message);
    cr_assert(eq(int, standin_takes(standin), 3));
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
    cr_assert(eq(int, standin_takes(standin), 4));
    store_close(store);
    standin_stop(standin);
  }
  redis_server_free(server);
}

Test(redis_link, a_take_ends_by_its_deadline_however_slowly_the_answer_comes) {
  static const standin_answer rows[] = {
      {.bytes = "", .then = STANDIN_STALL},
      {.bytes = ":", .then = STANDIN_STALL},
      {.bytes = ":100", .then = STANDIN_STALL},
      {.bytes = ":1000\r", .then = STANDIN_STALL},
      {.bytes = "$16\r\n0123", .then = STANDIN_STALL},
      {.bytes = "-ERR and so on ", .then = STANDIN_DRIP},
  };
  spile_spec spec = spec_of(5, 1, 1000);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const standin_answer answers[] = {{.bytes = ":0\r\n"}, rows[i], {.bytes = ":0\r\n"}};
    redis_standin *standin = standin_start(NULL, answers, 3);
    spile_store *store = store_open(standin_uri(standin), false);
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
    answer got = store_take_within(store, "k", &spec, 250);
    ASSERT_UNAVAILABLE(got, SPILE_REASON_TIMEOUT);
    cr_assert(got.took_ms >= 250 && got.took_ms < 5000, "row %zu: %" PRId64 " ms", i, got.took_ms);
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
    cr_assert(eq(int, standin_connections(standin), 2));
    store_close(store);
    standin_stop(standin);
  }
}

Test(redis_link, an_answer_may_come_in_pieces) {
  const standin_answer answers[] = {{.bytes = ":1000\r\n", .then = STANDIN_DRIP}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  spile_store *store = store_open(standin_uri(standin), false);
  spile_spec spec = spec_of(5, 1, 1000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 3);
  store_close(store);
  standin_stop(standin);
}

/* ---- The greeting ---- */

static answer take_after_info(const char *info, char *bytes, size_t size) {
  (void)snprintf(bytes, size, "$%zu\r\n%s\r\n", strlen(info), info);
  const standin_answer answers[] = {{.bytes = ":0\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  standin_set_info(standin, bytes);
  spile_store *store = store_open(standin_uri(standin), false);
  spile_spec spec = spec_of(5, 1, 1000);
  answer out = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  cr_assert(eq(int, standin_takes(standin), out.code == SPILE_ALLOWED));
  store_close(store);
  standin_stop(standin);
  return out;
}

Test(redis_link, a_server_before_7_0_is_refused) {
  char bytes[256];
  ASSERT_ALLOWED(take_after_info("# Server\r\nredis_version:7.0.0\r\n", bytes, sizeof(bytes)), 4);
  ASSERT_ALLOWED(take_after_info("# Server\r\nredis_version:10.2\r\n", bytes, sizeof(bytes)), 4);
  ASSERT_ALLOWED(take_after_info("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n",
                                 bytes, sizeof(bytes)),
                 4);
  answer old = take_after_info("# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n", bytes, sizeof(bytes));
  ASSERT_UNAVAILABLE(old, SPILE_REASON_VERSION);
  cr_assert(strstr(old.error.message, "Redis 6") != NULL && strstr(old.error.message, "7.0") != NULL, "%s",
            old.error.message);
  ASSERT_UNAVAILABLE(take_after_info("# Server\r\n", bytes, sizeof(bytes)), SPILE_REASON_VERSION);
}

Test(redis_link, ops_04_an_answer_that_repeats_the_password_is_not_passed_on) {
  const standin_answer answers[] = {{.bytes = ":0\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  standin_set_auth(standin, "-ERR unknown command 'AUTH', with args beginning with: 'user' 's3cret'\r\n");
  char uri[200];
  (void)snprintf(uri, sizeof(uri), "%s?user=user&password=s3cret", standin_uri(standin));
  spile_store *store = store_open(uri, false);
  spile_spec spec = spec_of(5, 1, 1000);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_AUTH);
  cr_assert(strstr(got.error.message, "s3cret") == NULL, "%s", got.error.message);
  store_close(store);
  standin_stop(standin);
}

Test(redis_link, a_server_that_is_full_of_clients_says_so) {
  redis_server *server = redis_server_start();
  redis_server_run(server, "CONFIG SET maxclients 1");
  spile_store *store = store_open(redis_server_unix_uri(server), false);
  spile_spec spec = spec_of(5, 1, 1000);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  /* It may close before it has read our greeting, and then its reason is lost with the connection. */
  cr_assert(got.code == SPILE_EUNAVAILABLE &&
                (got.error.reason == (int)SPILE_REASON_REFUSED || got.error.reason == (int)SPILE_REASON_CONNECT),
            "%s", got.error.message);
  redis_server_run(server, "CONFIG SET maxclients 100");
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  store_close(store);
  redis_server_free(server);
}

/* ---- Addresses ---- */

Test(redis_link, ops_04_a_server_that_is_not_there_is_told_without_the_password) {
  spile_store *store = store_open("redis://user:s3cret@127.0.0.1:1", false);
  spile_spec spec = spec_of(5, 1, 1000);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_CONNECT);
  cr_assert(strstr(got.error.message, "s3cret") == NULL && strstr(got.error.message, "127.0.0.1:1") != NULL, "%s",
            got.error.message);
  store_close(store);
  store = store_open("redis+unix:///nonexistent/redis.sock", false);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_CONNECT);
  store_close(store);
}

Test(redis_link, a_name_without_an_address_opens_and_says_so) {
  spile_store *store = store_open("redis://no..such..host", false);
  spile_spec spec = spec_of(5, 1, 1000);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_RESOLVE);
  cr_assert(got.took_ms < 10000);
  store_close(store);
}

Test(redis_link, addresses_are_tried_in_turn) {
  const standin_answer answers[] = {{.bytes = ":0\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  spile_store *store = store_open(standin_uri(standin), false);
  spile__redis_names *names = &((spile__redis_store *)store)->names;
  names->peers.list[2] = names->peers.list[0];
  for (int i = 0; i < 2; i++) {
    struct sockaddr_un *dead = (struct sockaddr_un *)&names->peers.list[i].address;
    names->peers.list[i] = names->peers.list[2];
    (void)snprintf(dead->sun_path, sizeof(dead->sun_path), "/nonexistent");
  }
  names->peers.n = 3;
  spile_spec spec = spec_of(5, 1, 1000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  /* The next connection begins with the one that answered. */
  cr_assert(eq(sz, names->first, 2));
  store_close(store);
  standin_stop(standin);
}

Test(redis_link, a_clear_believes_only_what_removing_one_key_can_answer) {
  static const struct {
    const char *bytes;
    bool believed;
  } rows[] = {{":0\r\n", true},     {":1\r\n", true},   {":2\r\n", false}, {":-1\r\n", false},
              {":6000\r\n", false}, {"+OK\r\n", false}, {"$-1\r\n", false}};
  spile_spec spec = spec_of(5, 1, 1000);
  const spile_item item = item_of("k", &spec, 1);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    redis_standin *standin = standin_start(NULL, NULL, 0);
    standin_set_unlink(standin, rows[i].bytes);
    spile_store *store = store_open(standin_uri(standin), false);
    spile_error error = {0};
    int result = store->ops->clear(store, &item, store_monotonic_ms() + 20000, &error);
    bool open = ((spile__redis_store *)store)->links[0].handle >= 0;
    cr_expect(result == (rows[i].believed ? SPILE_OK : SPILE_EUNAVAILABLE), "%s: %d", rows[i].bytes, result);
    cr_expect(error.reason == (rows[i].believed ? SPILE_REASON_NONE : SPILE_REASON_PROTOCOL), "%s: %s", rows[i].bytes,
              error.message);
    cr_expect(open == rows[i].believed, "%s: the connection was %s", rows[i].bytes, open ? "kept" : "closed");
    store_close(store);
    standin_stop(standin);
  }
}

/* A unix socket whose server takes nobody in for a while, which connect() tells with EAGAIN instead of waiting. */
typedef struct full_socket {
  int times; /* how often it is still full */
  int tried;
  int64_t paused_ms;
} full_socket;

static int full_connect(void *user, const spile__redis_peer *peer, bool *pending) {
  full_socket *full = user;
  full->tried++;
  *pending = false;
  if (full->times == 0)
    return spile__redis_sockets.connect(user, peer, pending);
  full->times--;
  return -EAGAIN;
}

static int full_wait(void *user, int handle, bool writable, int64_t timeout_ms) {
  full_socket *full = user;
  if (handle < 0)
    full->paused_ms += timeout_ms;
  return spile__redis_sockets.wait(user, handle, writable, timeout_ms);
}

Test(redis_link, a_unix_socket_that_is_full_is_tried_again_until_the_deadline) {
  const standin_answer answers[] = {{.bytes = ":0\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  spile__redis_transport transport = spile__redis_sockets;
  transport.connect = full_connect;
  transport.wait = full_wait;
  full_socket full = {.times = 6};
  spile_store *store = store_open_over(standin_uri(standin), 1, &transport, &full);
  spile_spec spec = spec_of(5, 1, 1000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
  cr_assert(eq(int, full.tried, 7));
  /* 1 + 2 + 4 + 8 + 8 + 8 */
  cr_assert(eq(i64, full.paused_ms, 31));
  store_close(store);

  full = (full_socket){.times = INT32_MAX};
  store = store_open_over(standin_uri(standin), 1, &transport, &full);
  answer got = store_take_within(store, "k", &spec, 200);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_CONNECT);
  cr_assert(strstr(got.error.message, "takes nobody in; nothing was charged; look whether it is stopped") != NULL, "%s",
            got.error.message);
  cr_assert(got.late_us >= -1000 && got.took_ms < 5000, "%" PRId64 " ms", got.took_ms);
  /* Each try but the last was followed by a pause. */
  cr_assert(full.tried <= 200 / 8 + 5, "tried %d times in 200 ms", full.tried);
  cr_assert(eq(int, standin_connections(standin), 1));
  store_close(store);
  standin_stop(standin);
}

Test(redis_link, an_address_that_cannot_be_read_is_refused_without_quoting_it) {
  static const char *const rows[] = {
      "redis://",
      "redis://:6379",
      "redis://:s3cret@",
      "redis://user@127.0.0.1",
      "redis://user:s3cret%zz@127.0.0.1",
      "redis://user:s3cret%00@127.0.0.1",
      "redis://user:s3cret/x@127.0.0.1",
      "redis://user:s3cret#x@127.0.0.1",
      "redis://127.0.0.1:0",
      "redis://127.0.0.1:65536",
      "redis://127.0.0.1:s3cret",
      "redis://127.0.0.1:6379x",
      "redis://::1:6379",
      "redis://[::1",
      "redis://[::1]6379",
      "redis://127.0.0.1/s3cret",
      "redis://127.0.0.1/-1",
      "redis://127.0.0.1/2147483648",
      "redis://127.0.0.1/0/1",
      "redis://127.0.0.1?db=1",
      "redis+unix://",
      "redis+unix://relative/path",
      "redis+unix:///a%0",
      "redis+unix:///a?db=x",
      "redis+unix:///a?db",
      "redis+unix:///a?s3cret=1",
      "redis+unix:///a?password=s3cret%zz",
      "redis+unix:///a?user=u",
      "redis+unix:///"
      "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
      "01234567",
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_store *store = NULL;
    spile_error error = {0};
    int result = store_try_open(&store, rows[i], false, &error);
    cr_expect(result == SPILE_ECONFIG && store == NULL, "%s: %d", rows[i], result);
    cr_expect(error.code == SPILE_ECONFIG && error.message[0] != '\0', "%s: no message", rows[i]);
    cr_expect(strstr(error.message, "s3cret") == NULL, "%s: %s", rows[i], error.message);
  }
}

Test(redis_link, an_address_is_read_in_all_its_parts) {
  spile__redis_address address = {0};
  spile_error error = {0};
  cr_assert(eq(int, spile__redis_address_parse(&address, "us%40er:p%3Aw:x@[::1]:7000/12", false, &error), SPILE_OK));
  cr_assert(eq(str, address.user, "us@er"));
  cr_assert(eq(str, address.password, "p:w:x"));
  cr_assert(eq(str, address.target, "[::1]:7000"));
  cr_assert(eq(i64, address.database, 12));
  cr_assert(eq(sz, address.peers.n, 1));
  cr_assert(eq(str, address.host, ""));
  address = (spile__redis_address){0};
  cr_assert(eq(int, spile__redis_address_parse(&address, ":pw@127.0.0.1/", false, &error), SPILE_OK));
  cr_assert(eq(str, address.user, ""));
  cr_assert(eq(str, address.password, "pw"));
  cr_assert(eq(str, address.target, "127.0.0.1:6379"));
  address = (spile__redis_address){0};
  cr_assert(eq(int, spile__redis_address_parse(&address, "/a%20b?db=3&user=u&password=p%26", true, &error), SPILE_OK));
  cr_assert(eq(str, address.user, "u"));
  cr_assert(eq(str, address.password, "p&"));
  cr_assert(eq(str, address.target, "/a b"));
  cr_assert(eq(i64, address.database, 3));
  address = (spile__redis_address){0};
  cr_assert(eq(int, spile__redis_address_parse(&address, "Redis.Example", false, &error), SPILE_OK));
  cr_assert(eq(str, address.host, "Redis.Example"));
  cr_assert(eq(str, address.port, "6379"));
  cr_assert(eq(sz, address.peers.n, 0));
}

/* ---- Names ---- */

Test(redis_link, a_name_comes_apart_into_what_it_was_made_of) {
  uint64_t state = 1;
  for (int i = 0; i < 20000; i++) {
    unsigned char key[24];
    unsigned char name[24];
    size_t lens[2];
    for (int part = 0; part < 2; part++) {
      state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
      lens[part] = 1 + (size_t)(state >> 60);
      for (size_t j = 0; j < lens[part]; j++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        /* Half of them from the bytes that mean something. */
        unsigned char c = (unsigned char)(state >> 40);
        (part == 0 ? key : name)[j] = (state >> 63) != 0 ? c : (unsigned char)"{}:%0A25"[c & 7];
      }
    }
    spile_spec spec = {.name = (char *)name, .name_len = lens[1], .algorithm = (spile_algorithm)(1 + i % 5)};
    spile_item item = {.key = key, .key_len = lens[0], .spec = &spec};
    char text[256];
    bool simulated = i % 2 == 0;
    const char *prefix = i % 3 == 0 ? "spile-sim" : "rl";
    size_t len = spile__redis_key_encode(text, prefix, simulated, &item);
    cr_assert(len <= spile__redis_key_size(prefix, &item));
    spile__redis_key out;
    cr_assert(spile__redis_key_decode(text, len, &out));
    cr_assert(out.simulated == simulated);
    cr_assert(out.prefix_len == strlen(prefix) && memcmp(out.prefix, prefix, out.prefix_len) == 0);
    cr_assert(out.key_len == lens[0] && memcmp(out.key, key, lens[0]) == 0);
    cr_assert(out.name_len == lens[1] && memcmp(out.name, name, lens[1]) == 0);
    cr_assert(out.algorithm == spec.algorithm);
  }
}

/* The slot of a key in a cluster: CRC-16/XMODEM of its hash tag, or of all of it (Redis Cluster specification). */
static unsigned slot_of(const char *key, size_t len) {
  const char *open = memchr(key, '{', len);
  const char *close = open != NULL ? memchr(open, '}', (size_t)(key + len - open)) : NULL;
  if (close != NULL && close > open + 1) {
    key = open + 1;
    len = (size_t)(close - key);
  }
  unsigned crc = 0;
  for (size_t i = 0; i < len; i++) {
    crc ^= (unsigned)(unsigned char)key[i] << 8;
    for (int bit = 0; bit < 8; bit++)
      crc = ((crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0)) & 0xffff;
  }
  return crc % 16384;
}

Test(redis_link, redis_12_all_buckets_of_a_key_share_a_slot_and_no_two_keys_a_bucket) {
  static const struct {
    const char *text;
    unsigned slot;
  } known[] = {{"123456789", 12739}, {"foo{bar}{zap}", 5061}, {"foo{{bar}}zap", 4015},
               {"foo{}{bar}", 8363}, {"A}B{C", 7939},         {"{test", 10879}};
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
    cr_assert(slot_of(known[i].text, strlen(known[i].text)) == known[i].slot, "%s", known[i].text);

  static const char *const keys[] = {"acme", "a}b", "{a", "a{b}c", "a", "b", "a%7Db", "{}", "}{", "a:b"};
  static const char *const names[] = {"POST /search", "{x}", "}", "a}:b"};
  enum { KEYS = sizeof(keys) / sizeof(keys[0]), NAMES = sizeof(names) / sizeof(names[0]) };
  char made[KEYS * NAMES][128] = {{0}};
  for (size_t i = 0; i < KEYS * NAMES; i++) {
    spile_spec spec = {
        .name = names[i % NAMES], .name_len = strlen(names[i % NAMES]), .algorithm = (spile_algorithm)(1 + i % 5)};
    const char *key = keys[i / NAMES];
    spile_item item = {.key = key, .key_len = strlen(key), .spec = &spec};
    size_t len = spile__redis_key_encode(made[i], "rl", false, &item);
    size_t first = i / NAMES * NAMES;
    cr_assert(slot_of(made[i], len) == slot_of(made[first], strlen(made[first])), "%s and %s", made[i], made[first]);
    for (size_t j = 0; j < i; j++)
      cr_assert(strcmp(made[j], made[i]) != 0, "%s twice", made[i]);
  }
}

Test(redis_link, what_is_not_a_name_of_ours_does_not_come_apart) {
  static const char *const rows[] = {
      "",
      "rl",
      "rl:{k}",
      "rl:{k}:",
      "rl:{}:n",
      ":{k}:n",
      "rl{k}:n",
      "rl:{k}n",
      "rl:{k:n",
      "a:rl:{k}:n",
      "rl:{k}:n:algo",
      "rl:{k}:n:",
      "rl:{k}:n:token_bucket",
      "rl:{k}:n:fixed_window:",
      "rl:{k}:n:fixed_window:fixed_window",
      "rl:{%6B}:n",
      "rl:{%7b}:n",
      "rl:{%}:n",
      "rl:{%7}:n",
      "rl:{a{b}:n",
      "rl:{a}b}:n",
      "rl:{k}:%",
      "rl:{k}:\xff",
      "rl:{a\tb}:n",
      "spile-sim:rl",
      "spile-sim:a:b:{k}:n",
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[64];
    spile__redis_key out;
    (void)snprintf(text, sizeof(text), "%s", rows[i]);
    cr_expect(spile__redis_key_decode(text, strlen(text), &out) == false, "\"%s\"", rows[i]);
  }
}

/* ---- Frames and the hash ---- */

/* A reply is found to end at the same place however it is cut. */
Test(redis_link, a_reply_ends_where_it_ends_however_it_arrives) {
  static const char text[] = "*4\r\n:1\r\n$4\r\na\r\nb\r\n*2\r\n+OK\r\n$-1\r\n-ERR x\r\n:7\r\n";
  const spile__redis_bounds bounds = {.bulk_max = 4, .elements_max = 4, .total_max = 64};
  size_t end = sizeof(text) - 1 - strlen(":7\r\n");
  for (size_t step = 1; step < sizeof(text); step++) {
    spile__redis_frame frame = {0};
    int complete = 0;
    for (size_t len = 0; complete == 0 && len <= end; len += step)
      complete = spile__redis_frame_scan(&frame, text, len, &bounds);
    if (complete == 0)
      complete = spile__redis_frame_scan(&frame, text, sizeof(text) - 1, &bounds);
    cr_assert(complete == 1 && frame.at == end, "step %zu: %d at %zu", step, complete, frame.at);
  }
}

Test(redis_link, a_frame_at_its_bounds_passes_and_one_beyond_does_not) {
  const spile__redis_bounds bounds = {.bulk_max = 4, .elements_max = 2, .total_max = 20};
  static const struct {
    const char *text;
    int want;
  } rows[] = {
      {"$4\r\n0123\r\n", 1},
      {"$5\r\n", -1},
      {"*2\r\n:1\r\n:2\r\n", 1},
      {"*3\r\n", -1},
      {"*2\r\n+1234567890\r\n+\r\n", 1},
      {"*2\r\n+12345678901\r\n+\r\n", -1},
      {":9223372036854775807\r\n", -1}, /* longer than 20 bytes */
      {":-123456789012345\r\n", 1},
      {":1", 0},
      {":1\r", 0},
      {"!1\r\n", -1},
      {"\r\n", -1},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile__redis_frame frame = {0};
    int got = spile__redis_frame_scan(&frame, rows[i].text, strlen(rows[i].text), &bounds);
    cr_expect(got == rows[i].want, "\"%s\": %d", rows[i].text, got);
  }
  static char line[5000];
  memset(line, '+', sizeof(line));
  const spile__redis_bounds wide = {.bulk_max = 4, .elements_max = 2, .total_max = 100000};
  spile__redis_frame frame = {0};
  cr_assert(eq(int, spile__redis_frame_scan(&frame, line, sizeof(line), &wide), -1));
}

/* The vectors of RFC 3174 and FIPS 180, and the lengths around a block's end against the same text by sha1sum. */
Test(redis_link, sha1_is_that_of_the_standard) {
  char hex[41];
  spile__sha1_hex("abc", 3, hex);
  cr_assert(eq(str, hex, "a9993e364706816aba3e25717850c26c9cd0d89d"));
  spile__sha1_hex("", 0, hex);
  cr_assert(eq(str, hex, "da39a3ee5e6b4b0d3255bfef95601890afd80709"));
  spile__sha1_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
  cr_assert(eq(str, hex, "84983e441c3bd26ebaae4aa1f95129e5e54670f1"));
  static char text[1000000];
  memset(text, 'a', sizeof(text));
  spile__sha1_hex(text, sizeof(text), hex);
  cr_assert(eq(str, hex, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"));
  spile__sha1_hex(text, 55, hex);
  cr_assert(eq(str, hex, "c1c8bbdc22796e28c0e15163d20899b65621d65a"));
  spile__sha1_hex(text, 64, hex);
  cr_assert(eq(str, hex, "0098ba824b5c16427bd7a1122a5a442a25ec644d"));
}

/* ---- Memory ---- */

static int allocations_left;

static void *allocate_some(void *user, void *block, size_t size) {
  (void)user;
  if (size == 0) {
    free(block);
    return NULL;
  }
  return allocations_left-- > 0 ? realloc(block, size) : NULL;
}

/* REDIS-14: each allocation of the store fails once; a take then says so, and the one after it works. */
Test(redis_link, redis_14_a_failed_allocation_is_an_error_and_no_more) {
  const standin_answer answers[] = {{.bytes = ":0\r\n"}};
  redis_standin *standin = standin_start(NULL, answers, 1);
  spile_env env;
  spile__env_init(&env);
  env.allocate = allocate_some;
  spile_spec spec = spec_of(5, 1, 1000);
  int failures = 0;
  for (int n = 0; n < 20; n++) {
    spile__store_config config = {
        .address = standin_uri(standin) + strlen("redis+unix://"), .env = &env, .key_prefix = "rl"};
    spile_store *store;
    spile_error error = {0};
    allocations_left = n;
    int result = spile__redis_open(&store, &config, true, &error);
    if (result != SPILE_OK) {
      cr_assert(result == SPILE_ENOMEM && store == NULL && n == 0);
      failures++;
      continue;
    }
    answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
    cr_assert(got.code == SPILE_ALLOWED || got.code == SPILE_ENOMEM, "%d: %s", got.code, got.error.message);
    failures += got.code == SPILE_ENOMEM;
    allocations_left = 1000;
    ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 4);
    store_close(store);
  }
  /* The store itself, names, greeting, command, answer. */
  cr_assert(eq(int, failures, 5));
  standin_stop(standin);
}
