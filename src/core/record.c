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
 *  40  numbers      8 bytes each, the algorithm's own; token_bucket and leaky_bucket: full_at_ms and rem;
 *                fixed_window: start_ms and count; sliding_window: start_ms, count, and before;
 *                sliding_log: its entries, each an instant above ten bits of tokens
 *
 * The checksum covers the key, so a record that turns up under another key does not pass for its own. It finds damage,
 * not malice. A later version begins with another first byte.
 */
#include "core/record.h"

#include <string.h>

#include "core/limit.h"
#include "core/siphash.h"

#define RECORD_VERSION 1
#define RECORD_HEAD_LEN 40
_Static_assert(RECORD_HEAD_LEN + sizeof(((spile__state *)NULL)->numbers) <= SPILE__RECORD_LEN_MAX,
               "a record fits its buffer");

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

static uint32_t record_checksum(const unsigned char *record, size_t len, const void *key, size_t key_len) {
  static const uint64_t no_secret[2] = {0, 0};
  const uint64_t seed[2] = {spile__siphash64(no_secret, key, key_len), RECORD_VERSION};
  /* Of the whole record with zeros where the checksum stands, which is the upper half of the first eight bytes. */
  uint64_t first =
      (uint64_t)record[0] | (uint64_t)record[1] << 8 | (uint64_t)record[2] << 16 | (uint64_t)record[3] << 24;
  return (uint32_t)spile__siphash64_pair(seed, first, record + 8, len - 8);
}

size_t spile__record_encode(unsigned char *out, spile_algorithm algorithm, const spile__state *state, const void *key,
                            size_t key_len) {
  memset(out, 0, RECORD_HEAD_LEN);
  out[0] = RECORD_VERSION;
  out[1] = (unsigned char)algorithm;
  put64(out + 8, state->shape.capacity);
  put64(out + 16, state->shape.refill);
  put64(out + 24, state->shape.period_ms);
  put64(out + 32, state->shape.debt);
  size_t numbers = spile__state_numbers(spile__algorithm_get(algorithm), state);
  for (size_t i = 0; i < numbers; i++)
    put64(out + RECORD_HEAD_LEN + 8 * i, state->numbers[i]);
  size_t len = RECORD_HEAD_LEN + 8 * numbers;
  uint32_t checksum = record_checksum(out, len, key, key_len);
  for (int i = 0; i < 4; i++)
    out[4 + i] = (unsigned char)(checksum >> (8 * i));
  return len;
}

spile_reason spile__record_decode(const void *record, size_t record_len, spile_algorithm algorithm, const void *key,
                                  size_t key_len, spile__state *out) {
  const unsigned char *bytes = record;
  if (record_len < 1)
    return SPILE_REASON_CORRUPT;
  if (bytes[0] > RECORD_VERSION)
    return SPILE_REASON_FORMAT;
  if (record_len <= RECORD_HEAD_LEN || record_len > SPILE__RECORD_LEN_MAX || record_len % 8 != 0 ||
      bytes[0] != RECORD_VERSION || bytes[2] != 0 || bytes[3] != 0)
    return SPILE_REASON_CORRUPT;
  uint32_t checksum = 0;
  for (int i = 0; i < 4; i++)
    checksum |= (uint32_t)bytes[4 + i] << (8 * i);
  if (checksum != record_checksum(bytes, record_len, key, key_len))
    return SPILE_REASON_CORRUPT;
  if (bytes[1] != algorithm)
    return SPILE_REASON_FOREIGN;
  out->shape = (spile_shape){.capacity = get64(bytes + 8),
                             .refill = get64(bytes + 16),
                             .period_ms = get64(bytes + 24),
                             .debt = get64(bytes + 32)};
  const spile__algorithm *table = spile__algorithm_get(algorithm);
  size_t numbers = (record_len - RECORD_HEAD_LEN) / 8;
  if (table->numbers > 0 && numbers != table->numbers)
    return SPILE_REASON_CORRUPT;
  out->n = numbers;
  for (size_t i = 0; i < numbers; i++)
    out->numbers[i] = get64(bytes + RECORD_HEAD_LEN + 8 * i);
  if (!table->shape_valid(&out->shape) || !table->state_valid(out))
    return SPILE_REASON_CORRUPT;
  return SPILE_REASON_NONE;
}
