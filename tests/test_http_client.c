/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who the client is behind proxies, and what nobody can make it be.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "http/http.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))
#define LINES_MAX 300

/* Lines of one header. */
typedef struct lines {
  const char *name;
  const char *const *values;
  size_t n;
} lines;

static const char *lines_get(void *user, const char *name, size_t index) {
  const lines *l = user;
  return strcasecmp(l->name, name) == 0 && index < l->n ? l->values[index] : NULL;
}

static spile_http_settings *settings_of(int forwarded, const char *const *trusted, size_t n, int hops) {
  spile_http_options options = SPILE_HTTP_OPTIONS_INIT;
  options.forwarded = forwarded;
  options.trusted = trusted;
  options.trusted_count = n;
  options.hops = hops;
  spile_http_settings *settings;
  spile_error error = {0};
  cr_assert(spile_http_settings_create(&settings, &options, &error) == SPILE_OK, "%s", error.message);
  return settings;
}

static const char *const ten[] = {"10.0.0.0/8"};
static const char *const ten_and_unix[] = {"10.0.0.0/8", "unix:"};

/* What the last client_of found: a spile_http_found. */
static int found;

/* The client under one header of one line; "" for none. Settings are freed. */
static const char *client_of(spile_http_settings *settings, const char *header, const char *value, const char *peer) {
  static char client[SPILE_HTTP_CLIENT_MAX];
  lines l = {.name = header, .values = &value, .n = value != NULL};
  found = spile_http_client(settings, peer, lines_get, &l, client);
  cr_assert(eq(int, found != SPILE_HTTP_CLIENT_UNKNOWN, client[0] != '\0'));
  spile_http_settings_free(settings);
  return client;
}

typedef struct row {
  const char *peer;
  const char *value;
  const char *client;
  bool nearest; /* it is none of those who are known */
} row;

static void expect_clients(int forwarded, const row *rows, size_t n) {
  for (size_t i = 0; i < n; i++) {
    spile_http_settings *settings = settings_of(forwarded, ten, 1, 0);
    const char *client = client_of(settings, forwarded == SPILE_HTTP_FORWARDED ? "Forwarded" : "X-Forwarded-For",
                                   rows[i].value, rows[i].peer);
    cr_expect(strcmp(client, rows[i].client) == 0, "%s / %s: \"%s\", not \"%s\"", rows[i].peer,
              rows[i].value != NULL ? rows[i].value : "none", client, rows[i].client);
    cr_expect(eq(int, found, rows[i].nearest ? SPILE_HTTP_CLIENT_NEAREST : SPILE_HTTP_CLIENT_FOUND), "%s / %s",
              rows[i].peer, rows[i].value != NULL ? rows[i].value : "none");
  }
}

Test(http_client, HTTP_03_is_the_first_from_the_right_that_is_not_trusted) {
  static const row rows[] = {
      {"10.0.0.2", "203.0.113.9, 198.51.100.7, 10.0.0.5", "198.51.100.7"},
      {"10.0.0.2", "198.51.100.7", "198.51.100.7"},
      {"198.51.100.20", "1.2.3.4", "198.51.100.20"},
      {"10.0.0.2", NULL, "10.0.0.2"},
      {"10.0.0.2", "10.0.0.9, 10.0.0.5", "10.0.0.9"},
      {"10.0.0.2:51234", "198.51.100.7", "198.51.100.7"},
      {"::ffff:10.0.0.2", "198.51.100.7", "198.51.100.7"},
  };
  expect_clients(SPILE_HTTP_X_FORWARDED_FOR, rows, COUNT(rows));
  spile_http_settings *none = settings_of(SPILE_HTTP_X_FORWARDED_FOR, NULL, 0, 0);
  cr_assert(eq(str, (char *)client_of(none, "X-Forwarded-For", "1.2.3.4", "10.0.0.2"), "10.0.0.2"));
  cr_assert(eq(str, (char *)client_of(NULL, "X-Forwarded-For", "1.2.3.4", "10.0.0.2"), "10.0.0.2"));
}

