/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several faults in one limits file: each is told, whatever else is wrong, and nothing that only follows from another.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits_text.h"

/* A file whose faults are all of these, "PATH: WHAT" from its beginning on, in the order of the text. */
typedef struct file_row {
  const char *text;
  const char *faults[6];
} file_row;

static void expect_faults(const file_row *row) {
  limits_text *loaded = limits_text_of(row->text);
  size_t n = 0;
  const char *at = loaded->faults;
  for (; n < sizeof(row->faults) / sizeof(row->faults[0]) && row->faults[n] != NULL; n++) {
    const char *fault = strchr(at, ' ');
    cr_assert(fault != NULL && strncmp(fault + 1, row->faults[n], strlen(row->faults[n])) == 0, "%s\nhas no %s in\n%s",
              row->text, row->faults[n], loaded->faults);
    at = strchr(at, '\n') + 1;
  }
  cr_assert(eq(sz, loaded->errors + loaded->warnings, n), "%s\nhas\n%s", row->text, loaded->faults);
  limits_text_finish(loaded);
}

/* Writes what fits into 100 bytes. */
__attribute__((format(printf, 2, 3))) static size_t put(char *at, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int n = vsnprintf(at, 100, format, args);
  va_end(args);
  cr_assert(n >= 0 && n < 100);
  return (size_t)n;
}

#define EXPECT_ALL(rows)                                      \
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) \
  expect_faults(&rows[i])

#define DEFAULT_IS(limit) "{\"on_store_error\":\"open\",\"limits\":{\"default\":" limit "}}"
#define NAMED_N "{\"name\":\"n\",\"capacity\":5,\"refill\":\"1/s\""

/* ---- Lists ---- */

Test(limits_faults, a_name_is_told_twice_whatever_is_wrong_with_its_limits) {
  static const file_row rows[] = {
      {DEFAULT_IS("[" NAMED_N ",\"cost\":6}," NAMED_N "}]"),
       {"limits.default[0].cost: a cost of 6", "limits.default[1]: this list has \"default#n\" twice"}},
      {DEFAULT_IS("[" NAMED_N "}," NAMED_N ",\"on_full\":\"x\"}]"),
       {"limits.default[1]: this list has \"default#n\" twice", "limits.default[1].on_full: \"x\""}},
      {DEFAULT_IS("[" NAMED_N ",\"cost\":6}," NAMED_N "}," NAMED_N "}]"),
       {"limits.default[0].cost: ", "limits.default[1]: this list has", "limits.default[2]: this list has"}},
      {"{\"on_store_error\":\"open\",\"named\":{\"n\":{\"capacity\":0,\"refill\":\"1/s\"}},\"limits\":{\"default\":"
       "[\"n\",\"n\"]}}",
       {"named.n.capacity: 0 is too small", "limits.default[1]: this list has \"@n\" twice"}},
      {"{\"on_store_error\":\"open\",\"named\":{\"n\":{\"capacity\":5,\"refill\":\"1/s\",\"name\":\"q\"}},\"limits\":{"
       "\"default\":[\"n\",\"n\"]}}",
       {"named.n.name: a named limit has a name already", "limits.default[1]: this list has \"@n\" twice"}},
      {"{\"on_store_error\":\"open\",\"always\":[" NAMED_N ",\"cost\":0}," NAMED_N "}],\"limits\":{\"default\":"
       "\"unlimited\"}}",
       {"always[0].cost: 0 is too small", "always[1]: this list has \"always#n\" twice"}},
      {"{\"on_store_error\":\"open\",\"named\":{\"n\":{\"capacity\":0,\"refill\":\"1/s\"}},\"always\":[\"n\"],"
       "\"limits\":{\"default\":\"n\"}}",
       {"named.n.capacity: 0 is too small", "limits.default: \"@n\" is in \"always\" as well"}},
      /* Whoever leaves out a name has one fault, and whoever misspells "name" too. */
      {DEFAULT_IS("[{\"capacity\":5,\"refill\":\"1/s\"},{\"capacity\":5,\"refill\":\"1/s\"}]"),
       {"limits.default[0]: a limit in a list needs a name", "limits.default[1]: a limit in a list needs a name"}},
      {DEFAULT_IS("[{\"nmae\":\"n\",\"capacity\":5,\"refill\":\"1/s\"}]"),
       {"limits.default[0].nmae: there is no member"}},
  };
  EXPECT_ALL(rows);
}

