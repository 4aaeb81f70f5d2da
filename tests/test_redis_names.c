/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host name whose answer changes, fails or takes long, while takes go on. The name server is the test's own, put into
 * the transport.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/redis.h"
#include "redis_server.h"
#include "redis_store.h"

#define NAME_URI "redis://redis.test:6379"

/* Behind the longest of what is promised: real decisions within a second after the fault has ended. */
/* The library's second, and what a busy machine may add. */
#define RECOVERY_MAX_MS (1000 + 2000)

typedef struct name_server {
  atomic_int port;  /* of the only address; 0: the name has none */
  atomic_bool held; /* it answers when this is over */
  atomic_int asked;
  atomic_int answered;
} name_server;

static const char *name_resolve(void *user, const char *host, const char *port, spile__redis_peers *out) {
  name_server *names = user;
  cr_assert(strcmp(host, "redis.test") == 0 && strcmp(port, "6379") == 0);
  atomic_fetch_add(&names->asked, 1);
  while (atomic_load(&names->held))
    (void)poll(NULL, 0, 1);
  int number = atomic_load(&names->port);
  atomic_fetch_add(&names->answered, 1);
  if (number == 0)
    return "Name or service not known";
  struct sockaddr_in *address = (struct sockaddr_in *)&out->list[0].address;
  *address = (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons((uint16_t)number), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  out->list[0].address_len = sizeof(*address);
  out->n = 1;
  return NULL;
}

static spile__redis_transport transport;

static spile_store *name_open(name_server *names, int connections) {
  transport = spile__redis_sockets;
  transport.resolve = name_resolve;
  return store_open_over(NAME_URI, connections, &transport, names);
}

static int port_of(const redis_server *server) {
  return atoi(strrchr(redis_server_tcp_uri(server), ':') + 1);
}

/* Takes until one is answered by the store. @return how long that took since the call */
static int64_t take_until_answered(spile_store *store, const spile_spec *spec, int *failures) {
  int64_t start_ms = store_monotonic_ms();
  *failures = 0;
  for (;;) {
    answer got = store_take_within(store, "k", spec, 50);
    int64_t took_ms = store_monotonic_ms() - start_ms;
    if (got.code > 0)
      return took_ms;
    ++*failures;
    cr_assert(took_ms < 20000, "no answer for %" PRId64 " ms: %s", took_ms, got.error.message);
    (void)poll(NULL, 0, 10);
  }
}

/* The thread of a look-up works on what the test lends it. */
static void lookups_end(name_server *names) {
  while (atomic_load(&names->answered) != atomic_load(&names->asked))
    (void)poll(NULL, 0, 1);
}

static spile__redis_link *link_borrow(spile_store *store) {
  spile__redis_link *link;
  spile_error error = {0};
  cr_assert(spile__redis_borrow((spile__redis_store *)store, INT64_MAX, &link, &error) == SPILE_OK);
  return link;
}

/* Each of the four links gets a connection, by one take each. */
static void links_connect(spile_store *store, const spile_spec *spec) {
  spile__redis_link *links[4];
  for (int i = 0; i < 4; i++) {
    cr_assert(store_take(store, "k", spec, 1, SPILE_STORE_TIME).code == SPILE_ALLOWED);
    links[i] = link_borrow(store);
    cr_assert(links[i]->handle >= 0);
  }
  for (int i = 0; i < 4; i++)
    spile__redis_return((spile__redis_store *)store, links[i]);
}

/* REDIS-10: the primary becomes a replica and stays up; the name moves on. */
Test(redis_names, redis_10_a_promoted_replica_under_the_same_name_is_found_without_a_restart) {
  redis_server *p = redis_server_start();
  redis_server *q = redis_server_start();
  name_server names = {.port = port_of(p)};
  spile_store *store = name_open(&names, 4);
  spile_spec spec = spec_of(1000, 1, 3600000);

  links_connect(store, &spec);
  redis_server_run(p, "REPLICAOF 127.0.0.1 %d", port_of(q));
  int64_t start_ms = store_monotonic_ms();
  while (store_monotonic_ms() - start_ms < 1500 || atomic_load(&names.asked) < 3) {
    ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_READONLY);
    cr_assert(store_monotonic_ms() - start_ms < 20000, "the name is not looked up again");
    (void)poll(NULL, 0, 10);
  }
  int asked = atomic_load(&names.asked);
  int64_t asked_ms = store_monotonic_ms() - start_ms;
  /* Once when it was opened, once at first, and once after each pause. */
  cr_assert(asked <= 2 + asked_ms / 500, "the name was looked up %d times in %" PRId64 " ms", asked, asked_ms);

  atomic_store(&names.port, port_of(q));
  int failures;
  int64_t took_ms = take_until_answered(store, &spec, &failures);
  cr_log_info("promoted replica: first real decision %" PRId64 " ms after the name moved, %d takes failed meanwhile",
              took_ms, failures);
  cr_assert(took_ms < RECOVERY_MAX_MS, "%" PRId64 " ms", took_ms);
  /* The healthy name is left alone. */
  asked = atomic_load(&names.asked);
  for (int i = 0; i < 4; i++) {
    answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
    cr_assert(got.code == SPILE_ALLOWED, "%s", got.error.message);
    (void)link_borrow(store);
  }
  cr_assert(eq(int, atomic_load(&names.asked), asked));
  lookups_end(&names);
  store_close(store);
  redis_server_free(p);
  redis_server_free(q);
}

