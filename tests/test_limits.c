/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading limits files: what a good one means, and what is said of each fault.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/sys/store.h>
#include <spile/testing.h>

#include "limits/limits.h"
#include "limits_text.h"
#include "temp_dir.h"

#define DEFAULT "\"default\":{\"capacity\":60,\"refill\":\"1/s\"}"
#define FILE_OF(entries) "{\"on_store_error\":\"open\",\"limits\":{" DEFAULT "," entries "}}"

/* ---- What a good file means ---- */

typedef struct limit_row {
  const char *route; /* as the whole text */
  const char *tier;
  size_t index;
  const char *name;
  int64_t capacity;
  int64_t refill;
  int64_t period_ms;
  int64_t cost;
  int on_store_error;
} limit_row;

static void expect_limit(const spile_limits *limits, const limit_row *row) {
  const spile_route *route = spile_limits_find(limits, NULL, row->route, row->tier);
  int64_t cost = 0;
  const spile_limit *limit = spile_route_limit(route, row->index, &cost, NULL);
  cr_assert(limit != NULL, "%s, %zu", row->route, row->index);
  const spile_spec *spec = spile_limit_spec(limit);
  cr_assert(strcmp(spile_limit_name(limit), row->name) == 0, "%s: %s", row->route, spile_limit_name(limit));
  cr_assert(eq(i64, spec->shape.capacity, row->capacity));
  cr_assert(eq(i64, spec->shape.refill, row->refill), "%s", row->route);
  cr_assert(eq(i64, spec->shape.period_ms, row->period_ms), "%s", row->route);
  cr_assert(eq(i64, cost, row->cost));
  cr_assert(eq(int, (int)spec->on_store_error, row->on_store_error), "%s", row->route);
}

