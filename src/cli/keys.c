/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/keys.h"

#include <search.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int keys_compare(const void *a, const void *b) {
  const key_entry *left = a;
  const key_entry *right = b;
  size_t shorter = left->len < right->len ? left->len : right->len;
  int order = memcmp(left->bytes, right->bytes, shorter);
  if (order != 0)
    return order;
  return left->len < right->len ? -1 : left->len > right->len ? 1 : 0;
}

key_entry *keys_add(key_set *set, const char *bytes, size_t len) {
  key_entry wanted = {.bytes = bytes, .len = len};
  key_entry **found = tfind(&wanted, &set->tree, keys_compare);
  if (found != NULL)
    return *found;
  /* The key's bytes stand right behind its entry. */
  key_entry *entry = malloc(sizeof(*entry) + len + 1);
  if (entry == NULL)
    return NULL;
  char *copy = (char *)(entry + 1);
  memcpy(copy, bytes, len);
  copy[len] = '\0';
  *entry = (key_entry){.bytes = copy, .len = len};
  if (tsearch(entry, &set->tree, keys_compare) == NULL) {
    free(entry);
    return NULL;
  }
  entry->next = set->first;
  set->first = entry;
  set->count++;
  return entry;
}

void keys_finish(key_set *set) {
  tdestroy(set->tree, free);
  *set = (key_set){.tree = NULL};
}

uint64_t keys_room(const key_set *set) {
  uint64_t pieces = 0;
  for (const key_entry *entry = set->first; entry != NULL; entry = entry->next)
    pieces += entry->len > 32 ? (entry->len - 32 + 55) / 56 : 0;
  return pieces > set->count ? pieces : set->count;
}

static bool denied_more(const key_entry *a, const key_entry *b) {
  if (a->denied != b->denied)
    return a->denied > b->denied;
  return keys_compare(a, b) < 0;
}

size_t keys_top(const key_set *set, const key_entry **top, size_t n) {
  size_t filled = 0;
  for (const key_entry *entry = set->first; entry != NULL; entry = entry->next) {
    /* Insertion into a short sorted list, whose last one falls out. */
    size_t at = filled;
    while (at > 0 && denied_more(entry, top[at - 1]))
      at--;
    if (entry->denied == 0 || at == n)
      continue;
    if (filled < n)
      filled++;
    memmove(&top[at + 1], &top[at], (filled - at - 1) * sizeof(top[0]));
    top[at] = entry;
  }
  return filled;
}
