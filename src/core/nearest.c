/* SPDX-License-Identifier: Apache-2.0 */
#include "core/nearest.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The least number of letters to insert, drop, change or swap with their neighbour to make `b` of `a`. */
static size_t name_distance(const char *a, size_t a_len, const char *b, size_t b_len) {
  size_t rows[SPILE__NEAREST_LEN_MAX + 1][SPILE__NEAREST_LEN_MAX + 1];
  for (size_t i = 0; i <= a_len; i++) {
    for (size_t j = 0; j <= b_len; j++) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      size_t best = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      if (rows[i - 1][j] + 1 < best)
        best = rows[i - 1][j] + 1;
      if (rows[i][j - 1] + 1 < best)
        best = rows[i][j - 1] + 1;
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && rows[i - 2][j - 2] + 1 < best)
        best = rows[i - 2][j - 2] + 1;
      rows[i][j] = best;
    }
  }
  return rows[a_len][b_len];
}

static size_t name_len_cut(size_t len) {
  return len < SPILE__NEAREST_LEN_MAX ? len : SPILE__NEAREST_LEN_MAX;
}

const char *spile__nearest(const char *word, size_t word_len, const char *const *names, size_t n, size_t *distance) {
  const char *nearest = names[0];
  size_t least = SIZE_MAX;
  for (size_t i = 0; i < n; i++) {
    size_t now = name_distance(word, name_len_cut(word_len), names[i], name_len_cut(strlen(names[i])));
    if (now < least) {
      least = now;
      nearest = names[i];
    }
  }
  if (distance != NULL)
    *distance = least;
  return nearest;
}
