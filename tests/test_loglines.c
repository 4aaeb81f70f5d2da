/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the lines of access logs are read as: times against the C library's calendar, formats of known servers as these
 * write them, and lines that nobody means well with.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "cli/json.h"
#include "cli/jsonline.h"
#include "cli/logtime.h"
#include "cli/output.h"
#include "cli/requests.h"

/* ---- Times ---- */

/* A random number that is the same in every run (xorshift64). */
static uint64_t random_state = 88172645463325252u;
static uint64_t random_next(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

static const char *time_of(const char *text, int64_t *out_ms) {
  return logtime_read(out_ms, text, strlen(text));
}

static void expect_time(const char *text, int64_t want_ms) {
  int64_t got_ms = -1;
  const char *fault = time_of(text, &got_ms);
  cr_assert(fault == NULL, "%s: %s", text, fault);
  cr_assert(got_ms == want_ms, "%s: %lld, not %lld", text, (long long)got_ms, (long long)want_ms);
}

static void expect_no_time(const char *text, const char *why) {
  int64_t got_ms;
  const char *fault = time_of(text, &got_ms);
  cr_assert(fault != NULL, "%s is a time: %lld", text, (long long)got_ms);
  cr_assert(strstr(fault, why) != NULL, "%s: \"%s\" is not in: %s", text, why, fault);
}

Test(logtime, agrees_with_the_calendar_of_the_c_library_from_1970_to_2286) {
  for (int i = 0; i < 20000; i++) {
    /* 10^10 seconds are 317 years; the latest time of a take is that. */
    time_t seconds = (time_t)(random_next() % 10000000000u);
    struct tm utc;
    cr_assert(gmtime_r(&seconds, &utc) != NULL);
    char text[64];
    cr_assert(strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc) > 0);
    expect_time(text, (int64_t)seconds * 1000);
    cr_assert(strftime(text, sizeof(text), "%d/%b/%Y:%H:%M:%S +0000", &utc) > 0);
    expect_time(text, (int64_t)seconds * 1000);
  }
}

Test(logtime, zones_and_fractions_are_what_iso_8601_says) {
  /* 2024-03-01T12:00:00Z is 1709294400. */
  static const char *const noon[] = {
      "2024-03-01T12:00:00Z",       "2024-03-01t12:00:00z",      "2024-03-01 12:00:00Z",
      "2024-03-01T13:00:00+01:00",  "2024-03-01T13:00:00+0100",  "2024-03-01T13:00:00+01",
      "2024-02-29T23:15:00-12:45",  "2024-03-02T02:00:00 +1400", "2024-03-01T12:00:00-00:00",
      "01/Mar/2024:12:00:00 +0000", "01/Mar/2024:05:30:00 -0630"};
  for (size_t i = 0; i < sizeof(noon) / sizeof(noon[0]); i++)
    expect_time(noon[i], 1709294400000);
  expect_time("2024-03-01T12:00:00.1Z", 1709294400100);
  expect_time("2024-03-01T12:00:00,25Z", 1709294400250);
  expect_time("2024-03-01T12:00:00.9999999999999999999999Z", 1709294400999);
  /* A leap second is the first of the next minute to clocks that count from 1970. */
  expect_time("2016-12-31T23:59:60Z", 1483228800000);
}

Test(logtime, a_numbers_digits_before_the_point_tell_its_unit) {
  static const char *const same[] = {"1709294400.123",       "1709294400.1239",        "1709294400123",
                                     "1709294400123.9",      "1709294400123456",       "1709294400123456789",
                                     "1.709294400123e9",     "1709294400123456789e-9", "00001709294400.123",
                                     "1.709294400123456e15", "17092944001234e-4"};
  for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
    expect_time(same[i], 1709294400123);
  expect_time("0", 0);
  expect_time("0.0", 0);
  expect_time("0.001", 1);
  expect_time("0.0009", 0);
  expect_time("1e-999999999999", 0);
  expect_time("7", 7000);
  expect_time("10000000000", 10000000000000);
  expect_no_time("10000000000.001", "after 2286");
  /* 12 digits are milliseconds again: the year 1973. */
  expect_time("100000000000", 100000000000);
  expect_no_time("99999999999", "after 2286");
}

