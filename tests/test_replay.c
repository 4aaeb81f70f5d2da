/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spile replay as a shell sees it. The figures of the real log were found by another program, a queue for each client
 * in exact fractions.
 */
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(replay, .fini = run_finish);

/* Nothing that a terminal would obey. */
static void expect_printable(const char *text) {
  for (const char *at = text; *at != '\0'; at++) {
    unsigned char c = (unsigned char)*at;
    cr_assert(c == '\n' || (c >= 0x20 && c < 0x7f), "byte %02x in: %s", (unsigned)c, text);
  }
}

static const char *log_path(void) {
  static char path[4096];
  const char *directory = getenv("SPILE_TEST_DATA");
  cr_assert(directory != NULL, "SPILE_TEST_DATA must be the path of the directory tests");
  (void)snprintf(path, sizeof(path), "%s/data/access.log", directory);
  return path;
}

/* A file of the test's own directory. @return its path, valid until four more were made */
static const char *file_path(const char *name) {
  static char paths[4][256];
  static size_t next;
  char *path = paths[next++ % 4];
  (void)snprintf(path, sizeof(paths[0]), "%s/%s", run_directory(), name);
  return path;
}

static const char *file_write(const char *name, const void *bytes, size_t len) {
  const char *path = file_path(name);
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL, "%s: %s", path, strerror(errno));
  cr_assert(fwrite(bytes, 1, len, file) == len && fclose(file) == 0);
  return path;
}

static const char *file_text(const char *name, const char *text) {
  return file_write(name, text, strlen(text));
}

/* ---- The real log ---- */

Test(replay, of_a_real_log_by_client) {
  RUN("replay", "--json", "--limit", "1/2s,capacity=5", log_path());
  expect_status(0);
  expect_contains(run.out, "{\"requests\":5000,\"allowed\":4785,\"denied\":215,\"keys\":965,\"unparsed\":0,"
                           "\"first_ms\":1431857100000,\"last_ms\":1432004759000,\"answered_429\":0,");
  expect_contains(run.out, "\"top\":[{\"key\":\"198.19.73.128\",\"denied\":134},{\"key\":\"198.18.8.177\",");
  expect_contains(run.out, "\"limits\":[{\"limit\":\"default\",\"denied\":215}]");
  RUN("replay", "--json", "--limit", "1/s,capacity=10", log_path());
  expect_contains(run.out, "{\"requests\":5000,\"allowed\":4945,\"denied\":55,\"keys\":965,\"unparsed\":0,");
}

Test(replay, in_words) {
  RUN("replay", "--limit", "1/2s,capacity=5", log_path());
  expect_status(0);
  expect_contains(run.out, "5000 requests, 965 keys by ip, over 1 d 17 h 59 s\n4785 allowed\n215 denied (4.30 %)\n"
                           "most denied:\n     134  198.19.73.128\n");
  expect_contains(run.out, "most denied hours:\n      74 of      110  2015-05-18T08:00Z\n");
  cr_assert(eq(str, run.err, ""));
}

/* Writes every line of the real log that is at `from` modulo `every` to a file. */
static const char *log_part(const char *name, unsigned from, unsigned every) {
  FILE *whole = fopen(log_path(), "rb");
  cr_assert(whole != NULL, "%s", strerror(errno));
  const char *path = file_path(name);
  FILE *part = fopen(path, "wb");
  cr_assert(part != NULL, "%s", strerror(errno));
  char line[8192];
  for (unsigned n = 0; fgets(line, sizeof(line), whole) != NULL; n++) {
    if (n % every == from)
      cr_assert(fputs(line, part) >= 0);
  }
  (void)fclose(whole);
  cr_assert(fclose(part) == 0);
  return path;
}

Test(replay, of_several_files_is_that_of_all_their_requests_by_time) {
  const char *a = log_part("a.log", 0, 3);
  const char *b = log_part("b.log", 1, 3);
  const char *c = log_part("c.log", 2, 3);
  RUN("replay", "--json", "--limit", "1/2s,capacity=5", b, c, a);
  expect_status(0);
  expect_contains(run.out, "{\"requests\":5000,\"allowed\":4785,\"denied\":215,\"keys\":965,\"unparsed\":0,");
  expect_contains(run.out, "\"top\":[{\"key\":\"198.19.73.128\",\"denied\":134},");
}

