/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The distinct keys of an input. A balanced tree, so that no choice of keys makes it slow.
 */
#ifndef SPILE_CLI_KEYS_H
#define SPILE_CLI_KEYS_H

#include <stddef.h>
#include <stdint.h>

typedef struct key_entry {
  const char *bytes; /* a NUL follows them */
  size_t len;
  uint64_t requests; /* the caller's to count, as is the next */
  uint64_t denied;
  struct key_entry *next;
} key_entry;

typedef struct key_set {
  void *tree;
  key_entry *first; /* all of them, in no order that means anything */
  uint64_t count;
} key_set;

/* The entry of a key, made if missing; it stays where it is until keys_finish. NULL: out of memory. */
key_entry *keys_add(key_set *set, const char *bytes, size_t len);
void keys_finish(key_set *set);

/*
 * For how many keys the memory store is to be opened, for one limit, so that each of these finds room. It has room for
 * 32 bytes of each key and, beside that, for as many pieces of 56 bytes of longer ones as it has keys.
 */
uint64_t keys_room(const key_set *set);

/*
 * The n entries that were denied most, most first and then by key; those never denied are left out.
 * @return how many of `top` were filled
 */
size_t keys_top(const key_set *set, const key_entry **top, size_t n);

#endif
