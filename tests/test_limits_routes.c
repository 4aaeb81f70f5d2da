/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which entry a request meets: one spelling for each route, and the most specific entry, compared with slow models
 * that try everything.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "limits/limits.h"
#include "limits_text.h"

static uint64_t random_state = 1;

/* xorshift64*: the same sequence everywhere. */
static unsigned draw(unsigned n) {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (unsigned)((random_state * UINT64_C(2685821657736338717)) >> 33) % n;
}

static bool spelled_as(spile__route_text *out, const char *text) {
  return spile__route_spell(out, NULL, text, false) == SPILE__SPELLED;
}

/* ---- One spelling ---- */

typedef struct spelling_row {
  const char *method;
  const char *path;
  const char *spelled; /* NULL: it is no route */
} spelling_row;

static const spelling_row spellings[] = {
    {"POST", "/api/search", "POST /api/search"},
    {"post", "/api/search/", "POST /api/search"},
    {"Post", "//api//search", "POST /api/search"},
    {"POST", "/api/./search", "POST /api/search"},
    {"POST", "/api/search?x=1", "POST /api/search"},
    {"POST", "/api/search#x", "POST /api/search"},
    {"POST", "/api/x/../search", "POST /api/search"},
    {"POST", "/../../api/search/.", "POST /api/search"},
    {"POST", "/api/search/x/..", "POST /api/search"},
    {"POST", "/api/%73earch", "POST /api/search"},
    {"POST", "/%61pi/se%41rch", "POST /api/seArch"},
    {"POST", "/api/%2e/search", "POST /api/search"},
    {"POST", "/api/x/%2E%2e/search", "POST /api/search"},
    {"POST", "/api%2fsearch", "POST /api%2Fsearch"},
    {"POST", "/api%2Fsearch", "POST /api%2Fsearch"},
    {"POST", "/a%", "POST /a%"},
    {"POST", "/a%4", "POST /a%4"},
    {"POST", "/a%zz", "POST /a%zz"},
    {"POST", "/a%25b", "POST /a%25b"},
    {"POST", "/a%252Fb", "POST /a%252Fb"},
    {"POST", "/a%3f%23%00%0a%7f", "POST /a%3F%23%00%0A%7F"},
    {"POST", "/v1/docs%3aexport", "POST /v1/docs:export"},
    {"POST", "/%21%22%24%26%27%28%29%2B%2C%3B%3C%3D%3E%40%5B%5C%5D%5E%60%7B%7C%7D", "POST /!\"$&'()+,;<=>@[\\]^`{|}"},
    {"GET", "/%c3%bcber%20uns",
     "GET /\xc3\xbc"
     "ber uns"},
    {"GET", "/a%2Ab", "GET /a*b"},
    {"POST", "/...", "POST /..."},
    {"POST", "/.a/..b", "POST /.a/..b"},
    {"GET", "/", "GET /"},
    {"GET", "//", "GET /"},
    {"GET", "/.", "GET /"},
    {"GET", "/?", "GET /"},
    {"OPTIONS", "*", "OPTIONS *"},
    /* In absolute form, as a proxy is asked (RFC 9112, 3.2.2) and every server has to take it. */
    {"POST", "http://h/export", "POST /export"},
    {"POST", "HTTPS://user@[::1]:8443//x/..//export/?q#f", "POST /export"},
    {"POST", "coap+tcp://h/export", "POST /export"},
    {"POST", "http:///export", "POST /export"},
    {"GET", "http://h", "GET /"},
    {"GET", "http://h?/x", "GET /"},
    {"GET", "http://h#/x", "GET /"},
    {"GET", "http:/h/x", "GET /http:/h/x"},
    {"GET", "/http://h/x", "GET /http:/h/x"},
    {"GET", "1http://h/x", "GET /1http:/h/x"},
    {"GET", "?x=1", "GET /"},
    {"GET", "?", "GET /"},
    {"GET", "", "GET /"},
    {"GET", "a", "GET /a"},
    {"GET", "./a", "GET /a"},
    {"GET", "../a", "GET /a"},
    {"CONNECT", "h:443", "CONNECT /h:443"},
    {NULL, "GET a", "GET /a"},
    {NULL, "GET http://h ", "GET /"},
    {NULL, "get  /a/", "GET /a"},
    {NULL, " get\t/a b/ ", "GET /a b"},
    {NULL, "* /api/*", "* /api/*"},
    {NULL, "GET", NULL},
    {NULL, "GET ", NULL},
    {NULL, "", NULL},
    {"", "/a", NULL},
    {"GET POST", "/a", NULL},
    {NULL, "/a", NULL},
};

