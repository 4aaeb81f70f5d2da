/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is taken in small pieces and given back all at once.
 */
#ifndef SPILE_LIMITS_ARENA_H
#define SPILE_LIMITS_ARENA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct spile__arena {
  struct spile__arena_block *blocks; /* the newest first */
  size_t left;                       /* bytes at the end of the newest */
  bool failed;                       /* there was no memory for something */
} spile__arena;

/* `size` zeroed bytes, aligned for anything, that live as long as the arena. NULL: out of memory, and `failed` is set.
 */
void *spile__arena_take(spile__arena *arena, size_t size);

/* The same for `count` things of a size. */
void *spile__arena_array(spile__arena *arena, size_t count, size_t size);

/* A copy of `len` bytes and a NUL. */
char *spile__arena_text(spile__arena *arena, const char *bytes, size_t len);

/* Gives everything back; the arena is empty then. */
void spile__arena_finish(spile__arena *arena);

#endif
