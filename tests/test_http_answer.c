/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status, fields and body of an answer: what a client reads is never earlier than the truth.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <locale.h>
#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/fields.h"
#include "limits/ask.h"
#include "limits_rig.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* A limiter on a clock that stands still, one entry, one caller. */
typedef struct serving {
  spile_fake_clock *clock;
  spile_limiter *limiter;
  rig_route *route;
  spile_http_settings *settings;
  spile_ruling ruling;
  char text[SPILE_HTTP_BUFFER_MAX];
  spile_http_response response;
} serving;

static serving *serving_start(int dialect, spile_route_word word, const rig_limit *limits, size_t n) {
  serving *s = calloc(1, sizeof(*s));
  cr_assert(s != NULL);
  s->clock = spile_fake_clock_new(1000000);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = s->clock;
  cr_assert(eq(int, spile_open(&s->limiter, "memory:?keys=100", &options, NULL), SPILE_OK));
  s->route = rig_route_new("POST /search", word, limits, n);
  spile_http_options http = SPILE_HTTP_OPTIONS_INIT;
  http.dialect = dialect;
  cr_assert(eq(int, spile_http_settings_create(&s->settings, &http, NULL), SPILE_OK));
  s->response = (spile_http_response)SPILE_HTTP_RESPONSE_INIT(s->text, sizeof(s->text));
  return s;
}

static void serving_finish(serving *s) {
  spile_http_settings_free(s->settings);
  rig_route_free(s->route);
  spile_close(s->limiter);
  spile_fake_clock_free(s->clock);
  free(s);
}

static int serve(serving *s, int64_t cost) {
  spile_caller caller = SPILE_CALLER_INIT;
  caller.ip = "192.0.2.1";
  int result = spile__limits_ask(s->limiter, &s->route->route, &caller, cost, SPILE_VERB_TAKE, SPILE__NO_SUBJECT_FAILS,
                                 &s->ruling);
  spile_http_answer(s->settings, result, &s->ruling, spile_fake_clock_now(s->clock), &s->response);
  cr_assert(le(sz, s->response.needed, s->response.size));
  return result;
}

/* The value of a field, or NULL. */
static const char *field(const spile_http_response *response, const char *name) {
  const char *value = NULL;
  for (size_t i = 0; i < response->header_count; i++) {
    if (strcmp(response->headers[i].name, name) != 0)
      continue;
    cr_assert(value == NULL, "%s is there twice", name);
    value = response->headers[i].value;
  }
  return value;
}

static void expect_field(const serving *s, const char *name, const char *want) {
  const char *got = field(&s->response, name);
  if (want == NULL) {
    cr_assert(got == NULL, "%s: %s", name, got);
    return;
  }
  cr_assert(got != NULL && strcmp(got, want) == 0, "%s: \"%s\", not \"%s\"", name, got != NULL ? got : "none", want);
}

static const char *const quota_fields[] = {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
                                           "RateLimit-Policy", "RateLimit"};

static void expect_no_quota_fields(const serving *s) {
  for (size_t i = 0; i < COUNT(quota_fields); i++)
    expect_field(s, quota_fields[i], NULL);
}

/* ---- HTTP-01 ---- */

Test(http_answer, HTTP_01_retry_after_is_whole_seconds_rounded_up_and_at_least_one) {
  static const struct {
    int64_t ms;
    int64_t seconds;
  } rows[] = {{1, 1}, {999, 1}, {1000, 1}, {1001, 2}, {59999, 60}, {100000, 100}, {2591999999, 2592000}, {0, 1}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile_decision denied = {.outcome = SPILE_DENIED, .retry_after_ms = rows[i].ms};
    cr_assert(eq(i64, spile__retry_after_s(&denied), rows[i].seconds));
  }
  spile_decision never = {.outcome = SPILE_NEVER, .retry_after_ms = SPILE_UNKNOWN};
  spile_decision allowed = {.outcome = SPILE_ALLOWED, .retry_after_ms = 0};
  spile_decision policy = {.outcome = SPILE_DENIED, .retry_after_ms = SPILE_UNKNOWN};
  cr_assert(eq(i64, spile__retry_after_s(&never), 0));
  cr_assert(eq(i64, spile__retry_after_s(&allowed), 0));
  cr_assert(eq(i64, spile__retry_after_s(&policy), 0));
}

