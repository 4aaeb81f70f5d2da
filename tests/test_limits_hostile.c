/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that somebody broke, or made to break the loader: no crash, no hang, nothing that grows with the square.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fuzz_limits.h"
#include "limits_text.h"

/* ---- Mutations ---- */

static uint64_t random_state;

static size_t draw(size_t n) {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (size_t)((random_state * UINT64_C(2685821657736338717)) >> 16) % n;
}

enum { TEXT_MAX = 8192 };

static const char *const pieces[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "-1",
    "0",
    "1.5",
    "1e3",
    "1e999",
    "9007199254740993",
    "\"default\"",
    "\"unlimited\"",
    "\"blocked\"",
    "\"GET /a*\"",
    "\"* /*/*\"",
    "\"login\"",
    "\"1/s\"",
    "\"0/s\"",
    "\"capacity\":",
    "\"refill\":",
    "\"refillPerSec\":0.05",
    "\"cost\":",
    "\"key\":[\"ip\"]",
    "\"limits\":{",
    "\"tiers\":{",
    "\"skip\":[",
    "\"always\":[",
    "\"named\":{",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\xc3",
    "\n",
    "*",
    "/",
    "#",
    "%",
    "..",
};

/* Changes a text of `len` bytes with room for TEXT_MAX. @return its new length */
static size_t mutate(char *text, size_t len) {
  size_t at = draw(len + 1);
  size_t n = 1 + draw(8);
  switch (draw(5)) {
  case 0: /* another byte */
    text[at < len ? at : 0] = (char)draw(256);
    return len;
  case 1: /* a piece is lost */
    n = n < len - at ? n : len - at;
    memmove(text + at, text + at + n, len - at - n);
    return len - n;
  case 2: { /* a piece of JSON comes in */
    const char *piece = pieces[draw(sizeof(pieces) / sizeof(pieces[0]))];
    n = strlen(piece);
    if (len + n > TEXT_MAX)
      return len;
    memmove(text + at + n, text + at, len - at);
    memcpy(text + at, piece, n);
    return len + n;
  }
  case 3: { /* a piece comes twice */
    n *= 8;
    size_t from = draw(len);
    n = n < len - from ? n : len - from;
    if (len + n > TEXT_MAX)
      return len;
    char copy[64];
    memcpy(copy, text + from, n);
    memmove(text + at + n, text + at, len - at);
    memcpy(text + at, copy, n);
    return len + n;
  }
  default: /* a digit changes */
    for (; at < len; at++) {
      if (text[at] >= '0' && text[at] <= '9') {
        text[at] = (char)('0' + draw(10));
        break;
      }
    }
    return len;
  }
}

Test(limits_hostile, a_hundred_thousand_broken_files_break_nothing) {
  static const char *const names[] = {"shop.json", "table.json", "layers.json", "faults.json"};
  static char bases[4][TEXT_MAX];
  for (size_t i = 0; i < 4; i++) {
    char *text = limits_data(names[i]);
    (void)snprintf(bases[i], TEXT_MAX, "%s", text);
    free(text);
  }
  char *text = malloc(TEXT_MAX + 1);
  cr_assert(text != NULL);
  random_state = 20261129;
  for (int i = 0; i < 100000; i++) {
    size_t len = strlen(bases[i % 4]);
    memcpy(text, bases[i % 4], len);
    for (size_t n = 1 + draw(3); n > 0 && len > 0; n--)
      len = mutate(text, len);
    (void)LLVMFuzzerTestOneInput((const uint8_t *)text, len);
  }
  free(text);
}

Test(limits_hostile, a_file_cut_anywhere_breaks_nothing) {
  char *text = limits_data("shop.json");
  size_t len = strlen(text);
  for (size_t cut = 0; cut <= len; cut++) {
    /* In a block of its own, so that a byte too many is seen. */
    char *piece = malloc(cut > 0 ? cut : 1);
    cr_assert(piece != NULL);
    memcpy(piece, text, cut);
    (void)LLVMFuzzerTestOneInput((const uint8_t *)piece, cut);
    free(piece);
  }
  free(text);
}

/* ---- Sizes ---- */

