/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile replay by a limits file. The figures of the real log were found by another program, a level for each client and
 * limit in exact fractions.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(replay_limits, .fini = run_finish);

static const char *limits_file(const char *text) {
  return own_file("limits.json", text);
}

/* ---- The real log ---- */

Test(replay_limits, of_a_real_log_tells_who_is_denied_by_what_when_and_how_often) {
  RUN("replay", "--json", "--top", "2", "--limits", data_path("limits/site.json"), data_path("access.log"));
  expect_status(0);
  cr_assert(eq(str, run.err, ""));
  expect_contains(run.out, "{\"requests\":5000,\"allowed\":4956,\"denied\":44,\"keys\":965,\"unparsed\":0,");
  expect_contains(run.out, "\"top\":[{\"key\":\"198.19.73.128\",\"denied\":35},");
  expect_contains(run.out, "\"limits\":[{\"limit\":\"GET /presentations/*\",\"denied\":35}]");
  expect_contains(run.out, "\"hours\":[{\"from_ms\":1431936000000,\"requests\":110,\"denied\":29},");
  expect_contains(run.out, "\"skipped\":323,\"unlimited\":0,\"blocked\":9,\"entries\":[{\"entry\":\"GET "
                           "/presentations/*\",\"requests\":1014,\"denied\":35},{\"entry\":\"* "
                           "/wp-*\",\"requests\":9,\"denied\":9}],");
  expect_contains(run.out, "\"shadow\":[{\"limit\":\"always#strict\",\"requests\":4633,\"denied\":227}],\"left_out\":[{"
                           "\"limit\":\"GET /projects/xdotool\",\"requests\":118}]}\n");
}

Test(replay_limits, in_words) {
  RUN("replay", "--top", "2", "--limits", data_path("limits/site.json"), data_path("access.log"));
  expect_status(0);
  expect_contains(run.out,
                  "5000 requests, 965 keys by ip, over 1 d 17 h 59 s\n"
                  "4956 allowed, of them 323 skipped and 0 under no limit in force\n"
                  "44 denied (0.88 %), of them 9 blocked\n"
                  "denied by limit:\n      35  GET /presentations/*\n"
                  "denied by entry:\n      35 of     1014  GET /presentations/*\n       9 of        9  * /wp-*\n"
                  "shadow limits would have denied:\n     227 of     4633  always#strict\n"
                  "left out, as no log tells whose buckets they are:\n     118  GET /projects/xdotool\n"
                  "most denied:\n      35  198.19.73.128\n");
  expect_contains(run.out, "most denied hours:\n      29 of      110  2015-05-18T08:00Z\n");
}

/* ---- What a request meets ---- */

#define LINE(ip, second, request) ip " - - [10/Oct/2000:13:55:" second " +0000] \"" request "\" 200 1\n"

