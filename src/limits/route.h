/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes: their one spelling, and the table that finds the entry of a request.
 *
 * A route is METHOD and PATH with one space between. Requests and the file's entries are brought into one spelling
 * before they are compared, so that no spelling that a router takes for the same path meets other limits:
 *
 *   - the method in capitals;
 *   - of a request in absolute form, http://host/path, what stands behind the host; no path is /, and one that begins
 *     without a slash (and is not the star of OPTIONS) gets it;
 *   - the path up to '?' or '#';
 *   - %41 is A and %3A is ':', as a path means the same by either: all escapes are undone but those of / ? # % and of
 *     control characters, whose digits are in capitals;
 *   - // is /, and the segments . and .. are resolved (RFC 3986, 5.2.4);
 *   - no slash at the end, but for the path / itself;
 *   - where the file says ignore_case, letters of the path are small.
 *
 * In a path of the file, `*` matches any run of bytes, slashes included; a path that ends in / and * matches the path
 * before that slash as well, since a slash at the end makes no difference. A method is literal or `*`, and HEAD, which
 * is GET without a body (RFC 9110, 9.3.2), is met by what is written for GET.
 *
 * Of several entries that match, the path decides first: one without a star, else the one with the most literal
 * characters, which counts the slash of / and * also where it matches without them. But where the path without these is
 * an entry itself, for this method, that is the one meant. Of equal paths the method decides: the request's own, then
 * GET for HEAD, then the star. The star of a request is a letter like others, which only a star of the file matches.
 */
#ifndef SPILE_LIMITS_ROUTE_H
#define SPILE_LIMITS_ROUTE_H

#include <spile/limits.h>

/* The longest request in one spelling that is compared, method and space included. A longer one is blocked. */
#define SPILE__ROUTE_LEN_MAX 8191

typedef struct spile__route_text {
  size_t len;
  size_t method_len; /* the space stands behind it */
  char bytes[SPILE__ROUTE_LEN_MAX + 1];
} spile__route_text;

typedef enum spile__spelled {
  SPILE__SPELLED = 1,
  SPILE__SPELLED_NO_ROUTE, /* it is not METHOD PATH */
  SPILE__SPELLED_TOO_LONG, /* its one spelling is; what `.`, `..` and escapes leave out does not count */
} spile__spelled;

/*
 * Writes the one spelling of a request. `method` NULL: path is the whole text of a route. Allocates nothing, and takes
 * time in proportion to the length of the text.
 */
spile__spelled spile__route_spell(spile__route_text *out, const char *method, const char *path, bool ignore_case);

/* The methods whose entries a request can meet, the most specific first. */
#define SPILE__METHODS_MAX 3

typedef struct spile__method {
  const char *name; /* not ended by a NUL */
  size_t len;
} spile__method;

size_t spile__methods_of(const spile__route_text *request, spile__method methods[SPILE__METHODS_MAX]);

/* Whether a request matches a route of the file, both in one spelling. */
bool spile__route_text_matches(const char *pattern, const spile__route_text *request);

/* The same for a request as it came. `pattern` is in its one spelling. */
bool spile__route_matches(const spile_limits *limits, const char *pattern, const char *method, const char *path);

/* ---- Globs: routes with a '*' in the path, in their one spelling ---- */

bool spile__is_glob(const char *pattern);

/* How specific a glob is: the literal characters of its path. */
int spile__glob_weight(const char *pattern);

/* How much of a glob is one that it implies: "* /a" of one that goes on with a slash and a star. 0: none. */
size_t spile__glob_implied_len(const char *pattern);

/* Whether two globs are of one method and one path can match both, decided exactly. */
bool spile__globs_meet(const char *a, const char *b);

/* ---- The table ---- */

/* The most stars that the globs of one table may have together: a search marks those it has been to. */
#define SPILE__STARS_MAX 4096

typedef struct spile__table_slot {
  const spile_route *route; /* NULL: empty */
  uint64_t hash;
} spile__table_slot;

/* One character of the tree of globs. Children stand side by side, ascending. */
typedef struct spile__glob_node {
  const spile_route *route; /* of the glob that ends here; NULL: none does */
  int32_t weight;           /* the glob's */
  int32_t star;             /* which '*' this is, counted from 0; -1: a literal character */
  uint32_t children;
  uint16_t child_count;
  uint8_t letter;
  bool implied; /* "/a" of "/a" and a slash and a star, which is no entry itself */
} spile__glob_node;

typedef struct spile__table {
  const uint64_t *hash_key; /* two words, drawn at random: a file cannot choose texts that collide */
  spile__table_slot *slots; /* of the exact entries */
  size_t slot_count;        /* a power of two, at least twice the entries; 0: none */
  spile__glob_node *nodes;  /* the first is the root; NULL: no globs */
  size_t star_count;
} spile__table;

struct spile__arena;

/*
 * Makes the table of some entries, whose texts are in their one spelling, no two alike and with SPILE__STARS_MAX stars
 * at most.
 * @return false: out of memory
 */
bool spile__table_make(spile__table *table, struct spile__arena *arena, const uint64_t *hash_key,
                       const spile_route *const *routes, size_t n);

/* The entry without a star of a request's path, or NULL; of two tables that of more `rank` is the more specific. */
const spile_route *spile__table_exact(const spile__table *table, const spile__route_text *request, int *rank);

/* The glob that a request meets, or NULL; of two tables that of more `rank` is the more specific. */
const spile_route *spile__table_glob(const spile__table *table, const spile__route_text *request, int *rank);

#endif
