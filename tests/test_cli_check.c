/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile check as a shell sees it: the faults, the sentences, the table and the JSON.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(cli_check, .fini = run_finish);

static size_t lines_of(const char *text) {
  size_t n = 0;
  for (; *text != '\0'; text++)
    n += *text == '\n' ? 1 : 0;
  return n;
}

/* ---- Faults ---- */

Test(cli_check, twelve_faults_are_twelve_lines_with_their_places) {
  const char *path = data_path("limits/faults.json");
  RUN("check", path);
  expect_status(2);
  expect_out("");
  static const char *const lines[] = {
      ":2:3: on_store_error: \"opne\" is not one of the words; write \"open\", which is the nearest\n",
      ":3:21: key[1]: \"adress\" is not one of the words; ",
      ":4:25: named.login.capacity: 5.5 is no whole number; write a whole number of tokens from 1 to "
      "9007199254740991\n",
      ":6:18: limits.default.capacity: 9007199254740993 is too large; ",
      ":7:17: limits[\"GET /a\"].capasity: there is no member \"capasity\" here; write \"capacity\", which is the "
      "nearest\n",
      ":8:5: limits[\"get  /a/\"]: this means the same as \"GET /a\" (line 7): \"GET /a\"; ",
      ":9:39: limits[\"POST /search\"].refill: \"1/2 seconds\" is no rate: ",
      ":10:60: limits[\"POST /export\"].cost: a cost of 6 is above the capacity of 5, ",
      ":11:5: limits[\"POST /login\"]: there is no named limit \"logn\"; write \"login\", which is the nearest\n",
      ":12:19: limits[\"* /api/*\"][0]: a limit in a list needs a name, ",
      ":13:5: limits[\"* /*/ipa\"]: this and \"* /api/*\" (line 12) can match one request, ",
      ":14:5: limits.search: \"search\" is no route; ",
  };
  const char *at = run.err;
  for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
    cr_assert(strncmp(at, path, strlen(path)) == 0, "%s", at);
    at += strlen(path);
    cr_assert(strncmp(at, lines[i], strlen(lines[i])) == 0, "not %s but %s", lines[i], at);
    at = strchr(at, '\n') + 1;
  }
  cr_assert(eq(str, (char *)(uintptr_t)at, "spile: 12 errors\n"));
}

Test(cli_check, faults_are_objects_for_programs) {
  RUN("check", data_path("limits/faults.json"), "--json");
  expect_status(2);
  cr_assert(eq(sz, lines_of(run.out), 12));
  cr_assert(eq(str, run.err, ""));
  expect_contains(run.out,
                  "\"line\":2,\"column\":3,\"path\":\"on_store_error\",\"what\":\"\\\"opne\\\" is not one of the "
                  "words\",\"advice\":\"write \\\"open\\\", which is the nearest\"}\n");
  expect_contains(run.out, "{\"level\":\"error\",\"file\":\"");
}

Test(cli_check, a_warning_is_told_and_the_file_is_good) {
  RUN("check", data_path("limits/table.json"));
  expect_status(0);
  expect_contains(run.err, "table.json:1:1: warning: there is no on_store_error, so requests pass while the store "
                           "cannot answer; write {\"on_store_error\": \"open\", \"limits\": {...}}");
  cr_assert(eq(sz, lines_of(run.err), 1));
  expect_out("default: 60 requests at once, then 1 request a second; 119 in the first minute; full after 1 min; per "
             "tenant, else user, else client address; open without the store\n"
             "POST /search: 20 requests at once, then 1 request every 2 s; 49 in the first minute; full after 40 s; "
             "per tenant, else user, else client address; open without the store\n"
             "POST /export: 1 request at once, then 1 request every 1 min 40 s; 1 in the first minute; full after 1 "
             "min 40 s; per tenant, else user, else client address; open without the store\n");
}

Test(cli_check, what_a_file_says_does_no_harm_to_a_terminal) {
  RUN("check", own_file("bad\x1b[2J.json", "{\"\x1b[2J\":1}"));
  expect_status(2);
  cr_assert(strchr(run.err, '\x1b') == NULL && strchr(run.out, '\x1b') == NULL);
  RUN("check", own_file("bad.json", "{\"limits\":{\"default\":\"unlimited\",\"GET /\xc3\xa4\\u001b[2J\":1}}"));
  expect_status(2);
  expect_contains(run.err, "control character");
  cr_assert(strchr(run.err, '\x1b') == NULL);
}

/* ---- In words ---- */

