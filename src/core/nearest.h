/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name that somebody may have meant.
 */
#ifndef SPILE_CORE_NEAREST_H
#define SPILE_CORE_NEAREST_H

#include <stddef.h>

/* Longer names are compared by this many bytes. */
#define SPILE__NEAREST_LEN_MAX 24

/*
 * The name of `names`, 1 or more, that differs least from a word: by the letters to insert, drop, change or swap with
 * their neighbour. Of several the first. `distance` gets how many letters, and may be NULL.
 */
const char *spile__nearest(const char *word, size_t word_len, const char *const *names, size_t n, size_t *distance);

#endif
