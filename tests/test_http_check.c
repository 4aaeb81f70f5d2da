/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call for servers: from a request to its answer.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "http/http.h"
#include "limits_rig.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

typedef struct header {
  const char *name;
  const char *value;
} header;

/* A server over the scripted store, with one request and one response. */
typedef struct server {
  spile_scripted_store *store;
  spile_limiter *limiter;
  rig_route *routes[3];
  size_t route_count;
  spile_http_settings *settings;
  spile_http_request request;
  spile_http_response response;
  header headers[4]; /* up to the first without a name */
  char text[SPILE_HTTP_BUFFER_SIZE];
} server;

static const char *server_header(void *user, const char *name, size_t index) {
  const server *s = user;
  for (size_t i = 0; i < COUNT(s->headers) && s->headers[i].name != NULL; i++) {
    if (strcasecmp(s->headers[i].name, name) == 0 && index-- == 0)
      return s->headers[i].value;
  }
  return NULL;
}

/* The last line of the log, and how many there were. */
static char log_line[400];
static size_t log_count;

static void log_keep(void *user, spile_log_level level, const char *line) {
  (void)user;
  cr_assert(eq(int, (int)level, SPILE_LOG_ERROR));
  (void)snprintf(log_line, sizeof(log_line), "%s", line);
  log_count++;
}

static server *server_start(void) {
  static const char *const trusted[] = {"10.0.0.0/8"};
  server *s = calloc(1, sizeof(*s));
  cr_assert(s != NULL);
  spile_options options = SPILE_OPTIONS_INIT;
  options.breaker_failures = SPILE_BREAKER_OFF;
  options.log = log_keep;
  s->store = spile_scripted_store_new();
  cr_assert(eq(int, spile_open_store(&s->limiter, spile_scripted_store_base(s->store), &options, NULL), SPILE_OK));
  spile_http_options http = SPILE_HTTP_OPTIONS_INIT;
  http.forwarded = SPILE_HTTP_X_FORWARDED_FOR;
  http.trusted = trusted;
  http.trusted_count = 1;
  http.dialect = SPILE_HTTP_BOTH;
  cr_assert(eq(int, spile_http_settings_create(&s->settings, &http, NULL), SPILE_OK));
  s->request = (spile_http_request)SPILE_HTTP_REQUEST_INIT;
  s->request.settings = s->settings;
  s->request.method = "POST";
  s->request.path = "/search";
  s->request.peer = "192.0.2.1";
  s->request.header = server_header;
  s->request.header_user = s;
  s->response = (spile_http_response)SPILE_HTTP_RESPONSE_INIT(s->text, sizeof(s->text));
  return s;
}

static void server_route(server *s, const char *text, spile_route_word word, const rig_limit *limits, size_t n) {
  s->routes[s->route_count++] = rig_route_new(text, word, limits, n);
  (void)rig_in_force(s->routes, s->route_count);
}

static void server_finish(server *s) {
  cr_assert(eq(int, rig_owners(), 0));
  for (size_t i = 0; i < s->route_count; i++)
    rig_route_free(s->routes[i]);
  spile_http_settings_free(s->settings);
  spile_close(s->limiter);
  free(s);
}

static int check(server *s) {
  return spile_http_check(s->limiter, &s->request, &s->response);
}

static const char *field(const server *s, const char *name) {
  for (size_t i = 0; i < s->response.header_count; i++) {
    if (strcmp(s->response.headers[i].name, name) == 0)
      return s->response.headers[i].value;
  }
  return NULL;
}

static void expect_no_quota(const server *s) {
  static const char *const names[] = {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
                                      "RateLimit",         "RateLimit-Policy",      "Retry-After"};
  for (size_t i = 0; i < COUNT(names); i++)
    cr_assert(field(s, names[i]) == NULL, "%s: %s", names[i], field(s, names[i]));
}

static const spile_scripted_call *last_call(const server *s) {
  size_t n = spile_scripted_store_calls(s->store);
  cr_assert(lt(sz, (size_t)0, n));
  return spile_scripted_store_call(s->store, n - 1);
}