Test(limits_faults, what_stands_behind_the_most_limits_that_a_list_may_have_is_read) {
  char text[2000] = "{\"on_store_error\":\"open\",\"always\":[" NAMED_N "}],\"limits\":{\"default\":[\"n\"";
  for (size_t i = 0; i < 15; i++)
    (void)strcat(text, ",\"q\"");
  (void)strcat(text, "," NAMED_N "},{\"name\":\"z\",\"capacity\":0,\"refill\":\"1/s\"}]}}");
  limits_text *loaded = limits_text_of(text);
  cr_assert(strstr(loaded->faults, "limits.default[16]: more than 16 limits in one list") != NULL, "%s",
            loaded->faults);
  cr_assert(strstr(loaded->faults, "limits.default[17].capacity: 0 is too small") != NULL, "%s", loaded->faults);
  cr_assert(strstr(loaded->faults, "with those of") == NULL, "%s", loaded->faults);
  /* These, and 16 limits that are not named. */
  cr_assert(eq(sz, loaded->errors, 18), "%s", loaded->faults);
  limits_text_finish(loaded);
}

Test(limits_faults, a_list_of_kinds_has_all_its_faults_told) {
  static const file_row rows[] = {
      {DEFAULT_IS("{\"capacity\":5,\"refill\":\"1/s\",\"key\":[\"zz\",\"ip\",\"ip\"]}"),
       {"limits.default.key[0]: \"zz\" is not one", "limits.default.key[2]: \"ip\" is in the list twice"}},
      {DEFAULT_IS("{\"capacity\":5,\"refill\":\"1/s\",\"key\":[\"zz\",\"zz\",\"ip\",\"ip\",\"ip\",\"user\",\"route\","
                  "\"global\",\"x\"]}"),
       {"limits.default.key: a list of 9 kinds",
        "limits.default.key[0]: ", "limits.default.key[1]: ", "limits.default.key[3]: \"ip\" is in the list twice",
        "limits.default.key[4]: \"ip\" is in the list twice", "limits.default.key[7]: this is never asked for"}},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    limits_text *loaded = limits_text_of(rows[i].text);
    for (size_t j = 0; j < 6 && rows[i].faults[j] != NULL; j++)
      cr_assert(strstr(loaded->faults, rows[i].faults[j]) != NULL, "no %s in %s", rows[i].faults[j], loaded->faults);
    cr_assert(eq(sz, loaded->errors, i == 0 ? 2 : 5), "%s", loaded->faults);
    limits_text_finish(loaded);
  }
}

/* ---- Bounds ---- */