Test(limits_routes, HTTP_08_a_path_has_one_spelling) {
  for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
    const spelling_row *row = &spellings[i];
    spile__route_text text;
    spile__spelled spelled = spile__route_spell(&text, row->method, row->path, false);
    cr_assert(eq(int, spelled, row->spelled != NULL ? SPILE__SPELLED : SPILE__SPELLED_NO_ROUTE), "%s", row->path);
    if (spelled != SPILE__SPELLED)
      continue;
    cr_assert(strcmp(text.bytes, row->spelled) == 0, "%s: %s", row->path, text.bytes);
    cr_assert(eq(sz, text.len, strlen(row->spelled)));
    cr_assert(eq(sz, text.method_len, strcspn(row->spelled, " ")));
    spile__route_text again;
    cr_assert(spelled_as(&again, text.bytes) && strcmp(again.bytes, text.bytes) == 0, "%s becomes %s", text.bytes,
              again.bytes);
  }
}

Test(limits_routes, HTTP_08_no_form_of_a_target_goes_past_an_entry) {
  spile_limits *limits =
      limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\",\"POST /export\":\"blocked\","
                "\"* /\":\"blocked\"}}");
  static const char *const targets[] = {"/export", "http://h/export", "HTTP://h:80/export?x", "export"};
  for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
    cr_assert(strcmp(entry_of(limits, "POST", targets[i], NULL), "POST /export") == 0, "%s", targets[i]);
  static const char *const roots[] = {"/", "", "?x=1", "http://h", "http://h?x=1", "http://h/"};
  for (size_t i = 0; i < sizeof(roots) / sizeof(roots[0]); i++)
    cr_assert(strcmp(entry_of(limits, "GET", roots[i], NULL), "* /") == 0, "%s", roots[i]);
  spile_limits_unref(limits);
}

Test(limits_routes, an_entry_is_a_path_and_has_no_host) {
  static const char *const entries[] = {"GET http://h/a", "GET a", "GET ?a"};
  for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
    char text[200];
    (void)snprintf(text, sizeof(text),
                   "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"blocked\",\"%s\":"
                   "\"unlimited\"}}",
                   entries[i]);
    limits_text *loaded = limits_text_of(text);
    cr_assert(strstr(loaded->faults, "has a path that does not begin with a slash; write METHOD and PATH") != NULL,
              "%s: %s", entries[i], loaded->faults);
    limits_text_finish(loaded);
  }
}

Test(limits_routes, HTTP_08_an_entry_is_met_by_a_path_however_it_is_escaped) {
  spile_limits *limits =
      limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\","
                "\"POST /v1/docs:export\":\"blocked\",\"GET /\xc3\xbc"
                "ber\":\"blocked\","
                "\"GET /a b\":\"blocked\",\"GET /c%2Bd%2Fe\":\"blocked\",\"GET /(x)*@y\":\"blocked\"}}");
  static const char *const rows[][3] = {
      {"POST", "/v1/docs:export", "POST /v1/docs:export"},
      {"POST", "/v1/docs%3Aexport", "POST /v1/docs:export"},
      {"GET",
       "/\xc3\xbc"
       "ber",
       "GET /\xc3\xbc"
       "ber"},
      {"GET", "/%C3%BCber",
       "GET /\xc3\xbc"
       "ber"},
      {"GET", "/a%20b", "GET /a b"},
      {"GET", "/c+d%2fe", "GET /c+d%2Fe"},
      {"GET", "/c+d/e", "default"},
      {"GET", "/%28x%29%2A%40y", "GET /(x)*@y"},
      {"GET", "/(x)*@y", "GET /(x)*@y"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    cr_assert(strcmp(entry_of(limits, rows[i][0], rows[i][1], NULL), rows[i][2]) == 0, "%s", rows[i][1]);
  spile_limits_unref(limits);
}

Test(limits_routes, an_escape_that_an_entry_cannot_mean_is_told) {
  static const char *const rows[][2] = {
      {"GET /a%2ab", "has the escape of a star (%2A), which only * matches; "},
      {"GET /a%", "has a percent sign that begins no escape; write a percent sign as %25"},
      {"GET /100%/x", "has a percent sign that begins no escape; write a percent sign as %25"},
      {"GET /%FF", "has escapes that are no UTF-8; "},
      {"GET /%C3", "has escapes that are no UTF-8; "},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    char text[200];
    (void)snprintf(text, sizeof(text),
                   "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"blocked\",\"%s\":"
                   "\"unlimited\"}}",
                   rows[i][0]);
    limits_text *loaded = limits_text_of(text);
    cr_assert(strstr(loaded->faults, rows[i][1]) != NULL, "%s: %s", rows[i][0], loaded->faults);
    limits_text_finish(loaded);
  }
}

Test(limits_routes, HTTP_08_letters_of_a_path_are_alike_where_the_file_says_so) {
  spile_limits *limits =
      limits_of("{\"on_store_error\":\"open\",\"ignore_case\":true,\"limits\":{\"default\":\"unlimited\","
                "\"POST /API/search\":\"blocked\",\"GET /Files/*\":\"blocked\"}}");
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "POST", "/api/SEARCH/", NULL), "POST /api/search"));
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "POST", "/api/%53earch/", NULL), "POST /api/search"));
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "get", "/FILES/X", NULL), "GET /files/*"));
  spile_limits_unref(limits);
}