/* The real log as JSON, the time in one of several forms from line to line. */
static const char *log_as_json(void) {
  FILE *in = fopen(log_path(), "rb");
  const char *path = file_path("access.json");
  FILE *out = fopen(path, "wb");
  cr_assert(in != NULL && out != NULL, "%s", strerror(errno));
  char line[8192];
  for (int n = 0; fgets(line, sizeof(line), in) != NULL; n++) {
    char ip[64];
    char time_text[64];
    char method[16];
    char target[4096];
    int status;
    cr_assert(sscanf(line, "%63s - - [%63[^]]] \"%15s %4095s %*[^\"]\" %d", ip, time_text, method, target, &status) ==
                  5,
              "%s", line);
    struct tm utc = {.tm_year = 0};
    cr_assert(strptime(time_text, "%d/%b/%Y:%H:%M:%S +0000", &utc) != NULL, "%s", time_text);
    long long seconds = (long long)timegm(&utc);
    char iso[64];
    cr_assert(strftime(iso, sizeof(iso), "\"%Y-%m-%dT%H:%M:%SZ\"", &utc) > 0);
    (void)fprintf(out,
                  "{\"remote_addr\":\"%s\",\"request_method\":\"%s\",\"request_uri\":\"%s\",\"status\":%d,\"ts\":", ip,
                  method, target, status);
    if (n % 4 == 0)
      (void)fprintf(out, "%lld}\n", seconds);
    else if (n % 4 == 1)
      (void)fprintf(out, "\"%lld000\"}\n", seconds);
    else if (n % 4 == 2)
      (void)fprintf(out, "%s}\n", iso);
    else
      (void)fprintf(out, "\"%s\"}\n", time_text);
  }
  (void)fclose(in);
  cr_assert(fclose(out) == 0);
  return path;
}

Test(replay, of_the_real_log_as_json_says_the_same) {
  RUN("replay", "--json", "--top", "1000", "--limit", "1/2s,capacity=5", log_path());
  char *common = strdup(run.out);
  cr_assert(common != NULL);
  RUN("replay", "--json", "--top", "1000", "--limit", "1/2s,capacity=5", log_as_json());
  expect_status(0);
  expect_out(common);
  free(common);
  cr_assert(eq(str, run.err, ""));
}

/* ---- Order ---- */

Test(replay, sorts_by_time_honours_zones_and_keeps_the_order_of_equal_times) {
  /* The second line is the earliest (11:59:59 UTC), the first and third are the same instant one second later. */
  static const char log[] = "::1 - - [01/Mar/2024:13:00:00 +0100] \"GET /b HTTP/1.1\" 200 5\r\n"
                            "::1 - a [b] [01/Mar/2024:05:29:59 -0630] \"GET /a HTTP/1.1\" 200 5 \"-\" \"x \\\" y\"\n"
                            "::1 - - [01/Mar/2024:12:00:00 +0000] \"GET /c HTTP/1.1\" 200 5\n";
  RUN_INPUT(log, "replay", "--json", "--limit", "1/h,capacity=2", "-");
  expect_status(0);
  /* 2024-03-01T11:59:59Z is 1709294399. */
  expect_out("{\"requests\":3,\"allowed\":2,\"denied\":1,\"keys\":1,\"unparsed\":0,\"first_ms\":1709294399000,"
             "\"last_ms\":1709294400000,\"answered_429\":0,\"top\":[{\"key\":\"::1\",\"denied\":1}],"
             "\"routes\":[{\"route\":\"GET /c\",\"requests\":1,\"denied\":1}],"
             "\"limits\":[{\"limit\":\"default\",\"denied\":1}],"
             "\"hours\":[{\"from_ms\":1709294400000,\"requests\":2,\"denied\":1}]}\n");
}