Test(http_client, HTTP_04_reads_ports_brackets_and_spaces) {
  static const row rows[] = {
      {"10.0.0.2", "203.0.113.7:51234", "203.0.113.7"},
      {"10.0.0.2", " [2001:db8::1]:443 ", "2001:db8::1"},
      {"10.0.0.2", "[2001:db8::1]", "2001:db8::1"},
      {"10.0.0.2", "2001:db8::1", "2001:db8::1"},
      {"10.0.0.2", "1.1.1.1,\t 203.0.113.7 ,10.0.0.5", "203.0.113.7"},
      {"10.0.0.2", "::ffff:203.0.113.7", "203.0.113.7"},
      {"10.0.0.2", ",203.0.113.7,, ,", "203.0.113.7"},
      /* What a translator carries stays what it is: it must not pass for a network of IPv4 that is trusted or skipped.
       */
      {"10.0.0.2", "1.1.1.1, 64:ff9b::10.0.0.5", "64:ff9b::a00:5"},
  };
  expect_clients(SPILE_HTTP_X_FORWARDED_FOR, rows, COUNT(rows));
}

Test(http_client, stops_at_what_cannot_be_read_with_the_last_trusted_hop) {
  static const row rows[] = {
      {"10.0.0.2", "198.51.100.7, unknown", "10.0.0.2", true},
      {"10.0.0.2", "198.51.100.7, unknown, 10.0.0.5", "10.0.0.5", true},
      {"10.0.0.2", "\"198.51.100.7\"", "10.0.0.2", true},
      {"10.0.0.2", "01.2.3.4", "10.0.0.2", true},
      {"10.0.0.2", "", "10.0.0.2"},
      {"10.0.0.2", "for=198.51.100.7", "10.0.0.2", true},
  };
  expect_clients(SPILE_HTTP_X_FORWARDED_FOR, rows, COUNT(rows));
}

Test(http_client, reads_forwarded_as_its_standard_says) {
  static const row rows[] = {
      {"10.0.0.2", "for=198.51.100.7", "198.51.100.7"},
      {"10.0.0.2", "For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"},
      {"10.0.0.2", "for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"},
      {"10.0.0.2", "by=203.0.113.43; FOR=\"192.0.2.60\" ; proto=http", "192.0.2.60"},
      {"10.0.0.2", "for=192.0.2.43, for=198.51.100.17, for=10.1.1.1", "198.51.100.17"},
      {"10.0.0.2", "for=\"192.0.2.43:_port\"", "192.0.2.43"},
      {"10.0.0.2", "for=\"19\\2.0.2.43\"", "192.0.2.43"},
      {"10.0.0.2", "for=192.0.2.43;ext=\"a,b;for=1.2.3.4\"", "192.0.2.43"},
      {"10.0.0.2", "for=192.0.2.43;ext=\"a,\\\"b\"", "192.0.2.43"},
      {"10.0.0.2", "for=192.0.2.43;ext=\"a\\\\\"", "192.0.2.43"},
      {"10.0.0.2", "for=1.1.1.1, for=unknown", "10.0.0.2", true},
      {"10.0.0.2", "for=1.1.1.1, for=_hidden, for=10.0.0.9", "10.0.0.9", true},
      {"10.0.0.2", "proto=http", "10.0.0.2", true},
      {"10.0.0.2", "for=1.2.3.4;for=1.2.3.5", "10.0.0.2", true},
      {"10.0.0.2", "for=\"1.2.3.4", "10.0.0.2", true},
      {"10.0.0.2", "for=\"1.2.3.4\"x", "10.0.0.2", true},
      {"10.0.0.2", "for", "10.0.0.2", true},
      {"10.0.0.2", "for=", "10.0.0.2", true},
      {"10.0.0.2", "for=\"\"", "10.0.0.2", true},
      {"10.0.0.2", "for=\"1.2.3.4\\", "10.0.0.2", true},
      {"10.0.0.2", "198.51.100.7", "10.0.0.2", true},
      {"10.0.0.2", "xfor=1.2.3.4", "10.0.0.2", true},
      /* What a client leaves open on the left swallows nothing that a proxy wrote. */
      {"10.0.0.2", "for=\"1.2.3.4, for=198.51.100.17", "198.51.100.17"},
      {"10.0.0.2", "for=\"1.2.3.4\\\", for=198.51.100.17", "198.51.100.17"},
      {"10.0.0.2", "\", for=198.51.100.17", "198.51.100.17"},
      {"10.0.0.2", "for=1.2.3.4\\, for=198.51.100.17", "198.51.100.17"},
  };
  expect_clients(SPILE_HTTP_FORWARDED, rows, COUNT(rows));
}

