/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject is KIND=VALUE. Kinds are ours and have no '=' inside, and in a value everything that could be read as ours
 * is percent-encoded, the percent sign included. So a subject can be read back in one way only: no tenant is named so
 * that he gets the bucket of an address, and "tenant=a,b" is not two. What stays as it is in a value:
 *
 *   A-Z a-z 0-9 - . _ ~ / * @ # : and space
 *
 * which are the bytes that addresses, routes and names are made of. A route's or an address's subject therefore reads
 * as one writes it: "route=POST /search", "ip=2001:db8:1:2::/64".
 *
 * A secret is never part of a subject: of an API key it has the keyed hash. A subject longer than a key may be is
 * "hash=" and the keyed hash of all of it; no kind is called hash, so it can be nobody else's. Without a secret both
 * are an error: an unkeyed hash of an API key can be searched for, and of two long names one could be made to fit.
 */
#include "limits/subject.h"

#include <string.h>

#include "limits/network.h"

/* ---- Writing ---- */

/* A text that counts on when its buffer is full. */
typedef struct subject_text {
  char *out;
  size_t size;
  size_t len;
} subject_text;

static void text_put(subject_text *text, const char *bytes, size_t len) {
  if (text->len + len <= text->size)
    memcpy(text->out + text->len, bytes, len);
  text->len += len;
}

static bool stays(unsigned char c) {
  bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return letter || (c >= '0' && c <= '9') || (c != '\0' && strchr("-._~/*@#: ", c) != NULL);
}

static void text_put_value(subject_text *text, const char *value, bool lower) {
  static const char hex[] = "0123456789ABCDEF";
  for (; *value != '\0'; value++) {
    unsigned char c = (unsigned char)*value;
    if (lower && c >= 'A' && c <= 'Z')
      c = (unsigned char)(c - 'A' + 'a');
    char encoded[3] = {'%', hex[c >> 4], hex[c & 15]};
    if (stays(c))
      text_put(text, (const char *)&c, 1);
    else
      text_put(text, encoded, sizeof(encoded));
  }
}

/* ---- What the caller has ---- */

static const char *const kind_names[] = {
    [SPILE__KEY_TENANT] = "tenant", [SPILE__KEY_USER] = "user",      [SPILE__KEY_API_KEY] = "api_key",
    [SPILE__KEY_IP] = "ip",         [SPILE__KEY_HEADER] = "header:", [SPILE__KEY_ROUTE] = "route",
    [SPILE__KEY_GLOBAL] = "global",
};

/* The value of a part as the caller gives it, or NULL. */
static const char *part_given(const spile__key_part *part, const spile_caller *caller, const char *route) {
  if (part->kind == SPILE__KEY_ROUTE)
    return route;
  if (part->kind == SPILE__KEY_GLOBAL)
    return kind_names[SPILE__KEY_GLOBAL];
  if (caller->bare != NULL)
    return caller->bare;
  switch (part->kind) {
  case SPILE__KEY_TENANT:
    return caller->tenant;
  case SPILE__KEY_USER:
    return caller->user;
  case SPILE__KEY_API_KEY:
    return caller->api_key;
  case SPILE__KEY_IP:
    return caller->ip;
  case SPILE__KEY_HEADER:
    return caller->header != NULL ? caller->header(caller->header_user, part->header) : NULL;
  case SPILE__KEY_ROUTE:
  case SPILE__KEY_GLOBAL:
    break;
  }
  return NULL;
}

/*
 * The value of a part, or NULL: not known, empty, or no address where one must be. A word such as "unknown" is no
 * address, so it can be no bucket that all who say it share.
 */
static const char *part_value(const spile__key_part *part, const spile_caller *caller, const char *route,
                              unsigned ipv6_prefix, char address_text[SPILE__ADDRESS_TEXT_MAX]) {
  const char *value = part_given(part, caller, route);
  if (value == NULL || value[0] == '\0')
    return NULL;
  if (part->kind != SPILE__KEY_IP)
    return value;
  spile__address address;
  if (!spile__address_parse(&address, value, strlen(value)))
    return NULL;
  spile__address_write(&address, ipv6_prefix, address_text);
  return address_text;
}

/* ---- The subject ---- */

/* Writes "KIND=". */
static void text_put_kind(subject_text *text, const spile__key_part *part) {
  text_put(text, kind_names[part->kind], strlen(kind_names[part->kind]));
  /* Names of headers differ in case alone for nobody. */
  if (part->kind == SPILE__KEY_HEADER)
    text_put_value(text, part->header, true);
  text_put(text, "=", 1);
}

/* Writes "LABEL" and the hash of KIND=VALUE in place of what `text` has. */
static int text_put_hash(subject_text *text, const char *label, const spile__key_part *part, const char *value,
                         const spile__secret *secret) {
  if (!secret->is_set)
    return SPILE_ECONFIG;
  /* The longest is "header:" and a name of which every byte takes three. */
  char kind_bytes[3 * SPILE__HEADER_NAME_LEN_MAX + 16];
  subject_text kind = {.out = kind_bytes, .size = sizeof(kind_bytes)};
  text_put_kind(&kind, part);
  if (kind.len > sizeof(kind_bytes))
    return SPILE_ECONFIG;
  char hash[SPILE__HASH_TEXT_LEN];
  spile__secret_hash(secret, kind_bytes, kind.len, value, strlen(value), hash);
  text->len = 0;
  text_put(text, label, strlen(label));
  text_put(text, hash, sizeof(hash));
  return SPILE_OK;
}

int spile__subject_make(const spile__key_chain *chain, const spile_caller *caller, const char *route,
                        const spile__subject_rules *rules, char *out, size_t size, size_t *len) {
  char address_text[SPILE__ADDRESS_TEXT_MAX];
  const char *value = NULL;
  size_t i = 0;
  for (; i < chain->n; i++) {
    value = part_value(&chain->parts[i], caller, route, rules->ipv6_prefix, address_text);
    if (value != NULL || caller->bare != NULL)
      break;
  }
  if (value == NULL)
    return SPILE_ENOSUBJECT;

  const spile__key_part *part = &chain->parts[i];
  subject_text text = {.out = out, .size = size};
  int result = SPILE_OK;
  if (part->kind == SPILE__KEY_GLOBAL) {
    text_put(&text, value, strlen(value));
  } else if (part->kind == SPILE__KEY_API_KEY) {
    result = text_put_hash(&text, "api_key=", part, value, rules->secret);
  } else {
    text_put_kind(&text, part);
    text_put_value(&text, value, false);
    if (text.len > SPILE_KEY_LEN_MAX)
      result = text_put_hash(&text, "hash=", part, value, rules->secret);
  }
  *len = text.len;
  return result;
}