Test(http_answer, HTTP_01_a_denied_request_works_after_exactly_retry_after) {
  static const rig_limit limits[] = {{"0.05/s,capacity=5", .cost = 5}};
  serving *s = serving_start(SPILE_HTTP_X_RATELIMIT, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(int, s->response.status, 200));
  expect_field(s, "Retry-After", NULL);
  expect_field(s, "Cache-Control", NULL);
  cr_assert(s->response.body == NULL);
  spile_fake_clock_advance(s->clock, 1);
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_DENIED));
  cr_assert(eq(int, s->response.status, 429));
  expect_field(s, "Retry-After", "100");
  expect_field(s, "Cache-Control", "no-store");
  spile_fake_clock_advance(s->clock, 100000);
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_ALLOWED));
  serving_finish(s);
}

/* ---- X-RateLimit ---- */

Test(http_answer, writes_the_articles_fields_with_reset_as_clock_time) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  serving *s = serving_start(SPILE_HTTP_X_RATELIMIT, SPILE_ROUTE_LIMITED, limits, 1);
  spile_fake_clock_set(s->clock, 1000001);
  cr_assert(eq(int, serve(s, 10), SPILE_ALLOWED));
  expect_field(s, "X-RateLimit-Limit", "60");
  expect_field(s, "X-RateLimit-Remaining", "50");
  /* Full 10,000 ms after 1,000,001: at 1,010.001 s. */
  expect_field(s, "X-RateLimit-Reset", "1011");
  expect_field(s, "RateLimit", NULL);
  expect_field(s, "RateLimit-Policy", NULL);
  cr_assert(eq(str, s->response.limit, "default"));
  cr_assert(s->response.decision.name == s->response.limit);
  serving_finish(s);
}

Test(http_answer, writes_reset_as_seconds_from_now_when_told) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  serving *s = serving_start(SPILE_HTTP_X_RATELIMIT, SPILE_ROUTE_LIMITED, limits, 1);
  spile_http_settings_free(s->settings);
  spile_http_options http = SPILE_HTTP_OPTIONS_INIT;
  http.reset = SPILE_HTTP_RESET_SECONDS;
  cr_assert(eq(int, spile_http_settings_create(&s->settings, &http, NULL), SPILE_OK));
  cr_assert(eq(int, serve(s, 10), SPILE_ALLOWED));
  expect_field(s, "X-RateLimit-Reset", "10");
  spile_fake_clock_advance(s->clock, 1);
  cr_assert(eq(int, serve(s, 0), SPILE_ALLOWED));
  expect_field(s, "X-RateLimit-Reset", "10");
  serving_finish(s);
}

/* ---- HTTP-02 ---- */

Test(http_answer, HTTP_02_a_says_what_is_left_and_when_it_grows) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, limits, 1);
  for (int i = 0; i < 10; i++)
    cr_assert(eq(int, serve(s, 1), SPILE_ALLOWED));
  expect_field(s, "RateLimit-Policy", "\"default\";q=60;w=60");
  expect_field(s, "RateLimit", "\"default\";r=50;t=1");
  expect_field(s, "X-RateLimit-Limit", NULL);
  serving_finish(s);
}

Test(http_answer, HTTP_02_b_retry_after_is_not_earlier_than_t) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int, serve(s, 60), SPILE_ALLOWED));
  cr_assert(eq(int, serve(s, 5), SPILE_DENIED));
  expect_field(s, "RateLimit", "\"default\";r=0;t=1");
  expect_field(s, "Retry-After", "5");
  serving_finish(s);
}