/* What is before a segment of its kind is resolved away: `times` times `there`, then `times` times `back`, then `rest`.
 */
static char *detour(const char *there, const char *back, size_t times, const char *rest) {
  char *path = malloc(times * (strlen(there) + strlen(back)) + strlen(rest) + 1);
  cr_assert(path != NULL);
  char *at = path;
  for (size_t i = 0; i < 2 * times; i++)
    at = stpcpy(at, i < times ? there : back);
  strcpy(at, rest);
  return path;
}

static void expect_blocked(const char *entry, const char *method, char *path) {
  spile_limits *limits = limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\","
                                   "\"* /admin/*\":\"blocked\",\"GET /a/*/z\":\"blocked\"}}");
  const spile_route *route = spile_limits_find(limits, method, path, NULL);
  cr_assert(strcmp(spile_route_text(route), entry) == 0, "%.40s (%zu bytes) meets %s", path, strlen(path),
            spile_route_text(route));
  cr_assert(eq(int, spile_route_word_of(route), SPILE_ROUTE_BLOCKED));
  spile_limits_unref(limits);
  free(path);
}

/* A server with 16 KiB and more of room for a line takes all of these for /admin/q. */
Test(limits_routes, HTTP_08_what_is_resolved_away_is_no_way_round_an_entry_however_long_it_is) {
  static const size_t times[] = {1, 100, 2047, 2048, 3000, 4500, 9000, 180000};
  for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
    expect_blocked("* /admin/*", "GET", detour("/a", "/..", times[i], "/admin/q"));
    expect_blocked("* /admin/*", "GET", detour("/a", "/%2e%2E", times[i], "/admin/q"));
    expect_blocked("* /admin/*", "GET", detour("/./a", "//..", times[i], "//admin//q"));
    expect_blocked("* /admin/*", "GET", detour("/../a/.", "/.././", times[i], "/admin/x/../q"));
    expect_blocked("* /admin/*", "GET", detour("/admin/a/..", "/./..", times[i], "/x/../admin/q"));
    expect_blocked("* /admin/*", NULL, detour("GET /", "/", times[i] / 180000 + 1, "../../GET%20/../admin/q"));
  }
  for (size_t len = 8180; len <= 1000000; len += len < 8200 ? 1 : 300000) {
    char *segment = malloc(len + 2);
    cr_assert(segment != NULL);
    memset(segment, 'a', len);
    segment[0] = '/';
    segment[len] = '\0';
    expect_blocked("* /admin/*", "GET", detour(segment, "/..", 1, "/admin/q"));
    /* Escapes, too, are as long as what they stand for. */
    memcpy(segment + 1, "%61%", 4);
    expect_blocked("* /admin/*", "GET", detour("/a", "/..", 1, "/%61%64%6d%69%6e/q"));
    free(segment);
  }
}

