/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of buckets in Redis: PREFIX:{key}:name, and spile-sim:PREFIX:{key}:name for buckets whose time is given.
 * Behind the name of any other bucket than a token bucket stands ":" and the word of its algorithm.
 *
 * The braces make a subject's buckets share a slot of a cluster. Key and name may be any bytes, so whatever could be
 * read as ours (a brace, a colon, a percent sign) or would be unreadable is written as %XX. Each bucket has exactly one
 * name and each name one bucket: decoding accepts only what encoding writes.
 */
#include "backends/redis.h"

#include <string.h>

#include "core/algorithm.h"

static const char hex[] = "0123456789ABCDEF";

static bool is_plain(unsigned char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         (c != '\0' && strchr("-._~=/*@# ", c) != NULL);
}

static char *put(char *at, const char *text, size_t len) {
  memcpy(at, text, len);
  return at + len;
}

static char *put_encoded(char *at, const void *bytes, size_t len) {
  const unsigned char *byte = bytes;
  for (size_t i = 0; i < len; i++) {
    if (is_plain(byte[i])) {
      *at++ = (char)byte[i];
    } else {
      *at++ = '%';
      *at++ = hex[byte[i] >> 4];
      *at++ = hex[byte[i] & 15];
    }
  }
  return at;
}

size_t spile__redis_key_size(const char *prefix, const spile_item *item) {
  return strlen(SPILE__REDIS_MARK) + strlen(prefix) + 3 * item->key_len + 3 * item->spec->name_len + 4 +
         SPILE__REDIS_SUFFIX_LEN_MAX;
}

size_t spile__redis_key_encode(char *out, const char *prefix, bool simulated, const spile_item *item) {
  char *at = out;
  if (simulated)
    at = put(at, SPILE__REDIS_MARK, strlen(SPILE__REDIS_MARK));
  at = put(at, prefix, strlen(prefix));
  at = put(at, ":{", 2);
  at = put_encoded(at, item->key, item->key_len);
  at = put(at, "}:", 2);
  at = put_encoded(at, item->spec->name, item->spec->name_len);
  if (item->spec->algorithm != SPILE_TOKEN_BUCKET) {
    const char *word = spile__algorithm_get(item->spec->algorithm)->name;
    at = put(at, ":", 1);
    at = put(at, word, strlen(word));
  }
  return (size_t)(at - out);
}

static int hex_digit(char c) {
  const char *at = c != '\0' ? strchr(hex, c) : NULL;
  return at != NULL ? (int)(at - hex) : -1;
}

/* Decodes [from, to), which is not empty, in place. @return the length, or 0 when it is not what encoding writes */
static size_t decode(char *from, const char *to) {
  char *out = from;
  const char *at = from;
  while (at < to) {
    unsigned char c = (unsigned char)*at++;
    if (c == '%') {
      int high = to - at >= 2 ? hex_digit(at[0]) : -1;
      int low = high >= 0 ? hex_digit(at[1]) : -1;
      if (low < 0)
        return 0;
      at += 2;
      c = (unsigned char)(high << 4 | low);
      if (is_plain(c))
        return 0;
    } else if (!is_plain(c)) {
      return 0;
    }
    *out++ = (char)c;
  }
  return (size_t)(out - from);
}

bool spile__redis_key_decode(char *name, size_t len, spile__redis_key *out) {
  char *end = name + len;
  size_t mark_len = strlen(SPILE__REDIS_MARK);
  char *prefix = name;
  out->simulated = false;
  char *tag = memchr(name, '{', len);
  /* A prefix has no colon, so a key prefix "spile-sim" is not taken for the mark. */
  if (tag != NULL && (size_t)(tag - name) > mark_len + 1 && memcmp(name, SPILE__REDIS_MARK, mark_len) == 0) {
    out->simulated = true;
    prefix += mark_len;
  }
  char *close = tag != NULL ? memchr(tag, '}', (size_t)(end - tag)) : NULL;
  if (close == NULL || tag - prefix < 2 || tag[-1] != ':' || memchr(prefix, ':', (size_t)(tag - 1 - prefix)) != NULL)
    return false;
  if (close == tag + 1 || end - close < 3 || close[1] != ':')
    return false;
  out->prefix = prefix;
  out->prefix_len = (size_t)(tag - 1 - prefix);
  out->key = tag + 1;
  out->key_len = decode(tag + 1, close);
  out->algorithm = SPILE_TOKEN_BUCKET;
  char *colon = memchr(close + 2, ':', (size_t)(end - close - 2));
  if (colon != NULL) {
    if (!spile__algorithm_find(colon + 1, (size_t)(end - colon - 1), &out->algorithm) ||
        out->algorithm == SPILE_TOKEN_BUCKET)
      return false;
    end = colon;
  }
  out->name = close + 2;
  out->name_len = decode(close + 2, end);
  return out->key_len >= 1 && out->key_len <= SPILE_KEY_LEN_MAX && out->name_len >= 1 &&
         out->name_len <= SPILE_NAME_LEN_MAX;
}
