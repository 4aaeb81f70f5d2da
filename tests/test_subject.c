/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Subjects: whose bucket a request meets, and that nobody can make another's.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "limiter/limiter.h"
#include "limits/subject.h"
#include "temp_dir.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static const spile__key_part tenant_part = {.kind = SPILE__KEY_TENANT};
static const spile__key_part user_part = {.kind = SPILE__KEY_USER};
static const spile__key_part api_key_part = {.kind = SPILE__KEY_API_KEY};
static const spile__key_part ip_part = {.kind = SPILE__KEY_IP};
static const spile__key_part header_part = {.kind = SPILE__KEY_HEADER, .header = "X-Client"};
static const spile__key_part route_part = {.kind = SPILE__KEY_ROUTE};
static const spile__key_part global_part = {.kind = SPILE__KEY_GLOBAL};

static const spile__secret no_secret;
static const spile__secret secret = {.is_set = true, .key = {1, 2, 3}};
static const spile__subject_rules rules = {.secret = &secret, .ipv6_prefix = 64};

typedef struct made {
  int result;
  size_t len;
  char text[SPILE_KEY_LEN_MAX + 1];
} made;

static made make_by(const spile__key_part *parts, size_t n, const spile_caller *caller,
                    const spile__subject_rules *by) {
  made m = {0};
  m.result =
      spile__subject_make(&(spile__key_chain){parts, n}, caller, "POST /search", by, m.text, SPILE_KEY_LEN_MAX, &m.len);
  if (m.result == SPILE_OK) {
    cr_assert(le(sz, m.len, (size_t)SPILE_KEY_LEN_MAX));
    m.text[m.len] = '\0';
    cr_assert(eq(sz, strlen(m.text), m.len));
  }
  return m;
}

static made make(const spile__key_part *part, const spile_caller *caller) {
  return make_by(part, 1, caller, &rules);
}

static const char *one_header(void *user, const char *name) {
  return strcasecmp(name, "x-client") == 0 ? user : NULL;
}

static void expect_subject(const spile__key_part *part, const spile_caller *caller, const char *want) {
  made m = make(part, caller);
  cr_assert(m.result == SPILE_OK, "%s: %s", want, spile_code_name(m.result));
  cr_assert(eq(str, m.text, (char *)want));
}

Test(subject, names_its_kind_and_reads_as_one_writes_it) {
  spile_caller caller = SPILE_CALLER_INIT;
  caller.tenant = "acme";
  caller.user = "O'Hara, Ann";
  caller.ip = "[2001:db8:1:2::a]:443";
  caller.header = one_header;
  caller.header_user = "a=b";
  expect_subject(&tenant_part, &caller, "tenant=acme");
  expect_subject(&user_part, &caller, "user=O%27Hara%2C Ann");
  expect_subject(&ip_part, &caller, "ip=2001:db8:1:2::/64");
  expect_subject(&header_part, &caller, "header:x-client=a%3Db");
  expect_subject(&route_part, &caller, "route=POST /search");
  expect_subject(&global_part, &caller, "global");
}