Test(http_answer, HTTP_02_c_lists_several_policies_in_one_field) {
  static const rig_limit limits[] = {{"10/60s,name=burst"}, {"1000/h,name=hour"}};
  serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, limits, 2);
  cr_assert(eq(int, serve(s, 1), SPILE_ALLOWED));
  expect_field(s, "RateLimit-Policy", "\"burst\";q=10;w=60, \"hour\";q=1000;w=3600");
  /* A token of burst comes every 6 s, one of hour every 3.6 s. */
  expect_field(s, "RateLimit", "\"burst\";r=9;t=6, \"hour\";r=999;t=4");
  serving_finish(s);
}

Test(http_answer, HTTP_02_d_a_window_is_at_least_a_second) {
  static const rig_limit limits[] = {{"3/s,capacity=1"}};
  serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int, serve(s, 1), SPILE_ALLOWED));
  expect_field(s, "RateLimit-Policy", "\"default\";q=1;w=1");
  expect_field(s, "RateLimit", "\"default\";r=0;t=1");
  serving_finish(s);
}

Test(http_answer, leaves_t_out_where_a_bucket_is_full_or_retry_after_would_be_earlier) {
  static const rig_limit limits[] = {{"1/s,capacity=2,name=burst"}, {"1/h,capacity=1000,name=slow"}};
  serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, limits, 2);
  cr_assert(eq(int, serve(s, 0), SPILE_ALLOWED));
  expect_field(s, "RateLimit", "\"burst\";r=2, \"slow\";r=1000");
  cr_assert(eq(int, serve(s, 2), SPILE_ALLOWED));
  expect_field(s, "RateLimit", "\"burst\";r=0;t=1, \"slow\";r=998;t=3600");
  cr_assert(eq(int, serve(s, 1), SPILE_DENIED));
  expect_field(s, "Retry-After", "1");
  expect_field(s, "RateLimit", "\"burst\";r=0;t=1, \"slow\";r=998");
  serving_finish(s);
}

/* Reads the number behind ";t=", or -1. */
static int64_t t_of(const char *value) {
  const char *at = strstr(value, ";t=");
  return at != NULL ? strtoll(at + 3, NULL, 10) : -1;
}

Test(http_answer, t_and_retry_after_are_never_early_and_less_than_a_second_late) {
  static const char *const texts[] = {"1/s,capacity=60",
                                      "3/s,capacity=7",
                                      "7/3s,capacity=50",
                                      "1000/s,capacity=3000",
                                      "13/17s,capacity=29",
                                      "1/h,capacity=4",
                                      "999/1000ms,capacity=10",
                                      "1/2s,leaky_bucket,capacity=5",
                                      "7/3s,leaky_bucket,capacity=50",
                                      "1/2s,capacity=5,debt=3",
                                      "5/7s,fixed_window",
                                      "9/7s,sliding_window",
                                      "50/7s,sliding_window",
                                      "3/60s,sliding_window",
                                      "5/7s,sliding_log",
                                      "40/9s,sliding_log"};
  unsigned state = 4;
  for (size_t i = 0; i < COUNT(texts); i++) {
    rig_limit limit = {texts[i]};
    serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, &limit, 1);
    for (int step = 0; step < 300; step++) {
      spile_fake_clock_advance(s->clock, (state = state * 1664525 + 1013904223) % 700);
      int64_t cost = (state = state * 1664525 + 1013904223) / 7 % 5;
      int result = serve(s, cost);
      int64_t t_s = t_of(field(&s->response, "RateLimit"));
      /* When `remaining` really grows, found by asking at every millisecond's edge from outside. */
      spile_decision now = s->response.decision;
      if (now.remaining == now.capacity)
        continue;
      int64_t start_ms = spile_fake_clock_now(s->clock);
      spile_decision later;
      int64_t low = 0;
      int64_t high = now.reset_after_ms + 1;
      while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        spile_fake_clock_set(s->clock, start_ms + middle);
        (void)!spile_peek(s->limiter, s->route->limits[0].limit, "ip=192.0.2.1", 12, 0, &later);
        if (later.remaining > now.remaining)
          high = middle;
        else
          low = middle;
      }
      spile_fake_clock_set(s->clock, start_ms);
      cr_assert(t_s * 1000 >= high, "%s: t=%lld, true %lld ms", texts[i], (long long)t_s, (long long)high);
      cr_assert(t_s * 1000 < high + 1000, "%s: t=%lld, true %lld ms", texts[i], (long long)t_s, (long long)high);
      if (result == SPILE_DENIED) {
        int64_t retry_s = strtoll(field(&s->response, "Retry-After"), NULL, 10);
        cr_assert(le(i64, t_s, retry_s));
        cr_assert(le(i64, now.retry_after_ms, retry_s * 1000));
      }
    }
    serving_finish(s);
  }
}