Test(replay, equal_times_of_several_files_keep_the_order_of_the_files) {
  const char *new = file_text("access.log", "a - - [01/Mar/2024:12:00:00 +0000] \"GET /new HTTP/1.1\" 200 5\n");
  const char *old = file_text("access.log.1", "a - - [01/Mar/2024:12:00:00 +0000] \"GET /old HTTP/1.1\" 200 5\n");
  RUN("replay", "--json", "--limit", "1/h,capacity=1", old, new);
  expect_contains(run.out, "\"routes\":[{\"route\":\"GET /new\",");
  RUN("replay", "--json", "--limit", "1/h,capacity=1", new, old);
  expect_contains(run.out, "\"routes\":[{\"route\":\"GET /old\",");
}

Test(replay, says_when_one_file_is_named_twice) {
  const char *file = file_text("access.log", "a - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n");
  const char *linked = file_path("current.log");
  cr_assert(symlink(file, linked) == 0);
  RUN("replay", "--json", "--limit", "5/s", file, linked);
  expect_status(0);
  expect_contains(run.out, "{\"requests\":2,");
  expect_contains(run.err, "are the same file; its requests are counted for each");
}

Test(replay, standard_input_may_stand_between_files) {
  const char *file = file_text("a.log", "a - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n");
  RUN_INPUT("{\"ts\":1709294400,\"ip\":\"b\"}\n", "replay", "--json", "--limit", "5/s", file, "-");
  expect_contains(run.out, "{\"requests\":2,\"allowed\":2,\"denied\":0,\"keys\":2,");
}

/* ---- Tables ---- */

Test(replay, by_route_drops_the_query) {
  static const char log[] = "10.0.0.1 - - [01/Mar/2024:12:00:00 +0000] \"GET /search?q=1 HTTP/1.1\" 200 5\n"
                            "10.0.0.2 - - [01/Mar/2024:12:00:00 +0000] \"GET /search?q=2 HTTP/1.1\" 200 5\n"
                            "10.0.0.2 - - [01/Mar/2024:12:00:00 +0000] \"POST /search HTTP/1.1\" 200 5\n"
                            "10.0.0.3 - - [01/Mar/2024:12:00:00 +0000] \"-\" 408 0\n";
  RUN_INPUT(log, "replay", "--json", "--by", "route", "--limit", "1/h,capacity=1");
  expect_status(0);
  expect_contains(run.out, "{\"requests\":3,\"allowed\":2,\"denied\":1,\"keys\":2,\"unparsed\":1,");
  expect_contains(run.out, "\"top\":[{\"key\":\"GET /search\",\"denied\":1}]");
  expect_contains(run.out, "\"routes\":[{\"route\":\"GET /search\",\"requests\":2,\"denied\":1}]");
  expect_contains(run.err, "standard input:4: left out: the request is not METHOD PATH");
  RUN_INPUT(log, "replay", "--by", "route", "--limit", "1/h,capacity=1");
  expect_out("3 requests, 2 keys by route, over 0 s\n2 allowed\n1 denied (33.33 %)\n1 lines left out\n"
             "most denied routes:\n       1 of        2  GET /search\n"
             "most denied hours:\n       1 of        3  2024-03-01T12:00Z\n");
  RUN_INPUT(log, "replay", "--json", "--limit", "1/h,capacity=1");
  expect_contains(run.out, "{\"requests\":4,\"allowed\":3,\"denied\":1,\"keys\":3,\"unparsed\":0,");
}