Test(http_client, looks_at_the_configured_header_alone) {
  cr_assert(
      eq(str, (char *)client_of(settings_of(SPILE_HTTP_FORWARDED, ten, 1, 0), "X-Forwarded-For", "1.2.3.4", "10.0.0.2"),
         "10.0.0.2"));
  cr_assert(
      eq(str,
         (char *)client_of(settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0), "Forwarded", "for=1.2.3.4", "10.0.0.2"),
         "10.0.0.2"));
}

Test(http_client, reads_several_lines_as_one_list_whose_last_line_is_its_right_end) {
  static const char *const values[] = {"1.2.3.4", "203.0.113.9, 198.51.100.7", "10.0.0.5"};
  lines l = {.name = "x-forwarded-for", .values = values, .n = 3};
  spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0);
  char client[SPILE_HTTP_CLIENT_MAX];
  cr_assert(spile_http_client(settings, "10.0.0.2", lines_get, &l, client));
  cr_assert(eq(str, client, "198.51.100.7"));
  spile_http_settings_free(settings);
}

Test(http_client, HTTP_07_is_nobody_where_there_is_no_address) {
  static const char *const peers[] = {"", " ", "unknown", "localhost", "unix:", "unix:/run/app.sock", NULL};
  for (size_t i = 0; i < COUNT(peers); i++) {
    cr_assert(eq(
        str,
        (char *)client_of(settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0), "X-Forwarded-For", "1.2.3.4", peers[i]),
        ""));
  }
}

Test(http_client, believes_a_unix_socket_only_when_told) {
  static const row rows[] = {
      {"unix:", "198.51.100.7", "198.51.100.7"},
      {NULL, "198.51.100.7, 10.0.0.5", "198.51.100.7"},
      {"unix:", "unknown", ""},
      {"unix:", NULL, ""},
      {"", "198.51.100.7", ""},
      {"unknown", "198.51.100.7", ""},
      {"10.0.0.2", "198.51.100.7", "198.51.100.7"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten_and_unix, 2, 0);
    cr_assert(
        eq(str, (char *)client_of(settings, "X-Forwarded-For", rows[i].value, rows[i].peer), (char *)rows[i].client));
  }
}

Test(http_client, counts_hops_from_the_right_and_falls_back_to_the_peer) {
  static const struct {
    int hops;
    const char *value;
    const char *client;
    int found;
  } rows[] = {
      {1, "1.1.1.1, 2.2.2.2, 3.3.3.3", "3.3.3.3", SPILE_HTTP_CLIENT_FOUND},
      {2, "1.1.1.1, 2.2.2.2, 3.3.3.3", "2.2.2.2", SPILE_HTTP_CLIENT_FOUND},
      {3, "1.1.1.1, 2.2.2.2, 3.3.3.3", "1.1.1.1", SPILE_HTTP_CLIENT_FOUND},
      {4, "1.1.1.1, 2.2.2.2, 3.3.3.3", "192.0.2.1", SPILE_HTTP_CLIENT_FOUND},
      {1, NULL, "192.0.2.1", SPILE_HTTP_CLIENT_FOUND},
      {1, "1.1.1.1, unknown", "192.0.2.1", SPILE_HTTP_CLIENT_NEAREST},
      {2, "1.1.1.1, unknown", "1.1.1.1", SPILE_HTTP_CLIENT_FOUND},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, NULL, 0, rows[i].hops);
    cr_assert(
        eq(str, (char *)client_of(settings, "X-Forwarded-For", rows[i].value, "192.0.2.1"), (char *)rows[i].client));
    cr_assert(eq(int, found, rows[i].found));
  }
}

