/* SPDX-License-Identifier: Apache-2.0 */
#include "core/algorithm.h"

#include <string.h>

const spile__algorithm *spile__algorithm_get(spile_algorithm algorithm) {
  switch (algorithm) {
  case SPILE_TOKEN_BUCKET:
    return &spile__token_bucket;
  }
  return NULL;
}

bool spile__algorithm_find(const char *word, size_t len, spile_algorithm *out) {
  static const spile_algorithm all[] = {SPILE_TOKEN_BUCKET};
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    const char *name = spile__algorithm_get(all[i])->name;
    if (strlen(name) == len && memcmp(name, word, len) == 0) {
      *out = all[i];
      return true;
    }
  }
  return false;
}
