/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and networks: what is read, what is refused, and one spelling for each caller.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "limits/network.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* What becomes of a text as a caller's address, "" where it is not one. */
static const char *key_of(const char *text, unsigned prefix, char *out) {
  spile__address address;
  out[0] = '\0';
  if (spile__address_parse(&address, text, strlen(text)))
    spile__address_write(&address, prefix, out);
  return out;
}

typedef struct row {
  const char *text;
  const char *key;
} row;

static void expect_keys(const row *rows, size_t n) {
  for (size_t i = 0; i < n; i++) {
    char key[SPILE__ADDRESS_TEXT_MAX];
    cr_expect(strcmp(key_of(rows[i].text, 64, key), rows[i].key) == 0, "\"%s\" is \"%s\", not \"%s\"", rows[i].text,
              key, rows[i].key);
  }
}

Test(network, HTTP_04_drops_ports_brackets_zones_and_spaces) {
  static const row rows[] = {
      {"203.0.113.7:51234", "203.0.113.7"},
      {"  203.0.113.7:51234\t", "203.0.113.7"},
      {"203.0.113.7", "203.0.113.7"},
      {" 203.0.113.7 ", "203.0.113.7"},
      {"203.0.113.7:_hidden", "203.0.113.7"},
      {"[2001:db8::1]:443", "2001:db8::/64"},
      {" [2001:db8::1]:443 ", "2001:db8::/64"},
      {"[2001:db8::1]", "2001:db8::/64"},
      {" 2001:db8::1 ", "2001:db8::/64"},
      {"fe80::1%eth0", "fe80::/64"},
      {"[fe80::1%eth0]:80", "fe80::/64"},
      /* The last group is not a port: another /64. */
      {"2001:db8:0:0:443::", "2001:db8::/64"},
      {"2001:db8:0:443::", "2001:db8:0:443::/64"},
      {"1:2:3:4:5:6:7:8080", "1:2:3:4::/64"},
  };
  expect_keys(rows, COUNT(rows));
}

Test(network, HTTP_05_gives_each_caller_one_spelling) {
  static const row rows[] = {
      {"2001:db8:1:2::a", "2001:db8:1:2::/64"},
      {"2001:0DB8:0001:0002:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"},
      {"2001:db8:1:3::a", "2001:db8:1:3::/64"},
      {"192.0.2.1", "192.0.2.1"},
      {"::ffff:192.0.2.1", "192.0.2.1"},
      {"::FFFF:C000:0201", "192.0.2.1"},
      {"[::ffff:192.0.2.1]:80", "192.0.2.1"},
      {"::ffff:192.0.2.2", "192.0.2.2"},
      /* IPv4 that a translator carries, and the old form; ::1 is not 0.0.0.1. */
      {"64:ff9b::192.0.2.1", "192.0.2.1"},
      {"64:ff9b::c000:202", "192.0.2.2"},
      {"64:ff9b:0:1::c000:202", "64:ff9b:0:1::/64"},
      {"::192.0.2.1", "192.0.2.1"},
      {"::1", "::/64"},
      {"::", "::/64"},
  };
  expect_keys(rows, COUNT(rows));
}

Test(network, refuses_what_is_not_an_address) {
  static const char *const texts[] = {
      "",
      " ",
      "unknown",
      "_hidden",
      "01.2.3.4",
      "1.2.3",
      "0x7f.0.0.1",
      "1.2.3.4.5",
      "1.2.3.256",
      "1.2.3.4:",
      "1.2.3.4:x",
      "1.2.3.4:70000",
      "1.2.3.4:_",
      "1.2.3.4:12:13",
      "1.2.3.4/8",
      "1.2.3.4%lo",
      "1. 2.3.4",
      "[::1",
      "::1]",
      "[]",
      "[::1]x",
      "[::1]:",
      "[::1]443",
      "[1.2.3.4]",
      "[1.2.3.4]:5",
      "fe80::1%",
      "[fe80::1%]",
      "2001:db8::1::2",
      ":443",
      ":",
      "[",
      "]",
      "%",
      "12345::",
      "[[::1]]",
      "1.2.3.4,5",
      "unix:/run/x",
      "\"203.0.113.7\"",
      "2001:db8::1 x",
      "::1:65536:x",
      "1.2.3.4:123456",
  };
  for (size_t i = 0; i < COUNT(texts); i++) {
    spile__address address;
    cr_expect(spile__address_parse(&address, texts[i], strlen(texts[i])) == false, "\"%s\" was taken for an address",
              texts[i]);
  }
  spile__address address;
  cr_expect(spile__address_parse(&address, "1.2.3.4\0x", 9) == false, "a NUL hid what follows");
  cr_expect(spile__address_parse(&address, "::1\0", 4) == false, "a NUL hid what follows");
}