/* One answer tells of all connections: the others to the same server are not tried one by one. */
Test(redis_names, redis_10_one_take_and_not_one_for_each_connection_finds_the_replica) {
  redis_server *p = redis_server_start();
  redis_server *q = redis_server_start();
  name_server names = {.port = port_of(p)};
  spile_store *store = name_open(&names, 4);
  spile_spec spec = spec_of(1000, 1, 3600000);
  links_connect(store, &spec);
  redis_server_run(p, "REPLICAOF 127.0.0.1 %d", port_of(q));
  atomic_store(&names.port, port_of(q));
  /* Past the pause between two look-ups. */
  (void)poll(NULL, 0, 600);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_READONLY);
  for (int i = 0; i < 4; i++) {
    answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
    cr_assert(got.code == SPILE_ALLOWED, "take %d: %s", i, got.error.message);
    (void)link_borrow(store);
  }
  cr_assert(eq(int, atomic_load(&names.asked), 2));
  lookups_end(&names);
  store_close(store);
  redis_server_free(p);
  redis_server_free(q);
}

/* Takes are refused and peeks answered, over and over. @return how many connections that cost */
static int64_t mixed_traffic(spile_store *store, redis_server *server, const spile_spec *spec, int64_t for_ms) {
  redis_server_run(server, "CONFIG RESETSTAT");
  int rounds = 0;
  for (int64_t until_ms = store_monotonic_ms() + for_ms; store_monotonic_ms() < until_ms || rounds < 200; rounds++) {
    ASSERT_UNAVAILABLE(store_take(store, "k", spec, 1, SPILE_STORE_TIME), SPILE_REASON_READONLY);
    answer got = store_peek(store, "k", spec, 1, SPILE_STORE_TIME);
    cr_assert(got.code == SPILE_ALLOWED, "%s", got.error.message);
  }
  redisReply *info = redis_server_command(server, "INFO stats");
  const char *at = strstr(info->str, "total_connections_received:");
  cr_assert(at != NULL);
  int64_t connections = atoll(at + strlen("total_connections_received:"));
  freeReplyObject(info);
  return connections;
}

/* The peeks that are answered between keep the breaker closed, so nothing else would hold the connects back. */
Test(redis_names, redis_10_connects_do_not_follow_the_takes_that_a_replica_refuses) {
  redis_server *server = redis_server_start();
  spile_store *store = store_open(redis_server_tcp_uri(server), false);
  spile_spec spec = spec_of(1000, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 999);
  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
  int64_t start_ms = store_monotonic_ms();
  int64_t connections = mixed_traffic(store, server, &spec, 2000);
  int64_t took_ms = store_monotonic_ms() - start_ms;
  /* At once, and then after each pause. */
  cr_assert(connections >= 2 && connections <= 1 + took_ms / 800, "%" PRId64 " connections in %" PRId64 " ms",
            connections, took_ms);
  /* The connection was kept, so a replica that is promoted where it stands is used by the next take. */
  redis_server_run(server, "REPLICAOF NO ONE");
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  cr_assert(got.code == SPILE_ALLOWED, "%s", got.error.message);
  store_close(store);
  redis_server_free(server);
}