Test(limits_routes, a_path_as_long_as_can_be_is_compared_and_a_longer_one_is_blocked) {
  spile_limits *limits = limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\","
                                   "\"GET /a/*/z\":\"unlimited\"},"
                                   "\"skip\":[{\"route\":\"* /*\"}]}");
  char *path = malloc(20001);
  cr_assert(path != NULL);
  spile_caller nobody = SPILE_CALLER_INIT;
  /* "GET " and the path are SPILE__ROUTE_LEN_MAX bytes. */
  for (size_t len = SPILE__ROUTE_LEN_MAX - 4; len <= SPILE__ROUTE_LEN_MAX - 3; len++) {
    memset(path, 'x', len);
    memcpy(path, "/a/", 3);
    memcpy(path + len - 2, "/z", 3);
    bool fits = len == SPILE__ROUTE_LEN_MAX - 4;
    const spile_route *route = spile_limits_find(limits, "GET", path, NULL);
    cr_assert(strcmp(spile_route_text(route), fits ? "GET /a/*/z" : "(too long)") == 0, "%zu", len);
    cr_assert(eq(int, spile_route_word_of(route), fits ? SPILE_ROUTE_UNLIMITED : SPILE_ROUTE_BLOCKED));
    cr_assert(eq(sz, spile_route_count(route), 0));
    cr_assert(eq(int, spile__limits_skips(limits, "GET", path, &nobody), fits));
  }
  /* A method counts as well: with " /" it is as long as can be, or a byte longer. */
  memset(path, 'X', SPILE__ROUTE_LEN_MAX - 1);
  path[SPILE__ROUTE_LEN_MAX - 1] = '\0';
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, path, "/", NULL), "(too long)"));
  path[SPILE__ROUTE_LEN_MAX - 2] = '\0';
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, path, "/", NULL), "default"));
  /* What is left out of the one spelling does not count. */
  memset(path, '/', 20000);
  memcpy(path + 10000, "a/", 2);
  memcpy(path + 19990, "b//z//////", 11);
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "GET", path, NULL), "GET /a/*/z"));
  /* An escape is as long as what it stands for. */
  size_t n = (SPILE__ROUTE_LEN_MAX - 8) / 2;
  char *escaped = malloc(3 * n + 20);
  cr_assert(escaped != NULL);
  char *at = stpcpy(escaped, "/a/");
  for (size_t i = 0; i < n; i++)
    at = stpcpy(at, "%78");
  strcpy(at, "/z");
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "GET", escaped, NULL), "GET /a/*/z"));
  free(escaped);
  free(path);
  spile_limits_unref(limits);
}

/* ---- The most specific ---- */

Test(limits_routes, exact_comes_before_globs_and_the_longest_glob_before_default) {
  spile_limits *limits = limits_of(
      "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\",\"* /api/*\":\"blocked\",\"GET /api/*\":"
      "\"blocked\",\"* /api/users/*\":\"blocked\",\"GET /api/users/me\":\"blocked\",\"* /api/*/m\":\"blocked\","
      "\"* *.php\":\"blocked\"},\"tiers\":{\"pro\":{\"GET /api/users/me\":\"unlimited\",\"* /api/*\":\"unlimited\","
      "\"default\":\"blocked\"}}}");
  static const struct {
    const char *method;
    const char *path;
    const char *tier;
    const char *entry;
    int word;
  } rows[] = {
      {"GET", "/api/users/me", NULL, "GET /api/users/me", SPILE_ROUTE_BLOCKED},
      {"GET", "/api/users/me", "pro", "GET /api/users/me", SPILE_ROUTE_UNLIMITED},
      {"POST", "/api/users/me", NULL, "* /api/users/*", SPILE_ROUTE_BLOCKED}, /* 11 letters */
      {"HEAD", "/api/users/me", NULL, "GET /api/users/me", SPILE_ROUTE_BLOCKED},
      {"HEAD", "/api/x", NULL, "GET /api/*", SPILE_ROUTE_BLOCKED},
      {"GET", "/api/users", NULL, "* /api/users/*", SPILE_ROUTE_BLOCKED}, /* a slash at the end is no difference */
      {"GET", "/api/userx", NULL, "GET /api/*", SPILE_ROUTE_BLOCKED},
      {"POST", "/api/x", NULL, "* /api/*", SPILE_ROUTE_BLOCKED},
      {"POST", "/api/x", "pro", "* /api/*", SPILE_ROUTE_UNLIMITED}, /* equal weight: the tier's */
      {"GET", "/api/x", "pro", "GET /api/*", SPILE_ROUTE_BLOCKED},  /* the base's weighs more */
      {"POST", "/api", NULL, "* /api/*", SPILE_ROUTE_BLOCKED},
      {"POST", "/apix", NULL, "default", SPILE_ROUTE_UNLIMITED},
      {"POST", "/apix", "pro", "default", SPILE_ROUTE_BLOCKED},
      {"POST", "/apix", "prp", "default", SPILE_ROUTE_UNLIMITED},
      {"POST", "/x/y.php", NULL, "* *.php", SPILE_ROUTE_BLOCKED},
      {"POST", "/api/y.php", NULL, "* /api/*", SPILE_ROUTE_BLOCKED},
      {"GET", "/files/*", NULL, "default", SPILE_ROUTE_UNLIMITED},
      {"*", "/api/x", NULL, "* /api/*", SPILE_ROUTE_BLOCKED},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const spile_route *route = spile_limits_find(limits, rows[i].method, rows[i].path, rows[i].tier);
    cr_assert(strcmp(spile_route_text(route), rows[i].entry) == 0, "%s %s: %s", rows[i].method, rows[i].path,
              spile_route_text(route));
    cr_assert(eq(int, spile_route_word_of(route), rows[i].word), "%s %s", rows[i].method, rows[i].path);
  }
  spile_limits_unref(limits);
}