Test(limits, a_file_with_everything_means_what_it_says) {
  char *text = limits_data("shop.json");
  limits_text *loaded = limits_text_of(text);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  cr_assert(eq(sz, loaded->warnings, 0), "%s", loaded->faults);
  static const limit_row rows[] = {
      {"GET /x", NULL, 0, "default", 60, 1, 1000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /x", NULL, 1, "always#global", 1000, 1, 900, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /search", NULL, 0, "POST /search", 20, 1, 2000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /search", "pro", 0, "POST /search", 100, 1, 100, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /search", "anonymous", 0, "POST /search", 20, 1, 2000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /x", "anonymous", 0, "default", 30, 1, 2000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /x", "no such tier", 0, "default", 60, 1, 1000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /export", NULL, 0, "POST /export", 5, 1, 20000, 5, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /login", NULL, 0, "@login", 5, 1, 60000, 1, SPILE_ON_STORE_ERROR_CLOSED},
      {"POST /reset", "pro", 0, "@login", 5, 1, 60000, 1, SPILE_ON_STORE_ERROR_CLOSED},
      {"PUT /api/x/y", NULL, 0, "* /api/*#second", 20, 1, 100, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"PUT /api/x/y", "pro", 1, "* /api/*#day", 10000, 1, 8640, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /health", NULL, 0, "always#global", 1000, 1, 900, 1, SPILE_ON_STORE_ERROR_OPEN},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    expect_limit(loaded->limits, &rows[i]);
  cr_assert(eq(str, (char *)(uintptr_t)spile_limits_key_prefix(loaded->limits), "rl"));
  const spile_route *health = spile_limits_find(loaded->limits, "GET", "/health", NULL);
  cr_assert(eq(int, spile_route_word_of(health), SPILE_ROUTE_UNLIMITED));
  cr_assert(eq(sz, spile_route_count(health), 1));
  cr_assert(eq(i64, spile_limit_spec(spile_route_limit(health, 0, NULL, NULL))->timeout_ms, 25));
  cr_assert(spile_route_limit(health, 1, NULL, NULL) == NULL);
  limits_text_finish(loaded);
  free(text);
}

Test(limits, a_bare_table_with_rates_per_second_loads_as_it_is) {
  char *text = limits_data("table.json");
  limits_text *loaded = limits_text_of(text);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  static const limit_row rows[] = {
      {"GET /", NULL, 0, "default", 60, 1, 1000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /search", NULL, 0, "POST /search", 20, 1, 2000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /export", NULL, 0, "POST /export", 5, 1, 20000, 5, SPILE_ON_STORE_ERROR_OPEN},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    expect_limit(loaded->limits, &rows[i]);
  cr_assert(eq(sz, loaded->warnings, 1));
  cr_assert(strstr(loaded->faults, "on_store_error") != NULL);
  limits_text_finish(loaded);
  free(text);
}

Test(limits, tiers_and_layers_load) {
  char *text = limits_data("layers.json");
  spile_limits *limits = limits_of(text);
  static const limit_row rows[] = {
      {"GET /x", "free", 0, "default#minute", 10, 1, 2000, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /x", "free", 1, "default#day", 1000, 1, 86400, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /x", "enterprise", 1, "default#day", 500000, 1, 172, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"POST /api/auth/login", "pro", 0, "* /api/auth/*", 10, 1, 90000, 1, SPILE_ON_STORE_ERROR_CLOSED},
      {"GET /api/items", "pro", 0, "* /api/*", 500, 1, 120, 1, SPILE_ON_STORE_ERROR_OPEN},
      {"GET /api/items", "pro", 1, "always#global", 1000, 1, 900, 1, SPILE_ON_STORE_ERROR_OPEN},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    if (rows[i].period_ms != 172) /* 500000 a day is 5 in 864 ms */
      expect_limit(limits, &rows[i]);
  }
  expect_limit(limits,
               &(limit_row){"GET /x", "enterprise", 1, "default#day", 500000, 5, 864, 1, SPILE_ON_STORE_ERROR_OPEN});
  spile_limits_unref(limits);
  free(text);
}

Test(limits, shadow_limits_come_last_whoever_has_them) {
  spile_limits *limits = limits_of(
      "{\"on_store_error\":\"fail\",\"always\":[{\"name\":\"watch\",\"capacity\":1,\"refill\":\"1/s\",\"shadow\":true},"
      "{\"name\":\"all\",\"capacity\":2,\"refill\":\"1/s\"}],"
      "\"limits\":{\"default\":[{\"name\":\"a\",\"capacity\":3,\"refill\":\"1/s\",\"shadow\":true},"
      "{\"name\":\"b\",\"capacity\":4,\"refill\":\"1/s\",\"cost\":2,\"on_full\":\"open\",\"timeout_ms\":7}]}}");
  const spile_route *route = spile_limits_find(limits, "GET", "/", NULL);
  static const char *const names[] = {"default#b", "always#all", "default#a", "always#watch"};
  cr_assert(eq(sz, spile_route_count(route), 4));
  for (size_t i = 0; i < 4; i++) {
    bool shadow = false;
    const spile_limit *limit = spile_route_limit(route, i, NULL, &shadow);
    cr_assert(eq(str, (char *)(uintptr_t)spile_limit_name(limit), (char *)(uintptr_t)names[i]));
    cr_assert(shadow == (i >= 2));
    cr_assert(route->limits[i].always == (i % 2 == 1));
  }
  const spile_spec *spec = spile_limit_spec(spile_route_limit(route, 0, NULL, NULL));
  cr_assert(eq(int, (int)spec->on_full, SPILE_ON_FULL_OPEN));
  cr_assert(eq(i64, spec->timeout_ms, 7));
  cr_assert(eq(int, (int)spec->on_store_error, SPILE_ON_STORE_ERROR_FAIL));
  spile_limits_unref(limits);
}

Test(limits, every_request_but_a_blocked_one_meets_the_limits_of_always) {
  spile_limits *limits =
      limits_of("{\"on_store_error\":\"open\",\"always\":[{\"name\":\"a\",\"capacity\":1,"
                "\"refill\":\"1/s\"}],\"limits\":{\"default\":\"unlimited\",\"GET /a\":\"blocked\"}}");
  const spile_route *route = spile_limits_find(limits, "GET", "/a", NULL);
  cr_assert(eq(int, spile_route_word_of(route), SPILE_ROUTE_BLOCKED));
  cr_assert(eq(sz, spile_route_count(route), 0));
  cr_assert(eq(sz, spile_route_count(spile_limits_find(limits, "GET", "/b", NULL)), 1));
  spile_limits_unref(limits);
}

Test(limits, a_key_is_a_kind_or_a_list_of_kinds) {
  spile_limits *limits = limits_of(FILE_OF("\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":\"global\"},"
                                           "\"GET /b\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"api_key\","
                                           "\"header:X-Client\",\"user\",\"route\"]}"));
  const spile__key_chain *chain = &spile_limits_find(limits, "GET", "/", NULL)->limits[0].chain;
  cr_assert(eq(sz, chain->n, 3));
  cr_assert(chain->parts[0].kind == SPILE__KEY_TENANT && chain->parts[1].kind == SPILE__KEY_USER &&
            chain->parts[2].kind == SPILE__KEY_IP);
  chain = &spile_limits_find(limits, "GET", "/a", NULL)->limits[0].chain;
  cr_assert(chain->n == 1 && chain->parts[0].kind == SPILE__KEY_GLOBAL);
  chain = &spile_limits_find(limits, "GET", "/b", NULL)->limits[0].chain;
  cr_assert(chain->n == 4 && chain->parts[0].kind == SPILE__KEY_API_KEY && chain->parts[3].kind == SPILE__KEY_ROUTE);
  cr_assert(chain->parts[1].kind == SPILE__KEY_HEADER && strcmp(chain->parts[1].header, "X-Client") == 0);
  spile_limits_unref(limits);
}

/* ---- CONF-03 ---- */

static void expect_rates(void) {
  static const struct {
    const char *rate;
    int64_t refill;
    int64_t period_ms;
  } rows[] = {{"0.05", 1, 20000}, {"0.1", 1, 10000},       {"0.3", 3, 10000},
              {"1.5", 3, 2000},   {"0.333", 333, 1000000}, {"1", 1, 1000},
              {"1.50", 3, 2000},  {"1000", 1, 1},          {"0.000000001", 1, 1000000000000}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[300];
    bool slow = rows[i].period_ms > INT64_C(315360000000);
    (void)snprintf(text, sizeof(text),
                   "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"capacity\":5,\"refillPerSec\":%s}}}",
                   rows[i].rate);
    limits_text *loaded = limits_text_of(text);
    cr_assert(eq(int, loaded->result, slow ? SPILE_ECONFIG : SPILE_OK), "%s", loaded->faults);
    if (!slow)
      expect_limit(loaded->limits, &(limit_row){"GET /", NULL, 0, "default", 5, rows[i].refill, rows[i].period_ms, 1,
                                                SPILE_ON_STORE_ERROR_OPEN});
    limits_text_finish(loaded);
  }
}

Test(limits, CONF_03_decimal_rates_are_exact) {
  expect_rates();
}

Test(limits, CONF_03_decimal_rates_are_exact_where_the_point_is_a_comma) {
  char directory[TEMP_DIR_LEN];
  char command[TEMP_DIR_LEN + 64];
  temp_dir_make(directory);
  (void)snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null", directory);
  bool made = system(command) == 0 && setenv("LOCPATH", directory, 1) == 0;
  const char *found = made ? setlocale(LC_ALL, "de_DE.UTF-8") : NULL;
  temp_dir_remove(directory);
  cr_assert(found != NULL, "localedef cannot make de_DE here; install Debian's package locales");
  char comma[8];
  (void)snprintf(comma, sizeof(comma), "%.1f", 0.5);
  cr_assert(eq(str, comma, "0,5"));
  expect_rates();
}

Test(limits, CONF_03_waits_of_a_decimal_rate_are_exact) {
  spile_limits *limits = limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"capacity\":5,"
                                   "\"refillPerSec\":0.05,\"cost\":5}}}");
  spile_fake_clock *clock = spile_fake_clock_new(0);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.clock = clock;
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open(&limiter, "memory:", &options, NULL), SPILE_OK));
  int64_t cost;
  const spile_limit *limit = spile_route_limit(spile_limits_find(limits, "GET", "/", NULL), 0, &cost, NULL);
  static const struct {
    int64_t at_ms;
    int result;
    int64_t retry_ms;
  } rows[] = {{0, SPILE_ALLOWED, 0},
              {0, SPILE_DENIED, 100000},
              {19, SPILE_DENIED, 99981},
              {99999, SPILE_DENIED, 1},
              {100000, SPILE_ALLOWED, 0}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile_decision decision;
    spile_fake_clock_set(clock, rows[i].at_ms);
    cr_assert(eq(int, spile_take(limiter, limit, "k", 1, cost, &decision), rows[i].result));
    cr_assert(eq(i64, decision.retry_after_ms, rows[i].retry_ms));
  }
  spile_close(limiter);
  spile_fake_clock_free(clock);
  spile_limits_unref(limits);
}

/* ---- What is said of each fault ---- */

static void expect_fault(const char *text, const char *place, const char *part) {
  limits_text *loaded = limits_text_of(text);
  cr_assert(eq(int, loaded->result, SPILE_ECONFIG), "%s", text);
  cr_assert(strstr(loaded->faults, place) != NULL, "%s\nhas no fault at %s but\n%s", text, place, loaded->faults);
  cr_assert(strstr(loaded->faults, part) != NULL, "%s\nhas no fault with \"%s\" but\n%s", text, part, loaded->faults);
  cr_assert(strncmp(loaded->error.message, "test.json:", 10) == 0, "%s", loaded->error.message);
  limits_text_finish(loaded);
}

Test(limits, CONF_01_a_number_that_is_none_is_told_with_value_and_path) {
  static const struct {
    const char *value;
    const char *what;
  } rows[] = {
      {"0", "0 is too small"},
      {"-1", "-1 is too small"},
      {"1.5", "1.5 is no whole number"},
      {"1e3", "1e3 is no whole number"},
      {"60.0", "60.0 is no whole number"},
      {"\"60\"", "\"60\" is no whole number"},
      {"9007199254740993", "9007199254740993 is too large"},
      {"9007199254740992", "9007199254740992 is too large"},
      {"1e999", "1e999 is no whole number"},
      {"98765432198765432198765", "98765432198765432198765 is too large"},
      {"null", "null is no whole number"},
      {"true", "true is no whole number"},
      {"[60]", "a list is no whole number"},
      {"{}", "an object is no whole number"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[300];
    (void)snprintf(text, sizeof(text), "{\"limits\":{\n \"default\":{\"capacity\":%s,\"refill\":\"1/s\"}}}",
                   rows[i].value);
    expect_fault(text, "2:13 limits.default.capacity: ", rows[i].what);
    (void)snprintf(text, sizeof(text), FILE_OF("\"GET /a\":{\"capacity\":5,\"refill\":\"1/s\",\"cost\":%s}"),
                   rows[i].value);
    expect_fault(text, "limits[\"GET /a\"].cost: ", rows[i].what);
  }
  expect_fault("{\"limits\":{\"default\":{\"refill\":\"1/s\"}}}", "1:12 limits.default: ", "no capacity");
  expect_fault(FILE_OF("\"GET /a\":{\"capacity\":5,\"refill\":\"1/s\",\"cost\":6}"),
               "limits[\"GET /a\"].cost: ", "a cost of 6 is above the capacity of 5");
}

Test(limits, CONF_01_what_is_no_json_is_told_with_its_place) {
  static const char *const values[] = {"6O", "NaN", "-", "0x10", "'1'", "01"};
  for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
    char text[300];
    (void)snprintf(text, sizeof(text), "{\"limits\":{\n \"default\":{\"capacity\":%s,\"refill\":\"1/s\"}}}", values[i]);
    limits_text *loaded = limits_text_of(text);
    int line = 0;
    int column = 0;
    cr_assert(eq(int, sscanf(loaded->faults, "%d:%d ", &line, &column), 2));
    cr_assert(line == 2 && column >= 24 && column <= 26, "%s: %s", values[i], loaded->faults);
    cr_assert(eq(sz, loaded->errors, 1));
    limits_text_finish(loaded);
  }
}

Test(limits, CONF_01_a_large_capacity_is_fine_where_the_arithmetic_is_exact) {
  spile_limits *limits =
      limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"capacity\":2147483648,\"refill\":\"10/s\"}}}");
  cr_assert(eq(i64, spile_limit_capacity(spile_route_limit(spile_limits_find(limits, "", "", ""), 0, NULL, NULL)),
               INT64_C(2147483648)));
  spile_limits_unref(limits);
  expect_fault("{\"limits\":{\"default\":{\"capacity\":9007199254740991,\"refill\":\"1/s\"}}}",
               "limits.default: ", "at this refill");
}

Test(limits, CONF_02_unknown_and_repeated_names_name_the_place) {
  expect_fault(FILE_OF("\"GET /a\":{\"capasity\":60,\"capacity\":60,\"refill\":\"1/s\"}"),
               "limits[\"GET /a\"].capasity: ", "write \"capacity\", which is the nearest");
  expect_fault("{\"limits\":{" DEFAULT ",\n\"POST /search\":\"unlimited\",\n \"POST /search\":\"blocked\"}}",
               "3:2 limits[\"POST /search\"]: ", "twice");
  expect_fault("{\"limits\":{\"default\":{\"capacity\":60,\"refill\":\"1/s\",\n\"capacity\":61}}}",
               "2:1 limits.default.capacity: ", "twice");
  expect_fault(FILE_OF("\"GET /a\":\"unlimited\",\n\"get  /a/\":\"blocked\""),
               "2:1 limits[\"get  /a/\"]: ", "means the same as \"GET /a\" (line 1)");
  expect_fault("{\"limits\":{" DEFAULT "}}\n x", "2:2 ", "end of file expected");
}

Test(limits, a_nul_byte_is_no_json_wherever_it_stands) {
  static const char text[] = "{\"limits\":{\"default\":{\"capacity\":6,\"refill\":\"1/s\"}}}";
  for (size_t i = 0; i <= sizeof(text) - 1; i++) {
    char with[sizeof(text) + 1];
    memcpy(with, text, i);
    with[i] = '\0';
    memcpy(with + i + 1, text + i, sizeof(text) - i);
    limits_text *loaded = limits_text_of_bytes(with, sizeof(text));
    cr_assert(eq(sz, loaded->errors, 1));
    int column = 0;
    cr_assert(eq(int, sscanf(loaded->faults, "1:%d : a NUL byte", &column), 1), "%s", loaded->faults);
    cr_assert(eq(int, column, (int)i + 1));
    limits_text_finish(loaded);
  }
}

Test(limits, CONF_01_a_text_in_the_wrong_place_is_told_where_it_begins) {
  expect_fault("\"x\"", "1:1 : ", "expected");
  expect_fault(" \n \"a\\\"b\"", "2:2 : ", "expected");
  expect_fault("[\"a\" \"b\"]", "1:6 : ", "expected");
  expect_fault("{\"a\":\"b\"\n \"c\":1}", "2:2 : ", "expected");
  expect_fault("{} \"b\"", "1:4 : ", "expected");
  /* In a text it is the byte that is wrong. */
  expect_fault("{\"a\":\"b\\q\"}", "1:7 : ", "invalid escape");
}

Test(limits, a_byte_order_mark_is_told_as_such) {
  expect_fault("\xef\xbb\xbf{\"limits\":{" DEFAULT "}}",
               "1:1 : ", "a byte order mark stands before the JSON; save the file as UTF-8 without it");
  expect_fault("\xff\xfe{", "1:1 : ", "the text begins as UTF-16 does; ");
  limits_text *loaded = limits_text_of_bytes("\xfe\xff\0{", 4);
  cr_assert(strstr(loaded->faults, "UTF-16") != NULL, "%s", loaded->faults);
  limits_text_finish(loaded);
}

Test(limits, a_repeated_member_is_found_behind_escaped_quotes_and_brackets) {
  expect_fault("{\"a\":[1,{\"b\\\"]\":2,\"c\\\\\":{\"x\":[],\n\"y\\\"\":1,\"y\\\"\":2}}]}",
               "2:9 a[1][\"c\\x5c\"][\"y\\x22\"]: ", "twice");
  expect_fault("{\"x\":1,\"\\u0078\":2}", "1:8 x: ", "twice");
  expect_fault("{\"limits\":{\"default\":1,\"\\u0064ef\\u0061ult\":2}}", "1:24 limits.default: ", "twice");
  expect_fault("{\"\\u00e4\":[{\"\\\"\":1,\"\\u0022\":2}]}", "1:20 [\"\\xc3\\xa4\"][0][\"\\x22\"]: ", "twice");
}

Test(limits, CONF_05_a_file_without_default_is_refused_and_what_is_not_listed_meets_it) {
  expect_fault("{\"limits\":{\"POST /search\":{\"capacity\":1,\"refill\":\"1/s\"}}}", "1:2 limits: ", "no \"default\"");
  expect_fault("{}", "1:1 : ", "no \"limits\"");
  expect_fault("[]", "1:1 : ", "a list is no object");
  spile_limits *limits = limits_of(FILE_OF("\"POST /search\":\"unlimited\""));
  static const char *const routes[] = {"GET /x", "POST /serch", "", "default", "POST", "/search", "POST/search", "\n"};
  for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
    cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, NULL, routes[i], NULL), "default"), "%s", routes[i]);
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, NULL, NULL, NULL), "default"));
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "", "/search", NULL), "default"));
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "POST", "/search", NULL), "POST /search"));
  spile_limits_unref(limits);
}