/* ---- Statuses and bodies ---- */

Test(http_answer, says_never_without_a_time_to_come_back) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  serving *s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int, serve(s, 61), SPILE_NEVER));
  cr_assert(eq(int, s->response.status, 429));
  expect_field(s, "Retry-After", NULL);
  expect_field(s, "X-RateLimit-Limit", "60");
  expect_field(s, "X-RateLimit-Remaining", "60");
  expect_field(s, "Cache-Control", "no-store");
  expect_field(s, "Content-Type", "application/problem+json");
  cr_assert(eq(str, (char *)s->response.body,
               "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\","
               "\"title\":\"Too Many Requests\",\"status\":429,\"detail\":\"The request costs more than the limit ever "
               "holds; waiting does not help.\",\"violated-policies\":[\"default\"]}"));
  serving_finish(s);
}

Test(http_answer, forbids_what_is_blocked_and_says_nothing_of_what_is_unlimited) {
  serving *s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_BLOCKED, NULL, 0);
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_NEVER));
  cr_assert(eq(int, s->response.status, 403));
  expect_no_quota_fields(s);
  expect_field(s, "Retry-After", NULL);
  cr_assert(eq(str, (char *)s->response.body, "{\"type\":\"about:blank\",\"title\":\"Forbidden\",\"status\":403}"));
  cr_assert(eq(sz, s->response.body_len, strlen(s->response.body)));
  serving_finish(s);

  s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_UNLIMITED, NULL, 0);
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(int, s->response.status, 200));
  cr_assert(eq(sz, s->response.header_count, (size_t)0));
  cr_assert(eq(str, s->response.limit, ""));
  cr_assert(s->response.decision.name == NULL);
  serving_finish(s);
}

Test(http_answer, names_the_limits_that_were_violated_and_no_others) {
  static const rig_limit limits[] = {
      {"1/s,capacity=2,name=a\"b\\c"}, {"1/s,capacity=50,name=wide"}, {"1/s,capacity=3,name=d"}};
  serving *s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_LIMITED, limits, 3);
  cr_assert(eq(int, serve(s, 2), SPILE_ALLOWED));
  cr_assert(eq(int, serve(s, 2), SPILE_DENIED));
  expect_field(s, "Retry-After", "2");
  cr_assert(strstr(s->response.body, "\"violated-policies\":[\"a\\\"b\\\\c\",\"d\"]}") != NULL, "%s", s->response.body);
  expect_field(s, "RateLimit-Policy", "\"a\\\"b\\\\c\";q=2;w=2, \"wide\";q=50;w=50, \"d\";q=3;w=3");
  serving_finish(s);
}

static const char *error_body(int code, int outcome, int decided_by, int *status) {
  static char text[1000];
  spile_http_options http = SPILE_HTTP_OPTIONS_INIT;
  http.body = SPILE_HTTP_ERROR;
  spile_http_settings *settings;
  cr_assert(eq(int, spile_http_settings_create(&settings, &http, NULL), SPILE_OK));
  spile_ruling ruling = {
      .decision = {.outcome = outcome, .decided_by = decided_by, .retry_after_ms = 5, .remaining = -1}};
  spile_http_response response = SPILE_HTTP_RESPONSE_INIT(text, sizeof(text));
  spile_http_answer(settings, code, &ruling, 0, &response);
  spile_http_settings_free(settings);
  *status = response.status;
  cr_assert(eq(str, (char *)field(&response, "Content-Type"), "application/json"));
  return response.body;
}

