/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_CORE_SIPHASH_H
#define SPILE_CORE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012): with a secret key nobody outside can
 * make inputs that collide. The 128-bit form doubles the last block as the authors' later variant does.
 */
uint64_t spile__siphash64(const uint64_t key[2], const void *data, size_t len);
void spile__siphash128(uint64_t out[2], const uint64_t key[2], const void *data, size_t len);

/* The 64-bit hash of the eight bytes of `first`, little-endian, followed by data. */
uint64_t spile__siphash64_pair(const uint64_t key[2], uint64_t first, const void *data, size_t len);

#endif