Test(cli_check, a_member_of_a_file_in_a_table_of_routes_is_told_where_it_belongs) {
  RUN("check", own_file("own.json", "{\"on_store_error\":\"open\",\"default\":{\"capacity\":1,\"refill\":\"1/s\"}}"));
  expect_status(2);
  expect_contains(run.err,
                  "\"on_store_error\" is no route; write it beside \"limits\", and the routes in \"limits\": {...}\n");
}

Test(cli_check, a_route_is_explained_in_sentences) {
  RUN("check", data_path("limits/shop.json"), "--explain", "post /search/?q=1", "--tier", "pro");
  expect_status(0);
  cr_assert(eq(str, run.err, ""));
  static const char *const parts[] = {
      "post /search/?q=1 of tier pro meets the entry \"POST /search\" of that tier: 2 limits. ",
      "1. POST /search\n   At most 100 requests at once; then 10 requests a second.\n",
      /* 100 and what 59.999 s bring at 10 a second */
      "   In the first minute at most 699 requests can pass: 100 at once and 599 as they come back.\n",
      "   Who has used all and then asks for nothing has the whole allowance again after 10 s.\n",
      "   Each tenant has an allowance of its own. Without one, each user has an allowance of its own. Without one, "
      "each client address has an allowance of its own.\n",
      "   When the store does not answer within 25 ms, requests pass, uncounted.\n",
      "2. always#global (for every request, whatever its route)\n   At most 1000 requests at once; then 4000 requests "
      "an hour.\n",
      "   In the first minute at most 1066 requests can pass",
      "2 entries of \"skip\" may exempt it from everything.\n",
  };
  for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
    expect_contains(run.out, parts[i]);
}

Test(cli_check, shared_blocked_and_unlimited_routes_are_explained) {
  RUN("check", data_path("limits/shop.json"), "--explain", "POST /login");
  expect_contains(run.out, "The allowance is shared with POST /reset.\n");
  expect_contains(run.out, "When the store does not answer within 25 ms, requests are refused.\n");
  RUN("check",
      own_file("own.json", "{\"on_store_error\":\"open\",\"always\":[{\"name\":\"global\",\"capacity\":9,\"refill\":"
                           "\"1/s\"}],\"limits\":{\"default\":\"unlimited\"}}"),
      "--explain", "GET /health");
  expect_contains(run.out, "no limit of its own, but those for every request.\n1. always#global");
  RUN("check", data_path("limits/shop.json"), "--explain", "GET /nowhere");
  expect_contains(run.out, "meets the entry \"default\"");
  expect_contains(run.out, "All routes that have no entry draw on the same allowance.\n");
  RUN("check", data_path("limits/shop.json"), "--explain", "PUT /api/x");
  expect_contains(run.out, "All routes that match * /api/* draw on the same allowance.\n");
  RUN("check",
      own_file("own.json", "{\"on_store_error\":\"fail\",\"limits\":{\"default\":\"blocked\",\"GET /a\":{"
                           "\"capacity\":3,\"refill\":\"1/ms\",\"cost\":2,\"shadow\":true,\"on_full\":\"open\","
                           "\"key\":[\"header:X-A\",\"global\"]}}}"),
      "--explain", "GET /b");
  expect_out("GET /b meets the entry \"default\": blocked, nobody passes.\n");
  RUN("check",
      own_file("own.json", "{\"on_store_error\":\"fail\",\"limits\":{\"default\":\"blocked\",\"GET /a\":{"
                           "\"capacity\":3,\"refill\":\"1/ms\",\"cost\":2,\"shadow\":true,\"on_full\":\"open\","
                           "\"key\":[\"header:X-A\",\"global\"]}}}"),
      "--explain", "GET /a");
  /* (3 + 59999) / 2 */
  expect_out("GET /a meets the entry \"GET /a\": no limit in force. 1 shadow limit denies nobody.\n1. GET /a\n"
             "   This is a shadow limit: what it would deny is counted and passes.\n"
             "   At most 1 request at once; then 500 requests a second.\n"
             "   (A request costs 2 of the 3 tokens that there are.)\n"
             "   In the first minute at most 30001 requests can pass: 1 at once and 30000 as they come back.\n"
             "   Who has used all and then asks for nothing has the whole allowance again after 0.003 s.\n"
             "   Each value of the header X-A has an allowance of its own. Without one, all callers have one allowance "
             "together.\n"
             "   When the store does not answer, the request is refused with an error, for the server to handle.\n"
             "   When the store has no room for a new caller, the request passes, uncounted.\n");
}

