/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/caller.h"

#include <string.h>
#include <strings.h>

#include "cli/options.h"
#include "cli/output.h"
#include "limits/network.h"

static const char *caller_header(void *user, const char *name) {
  const cli_caller *own = user;
  for (size_t i = 0; i < own->header_count; i++) {
    if (strcasecmp(own->headers[i].name, name) == 0)
      return own->headers[i].value;
  }
  return NULL;
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Undoes %XX in place. @return false: a percent sign without two digits, or %00 */
static bool value_decode(char *value) {
  char *to = value;
  for (const char *from = value; *from != '\0'; from++, to++) {
    *to = *from;
    if (*from != '%')
      continue;
    int high = hex_value(from[1]);
    int low = high < 0 ? -1 : hex_value(from[2]);
    if (low < 0 || high + low == 0)
      return false;
    *to = (char)(high * 16 + low);
    from += 2;
  }
  *to = '\0';
  return true;
}

static int kind_unknown(const char *kind) {
  static const char advice[] =
      "write tenant=, user=, api_key=, ip= or header:NAME=, and %3D for a '=' of a name itself";
  if (is_showable(kind, strlen(kind)))
    return message(EXIT_USAGE, "KEY: \"%s\" is no kind that a caller has; %s", kind, advice);
  return message(EXIT_USAGE, "KEY has a kind that no caller has; %s", advice);
}

/* Where the value of a kind goes, or NULL: there is no such kind, or no room. */
static const char **caller_member(cli_caller *out, const char *kind) {
  if (strcmp(kind, "tenant") == 0)
    return &out->caller.tenant;
  if (strcmp(kind, "user") == 0)
    return &out->caller.user;
  if (strcmp(kind, "api_key") == 0)
    return &out->caller.api_key;
  if (strcmp(kind, "ip") == 0)
    return &out->caller.ip;
  static const char header[] = "header:";
  size_t len = sizeof(header) - 1;
  if (strncmp(kind, header, len) != 0 || kind[len] == '\0' || out->header_count == CALLER_HEADERS_MAX)
    return NULL;
  for (size_t i = 0; i < out->header_count; i++) {
    if (strcasecmp(out->headers[i].name, kind + len) == 0)
      return &out->headers[i].value;
  }
  out->headers[out->header_count].name = kind + len;
  return &out->headers[out->header_count++].value;
}

static bool is_address(const char *text) {
  spile__address address;
  return spile__address_parse(&address, text, strlen(text));
}

int caller_parse(cli_caller *out, const char *key) {
  memset(out, 0, sizeof(*out));
  out->caller = (spile_caller)SPILE_CALLER_INIT;
  out->caller.header = caller_header;
  out->caller.header_user = out;
  size_t len = strlen(key);
  if (len < 1 || len > SPILE_KEY_LEN_MAX)
    return message(EXIT_USAGE, "KEY has %zu bytes; it must have 1 to %d", len, SPILE_KEY_LEN_MAX);
  memcpy(out->text, key, len);
  if (strchr(key, '=') == NULL) {
    out->caller.bare = out->text;
    return EXIT_ALLOWED;
  }

  for (char *part = out->text; part != NULL;) {
    char *comma = strchr(part, ',');
    if (comma != NULL)
      *comma = '\0';
    char *equals = strchr(part, '=');
    if (equals == NULL)
      return message(EXIT_USAGE, "KEY: KIND=VALUE is wanted on both sides of a comma; write %%2C for a ',' of a name "
                                 "itself");
    *equals = '\0';
    char *value = equals + 1;
    const char **member = caller_member(out, part);
    if (member == NULL)
      return kind_unknown(part);
    if (*member != NULL)
      return message(EXIT_USAGE, "KEY names one kind twice; a caller has each once");
    if (*value == '\0' || strchr(value, '=') != NULL || !value_decode(value))
      return message(EXIT_USAGE,
                     "KEY: a value is empty or not encoded; write %%3D for '=', %%2C for ',', %%25 for '%%'");
    if (member == &out->caller.ip && !is_address(value))
      return message(EXIT_USAGE, "KEY: what ip= has is no address; write one such as ip=203.0.113.9 or ip=2001:db8::1");
    *member = value;
    part = comma != NULL ? comma + 1 : NULL;
  }
  return EXIT_ALLOWED;
}
