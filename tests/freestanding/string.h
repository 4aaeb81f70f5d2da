/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that src/core may use of the C library. check_core_pure.sh compiles the core with this header and the compiler's
 * freestanding ones, and nothing else, in reach; a function that is not here does not compile.
 */
#ifndef SPILE_TESTS_FREESTANDING_STRING_H
#define SPILE_TESTS_FREESTANDING_STRING_H

#include <stddef.h>

void *memcpy(void *to, const void *from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *to, int byte, size_t size);
int memcmp(const void *a, const void *b, size_t size);
void *memchr(const void *bytes, int byte, size_t size);
size_t strlen(const char *text);
char *strchr(const char *text, int letter);

#endif
