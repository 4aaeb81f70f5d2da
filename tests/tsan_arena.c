/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For test programs built with the thread sanitizer only. Criterion maps memory that its processes share at an address
 * it takes from rand_r; most of them lie where the sanitizer keeps its own, and then no test starts. This rand_r gives
 * numbers that lead to addresses the sanitizer leaves to the program.
 */
#include <stdlib.h>

int rand_r(unsigned *seed);

int rand_r(unsigned *seed) {
  *seed = *seed * 1103515245U + 12345U;
  return (int)(0x360000U + ((*seed >> 8) & 0x7fffU));
}
