/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a loaded limits file is inside. The loader makes it once; afterwards it is only read.
 */
#ifndef SPILE_LIMITS_LIMITS_H
#define SPILE_LIMITS_LIMITS_H

#include <stdatomic.h>

#include <spile/limits.h>

#include "limits/arena.h"
#include "limits/network.h"
#include "limits/route.h"

typedef enum spile__key_kind {
  SPILE__KEY_TENANT = 1,
  SPILE__KEY_USER,
  SPILE__KEY_API_KEY,
  SPILE__KEY_IP,
  SPILE__KEY_HEADER,
  SPILE__KEY_ROUTE,
  SPILE__KEY_GLOBAL,
} spile__key_kind;

#define SPILE__HEADER_NAME_LEN_MAX 255

/* Where the file says what may be refused when the file is put in force. */
typedef struct spile__place {
  const char *path; /* in the document */
  int line;         /* counted from 1 … */
  int column;       /* … in bytes */
} spile__place;

typedef struct spile__key_part {
  spile__key_kind kind;
  const char *header; /* of a HEADER: 1 to SPILE__HEADER_NAME_LEN_MAX bytes, each of a token (RFC 9110) */
  uint32_t node;      /* of the document, while that is there */
} spile__key_part;

/* Whose bucket: the first of these that the request has. */
typedef struct spile__key_chain {
  const spile__key_part *parts;
  size_t n;
} spile__key_chain;

typedef struct spile__route_limit {
  spile_limit *limit;
  int64_t cost;
  bool shadow;
  bool always; /* of every request, not of the route's own entry */
  spile__key_chain chain;
} spile__route_limit;

struct spile_route {
  const char *text; /* in its one spelling (route.h) */
  spile_route_word word;
  size_t n;
  const spile__route_limit *limits; /* the route's own, then those of every request; in force first, shadow last */
};

/* One entry of "skip": every member it has must match. */
typedef struct spile__skip {
  const char *route; /* NULL; else the text of a route, with globs: spile__route_matches */
  bool has_network;
  spile__network network;
  const char *header; /* NULL; else its name … */
  const char *value;  /* … and value; NULL: any */
} spile__skip;

/* The entries of one tier, or of "limits" itself. */
typedef struct spile__tier {
  const char *name; /* NULL: the base */
  spile__table table;
  spile_route *routes; /* in the order of the file */
  size_t route_count;
  const spile_route *fallback; /* `default`; NULL: this tier has none */
} spile__tier;

struct spile_limits {
  atomic_uint owners;
  spile__arena arena; /* holds what follows, but for "made" */
  uint64_t hash_key[2];
  const char *file;       /* as given to the loader */
  const char *key_prefix; /* NULL: none */
  const spile__place *key_prefix_place;
  const spile__route_limit *by_api_key; /* the first that may be by API key; NULL: none */
  const spile__place *by_api_key_place; /* what of its key says so */
  bool ignore_case;                     /* of the letters of paths */
  const spile__skip *skips;
  size_t skip_count;
  spile__tier base;
  spile__tier *tiers; /* by name, ascending */
  size_t tier_count;
  spile_limit **made; /* every limit of the file, each owned once */
  size_t made_count;
};

/* Frees limits that nobody owns. */
void spile__limits_free(spile_limits *limits);

/* Forgets every timeout_ms of limits that nobody but the caller has seen, for a command whose own is to win. */
void spile__limits_drop_timeouts(spile_limits *limits);

/* Whether an entry of "skip" matches. */
bool spile__limits_skips(const spile_limits *limits, const char *method, const char *path, const spile_caller *caller);

#endif
