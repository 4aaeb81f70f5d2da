/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much stack a request needs: coroutines and the threads of small C libraries have little. The thread that asks
 * runs on memory that was painted before, so what it touched can be seen afterwards.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/http.h>
#include <spile/metrics.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "limits_text.h"
#include "redis_server.h"
#include "temp_dir.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PROMISED_KIB 512 /* instrumented frames are larger */
#else
#define PROMISED_KIB 48
#endif

#define PAINT 0xa5

/* ---- Measuring ---- */

typedef void *thread_run(void *user);

static void *nothing_run(void *user) {
  return user;
}

/* The bytes of a stack that a thread touched, those of the C library for the thread itself included. */
static size_t stack_touched(thread_run *run, void *user) {
  enum { STACK_LEN = 1 << 20 };
  unsigned char *stack = mmap(NULL, STACK_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  cr_assert(stack != MAP_FAILED);
  memset(stack, PAINT, STACK_LEN);
  pthread_attr_t attributes;
  pthread_t thread;
  cr_assert(eq(int, pthread_attr_init(&attributes), 0));
  cr_assert(eq(int, pthread_attr_setstack(&attributes, stack, STACK_LEN), 0));
  cr_assert(eq(int, pthread_create(&thread, &attributes, run, user), 0));
  cr_assert(eq(int, pthread_join(thread, NULL), 0));
  cr_assert(eq(int, pthread_attr_destroy(&attributes), 0));
  size_t untouched = 0;
  while (untouched < STACK_LEN && stack[untouched] == PAINT)
    untouched++;
  cr_assert(eq(int, munmap(stack, STACK_LEN), 0));
  return STACK_LEN - untouched;
}

/* ---- One request ---- */

/* 16 limits, which is as many as a request can meet, two of them shadow limits, each with a key of its own. Logs have
 * the largest states. */
static const char *file_text(void) {
  static char text[8192];
  size_t n = (size_t)snprintf(text, sizeof(text),
                              "{\"on_store_error\":\"closed\",\"skip\":[{\"route\":\"GET /health\"}],"
                              "\"limits\":{\"default\":[");
  for (int i = 0; i < SPILE_ROUTE_LIMITS_MAX; i++)
    n += (size_t)snprintf(text + n, sizeof(text) - n,
                          "%s{\"name\":\"%d\",\"capacity\":1,%s,\"key\":\"header:%c\",\"shadow\":%s}", i > 0 ? "," : "",
                          i, i % 2 == 0 ? "\"refill\":\"1/h\"" : "\"algorithm\":\"sliding_log\",\"window\":\"1h\"",
                          'a' + i, i < 14 ? "false" : "true");
  (void)snprintf(text + n, sizeof(text) - n, "],\"GET /*\":\"unlimited\"}}");
  return text;
}

typedef struct asking {
  spile_limiter *limiter;
  char *value; /* of every header */
  int result;
} asking;

static const char *header_of(void *user, const char *name, size_t index) {
  const asking *a = user;
  return index == 0 && name[1] == '\0' ? a->value : NULL;
}

static void *check_run(void *user) {
  asking *a = user;
  static char text[SPILE_HTTP_BUFFER_SIZE];
  spile_http_request request = SPILE_HTTP_REQUEST_INIT;
  request.method = "POST";
  request.path = "/some/%70ath?query=1";
  request.peer = "2001:db8::1";
  request.header = header_of;
  request.header_user = a;
  static spile_http_response response;
  response = (spile_http_response)SPILE_HTTP_RESPONSE_INIT(text, sizeof(text));
  a->result = spile_http_check(a->limiter, &request, &response);
  return NULL;
}

static void event_seen(void *user, const spile_event *event) {
  *(size_t *)user += event->limit != NULL;
}

static void line_seen(void *user, spile_log_level level, const char *line) {
  (void)level;
  *(size_t *)user += strlen(line);
}

/* Opens a store with all that is told of takes. */
static void asking_open(asking *a, const char *uri) {
  static size_t seen;
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  options.on_denied = event_seen;
  options.on_near_limit = event_seen;
  options.hook_user = &seen;
  options.near_limit_percent = 99;
  options.log_denied_per_s = 1000;
  options.log = line_seen;
  options.log_user = &seen;
  options.timeout_ms = 10000;
  spile_error error = {0};
  cr_assert(spile_open(&a->limiter, uri, &options, &error) == SPILE_OK, "%s: %s", uri, error.message);
  spile_limits *limits = limits_of(file_text());
  cr_assert(eq(int, spile_set_limits(a->limiter, limits, NULL), SPILE_OK));
  spile_limits_unref(limits);
}

/* One request whose keys have values of this length. */
static void expect_little(asking *a, size_t value_len, int result, const char *where) {
  a->value = malloc(value_len + 1);
  cr_assert(a->value != NULL);
  memset(a->value, 'v', value_len);
  a->value[value_len] = '\0';
  size_t touched = stack_touched(check_run, a) - stack_touched(nothing_run, NULL);
  cr_assert(a->result == result, "%s, values of %zu bytes: %s", where, value_len, spile_code_name(a->result));
  cr_assert(touched <= PROMISED_KIB * 1024, "%s, values of %zu bytes: %zu bytes of stack", where, value_len, touched);
  /* What nobody touched would be less than one ruling. */
  cr_assert(lt(sz, sizeof(spile_ruling), touched));
  free(a->value);
}

static void expect_little_of(const char *uri) {
  asking a;
  asking_open(&a, uri);
  for (size_t value_len = 20; value_len <= 4000; value_len += 3980) {
    expect_little(&a, value_len, SPILE_ALLOWED, uri);
    expect_little(&a, value_len, SPILE_DENIED, uri);
  }
  spile_close(a.limiter);
}

Test(stack, of_a_request_over_memory) {
  expect_little_of("memory:");
}

Test(stack, of_a_request_for_which_there_is_no_room) {
  asking a;
  asking_open(&a, "memory:?keys=1");
  /* Until nothing has room any more. */
  for (size_t i = 0; i < 20; i++)
    expect_little(&a, 20 + i, SPILE_DENIED, "memory:?keys=1");
  spile_close(a.limiter);
}

Test(stack, of_a_request_over_lmdb) {
  char directory[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 16];
  temp_dir_make(directory);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store", directory);
  expect_little_of(uri);
  temp_dir_remove(directory);
}

Test(stack, of_a_request_over_redis) {
  redis_server *server = redis_server_start();
  expect_little_of(redis_server_unix_uri(server));
  redis_server_run(server, "FLUSHALL");
  expect_little_of(redis_server_tcp_uri(server));
  redis_server_free(server);
}

Test(stack, of_a_request_that_a_dead_redis_does_not_answer) {
  redis_server *server = redis_server_start();
  asking a;
  asking_open(&a, redis_server_tcp_uri(server));
  redis_server_stop(server);
  /* Until the breaker does not ask any more. */
  for (int i = 0; i < 7; i++)
    expect_little(&a, 20, SPILE_DENIED, "a dead Redis");
  spile_close(a.limiter);
  redis_server_free(server);
}