Test(limits_routes, the_path_decides_before_the_method_and_HEAD_is_GET_unless_it_is_named) {
  spile_limits *limits = limits_of(
      "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\",\"DELETE /*\":\"unlimited\",\"* /admin\":"
      "\"blocked\",\"* /a/*\":\"blocked\",\"PROPPATCH /*\":\"unlimited\",\"GET /secret\":\"blocked\",\"HEAD /*\":"
      "\"unlimited\",\"GET /a/*\":\"blocked\",\"GET /b\":\"blocked\",\"HEAD /b\":\"unlimited\",\"* /b\":\"blocked\"},"
      "\"tiers\":{\"pro\":{\"* /b\":\"unlimited\",\"GET /*\":\"unlimited\"}}}");
  static const char *const rows[][4] = {
      {"DELETE", "/admin", NULL, "* /admin"},
      {"DELETE", "/a/x", NULL, "* /a/*"},
      {"PROPPATCH", "/a/x", NULL, "* /a/*"},
      {"DELETE", "/x", NULL, "DELETE /*"},
      {"HEAD", "/secret", NULL, "GET /secret"},
      {"HEAD", "/a/x", NULL, "GET /a/*"},
      {"HEAD", "/x", NULL, "HEAD /*"},
      {"HEAD", "/b", NULL, "HEAD /b"},
      {"GET", "/b", NULL, "GET /b"},
      {"POST", "/b", NULL, "* /b"},
      {"GET", "/b", "pro", "GET /b"},
      {"POST", "/b", "pro", "* /b"},
      {"GET", "/secret", "pro", "GET /secret"},
      {"HEAD", "/y", "pro", "HEAD /*"},
      {"GETX", "/b", NULL, "* /b"},
      {"HEADX", "/secret", NULL, "default"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const char *entry = entry_of(limits, rows[i][0], rows[i][1], rows[i][2]);
    cr_assert(strcmp(entry, rows[i][3]) == 0, "%s %s: %s", rows[i][0], rows[i][1], entry);
  }
  spile_limits_unref(limits);
}

Test(limits_routes, a_path_without_the_end_of_its_glob_weighs_as_much_as_with_it) {
  spile_limits *limits = limits_of(
      "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\",\"GET /admin/*\":\"blocked\",\"GET /admin*\":"
      "\"unlimited\",\"* /s/*\":\"blocked\",\"GET /u/*/me\":\"unlimited\",\"* /u/*/me/*\":\"blocked\"},"
      "\"tiers\":{\"pro\":{\"* /s*\":\"unlimited\"}}}");
  static const char *const rows[][4] = {
      {"GET", "/admin", NULL, "GET /admin/*"},
      {"GET", "/admin/x", NULL, "GET /admin/*"},
      {"GET", "/admins", NULL, "GET /admin*"},
      {"GET", "/s", "pro", "* /s/*"},
      {"GET", "/sx", "pro", "* /s*"},
      {"GET", "/u/7/me", NULL, "GET /u/*/me"},
      {"HEAD", "/u/7/me", NULL, "GET /u/*/me"},
      {"POST", "/u/7/me", NULL, "* /u/*/me/*"},
      {"GET", "/u/7/me/x", NULL, "* /u/*/me/*"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const char *entry = entry_of(limits, rows[i][0], rows[i][1], rows[i][2]);
    cr_assert(strcmp(entry, rows[i][3]) == 0, "%s %s: %s", rows[i][0], rows[i][1], entry);
  }
  spile_limits_unref(limits);
}

Test(limits_routes, a_routers_own_pattern_is_found_by_its_text) {
  spile_limits *limits = limits_of("{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\",\"GET /u/:id\":"
                                   "\"blocked\",\"GET /v/{id}\":\"blocked\",\"GET /files/*path\":\"blocked\"}}");
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "GET", "/u/:id", NULL), "GET /u/:id"));
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "GET", "/v/{id}", NULL), "GET /v/{id}"));
  cr_assert(eq(str, (char *)(uintptr_t)entry_of(limits, "GET", "/files/*path", NULL), "GET /files/*path"));
  spile_limits_unref(limits);
}