Test(http_answer, has_the_articles_body_for_who_wants_it) {
  static const struct {
    int code;
    int outcome;
    int decided_by;
    int status;
    const char *body;
  } rows[] = {
      {SPILE_DENIED, SPILE_DENIED, SPILE_BY_STORE, 429, "{\"error\":\"rate_limited\"}"},
      {SPILE_DENIED, SPILE_DENIED, SPILE_BY_POLICY, 503, "{\"error\":\"unavailable\"}"},
      {SPILE_DENIED, SPILE_DENIED, SPILE_BY_FULL, 503, "{\"error\":\"unavailable\"}"},
      {SPILE_NEVER, SPILE_NEVER, SPILE_BY_LIMITS, 429, "{\"error\":\"rate_limited\"}"},
      {SPILE_EUNAVAILABLE, 0, SPILE_BY_NOBODY, 503, "{\"error\":\"unavailable\"}"},
      {SPILE_EFULL, 0, SPILE_BY_NOBODY, 503, "{\"error\":\"unavailable\"}"},
      {SPILE_ENOSUBJECT, 0, SPILE_BY_NOBODY, 503, "{\"error\":\"unavailable\"}"},
      {SPILE_EINVAL, 0, SPILE_BY_NOBODY, 500, "{\"error\":\"internal_error\"}"},
      {SPILE_ECONFIG, 0, SPILE_BY_NOBODY, 500, "{\"error\":\"internal_error\"}"},
      {SPILE_EFORK, 0, SPILE_BY_NOBODY, 500, "{\"error\":\"internal_error\"}"},
      {0, 0, SPILE_BY_NOBODY, 500, "{\"error\":\"internal_error\"}"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    int status;
    const char *body = error_body(rows[i].code, rows[i].outcome, rows[i].decided_by, &status);
    cr_assert(eq(int, status, rows[i].status));
    cr_assert(eq(str, (char *)body, (char *)rows[i].body));
  }
}

/* ---- The buffer ---- */

Test(http_answer, fits_whole_or_not_at_all_and_says_what_it_needs) {
  static const rig_limit limits[] = {{"10/60s,name=burst"}, {"1000/h,name=hour"}};
  serving *s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_LIMITED, limits, 2);
  cr_assert(eq(int, serve(s, 10), SPILE_ALLOWED));
  cr_assert(eq(int, serve(s, 1), SPILE_DENIED));
  spile_http_response whole = s->response;
  size_t needed = whole.needed;
  cr_assert(eq(sz, whole.header_count, (size_t)SPILE_HTTP_HEADERS_MAX));
  for (size_t size = 0; size <= needed; size++) {
    char *block = malloc(size + (size == 0)); /* a step outside is a step into what a sanitizer guards */
    spile_http_response part = SPILE_HTTP_RESPONSE_INIT(size > 0 ? block : NULL, size);
    spile_http_answer(s->settings, SPILE_DENIED, &s->ruling, spile_fake_clock_now(s->clock), &part);
    cr_assert(eq(int, part.status, 429));
    cr_assert(eq(sz, part.needed, needed));
    for (size_t i = 0; i < part.header_count; i++)
      cr_assert(eq(str, (char *)part.headers[i].value, (char *)field(&whole, part.headers[i].name)));
    if (part.body != NULL)
      cr_assert(eq(str, (char *)part.body, (char *)whole.body));
    /* What matters most is there first. */
    bool has_wait = field(&part, "Retry-After") != NULL;
    bool has_type = field(&part, "Content-Type") != NULL;
    bool has_all = part.header_count == whole.header_count && part.body != NULL;
    cr_assert(has_wait == (size >= 2));
    cr_assert(has_all == (size >= needed));
    cr_assert(has_type == (part.body != NULL));
    /* What is left out leaves its room to what is shorter. */
    if (size == 64) {
      cr_assert(part.body == NULL);
      cr_assert(field(&part, "X-RateLimit-Reset") != NULL);
    }
    free(block);
  }
  serving_finish(s);
}