Test(replay_limits, a_request_meets_the_cost_the_tier_and_the_words_of_its_entry) {
  const char *limits =
      limits_file("{\"on_store_error\":\"open\",\"key\":\"ip\",\"limits\":{"
                  "\"default\":{\"capacity\":1,\"refill\":\"1/h\"},"
                  "\"POST /export\":{\"capacity\":5,\"refill\":\"1/h\",\"cost\":3},"
                  "\"GET /free\":\"unlimited\",\"* /no/*\":\"blocked\","
                  "\"GET /watched\":{\"capacity\":1,\"refill\":\"1/h\",\"shadow\":true}},"
                  "\"tiers\":{\"pro\":{\"default\":{\"capacity\":2,\"refill\":\"1/h\"}}},"
                  "\"skip\":[{\"ip\":\"10.0.0.0/8\"},{\"route\":\"GET /free\"},{\"header\":\"X-Probe\"}]}");
  static const char log[] =
      /* Both of one entry, one in another spelling: the second is denied, the garbage of another client is not. */
      LINE("192.0.2.1", "01", "GET /a HTTP/1.0") LINE("192.0.2.1", "02", "get //b/?q HTTP/1.0")
          LINE("192.0.2.2", "03", "\\x16\\x03") LINE("192.0.2.1", "04", "POST /export HTTP/1.0")
              LINE("192.0.2.1", "05", "POST /export HTTP/1.0") LINE("192.0.2.1", "06", "GET /free HTTP/1.0")
                  LINE("10.1.2.3", "07", "GET /no/x HTTP/1.0") LINE("192.0.2.1", "08", "GET /no/x HTTP/1.0")
                      LINE("192.0.2.1", "09", "GET /watched HTTP/1.0") LINE("192.0.2.1", "10", "GET /watched HTTP/1.0");
  RUN_INPUT(log, "replay", "--json", "--limits", limits);
  expect_status(0);
  /* Allowed: /a, garbage, export, free, the skipped /no/x, both watched. */
  expect_contains(run.out, "{\"requests\":10,\"allowed\":7,\"denied\":3,\"keys\":3,\"unparsed\":0,");
  expect_contains(run.out,
                  "\"limits\":[{\"limit\":\"POST /export\",\"denied\":1},{\"limit\":\"default\",\"denied\":1}]");
  expect_contains(run.out,
                  "\"skipped\":2,\"unlimited\":2,\"blocked\":1,\"entries\":[{\"entry\":\"* "
                  "/no/*\",\"requests\":1,\"denied\":1},{\"entry\":\"POST "
                  "/export\",\"requests\":2,\"denied\":1},{\"entry\":\"default\",\"requests\":3,\"denied\":1}],"
                  "\"shadow\":[{\"limit\":\"GET /watched\",\"requests\":2,\"denied\":1}],\"left_out\":[]}\n");
  RUN_INPUT(log, "replay", "--json", "--limits", limits, "--tier", "pro");
  expect_contains(run.out, "{\"requests\":10,\"allowed\":8,\"denied\":2,");
  RUN_INPUT(log, "replay", "--limits", limits);
  expect_contains(run.out,
                  "\n7 allowed, of them 2 skipped and 2 under no limit in force\n3 denied (30.00 %), of them 1 "
                  "blocked\ndenied by limit:\n");
}

Test(replay_limits, limits_of_what_no_log_tells_are_left_out_and_named_whatever_their_policy) {
  const char *limits =
      limits_file("{\"on_store_error\":\"closed\",\"always\":[{\"name\":\"site\",\"capacity\":2,\"refill\":\"1/h\","
                  "\"key\":\"ip\"}],\"limits\":{\"default\":{\"capacity\":1,\"refill\":\"1/h\",\"key\":[\"tenant\","
                  "\"user\"]},\"GET /chain\":{\"capacity\":1,\"refill\":\"1/h\",\"key\":[\"tenant\",\"ip\"]},"
                  "\"GET /key\":{\"capacity\":1,\"refill\":\"1/h\",\"key\":[\"api_key\",\"header:X-A\"],"
                  "\"on_store_error\":\"fail\",\"shadow\":true}}}");
  static const char log[] = LINE("192.0.2.1", "01", "GET /a HTTP/1.0") LINE("192.0.2.1", "02", "GET /key HTTP/1.0")
      LINE("192.0.2.1", "03", "GET /a HTTP/1.0") LINE("192.0.2.3", "04", "GET /chain HTTP/1.0")
          LINE("192.0.2.3", "05", "GET /chain HTTP/1.0") LINE("host.example", "06", "GET /a HTTP/1.0");
  RUN_INPUT(log, "replay", "--json", "--limits", limits);
  expect_status(0);
  /* 192.0.2.1 is denied by site once, 192.0.2.3 by its chain; a name is no address, so even site is left out. */
  expect_contains(run.out, "{\"requests\":6,\"allowed\":4,\"denied\":2,");
  expect_contains(run.out,
                  "\"limits\":[{\"limit\":\"GET /chain\",\"denied\":1},{\"limit\":\"always#site\",\"denied\":1}]");
  expect_contains(run.out, "\"unlimited\":0,");
  expect_contains(run.out,
                  "\"left_out\":[{\"limit\":\"default\",\"requests\":3},{\"limit\":\"GET /key\",\"requests\":1},"
                  "{\"limit\":\"always#site\",\"requests\":1}]}\n");
}

