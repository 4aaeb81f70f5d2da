/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_TESTS_FUZZ_LIMITS_H
#define SPILE_TESTS_FUZZ_LIMITS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Loads the bytes as a limits file and, when it can be loaded, looks routes up in it; traps where a promise is broken.
 * The form that libFuzzer calls: clang -fsanitize=fuzzer,address,undefined tests/fuzz_limits.c with the library.
 */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#endif
