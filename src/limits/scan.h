/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON text with its places. jansson says whether a text is JSON and what is in it, but not where; so the text is
 * walked once more, beside jansson's values, and every value gets the place where it stands.
 */
#ifndef SPILE_LIMITS_SCAN_H
#define SPILE_LIMITS_SCAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPILE__DOCUMENT_LEN_MAX (16u << 20)
#define SPILE__DOCUMENT_VALUES_MAX 1000000
#define SPILE__DOCUMENT_DEPTH_MAX 32

/* Neither a first child nor a next sibling is the root. */
#define SPILE__NO_NODE 0

typedef struct spile__node {
  const json_t *value;
  const char *name; /* of a member; NULL: an item of an array, or the root */
  uint32_t at;      /* where the value begins … */
  uint32_t end;     /* … and ends */
  uint32_t name_at; /* where the name's quote stands; of no member: `at` */
  uint32_t index;   /* of an item */
  uint32_t parent;
  uint32_t first;
  uint32_t next;
} spile__node;

typedef struct spile__document {
  const char *text;
  size_t len;
  json_t *json;
  spile__node *nodes; /* the first is the root */
  size_t count;
  /* Where the first number stands that is too large for any member, so that its value is another such one. */
  size_t too_large_at;
  bool has_too_large;
} spile__document;

/* Room for the path of any member that a limits file can have; longer ones are cut. */
#define SPILE__DOCUMENT_PATH_SIZE 700

/* What keeps a text from being a document. */
typedef struct spile__document_fault {
  size_t at; /* offset */
  char path[SPILE__DOCUMENT_PATH_SIZE];
  char what[200];
  const char *advice;
} spile__document_fault;

/*
 * Reads a text, which must stay until spile__document_finish.
 * @return SPILE_OK; SPILE_ECONFIG with `fault`; SPILE_ENOMEM
 */
int spile__document_read(spile__document *out, const char *text, size_t len, spile__document_fault *fault);
void spile__document_finish(spile__document *document);

/* Writes where a value stands, such as limits["POST /search"].capacity; long names and paths are cut. */
void spile__document_path(const spile__document *document, const spile__node *node, char *out, size_t size);

/* The member of a name, or NULL. */
const spile__node *spile__node_member(const spile__document *document, const spile__node *object, const char *name);

/* Walks the children of a node: NULL for none or no more. */
const spile__node *spile__node_first(const spile__document *document, const spile__node *node);
const spile__node *spile__node_next(const spile__document *document, const spile__node *node);

#endif