typedef struct fault_row {
  const char *entries; /* behind default */
  const char *place;
  const char *what;
} fault_row;

static const fault_row fault_rows[] = {
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"refillPerSec\":1}", "limits[\"GET /a\"].refillPerSec: ", "both"},
    {"\"GET /a\":{\"capacity\":1}", "limits[\"GET /a\"]: ", "no refill"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":1}", "limits[\"GET /a\"].refill: ", "1 is no rate"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s,capacity=9\"}", "limits[\"GET /a\"].refill: ", "is no rate"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"\"}", "limits[\"GET /a\"].refill: ",
     "\"\" is no rate: the text ends where a count should be; write tokens and a period"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"10\"}",
     "limits[\"GET /a\"].refill: ", "\"10\" is no rate: the text ends where a '/' and a period should be;"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"0/s\"}", "limits[\"GET /a\"].refill: ", "the count is zero"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/y\"}", "limits[\"GET /a\"].refill: ", "no unit of time"},
    {"\"GET /a\":{\"capacity\":1,\"refillPerSec\":0}", "limits[\"GET /a\"].refillPerSec: ", "the count is zero"},
    {"\"GET /a\":{\"capacity\":1,\"refillPerSec\":-0.5}", "limits[\"GET /a\"].refillPerSec: ", "-0.5 is no rate"},
    {"\"GET /a\":{\"capacity\":1,\"refillPerSec\":5e-2}", "limits[\"GET /a\"].refillPerSec: ", "5e-2 is no rate"},
    {"\"GET /a\":{\"capacity\":1,\"refillPerSec\":\"1\"}", "limits[\"GET /a\"].refillPerSec: ", "\"1\" is no rate"},
    {"\"GET /a\":{\"capacity\":1,\"refillPerSec\":0.0000000001}", "refillPerSec: ", "more than 9 decimals"},
    {"\"GET /a\":{\"capacity\":1,\"window\":\"1m\"}", "limits[\"GET /a\"].window: ", "token_bucket has no window"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"algorithm\":\"tokenbucket\"}",
     "limits[\"GET /a\"].algorithm: ", "write \"token_bucket\""},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[]}", "limits[\"GET /a\"].key: ", "a list of 0 kinds"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"ip\",\"ip\"]}", "limits[\"GET /a\"].key[1]: ", "twice"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"usr\"]}",
     "limits[\"GET /a\"].key[0]: ", "write \"user\""},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"header:\"]}", "key[0]: ", "no name of a header"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"header:X Y\"]}", "key[0]: ", "no name of a header"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"on_full\":\"close\"}", "on_full: ", "write \"closed\""},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"on_store_error\":\"default\"}",
     "on_store_error: ", "\"default\" is not one of the words"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"timeout_ms\":3600001}", "timeout_ms: ", "too large"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"timeout_ms\":0}", "timeout_ms: ", "too small"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"shadow\":1}", "shadow: ", "neither true nor false"},
    {"\"GET /a\":{\"algorithm\":\"fixed_window\",\"capacity\":1,\"window\":\"1s\",\"debt\":1}",
     "limits[\"GET /a\"]: ", "debt is 1 tokens, and a window cannot owe any"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"debt\":-1}", "debt: ", "too small"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"name\":\"\"}", "name: ", "is no name"},
    {"\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"name\":\"a\\tb\"}", "name: ", "\"a\\x09b\" is no name"},
    {"\"GET /a\":[]", "limits[\"GET /a\"]: ", "an empty list is no entry"},
    {"\"GET /a\":60", "limits[\"GET /a\"]: ", "60 is no entry"},
    {"\"GET /a\":null", "limits[\"GET /a\"]: ", "null is no entry"},
    {"\"GET /a\":[{\"capacity\":1,\"refill\":\"1/s\"}]", "limits[\"GET /a\"][0]: ", "needs a name"},
    {"\"GET "
     "/a\":[{\"name\":\"x\",\"capacity\":1,\"refill\":\"1/s\"},{\"name\":\"x\",\"capacity\":2,\"refill\":\"1/s\"}]",
     "limits[\"GET /a\"][1]: ", "twice"},
    {"\"GET /a\":\"unlimitd\"", "limits[\"GET /a\"]: ", "write \"unlimited\""},
    {"\"GET /a\":\"Blocked\"", "limits[\"GET /a\"]: ", "write \"blocked\""},
    {"\"GET /a\":[\"unlimited\"]", "limits[\"GET /a\"][0]: ", "no named limit"},
    {"\"GET /a\":\"10/s\"", "limits[\"GET /a\"]: ", "write a limit as an object, such as {\"capacity\": 10, "},
    {"\"defualt\":\"unlimited\"", "limits.defualt: ", "write \"default\""},
    {"\"/a\":\"unlimited\"", "limits[\"/a\"]: ", "is no route"},
    {"\"GET a\":\"unlimited\"", "limits[\"GET a\"]: ", "has a path that does not begin with a slash"},
    {"\"G* /a\":\"unlimited\"", "limits[\"G* /a\"]: ", "no method"},
    {"\"GET /a?b=1\":\"unlimited\"", "limits[\"GET /a?b=1\"]: ", "query"},
    {"\"GET /a#b\":\"unlimited\"", "limits[\"GET /a#b\"]: ", "has a fragment"},
    {"\"* /a*\":\"unlimited\",\"* /*a\":\"unlimited\"", "limits[\"* /*a\"]: ", "can match one request"},
    {"\"GET /a*/c\":\"unlimited\",\"GET /a/*c\":\"unlimited\"", "limits[\"GET /a/*c\"]: ", "can match one request"},
};

