/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Version 1 of the record, all numbers little-endian:
 *
 *   0  version      1 byte, 1
 *   1  algorithm    1 byte, a spile_algorithm
 *   2  zero         2 bytes
 *   4  checksum     4 bytes: the low half of SipHash-1-3, keyed with the key's own hash, over the record without it
 *   8  capacity     8 bytes
 *  16  refill       8 bytes
 *  24  period_ms    8 bytes
 *  32  debt         8 bytes
 *  40  full_at_ms   8 bytes
 *  48  rem          8 bytes
 *
 * The checksum covers the key, so a record that turns up under another key does not pass for its own. It finds damage,
 * not malice. A later version begins with another first byte.
 */
#include "core/record.h"

#include <string.h>

#include "core/limit.h"
#include "core/siphash.h"

#define RECORD_VERSION 1
#define RECORD_LEN 56
_Static_assert(RECORD_LEN <= SPILE__RECORD_LEN_MAX, "a record fits its buffer");

static void put64(unsigned char *at, int64_t value) {
  for (int i = 0; i < 8; i++)
    at[i] = (unsigned char)((uint64_t)value >> (8 * i));
}

static int64_t get64(const unsigned char *at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; i++)
    value |= (uint64_t)at[i] << (8 * i);
  return (int64_t)value;
}

static uint32_t record_checksum(const unsigned char *record, const void *key, size_t key_len) {
  static const uint64_t no_secret[2] = {0, 0};
  const uint64_t seed[2] = {spile__siphash64(no_secret, key, key_len), RECORD_VERSION};
  unsigned char body[RECORD_LEN];
  memcpy(body, record, RECORD_LEN);
  memset(body + 4, 0, 4);
  return (uint32_t)spile__siphash64(seed, body, RECORD_LEN);
}

size_t spile__record_encode(unsigned char *out, spile_algorithm algorithm, const spile__state *state, const void *key,
                            size_t key_len) {
  memset(out, 0, RECORD_LEN);
  out[0] = RECORD_VERSION;
  out[1] = (unsigned char)algorithm;
  put64(out + 8, state->shape.capacity);
  put64(out + 16, state->shape.refill);
  put64(out + 24, state->shape.period_ms);
  put64(out + 32, state->shape.debt);
  put64(out + 40, state->bucket.full_at_ms);
  put64(out + 48, state->bucket.rem);
  uint32_t checksum = record_checksum(out, key, key_len);
  for (int i = 0; i < 4; i++)
    out[4 + i] = (unsigned char)(checksum >> (8 * i));
  return RECORD_LEN;
}

spile_reason spile__record_decode(const void *record, size_t record_len, spile_algorithm algorithm, const void *key,
                                  size_t key_len, spile__state *out) {
  const unsigned char *bytes = record;
  if (record_len < 1)
    return SPILE_REASON_CORRUPT;
  if (bytes[0] > RECORD_VERSION)
    return SPILE_REASON_FORMAT;
  if (record_len != RECORD_LEN || bytes[0] != RECORD_VERSION || bytes[2] != 0 || bytes[3] != 0)
    return SPILE_REASON_CORRUPT;
  uint32_t checksum = 0;
  for (int i = 0; i < 4; i++)
    checksum |= (uint32_t)bytes[4 + i] << (8 * i);
  if (checksum != record_checksum(bytes, key, key_len))
    return SPILE_REASON_CORRUPT;
  if (bytes[1] != algorithm)
    return SPILE_REASON_FOREIGN;
  out->shape = (spile_shape){.capacity = get64(bytes + 8),
                             .refill = get64(bytes + 16),
                             .period_ms = get64(bytes + 24),
                             .debt = get64(bytes + 32)};
  out->bucket.full_at_ms = get64(bytes + 40);
  out->bucket.rem = get64(bytes + 48);
  if (!spile__shape_valid(&out->shape) || !spile__algorithm_get(algorithm)->state_valid(out))
    return SPILE_REASON_CORRUPT;
  return SPILE_REASON_NONE;
}