Test(http_answer, has_room_for_the_longest_names_of_all_limits) {
  rig_limit limits[SPILE_ROUTE_LIMITS_MAX];
  char texts[SPILE_ROUTE_LIMITS_MAX][SPILE_NAME_LEN_MAX + 40];
  for (int i = 0; i < SPILE_ROUTE_LIMITS_MAX; i++) {
    (void)snprintf(texts[i], sizeof(texts[i]), "1/h,capacity=1000,name=%c", 'a' + i);
    size_t len = strlen(texts[i]);
    memset(texts[i] + len, '\xff', SPILE_NAME_LEN_MAX - 1);
    texts[i][len + SPILE_NAME_LEN_MAX - 1] = '\0';
    limits[i] = (rig_limit){texts[i], .cost = 1000};
  }
  serving *s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_LIMITED, limits, SPILE_ROUTE_LIMITS_MAX);
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_ALLOWED));
  cr_assert(eq(int, serve(s, SPILE_ROUTE_COST), SPILE_DENIED));
  cr_assert(eq(sz, s->response.header_count, (size_t)SPILE_HTTP_HEADERS_MAX));
  cr_assert(s->response.body != NULL);
  cr_assert(lt(sz, (size_t)30000, s->response.needed));
  serving_finish(s);
}

Test(http_answer, makes_one_block_of_its_headers) {
  static const rig_limit limits[] = {{"1/s,capacity=60"}};
  serving *s = serving_start(SPILE_HTTP_X_RATELIMIT, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int, serve(s, 1), SPILE_ALLOWED));
  static const char want[] = "X-RateLimit-Limit: 60\r\nX-RateLimit-Remaining: 59\r\nX-RateLimit-Reset: 1001\r\n";
  char block[sizeof(want)];
  cr_assert(eq(sz, spile_http_block(&s->response, block, sizeof(block)), sizeof(want)));
  cr_assert(eq(str, block, (char *)want));
  cr_assert(eq(sz, spile_http_block(&s->response, block, sizeof(block) - 1), sizeof(want)));
  cr_assert(eq(str, block, ""));
  cr_assert(eq(sz, spile_http_block(&s->response, NULL, 0), sizeof(want)));
  serving_finish(s);
}

Test(http_answer, a_name_cannot_end_its_field) {
  static const rig_limit limits[] = {{"1/s,capacity=60,name=x\r\nSet-Cookie: a=1\t\x7f\xc3\xa9%0d"}};
  serving *s = serving_start(SPILE_HTTP_DRAFT_11, SPILE_ROUTE_LIMITED, limits, 1);
  cr_assert(eq(int, serve(s, 1), SPILE_ALLOWED));
  expect_field(s, "RateLimit-Policy", "\"x%0D%0ASet-Cookie: a=1%09%7F%C3%A9%250d\";q=60;w=60");
  serving_finish(s);
}

Test(http_answer, numbers_are_those_of_structured_fields) {
  static const struct {
    int64_t number;
    const char *text;
  } rows[] = {{0, "0"},
              {-1, "0"},
              {9, "9"},
              {10, "10"},
              {999999999999999, "999999999999999"},
              {1000000000000000, "999999999999999"},
              {INT64_MAX, "999999999999999"},
              {INT64_MIN, "0"}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    char text[20];
    spile__writer writer;
    spile__writer_init(&writer, text, sizeof(text));
    spile__writer_begin(&writer);
    spile__writer_put_number(&writer, rows[i].number);
    cr_assert(eq(str, (char *)spile__writer_end(&writer), (char *)rows[i].text));
  }
}

Test(http_answer, is_the_same_in_every_locale) {
  static const rig_limit limits[] = {{"1000000/s,capacity=1000000"}};
  serving *s = serving_start(SPILE_HTTP_BOTH, SPILE_ROUTE_LIMITED, limits, 1);
  /* Groups of digits and a decimal comma; where the locale is not installed this is the C locale once more. */
  (void)setlocale(LC_ALL, "de_DE.UTF-8");
  cr_assert(eq(int, serve(s, 1), SPILE_ALLOWED));
  expect_field(s, "X-RateLimit-Limit", "1000000");
  expect_field(s, "RateLimit-Policy", "\"default\";q=1000000;w=1");
  (void)setlocale(LC_ALL, "C");
  serving_finish(s);
}
