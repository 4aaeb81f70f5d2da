/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a limits file: what its parts share. Reading goes on after a fault, so that all of them are told; what a
 * faulty part left is thrown away at the end.
 */
#ifndef SPILE_LIMITS_READER_H
#define SPILE_LIMITS_READER_H

#include "limits/fault.h"
#include "limits/limits.h"
#include "limits/scan.h"

typedef struct spile__named {
  const char *name;
  const spile__node *node;
  bool valid; /* false: it has faults, told where it stands */
  spile__route_limit limit;
} spile__named;

/* Texts and what each stands for. */
typedef struct spile__index {
  const uint64_t *hash_key;
  struct {
    const char *text; /* NULL: empty */
    uint32_t value;
  } * slots;
  size_t slot_count; /* a power of two */
} spile__index;

typedef struct spile__reader {
  spile__document document;
  spile__faults faults;
  spile__arena scratch; /* until the file is read */
  spile_limits *limits; /* what is being made */
  size_t made_room;

  /* What limits have that say nothing of their own. */
  spile_on_store_error on_store_error;
  int64_t timeout_ms;
  spile__key_chain chain;
  bool chain_knows_callers; /* it has a kind that tells one caller from another behind one address */

  spile__named *named;
  size_t named_count;
  spile__index named_index;
  spile__route_limit *always;
  size_t always_count;
} spile__reader;

/* ---- Values (value.c) ---- */

/*
 * Finds the members of an object by name; the node of one that is not there is NULL. A member of no such name is a
 * fault.
 * @return false: it is not an object, which is a fault
 */
bool spile__members_read(spile__reader *reader, const spile__node *object, const char *const *names, size_t n,
                         const spile__node **nodes);

/* A whole number of a range, as written. @return false: a fault */
bool spile__integer_read(spile__reader *reader, const spile__node *node, const char *unit, int64_t min, int64_t max,
                         int64_t *out);

/* Which of some words, up to NULL, a value is. @return -1: none, a fault */
int spile__word_read(spile__reader *reader, const spile__node *node, const char *const *words);

/* A string of 1 to `max` bytes, none of them a control character. @return NULL: a fault */
const char *spile__string_read(spile__reader *reader, const spile__node *node, size_t max);

bool spile__bool_read(spile__reader *reader, const spile__node *node, bool *out);

/* Where a value or its member stands, for as long as the limits live. @return NULL: out of memory */
const spile__place *spile__place_of(spile__reader *reader, const spile__node *node);

/* "write X", X being the name that is nearest, or "known are …" where none is near. */
const char *spile__advise_name(spile__reader *reader, const char *word, const char *const *names, size_t n);

/* Room for n texts. @return false: out of memory */
bool spile__index_make(spile__index *index, spile__reader *reader, size_t n);

/* Adds a text. @return false: it is there, and *value is set to its value */
bool spile__index_add(spile__index *index, const char *text, uint32_t *value);
bool spile__index_find(const spile__index *index, const char *text, uint32_t *value);

/* ---- Limits (limit.c) ---- */

/* The words of policies, up to NULL. */
extern const char *const spile__on_store_error_words[];

/*
 * Reads a limit. Its bucket is `owner`, or `owner`#`name` where it has a name or needs one.
 * @return false: a fault
 */
bool spile__limit_read(spile__reader *reader, const spile__node *node, const char *owner, bool needs_name,
                       spile__route_limit *out);

/* Reads whose bucket a limit is: a kind, or a list of kinds. @return false: a fault */
bool spile__chain_read(spile__reader *reader, const spile__node *node, spile__key_chain *out);

/* Whether a chain has only addresses, and whether it knows callers. */
bool spile__chain_is_ip(const spile__key_chain *chain);
bool spile__chain_knows_callers(const spile__key_chain *chain);

/* ---- Entries (entry.c) ---- */

/* Reads a list of limits, which have names, and of names of named ones. @return false: a fault */
bool spile__list_read(spile__reader *reader, const spile__node *node, const char *owner, spile__route_limit *out,
                      size_t *n);

/* Reads the entries of "limits", or of one tier, into `tier`. */
void spile__tier_read(spile__reader *reader, const spile__node *node, spile__tier *tier, bool needs_default);

/* Makes the table of a tier without faults. @return false: out of memory */
bool spile__tier_finish(spile__reader *reader, spile__tier *tier);

/* Reads the text of a route into its one spelling. @return NULL: a fault */
const char *spile__route_read(spile__reader *reader, const spile__node *node, const char *text);

#endif
