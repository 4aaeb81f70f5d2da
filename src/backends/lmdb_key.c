/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   kind(1) algorithm(1) prefix_len(1) prefix name_len(1) name key
 *
 * Every part but the last has its length before it, so two buckets never have the same key, whatever bytes a caller
 * puts into a name or a key. LMDB's keys end at 511 bytes; where this one would be longer it is
 *
 *   kind|0x80(1) algorithm(1) prefix_len(1) prefix hash(16)
 *
 * with the 128-bit keyed hash of what stands behind the prefix. The hash's key is random and lives in the database, so
 * nobody outside can make two long keys that meet, and a key is never cut.
 */
#include "backends/lmdb_key.h"

#include <string.h>

#include "core/algorithm.h"
#include "core/siphash.h"

#define HASH_LEN 16
#define PREFIX_LEN_MAX 64

_Static_assert(SPILE_NAME_LEN_MAX <= 255, "the length of a name is one byte");
_Static_assert(3 + PREFIX_LEN_MAX + HASH_LEN <= SPILE__LMDB_KEY_LEN_MAX, "a hashed key fits");

void spile__lmdb_key_range(spile__lmdb_key *out, int first, spile_algorithm algorithm, const char *prefix) {
  out->bytes[0] = (unsigned char)first;
  out->len = 1;
  if (prefix == NULL)
    return;
  size_t prefix_len = strlen(prefix);
  out->bytes[1] = (unsigned char)algorithm;
  out->bytes[2] = (unsigned char)prefix_len;
  memcpy(out->bytes + 3, prefix, prefix_len);
  out->len = 3 + prefix_len;
}

void spile__lmdb_key_make(spile__lmdb_key *out, int kind, const char *prefix, const spile_item *item,
                          const uint64_t secret[2]) {
  const spile_spec *spec = item->spec;
  spile__lmdb_key_range(out, kind, spec->algorithm, prefix);
  size_t head_len = out->len;
  size_t tail_len = 1 + spec->name_len + item->key_len;

  if (head_len + tail_len <= SPILE__LMDB_KEY_LEN_MAX) {
    unsigned char *tail = out->bytes + head_len;
    tail[0] = (unsigned char)spec->name_len;
    memcpy(tail + 1, spec->name, spec->name_len);
    memcpy(tail + 1 + spec->name_len, item->key, item->key_len);
    out->len = head_len + tail_len;
    return;
  }

  unsigned char tail[1 + SPILE_NAME_LEN_MAX + SPILE_KEY_LEN_MAX];
  tail[0] = (unsigned char)spec->name_len;
  memcpy(tail + 1, spec->name, spec->name_len);
  memcpy(tail + 1 + spec->name_len, item->key, item->key_len);
  uint64_t hash[2];
  spile__siphash128(hash, secret, tail, tail_len);
  out->bytes[0] = (unsigned char)(kind | SPILE__LMDB_HASHED);
  memcpy(out->bytes + head_len, hash, HASH_LEN);
  out->len = head_len + HASH_LEN;
}

bool spile__lmdb_key_split(spile__lmdb_parts *out, const void *bytes, size_t len) {
  const unsigned char *at = bytes;
  if (len < 3)
    return false;
  int kind = at[0] & ~SPILE__LMDB_HASHED;
  bool hashed = (at[0] & SPILE__LMDB_HASHED) != 0;
  size_t prefix_len = at[2];
  if ((kind != SPILE__LMDB_PRODUCTION && kind != SPILE__LMDB_SIMULATED) || spile__algorithm_get(at[1]) == NULL ||
      prefix_len > PREFIX_LEN_MAX || len < 3 + prefix_len)
    return false;
  *out = (spile__lmdb_parts){.simulated = kind == SPILE__LMDB_SIMULATED,
                             .algorithm = (spile_algorithm)at[1],
                             .prefix = at + 3,
                             .prefix_len = prefix_len};
  const unsigned char *tail = at + 3 + prefix_len;
  size_t tail_len = len - 3 - prefix_len;
  if (hashed)
    return tail_len == HASH_LEN;
  if (tail_len < 1 || tail_len <= (size_t)1 + tail[0])
    return false;
  out->name = tail + 1;
  out->name_len = tail[0];
  out->key = out->name + out->name_len;
  out->key_len = tail_len - 1 - out->name_len;
  return true;
}

/* ---- The hash key ---- */

const unsigned char spile__lmdb_secret_key[5] = {SPILE__LMDB_META, 'h', 'a', 's', 'h'};

static uint64_t secret_checksum(const uint64_t secret[2]) {
  static const uint64_t seed[2] = {0, 1};
  return spile__siphash64(seed, secret, 2 * sizeof(secret[0]));
}

bool spile__lmdb_secret_is_key(const void *key, size_t len) {
  return len == sizeof(spile__lmdb_secret_key) && memcmp(key, spile__lmdb_secret_key, len) == 0;
}

void spile__lmdb_secret_write(unsigned char out[SPILE__LMDB_SECRET_LEN], const uint64_t secret[2]) {
  uint64_t checksum = secret_checksum(secret);
  memcpy(out, secret, 16);
  memcpy(out + 16, &checksum, sizeof(checksum));
}

bool spile__lmdb_secret_read(uint64_t secret[2], const void *value, size_t len) {
  uint64_t checksum;
  if (len != SPILE__LMDB_SECRET_LEN)
    return false;
  memcpy(secret, value, 16);
  memcpy(&checksum, (const unsigned char *)value + 16, sizeof(checksum));
  return checksum == secret_checksum(secret);
}