Test(subject, keeps_these_bytes_and_encodes_all_others) {
  static const char kept[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/*@#: ";
  for (int c = 1; c < 256; c++) {
    char value[2] = {(char)c, '\0'};
    char want[20];
    if (strchr(kept, c) != NULL)
      (void)snprintf(want, sizeof(want), "tenant=%c", c);
    else
      (void)snprintf(want, sizeof(want), "tenant=%%%02X", (unsigned)c);
    spile_caller caller = SPILE_CALLER_INIT;
    caller.tenant = value;
    expect_subject(&tenant_part, &caller, want);
  }
}

Test(subject, HTTP_05_is_one_for_each_spelling_of_a_caller) {
  static const struct {
    const char *ip;
    const char *subject;
  } rows[] = {
      {"2001:db8:1:2::a", "ip=2001:db8:1:2::/64"}, {"2001:0DB8:0001:0002:ffff:ffff:ffff:ffff", "ip=2001:db8:1:2::/64"},
      {"2001:db8:1:3::a", "ip=2001:db8:1:3::/64"}, {"192.0.2.1", "ip=192.0.2.1"},
      {"::ffff:192.0.2.1", "ip=192.0.2.1"},        {"::FFFF:C000:0201", "ip=192.0.2.1"},
      {"::ffff:192.0.2.2", "ip=192.0.2.2"},        {"64:ff9b::192.0.2.2", "ip=192.0.2.2"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile_caller caller = SPILE_CALLER_INIT;
    caller.ip = rows[i].ip;
    expect_subject(&ip_part, &caller, rows[i].subject);
  }
  spile_caller caller = SPILE_CALLER_INIT;
  caller.ip = "2001:db8:1:2::a";
  made m = make_by(&ip_part, 1, &caller, &(spile__subject_rules){.secret = &secret, .ipv6_prefix = 48});
  cr_assert(eq(str, m.text, "ip=2001:db8:1::/48"));
}

Test(subject, HTTP_06_cannot_be_made_by_another_kind_or_value) {
  static const char *const values[] = {
      "a:b", "a",          "1",        "12",     "x%3Ay",   "x:y", "a}", "}a", "a,b", "a%2Cb", "1.2.3.4",  "a=b",
      "=",   "ip=1.2.3.4", "tenant=a", "global", "hash=00", "a b", " a", "A",  "%61", "a\n",   "\xc3\xa9", "%C3%A9",
  };
  static const spile__key_part *const parts[] = {&tenant_part, &user_part, &header_part, &global_part,
#ifdef SPILE_TEST_SODIUM
                                                 &api_key_part
#endif
  };
  char seen[COUNT(values) * COUNT(parts) + 2][SPILE_KEY_LEN_MAX + 1];
  size_t n = 0;
  for (size_t p = 0; p < COUNT(parts); p++) {
    for (size_t v = 0; v < COUNT(values) && (v == 0 || parts[p] != &global_part); v++) {
      spile_caller caller = SPILE_CALLER_INIT;
      caller.tenant = caller.user = caller.api_key = values[v];
      caller.header = one_header;
      caller.header_user = (char *)values[v];
      made m = make(parts[p], &caller);
      cr_assert(eq(int, m.result, SPILE_OK));
      strcpy(seen[n++], m.text);
    }
  }
  spile_caller caller = SPILE_CALLER_INIT;
  caller.ip = "1.2.3.4";
  strcpy(seen[n++], make(&ip_part, &caller).text);
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < i; j++)
      cr_expect(strcmp(seen[i], seen[j]) != 0, "\"%s\" was made twice", seen[i]);
  }
}

/* Reads a subject back: the only text it can have been made of. */
static size_t decode(const char *subject, char *value) {
  const char *at = strchr(subject, '=') + 1;
  size_t len = 0;
  for (; *at != '\0'; at++) {
    if (*at == '%') {
      char digits[3] = {at[1], at[2], '\0'};
      value[len++] = (char)strtol(digits, NULL, 16);
      at += 2;
    } else {
      value[len++] = *at;
    }
  }
  value[len] = '\0';
  return len;
}

Test(subject, can_be_read_back_whatever_it_was_made_of) {
  unsigned state = 20260801;
  for (int i = 0; i < 20000; i++) {
    char value[40];
    size_t len = 1 + (state = state * 1664525 + 1013904223) % 32;
    for (size_t j = 0; j < len; j++)
      value[j] = (char)(1 + ((state = state * 1664525 + 1013904223) >> 8) % 255);
    value[len] = '\0';
    spile_caller caller = SPILE_CALLER_INIT;
    caller.tenant = value;
    made m = make(&tenant_part, &caller);
    cr_assert(eq(int, m.result, SPILE_OK));
    char back[SPILE_KEY_LEN_MAX + 1];
    cr_assert(eq(sz, decode(m.text, back), len));
    cr_assert(eq(str, back, value));
  }
}

Test(subject, HTTP_07_is_missing_where_nothing_is_known) {
  static const char *const no_addresses[] = {NULL, "", " ", "unknown", "unix:/run/nginx.sock", "_hidden", "localhost"};
  for (size_t i = 0; i < COUNT(no_addresses); i++) {
    spile_caller caller = SPILE_CALLER_INIT;
    caller.ip = no_addresses[i];
    cr_assert(eq(int, make(&ip_part, &caller).result, SPILE_ENOSUBJECT));
  }
  spile_caller nobody = SPILE_CALLER_INIT;
  nobody.tenant = nobody.user = nobody.api_key = "";
  nobody.header = one_header;
  nobody.header_user = "";
  static const spile__key_part parts[] = {{.kind = SPILE__KEY_TENANT},
                                          {.kind = SPILE__KEY_USER},
                                          {.kind = SPILE__KEY_API_KEY},
                                          {.kind = SPILE__KEY_HEADER, .header = "x-client"},
                                          {.kind = SPILE__KEY_IP}};
  cr_assert(eq(int, make_by(parts, COUNT(parts), &nobody, &rules).result, SPILE_ENOSUBJECT));
  cr_assert(eq(int, make_by(parts, 0, &nobody, &rules).result, SPILE_ENOSUBJECT));
}

Test(subject, is_the_first_of_the_chain_that_the_caller_has) {
  const spile__key_part chain[] = {tenant_part, user_part, ip_part};
  spile_caller caller = SPILE_CALLER_INIT;
  caller.ip = "192.0.2.1";
  cr_assert(eq(str, make_by(chain, 3, &caller, &rules).text, "ip=192.0.2.1"));
  caller.user = "ann";
  cr_assert(eq(str, make_by(chain, 3, &caller, &rules).text, "user=ann"));
  caller.tenant = "";
  cr_assert(eq(str, make_by(chain, 3, &caller, &rules).text, "user=ann"));
  caller.tenant = "acme";
  cr_assert(eq(str, make_by(chain, 3, &caller, &rules).text, "tenant=acme"));
}

Test(subject, takes_a_bare_name_as_the_first_kind_and_no_other) {
  const spile__key_part tenant_first[] = {tenant_part, ip_part};
  const spile__key_part ip_first[] = {ip_part, tenant_part};
  const spile__key_part global_first[] = {global_part, tenant_part};
  spile_caller caller = SPILE_CALLER_INIT;
  caller.bare = "alice";
  caller.tenant = "acme";
  cr_assert(eq(str, make_by(tenant_first, 2, &caller, &rules).text, "tenant=alice"));
  cr_assert(eq(int, make_by(ip_first, 2, &caller, &rules).result, SPILE_ENOSUBJECT));
  cr_assert(eq(str, make_by(global_first, 2, &caller, &rules).text, "global"));
  caller.bare = "192.0.2.1:80";
  cr_assert(eq(str, make_by(ip_first, 2, &caller, &rules).text, "ip=192.0.2.1"));
}

Test(subject, says_how_long_it_is_and_writes_nothing_outside) {
  spile_caller caller = SPILE_CALLER_INIT;
  caller.tenant = "acme";
  for (size_t size = 0; size <= 12; size++) {
    char *block = malloc(size + (size == 0));
    size_t len = 0;
    cr_assert(eq(int, spile__subject_make(&(spile__key_chain){&tenant_part, 1}, &caller, "", &rules, block, size, &len),
                 SPILE_OK));
    cr_assert(eq(sz, len, (size_t)11));
    if (size >= len)
      cr_assert(memcmp(block, "tenant=acme", 11) == 0);
    free(block);
  }
}

/* ---- What is hashed ---- */

#ifdef SPILE_TEST_SODIUM
Test(subject, hides_an_api_key_and_needs_the_secret_for_it) {
  spile_caller caller = SPILE_CALLER_INIT;
  caller.api_key = "sk_live_51H8";
  made m = make(&api_key_part, &caller);
  cr_assert(eq(int, m.result, SPILE_OK));
  cr_assert(eq(sz, m.len, (size_t)40));
  cr_assert(strncmp(m.text, "api_key=", 8) == 0);
  cr_assert(eq(sz, strspn(m.text + 8, "0123456789abcdef"), (size_t)32));
  /* BLAKE2b of "api_key=sk_live_51H8" with 16 bytes under the key 01 02 03 and 29 zeros, by Python's hashlib. */
  cr_assert(eq(str, m.text + 8, "072d4b5471fad94e49ebb99c22d3f998"));
  spile__secret other = secret;
  other.key[31] = 1;
  made n = make_by(&api_key_part, 1, &caller, &(spile__subject_rules){.secret = &other, .ipv6_prefix = 64});
  cr_assert(strcmp(m.text, n.text) != 0);
}

/* A value of `len` bytes, freed by the caller. */
static char *long_value(size_t len, char last) {
  char *value = malloc(len + 1);
  cr_assert(value != NULL);
  memset(value, 'a', len);
  value[len - 1] = last;
  value[len] = '\0';
  return value;
}

Test(subject, longer_than_a_key_may_be_is_its_hash) {
  /* "tenant=" and 4089 bytes are 4096; one more is too long. */
  char *fits = long_value(4089, 'a');
  char *beyond = long_value(4090, 'a');
  char *other = long_value(4090, 'b');
  char *percent = long_value(1364, '%'); /* fits */
  spile_caller caller = SPILE_CALLER_INIT;
  caller.tenant = fits;
  made m = make(&tenant_part, &caller);
  cr_assert(eq(sz, m.len, (size_t)SPILE_KEY_LEN_MAX));
  cr_assert(strncmp(m.text, "tenant=aaa", 10) == 0);
  caller.tenant = percent;
  cr_assert(strncmp(make(&tenant_part, &caller).text, "tenant=", 7) == 0);

  caller.tenant = caller.user = beyond;
  made first = make(&tenant_part, &caller);
  cr_assert(eq(sz, first.len, (size_t)37));
  cr_assert(strncmp(first.text, "hash=", 5) == 0);
  cr_assert(eq(str, first.text + 5, "561edfab647b6beb80ff7e2e8f486f4d"));
  /* The kind is part of what is hashed, and so is the last byte. */
  cr_assert(strcmp(make(&user_part, &caller).text, first.text) != 0);
  caller.tenant = other;
  cr_assert(strcmp(make(&tenant_part, &caller).text, first.text) != 0);

  /* It is the encoded form that must fit. */
  char *encoded = long_value(4000, '%');
  memset(encoded, '%', 3999);
  caller.tenant = encoded;
  cr_assert(eq(sz, make(&tenant_part, &caller).len, (size_t)37));
  free(fits);
  free(beyond);
  free(other);
  free(percent);
  free(encoded);
}

static char *secret_write(const char *directory, const char *name, const char *bytes, size_t len) {
  static char path[512];
  (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL);
  cr_assert(eq(sz, fwrite(bytes, 1, len, file), len));
  cr_assert(eq(int, fclose(file), 0));
  return path;
}

Test(secret, is_the_same_for_everybody_who_has_the_file) {
  char directory[TEMP_DIR_LEN];
  temp_dir_make(directory);
  static const char text[] = "0123456789abcdef0123456789abcdef";
  spile__secret first = {0};
  spile__secret second = {0};
  spile_error error = {0};
  cr_assert(eq(int, spile__secret_load(&first, secret_write(directory, "a", text, 32), &error), SPILE_OK));
  cr_assert(first.is_set);
  /* An editor's line end makes no other secret. */
  cr_assert(eq(
      int,
      spile__secret_load(&second, secret_write(directory, "b", " \n0123456789abcdef0123456789abcdef\r\n", 36), &error),
      SPILE_OK));
  cr_assert(memcmp(first.key, second.key, sizeof(first.key)) == 0);
  cr_assert(
      eq(int, spile__secret_load(&second, secret_write(directory, "c", "1123456789abcdef0123456789abcdef", 32), &error),
         SPILE_OK));
  cr_assert(memcmp(first.key, second.key, sizeof(first.key)) != 0);
  temp_dir_remove(directory);
}

Test(secret, refuses_a_file_that_is_missing_too_short_or_too_long) {
  char directory[TEMP_DIR_LEN];
  temp_dir_make(directory);
  char big[4097];
  memset(big, 'x', sizeof(big));
  static const struct {
    size_t len;
    int result;
    const char *says;
  } rows[] = {{0, SPILE_ECONFIG, "less than 32 bytes"},
              {31, SPILE_ECONFIG, "less than 32 bytes"},
              {32, SPILE_OK, ""},
              {4096, SPILE_OK, ""},
              {4097, SPILE_ECONFIG, "more than 4096 bytes"}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile__secret loaded = {0};
    spile_error error = {0};
    cr_assert(
        eq(int, spile__secret_load(&loaded, secret_write(directory, "s", big, rows[i].len), &error), rows[i].result));
    cr_assert(loaded.is_set == (rows[i].result == SPILE_OK));
    cr_assert(strstr(error.message, rows[i].says) != NULL, "%s", error.message);
    cr_assert(strstr(error.message, "xxxx") == NULL, "%s", error.message);
  }
  spile__secret loaded = {0};
  spile_error error = {0};
  cr_assert(eq(int, spile__secret_load(&loaded, "/nonexistent/secret", &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "/nonexistent/secret") != NULL);
  cr_assert(eq(int, spile__secret_load(&loaded, directory, NULL), SPILE_ECONFIG));
  temp_dir_remove(directory);
}

Test(secret, is_read_when_a_limiter_opens) {
  char directory[TEMP_DIR_LEN];
  temp_dir_make(directory);
  spile_options options = SPILE_OPTIONS_INIT;
  options.secret_file = secret_write(directory, "s", "0123456789abcdef0123456789abcdef", 32);
  options.ipv6_prefix = 56;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, "memory:?keys=10", &options, &error) == SPILE_OK, "%s", error.message);
  cr_assert(limiter->secret.is_set);
  cr_assert(eq(uint, limiter->ipv6_prefix, 56u));
  spile_close(limiter);
  options.secret_file = "/nonexistent/secret";
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, &error), SPILE_ECONFIG));
  cr_assert(limiter == NULL);
  cr_assert(strstr(error.message, "secret_file \"/nonexistent/secret\" cannot be read") != NULL, "%s", error.message);
  temp_dir_remove(directory);
}
#else
Test(secret, is_refused_where_nothing_can_be_hashed) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.secret_file = "/nonexistent/secret";
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, &error), SPILE_ENOTSUP));
  cr_assert(strstr(error.message, "libsodium") != NULL, "%s", error.message);
}
#endif