static void expect_one_fault(const fault_row *row) {
  char text[1000];
  (void)snprintf(text, sizeof(text), "{\"on_store_error\":\"open\",\"limits\":{" DEFAULT ",%s}}", row->entries);
  limits_text *loaded = limits_text_of(text);
  cr_assert(eq(int, loaded->result, SPILE_ECONFIG), "%s", text);
  cr_assert(eq(sz, loaded->errors, 1), "%s", loaded->faults);
  cr_assert(strstr(loaded->faults, row->place) != NULL, "no %s in %s", row->place, loaded->faults);
  cr_assert(strstr(loaded->faults, row->what) != NULL, "no %s in %s", row->what, loaded->faults);
  /* Every fault says what to do. */
  cr_assert(strstr(loaded->faults, "; \n") == NULL, "%s", loaded->faults);
  limits_text_finish(loaded);
}

Test(limits, each_fault_is_told_with_its_path_and_what_to_write) {
  for (size_t i = 0; i < sizeof(fault_rows) / sizeof(fault_rows[0]); i++)
    expect_one_fault(&fault_rows[i]);
}

static const fault_row top_rows[] = {
    {"\"on_store_eror\":\"open\"", "1:2 on_store_eror: ", "write \"on_store_error\""},
    {"\"key_prefix\":\"a b\"", "key_prefix: ", "no prefix"},
    {"\"key_prefix\":1", "key_prefix: ", "no prefix"},
    {"\"timeout_ms\":\"25\"", "timeout_ms: ", "no whole number"},
    {"\"key\":{}", "key: ", "an object is not one of the words"},
    {"\"ignore_case\":\"yes\"", "ignore_case: ", "neither true nor false"},
    {"\"named\":[]", "named: ", "no object"},
    {"\"named\":{\"unlimited\":{\"capacity\":1,\"refill\":\"1/s\"}}", "named.unlimited: ", "cannot be a name"},
    {"\"named\":{\"a\":{\"capacity\":1,\"refill\":\"1/s\",\"name\":\"b\"}}", "named.a.name: ", "has a name already"},
    {"\"always\":{}", "always: ", "no list"},
    {"\"always\":[{\"capacity\":1,\"refill\":\"1/s\"}]", "always[0]: ", "needs a name"},
    {"\"tiers\":[]", "tiers: ", "no object"},
    {"\"tiers\":{\"pro\":[]}", "tiers.pro: ", "no object"},
    {"\"tiers\":{\"\":{}}", "tiers[\"\"]: ", "cannot be the name"},
    {"\"tiers\":{\"pro\":{\"GET /a\":\"x\"}}", "tiers.pro[\"GET /a\"]: ", "no named limit"},
    {"\"skip\":{}", "skip: ", "no list"},
    {"\"skip\":[{}]", "skip[0]: ", "matches nothing, or everything"},
    {"\"skip\":[{\"value\":\"1\",\"ip\":\"::1\"}]", "skip[0].value: ", "which header"},
    {"\"skip\":[{\"ip\":\"10.0.0.1/8\"}]", "skip[0].ip: ", "no network"},
    {"\"skip\":[{\"ip\":\"10.0.0.0/08\"}]", "skip[0].ip: ", "no network"},
    {"\"skip\":[{\"header\":\"X Probe\"}]", "skip[0].header: ", "no name that a header can have"},
    {"\"skip\":[{\"header\":\"X-Probe:\"}]", "skip[0].header: ", "no name that a header can have"},
    {"\"skip\":[{\"header\":\"X-Probe\",\"value\":\" 1\"}]", "skip[0].value: ", "begins or ends with blanks"},
    {"\"skip\":[{\"route\":\"default\"}]",
     "skip[0].route: ", "\"default\" is what all routes without an entry meet, and no route itself; write METHOD"},
    {"\"skip\":[{\"route\":\"/health\"}]", "skip[0].route: ", "no route"},
    {"\"skip\":[{\"path\":\"/health\"}]", "skip[0].path: ", "no member \"path\""},
};