Test(logtime, what_is_no_time_is_refused_with_the_reason) {
  static const char *const nonsense[] = {"",
                                         "now",
                                         "-",
                                         "1e",
                                         "1.",
                                         ".5",
                                         "0x10",
                                         "1_000",
                                         "nan",
                                         "inf",
                                         "12:00",
                                         "2024-03-01",
                                         "2024-3-1T12:00:00Z",
                                         "2024-03-01T12:00Z",
                                         "2024-03-01T12:00:00.Z",
                                         "2024-03-01T12:00:00Zulu",
                                         "2024-03-01T12:00:00+1",
                                         "2024-03-01T12:00:00+24:00",
                                         "2024-03-01T12:00:00+01:60",
                                         "1709294400 ",
                                         " 1709294400",
                                         "--1",
                                         "01/Xyz/2024:12:00:00 +0000",
                                         "01/Mar/2024:12:00:00"};
  for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
    expect_no_time(nonsense[i], "neither a number");
  expect_no_time("2024-03-01T12:00:00", "no zone");
  expect_no_time("2024-03-01T12:00:00.123", "no zone");
  static const char *const outside[] = {"-1",
                                        "-1709294400",
                                        "1e10000",
                                        "99999999999999999999999",
                                        "1e400000000000000000",
                                        "1969-12-31T23:59:59Z",
                                        "1970-01-01T00:30:00+01:00",
                                        "2286-11-20T17:46:41Z",
                                        "9999-12-31T23:59:59Z"};
  for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
    expect_no_time(outside[i], "before 1970 or after 2286");
  static const char *const clocks[] = {"2024-13-01T00:00:00Z", "2024-00-01T00:00:00Z", "2024-01-00T00:00:00Z",
                                       "2024-01-01T24:00:00Z", "2024-01-01T00:60:00Z", "2024-01-01T00:00:61Z"};
  for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++)
    expect_no_time(clocks[i], "a calendar and a clock");
  static const char *const days[] = {"2023-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "2024-04-31T00:00:00Z",
                                     "2024-12-32T00:00:00Z", "30/Feb/2024:12:00:00 +0000"};
  for (size_t i = 0; i < sizeof(days) / sizeof(days[0]); i++)
    expect_no_time(days[i], "the month does not have");
  expect_time("2000-02-29T00:00:00Z", 951782400000);
  expect_time("2024-02-29T00:00:00Z", 1709164800000);
}

/* ---- JSON lines of known servers ---- */

static char decoded[65536];

static const char *parse_named(log_line *out, const char *line, size_t len, const char *fields) {
  log_names names = {.name = {NULL}};
  if (fields != NULL)
    cr_assert(log_names_parse(&names, fields) == EXIT_ALLOWED);
  return jsonline_parse(out, line, len, &names, decoded);
}

static void expect_bytes(const char *what, const char *got, size_t got_len, const char *want) {
  bool same = want == NULL ? got == NULL : got != NULL && got_len == strlen(want) && memcmp(got, want, got_len) == 0;
  cr_assert(same, "%s is %.*s, not %s", what, got == NULL ? 4 : (int)got_len, got == NULL ? "NULL" : got,
            want == NULL ? "NULL" : want);
}

/* `route` is METHOD path, or NULL. */
static void expect_request(const char *line, const char *fields, int64_t time_ms, const char *ip, const char *route,
                           int status) {
  /* Of exactly this length, so that a byte read beyond is seen by the address sanitizer. */
  size_t len = strlen(line);
  char *copy = malloc(len > 0 ? len : 1);
  cr_assert(copy != NULL);
  memcpy(copy, line, len);
  log_line got;
  const char *fault = parse_named(&got, copy, len, fields);
  cr_assert(fault == NULL, "%s: %s", line, fault);
  cr_assert(eq(i64, got.time_ms, time_ms), "%s", line);
  expect_bytes("the client", got.client, got.client_len, ip);
  char joined[256];
  if (got.method != NULL)
    (void)snprintf(joined, sizeof(joined), "%.*s %.*s", (int)got.method_len, got.method, (int)got.path_len, got.path);
  expect_bytes("the route", got.method == NULL ? NULL : joined, got.method == NULL ? 0 : strlen(joined), route);
  cr_assert(got.status == status, "%s: status %d", line, got.status);
  free(copy);
}