typedef struct writer {
  char *text;
  size_t len;
  size_t room;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...) {
  va_list args;
  if (w->room - w->len < 1000) {
    w->room = w->room * 2 + 65536;
    w->text = realloc(w->text, w->room);
    cr_assert(w->text != NULL);
  }
  va_start(args, format);
  w->len += (size_t)vsnprintf(w->text + w->len, w->room - w->len, format, args);
  va_end(args);
}

/* Loads what was written, within processor time that nothing quadratic of this size could keep to. */
static limits_text *load_quickly(writer *w) {
  clock_t start = clock();
  limits_text *loaded = limits_text_of_bytes(w->text, w->len);
  double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
  cr_assert(lt(dbl, seconds, 30.0));
  free(w->text);
  return loaded;
}

static void expect_only(limits_text *loaded, const char *what) {
  cr_assert(eq(int, loaded->result, SPILE_ECONFIG));
  cr_assert(eq(sz, loaded->errors, 1), "%s", loaded->faults);
  cr_assert(strstr(loaded->faults, what) != NULL, "no %s in %s", what, loaded->faults);
  limits_text_finish(loaded);
}

Test(limits_hostile, a_file_of_16_MiB_is_read_and_a_larger_one_refused) {
  enum { MAX = 16 << 20 };
  static const char start[] = "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"}}";
  char *text = malloc(MAX + 1);
  cr_assert(text != NULL);
  memset(text, ' ', MAX + 1);
  memcpy(text, start, sizeof(start) - 1);
  limits_text *loaded = limits_text_of_bytes(text, MAX);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  limits_text_finish(loaded);
  expect_only(limits_text_of_bytes(text, MAX + 1), "larger than the 16 MiB");
  free(text);
}