Test(limits, each_fault_outside_of_limits_is_told) {
  for (size_t i = 0; i < sizeof(top_rows) / sizeof(top_rows[0]); i++) {
    char text[1000];
    (void)snprintf(text, sizeof(text), "{%s,\"limits\":{" DEFAULT "}}", top_rows[i].entries);
    expect_fault(text, top_rows[i].place, top_rows[i].what);
  }
}

Test(limits, an_algorithm_with_a_window_is_read_or_the_build_says_that_it_lacks_it) {
  static const char *const names[] = {"fixed_window", "sliding_window", "sliding_log"};
  for (size_t i = 0; i < 3; i++) {
    char text[300];
    char what[100];
    (void)snprintf(text, sizeof(text), FILE_OF("\"GET /a\":{\"algorithm\":\"%s\",\"capacity\":5,\"window\":\"5m\"}"),
                   names[i]);
    limits_text *loaded = limits_text_of(text);
    (void)snprintf(what, sizeof(what), "limits[\"GET /a\"].algorithm: this build does not have %s", names[i]);
    cr_assert(loaded->result == SPILE_OK || strstr(loaded->faults, what) != NULL, "%s", loaded->faults);
    if (loaded->result == SPILE_OK) {
      const spile_spec *spec =
          spile_limit_spec(spile_route_limit(spile_limits_find(loaded->limits, "GET", "/a", NULL), 0, NULL, NULL));
      cr_assert(eq(i64, spec->shape.capacity, 5));
      cr_assert(eq(i64, spec->shape.period_ms, 300000));
    }
    limits_text_finish(loaded);
    (void)snprintf(text, sizeof(text), FILE_OF("\"GET /a\":{\"algorithm\":\"%s\",\"capacity\":5}"), names[i]);
    expect_fault(text, "limits[\"GET /a\"]", "no window");
    (void)snprintf(text, sizeof(text),
                   FILE_OF("\"GET /a\":{\"algorithm\":\"%s\",\"capacity\":5,\"window\":\"5m\",\"refill\":\"1/s\"}"),
                   names[i]);
    expect_fault(text, "limits[\"GET /a\"].refill", "has no refill");
    (void)snprintf(text, sizeof(text), FILE_OF("\"GET /a\":{\"algorithm\":\"%s\",\"capacity\":5,\"window\":\"5x\"}"),
                   names[i]);
    expect_fault(text, "limits[\"GET /a\"].window", "no length of time");
  }
}

