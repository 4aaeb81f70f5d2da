/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_SIZE = 16384 };

struct spile__arena_block {
  struct spile__arena_block *next;
  size_t size;
  max_align_t bytes[];
};

void *spile__arena_take(spile__arena *arena, size_t size) {
  size_t step = alignof(max_align_t);
  if (size > SIZE_MAX / 2) {
    arena->failed = true;
    return NULL;
  }
  size = size == 0 ? step : (size + step - 1) / step * step;
  if (arena->blocks == NULL || arena->left < size) {
    size_t room = size > BLOCK_SIZE ? size : BLOCK_SIZE;
    struct spile__arena_block *block = calloc(1, sizeof(*block) + room);
    if (block == NULL) {
      arena->failed = true;
      return NULL;
    }
    block->size = room;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->left = room;
  }
  char *at = (char *)arena->blocks->bytes + (arena->blocks->size - arena->left);
  arena->left -= size;
  return at;
}

void *spile__arena_array(spile__arena *arena, size_t count, size_t size) {
  size_t total;
  if (__builtin_mul_overflow(count, size, &total))
    total = SIZE_MAX;
  return spile__arena_take(arena, total);
}

char *spile__arena_text(spile__arena *arena, const char *bytes, size_t len) {
  char *text = spile__arena_take(arena, len + 1);
  if (text != NULL)
    memcpy(text, bytes, len);
  return text;
}

void spile__arena_finish(spile__arena *arena) {
  while (arena->blocks != NULL) {
    struct spile__arena_block *next = arena->blocks->next;
    free(arena->blocks);
    arena->blocks = next;
  }
  arena->left = 0;
}