/* `n` times `text` with commas between, then `last`. */
static const char *chain(size_t n, const char *first, const char *text) {
  static char value[20000];
  (void)snprintf(value, sizeof(value), "%s", first);
  for (size_t i = 0; i < n; i++)
    strcat(strcat(value, ","), text);
  return value;
}

Test(http_client, goes_only_so_far) {
  static const struct {
    size_t n;
    const char *text;
    const char *client;
    int found;
  } rows[] = {{SPILE_HTTP_HOPS_MAX - 1, "10.0.0.5", "198.51.100.7", SPILE_HTTP_CLIENT_FOUND},
              {SPILE_HTTP_HOPS_MAX, "10.0.0.5", "10.0.0.5", SPILE_HTTP_CLIENT_NEAREST},
              {SPILE_HTTP_HOPS_MAX - 1, "", "198.51.100.7", SPILE_HTTP_CLIENT_FOUND},
              {SPILE_HTTP_HOPS_MAX, "", "10.0.0.2", SPILE_HTTP_CLIENT_NEAREST},
              {9000, "", "10.0.0.2", SPILE_HTTP_CLIENT_NEAREST}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0);
    cr_assert(eq(
        str, (char *)client_of(settings, "X-Forwarded-For", chain(rows[i].n, "198.51.100.7", rows[i].text), "10.0.0.2"),
        (char *)rows[i].client));
    cr_assert(eq(int, found, rows[i].found));
  }
  /* So many of our own and nobody before them: the first of them has called by itself. */
  spile_http_settings *own = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0);
  const char *value = chain(SPILE_HTTP_HOPS_MAX - 1, "10.0.0.9", "10.0.0.5");
  cr_assert(eq(str, (char *)client_of(own, "X-Forwarded-For", value, "10.0.0.2"), "10.0.0.9"));
  cr_assert(eq(int, found, SPILE_HTTP_CLIENT_FOUND));
  /* An element longer than an address can be. */
  char element[1100];
  (void)snprintf(element, sizeof(element), "for=198.51.100.7;x=%0600d", 0);
  cr_assert(eq(str, (char *)client_of(settings_of(SPILE_HTTP_FORWARDED, ten, 1, 0), "Forwarded", element, "10.0.0.2"),
               "10.0.0.2"));
  cr_assert(eq(int, found, SPILE_HTTP_CLIENT_NEAREST));
}

/* A client may send lines of its own before those that proxies add, as many as these let through. */
Test(http_client, more_lines_than_are_read_leave_the_nearest_hop) {
  const char *values[LINES_MAX];
  for (size_t i = 0; i < LINES_MAX; i++)
    values[i] = "198.51.100.7";
  for (size_t n = SPILE_HTTP_LINES_MAX; n <= LINES_MAX; n += n < SPILE_HTTP_LINES_MAX + 2 ? 1 : 20) {
    bool read = n == SPILE_HTTP_LINES_MAX;
    lines l = {.name = "X-Forwarded-For", .values = values, .n = n};
    for (int hops = 0; hops <= 2; hops++) {
      spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, hops == 0, hops);
      char client[SPILE_HTTP_CLIENT_MAX];
      found = spile_http_client(settings, "10.0.0.2", lines_get, &l, client);
      cr_assert(eq(int, found, read ? SPILE_HTTP_CLIENT_FOUND : SPILE_HTTP_CLIENT_NEAREST));
      cr_assert(eq(str, client, read ? "198.51.100.7" : "10.0.0.2"));
      spile_http_settings_free(settings);
    }
  }
  /* A peer that is not trusted is the client, whatever he writes. */
  lines l = {.name = "X-Forwarded-For", .values = values, .n = LINES_MAX};
  spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0);
  char client[SPILE_HTTP_CLIENT_MAX];
  cr_assert(eq(int, spile_http_client(settings, "203.0.113.1", lines_get, &l, client), SPILE_HTTP_CLIENT_FOUND));
  spile_http_settings_free(settings);
}