static void fail_next(server *s) {
  cr_assert(spile_scripted_store_answer(s->store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
}

Test(http_check, lets_a_request_by_with_its_fields) {
  static const rig_limit limits[] = {{"1/s,capacity=60,name=POST /search", .cost = 2, .chain = "tenant,ip"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  s->request.tenant = "acme";
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(int, s->response.status, 200));
  cr_assert(eq(str, (char *)last_call(s)->items[0].key, "tenant=acme"));
  cr_assert(eq(i64, last_call(s)->items[0].cost, 2));
  cr_assert(eq(str, (char *)field(s, "RateLimit-Policy"), "\"POST /search\";q=60;w=60"));
  cr_assert(eq(str, s->response.client, "192.0.2.1"));
  cr_assert(eq(str, s->response.limit, "POST /search"));
  s->request.cost = 7;
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(i64, last_call(s)->items[0].cost, 7));
  server_finish(s);
}

Test(http_check, what_it_hands_back_outlives_the_limits) {
  static const rig_limit limits[] = {{"1/s,capacity=1,name=short lived"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  spile_reading empty = {{1000}};
  cr_assert(spile_scripted_store_answer(s->store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(eq(int, check(s), SPILE_DENIED));
  cr_assert(eq(int, rig_owners(), 0));
  rig_route_free(s->routes[0]);
  s->route_count = 0;
  cr_assert(eq(str, (char *)s->response.decision.name, "short lived"));
  cr_assert(strstr(s->response.body, "short lived") != NULL);
  cr_assert(strstr(field(s, "RateLimit"), "short lived") != NULL);
  cr_assert(eq(str, (char *)field(s, "Retry-After"), "1"));
  server_finish(s);
}

Test(http_check, HTTP_03_counts_the_client_behind_the_proxy) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  s->request.peer = "10.0.0.2";
  s->headers[0] = (header){"x-forwarded-for", "1.1.1.1"};
  s->headers[1] = (header){"X-Forwarded-For", "203.0.113.9, 2001:db8:1:2::a"};
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)last_call(s)->items[0].key, "ip=2001:db8:1:2::/64"));
  cr_assert(eq(str, s->response.client, "2001:db8:1:2::a"));
  server_finish(s);
}

Test(http_check, counts_by_the_first_line_of_a_header_that_a_chain_names) {
  static const rig_limit limits[] = {{"1/s,capacity=60", .chain = "header:X-Client,ip"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  s->headers[0] = (header){"X-Other", "o"};
  s->headers[1] = (header){"x-client", "first"};
  s->headers[2] = (header){"X-Client", "second"};
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)last_call(s)->items[0].key, "header:x-client=first"));
  s->request.header = NULL;
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)last_call(s)->items[0].key, "ip=192.0.2.1"));
  server_finish(s);
}

Test(http_check, HTTP_08_does_not_look_at_the_path_where_the_router_has_spoken) {
  static const rig_limit limits[] = {{"1/s,capacity=60,name=route"}};
  server *s = server_start();
  server_route(s, "GET /users/:id", SPILE_ROUTE_LIMITED, limits, 1);
  server_route(s, "default", SPILE_ROUTE_BLOCKED, NULL, 0);
  s->request.method = "GET";
  s->request.route = "/users/:id";
  s->request.path = "/skipped";
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(str, s->response.limit, "route"));
  cr_assert(s->response.skipped == false);
  s->request.route = NULL;
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(s->response.skipped);
  cr_assert(eq(sz, s->response.header_count, (size_t)0));
  s->request.path = "/other";
  cr_assert(eq(int, check(s), SPILE_NEVER));
  cr_assert(eq(int, s->response.status, 403));
  expect_no_quota(s);
  server_finish(s);
}

/* ---- OPS-01 ---- */

