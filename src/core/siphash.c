/* SPDX-License-Identifier: Apache-2.0 */
#include "core/siphash.h"

#include <string.h>

typedef struct siphash {
  uint64_t v0, v1, v2, v3;
} siphash;

static inline uint64_t rotate(uint64_t x, unsigned bits) {
  return x << bits | x >> (64 - bits);
}

static inline void siphash_round(siphash *s) {
  s->v0 += s->v1;
  s->v2 += s->v3;
  s->v1 = rotate(s->v1, 13) ^ s->v0;
  s->v3 = rotate(s->v3, 16) ^ s->v2;
  s->v0 = rotate(s->v0, 32);
  s->v2 += s->v1;
  s->v0 += s->v3;
  s->v1 = rotate(s->v1, 17) ^ s->v2;
  s->v3 = rotate(s->v3, 21) ^ s->v0;
  s->v2 = rotate(s->v2, 32);
}

static inline void siphash_block(siphash *s, uint64_t block) {
  s->v3 ^= block;
  siphash_round(s);
  s->v0 ^= block;
}

static inline uint64_t little_endian(uint64_t x) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return __builtin_bswap64(x);
#else
  return x;
#endif
}

static inline siphash siphash_start(const uint64_t key[2]) {
  return (siphash){key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                   key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573)};
}

/* The whole blocks of data, then the rest with the length of all input in the top byte. */
static inline void siphash_input(siphash *s, const void *data, size_t len, size_t total) {
  const unsigned char *at = data;
  uint64_t block;
  for (; len >= 8; at += 8, len -= 8) {
    memcpy(&block, at, 8);
    siphash_block(s, little_endian(block));
  }
  uint64_t last = (uint64_t)(total & 0xff) << 56;
  for (size_t i = 0; i < len; i++)
    last |= (uint64_t)at[i] << (8 * i);
  siphash_block(s, last);
}

static inline uint64_t siphash_finish(siphash *s) {
  siphash_round(s);
  siphash_round(s);
  siphash_round(s);
  return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

uint64_t spile__siphash64(const uint64_t key[2], const void *data, size_t len) {
  siphash s = siphash_start(key);
  siphash_input(&s, data, len, len);
  s.v2 ^= 0xff;
  return siphash_finish(&s);
}

uint64_t spile__siphash64_pair(const uint64_t key[2], uint64_t first, const void *data, size_t len) {
  siphash s = siphash_start(key);
  siphash_block(&s, first);
  siphash_input(&s, data, len, len + 8);
  s.v2 ^= 0xff;
  return siphash_finish(&s);
}

void spile__siphash128(uint64_t out[2], const uint64_t key[2], const void *data, size_t len) {
  siphash s = siphash_start(key);
  s.v1 ^= 0xee;
  siphash_input(&s, data, len, len);
  s.v2 ^= 0xee;
  out[0] = siphash_finish(&s);
  s.v1 ^= 0xdd;
  out[1] = siphash_finish(&s);
}
