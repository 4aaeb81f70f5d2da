/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limits file in front of a server, whole: from the text of the file to the bucket in the store.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/testing.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <spile/http.h>

#include "limits_text.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static const char file[] =
    "{ \"on_store_error\": \"open\", \"key\": [\"tenant\", \"ip\"],\n"
    "  \"named\": { \"login\": { \"capacity\": 2, \"refill\": \"1/m\", \"key\": [\"ip\"], \"on_store_error\": "
    "\"closed\" } },\n"
    "  \"always\": [ { \"name\": \"all\", \"capacity\": 1000, \"refill\": \"1000/15m\", \"key\": [\"ip\"] } ],\n"
    "  \"skip\": [ { \"ip\": \"10.9.0.0/16\" }, { \"header\": \"X-Probe\", \"value\": \"up\" } ],\n"
    "  \"limits\": {\n"
    "    \"default\": { \"capacity\": 60, \"refill\": \"1/s\" },\n"
    "    \"POST /api/search\": { \"capacity\": 20, \"refill\": \"1/2s\" },\n"
    "    \"POST /export\": { \"capacity\": 5, \"refillPerSec\": 0.05, \"cost\": 5 },\n"
    "    \"POST /login\": \"login\", \"POST /reset\": \"login\",\n"
    "    \"GET /health\": \"unlimited\", \"* /admin/*\": \"blocked\" },\n"
    "  \"tiers\": { \"pro\": { \"default\": { \"capacity\": 300, \"refill\": \"300/m\" } } } }\n";

typedef struct server {
  spile_scripted_store *store;
  spile_limiter *limiter;
  spile_http_request request;
  spile_http_response response;
  const char *probe;          /* the header X-Probe */
  const char *forwarded[300]; /* lines of X-Forwarded-For, up to NULL */
  char text[SPILE_HTTP_BUFFER_SIZE];
} server;

static const char *server_header(void *user, const char *name, size_t index) {
  const server *s = user;
  if (strcasecmp(name, "X-Forwarded-For") == 0)
    return s->forwarded[index];
  return index == 0 && strcasecmp(name, "X-Probe") == 0 ? s->probe : NULL;
}

static server *server_start(void) {
  server *s = calloc(1, sizeof(*s));
  cr_assert(s != NULL);
  spile_options options = SPILE_OPTIONS_INIT;
  options.breaker_failures = SPILE_BREAKER_OFF;
  s->store = spile_scripted_store_new();
  cr_assert(eq(int, spile_open_store(&s->limiter, spile_scripted_store_base(s->store), &options, NULL), SPILE_OK));
  spile_limits *limits = limits_of(file);
  cr_assert(eq(int, spile_set_limits(s->limiter, limits, NULL), SPILE_OK));
  spile_limits_unref(limits);
  s->request = (spile_http_request)SPILE_HTTP_REQUEST_INIT;
  s->request.method = "POST";
  s->request.peer = "192.0.2.1";
  s->request.header = server_header;
  s->request.header_user = s;
  s->response = (spile_http_response)SPILE_HTTP_RESPONSE_INIT(s->text, sizeof(s->text));
  return s;
}

static void server_finish(server *s) {
  spile_close(s->limiter);
  free(s);
}

static int check(server *s, const char *method, const char *path) {
  s->request.method = method;
  s->request.path = path;
  return spile_http_check(s->limiter, &s->request, &s->response);
}

/* The first bucket that the last request met, as "NAME of KEY". */
static const char *bucket(const server *s) {
  static char text[SPILE_KEY_LEN_MAX + SPILE_NAME_LEN_MAX + 10];
  const spile_scripted_call *call = spile_scripted_store_call(s->store, spile_scripted_store_calls(s->store) - 1);
  (void)snprintf(text, sizeof(text), "%s of %s", call->items[0].name, call->items[0].key);
  return text;
}

Test(http_file, HTTP_08_every_spelling_of_a_path_meets_the_limit_of_its_route) {
  static const char *const paths[] = {"/api/search",       "/api/search/",  "//api//search",    "/api/./search",
                                      "/api/search?x=1",   "/api/%73earch", "/x/../api/search", "/api/search?",
                                      "/api/search/?a=/b", "/api/search#f", "/%61pi/search"};
  server *s = server_start();
  for (size_t i = 0; i < COUNT(paths); i++) {
    cr_assert(eq(int, check(s, "POST", paths[i]), SPILE_ALLOWED));
    cr_expect(strcmp(bucket(s), "POST /api/search of ip=192.0.2.1") == 0, "%s: %s", paths[i], bucket(s));
  }
  cr_assert(eq(int, check(s, "POST", "/api/searches"), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)bucket(s), "default of ip=192.0.2.1"));
  server_finish(s);
}

