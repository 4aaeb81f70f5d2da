/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random bytes, and random pieces of what is meant, into everything that reads a request or writes a field. Seeded:
 * each run is the same run. A sanitizer sees what an assertion cannot.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "http/http.h"
#include "http/writer.h"
#include "limits/subject.h"

#define ROUNDS 60000

static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

static unsigned draw(unsigned below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (unsigned)((state >> 33) % below);
}

static const char *const pieces[] = {
    "for=", "FOR=",        "\"",       "\\",      ",",    ", ",    ";",    "proto=http", "unknown", "_hidden",   "[",
    "]",    "::1",         "10.0.0.5", "1.2.3.4", ":443", "%eth0", "/24",  "/64",        "::ffff:", "64:ff9b::", " ",
    "\t",   "2001:db8::1", "0",        "255",     ".",    ":",     "\x80", "\x7f",       "by=",     "=",         "\r\n",
};

/* A text of pieces and of any bytes but NUL, in a block of its own size; freed by the caller. */
static char *draw_text(size_t *len) {
  char text[600];
  size_t n = 0;
  unsigned parts = draw(12);
  for (unsigned i = 0; i < parts; i++) {
    if (draw(8) == 0) {
      text[n++] = (char)(1 + draw(255));
      continue;
    }
    const char *piece = pieces[draw(sizeof(pieces) / sizeof(pieces[0]))];
    memcpy(text + n, piece, strlen(piece));
    n += strlen(piece);
  }
  text[n] = '\0';
  char *block = malloc(n + 1);
  cr_assert(block != NULL);
  memcpy(block, text, n + 1);
  *len = n;
  return block;
}

static const char *given_line(void *user, const char *name, size_t index) {
  (void)name;
  return index < 2 ? ((const char *const *)user)[index] : NULL;
}

Test(http_fuzz, an_address_is_read_and_written_or_refused) {
  size_t taken = 0;
  for (int i = 0; i < ROUNDS; i++) {
    size_t len;
    char *text = draw_text(&len);
    spile__address address;
    if (spile__address_parse(&address, text, len)) {
      taken++;
      unsigned prefix = 32 + draw(97);
      char once[SPILE__ADDRESS_TEXT_MAX];
      char twice[SPILE__ADDRESS_TEXT_MAX];
      spile__address_write(&address, prefix, once);
      cr_assert(eq(sz, strspn(once, "0123456789abcdef:./"), strlen(once)));
      /* The one spelling of the one spelling is itself. */
      spile__address_spell(&address, once);
      cr_assert(spile__address_parse(&address, once, strlen(once)), "%s", once);
      spile__address_spell(&address, twice);
      cr_assert(eq(str, once, twice));
    }
    spile__network network;
    if (spile__network_parse(&network, text, len))
      cr_assert(spile__network_has(&network, &network.base));
    free(text);
  }
  cr_assert(lt(sz, (size_t)500, taken));
}

Test(http_fuzz, a_client_is_an_address_or_nobody_and_never_one_right_of_the_proxy) {
  static const char *const trusted[] = {"10.0.0.0/8", "unix:"};
  spile_http_settings *settings[3];
  for (int i = 0; i < 3; i++) {
    spile_http_options options = SPILE_HTTP_OPTIONS_INIT;
    options.forwarded = 1 + i % 2;
    options.trusted = trusted;
    options.trusted_count = i < 2 ? 2 : 0;
    options.hops = i < 2 ? 0 : 2;
    cr_assert(eq(int, spile_http_settings_create(&settings[i], &options, NULL), SPILE_OK));
  }
  for (int i = 0; i < ROUNDS; i++) {
    size_t len;
    char *first = draw_text(&len);
    char *second = draw_text(&len);
    const char *given[2] = {first, second};
    char client[SPILE_HTTP_CLIENT_MAX];
    bool known = spile_http_client(settings[draw(3)], draw(2) == 0 ? "10.0.0.2" : "unix:", given_line, given, client);
    cr_assert(known == (client[0] != '\0'));
    cr_assert(eq(sz, strspn(client, "0123456789abcdef:."), strlen(client)));

    /* Whatever a client writes: what our proxy put behind it is who it was. */
    static const char *const put[2] = {", 198.51.100.7", ", for=198.51.100.7"};
    int which = (int)draw(2);
    char *forged = malloc(strlen(first) + 40);
    cr_assert(forged != NULL);
    strcpy(forged, first);
    strcat(forged, put[which]);
    given[0] = second;
    given[1] = forged;
    cr_assert(spile_http_client(settings[which], "10.0.0.2", given_line, given, client));
    cr_assert(strcmp(client, "198.51.100.7") == 0, "\"%s\" made it %s", first, client);
    free(forged);
    free(first);
    free(second);
  }
  for (int i = 0; i < 3; i++)
    spile_http_settings_free(settings[i]);
}

Test(http_fuzz, a_name_is_one_quoted_string_of_printable_bytes) {
  for (int i = 0; i < ROUNDS; i++) {
    size_t len;
    char *name = draw_text(&len);
    size_t size = draw(300);
    char *block = malloc(size + (size == 0));
    cr_assert(block != NULL);
    spile__writer writer;
    spile__writer_init(&writer, block, size);
    spile__writer_begin(&writer);
    spile__writer_put_name(&writer, name);
    const char *text = spile__writer_end(&writer);
    cr_assert(text != NULL ? writer.needed <= size : writer.needed > size);
    if (text != NULL) {
      size_t end = strlen(text) - 1;
      cr_assert(text[0] == '"' && text[end] == '"');
      for (size_t at = 1; at < end; at++) {
        cr_assert(text[at] >= 0x20 && text[at] <= 0x7e);
        cr_assert(text[at] != '"');
        at += text[at] == '\\';
      }
    }
    free(block);
    free(name);
  }
}

Test(http_fuzz, a_subject_is_made_of_harmless_bytes) {
  static const spile__secret no_secret;
  static const spile__subject_rules rules = {.secret = &no_secret, .ipv6_prefix = 64};
  static const spile__key_part parts[] = {{.kind = SPILE__KEY_IP}, {.kind = SPILE__KEY_TENANT}};
  for (int i = 0; i < ROUNDS; i++) {
    size_t given_len;
    char *value = draw_text(&given_len);
    spile_caller caller = SPILE_CALLER_INIT;
    caller.tenant = caller.ip = value;
    char subject[2000];
    size_t len;
    int result =
        spile__subject_make(&(spile__key_chain){parts, 2}, &caller, "", &rules, subject, sizeof(subject), &len);
    cr_assert(eq(int, result, given_len > 0 ? SPILE_OK : SPILE_ENOSUBJECT));
    if (result == SPILE_OK) {
      subject[len] = '\0';
      cr_assert(eq(sz, strcspn(subject, "{},\r\n\"\\\x7f\x80"), len));
      cr_assert(strncmp(subject, "ip=", 3) == 0 || strncmp(subject, "tenant=", 7) == 0);
    }
    free(value);
  }
}