/* ---- Against models ---- */

/* The one spelling of a path, read from its beginning with room for all of it. */
static void model_spell(const char *path, char *out) {
  const char *segments[64];
  size_t lens[64];
  size_t n = 0;
  bool star = *path == '*';
  char bare[200];
  size_t len = 0;
  for (; *path != '\0' && *path != '?' && *path != '#'; path++) {
    unsigned byte;
    if (path[0] == '%' && isxdigit((unsigned char)path[1]) && isxdigit((unsigned char)path[2]) &&
        sscanf(path + 1, "%2x", &byte) == 1 && strchr("/?#%", (int)byte) == NULL && byte >= 0x20 && byte != 0x7f) {
      bare[len++] = (char)byte;
      path += 2;
    } else if (path[0] == '%' && isxdigit((unsigned char)path[1]) && isxdigit((unsigned char)path[2])) {
      bare[len++] = '%';
      bare[len++] = (char)toupper((unsigned char)*++path);
      bare[len++] = (char)toupper((unsigned char)*++path);
    } else {
      bare[len++] = *path;
    }
  }
  for (size_t from = 0; from < len;) {
    size_t to = from;
    while (to < len && bare[to] != '/')
      to++;
    size_t segment_len = to - from;
    if (segment_len == 2 && memcmp(bare + from, "..", 2) == 0) {
      n -= n > 0 ? 1 : 0;
    } else if (segment_len > 0 && !(segment_len == 1 && bare[from] == '.')) {
      segments[n] = bare + from;
      lens[n++] = segment_len;
    }
    from = to + 1;
  }
  char *at = stpcpy(out, "P ");
  for (size_t i = 0; i < n; i++) {
    if (segments[i] != bare || !star)
      *at++ = '/';
    memcpy(at, segments[i], lens[i]);
    at += lens[i];
  }
  strcpy(at, n == 0 ? "/" : "");
}

Test(limits_routes, a_path_read_from_its_end_is_the_path_read_from_its_beginning) {
  static const char *const pieces[] = {"/", "/",   "/",   ".",   "..",  "a",   "b*", "*", "%2e", "%2E", "%2f",
                                       "%", "%61", "%25", "%3F", "%2A", "%00", "4",  "2", "//",  "/..", "/../.."};
  size_t resolved = 0;
  for (int i = 0; i < 300000; i++) {
    char path[200] = "";
    char expected[210];
    for (unsigned n = draw(16); n > 0; n--)
      strcat(path, pieces[draw(sizeof(pieces) / sizeof(pieces[0]))]);
    strcat(path, draw(8) == 0 ? "?/../x" : "");
    model_spell(path, expected);
    spile__route_text text;
    cr_assert(eq(int, spile__route_spell(&text, "P", path, false), SPILE__SPELLED));
    cr_assert(strcmp(text.bytes, expected) == 0 && text.len == strlen(expected), "%s: %s, not %s", path, text.bytes,
              expected);
    resolved += strlen(expected) + 6 < strlen(path) ? 1 : 0;
  }
  cr_assert(lt(sz, 50000, resolved));
}

/* Whether a path matches, every way tried. */
static bool model_span(const char *pattern, const char *text) {
  if (*pattern == '\0')
    return *text == '\0';
  if (*pattern != '*')
    return *pattern == *text && model_span(pattern + 1, text + 1);
  for (;; text++) {
    if (model_span(pattern + 1, text))
      return true;
    if (*text == '\0')
      return false;
  }
}