Test(subject, is_an_error_where_a_hash_is_needed_and_no_secret_is_set) {
  static const spile__subject_rules bare = {.secret = &no_secret, .ipv6_prefix = 64};
  static char longest[5001];
  memset(longest, 'a', 5000);
  spile_caller caller = SPILE_CALLER_INIT;
  caller.api_key = "k";
  caller.tenant = longest;
  cr_assert(eq(int, make_by(&api_key_part, 1, &caller, &bare).result, SPILE_ECONFIG));
  cr_assert(eq(int, make_by(&tenant_part, 1, &caller, &bare).result, SPILE_ECONFIG));
  caller.tenant = "acme";
  cr_assert(eq(int, make_by(&tenant_part, 1, &caller, &bare).result, SPILE_OK));
}

Test(subject, prefix_of_the_options_is_checked) {
  static const struct {
    int prefix;
    int result;
    unsigned want;
  } rows[] = {{0, SPILE_OK, 64},    {32, SPILE_OK, 32},     {31, SPILE_EINVAL, 0},
              {128, SPILE_OK, 128}, {129, SPILE_EINVAL, 0}, {-1, SPILE_EINVAL, 0}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    spile_options options = SPILE_OPTIONS_INIT;
    options.ipv6_prefix = rows[i].prefix;
    spile_limiter *limiter;
    cr_assert(eq(int, spile_open(&limiter, "memory:?keys=10", &options, NULL), rows[i].result));
    if (limiter != NULL)
      cr_assert(eq(uint, limiter->ipv6_prefix, rows[i].want));
    spile_close(limiter);
  }
}