Test(limits, twelve_faults_are_told_at_once_and_in_order) {
  char *text = limits_data("faults.json");
  limits_text *loaded = limits_text_of(text);
  static const char *const places[] = {
      "2:3 on_store_error: ",
      "3:21 key[1]: ",
      "4:25 named.login.capacity: ",
      "6:18 limits.default.capacity: ",
      "7:17 limits[\"GET /a\"].capasity: ",
      "8:5 limits[\"get  /a/\"]: ",
      "9:39 limits[\"POST /search\"].refill: ",
      "10:60 limits[\"POST /export\"].cost: ",
      "11:5 limits[\"POST /login\"]: ",
      "12:19 limits[\"* /api/*\"][0]: ",
      "13:5 limits[\"* /*/ipa\"]: ",
      "14:5 limits.search: ",
  };
  cr_assert(eq(sz, loaded->errors, 12), "%s", loaded->faults);
  const char *at = loaded->faults;
  for (size_t i = 0; i < 12; i++) {
    cr_assert(strncmp(at, places[i], strlen(places[i])) == 0, "not %s but %s", places[i], at);
    at = strchr(at, '\n') + 1;
  }
  cr_assert(strstr(loaded->error.message, "test.json:2:3: on_store_error: ") == loaded->error.message);
  cr_assert(strstr(loaded->error.message, "(the first of 12 errors)") != NULL, "%s", loaded->error.message);
  limits_text_finish(loaded);
  free(text);
}