/* A request is METHOD PATH in one spelling. A slash at the end would make no difference. */
static bool model_path_matches(const char *pattern, const char *request) {
  size_t method_len = strcspn(pattern, " ");
  size_t request_method_len = strcspn(request, " ");
  char slashed[300];
  (void)snprintf(slashed, sizeof(slashed), "%s/", request + request_method_len + 1);
  return model_span(pattern + method_len + 1, request + request_method_len + 1) ||
         (strcmp(slashed, "//") != 0 && model_span(pattern + method_len + 1, slashed));
}

/* How well the method of a pattern fits: 3 the request's own, 2 GET for HEAD, 1 any; 0: not at all. */
static int model_method(const char *pattern, const char *request) {
  size_t len = strcspn(request, " ") + 1;
  if (strncmp(pattern, request, len) == 0)
    return 3;
  if (strncmp(request, "HEAD ", 5) == 0 && strncmp(pattern, "GET ", 4) == 0)
    return 2;
  return strncmp(pattern, "* ", 2) == 0 ? 1 : 0;
}

static bool model_matches(const char *pattern, const char *request) {
  return model_method(pattern, request) > 0 && model_path_matches(pattern, request);
}

/* Of few letters, so that much matches. */
static void draw_path(char *out, bool glob, unsigned most) {
  size_t len = 0;
  unsigned n = 1 + draw(most);
  out[len++] = '/';
  for (unsigned i = 0; i < n; i++)
    out[len++] = "ab/*"[draw(glob ? 4 : 3)];
  out[len] = '\0';
}

static void draw_route(char *out, bool glob, unsigned most) {
  static const char *const methods[] = {"GET ", "HEAD ", "P ", "* "};
  char path[100];
  draw_path(path, glob, most);
  char text[110];
  (void)snprintf(text, sizeof(text), "%s%s", methods[draw(glob ? 4 : 3)], path);
  spile__route_text spelled;
  cr_assert(spelled_as(&spelled, text));
  size_t kept = 0;
  for (size_t i = 0; i < spelled.len; i++) {
    if (spelled.bytes[i] != '*' || kept == 0 || out[kept - 1] != '*')
      out[kept++] = spelled.bytes[i];
  }
  out[kept] = '\0';
}

Test(limits_routes, matching_is_what_trying_every_way_finds) {
  size_t matched = 0;
  for (int i = 0; i < 200000; i++) {
    char pattern[120];
    char request[120];
    draw_route(pattern, true, 6);
    draw_route(request, false, 6);
    spile__route_text text;
    cr_assert(spelled_as(&text, request));
    bool expected = model_matches(pattern, request);
    cr_assert(eq(int, spile__route_text_matches(pattern, &text), expected), "%s, %s", pattern, request);
    matched += expected ? 1 : 0;
  }
  cr_assert(lt(sz, 10000, matched));
}

/* Every path of up to 7 letters out of "ab/", in one spelling: enough for globs of up to 4. */
static char (*all_requests)[16];
static size_t all_count;

static void all_make(void) {
  all_requests = calloc(20000, sizeof(*all_requests));
  cr_assert(all_requests != NULL);
  size_t powers = 1;
  for (int len = 0; len <= 7; len++, powers *= 3) {
    for (size_t n = 0; n < powers; n++) {
      char path[16] = "P /";
      size_t rest = n;
      for (int i = 0; i < len; i++, rest /= 3)
        path[3 + i] = "ab/"[rest % 3];
      spile__route_text text;
      if (!spelled_as(&text, path) || strcmp(text.bytes, path) != 0)
        continue;
      memcpy(all_requests[all_count++], path, sizeof(path));
    }
  }
}

static bool model_meet(const char *a, const char *b) {
  if (strncmp(a, b, strcspn(a, " ") + 1) != 0)
    return false;
  for (size_t i = 0; i < all_count; i++) {
    if (model_path_matches(a, all_requests[i]) && model_path_matches(b, all_requests[i]))
      return true;
  }
  return false;
}