Test(limits_faults, bounds_are_told_whatever_else_is_wrong) {
  static const file_row rows[] = {
      {DEFAULT_IS("{\"capacity\":5,\"algorithm\":\"fixed_window\",\"refill\":\"1/s\",\"debt\":2}"),
       {"limits.default: this limit has no window", "limits.default: debt is 2 tokens, and a window cannot owe any",
        "limits.default.refill: fixed_window has no refill"}},
      {DEFAULT_IS("{\"capacity\":0,\"algorithm\":\"fixed_window\",\"window\":\"x\",\"debt\":2}"),
       {"limits.default: debt is 2 tokens", "limits.default.capacity: 0 is too small",
        "limits.default.window: \"x\" is no length of time"}},
      {DEFAULT_IS("[{\"capacity\":1001,\"algorithm\":\"sliding_log\",\"window\":\"1d\"}]"),
       {"limits.default[0]: capacity is 1001 tokens, 1 more than the 1000 that a sliding_log can remember",
        "limits.default[0]: a limit in a list needs a name"}},
      {DEFAULT_IS("{\"capacity\":1001,\"algorithm\":\"sliding_log\",\"window\":\"1\",\"debt\":1}"),
       {"limits.default: debt is 1 tokens", "limits.default: capacity is 1001 tokens",
        "limits.default.window: \"1\" is no length of time"}},
      {DEFAULT_IS("{\"capacity\":9007199254740991,\"refill\":\"1/s\",\"on_full\":\"x\"}"),
       {"limits.default: capacity and debt are 9007199254740991 tokens", "limits.default.on_full: \"x\""}},
      {DEFAULT_IS("{\"capacity\":9007199254740991,\"refill\":\"1/s\",\"debt\":-1}"),
       {"limits.default: capacity and debt are 9007199254740991 tokens", "limits.default.debt: -1 is too small"}},
      {DEFAULT_IS("{\"capacity\":0,\"refill\":\"9007199254740991/ms\",\"debt\":9007199254740991}"),
       {"limits.default: the refill of 9007199254740991 tokens per 1 ms in lowest terms is too fast",
        "limits.default.capacity: 0 is too small"}},
      {DEFAULT_IS("{\"capacity\":91,\"refill\":\"1/d\",\"shadow\":1}"),
       {"1:36 limits.default: an empty bucket takes 91 days", "limits.default.shadow: 1 is neither true nor false"}},
      /* Of a window that is wrong nobody can say how much fits into it, nor of a refill. */
      {DEFAULT_IS("{\"capacity\":9007199254740991,\"algorithm\":\"sliding_window\",\"window\":\"x\"}"),
       {"limits.default.window: \"x\""}},
      {DEFAULT_IS("{\"capacity\":9007199254740991,\"refill\":\"x\"}"), {"limits.default.refill: \"x\" is no rate"}},
      {DEFAULT_IS("{\"capacity\":0,\"refill\":\"1/s\",\"cost\":9007199254740991,\"algorithm\":\"sliding_log\",\"debt\":"
                  "7,\"window\":\"9d\"}"),
       {"limits.default: debt is 7 tokens", "limits.default.capacity: 0", "limits.default.refill: sliding_log has no"}},
  };
  EXPECT_ALL(rows);
}

/* ---- Algorithms ---- */

Test(limits_faults, of_a_limit_without_an_algorithm_is_told_what_is_wrong_by_all_of_them) {
  static const file_row rows[] = {
      {DEFAULT_IS(
           "{\"capacity\":5,\"algorithm\":\"token_buckett\",\"refill\":\"x\",\"refillPerSec\":0,\"window\":\"5\"}"),
       {"limits.default.algorithm: \"token_buckett\"", "limits.default.refill: \"x\" is no rate",
        "limits.default.refillPerSec: refill and refillPerSec both say the rate",
        "limits.default.refillPerSec: \"0\" is no rate", "limits.default.window: refill and window both say the rate",
        "limits.default.window: \"5\" is no length of time"}},
      {DEFAULT_IS("{\"capacity\":5,\"algorithm\":\"slidin\"}"),
       {"limits.default: this limit has neither refill nor window", "limits.default.algorithm: \"slidin\""}},
      {DEFAULT_IS("{\"capacity\":5,\"algorithm\":\"tokenbucket\",\"refill\":\"1/s\",\"debt\":2}"),
       {"limits.default.algorithm: \"tokenbucket\""}},
      /* The member that says the algorithm is misspelt: the window may be what it needs. */
      {DEFAULT_IS("{\"capacity\":5,\"algoritm\":\"fixed_window\",\"window\":\"5m\"}"),
       {"limits.default.algoritm: there is no member"}},
      /* Who forgot the algorithm may have meant one that has its bounds elsewhere. */
      {DEFAULT_IS("{\"capacity\":9007199254740991,\"refill\":\"1/s\",\"window\":\"1s\"}"),
       {"limits.default.window: token_bucket has no window"}},
  };
  EXPECT_ALL(rows);
}

/* ---- Too many to tell ---- */