Test(jsonline, nginx_with_its_own_variable_names) {
  expect_request("{\"time_iso8601\":\"2024-03-01T13:00:00+01:00\",\"remote_addr\":\"192.0.2.1\",\"request_method\":"
                 "\"POST\",\"request_uri\":\"/search?q=a%20b\",\"status\":\"201\",\"http_user_agent\":\"x\"}",
                 NULL, 1709294400000, "192.0.2.1", "POST /search", 201);
  expect_request("{ \"msec\": \"1709294400.123\", \"time_local\": \"01/Mar/2024:12:00:09 +0000\", \"remote_addr\": "
                 "\"2001:db8::1\", \"request\": \"GET /a?b HTTP/1.1\", \"status\": 404 }",
                 NULL, 1709294400123, "2001:db8::1", "GET /a", 404);
  /* escape=default puts \xNN where JSON has \u00NN. */
  expect_request("{\"msec\":1709294400,\"remote_addr\":\"192.0.2.1\",\"request\":\"GET /\\x22 HTTP/1.1\","
                 "\"agent\":\"\\x16\\x03\",\"status\":000}",
                 NULL, 1709294400000, "192.0.2.1", "GET /\"", 0);
  expect_request("{\"msec\":1709294400,\"remote_addr\":\"192.0.2.1\",\"request\":\"\\u0016\\u0003\",\"status\":400}",
                 NULL, 1709294400000, "192.0.2.1", NULL, 400);
  /* What the server found counts, not what the rewrite made of it. */
  expect_request("{\"msec\":1709294400,\"uri\":\"/index.php\",\"request_uri\":\"/shop\",\"request_method\":\"GET\","
                 "\"remote_addr\":\"192.0.2.1\"}",
                 NULL, 1709294400000, "192.0.2.1", "GET /shop", 0);
}

Test(jsonline, caddy) {
  expect_request(
      "{\"level\":\"info\",\"ts\":1646861401.5241024,\"logger\":\"http.log.access\",\"msg\":\"handled request\","
      "\"request\":{\"remote_ip\":\"127.0.0.1\",\"remote_port\":\"41342\",\"client_ip\":\"203.0.113.9\",\"proto\":"
      "\"HTTP/2.0\",\"method\":\"GET\",\"host\":\"localhost\",\"uri\":\"/shop?page=2\",\"headers\":{\"User-Agent\":"
      "[\"curl/7.82.0\"],\"Accept\":[\"*/*\"]},\"tls\":{\"resumed\":false,\"version\":772}},\"bytes_read\":0,"
      "\"duration\":0.000929675,\"size\":10900,\"status\":200,\"resp_headers\":{\"Server\":[\"Caddy\"]}}",
      NULL, 1646861401524, "203.0.113.9", "GET /shop", 200);
  /* Before 2.5 the address had its port with it. */
  expect_request("{\"ts\":1646861401,\"request\":{\"remote_addr\":\"[2001:db8::1]:4134\",\"method\":\"GET\",\"uri\":"
                 "\"/\"},\"status\":0}",
                 NULL, 1646861401000, "2001:db8::1", "GET /", 0);
}

Test(jsonline, traefik_envoy_and_ecs) {
  expect_request("{\"ClientAddr\":\"10.0.0.1:51222\",\"ClientHost\":\"10.0.0.1\",\"DownstreamStatus\":429,\"Duration\":"
                 "1234,\"RequestMethod\":\"GET\",\"RequestPath\":\"/api/v1?x=1\",\"StartUTC\":"
                 "\"2024-03-01T12:00:00.5Z\",\"level\":\"info\",\"time\":\"2024-03-01T12:00:09Z\"}",
                 NULL, 1709294400500, "10.0.0.1", "GET /api/v1", 429);
  expect_request("{\"start_time\":\"2024-03-01T12:00:00.250Z\",\"method\":\"POST\",\"path\":\"/grpc.Svc/Call\","
                 "\"response_code\":200,\"downstream_remote_address\":\"10.1.2.3:33000\",\"x_forwarded_for\":null}",
                 NULL, 1709294400250, "10.1.2.3", "POST /grpc.Svc/Call", 200);
  expect_request("{\"@timestamp\":\"2024-03-01T12:00:00Z\",\"client\":{\"ip\":\"10.1.2.3\"},\"http\":{\"request\":"
                 "{\"method\":\"GET\"},\"response\":{\"status_code\":304}},\"url\":{\"path\":\"/x\"}}",
                 NULL, 1709294400000, "10.1.2.3", "GET /x", 304);
  expect_request("{\"timestamp\":\"2024-03-01T12:00:00Z\",\"httpRequest\":{\"requestMethod\":\"GET\",\"requestUrl\":"
                 "\"https://shop.example/cart?id=7\",\"remoteIp\":\"10.1.2.3\",\"status\":200}}",
                 NULL, 1709294400000, "10.1.2.3", "GET /cart", 200);
}