Test(replay, tables_name_the_most_denied_first_and_have_as_many_rows_as_asked) {
  /* One a second is allowed of each client; a: 1 of 2 denied, b: 3 of 4, c: 1 of 2, d: none. */
  static const char log[] = "{\"ts\":3600,\"ip\":\"c\",\"request\":\"GET /x\"}\n{\"ts\":3600,\"ip\":\"c\"}\n"
                            "{\"ts\":3600,\"ip\":\"a\"}\n{\"ts\":3600,\"ip\":\"a\",\"request\":\"GET /x\"}\n"
                            "{\"ts\":7200,\"ip\":\"b\"}\n{\"ts\":7200,\"ip\":\"b\",\"request\":\"GET /y\"}\n"
                            "{\"ts\":7200,\"ip\":\"b\",\"request\":\"GET /y\"}\n{\"ts\":7200,\"ip\":\"b\"}\n"
                            "{\"ts\":10800,\"ip\":\"d\",\"request\":\"GET /x\",\"status\":429}\n";
  RUN_INPUT(log, "replay", "--json", "--limit", "1/s,capacity=1");
  expect_contains(run.out, "\"requests\":9,\"allowed\":4,\"denied\":5,\"keys\":4,");
  expect_contains(run.out, "\"answered_429\":1,");
  expect_contains(run.out,
                  "\"top\":[{\"key\":\"b\",\"denied\":3},{\"key\":\"a\",\"denied\":1},{\"key\":\"c\",\"denied\":1}]");
  expect_contains(run.out, "\"routes\":[{\"route\":\"GET /y\",\"requests\":2,\"denied\":2},"
                           "{\"route\":\"GET /x\",\"requests\":3,\"denied\":1}]");
  expect_contains(run.out, "\"hours\":[{\"from_ms\":7200000,\"requests\":4,\"denied\":3},"
                           "{\"from_ms\":3600000,\"requests\":4,\"denied\":2}]");
  /* Of equals the first in the alphabet, and the earlier hour. */
  static const char equals[] = "{\"ts\":3600,\"ip\":\"b\"}\n{\"ts\":3600,\"ip\":\"b\"}\n"
                               "{\"ts\":7200,\"ip\":\"a\"}\n{\"ts\":7200,\"ip\":\"a\"}\n";
  RUN_INPUT(equals, "replay", "--top", "1", "--json", "--limit", "1/s,capacity=1");
  expect_contains(run.out, "\"top\":[{\"key\":\"a\",\"denied\":1}]");
  expect_contains(run.out, "\"hours\":[{\"from_ms\":3600000,\"requests\":2,\"denied\":1}]");
  RUN_INPUT(log, "replay", "--top", "1", "--limit", "1/s,capacity=1");
  expect_out("9 requests, 4 keys by ip, over 2 h\n4 allowed\n5 denied (55.56 %)\n"
             "1 were answered 429 by the server itself\n"
             "most denied:\n       3  b\nmost denied routes:\n       2 of        2  GET /y\n"
             "most denied hours:\n       3 of        4  1970-01-01T02:00Z\n");
  RUN_INPUT(log, "replay", "--top", "0", "--limit", "1/s,capacity=1");
  expect_contains(run.out, "5 denied (55.56 %)\n");
  cr_assert(strstr(run.out, "most denied") == NULL, "%s", run.out);
}

Test(replay, with_several_limits_tells_which_of_them_denied) {
  /* Two at once are one too many for the second; the third comes a second later and is too much for the hour. */
  static const char log[] = "{\"ts\":100,\"ip\":\"a\"}\n{\"ts\":100,\"ip\":\"a\"}\n{\"ts\":101,\"ip\":\"a\"}\n"
                            "{\"ts\":102,\"ip\":\"a\"}\n{\"ts\":103,\"ip\":\"a\"}\n";
  RUN_INPUT(log, "replay", "--json", "--limit", "1/s,name=second", "--limit", "1/h,capacity=2,name=hour");
  expect_contains(run.out, "\"requests\":5,\"allowed\":2,\"denied\":3,");
  expect_contains(run.out, "\"limits\":[{\"limit\":\"hour\",\"denied\":2},{\"limit\":\"second\",\"denied\":1}]");
  RUN_INPUT(log, "replay", "--limit", "1/s,name=second", "--limit", "1/h,capacity=2,name=hour");
  expect_contains(run.out, "denied by limit:\n       2  hour\n       1  second\n");
}

Test(replay, finds_room_for_many_long_routes_under_several_limits) {
  enum { ROUTES = 300 };
  size_t room = ROUTES * 4200;
  char *log = malloc(room);
  cr_assert(log != NULL);
  size_t n = 0;
  char path[4001];
  memset(path, 'p', sizeof(path) - 1);
  path[sizeof(path) - 1] = '\0';
  for (int i = 0; i < ROUTES; i++)
    n += (size_t)snprintf(log + n, room - n, "{\"ts\":1,\"request\":\"GET /%d%s\"}\n", i, path + i * 13);
  RUN_INPUT(log, "replay", "--json", "--by", "route", "--limit", "5/s,name=a", "--limit", "5/m,name=b");
  expect_status(0);
  expect_contains(run.out, "{\"requests\":300,\"allowed\":300,\"denied\":0,\"keys\":300,\"unparsed\":0,");
  free(log);
}

