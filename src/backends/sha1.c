/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-1 as RFC 3174 writes it. It names a script here and protects nothing.
 */
#include "backends/sha1.h"

#include <stdint.h>
#include <string.h>

static uint32_t rotate(uint32_t word, int bits) {
  return word << bits | word >> (32 - bits);
}

static void block_add(uint32_t hash[5], const unsigned char block[64]) {
  uint32_t words[80];
  for (int i = 0; i < 16; i++)
    words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
  for (int i = 16; i < 80; i++)
    words[i] = rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);

  uint32_t a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4];
  for (int i = 0; i < 80; i++) {
    uint32_t mixed;
    if (i < 20)
      mixed = ((b & c) | (~b & d)) + 0x5a827999;
    else if (i < 40)
      mixed = (b ^ c ^ d) + 0x6ed9eba1;
    else if (i < 60)
      mixed = ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc;
    else
      mixed = (b ^ c ^ d) + 0xca62c1d6;
    uint32_t next = rotate(a, 5) + mixed + e + words[i];
    e = d;
    d = c;
    c = rotate(b, 30);
    b = a;
    a = next;
  }
  hash[0] += a;
  hash[1] += b;
  hash[2] += c;
  hash[3] += d;
  hash[4] += e;
}

void spile__sha1_hex(const void *data, size_t len, char out[41]) {
  uint32_t hash[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  const unsigned char *bytes = data;
  size_t whole = len / 64 * 64;
  for (size_t i = 0; i < whole; i += 64)
    block_add(hash, bytes + i);

  /* The rest, a set bit, zeros, and the length in bits as the last eight bytes: one block or two. */
  unsigned char tail[128] = {0};
  size_t rest = len - whole;
  if (rest > 0)
    memcpy(tail, bytes + whole, rest);
  tail[rest] = 0x80;
  size_t tail_len = rest < 56 ? 64 : 128;
  uint64_t bits = (uint64_t)len * 8;
  for (size_t i = 0; i < 8; i++)
    tail[tail_len - 1 - i] = (unsigned char)(bits >> (8 * i));
  for (size_t i = 0; i < tail_len; i += 64)
    block_add(hash, tail + i);

  static const char hex[] = "0123456789abcdef";
  for (size_t i = 0; i < 40; i++)
    out[i] = hex[hash[i / 8] >> (28 - 4 * (i % 8)) & 15];
  out[40] = '\0';
}