/* An address that is given to another host: only a new connection leads there. */
static atomic_int moved_port;

static int moved_connect(void *user, const spile__redis_peer *peer, bool *pending) {
  spile__redis_peer moved = *peer;
  ((struct sockaddr_in *)&moved.address)->sin_port = htons((uint16_t)atomic_load(&moved_port));
  return spile__redis_sockets.connect(user, &moved, pending);
}

Test(redis_names, redis_10_a_primary_that_takes_the_address_over_is_found) {
  redis_server *p = redis_server_start();
  redis_server *q = redis_server_start();
  transport = spile__redis_sockets;
  transport.connect = moved_connect;
  atomic_store(&moved_port, port_of(p));
  spile_store *store = store_open_over("redis://127.0.0.1:1", 4, &transport, NULL);
  spile_spec spec = spec_of(1000, 1, 3600000);
  links_connect(store, &spec);
  redis_server_run(p, "REPLICAOF 127.0.0.1 1");
  (void)mixed_traffic(store, p, &spec, 100);
  atomic_store(&moved_port, port_of(q));
  int failures;
  int64_t took_ms = take_until_answered(store, &spec, &failures);
  cr_log_info("address taken over: first real decision after %" PRId64 " ms, %d takes failed meanwhile", took_ms,
              failures);
  cr_assert(took_ms < RECOVERY_MAX_MS, "%" PRId64 " ms", took_ms);
  store_close(store);
  redis_server_free(p);
  redis_server_free(q);
}

Test(redis_names, a_server_that_moved_to_another_address_is_found) {
  redis_server *p = redis_server_start();
  redis_server *q = redis_server_start();
  name_server names = {.port = port_of(p)};
  spile_store *store = name_open(&names, 0);
  spile_spec spec = spec_of(1000, 1, 3600000);
  ASSERT_ALLOWED(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), 999);
  redis_server_stop(p);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_CONNECT);
  atomic_store(&names.port, port_of(q));
  int failures;
  int64_t took_ms = take_until_answered(store, &spec, &failures);
  cr_assert(took_ms < RECOVERY_MAX_MS, "%" PRId64 " ms", took_ms);
  lookups_end(&names);
  store_close(store);
  redis_server_free(p);
  redis_server_free(q);
}

Test(redis_names, a_name_without_an_address_gets_one_later) {
  redis_server *server = redis_server_start();
  name_server names = {.port = 0};
  spile_store *store = name_open(&names, 0);
  cr_assert(eq(int, atomic_load(&names.asked), 1));
  spile_spec spec = spec_of(1000, 1, 3600000);
  answer got = store_take(store, "k", &spec, 1, SPILE_STORE_TIME);
  ASSERT_UNAVAILABLE(got, SPILE_REASON_RESOLVE);
  cr_assert(strstr(got.error.message, "Name or service not known") != NULL, "%s", got.error.message);
  atomic_store(&names.port, port_of(server));
  int failures;
  int64_t took_ms = take_until_answered(store, &spec, &failures);
  cr_assert(took_ms < RECOVERY_MAX_MS, "%" PRId64 " ms", took_ms);
  /* A name server that then fails takes nothing away. */
  atomic_store(&names.port, 0);
  redis_server_restart(server);
  cr_assert(take_until_answered(store, &spec, &failures) < RECOVERY_MAX_MS);
  lookups_end(&names);
  store_close(store);
  redis_server_free(server);
}

/* A take with little time. On a busy machine that may be over before anything was tried. */
static answer take_briefly(spile_store *store, const spile_spec *spec, int reason) {
  answer got = store_take_within(store, "k", spec, 25);
  bool too_late = got.error.reason == SPILE_REASON_BUSY && got.late_us >= 0;
  cr_assert(got.code == SPILE_EUNAVAILABLE && (got.error.reason == reason || too_late), "code %d, %s: %s", got.code,
            spile_reason_name(got.error.reason), got.error.message);
  return got;
}

