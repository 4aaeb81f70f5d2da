/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a limits file: what its parts share. Reading goes on after a fault, so that all of them are told; what a
 * faulty part left is thrown away at the end.
 */
#ifndef SPILE_LIMITS_READER_H
#define SPILE_LIMITS_READER_H

#include "core/limit.h"
#include "limits/fault.h"
#include "limits/limits.h"
#include "limits/scan.h"

/* A limit as an entry has it. One with faults, which are told where it stands, has no spile_limit. */
typedef struct spile__item {
  const char *name; /* of its buckets; NULL: nobody can say, which is a fault */
  spile__route_limit limit;
} spile__item;

typedef struct spile__named {
  const char *name;
  spile__item item;
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
  bool named_lost; /* nobody can say what is named: that is a fault, and what it leaves unnamed none */
  spile__item *always;
  size_t always_count;
  bool always_too_long; /* there are more, which is a fault, and what routes have too many by it none */
} spile__reader;

/* ---- Values (value.c) ---- */

/*
 * Finds the members of an object by name; the node of one that is not there is NULL. A member of no such name is a
 * fault.
 * @return false: it is not an object, which is a fault
 */
bool spile__members_read(spile__reader *reader, const spile__node *object, const char *const *names, size_t n,
                         const spile__node **nodes);

/*
 * Which of the names a member of no such name may have been meant for: those it is near to, or all where it is near to
 * none. What seems to be missing may be there under such a name.
 */
void spile__members_misspelt(const spile__reader *reader, const spile__node *object, const char *const *names, size_t n,
                             bool *meant);

/* A whole number of a range, as written. @return false: a fault */
bool spile__integer_read(spile__reader *reader, const spile__node *node, const char *unit, int64_t min, int64_t max,
                         int64_t *out);

/* Which of some words, up to NULL, a value is. @return -1: none, a fault */
int spile__word_read(spile__reader *reader, const spile__node *node, const char *const *words);

/* Which of `names` a name is; n: none. */
size_t spile__name_index(const char *const *names, size_t n, const char *name);

/* Whether a file has a member of this name at its top. */
bool spile__is_file_member(const char *name);

/* Whether a header can have this name (RFC 9110, 5.1), of at most 100 bytes. */
bool spile__is_header_name(const char *name);

/* A string of 1 to `max` bytes, none of them a control character. @return NULL: a fault */
const char *spile__string_read(spile__reader *reader, const spile__node *node, size_t max);

bool spile__bool_read(spile__reader *reader, const spile__node *node, bool *out);

/* Where a value or its member stands, for as long as the limits live. @return NULL: out of memory */
const spile__place *spile__place_of(spile__reader *reader, const spile__node *node);

/* The name that is nearest to a word, near enough to be what it was meant for; NULL: none is. */
const char *spile__near_name(const char *word, const char *const *names, size_t n);

/* "write X", X being the name that is nearest, or "known are …" where none is near. */
const char *spile__advise_name(spile__reader *reader, const char *word, const char *const *names, size_t n);

/* Room for n texts. @return false: out of memory */
bool spile__index_make(spile__index *index, spile__reader *reader, size_t n);

/* Adds a text. @return false: it is there, and *value is set to its value */
bool spile__index_add(spile__index *index, const char *text, uint32_t *value);
bool spile__index_find(const spile__index *index, const char *text, uint32_t *value);

/* ---- Rates (rate.c) ---- */

/*
 * What is wrong of a message "column N: WHAT; ADVICE" or "WHAT; ADVICE", in place; `advice` gets what follows, or "".
 */
const char *spile__message_split(char *message, const char **advice);

/*
 * Read what says a rate into the refill of `out`: a text such as "1/2s", a number a second as it is written, never as a
 * double, which 0.05 has no exact form in, or a window, which sets the period alone. @return false: a fault
 */
bool spile__refill_read(spile__reader *reader, const spile__node *node, spile__limit_text *out);
bool spile__refill_per_sec_read(spile__reader *reader, const spile__node *node, spile__limit_text *out);
bool spile__window_read(spile__reader *reader, const spile__node *node, spile__limit_text *out);

/* ---- Limits (limit.c) ---- */

/* The words of policies, up to NULL. */
extern const char *const spile__on_store_error_words[];

/* Reads a limit, faulty or not. Its bucket is `owner`, or `owner`#`name` where it has a name or needs one. */
void spile__limit_read(spile__reader *reader, const spile__node *node, const char *owner, bool needs_name,
                       spile__item *out);

/* Reads whose bucket a limit is: a kind, or a list of kinds. @return false: a fault */
bool spile__chain_read(spile__reader *reader, const spile__node *node, spile__key_chain *out);

/* Whether a chain has only addresses, and whether it knows callers. */
bool spile__chain_is_ip(const spile__key_chain *chain);
bool spile__chain_knows_callers(const spile__key_chain *chain);

/* ---- Entries (entry.c) ---- */

/*
 * Reads a list of limits, which have names, and of names of named ones: SPILE_ROUTE_LIMITS_MAX at most, each in its
 * place, faulty or not.
 * @return false: there are more, which is a fault
 */
bool spile__list_read(spile__reader *reader, const spile__node *node, const char *owner, spile__item *out, size_t *n);

/* Reads the entries of "limits", or of one tier, into `tier`. */
void spile__tier_read(spile__reader *reader, const spile__node *node, spile__tier *tier, bool needs_default);

/* Makes the table of a tier without faults. @return false: out of memory */
bool spile__tier_finish(spile__reader *reader, spile__tier *tier);

/* Reads the text of a route into its one spelling. @return NULL: a fault */
const char *spile__route_read(spile__reader *reader, const spile__node *node, const char *text);

#endif