Test(http_client, needs_no_headers) {
  spile_http_settings *settings = settings_of(SPILE_HTTP_X_FORWARDED_FOR, ten, 1, 0);
  char client[SPILE_HTTP_CLIENT_MAX];
  cr_assert(spile_http_client(settings, "10.0.0.2", NULL, NULL, client));
  cr_assert(eq(str, client, "10.0.0.2"));
  spile_http_settings_free(settings);
}

/* ---- Settings ---- */

static int create(spile_http_options options, spile_error *error) {
  spile_http_settings *settings;
  *error = (spile_error){0};
  int result = spile_http_settings_create(&settings, &options, error);
  cr_assert(settings != NULL ? result == SPILE_OK : result != SPILE_OK);
  spile_http_settings_free(settings);
  return result;
}

Test(http_settings, says_which_network_is_none) {
  static const char *const bad[] = {"10.0.0.0/8", "10.0.0.1/8\n"};
  spile_http_options options = SPILE_HTTP_OPTIONS_INIT;
  options.forwarded = SPILE_HTTP_FORWARDED;
  options.trusted = bad;
  options.trusted_count = 2;
  spile_error error;
  cr_assert(eq(int, create(options, &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "\"10.0.0.1/8\\x0a\" is no network") != NULL, "%s", error.message);
}

Test(http_settings, refuses_what_contradicts_itself_or_is_out_of_range) {
  spile_error error;
  spile_http_options options = SPILE_HTTP_OPTIONS_INIT;
  cr_assert(eq(int, create(options, &error), SPILE_OK));
  options.hops = 1;
  cr_assert(eq(int, create(options, &error), SPILE_ECONFIG));
  options.forwarded = SPILE_HTTP_FORWARDED;
  cr_assert(eq(int, create(options, &error), SPILE_OK));
  options.trusted = ten;
  options.trusted_count = 1;
  cr_assert(eq(int, create(options, &error), SPILE_ECONFIG));
  options.hops = 0;
  cr_assert(eq(int, create(options, &error), SPILE_OK));
  options.forwarded = SPILE_HTTP_PEER;
  cr_assert(eq(int, create(options, &error), SPILE_ECONFIG));

  spile_http_options base = SPILE_HTTP_OPTIONS_INIT;
  base.forwarded = SPILE_HTTP_FORWARDED;
  for (int i = 0; i < 6; i++) {
    options = base;
    int *members[] = {&options.forwarded, &options.dialect, &options.reset, &options.body, &options.hops};
    static const int most[] = {SPILE_HTTP_FORWARDED, SPILE_HTTP_NEITHER, SPILE_HTTP_RESET_SECONDS, SPILE_HTTP_NO_BODY,
                               SPILE_HTTP_HOPS_MAX};
    if (i == 5) {
      options.trusted_count = SPILE_HTTP_TRUSTED_MAX + 1;
      cr_assert(eq(int, create(options, &error), SPILE_EINVAL));
      continue;
    }
    *members[i] = most[i];
    cr_assert(eq(int, create(options, &error), SPILE_OK));
    *members[i] = most[i] + 1;
    cr_assert(eq(int, create(options, &error), SPILE_EINVAL));
    *members[i] = -1;
    cr_assert(eq(int, create(options, &error), SPILE_EINVAL));
  }
  options = base;
  options.struct_size = 0;
  cr_assert(eq(int, create(options, &error), SPILE_EINVAL));
  cr_assert(eq(int, spile_http_settings_create(NULL, &base, NULL), SPILE_EINVAL));
}
