#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the rows of tests/test_siphash.c, SipHash-1-3 in 64 and 128 bits, written from the paper's pseudocode, and the
record of tests/test_record.c.

It first checks itself against others: with two and four rounds against the vectors that SipHash's authors publish, and
with one and three against CPython (3.11 and later hash bytes with SipHash-1-3):  PYTHONHASHSEED=0 python3 siphash.py
"""
import os
import struct
import sys

M = 2**64 - 1


def siphash(k0, k1, data, c, d, wide):
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(x, b):
        return (x << b | x >> (64 - b)) & M

    def half(a, b, s, t):
        v[a] = (v[a] + v[b]) & M
        v[b] = rotate(v[b], s) ^ v[a]
        if t:
            v[a] = rotate(v[a], t)

    def rounds(n):
        for _ in range(n):
            half(0, 1, 13, 32)
            half(2, 3, 16, 0)
            half(2, 1, 17, 32)
            half(0, 3, 21, 0)

    if wide:
        v[1] ^= 0xEE
    padded = data + b"\0" * (7 - len(data) % 8) + bytes([len(data) % 256])
    for (m,) in struct.iter_unpack("<Q", padded):
        v[3] ^= m
        rounds(c)
        v[0] ^= m
    v[2] ^= 0xEE if wide else 0xFF
    rounds(d)
    out = [v[0] ^ v[1] ^ v[2] ^ v[3]]
    if wide:
        v[1] ^= 0xDD
        rounds(d)
        out.append(v[0] ^ v[1] ^ v[2] ^ v[3])
    return out


K0, K1 = struct.unpack("<2Q", bytes(range(16)))
# github.com/veorq/SipHash, vectors.h: vectors_sip64[0], [15], vectors_sip128[0], read as little-endian words.
assert siphash(K0, K1, b"", 2, 4, False) == [0x726FDB47DD0E0E31]
assert siphash(K0, K1, bytes(range(15)), 2, 4, False) == [0xA129CA6149BE45E5]
assert siphash(K0, K1, b"", 2, 4, True) == [0xE6A825BA047F81A3, 0x930255C71472F66D]
assert os.environ.get("PYTHONHASHSEED") == "0" and sys.hash_info.algorithm == "siphash13", "see above"
for n in range(1, 300):
    text = bytes(i * 7 % 256 for i in range(n))
    mine = siphash(0, 0, text, 1, 3, False)[0]
    assert hash(text) % 2**64 == (mine if mine != M else M - 1), n

for n in (0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 255, 256):
    (short,), (low, high) = (siphash(K0, K1, bytes(i % 256 for i in range(n)), 1, 3, w) for w in (False, True))
    print(f"    {{{n}, UINT64_C(0x{short:016x}), {{UINT64_C(0x{low:016x}), UINT64_C(0x{high:016x})}}}},")



def record(algorithm, *numbers):
    """A record under the key "k"."""
    body = struct.pack(f"<BBHI{len(numbers)}q", 1, algorithm, 0, 0, *numbers)
    (seed,) = siphash(0, 0, b"k", 1, 3, False)
    (checksum,) = siphash(seed, 1, body, 1, 3, False)
    print(", ".join(f"0x{b:02x}" for b in body[:4] + struct.pack("<I", checksum % 2**32) + body[8:]))


# Token bucket, capacity 60, 1 per 1000 ms, no debt, full at 1700000000123 ms, no remainder.
record(1, 60, 1, 1000, 0, 1700000000123, 0)
# Fixed window, 5 of 100 in the minute from 1699999980000 ms on.
record(3, 100, 1, 60000, 0, 1699999980000, 5)
# Sliding window, the same and 7 in the minute before.
record(4, 100, 1, 60000, 0, 1699999980000, 5, 7)
# Sliding log, 5 at 1700000000000 and 2 at 1700000000123.
record(5, 100, 1, 60000, 0, 1700000000000 << 10 | 5, 1700000000123 << 10 | 2)