Test(limits_hostile, of_a_file_of_100_MB_only_the_beginning_is_read) {
  char path[] = "/tmp/spile-limits-XXXXXX";
  int fd = mkstemp(path);
  cr_assert(fd >= 0 && ftruncate(fd, 100000000) == 0);
  spile_limits *limits;
  spile_error error = {0};
  cr_assert(eq(int, spile_limits_load(&limits, path, NULL, NULL, &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "larger than the 16 MiB") != NULL, "%s", error.message);
  (void)close(fd);
  (void)unlink(path);
}

Test(limits_hostile, brackets_are_32_deep_at_most) {
  writer w = {0};
  for (int i = 0; i < 32; i++)
    put(&w, "[");
  for (int i = 0; i < 32; i++)
    put(&w, "]");
  expect_only(load_quickly(&w), "a list is no object");
  w = (writer){0};
  for (int i = 0; i < 1000000; i++)
    put(&w, "[");
  expect_only(load_quickly(&w), "1:33 : more than 32 brackets");
}

Test(limits_hostile, there_are_a_million_values_at_most) {
  writer w = {0};
  put(&w, "{\"skip\":[");
  for (int i = 0; i < 3000000; i++)
    put(&w, "1,");
  put(&w, "1]}");
  expect_only(load_quickly(&w), "more than 1000000 values");
}

Test(limits_hostile, a_hundred_thousand_routes_load) {
  writer w = {0};
  put(&w, "{\"on_store_error\":\"open\",\"always\":[{\"name\":\"a\",\"capacity\":9,\"refill\":\"1/s\"}],\"limits\":{"
          "\"default\":\"unlimited\"");
  for (int i = 0; i < 100000; i++)
    put(&w, ",\n\"GET /r/%d\":{\"capacity\":%d,\"refill\":\"1/s\"}", i, i + 1);
  put(&w, "}}");
  limits_text *loaded = load_quickly(&w);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  for (int i = 0; i < 100000; i += 997) {
    char path[32];
    (void)snprintf(path, sizeof(path), "/r/%d", i);
    const spile_route *route = spile_limits_find(loaded->limits, "GET", path, NULL);
    cr_assert(eq(sz, spile_route_count(route), 2));
    cr_assert(eq(i64, spile_limit_capacity(spile_route_limit(route, 0, NULL, NULL)), i + 1));
  }
  limits_text_finish(loaded);
}

Test(limits_hostile, of_a_hundred_thousand_faults_the_first_are_told_and_the_rest_counted) {
  writer w = {0};
  put(&w, "{\"on_store_error\":\"open\",\"named\":{");
  for (int i = 0; i < 1000; i++)
    put(&w, "%s\"name%d\":{\"capacity\":9,\"refill\":\"1/s\"}", i > 0 ? "," : "", i);
  put(&w, "},\"limits\":{\"default\":\"unlimited\"");
  for (int i = 0; i < 50000; i++)
    put(&w, ",\"GET /r/%d\":\"nome%d\",\"get /r/%d/\":\"mane%d\"", i, i, i, i);
  put(&w, "}}");
  limits_text *loaded = load_quickly(&w);
  cr_assert(eq(sz, loaded->errors, 150000));
  cr_assert(strstr(loaded->error.message, "(the first of 150000 errors)") != NULL, "%s", loaded->error.message);
  limits_text_finish(loaded);
}

Test(limits_hostile, names_of_a_megabyte_are_shown_in_part) {
  char *name = malloc(1000001);
  cr_assert(name != NULL);
  memset(name, 'n', 1000000);
  name[1000000] = '\0';
  static const char *const forms[] = {
      "{\"limits\":{\"default\":\"unlimited\",\"GET /%s\":\"unlimited\"}}",
      "{\"limits\":{\"default\":\"%s\"}}",
      "{\"%s\":1,\"limits\":{\"default\":\"unlimited\"}}",
      "{\"limits\":{\"default\":{\"capacity\":1,\"refill\":\"%s\"}}}",
      "{\"limits\":{\"default\":{\"capacity\":1,\"refill\":\"1/s\",\"name\":\"%s\"}}}",
      "{\"limits\":{\"default\":{\"capacity\":1,\"refill\":\"1/s\",\"key\":\"header:%s\"}}}",
      "{\"key_prefix\":\"%s\",\"limits\":{\"default\":\"unlimited\"}}",
      "{\"tiers\":{\"%s\":{}},\"limits\":{\"default\":\"unlimited\"}}",
      "{\"named\":{\"%s\":{}},\"limits\":{\"default\":\"unlimited\"}}",
      "{\"skip\":[{\"ip\":\"%s\"}],\"limits\":{\"default\":\"unlimited\"}}",
      "{\"%s\":1,\"%s\":1}",
  };
  char *text = malloc(2100000);
  cr_assert(text != NULL);
  for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
    size_t len = 0;
    for (const char *c = forms[i]; *c != '\0'; c++) {
      if (c[0] == '%') {
        memcpy(text + len, name, 1000000);
        len += 1000000;
        c++;
      } else {
        text[len++] = *c;
      }
    }
    limits_text *loaded = limits_text_of_bytes(text, len);
    cr_assert(eq(int, loaded->result, SPILE_ECONFIG), "%s", forms[i]);
    cr_assert(lt(sz, strlen(loaded->faults), 3000), "%s", forms[i]);
    limits_text_finish(loaded);
  }
  free(text);
  free(name);
}

Test(limits_hostile, stars_are_bounded_and_many_globs_of_one_weight_are_compared_quickly) {
  writer w = {0};
  put(&w, "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"");
  for (int i = 0; i < 4096; i++)
    put(&w, ",\"GET /r/%04d/*\":\"unlimited\"", i);
  put(&w, "}}");
  limits_text *loaded = load_quickly(&w);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(loaded->limits, "GET", "/r/4095/x", NULL), "GET /r/4095/*"));
  limits_text_finish(loaded);
  w = (writer){0};
  put(&w, "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"");
  for (int i = 0; i < 4097; i++)
    put(&w, ",\"GET /r/%04d/*\":\"unlimited\"", i);
  put(&w, "}}");
  expect_only(load_quickly(&w), "the routes have 4097 stars, not 4096 at most");
}

/* Every star is gone into once, so a search takes steps as the product of stars and length at most. */
Test(limits_hostile, a_glob_of_many_stars_does_not_make_a_search_long) {
  writer w = {0};
  put(&w, "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\",\"GET /");
  for (int i = 0; i < 80; i++)
    put(&w, "a*");
  put(&w, "b\":\"blocked\"}}");
  limits_text *loaded = load_quickly(&w);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  char *path = malloc(8001);
  cr_assert(path != NULL);
  memset(path, 'a', 8000);
  path[0] = '/';
  path[8000] = '\0';
  clock_t start = clock();
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(loaded->limits, "GET", path, NULL), "default"));
  path[7999] = 'b';
  cr_assert(strcmp(entry_of(loaded->limits, "GET", path, NULL), "default") != 0);
  cr_assert(lt(dbl, (double)(clock() - start) / CLOCKS_PER_SEC, 10.0));
  free(path);
  limits_text_finish(loaded);
}