Test(http_check, OPS_01_tells_a_client_nothing_that_the_store_did_not_say) {
  static const struct {
    const char *limit;
    int result;
    int decided_by;
    int status;
  } rows[] = {{"1/s,capacity=60,name=search,on_store_error=open", SPILE_ALLOWED, SPILE_BY_POLICY, 200},
              {"1/s,capacity=60,name=login,on_store_error=closed", SPILE_DENIED, SPILE_BY_POLICY, 503},
              {"1/s,capacity=60,name=api,on_store_error=fail", SPILE_EUNAVAILABLE, SPILE_BY_NOBODY, 503}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    rig_limit limit = {rows[i].limit};
    server *s = server_start();
    server_route(s, "POST /search", SPILE_ROUTE_LIMITED, &limit, 1);
    fail_next(s);
    cr_assert(eq(int, check(s), rows[i].result));
    cr_assert(eq(int, s->response.status, rows[i].status));
    cr_assert(eq(int, s->response.decision.decided_by, rows[i].decided_by));
    cr_assert(eq(int, s->response.decision.store_error, SPILE_REASON_TIMEOUT));
    cr_assert(eq(sz, spile_scripted_store_calls(s->store), (size_t)1));
    expect_no_quota(s);
    cr_assert(rows[i].status == 200 ? s->response.body == NULL : s->response.body != NULL);
    spile_counters counters = SPILE_COUNTERS_INIT;
    cr_assert(eq(int, spile_count(s->limiter, &counters), SPILE_OK));
    cr_assert(eq(u64, counters.store_errors[SPILE_REASON_TIMEOUT], 1));
    server_finish(s);
  }
}