/* ---- Lines that are none ---- */

Test(replay, counts_lines_that_are_none_and_goes_on) {
  static const char log[] = "\n"
                            "garbage\n"
                            "a - - [30/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n"
                            "a - - [01/Mar/2024:24:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n"
                            "a - - [01/Mar/2024:12:00:00] \"GET / HTTP/1.1\" 200 5\n"
                            "a - - [01/Mar/2024:12:00:00 +0000] \"GET / HTTP/1.1 200 5\n"
                            "a - - [01/Mar/2024:12:00:00 +0000] \"GET /\\\n"
                            "a - - [01/Jan/1970:00:00:00 +0001] \"GET / HTTP/1.1\" 200 5\n"
                            "a - - [29/Feb/2024:12:00:00 +0000] \"\\x16\\x03\" 400 5\n";
  RUN_INPUT(log, "replay", "--json", "--limit", "1/h,capacity=1");
  expect_status(0);
  expect_contains(run.out, "{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":8,");
  expect_contains(run.err, "spile: standard input:1: left out: it does not begin with a client address\n");
  expect_contains(run.err, "spile: standard input:5: left out: it has no time");
  expect_contains(run.err, "more lines are left out; the summary says how many");
  cr_assert(strstr(run.err, "input:6:") == NULL, "%s", run.err);
  int lines = 0;
  for (const char *at = run.err; (at = strchr(at, '\n')) != NULL; at++)
    lines++;
  cr_assert(lines == 6, "%s", run.err);
  RUN_INPUT("", "replay", "--limit", "5/s");
  expect_status(0);
  expect_out("0 requests, 0 keys by ip\n0 allowed\n0 denied\n");
}

Test(replay, names_the_file_and_line_of_each_broken_line) {
  const char *a = file_text("a.log", "{\"ts\":1,\"ip\":\"a\"}\n{\"ts\":1,\"ip\":\"a\"\n");
  const char *b = file_text("b.log", "{\"ts\":1,\"ip\":\"a\"}\n\n{\"ts\":\"noon\",\"ip\":\"a\"}\n{\"ts\":1}");
  RUN("replay", "--json", "--limit", "5/s", a, b);
  expect_status(0);
  expect_contains(run.out, "{\"requests\":2,\"allowed\":2,\"denied\":0,\"keys\":1,\"unparsed\":4,");
  expect_contains(run.err, "a.log:2: left out: the JSON object does not end\n");
  expect_contains(run.err, "b.log:2: left out: it does not begin");
  expect_contains(run.err, "b.log:3: left out: its time is neither a number");
  expect_contains(run.err, "b.log:4: left out: it has no member for the client's address; name it with --fields");
}

Test(replay, says_what_it_reads_when_no_line_could_be_used) {
  static const char *const outputs[] = {"--json", "--top=3"};
  for (size_t i = 0; i < 2; i++) {
    RUN_INPUT("<a/>\n<b/>\n", "replay", "--limit", "5/s", outputs[i]);
    expect_refusal(2, "none of 2 lines could be used; logs are read in the common and combined formats and as JSON");
  }
  /* One line of one log is enough. */
  RUN("replay", "--json", "--limit", "5/s", file_text("a.log", "<a/>\n"),
      file_text("b.log", "{\"ts\":1,\"ip\":\"a\"}\n"));
  expect_status(0);
  expect_contains(run.out, "{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":1,");
}

Test(replay, tells_how_it_exits) {
  RUN("replay", "--help");
  expect_status(0);
  expect_contains(run.out,
                  "\nExits 0 when it has decided the requests, whatever the decisions, 2 on a wrong command line");
  expect_contains(run.out, "when\nthere are lines and none could be used, 3 when a log cannot be read to its end.\n");
}

Test(replay, prints_nothing_raw_of_hostile_lines) {
  static const char log[] =
      "\x1b[2J - - [01/Mar/2024:12:00:00 +0000] \"GET /\x1b]0;x\x07\x7f\xff HTTP/1.1\" 200 5\n"
      "\x1b[2J - - [01/Mar/2024:12:00:00 +0000] \"GET /\x1b]0;x\x07\x7f\xff HTTP/1.1\" 200 5\n"
      "{\"ts\":1709294400,\"ip\":\"\\u001b[2J\",\"method\":\"GET\",\"path\":\"/\\u009b\\u202e\"}\n"
      "{\"ts\":\"\x1b[31m\",\"ip\":\"a\"}\n"
      "\x1b]0;x\x07\n";
  RUN_INPUT(log, "replay", "--limit", "1/h,capacity=1");
  expect_status(0);
  expect_contains(run.out, "3 requests, 1 keys by ip");
  expect_contains(run.out, "most denied:\n       2  \\x1b[2J\n");
  expect_contains(run.out, "  GET /\\x1b]0;x\\x07\\x7f\\xff\n");
  expect_contains(run.out, "  GET /\\xc2\\x9b\\xe2\\x80\\xae\n");
  expect_printable(run.out);
  expect_printable(run.err);
  const char *file = file_text("\x1b[31m.log", "broken\n");
  RUN("replay", "--limit", "5/s", file);
  expect_contains(run.err, "\\x1b[31m.log:1: left out");
  expect_printable(run.err);
}

Test(replay, survives_nuls_long_lines_and_huge_numbers) {
  enum { LONG = 1 << 20 };
  size_t room = 2 * LONG;
  char *log = malloc(room);
  cr_assert(log != NULL);
  size_t n = 0;
  static const char nuls[] = "a\0b - - [01/Mar/2024:12:00:00 +0000] \"GET /\0x HTTP/1.1\" 200 5\n\0\0\0\n";
  memcpy(log, nuls, sizeof(nuls) - 1);
  n += sizeof(nuls) - 1;
  memset(log + n, 'x', LONG);
  n += LONG;
  n += (size_t)snprintf(log + n, room - n,
                        "\n{\"ts\":99999999999999999999999999999999999999999,\"ip\":\"a\"}\n"
                        "{\"ts\":1e308,\"ip\":\"a\"}\n{\"ts\":-1e308,\"ip\":\"a\"}\n"
                        "a - - [01/Mar/2024:12:00:00 +0000] \"GET /last HTTP/1.1\" 99999999999999999999 5\n"
                        "b - - [01/Mar/2024:12:00:00 +0000] \"GET /last HTTP/1.1\" 200 5");
  const char *path = file_write("hostile.log", log, n);
  free(log);
  RUN("replay", "--json", "--limit", "1/h,capacity=1", path);
  expect_status(0);
  /* A long status is read as its first three digits. */
  expect_contains(run.out, "{\"requests\":3,\"allowed\":3,\"denied\":0,\"keys\":3,\"unparsed\":5,");
  expect_contains(run.err, "hostile.log:2: left out");
  expect_contains(run.err, "hostile.log:3: left out: it has more than 65536 bytes");
  expect_contains(run.err, "hostile.log:4: left out: its time lies before 1970 or after 2286");
  expect_printable(run.err);
}

Test(replay, takes_a_key_of_4096_bytes_and_not_one_of_4097) {
  char *log = malloc(20000);
  cr_assert(log != NULL);
  char key[4098];
  memset(key, 'k', sizeof(key));
  (void)snprintf(log, 20000, "{\"ts\":1,\"ip\":\"%.4096s\"}\n{\"ts\":1,\"ip\":\"%.4097s\",\"request\":\"GET /a\"}\n",
                 key, key);
  RUN_INPUT(log, "replay", "--json", "--limit", "5/s");
  expect_contains(run.out, "{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":1,");
  expect_contains(run.err, "standard input:2: left out: its key has more than 4096 bytes");
  /* By route the client does not matter. */
  RUN_INPUT(log, "replay", "--json", "--by", "route", "--limit", "5/s");
  expect_contains(run.out, "{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":1,");
  /* "GET /" and 4,091 more are 4,096; by client a longer route is only left out of its table. */
  (void)snprintf(log, 20000,
                 "{\"ts\":1,\"ip\":\"a\",\"request\":\"GET /%.4091s\"}\n{\"ts\":1,\"ip\":\"a\",\"request\":\"GET "
                 "/%.4092s\"}\n",
                 key, key);
  RUN_INPUT(log, "replay", "--json", "--by", "route", "--limit", "5/s");
  expect_contains(run.out, "{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":1,");
  RUN_INPUT(log, "replay", "--json", "--limit", "5/s");
  expect_contains(run.out, "{\"requests\":2,\"allowed\":2,\"denied\":0,\"keys\":1,\"unparsed\":0,");
  free(log);
}

Test(replay, reads_a_file_that_begins_with_a_byte_order_mark_and_ends_lines_with_crlf) {
  RUN_INPUT("\xef\xbb\xbf{\"ts\":1,\"ip\":\"a\"}\r\n \t{\"ts\":1,\"ip\":\"a\"} \r\n", "replay", "--json", "--limit",
            "5/s");
  expect_contains(run.out, "{\"requests\":2,\"allowed\":2,\"denied\":0,\"keys\":1,\"unparsed\":0,");
}

/* ---- The command line ---- */

Test(replay, members_are_named_by_an_option_that_says_what_is_wrong_with_it) {
  static const char log[] =
      "{\"when\":1709294400,\"peer\":{\"addr\":\"10.0.0.1:9\"},\"what\":\"/a?b\",\"how\":\"GET\"}\n";
  RUN_INPUT(log, "replay", "--json", "--by", "route", "--limit", "5/s", "--fields",
            "time=when,ip=peer.addr,path=what,method=how");
  expect_status(0);
  expect_contains(run.out,
                  "{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":0,\"first_ms\":1709294400000,");
  static const char *const malformed[] = {"", "time", "=ts", "time=", "time=ts,", ",time=ts", "time=ts,,ip=a"};
  for (size_t i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++) {
    RUN("replay", "--limit", "5/s", "--fields", malformed[i]);
    expect_failure(2, "--fields is not FIELD=MEMBER");
  }
  RUN("replay", "--limit", "5/s", "--fields", "tiem=ts");
  expect_failure(2, "the nearest is time");
  RUN("replay", "--limit", "5/s", "--fields", "time=a,time=b");
  expect_failure(2, "--fields names time twice");
  static const char *const tops[] = {"-1", "1001", "x", ""};
  for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
    RUN("replay", "--limit", "5/s", "--top", tops[i]);
    expect_failure(2, "--top is not a number of rows; write a whole number from 0 to 1000");
  }
  RUN("replay");
  expect_failure(2, "replay needs a limit");
}

Test(replay, a_file_that_cannot_be_read_is_named) {
  const char *good = file_text("good.log", "{\"ts\":1,\"ip\":\"a\"}\n");
  RUN("replay", "--limit", "5/s", good, "/does/not/exist");
  expect_failure(2, "cannot open /does/not/exist");
  RUN("replay", "--limit", "5/s", good, run_directory());
  expect_failure(3, "cannot read on behind line 0: Is a directory");
}

Test(replay, other_compressed_files_are_told_from_broken_lines) {
  static const struct {
    const char *bytes;
    size_t len;
    const char *tool;
  } rows[] = {{"\x28\xb5\x2f\xfd\x24", 5, "zstd -dc"}, {"\xfd\x37zXZ\0", 6, "xz -dc"}, {"BZh91AY", 7, "bzip2 -dc"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    RUN("replay", "--limit", "5/s", file_write("access.log.1", rows[i].bytes, rows[i].len));
    expect_failure(3, rows[i].tool);
  }
  /* An empty log is a log; compressed it would have some bytes. */
  RUN("replay", "--limit", "5/s", file_write("empty.log", "", 0));
  expect_status(0);
  RUN("replay", "--limit", "5/s", file_write("empty.log.gz", "", 0));
  expect_failure(3, "empty.log.gz is empty");
}

/* ---- A million lines ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { INSTRUMENTED = 1 };
#else
enum { INSTRUMENTED = 0 };
#endif

Test(replay, of_a_million_lines_takes_seconds_and_less_memory_than_the_log) {
  enum { LINES = 1000000, CLIENTS = 20000, ROUTES = 1000 };
  const char *path = file_path("million.log");
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL, "%s", strerror(errno));
  for (int i = 0; i < LINES; i++) {
    /* Each second has 100 requests, and every 7th is 3 s late. Neighbours in a client's row are 200 s apart. */
    int second = i / 100 - (i % 7 == 0 && i > 300 ? 3 : 0);
    (void)fprintf(
        file, "{\"ts\":%d,\"ip\":\"10.0.%d.%d\",\"request\":\"GET /r%d?q=%d HTTP/1.1\",\"status\":200,\"size\":%d}\n",
        1709294400 + second, i % CLIENTS / 256, i % CLIENTS % 256, i % ROUTES, i, i);
  }
  cr_assert(fclose(file) == 0);
  struct timespec started;
  struct timespec ended;
  (void)clock_gettime(CLOCK_MONOTONIC, &started);
  RUN("replay", "--json", "--limit", "1/h,capacity=10", path);
  (void)clock_gettime(CLOCK_MONOTONIC, &ended);
  expect_status(0);
  /* Every client asks 50 times within 9,800 s (and up to 3): 10, and one more at each whole hour of 3,600 s since its
   * first, which is 2: 12 of 50. */
  expect_contains(run.out, "{\"requests\":1000000,\"allowed\":240000,\"denied\":760000,\"keys\":20000,\"unparsed\":0,");
  cr_assert(lt(i64, ended.tv_sec - started.tv_sec, 60));
  /* 24 bytes a request and half of that to sort; the clients, the routes and a bucket for each client are few here. The
   * command is the only child there was. A sanitizer needs more for itself. */
  struct rusage used;
  cr_assert(getrusage(RUSAGE_CHILDREN, &used) == 0);
  cr_assert(INSTRUMENTED || used.ru_maxrss < 64 * 1024, "%ld KiB", used.ru_maxrss);
}

/* ---- Progress ---- */

/* Runs replay with its standard error on a terminal of ours (or in a pipe), and feeds it 2,048 lines: half of them, and
 * when it has read those and more than the quarter of a second between two lines of progress has passed, the rest.
 * @return what it wrote there */
static size_t progress_seen(bool terminal, char *seen, size_t room) {
  int in[2];
  int err[2];
  cr_assert(pipe(in) == 0, "%s", strerror(errno));
  if (terminal)
    cr_assert(openpty(&err[0], &err[1], NULL, NULL, NULL) == 0, "%s", strerror(errno));
  else
    cr_assert(pipe(err) == 0, "%s", strerror(errno));
  pid_t pid = fork();
  cr_assert(pid >= 0);
  if (pid == 0) {
    int out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    bool ready = dup2(in[0], 0) >= 0 && dup2(out, 1) >= 0 && dup2(err[1], 2) >= 0;
    (void)close(in[1]);
    if (ready)
      (void)execl(getenv("SPILE_COMMAND"), "spile", "replay", "--limit", "5/s", (char *)NULL);
    _exit(99);
  }
  (void)close(in[0]);
  (void)close(err[1]);
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 1024; i++)
      cr_assert(write(in[1], "{\"ts\":1,\"ip\":\"a\"}\n", 18) == 18, "%s", strerror(errno));
    int left = 1;
    while (half == 0 && left > 0) {
      cr_assert(ioctl(in[1], FIONREAD, &left) == 0, "%s", strerror(errno));
      (void)usleep(left > 0 ? 1000 : 300000);
    }
  }
  (void)close(in[1]);
  size_t n = 0;
  ssize_t got;
  while (n < room && (got = read(err[0], seen + n, room - n)) > 0)
    n += (size_t)got;
  (void)close(err[0]);
  int status;
  cr_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
  return n;
}

Test(replay, progress_is_for_terminals_alone) {
  char seen[4096];
  size_t n = progress_seen(true, seen, sizeof(seen) - 1);
  seen[n] = '\0';
  expect_contains(seen, "\r2048 lines read");
  expect_contains(seen, "\r\033[K");
  cr_assert(progress_seen(false, seen, sizeof(seen)) == 0);
}