/* ---- Numbers that are no int64_t and no double ---- */

Test(limits_hostile, a_number_too_large_for_any_type_is_told_like_all_faults_and_with_them) {
  limits_text *loaded = limits_text_of("{\"on_store_error\":\"opne\",\"limits\":{\n"
                                       "\"default\":{\"capacity\":9223372036854775808,\"refill\":\"1/s\"},\n"
                                       "\"GET /a\":{\"capacity\":1e400,\"refill\":\"1/s\"},\n"
                                       "\"GET /b\":{\"capacity\":-99999999999999999999999,\"refill\":\"1/s\"},\n"
                                       "\"GET /9223372036854775808\":{\"capacity\":5,\"refillPerSec\":0.5E+309},\n"
                                       "\"GET /c\":{\"capacity\":5,\"refill\":\"1/s\",\"cost\":7}}}");
  cr_assert(eq(int, loaded->result, SPILE_ECONFIG));
  cr_assert(eq(sz, loaded->errors, 6), "%s", loaded->faults);
  static const char *const parts[] = {
      "1:2 on_store_error: \"opne\" is not one of the words",
      "2:12 limits.default.capacity: 9223372036854775808 is too large; ",
      "3:11 limits[\"GET /a\"].capacity: 1e400 is no whole number; ",
      "4:11 limits[\"GET /b\"].capacity: -99999999999999999999999 is too small; ",
      "5:42 limits[\"GET /9223372036854775808\"].refillPerSec: ",
      "6:39 limits[\"GET /c\"].cost: a cost of 7",
  };
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
    cr_assert(strstr(loaded->faults, parts[i]) != NULL, "no %s in %s", parts[i], loaded->faults);
  limits_text_finish(loaded);
}

Test(limits_hostile, the_least_number_that_a_type_does_not_hold_is_no_more_JSON_than_the_greatest_it_holds) {
  static const char *const numbers[] = {"9223372036854775807",
                                        "9223372036854775808",
                                        "-9223372036854775808",
                                        "-9223372036854775809",
                                        "1.7e308",
                                        "1.8e308",
                                        "1e308",
                                        "1e309",
                                        "-1e309",
                                        "1E+99999999999999999999",
                                        "100000000000000000000.5e290"};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    char text[300];
    (void)snprintf(text, sizeof(text),
                   "{\"on_store_error\":\"open\",\"timeout_ms\":%s,\"limits\":{\"default\":\"blocked\"}}", numbers[i]);
    limits_text *loaded = limits_text_of(text);
    cr_assert(eq(sz, loaded->errors, 1), "%s", loaded->faults);
    char start[100];
    (void)snprintf(start, sizeof(start), " timeout_ms: %s is ", numbers[i]);
    cr_assert(strstr(loaded->faults, start) != NULL, "%s", loaded->faults);
    limits_text_finish(loaded);
  }
}

Test(limits_hostile, a_number_too_large_in_what_is_no_JSON_is_told_as_that) {
  limits_text *loaded = limits_text_of("{\"a\":99999999999999999999,}");
  cr_assert(strstr(loaded->faults, "write JSON") != NULL, "%s", loaded->faults);
  limits_text_finish(loaded);
  loaded = limits_text_of("{\"limits\":{\"default\":\"blocked\",\"GET /\\u0000\":\"blocked\"}}");
  cr_assert(strstr(loaded->faults, "a NUL character (\\u0000) in a text; leave it out") != NULL, "%s", loaded->faults);
  limits_text_finish(loaded);
}

Test(limits_hostile, a_control_character_in_a_name_is_shown_once_escaped_in_the_path_of_a_fault) {
  limits_text *loaded = limits_text_of("{\"limits\":{\"default\":\"blocked\",\"GET /\\u001b\\\"x\":{\"capacity\":0}}}");
  cr_assert(strstr(loaded->faults, " limits[\"GET /\\x1b\\x22x\"].capacity: 0 is too small") != NULL, "%s",
            loaded->faults);
  limits_text_finish(loaded);
}
