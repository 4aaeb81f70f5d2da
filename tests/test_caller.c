/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KEY of the command where a limits file says what a key is.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <string.h>

#include "cli/caller.h"
#include "cli/output.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

Test(caller, has_what_its_kinds_say) {
  cli_caller c;
  cr_assert(eq(int, caller_parse(&c, "tenant=acme,user=ann,api_key=k,ip=203.0.113.9,header:X-Client=h"), EXIT_ALLOWED));
  cr_assert(eq(str, (char *)c.caller.tenant, "acme"));
  cr_assert(eq(str, (char *)c.caller.user, "ann"));
  cr_assert(eq(str, (char *)c.caller.api_key, "k"));
  cr_assert(eq(str, (char *)c.caller.ip, "203.0.113.9"));
  cr_assert(c.caller.bare == NULL);
  cr_assert(eq(str, (char *)c.caller.header(c.caller.header_user, "x-client"), "h"));
  cr_assert(c.caller.header(c.caller.header_user, "X-Other") == NULL);
}

Test(caller, without_a_kind_is_one_bare_name) {
  static const char *const names[] = {"alice", "203.0.113.9", "a,b", "50%", "%3D", "tenant"};
  for (size_t i = 0; i < COUNT(names); i++) {
    cli_caller c;
    cr_assert(eq(int, caller_parse(&c, names[i]), EXIT_ALLOWED));
    cr_assert(eq(str, (char *)c.caller.bare, (char *)names[i]));
    cr_assert(c.caller.tenant == NULL);
  }
}

Test(caller, undoes_what_is_encoded_in_a_value) {
  cli_caller c;
  cr_assert(eq(int, caller_parse(&c, "tenant=a%2Cb%3dc%25,user=%e9"), EXIT_ALLOWED));
  cr_assert(eq(str, (char *)c.caller.tenant, "a,b=c%"));
  cr_assert(eq(str, (char *)c.caller.user, "\xe9"));
}

Test(caller, refuses_what_it_would_have_to_guess, .init = cr_redirect_stderr) {
  static const char *const keys[] = {
      "tenant=",         "=acme",       "tenant=a,",  ",tenant=a",  "tenant=a,,user=b",  "tenant=a,b",
      "tenant=a=b",      "tenant=%",    "tenant=%4",  "tenant=%zz", "tenant=%00",        "route=/x",
      "global=1",        "Tenant=a",    "header:=a",  "header=a",   "tenant=a,tenant=b", "header:A=1,header:a=2",
      "secret!word=abc", "tenent=acme", "tenant=a%3", " tenant=a",  "tier=pro",
  };
  for (size_t i = 0; i < COUNT(keys); i++) {
    cli_caller c;
    cr_expect(caller_parse(&c, keys[i]) == EXIT_USAGE, "\"%s\" was taken", keys[i]);
  }
  cli_caller c;
  cr_assert(eq(int, caller_parse(&c, ""), EXIT_USAGE));
  char longest[SPILE_KEY_LEN_MAX + 2];
  memset(longest, 'a', sizeof(longest) - 1);
  longest[SPILE_KEY_LEN_MAX + 1] = '\0';
  cr_assert(eq(int, caller_parse(&c, longest), EXIT_USAGE));
  longest[SPILE_KEY_LEN_MAX] = '\0';
  cr_assert(eq(int, caller_parse(&c, longest), EXIT_ALLOWED));
}

Test(caller, shows_no_value_in_its_messages, .init = cr_redirect_stderr) {
  cli_caller c;
  cr_assert(eq(int, caller_parse(&c, "api_key=s3cret%"), EXIT_USAGE));
  cr_assert(eq(int, caller_parse(&c, "api_key=s3cret,s3cret"), EXIT_USAGE));
  cr_assert(eq(int, caller_parse(&c, "s3cret!=1"), EXIT_USAGE));
  (void)fflush(stderr);
  FILE *said = cr_get_redirected_stderr();
  char line[1000];
  size_t lines = 0;
  while (fgets(line, sizeof(line), said) != NULL) {
    lines++;
    cr_assert(strstr(line, "s3cret") == NULL, "%s", line);
  }
  cr_assert(eq(sz, lines, (size_t)3));
}

Test(caller, has_at_most_so_many_headers, .init = cr_redirect_stderr) {
  char key[600] = "";
  for (int i = 0; i <= CALLER_HEADERS_MAX; i++)
    (void)snprintf(key + strlen(key), sizeof(key) - strlen(key), "%sheader:h%d=%d", i > 0 ? "," : "", i, i);
  cli_caller c;
  cr_assert(eq(int, caller_parse(&c, key), EXIT_USAGE));
  *strrchr(key, ',') = '\0';
  cr_assert(eq(int, caller_parse(&c, key), EXIT_ALLOWED));
  cr_assert(eq(str, (char *)c.caller.header(c.caller.header_user, "H15"), "15"));
}