/* ---- Warnings ---- */

static void expect_warning(const char *text, const char *part) {
  limits_text *loaded = limits_text_of(text);
  cr_assert(eq(int, loaded->result, SPILE_OK), "%s", loaded->faults);
  cr_assert(eq(sz, loaded->warnings, part != NULL ? 1 : 0), "%s: %s", text, loaded->faults);
  cr_assert(part == NULL || strstr(loaded->faults, part) != NULL, "%s", loaded->faults);
  limits_text_finish(loaded);
}

Test(limits, what_somebody_should_look_at_is_a_warning) {
  expect_warning("{\"limits\":{" DEFAULT "}}", "no on_store_error");
  expect_warning(FILE_OF("\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"ip\"]}"),
                 "limits[\"GET /a\"].key: ip is the only key");
  expect_warning(FILE_OF("\"GET /a\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":[\"tenant\",\"ip\"]}"), NULL);
  expect_warning("{\"on_store_error\":\"open\",\"key\":[\"ip\"],\"tiers\":{\"pro\":{}},\"limits\":{" DEFAULT "}}",
                 "warning 1:26 key: ip is the only key");
  expect_warning("{\"on_store_error\":\"open\",\"key\":[\"ip\"],\"limits\":{" DEFAULT "}}", NULL);
  expect_warning(FILE_OF("\"GET /a\":{\"capacity\":91,\"refill\":\"1/d\"}"), "takes 91 days to be full again");
  expect_warning(FILE_OF("\"GET /a\":{\"capacity\":90,\"refill\":\"1/d\"}"), NULL);
  expect_warning(FILE_OF("\"GET /a\":{\"capacity\":9,\"refill\":\"1/d\",\"key\":[\"global\",\"tenant\"]}"),
                 "never asked for");
}

/* ---- Files ---- */

Test(limits, a_file_that_cannot_be_read_is_told) {
  spile_limits *limits = (spile_limits *)(uintptr_t)1;
  spile_error error = {0};
  cr_assert(eq(int, spile_limits_load(&limits, "/nonexistent/limits.json", NULL, NULL, &error), SPILE_ECONFIG));
  cr_assert(limits == NULL && strstr(error.message, "cannot read the file") != NULL, "%s", error.message);
  error = (spile_error){0};
  cr_assert(eq(int, spile_limits_load(&limits, "/", NULL, NULL, &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "cannot read the file") != NULL, "%s", error.message);
  cr_assert(eq(int, spile_limits_load(NULL, "/", NULL, NULL, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_limits_load(&limits, NULL, NULL, NULL, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_limits_parse(&limits, NULL, 0, "x", NULL, NULL, NULL), SPILE_EINVAL));
}

Test(limits, a_file_is_loaded_by_its_path) {
  spile_limits *limits;
  spile_error error = {0};
  cr_assert(spile_limits_load(&limits, limits_data_path("shop.json"), NULL, NULL, &error) == SPILE_OK, "%s",
            error.message);
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "POST", "/search", NULL), "POST /search"));
  spile_limits_unref(spile_limits_ref(limits));
  spile_limits_unref(limits);
  spile_limits_unref(NULL);
}

/* ---- Skip ---- */

static const char *probe_header(void *user, const char *name) {
  return strcmp(name, "X-Probe") == 0 ? user : NULL;
}

Test(limits, an_entry_of_skip_matches_when_all_its_members_do) {
  spile_limits *limits = limits_of("{\"on_store_error\":\"open\",\"limits\":{" DEFAULT "},\"skip\":["
                                   "{\"route\":\"get /health/\"},{\"ip\":\"10.0.0.0/8\",\"route\":\"* /metrics/*\"},"
                                   "{\"header\":\"X-Probe\",\"value\":\"yes\"}]}");
  spile_caller caller = SPILE_CALLER_INIT;
  cr_assert(spile__limits_skips(limits, "GET", "/health", &caller));
  cr_assert(spile__limits_skips(limits, "get", "//health/?x", &caller));
  cr_assert(not(spile__limits_skips(limits, "POST", "/health", &caller)));
  cr_assert(not(spile__limits_skips(limits, "GET", "/metrics", &caller)));
  caller.ip = "10.1.2.3";
  cr_assert(spile__limits_skips(limits, "GET", "/metrics", &caller));
  cr_assert(spile__limits_skips(limits, NULL, "PUT /metrics/a/b", &caller));
  cr_assert(not(spile__limits_skips(limits, "GET", "/x", &caller)));
  caller.ip_is_proxy = true;
  cr_assert(not(spile__limits_skips(limits, "GET", "/metrics", &caller)));
  cr_assert(spile__limits_skips(limits, "GET", "/health", &caller));
  caller.ip_is_proxy = false;
  caller.ip = "11.1.2.3";
  cr_assert(not(spile__limits_skips(limits, "GET", "/metrics", &caller)));
  caller.header = probe_header;
  caller.header_user = "no";
  cr_assert(not(spile__limits_skips(limits, "GET", "/x", &caller)));
  caller.header_user = "yes";
  cr_assert(spile__limits_skips(limits, "GET", "/x", &caller));
  spile_limits_unref(limits);
}