Test(http_check, OPS_01_makes_headers_without_a_second_call_to_the_store) {
  static const rig_limit limits[] = {{"1/s,capacity=60,name=a"}, {"1/s,capacity=50,name=b"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 2);
  spile_reading none[2] = {{{0}}};
  cr_assert(spile_scripted_store_answer(s->store, SPILE_OK, SPILE_REASON_NONE, none, 2));
  /* From the take on the store is down. */
  fail_next(s);
  cr_assert(eq(int, check(s), SPILE_ALLOWED));
  cr_assert(eq(str, (char *)field(s, "RateLimit"), "\"a\";r=59;t=1, \"b\";r=49;t=1"));
  cr_assert(eq(sz, spile_scripted_store_calls(s->store), (size_t)1));
  server_finish(s);
}

Test(http_check, says_503_where_the_store_has_no_room) {
  static const struct {
    const char *limit;
    int result;
    int status;
  } rows[] = {{"1/s,capacity=60", SPILE_DENIED, 503},
              {"1/s,capacity=60,on_full=open", SPILE_ALLOWED, 200},
              {"1/s,capacity=60,on_full=fail", SPILE_EFULL, 503}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    rig_limit limit = {rows[i].limit};
    server *s = server_start();
    server_route(s, "POST /search", SPILE_ROUTE_LIMITED, &limit, 1);
    cr_assert(spile_scripted_store_answer(s->store, SPILE_EFULL, SPILE_REASON_NONE, NULL, 0));
    cr_assert(eq(int, check(s), rows[i].result));
    cr_assert(eq(int, s->response.status, rows[i].status));
    expect_no_quota(s);
    server_finish(s);
  }
}

/* ---- HTTP-07 ---- */

Test(http_check, HTTP_07_decides_by_the_limits_policy_where_there_is_no_address) {
  static const char *const peers[] = {NULL, "unix:", "", "unknown"};
  static const struct {
    const char *limit;
    int result;
    int status;
    size_t waived;
  } rows[] = {{"1/s,on_store_error=open", SPILE_ALLOWED, 200, 1},
              {"1/s,on_store_error=closed", SPILE_DENIED, 503, 0},
              {"1/s", SPILE_ENOSUBJECT, 503, 0}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    rig_limit limit = {rows[i].limit, .chain = "tenant,ip"};
    server *s = server_start();
    server_route(s, "POST /search", SPILE_ROUTE_LIMITED, &limit, 1);
    for (size_t j = 0; j < COUNT(peers); j++) {
      s->request.peer = peers[j];
      cr_assert(eq(int, check(s), rows[i].result));
      cr_assert(eq(int, s->response.status, rows[i].status));
      cr_assert(eq(sz, s->response.n_waived, rows[i].waived));
      cr_assert(eq(str, s->response.client, ""));
      expect_no_quota(s);
    }
    cr_assert(eq(sz, spile_scripted_store_calls(s->store), (size_t)0));
    server_finish(s);
  }
}

Test(http_check, HTTP_07_counts_a_caller_without_one_subject_under_the_other_limits) {
  static const rig_limit limits[] = {{"1/s,name=a,on_store_error=open", .chain = "user"},
                                     {"1/s,name=b,on_store_error=open", .always = true, .chain = "ip"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 2);
  spile_reading empty = {{1000}};
  cr_assert(spile_scripted_store_answer(s->store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(eq(int, check(s), SPILE_DENIED));
  cr_assert(eq(int, s->response.status, 429));
  cr_assert(eq(sz, s->response.n_waived, (size_t)1));
  server_finish(s);
}

/* ---- What is wrong with the call ---- */

Test(http_check, answers_500_and_why_for_a_server_that_calls_it_wrongly) {
  static const rig_limit limits[] = {{"1/s", .chain = "api_key"}};
  server *s = server_start();
  (void)rig_in_force(s->routes, 0);
  cr_assert(eq(int, check(s), SPILE_ECONFIG));
  cr_assert(eq(int, s->response.status, 500));
  cr_assert(strstr(s->response.decision.detail, "spile_set_limits") != NULL, "%s", s->response.decision.detail);

  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  s->request.api_key = "k";
  cr_assert(eq(int, check(s), SPILE_ECONFIG));
  cr_assert(eq(int, s->response.status, 500));
  cr_assert(strstr(s->response.decision.detail, "secret_file") != NULL, "%s", s->response.decision.detail);

  s->request.cost = -2;
  cr_assert(eq(int, check(s), SPILE_EINVAL));
  cr_assert(eq(int, s->response.status, 500));
  s->request.cost = SPILE_ROUTE_COST;

  s->request.path = NULL;
  cr_assert(eq(int, check(s), SPILE_EINVAL));
  s->request.path = "/search";
  s->request.method = NULL;
  cr_assert(eq(int, check(s), SPILE_EINVAL));
  cr_assert(eq(int, s->response.status, 500));
  cr_assert(eq(int, spile_http_check(NULL, &s->request, &s->response), SPILE_EINVAL));
  cr_assert(eq(str, s->response.decision.detail, "the limiter is NULL"));
  cr_assert(eq(int, spile_http_check(s->limiter, NULL, &s->response), SPILE_EINVAL));
  cr_assert(eq(int, s->response.status, 500));
  spile_http_request unstarted = {0};
  cr_assert(eq(int, spile_http_check(s->limiter, &unstarted, &s->response), SPILE_EINVAL));
  cr_assert(eq(str, s->response.decision.detail, "the request is NULL, or was not started by SPILE_HTTP_REQUEST_INIT"));
  cr_assert(eq(sz, spile_scripted_store_calls(s->store), (size_t)0));
  cr_assert(eq(sz, log_count, (size_t)0));
  server_finish(s);
}

Test(http_check, a_response_that_cannot_be_written_is_told_to_the_log) {
  static const rig_limit limits[] = {{"1/s"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  const size_t sizes[] = {0, 3, sizeof(spile_http_response) - 1};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    /* As large as it says, so that a sanitizer sees a byte written behind it. */
    spile_http_response *small = malloc(sizes[i] > sizeof(size_t) ? sizes[i] : sizeof(size_t));
    cr_assert(small != NULL);
    memcpy(small, &sizes[i], sizeof(size_t));
    cr_assert(eq(int, spile_http_check(s->limiter, &s->request, small), SPILE_EINVAL));
    free(small);
  }
  cr_assert(eq(int, spile_http_check(s->limiter, &s->request, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_http_check(NULL, &s->request, NULL), SPILE_EINVAL));
  /* Once a second; these took a fraction of one, or a busy machine had more to say. */
  cr_assert(lt(sz, (size_t)0, log_count));
  static const char told[] =
      "spile_http_check: the response is NULL, or was not started by SPILE_HTTP_RESPONSE_INIT; nothing was asked, and "
      "nothing written into it";
  cr_assert(strncmp(log_line, told, strlen(told)) == 0, "%s", log_line);
  cr_assert(eq(sz, spile_scripted_store_calls(s->store), (size_t)0));
  server_finish(s);
}

Test(http_check, needs_neither_settings_nor_a_buffer) {
  static const rig_limit limits[] = {{"1/s,capacity=1"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  s->request.settings = NULL;
  s->response = (spile_http_response)SPILE_HTTP_RESPONSE_INIT(NULL, 0);
  spile_reading empty = {{1000}};
  cr_assert(spile_scripted_store_answer(s->store, SPILE_OK, SPILE_REASON_NONE, &empty, 1));
  cr_assert(eq(int, check(s), SPILE_DENIED));
  cr_assert(eq(int, s->response.status, 429));
  cr_assert(eq(sz, s->response.header_count, (size_t)1)); /* Cache-Control, which is constant */
  cr_assert(s->response.body == NULL);
  cr_assert(lt(sz, (size_t)100, s->response.needed));
  server_finish(s);
}

Test(http_check, answers_for_a_forked_child) {
  static const rig_limit limits[] = {{"1/s,capacity=1,on_store_error=open"}};
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, 1);
  pid_t child = fork();
  cr_assert(le(int, 0, child));
  if (child == 0)
    _exit(check(s) == SPILE_EFORK && s->response.status == 500 && s->response.client[0] == '\0' ? 0 : 1);
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  cr_assert(eq(int, status, 0));
  server_finish(s);
}

/* ---- The stack ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_KIB 1024 /* instrumented frames are larger */
#else
#define STACK_KIB 48
#endif

static void *check_in_thread(void *user) {
  server *s = user;
  s->response.needed = (size_t)check(s);
  return NULL;
}

static char long_tenant[3900];

Test(http_check, needs_no_more_stack_than_it_promises) {
  rig_limit limits[SPILE_ROUTE_LIMITS_MAX];
  static const char *const chains[] = {"tenant", "user", "header:X-Client", "ip"};
  char texts[SPILE_ROUTE_LIMITS_MAX][32];
  for (int i = 0; i < SPILE_ROUTE_LIMITS_MAX; i++) {
    (void)snprintf(texts[i], sizeof(texts[i]), "1/s,name=%d", i);
    limits[i] = (rig_limit){texts[i], .chain = chains[i % 4]};
  }
  server *s = server_start();
  server_route(s, "POST /search", SPILE_ROUTE_LIMITED, limits, SPILE_ROUTE_LIMITS_MAX);
  memset(long_tenant, 't', sizeof(long_tenant) - 1);
  s->request.tenant = s->request.user = long_tenant;
  s->headers[0] = (header){"X-Client", long_tenant};
  pthread_attr_t attributes;
  pthread_t thread;
  cr_assert(eq(int, pthread_attr_init(&attributes), 0));
  cr_assert(eq(int, pthread_attr_setstacksize(&attributes, STACK_KIB * 1024), 0));
  cr_assert(eq(int, pthread_create(&thread, &attributes, check_in_thread, s), 0));
  cr_assert(eq(int, pthread_join(thread, NULL), 0));
  cr_assert(eq(int, pthread_attr_destroy(&attributes), 0));
  cr_assert(eq(sz, s->response.needed, (size_t)SPILE_ALLOWED));
  cr_assert(eq(sz, last_call(s)->n, (size_t)SPILE_ROUTE_LIMITS_MAX));
  server_finish(s);
}