Test(jsonline, members_are_named_as_the_user_says_and_no_other_counts_then) {
  static const char line[] =
      "{\"ts\":1,\"when\":{\"end\":1709294400},\"remote_addr\":\"10.0.0.1\",\"peer\":\"10.9.9.9\","
      "\"verb\":\"GET\",\"req.path\":\"/p\",\"code\":429}";
  expect_request(line, NULL, 1000, "10.0.0.1", NULL, 0);
  expect_request(line, "time=when.end,ip=peer,path=req.path,status=code", 1709294400000, "10.9.9.9", "GET /p", 429);
  log_line got;
  const char *fault = parse_named(&got, line, strlen(line), "time=missing");
  cr_assert(fault != NULL && strstr(fault, "no member for the time") != NULL, "%s", fault);
  expect_request(line, "ip=missing", 1000, NULL, NULL, 0);
  /* One member for two fields, with an escape in it: decoded once, the same for both. */
  expect_request("{\"ts\":1,\"x\":\"GET \\/a\\u0062\"}", "request=x,ip=x", 1000, "GET /ab", "GET /ab", 0);
}

Test(jsonline, what_servers_write_for_nothing_is_nothing) {
  expect_request("{\"ts\":1,\"client_ip\":\"-\",\"remote_addr\":\"10.0.0.1\",\"method\":\"\",\"path\":null,\"request\":"
                 "\"GET /a HTTP/1.1\",\"status\":\"-\"}",
                 NULL, 1000, "10.0.0.1", "GET /a", 0);
  expect_request("{\"ts\":1}", NULL, 1000, NULL, NULL, 0);
  /* Of a name that is there twice the last counts; what is in arrays never does. */
  expect_request("{\"ts\":1,\"ip\":\"a\",\"ip\":\"b\",\"x\":[{\"ip\":\"c\"},[\"d\"]]}", NULL, 1000, "b", NULL, 0);
}

Test(jsonline, escapes_are_decoded_and_half_a_pair_stays_apart) {
  expect_request("{\"ts\":1,\"ip\":\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\\/\\\\\\\"\"}", NULL, 1000,
                 "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\\\"", NULL, 0);
  expect_request("{\"ts\":1,\"ip\":\"\\b\\f\\n\\r\\t\"}", NULL, 1000, "\b\f\n\r\t", NULL, 0);
  expect_request("{\"ts\":1,\"ip\":\"\\ud83dx\"}", NULL, 1000, "\xed\xa0\xbdx", NULL, 0);
  expect_request("{\"ts\":1,\"ip\":\"\\ud83d\\u0041\"}", NULL, 1000,
                 "\xed\xa0\xbd"
                 "A",
                 NULL, 0);
  /* Bytes that are not UTF-8 come through as they are. */
  expect_request("{\"ts\":1,\"ip\":\"\xff\xfe\"}", NULL, 1000, "\xff\xfe", NULL, 0);
  expect_request("{\"time\":\"01\\/Mar\\/2024:12:00:00 \\u002b0000\"}", NULL, 1709294400000, NULL, NULL, 0);
}