Test(replay_limits, finds_room_for_every_client_under_every_limit) {
  enum { CLIENTS = 60000 };
  char path[4096];
  (void)snprintf(path, sizeof(path), "%s/access.log", run_directory());
  FILE *log = fopen(path, "w");
  cr_assert(log != NULL);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < CLIENTS; i++)
      (void)fprintf(log, "10.%d.%d.%d - - [10/Oct/2000:13:55:36 +0000] \"GET / HTTP/1.0\" 200 1\n", i >> 16,
                    (i >> 8) & 255, i & 255);
  }
  cr_assert(fclose(log) == 0);
  RUN("replay", "--json", "--limits",
      limits_file(
          "{\"on_store_error\":\"open\",\"key\":\"ip\",\"always\":[{\"name\":\"a\",\"capacity\":3,\"refill\":"
          "\"1/h\"},{\"name\":\"b\",\"capacity\":3,\"refill\":\"1/h\",\"shadow\":true}],\"limits\":{\"default\":{"
          "\"capacity\":1,\"refill\":\"1/h\",\"on_full\":\"open\"}}}"),
      path);
  expect_status(0);
  expect_contains(run.out, "{\"requests\":120000,\"allowed\":60000,\"denied\":60000,\"keys\":60000,");
}

Test(replay_limits, finds_room_for_long_entries_that_all_callers_share) {
  enum { ENTRIES = 400, PATH_LEN = 240, ROOM = ENTRIES * (PATH_LEN + 200) };
  char *limits = malloc(ROOM);
  char *log = malloc(ROOM);
  cr_assert(limits != NULL && log != NULL);
  size_t n = (size_t)snprintf(limits, ROOM,
                              "{\"on_store_error\":\"open\",\"key\":\"route\",\"limits\":{\"default\":\"blocked\"");
  size_t m = 0;
  for (int i = 0; i < ENTRIES; i++) {
    n += (size_t)snprintf(limits + n, ROOM - n, ",\"GET /%0*d\":{\"capacity\":1,\"refill\":\"1/h\"}", PATH_LEN, i);
    m += (size_t)snprintf(log + m, ROOM - m,
                          "192.0.2.1 - - [10/Oct/2000:13:55:36 +0000] \"GET /%0*d HTTP/1.0\" 200 1\n", PATH_LEN, i);
  }
  (void)snprintf(limits + n, ROOM - n, "}}");
  RUN_INPUT(log, "replay", "--json", "--limits", limits_file(limits));
  free(limits);
  free(log);
  expect_status(0);
  expect_contains(run.out, "{\"requests\":400,\"allowed\":400,\"denied\":0,");
}

/* ---- The command line and the file ---- */

Test(replay_limits, faults_and_wrong_command_lines_are_told_before_any_log_is_read) {
  RUN("replay", "--limits", data_path("limits/faults.json"), "/nonexistent/access.log");
  expect_refusal(2, "faults.json:2:3: on_store_error: \"opne\" is not one of the words; ");
  expect_contains(run.err, "\nspile: 12 errors\n");
  cr_assert(strstr(run.err, "access.log") == NULL, "%s", run.err);
  const char *path = data_path("limits/shop.json");
  RUN("replay", "--limits", path, "--tier", "prp", "x");
  expect_refusal(2, "the file has no tier prp; the nearest is pro");
  RUN("replay", "--limits", path, "--by", "ip", "x");
  expect_refusal(2, "--by and --limits exclude each other");
  RUN("replay", "--limits", path, "--limit", "1/s", "x");
  expect_refusal(2, "--limits and --limit exclude each other");
  RUN("replay", "--tier", "pro", "--limit", "1/s", "x");
  expect_refusal(2, "write --limits FILE as well");
  RUN("replay", "--limits", path, "--route", "GET /", "x");
  expect_refusal(2, "replay has no option --route");
  RUN("replay", "x");
  expect_refusal(2, "replay needs a limit; write --limit TEXT, such as --limit 10/s, or --limits FILE\n");
}