Test(http_file, takes_the_cost_the_layers_and_the_tier_of_the_file) {
  server *s = server_start();
  s->request.tenant = "acme";
  cr_assert(eq(int, check(s, "POST", "/export"), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)bucket(s), "POST /export of tenant=acme"));
  const spile_scripted_call *call = spile_scripted_store_call(s->store, 0);
  cr_assert(eq(sz, call->n, (size_t)2));
  cr_assert(eq(i64, call->items[0].cost, 5));
  cr_assert(eq(i64, call->items[0].shape.period_ms, 20000));
  cr_assert(eq(str, (char *)call->items[1].name, "always#all"));
  cr_assert(eq(str, (char *)call->items[1].key, "ip=192.0.2.1"));
  cr_assert(eq(i64, call->items[1].cost, 1));

  cr_assert(eq(int, check(s, "GET", "/x"), SPILE_ALLOWED));
  cr_assert(eq(i64, s->response.decision.capacity, 60));
  s->request.tier = "pro";
  cr_assert(eq(int, check(s, "GET", "/x"), SPILE_ALLOWED));
  cr_assert(eq(i64, s->response.decision.capacity, 300));
  cr_assert(eq(str, (char *)bucket(s), "default of tenant=acme"));
  server_finish(s);
}

Test(http_file, routes_that_name_one_limit_share_its_bucket_and_its_policy) {
  server *s = server_start();
  cr_assert(eq(int, check(s, "POST", "/login"), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)bucket(s), "@login of ip=192.0.2.1"));
  cr_assert(eq(int, check(s, "POST", "/reset"), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)bucket(s), "@login of ip=192.0.2.1"));
  server_finish(s);

  s = server_start();
  cr_assert(spile_scripted_store_answer(s->store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(eq(int, check(s, "POST", "/login"), SPILE_DENIED));
  cr_assert(eq(int, s->response.status, 503));
  cr_assert(spile_scripted_store_answer(s->store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  cr_assert(eq(int, check(s, "POST", "/api/search"), SPILE_ALLOWED));
  cr_assert(eq(int, s->response.status, 200));
  cr_assert(eq(sz, s->response.header_count, (size_t)0));
  server_finish(s);
}

Test(http_file, words_and_skips_are_answered_as_the_file_says) {
  static const struct {
    const char *method;
    const char *path;
    const char *peer;
    const char *probe;
    int result;
    int status;
    bool skipped;
    size_t calls;
  } rows[] = {{"GET", "/health", "192.0.2.1", NULL, SPILE_ALLOWED, 200, false, 1},
              {"GET", "/admin/x", "192.0.2.1", NULL, SPILE_NEVER, 403, false, 0},
              {"GET", "/admin/x", "10.9.1.1", NULL, SPILE_ALLOWED, 200, true, 0},
              {"GET", "/x", "10.9.1.1", NULL, SPILE_ALLOWED, 200, true, 0},
              {"GET", "/x", "::ffff:10.9.1.1", NULL, SPILE_ALLOWED, 200, true, 0},
              /* What a translator carries is not the network that the file exempts. */
              {"GET", "/x", "64:ff9b::10.9.1.1", NULL, SPILE_ALLOWED, 200, false, 1},
              {"GET", "/x", "10.8.1.1", NULL, SPILE_ALLOWED, 200, false, 1},
              {"GET", "/x", "192.0.2.1", "up", SPILE_ALLOWED, 200, true, 0},
              {"GET", "/x", "192.0.2.1", "down", SPILE_ALLOWED, 200, false, 1}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    server *s = server_start();
    s->request.peer = rows[i].peer;
    s->probe = rows[i].probe;
    cr_assert(eq(int, check(s, rows[i].method, rows[i].path), rows[i].result));
    cr_assert(eq(int, s->response.status, rows[i].status));
    cr_assert(s->response.skipped == rows[i].skipped, "row %zu", i);
    cr_assert(eq(sz, spile_scripted_store_calls(s->store), rows[i].calls));
    server_finish(s);
  }
}

/* The proxies are in the network that the file exempts. Who calls through them is not, whatever he writes. */
Test(http_file, HTTP_03_a_client_that_hides_behind_a_proxy_is_counted_as_it_and_not_exempt_as_it) {
  static const struct {
    size_t lines;     /* of the client's own, each with `line` */
    const char *line; /* before that of the proxy */
    const char *last; /* what the proxy adds; NULL: nothing */
    const char *counted;
    bool skipped;
  } rows[] = {{0, "1.1.1.1", "203.0.113.9", "203.0.113.9", false},
              {255, "1.1.1.1", "203.0.113.9", "203.0.113.9", false},
              {256, "1.1.1.1", "203.0.113.9", "10.9.0.2", false},
              {290, "1.1.1.1", "203.0.113.9", "10.9.0.2", false},
              {256, "10.9.0.3", "203.0.113.9", "10.9.0.2", false},
              {40, "10.9.0.3", "10.9.0.4", "10.9.0.3", false},
              {1, "1.1.1.1", "unknown", "10.9.0.2", false},
              /* These two are the proxies' own requests. */
              {0, "1.1.1.1", NULL, "10.9.0.2", true},
              {1, "10.9.0.3", "10.9.0.4", "10.9.0.3", true}};
  static const char *const proxies[] = {"10.9.0.0/24"};
  spile_http_options options = SPILE_HTTP_OPTIONS_INIT;
  options.forwarded = SPILE_HTTP_X_FORWARDED_FOR;
  options.trusted = proxies;
  options.trusted_count = 1;
  spile_http_settings *settings;
  cr_assert(eq(int, spile_http_settings_create(&settings, &options, NULL), SPILE_OK));
  for (size_t i = 0; i < COUNT(rows); i++) {
    server *s = server_start();
    s->request.settings = settings;
    s->request.peer = "10.9.0.2";
    for (size_t j = 0; j < rows[i].lines; j++)
      s->forwarded[j] = rows[i].line;
    s->forwarded[rows[i].lines] = rows[i].last;
    cr_assert(eq(int, check(s, "GET", "/x"), SPILE_ALLOWED));
    cr_expect(strcmp(s->response.client, rows[i].counted) == 0, "row %zu: %s", i, s->response.client);
    cr_expect(s->response.skipped == rows[i].skipped, "row %zu", i);
    cr_expect(eq(sz, spile_scripted_store_calls(s->store), rows[i].skipped ? 0 : 1), "row %zu", i);
    server_finish(s);
  }
  spile_http_settings_free(settings);
}

Test(http_file, HTTP_06_parts_cannot_be_moved_from_subject_to_route) {
  static const struct {
    const char *tenant;
    const char *path;
  } rows[] = {{"a:b", "/c"},   {"a", "/b:c"}, {"1", "/21"}, {"12", "/1"},
              {"x%3Ay", "/r"}, {"x:y", "/r"}, {"a}", "/b"}, {"a", "/}b"}};
  char seen[COUNT(rows)][SPILE_KEY_LEN_MAX];
  spile_options options = SPILE_OPTIONS_INIT;
  server *s = server_start();
  spile_limits *limits =
      limits_of("{\"on_store_error\":\"open\",\"key\":[\"tenant\"],\"limits\":{\"default\":\"blocked\","
                "\"GET /c\":{\"capacity\":1,\"refill\":\"1/s\"},\"GET /b:c\":{\"capacity\":1,\"refill\":\"1/s\"},"
                "\"GET /21\":{\"capacity\":1,\"refill\":\"1/s\"},\"GET /1\":{\"capacity\":1,\"refill\":\"1/s\"},"
                "\"GET /r\":{\"capacity\":1,\"refill\":\"1/s\"},\"GET /b\":{\"capacity\":1,\"refill\":\"1/s\"},"
                "\"GET /}b\":{\"capacity\":1,\"refill\":\"1/s\"}}}");
  cr_assert(eq(int, spile_set_limits(s->limiter, limits, NULL), SPILE_OK));
  /* And in a real store each of them has its own token. */
  spile_limiter *memory;
  cr_assert(eq(int, spile_open(&memory, "memory:?keys=100", &options, NULL), SPILE_OK));
  cr_assert(eq(int, spile_set_limits(memory, limits, NULL), SPILE_OK));
  for (size_t i = 0; i < COUNT(rows); i++) {
    s->request.tenant = rows[i].tenant;
    cr_assert(eq(int, check(s, "GET", rows[i].path), SPILE_ALLOWED));
    strcpy(seen[i], bucket(s));
    for (size_t j = 0; j < i; j++)
      cr_assert(strcmp(seen[i], seen[j]) != 0, "%s twice", seen[i]);
    cr_assert(eq(int, spile_http_check(memory, &s->request, &s->response), SPILE_ALLOWED));
  }
  spile_limits_unref(limits);
  spile_close(memory);
  server_finish(s);
}

/* ---- While limits are exchanged ---- */

typedef struct exchange {
  spile_limiter *limiter;
  spile_limits *files[2];
  atomic_bool done;
} exchange;

static void *exchange_run(void *user) {
  exchange *e = user;
  for (int i = 0; i < 2000; i++)
    cr_assert(eq(int, spile_set_limits(e->limiter, e->files[i % 2], NULL), SPILE_OK));
  atomic_store(&e->done, true);
  return NULL;
}

Test(http_file, CONF_04_answers_while_limits_are_exchanged) {
  server *s = server_start();
  exchange e = {.limiter = s->limiter};
  e.files[0] = limits_of(
      "{\"on_store_error\":\"open\",\"key\":\"ip\",\"limits\":{\"default\":{\"capacity\":60,\"refill\":\"1/s\"}}}");
  e.files[1] = limits_of(
      "{\"on_store_error\":\"open\",\"key\":\"ip\",\"limits\":{\"default\":{\"capacity\":61,\"refill\":\"1/s\"}}}");
  cr_assert(eq(int, spile_set_limits(s->limiter, e.files[0], NULL), SPILE_OK));
  pthread_t thread;
  cr_assert(eq(int, pthread_create(&thread, NULL, exchange_run, &e), 0));
  do {
    cr_assert(eq(int, check(s, "GET", "/x"), SPILE_ALLOWED));
    cr_assert(s->response.decision.capacity == 60 || s->response.decision.capacity == 61);
    cr_assert(eq(str, (char *)s->response.decision.name, "default"));
  } while (!atomic_load(&e.done));
  cr_assert(eq(int, pthread_join(thread, NULL), 0));
  for (int i = 0; i < 2; i++)
    spile_limits_unref(e.files[i]);
  server_finish(s);
}