Test(limits_faults, those_that_are_not_told_are_counted_by_level) {
  enum { ENTRIES = 1500 };
  char *text = calloc(ENTRIES, 100);
  cr_assert(text != NULL);
  char *at = text + put(text, "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"");
  for (int i = 0; i < ENTRIES; i++)
    at += put(at,
              i % 3 > 0 ? ",\"GET /%d\":{\"capacity\":0,\"refill\":\"1/s\"}"
                        : ",\"GET /%d\":{\"capacity\":999,\"refill\":\"1/d\"}",
              i);
  (void)put(at, "}}");
  limits_text *loaded = limits_text_of(text);
  cr_assert(eq(sz, loaded->errors, 1000));
  cr_assert(eq(sz, loaded->warnings, 500));
  cr_assert(strstr(loaded->error.message, "(the first of 1000 errors)") != NULL, "%s", loaded->error.message);
  limits_text_finish(loaded);
  free(text);
}

/* ---- What is missing ---- */

Test(limits_faults, what_is_missing_is_told_unless_it_may_be_there_misspelt) {
  static const file_row rows[] = {
      {DEFAULT_IS("{\"capasity\":5}"),
       {"limits.default: this limit has no refill", "limits.default.capasity: there is no member"}},
      {DEFAULT_IS("{\"capacity\":5,\"refil\":\"1/s\"}"), {"limits.default.refil: there is no member"}},
      {DEFAULT_IS("{\"capacity\":5,\"algorithm\":\"fixed_window\",\"windw\":\"1s\"}"),
       {"limits.default.windw: there is no member"}},
      /* Near to nothing, it may be anything. */
      {DEFAULT_IS("{\"quantity_per_minute\":5}"), {"limits.default.quantity_per_minute: there is no member"}},
      {"{\"on_store_error\":\"open\",\"skip\":[{\"hedaer\":\"X\",\"value\":\"y\"}],\"limits\":{\"default\":"
       "\"unlimited\"}}",
       {"skip[0].hedaer: there is no member"}},
      {"{\"on_store_error\":\"open\",\"namd\":{\"n\":{\"capacity\":5,\"refill\":\"1/"
       "s\"}},\"limits\":{\"default\":\"n\"}}",
       {"namd: there is no member"}},
      {"{\"on_store_error\":\"open\",\"named\":[],\"limits\":{\"default\":\"n\"}}", {"named: a list is no object"}},
      {"{\"on_store_error\":\"open\",\"named\":{\"unlimited\":{\"capacity\":0,\"refill\":\"1/s\"},\"\":{\"capacity\":5,"
       "\"refill\":\"x\"}},\"limits\":{\"default\":[\"unlimited\",\"\"]}}",
       {"named.unlimited: \"unlimited\" cannot be a name", "named.unlimited.capacity: 0 is too small",
        "named[\"\"]: \"\" cannot be a name", "named[\"\"].refill: \"x\" is no rate"}},
      {"{\"on_store_error\":\"open\",\"key\":[\"zz\"],\"limits\":{\"default\":{\"capacity\":5,\"refill\":\"1/"
       "s\",\"key\":"
       "\"ip\"}}}",
       {"key[0]: \"zz\" is not one of the words"}},
  };
  EXPECT_ALL(rows);
}

/* ---- Tables ---- */

Test(limits_faults, of_a_table_of_routes_default_is_what_is_missing) {
#define NO_ON_STORE_ERROR "1:1 : there is no on_store_error"
  static const file_row rows[] = {
      {"{\"GET /a\":{\"capacity\":5,\"refill\":\"1/s\"},\"defalt\":{\"capacity\":5,\"refill\":\"1/s\"}}",
       {NO_ON_STORE_ERROR, "defalt: \"defalt\" is no route; write \"default\", which is the nearest"}},
      {"{\"GET /a\":\"unlimited\"}", {NO_ON_STORE_ERROR, ": there is no \"default\""}},
      {"{\"GET /a\":{\"capacity\":0,\"refill\":\"1/s\"},\"* *\":\"unlimited\"}",
       {NO_ON_STORE_ERROR, ": there is no \"default\"", "[\"GET /a\"].capacity: 0"}},
      {"{\"Default\":\"unlimited\"}", {NO_ON_STORE_ERROR, "Default: \"Default\" is no route; write \"default\""}},
      {DEFAULT_IS("\"unlimited\",\"defalt\":\"unlimited\""),
       {"limits.defalt: \"defalt\" is no route; write \"default"}},
      {"{\"on_store_error\":\"open\",\"limits\":{\"defualt\":\"unlimited\"}}",
       {"limits.defualt: \"defualt\" is no route; write \"default\""}},
      /* With a member of a file it is none. */
      {"{\"on_store_error\":\"open\",\"limit\":{\"default\":\"unlimited\"}}", {"limit: there is no member"}},
      {"{\"timeout_ms\":5,\"on_store_error\":\"open\"}", {": there is no \"limits\""}},
  };
  EXPECT_ALL(rows);
}