Test(limits_routes, two_globs_of_one_method_meet_exactly_where_some_path_matches_both) {
  all_make();
  size_t meet = 0;
  size_t count = 0;
  for (int i = 0; i < 20000; i++) {
    char a[120];
    char b[120];
    draw_route(a, true, 3);
    draw_route(b, true, 3);
    if (!spile__is_glob(a) || !spile__is_glob(b))
      continue;
    bool expected = model_meet(a, b);
    cr_assert(eq(int, spile__globs_meet(a, b), expected), "%s, %s", a, b);
    cr_assert(eq(int, spile__globs_meet(b, a), expected), "%s, %s", b, a);
    meet += expected ? 1 : 0;
    count++;
  }
  cr_assert(lt(sz, 500, meet));
  cr_assert(lt(sz, 500, count - meet));
  free(all_requests);
}

/* Whether a pattern matches a request only because a slash at the end makes no difference. */
static bool model_implied(const char *pattern, const char *request) {
  return !model_span(pattern + strcspn(pattern, " ") + 1, request + strcspn(request, " ") + 1);
}

/* How specific a pattern is that matches: by the path first, then by the method. */
static int model_rank(const char *pattern, const char *request) {
  const char *path = pattern + strcspn(pattern, " ") + 1;
  int literal = 0;
  for (const char *c = path; *c != '\0'; c++)
    literal += *c != '*' ? 1 : 0;
  return (strchr(path, '*') == NULL ? 1000 : literal) * 4 + model_method(pattern, request);
}

enum { ENTRIES = 12 };

/* Loads random entries, or none when they contradict each other. */
static spile_limits *random_limits(char entries[ENTRIES][120]) {
  char text[4096];
  size_t len =
      (size_t)snprintf(text, sizeof(text), "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"");
  for (size_t i = 0; i < ENTRIES; i++) {
    draw_route(entries[i], true, 5);
    for (size_t j = 0; j < i; j++) {
      if (strcmp(entries[i], entries[j]) == 0)
        return NULL;
    }
    len += (size_t)snprintf(text + len, sizeof(text) - len, ",\"%s\":\"blocked\"", entries[i]);
  }
  (void)snprintf(text + len, sizeof(text) - len, "}}");
  limits_text *loaded = limits_text_of(text);
  spile_limits *limits = spile_limits_ref(loaded->limits);
  bool meet = false;
  for (size_t i = 0; i < ENTRIES; i++) {
    for (size_t j = 0; j < i; j++) {
      bool globs = spile__is_glob(entries[i]) && spile__is_glob(entries[j]);
      meet |= globs && spile__glob_weight(entries[i]) == spile__glob_weight(entries[j]) &&
              spile__globs_meet(entries[i], entries[j]);
    }
  }
  cr_assert(eq(int, limits == NULL, meet), "%s\n%s", text, loaded->faults);
  limits_text_finish(loaded);
  return limits;
}

/* Whether a pattern matches as the path without its end alone, and that is an entry for the request's method. */
static bool model_is_written_out(char entries[ENTRIES][120], const char *pattern, const char *request) {
  const char *path = pattern + strcspn(pattern, " ") + 1;
  for (size_t i = 0; i < ENTRIES && model_implied(pattern, request); i++) {
    const char *other = entries[i] + strcspn(entries[i], " ") + 1;
    if (model_method(entries[i], request) > 0 && strlen(other) + 2 == strlen(path) &&
        strncmp(other, path, strlen(other)) == 0)
      return true;
  }
  return false;
}

Test(limits_routes, the_tree_finds_what_comparing_with_every_entry_finds) {
  size_t found = 0;
  size_t files = 0;
  while (files < 300) {
    char entries[ENTRIES][120];
    spile_limits *limits = random_limits(entries);
    if (limits == NULL)
      continue;
    files++;
    for (int i = 0; i < 200; i++) {
      char request[120];
      draw_route(request, false, 8);
      const char *best = "default";
      int rank = -1;
      for (size_t j = 0; j < ENTRIES; j++) {
        if (!model_matches(entries[j], request) || model_is_written_out(entries, entries[j], request))
          continue;
        int now = model_rank(entries[j], request);
        best = now > rank ? entries[j] : best;
        rank = now > rank ? now : rank;
      }
      const char *entry = entry_of(limits, NULL, request, NULL);
      cr_assert(strcmp(entry, best) == 0, "%s meets %s, not %s", request, entry, best);
      found += rank >= 0 ? 1 : 0;
    }
    spile_limits_unref(limits);
  }
  cr_assert(lt(sz, 10000, found));
}