Test(redis_names, a_slow_name_server_delays_no_take_beyond_its_deadline) {
  redis_server *server = redis_server_start();
  name_server names = {.port = 1};
  spile_store *store = name_open(&names, 0);
  spile_spec spec = spec_of(1000, 1, 3600000);
  /* The name server is silent until all takes have ended, so any take that waited for it would never end. */
  atomic_store(&names.held, true);
  int64_t start_ms = store_monotonic_ms();
  int64_t late_us = INT64_MIN;
  /* Past the pause, a take begins the look-up. */
  while (atomic_load(&names.asked) < 2) {
    answer got = take_briefly(store, &spec, SPILE_REASON_CONNECT);
    late_us = got.late_us > late_us ? got.late_us : late_us;
    cr_assert(store_monotonic_ms() - start_ms < 20000);
    (void)poll(NULL, 0, 5);
  }
  atomic_store(&names.port, port_of(server));
  int64_t slowest_ms = 0;
  for (int i = 0; i < 50; i++) {
    answer got = take_briefly(store, &spec, SPILE_REASON_CONNECT);
    late_us = got.late_us > late_us ? got.late_us : late_us;
    slowest_ms = got.took_ms > slowest_ms ? got.took_ms : slowest_ms;
  }
  cr_log_info("slow name server: latest take %" PRId64 " us after its deadline, slowest of those that do not wait "
              "%" PRId64 " ms",
              late_us, slowest_ms);
  /* One look-up at a time, however long it takes. */
  cr_assert(eq(int, atomic_load(&names.asked), 2));
  atomic_store(&names.held, false);
  int failures;
  (void)take_until_answered(store, &spec, &failures);
  lookups_end(&names);
  store_close(store);
  redis_server_free(server);
}

Test(redis_names, closing_does_not_wait_for_a_look_up) {
  name_server names = {.port = 0};
  spile_store *store = name_open(&names, 0);
  spile_spec spec = spec_of(1000, 1, 3600000);
  atomic_store(&names.held, true);
  while (atomic_load(&names.asked) < 2) {
    (void)take_briefly(store, &spec, SPILE_REASON_RESOLVE);
    (void)poll(NULL, 0, 5);
  }
  /* A child has no such thread and closes as well. */
  pid_t child = fork();
  cr_assert(child >= 0);
  if (child == 0) {
    store->ops->close(store, true);
    _exit(0);
  }
  int status;
  cr_assert(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
  store_close(store);
  cr_assert(eq(int, atomic_load(&names.answered), 1));
  atomic_store(&names.held, false);
  lookups_end(&names);
}

Test(redis_names, an_address_in_numbers_and_a_path_are_never_looked_up) {
  static const char *const uris[] = {"redis://127.0.0.1:1", "redis://[::1]:1", "redis+unix:///nonexistent/redis.sock"};
  spile_spec spec = spec_of(1000, 1, 3600000);
  for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
    name_server names = {.port = 1};
    transport = spile__redis_sockets;
    transport.resolve = name_resolve;
    spile_store *store = store_open_over(uris[i], 0, &transport, &names);
    for (int64_t until_ms = store_monotonic_ms() + 700; store_monotonic_ms() < until_ms;) {
      (void)take_briefly(store, &spec, SPILE_REASON_CONNECT);
      (void)poll(NULL, 0, 20);
    }
    cr_assert(eq(int, atomic_load(&names.asked), 0));
    store_close(store);
  }
}

Test(redis_names, a_transport_that_looks_no_names_up_says_so) {
  transport = spile__redis_sockets;
  transport.resolve = NULL;
  spile_store *store = store_open_over(NAME_URI, 0, &transport, NULL);
  spile_spec spec = spec_of(1000, 1, 3600000);
  ASSERT_UNAVAILABLE(store_take(store, "k", &spec, 1, SPILE_STORE_TIME), SPILE_REASON_RESOLVE);
  store_close(store);
}