#define SHADOWED                                                                                                       \
  "{\"on_store_error\":\"open\",\"always\":[{\"name\":\"all\",\"capacity\":9,\"refill\":\"1/"                          \
  "s\",\"shadow\":true}],\"limits\":{"                                                                                 \
  "\"default\":{\"capacity\":3,\"refill\":\"1/s\"},\"GET /two\":[{\"name\":\"a\",\"capacity\":3,\"refill\":\"1/s\"},"  \
  "{\"name\":\"b\",\"capacity\":4,\"refill\":\"1/s\"},{\"name\":\"c\",\"capacity\":2,\"refill\":\"1/"                  \
  "s\",\"shadow\":true}],"                                                                                             \
  "\"GET /none\":\"unlimited\"},\"skip\":[{\"route\":\"* /health/*\"},{\"route\":\"GET /two\",\"ip\":\"10.0.0.0/8\"}," \
  "{\"header\":\"X-Probe\"}]}"

Test(cli_check, a_shadow_limit_is_none_of_those_that_let_a_request_pass) {
  static const char *const rows[][2] = {
      {"GET /", "GET / meets the entry \"default\": 1 limit in force. 1 shadow limit denies nobody.\n"},
      {"GET /two",
       "GET /two meets the entry \"GET /two\": 2 limits. A request passes when all of them let it; else none of "
       "them counts it. 2 shadow limits deny nobody.\n"},
      {"GET /none", "GET /none meets the entry \"GET /none\": no limit of its own. 1 shadow limit denies nobody.\n"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    RUN("check", own_file("own.json", SHADOWED), "--explain", rows[i][0]);
    cr_assert(strncmp(run.out, rows[i][1], strlen(rows[i][1])) == 0, "%s", run.out);
  }
}

Test(cli_check, a_route_that_is_always_skipped_is_said_to_be_exempt) {
  RUN("check", own_file("own.json", SHADOWED), "--explain", "get /health/");
  expect_status(0);
  expect_out("get /health/ is exempt from everything: an entry of \"skip\" has its route, whoever asks.\n");
  RUN("check", own_file("own.json", SHADOWED), "--explain", "GET /two");
  expect_contains(run.out, "2 entries of \"skip\" may exempt it from everything.\n");
  RUN("check", data_path("limits/shop.json"), "--explain", "GET /health", "--tier", "pro");
  expect_out("GET /health of tier pro is exempt from everything: an entry of \"skip\" has its route, whoever asks.\n");
}

Test(cli_check, a_table_to_publish_has_a_row_for_each_limit) {
  RUN("check", data_path("limits/shop.json"), "--markdown");
  expect_status(0);
  expect_contains(run.out, "| Route | Tier | Requests at once | Then | In the first minute, at most | Counted by |\n"
                           "|---|---|--:|---|--:|---|\n"
                           "| every request |  | 1000 | 4000 requests an hour | 1066 | client address |\n"
                           "| `default` |  | 60 | 1 request a second | 119 | tenant, else user, else client address |\n"
                           "| `POST /search` |  | 20 | 1 request every 2 s | 49 | tenant, else user, else client "
                           "address |\n");
  expect_contains(run.out, "| `GET /health` |  | no limit of its own | | | |\n");
  expect_contains(run.out, "| `POST /search` | `pro` | 100 | 10 requests a second | 699 |");
  RUN("check",
      own_file("own.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"blocked\",\"GET /a|`b\":{"
                           "\"capacity\":3,\"refill\":\"1/s\"},\"GET /c\":{\"capacity\":3,\"refill\":\"1/s\","
                           "\"shadow\":true}}}"),
      "--markdown");
  expect_contains(run.out, "| `` GET /a\\|`b `` |  | 3 | 1 request a second | 62 |");
  expect_contains(run.out, "| `GET /c` |  | no limit of its own in force | | | |\n");
  RUN("check", data_path("limits/shop.json"), "--markdown");
  expect_contains(run.out, " | client address; shared by all routes with `@login` |\n");
}

Test(cli_check, every_entry_has_a_row_in_every_tier) {
  RUN("check",
      own_file("own.json",
               "{\"on_store_error\":\"open\",\"always\":[{\"name\":\"all\",\"capacity\":9,\"refill\":\"1/s\","
               "\"shadow\":true}],\"limits\":{\"default\":{\"capacity\":3,\"refill\":\"1/s\",\"shadow\":true},"
               "\"GET /a\":[{\"name\":\"x\",\"capacity\":3,\"refill\":\"1/s\",\"shadow\":true},{\"name\":\"y\","
               "\"capacity\":3,\"refill\":\"1/s\"}]},\"tiers\":{\"pro\":{\"default\":\"blocked\",\"GET /a\":"
               "{\"capacity\":1,\"refill\":\"1/s\",\"shadow\":true}}}}"),
      "--markdown");
  expect_contains(run.out, "|---|---|--:|---|--:|---|\n"
                           "| `default` |  | no limit of its own in force | | | |\n"
                           "| `GET /a` |  | 3 | 1 request a second | 62 | tenant, else user, else client address |\n"
                           "| `default` | `pro` | not available | | | |\n"
                           "| `GET /a` | `pro` | no limit of its own in force | | | |\n\n");
}

Test(cli_check, a_table_to_publish_has_the_names_of_the_file) {
  /* Umlauts, a character beyond 16 bits and a backslash are; what turns the reading direction is not, nor a control. */
  RUN("check",
      own_file("own.json",
               "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"blocked\",\"GET /\xc3\xbc"
               "ber\":\"blocked\",\"GET /\xf0\x9f\x98\x80\\\\\":\"blocked\",\"GET /a\\u202eb\\u2066\\u200f\\u061c"
               "\\u0085\\u2028\":\"blocked\",\"GET /h\":{\"capacity\":3,\"refill\":\"1/s\",\"key\":\"header:a|b\"}}}"),
      "--markdown");
  expect_contains(run.out, "| `GET /\xc3\xbc"
                           "ber` | ");
  expect_contains(run.out, "| `GET /\xf0\x9f\x98\x80\\` | ");
  expect_contains(run.out,
                  "| `GET /a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6\\xe2\\x80\\x8f\\xd8\\x9c\\xc2\\x85\\xe2\\x80\\xa8` | ");
  expect_contains(run.out, "| value of the header `a\\|b` |\n");
}

Test(cli_check, a_leaky_bucket_is_said_to_space_what_it_admits) {
  const char *path = own_file("own.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"algorithm\":"
                                          "\"leaky_bucket\",\"capacity\":3,\"refill\":\"1/s\"}}}");
  RUN("check", path, "--explain", "default");
  expect_contains(run.out, "delay_ms says how long to hold each back.\n");
  RUN("check", path, "--markdown");
  expect_contains(run.out, "| `default` |  | 3 | 1 request a second, spaced | 62 |");
}

Test(cli_check, of_windows_it_is_said_when_they_begin_and_what_two_of_them_let_pass) {
  static const struct {
    const char *algorithm;
    const char *parts[2];
  } rows[] = {
      {"fixed_window",
       {"   At most 1000 requests in 1 d. The windows are the same for all callers: they begin at whole multiples of "
        "that time since 1970, in UTC.\n",
        "   In the first minute at most 2000 requests can pass, late in one window and early in the next.\n"}},
      {"sliding_window",
       {"   At most 1000 requests in 1 d, as estimated: what passed in the window before is taken to have come "
        "evenly.\n",
        /* 1,000 · 59,999 ms are less than one token of a day's window. */
        "   In the first minute at most 1000 requests can pass.\n"}},
      {"sliding_log",
       {"   At most 1000 requests in 1 d, whenever that begins.\n",
        "   In the first minute at most 1000 requests can pass.\n"}},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[300];
    (void)snprintf(text, sizeof(text),
                   "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"algorithm\":\"%s\",\"capacity\":1000,"
                   "\"window\":\"1d\"}}}",
                   rows[i].algorithm);
    RUN("check", own_file("own.json", text), "--explain", "default");
    expect_contains(run.out, rows[i].parts[0]);
    expect_contains(run.out, rows[i].parts[1]);
  }
}

Test(cli_check, the_summary_tells_of_debt_and_of_spacing) {
  RUN("check", own_file("own.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":{\"algorithm\":"
                                    "\"leaky_bucket\",\"capacity\":3,\"refill\":\"1/s\",\"debt\":2}}}"));
  expect_contains(run.out, "default: 3 requests at once, then 1 request a second, spaced; 62 in the first minute; full "
                           "after 3 s; debt of 2 at most; per ");
}

Test(cli_check, what_is_no_route_is_not_explained) {
  static const char *const routes[] = {"", "GET", "/a"};
  for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
    RUN("check", data_path("limits/shop.json"), "--explain", routes[i]);
    expect_status(2);
    cr_assert(eq(str, run.out, ""));
    expect_contains(run.err, "--explain is not METHOD and PATH");
  }
}

Test(cli_check, the_first_minute_of_windows_is_counted_in_whole_requests) {
  static const struct {
    const char *limit;
    const char *minute;
  } rows[] = {
      /* One request fills a window, and the next window never has all of it: every other one of 10 lets it pass. */
      {"\"algorithm\":\"sliding_window\",\"capacity\":9,\"window\":\"7s\",\"cost\":9",
       "; at most 5 in the first minute;"},
      {"\"algorithm\":\"sliding_window\",\"capacity\":49,\"window\":\"7s\",\"cost\":26", "; at most 10 in the first"},
      {"\"algorithm\":\"sliding_window\",\"capacity\":10,\"window\":\"1m\"",
       "; at most 19 in the first minute, where windows meet;"},
      /* 60,000 milliseconds touch two of 59,999, and two of 60,000. */
      {"\"algorithm\":\"fixed_window\",\"capacity\":7,\"window\":\"59999ms\"", "; at most 14 in the first minute;"},
      {"\"algorithm\":\"fixed_window\",\"capacity\":7,\"window\":\"1m\"",
       "; at most 14 in the first minute, where windows meet;"},
      {"\"algorithm\":\"fixed_window\",\"capacity\":7,\"window\":\"29999ms\"", "; at most 28 in the first minute;"},
      {"\"algorithm\":\"sliding_log\",\"capacity\":7,\"window\":\"7s\"", "; at most 63 in the first minute;"},
      {"\"capacity\":7,\"refill\":\"1/s\"", "; 66 in the first minute;"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[300];
    (void)snprintf(text, sizeof(text), "{\"on_store_error\":\"open\",\"limits\":{\"default\":{%s}}}", rows[i].limit);
    RUN("check", own_file("own.json", text));
    expect_status(0);
    expect_contains(run.out, rows[i].minute);
  }
}

Test(cli_check, entries_are_objects_for_programs) {
  RUN("check", data_path("limits/shop.json"), "--json");
  expect_status(0);
  cr_assert(eq(sz, lines_of(run.out), 10));
  RUN("check", data_path("limits/shop.json"), "--json", "--explain", "POST /export");
  expect_out(
      "{\"route\":\"POST /export\",\"tier\":null,\"word\":\"limited\",\"limits\":[{\"name\":\"POST /export\","
      "\"algorithm\":\"token_bucket\",\"capacity\":5,\"refill_tokens\":1,\"refill_period_ms\":20000,\"cost\":5,"
      "\"key\":[\"tenant\",\"user\",\"ip\"],\"on_store_error\":\"open\",\"on_full\":\"closed\",\"timeout_ms\":25,"
      "\"shadow\":false,\"always\":false,\"burst\":1,\"first_minute\":1,\"full_after_ms\":100000},{\"name\":"
      "\"always#global\",\"algorithm\":\"token_bucket\",\"capacity\":1000,\"refill_tokens\":1,"
      "\"refill_period_ms\":900,\"cost\":1,\"key\":[\"ip\"],\"on_store_error\":\"open\",\"on_full\":\"closed\","
      "\"timeout_ms\":25,\"shadow\":false,\"always\":true,\"burst\":1000,\"first_minute\":1066,"
      "\"full_after_ms\":900000}]}\n");
}

/* ---- The command line ---- */

static void expect_usage(const char *part) {
  expect_refusal(2, part);
  cr_assert(eq(sz, lines_of(run.err), 1));
}

Test(cli_check, a_wrong_command_line_is_told) {
  RUN("check");
  expect_usage("check takes one FILE");
  RUN("check", "a", "b");
  expect_usage("check takes one FILE");
  RUN("check", data_path("limits/shop.json"), "--tier", "pro");
  expect_usage("write --explain ROUTE as well");
  RUN("check", data_path("limits/shop.json"), "--markdown", "--json");
  expect_usage("without --json and --explain");
  RUN("check", data_path("limits/shop.json"), "--explain", "GET /", "--tier", "prp");
  expect_usage("no tier prp; the nearest is pro");
  RUN("check", own_file("own.json", "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"blocked\"}}"), "--explain",
      "GET /", "--tier", "pro");
  expect_usage("the file has no tiers");
  RUN("check", "/nonexistent/limits.json");
  expect_usage("/nonexistent/limits.json:1:1: cannot read the file: No such file or directory; ");
  RUN("check", "--explane", "x", "y");
  expect_usage("the nearest is --explain");
}