Test(jsonline, a_line_that_is_no_whole_object_says_why) {
  static const struct {
    const char *line;
    const char *why;
  } rows[] = {
      {"{", "does not end"},
      {"{\"ts\":1", "does not end"},
      {"{\"ts\":1,", "does not end"},
      {"{\"ts", "does not end"},
      {"{\"ts\"", "does not end"},
      {"{\"ts\":", "does not end"},
      {"{\"ts\":\"a\\", "does not end"},
      {"{\"ts\":\"a\\u00", "does not end"},
      {"{\"ts\":[1,", "does not end"},
      {"{\"ts\":1,\"x\":-", "does not end"},
      {"{\"ts\":1}}", "behind"},
      {"{\"ts\":1} {\"ts\":2}", "behind"},
      {"{\"ts\":1,}", "no name in quotes"},
      {"{ts:1}", "no name in quotes"},
      {"{\"ts\" 1}", "no value"},
      {"{\"ts\":}", "no value"},
      {"{\"ts\":nul}", "no value"},
      {"{\"ts\":1.}", "no value"},
      {"{\"ts\":1 \"a\":2}", "no comma"},
      {"{\"ts\":[1 2]}", "no comma"},
      {"{\"ts\":1,\"a\":\"\\q\"}", "none of JSON's"},
      {"{\"ts\":1,\"a\":\"\\u12G4\"}", "hexadecimal"},
      {"{\"ts\":1,\"a\":\"\x01\"}", "control byte"},
      {"{}", "no member for the time"},
      {"{\"ts\":true}", "no member for the time"},
      {"{\"ts\":\"noon\"}", "neither a number"},
      {"{\"ts\":1e999}", "after 2286"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    log_line got;
    const char *fault = parse_named(&got, rows[i].line, strlen(rows[i].line), NULL);
    cr_assert(fault != NULL, "%s is a request", rows[i].line);
    cr_assert(strstr(fault, rows[i].why) != NULL, "%s: \"%s\" is not in: %s", rows[i].line, rows[i].why, fault);
  }
}

Test(jsonline, depth_is_bounded_at_32_and_long_names_are_passed_over) {
  char line[4096];
  for (int depth = 31; depth <= 32; depth++) {
    /* The object itself is one. */
    size_t n = (size_t)snprintf(line, sizeof(line), "{\"ts\":1,\"x\":");
    memset(line + n, '[', (size_t)depth);
    memset(line + n + depth, ']', (size_t)depth);
    line[n + 2 * (size_t)depth] = '}';
    log_line got;
    const char *fault = parse_named(&got, line, n + 2 * (size_t)depth + 1, NULL);
    cr_assert(depth == 31 ? fault == NULL : fault != NULL && strstr(fault, "32 deep") != NULL, "%s", fault);
  }
  memset(line, '[', sizeof(line));
  memcpy(line, "{\"a\":", 5);
  log_line got;
  cr_assert(parse_named(&got, line, sizeof(line), NULL) != NULL);
  char name[256];
  memset(name, 'n', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  (void)snprintf(line, sizeof(line), "{\"ts\":1,\"%s\":{\"ip\":\"a\",\"%s\":2},\"ip\":\"b\"}", name, name);
  expect_request(line, NULL, 1000, "b", NULL, 0);
}

/* ---- Lines that nobody means well with ---- */

static void expect_inside(const char *part, size_t part_len, const char *line, size_t len) {
  if (part == NULL || (part_len == 1 && *part == '/'))
    return;
  bool in_line = part >= line && part + part_len <= line + len;
  bool in_decoded = part >= decoded && part + part_len <= decoded + sizeof(decoded);
  cr_assert(in_line || in_decoded, "a part of the request lies outside the line");
}

Test(loglines, any_change_of_a_line_is_read_within_its_bounds) {
  static const char *const lines[] = {
      "192.0.2.1 - frank [10/Oct/2000:13:55:36 -0700] \"GET /path?query HTTP/1.0\" 200 2326 \"-\" \"x \\\" y\"",
      "[::1]:80 - - [29/Feb/2024:23:59:60 +1400] \"GET http://h/p#f HTTP/1.1\" 429 0",
      "{\"ts\":1646861401.52e0,\"request\":{\"client_ip\":\"\\u00e9\\ud83d\\ude00\",\"method\":\"GET\",\"uri\":\"\\/"
      "a?b\"},"
      "\"status\":200,\"h\":{\"A\":[\"b\",{\"c\":[true,null,-1.5]}]}}",
      "{\"time\":\"2024-02-29T23:59:60.123456+14:00\",\"remote_addr\":\"::1\",\"request\":\"GET \\x2f HTTP/1.1\"}",
  };
  static const char bytes[] = "\0\xff\x1b{}[]\":\\ux0/19eE.+-T ";
  for (int i = 0; i < 60000; i++) {
    const char *from = lines[random_next() % (sizeof(lines) / sizeof(lines[0]))];
    size_t len = strlen(from);
    char *line = malloc(len + 1);
    cr_assert(line != NULL);
    memcpy(line, from, len);
    for (uint64_t changes = random_next() % 4 + 1; changes > 0; changes--)
      line[random_next() % len] = bytes[random_next() % (sizeof(bytes) - 1)];
    if (random_next() % 4 == 0)
      len = random_next() % len;
    char *exact = realloc(line, len > 0 ? len : 1);
    cr_assert(exact != NULL);
    log_line got = {.client = NULL};
    const char *fault =
        len > 0 && exact[0] == '{' ? parse_named(&got, exact, len, NULL) : logline_parse(&got, exact, len);
    if (fault == NULL) {
      cr_assert(got.time_ms >= 0 && got.time_ms <= 10000000000000);
      cr_assert(got.status >= 0 && got.status <= 999);
      expect_inside(got.client, got.client_len, exact, len);
      expect_inside(got.method, got.method_len, exact, len);
      expect_inside(got.path, got.path_len, exact, len);
    }
    free(exact);
  }
}

Test(loglines, the_client_has_no_port_and_no_brackets) {
  static const char *const rows[][2] = {{"10.0.0.1", "10.0.0.1"},
                                        {"10.0.0.1:80", "10.0.0.1"},
                                        {"::1", "::1"},
                                        {"[::1]", "::1"},
                                        {"[::1]:80", "::1"},
                                        {"host.example:80", "host.example"},
                                        {"unix:", "unix"},
                                        {":", ":"},
                                        {"[]", "[]"},
                                        {"[::1", "[::1"},
                                        {"fe80::1%eth0", "fe80::1%eth0"},
                                        {"::ffff:10.0.0.1", "::ffff:10.0.0.1"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    log_line got = {.client = NULL};
    logline_set_client(&got, rows[i][0], strlen(rows[i][0]));
    expect_bytes(rows[i][0], got.client, got.client_len, rows[i][1]);
  }
}

Test(loglines, a_route_has_neither_query_nor_fragment_nor_scheme_nor_host) {
  static const char *const rows[][2] = {{"GET /a HTTP/1.1", "/a"},
                                        {"GET /a?b=c HTTP/1.1", "/a"},
                                        {"GET /a#b HTTP/1.1", "/a"},
                                        {"GET /a", "/a"},
                                        {"GET /?x HTTP/1.1", "/"},
                                        {"GET http://h/a?b HTTP/1.1", "/a"},
                                        {"GET https://h HTTP/1.1", "/"},
                                        {"GET http://h?x HTTP/1.1", "/"},
                                        {"OPTIONS * HTTP/1.1", "*"},
                                        {"CONNECT h:443 HTTP/1.1", "h:443"},
                                        {"GET ?a HTTP/1.1", NULL},
                                        {"GET  HTTP/1.1", NULL},
                                        {"GET ", NULL},
                                        {"GET", NULL},
                                        {"", NULL},
                                        {"G\x01T / HTTP/1.1", NULL},
                                        {" / HTTP/1.1", NULL},
                                        {"GET /a://b HTTP/1.1", "/a://b"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    log_line got = {.client = NULL};
    logline_set_request(&got, rows[i][0], strlen(rows[i][0]));
    expect_bytes(rows[i][0], got.path, got.path_len, rows[i][1]);
  }
}

/* ---- Order ---- */

Test(requests, are_sorted_by_time_and_equal_times_stay_in_order) {
  for (int round = 0; round < 200; round++) {
    request_log log = {.requests = NULL};
    uint64_t n = random_next() % 300;
    for (uint64_t i = 0; i < n; i++) {
      /* The route tells the order of adding. */
      char path[16];
      (void)snprintf(path, sizeof(path), "/%05u", (unsigned)i);
      log_line line = {.client = "a", .client_len = 1, .method = "GET", .method_len = 3, .path = path, .path_len = 6};
      line.time_ms = (int64_t)(random_next() % 40);
      cr_assert(requests_add(&log, &line));
    }
    cr_assert(requests_sort(&log));
    cr_assert(log.count == n && log.routes.count == n);
    for (size_t i = 1; i < log.count; i++) {
      const logged_request *a = &log.requests[i - 1];
      const logged_request *b = &log.requests[i];
      bool ordered = a->time_ms < b->time_ms ||
                     (a->time_ms == b->time_ms && memcmp(a->route->bytes, b->route->bytes, a->route->len) < 0);
      cr_assert(ordered, "round %d, place %zu", round, i);
    }
    requests_finish(&log);
  }
}
