/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expected values come from tests/vectors/siphash.py, an implementation of its own that checks itself against the
 * authors' vectors and CPython:  PYTHONHASHSEED=0 python3 tests/vectors/siphash.py
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "core/siphash.h"

/* The key is the bytes 00 01 … 0f, the input the bytes 00 01 02 … */
static const uint64_t counted_key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};

static const struct {
  size_t len;
  uint64_t hash64;
  uint64_t hash128[2];
} rows[] = {
    {0, UINT64_C(0xabac0158050fc4dc), {UINT64_C(0xbea58827b2bc7ee7), UINT64_C(0x013030dd6adb62fd)}},
    {1, UINT64_C(0xc9f49bf37d57ca93), {UINT64_C(0xa8edd36004376ffc), UINT64_C(0x63f02f2bcc73055e)}},
    {7, UINT64_C(0xd3927d989bb11140), {UINT64_C(0xc3e0aaf223b98410), UINT64_C(0x77ab4808c82e2fa6)}},
    {8, UINT64_C(0x369095118d299a8e), {UINT64_C(0xb4dae3d5e1fe12aa), UINT64_C(0x99c7f935ab164f72)}},
    {9, UINT64_C(0x25a48eb36c063de4), {UINT64_C(0x9439f32c04b8dd81), UINT64_C(0x427c1394000e72f4)}},
    {15, UINT64_C(0xd320d86d2a519956), {UINT64_C(0x6c52bdb205557ec1), UINT64_C(0x09017e1eeccd2129)}},
    {16, UINT64_C(0xcc4fdd1a7d908b66), {UINT64_C(0xeb8e511557d9a8d0), UINT64_C(0x93179e3df8b013b5)}},
    {17, UINT64_C(0x9cf2689063dbd80c), {UINT64_C(0x8d66bb3ff9264123), UINT64_C(0xecf7bdfee8125197)}},
    {63, UINT64_C(0x9d199062b7bbb3a8), {UINT64_C(0x6f42fe4ee300584c), UINT64_C(0xad6052a70a6b9f07)}},
    {64, UINT64_C(0xf17997ec4b4a6065), {UINT64_C(0x36a54a4bf2de5312), UINT64_C(0xc2666aba59a7c84e)}},
    {255, UINT64_C(0xf76214e3153c4a15), {UINT64_C(0xa558210ac1a428f5), UINT64_C(0xe93ebbaed065a4f1)}},
    {256, UINT64_C(0x75b3e64e167de370), {UINT64_C(0x5a020c3a248b6cf5), UINT64_C(0x7a709cb9a27a686a)}},
};

static void counted_input(unsigned char *bytes, size_t len) {
  for (size_t i = 0; i < len; i++)
    bytes[i] = (unsigned char)i;
}

Test(siphash, the_64_bit_form_has_the_published_values) {
  unsigned char input[256];
  counted_input(input, sizeof(input));
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
    cr_expect(eq(u64, spile__siphash64(counted_key, input, rows[i].len), rows[i].hash64), "length %zu", rows[i].len);
}

Test(siphash, the_128_bit_form_has_the_published_values) {
  unsigned char input[256];
  counted_input(input, sizeof(input));
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint64_t hash[2];
    spile__siphash128(hash, counted_key, input, rows[i].len);
    cr_expect(eq(u64, hash[0], rows[i].hash128[0]), "low half, length %zu", rows[i].len);
    cr_expect(eq(u64, hash[1], rows[i].hash128[1]), "high half, length %zu", rows[i].len);
  }
}

Test(siphash, an_input_may_start_anywhere_in_memory) {
  unsigned char input[256];
  unsigned char moved[256 + 8];
  counted_input(input, sizeof(input));
  for (size_t shift = 0; shift < 8; shift++) {
    memcpy(moved + shift, input, 63);
    cr_expect(eq(u64, spile__siphash64(counted_key, moved + shift, 63), spile__siphash64(counted_key, input, 63)));
  }
}

Test(siphash, a_pair_is_the_number_and_the_bytes_in_one) {
  unsigned char input[256];
  counted_input(input, sizeof(input));
  /* The first eight bytes, 00 … 07, as a little-endian number. */
  for (size_t len = 8; len < sizeof(input); len++)
    cr_expect(eq(u64, spile__siphash64_pair(counted_key, UINT64_C(0x0706050403020100), input + 8, len - 8),
                 spile__siphash64(counted_key, input, len)));
}

Test(siphash, another_key_is_another_hash) {
  const uint64_t other[2] = {counted_key[0], counted_key[1] ^ 1};
  cr_assert(spile__siphash64(counted_key, "a", 1) != spile__siphash64(other, "a", 1));
}