Test(network, reads_no_byte_beyond_the_length) {
  /* Each text lies in a block of its own size, so that a sanitizer sees a step outside. */
  static const char *const texts[] = {"1.2.3.4:1", "[::1]:443", "[::1", "fe80::1%e", ":", "[", " ", "1.2.3.4:_a"};
  for (size_t i = 0; i < COUNT(texts); i++) {
    for (size_t len = 0; len <= strlen(texts[i]); len++) {
      char *block = malloc(len + (len == 0));
      cr_assert(block != NULL);
      memcpy(block, texts[i], len);
      spile__address address;
      spile__network network;
      (void)spile__address_parse(&address, block, len);
      (void)spile__network_parse(&network, block, len);
      free(block);
    }
  }
}

Test(network, cuts_at_the_prefix_it_is_told) {
  static const struct {
    unsigned prefix;
    const char *key;
  } rows[] = {
      {128, "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"},
      {127, "2001:db8:ffff:ffff:ffff:ffff:ffff:fffe/127"},
      {65, "2001:db8:ffff:ffff:8000::/65"},
      {64, "2001:db8:ffff:ffff::/64"},
      {63, "2001:db8:ffff:fffe::/63"},
      {48, "2001:db8:ffff::/48"},
      {32, "2001:db8::/32"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    char key[SPILE__ADDRESS_TEXT_MAX];
    cr_assert(
        eq(str, (char *)key_of("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", rows[i].prefix, key), (char *)rows[i].key));
    /* IPv4 is never cut. */
    cr_assert(eq(str, (char *)key_of("192.0.2.255", rows[i].prefix, key), "192.0.2.255"));
  }
}

static bool has(const char *network_text, const char *text) {
  spile__network network;
  spile__address address;
  cr_assert(spile__network_parse(&network, network_text, strlen(network_text)), "%s", network_text);
  cr_assert(spile__address_parse(&address, text, strlen(text)), "%s", text);
  return spile__network_has(&network, &address);
}

Test(network, knows_what_is_inside_and_what_is_one_step_outside) {
  static const struct {
    const char *network;
    const char *inside;
    const char *outside;
  } rows[] = {
      {"10.0.0.0/8", "10.255.255.255", "11.0.0.0"},
      {"10.0.0.0/8", "::ffff:10.0.0.5", "::ffff:9.255.255.255"},
      {"192.0.2.128/25", "192.0.2.128", "192.0.2.127"},
      {"192.0.2.7", "192.0.2.7", "192.0.2.6"},
      {"192.0.2.7/32", "192.0.2.7:80", "192.0.2.8"},
      {"0.0.0.0/0", "255.255.255.255", "2001:db8::1"},
      {"2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"},
      {"2001:db8::1", "[2001:db8::1]:443", "2001:db8::2"},
      {"::/0", "2001:db8::1", "10.0.0.1"},
      /* A mapped network is one of IPv4; what holds more than the mapped addresses is not. */
      {"::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"},
      {"::ffff:0:0/96", "203.0.113.9", "::1"},
      {"::/64", "::1", "10.0.0.1"},
      /* What a translator carries is not trusted as the address inside. */
      {"10.0.0.0/8", "10.0.0.5", "64:ff9b::10.0.0.5"},
      {"10.0.0.0/8", "10.0.0.5", "::10.0.0.5"},
      {"64:ff9b::/96", "64:ff9b::203.0.113.9", "203.0.113.9"},
  };
  for (size_t i = 0; i < COUNT(rows); i++) {
    cr_expect(has(rows[i].network, rows[i].inside), "%s has no %s", rows[i].network, rows[i].inside);
    cr_expect(has(rows[i].network, rows[i].outside) == false, "%s has %s", rows[i].network, rows[i].outside);
  }
}

Test(network, refuses_what_is_not_a_network) {
  static const char *const texts[] = {
      "",
      "/8",
      "10.0.0.0/",
      "10.0.0.0/33",
      "10.0.0.0/-1",
      "10.0.0.0/8/8",
      "10.0.0.1/8",
      "10.0.0.0/ 8",
      "10.0.0.0/1e1",
      "10.0.0.0/0x8",
      "10.0.0.0:80/8",
      "10/8",
      "10.0.0/8",
      "[::]/0",
      "::/129",
      "2001:db8::1/64",
      "fe80::%eth0/10",
      "::ffff:10.0.0.1/104",
      "::ffff:0:0/64",
      "all",
      "*",
      "10.0.0.0/4294967304",
      "10.0.0.0/0008",
  };
  for (size_t i = 0; i < COUNT(texts); i++) {
    spile__network network;
    cr_expect(spile__network_parse(&network, texts[i], strlen(texts[i])) == false, "\"%s\" was taken for a network",
              texts[i]);
  }
}
