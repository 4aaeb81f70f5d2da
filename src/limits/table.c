/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the entry of a request. Exact entries lie in a hash table. Globs form one tree of their characters: a search
 * follows the request down the tree for each method whose entries it can meet, and at a star goes on from every later
 * place of the request. Two ways never lead to the same star but for a later place, which can match nothing that the
 * earlier one cannot; so each star is gone into once, and the time grows with the stars whose beginnings match, not
 * with the number of globs.
 */
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/siphash.h"
#include "limits/limits.h"

/* ---- Making ---- */

/*
 * Of method and path, each hashed for itself so that a path is hashed once for all methods. Nobody who does not know
 * the key can choose parts whose sums collide.
 */
static uint64_t slot_hash(const spile__table *table, spile__method method, uint64_t path_hash) {
  uint64_t hash = spile__siphash64(table->hash_key, method.name, method.len);
  return path_hash + (hash << 1 | hash >> 63);
}

/* A glob to be put into the tree; what it implies ("/a" of "/a" and "/" and a star) is one as well. */
typedef struct leaf {
  const char *text;
  size_t len;
  int32_t weight;
  bool implied;
  const spile_route *route;
} leaf;

static bool slots_make(spile__table *table, spile__arena *arena, const spile_route *const *routes, size_t n) {
  size_t exact = 0;
  for (size_t i = 0; i < n; i++)
    exact += spile__is_glob(routes[i]->text) ? 0 : 1;
  if (exact == 0)
    return true;
  table->slot_count = 2;
  while (table->slot_count < exact * 2)
    table->slot_count *= 2;
  table->slots = spile__arena_array(arena, table->slot_count, sizeof(*table->slots));
  if (table->slots == NULL)
    return false;
  for (size_t i = 0; i < n; i++) {
    if (spile__is_glob(routes[i]->text))
      continue;
    const char *text = routes[i]->text;
    const char *path = strchr(text, ' ') + 1;
    spile__method method = {text, (size_t)(path - text) - 1};
    uint64_t hash = slot_hash(table, method, spile__siphash64(table->hash_key, path, strlen(path)));
    size_t at = hash & (table->slot_count - 1);
    while (table->slots[at].route != NULL)
      at = (at + 1) & (table->slot_count - 1);
    table->slots[at] = (spile__table_slot){routes[i], hash};
  }
  return true;
}

/* By text, so that those of one beginning stand together; of one text the entry itself first. */
static int leaf_compare(const void *a, const void *b) {
  const leaf *x = a;
  const leaf *y = b;
  int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
  if (order != 0)
    return order;
  if (x->len != y->len)
    return x->len < y->len ? -1 : 1;
  return (int)x->implied - (int)y->implied;
}

/* Fills `leaves`, which has room for two a route; sorted, no text twice. */
static size_t leaves_make(leaf *leaves, const spile_route *const *routes, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    const char *text = routes[i]->text;
    if (!spile__is_glob(text))
      continue;
    size_t len = strlen(text);
    int32_t weight = spile__glob_weight(text);
    leaves[count++] = (leaf){text, len, weight, false, routes[i]};
    size_t implied = spile__glob_implied_len(text);
    if (implied > 0)
      leaves[count++] = (leaf){text, implied, weight, true, routes[i]};
  }
  qsort(leaves, count, sizeof(*leaves), leaf_compare);
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    bool again = kept > 0 && leaves[kept - 1].len == leaves[i].len &&
                 memcmp(leaves[kept - 1].text, leaves[i].text, leaves[i].len) == 0;
    if (!again)
      leaves[kept++] = leaves[i];
  }
  return kept;
}

/* A node whose children are not yet made: the leaves that pass through it, and how many characters led there. */
typedef struct branch {
  size_t from;
  size_t to;
  size_t depth;
} branch;

/*
 * Breadth first, so that the children of a node stand side by side. A star that stands for any method is a letter like
 * others, since it is compared on its own.
 */
static void nodes_make(spile__table *table, const leaf *leaves, size_t leaf_count, branch *branches) {
  size_t count = 1;
  table->nodes[0] = (spile__glob_node){.star = -1};
  branches[0] = (branch){0, leaf_count, 0};
  for (size_t i = 0; i < count; i++) {
    spile__glob_node *node = &table->nodes[i];
    branch b = branches[i];
    if (leaves[b.from].len == b.depth) {
      node->route = leaves[b.from].route;
      node->weight = leaves[b.from].weight;
      node->implied = leaves[b.from].implied;
      b.from++;
    }
    node->children = (uint32_t)count;
    while (b.from < b.to) {
      char letter = leaves[b.from].text[b.depth];
      size_t to = b.from;
      while (to < b.to && leaves[to].text[b.depth] == letter)
        to++;
      bool star = letter == '*' && b.depth > 0;
      table->nodes[count] =
          (spile__glob_node){.letter = (uint8_t)letter, .star = star ? (int32_t)table->star_count++ : -1};
      branches[count++] = (branch){b.from, to, b.depth + 1};
      node->child_count++;
      b.from = to;
    }
  }
}

static bool tree_make(spile__table *table, spile__arena *arena, const spile_route *const *routes, size_t n) {
  size_t globs = 0;
  size_t letters = 1;
  for (size_t i = 0; i < n; i++) {
    bool glob = spile__is_glob(routes[i]->text);
    globs += glob ? 1 : 0;
    letters += glob ? strlen(routes[i]->text) : 0;
  }
  if (globs == 0)
    return true;
  leaf *leaves = calloc(globs * 2, sizeof(*leaves));
  branch *branches = calloc(letters, sizeof(*branches));
  table->nodes = spile__arena_array(arena, letters, sizeof(*table->nodes));
  bool made = leaves != NULL && branches != NULL && table->nodes != NULL;
  if (made) {
    size_t count = leaves_make(leaves, routes, n);
    nodes_make(table, leaves, count, branches);
    SPILE__ASSERT(table->star_count <= SPILE__STARS_MAX);
  }
  free(leaves);
  free(branches);
  return made;
}

bool spile__table_make(spile__table *table, spile__arena *arena, const uint64_t *hash_key,
                       const spile_route *const *routes, size_t n) {
  *table = (spile__table){.hash_key = hash_key};
  return slots_make(table, arena, routes, n) && tree_make(table, arena, routes, n);
}

/* ---- Finding ---- */

static const spile_route *slot_find(const spile__table *table, spile__method method, const char *path,
                                    uint64_t path_hash) {
  uint64_t hash = slot_hash(table, method, path_hash);
  size_t at = hash & (table->slot_count - 1);
  for (; table->slots[at].route != NULL; at = (at + 1) & (table->slot_count - 1)) {
    const char *text = table->slots[at].route->text;
    if (table->slots[at].hash == hash && strncmp(text, method.name, method.len) == 0 && text[method.len] == ' ' &&
        strcmp(text + method.len + 1, path) == 0)
      return table->slots[at].route;
  }
  return NULL;
}

const spile_route *spile__table_exact(const spile__table *table, const spile__route_text *request, int *rank) {
  *rank = -1;
  if (table->slot_count == 0)
    return NULL;
  const char *path = request->bytes + request->method_len + 1;
  uint64_t path_hash = spile__siphash64(table->hash_key, path, request->len - request->method_len - 1);
  spile__method methods[SPILE__METHODS_MAX];
  size_t n = spile__methods_of(request, methods);
  for (size_t i = 0; i < n; i++) {
    const spile_route *route = slot_find(table, methods[i], path, path_hash);
    if (route != NULL) {
      *rank = SPILE__METHODS_MAX - (int)i;
      return route;
    }
  }
  return NULL;
}

typedef struct search {
  const spile__table *table;
  const char *text;
  size_t len;
  bool is_root; /* the path is "/" */
  spile__method methods[SPILE__METHODS_MAX];
  size_t method_count;
  int method_rank; /* of the method whose entries are searched: 1 to SPILE__METHODS_MAX */
  const spile_route *best;
  int rank;
  uint64_t seen[SPILE__STARS_MAX / 64]; /* stars that were gone into, one bit each */
} search;

/* The child of a letter, by halving. */
static const spile__glob_node *search_child(const search *s, const spile__glob_node *node, uint8_t letter) {
  size_t from = node->children;
  size_t to = from + node->child_count;
  while (from < to) {
    size_t middle = from + (to - from) / 2;
    if (s->table->nodes[middle].letter < letter)
      from = middle + 1;
    else
      to = middle;
  }
  bool found = from < (size_t)node->children + node->child_count && s->table->nodes[from].letter == letter;
  return found ? &s->table->nodes[from] : NULL;
}

/* The node that the characters lead to, a star being the star of a glob, or NULL. */
static const spile__glob_node *search_walk(const search *s, const spile__glob_node *node, const char *text,
                                           size_t len) {
  for (size_t i = 0; i < len && node != NULL; i++)
    node = search_child(s, node, (uint8_t)text[i]);
  return node;
}

/* Whether the path that a glob implies is an entry itself, for one of the request's methods. */
static bool search_has_entry(const search *s, const spile_route *implies) {
  const char *path = strchr(implies->text, ' ');
  size_t len = strlen(path) - 2;
  for (size_t i = 0; i < s->method_count; i++) {
    const spile__glob_node *node = search_walk(s, &s->table->nodes[0], s->methods[i].name, s->methods[i].len);
    node = node != NULL ? search_walk(s, node, path, len) : NULL;
    if (node != NULL && node->route != NULL && !node->implied)
      return true;
  }
  return false;
}

static void search_offer(search *s, const spile__glob_node *node) {
  int rank = node->weight * (SPILE__METHODS_MAX + 1) + s->method_rank;
  if (node->route == NULL || rank <= s->rank)
    return;
  /* "/" has no slash at its end besides, and meets nothing that is only implied. */
  if (node->implied && (s->is_root || search_has_entry(s, node->route)))
    return;
  s->best = node->route;
  s->rank = rank;
}

static void search_star(search *s, const spile__glob_node *star, size_t at);

/* Follows the request from `at` down the literal characters below a node. */
static void search_literal(search *s, const spile__glob_node *node, size_t at) {
  for (;;) {
    if (at == s->len)
      search_offer(s, node);
    if (node->child_count == 0)
      return;
    const spile__glob_node *star = search_child(s, node, '*');
    if (star != NULL && star->star >= 0)
      search_star(s, star, at);
    if (at == s->len || s->text[at] == '*')
      return;
    node = search_child(s, node, (uint8_t)s->text[at++]);
    if (node == NULL)
      return;
  }
}

/* As deep as a glob has stars, which its length bounds. */
static void search_star(search *s, const spile__glob_node *star, size_t at) {
  uint64_t bit = UINT64_C(1) << (star->star % 64);
  uint64_t *seen = &s->seen[star->star / 64];
  if (*seen & bit)
    return;
  *seen |= bit;
  search_offer(s, star);
  for (; at <= s->len && star->child_count > 0; at++)
    search_literal(s, star, at);
}

const spile_route *spile__table_glob(const spile__table *table, const spile__route_text *request, int *rank) {
  *rank = -1;
  if (table->nodes == NULL)
    return NULL;
  search s;
  s.table = table;
  s.text = request->bytes;
  s.len = request->len;
  s.is_root = strcmp(request->bytes + request->method_len, " /") == 0;
  s.method_count = spile__methods_of(request, s.methods);
  s.best = NULL;
  s.rank = -1;
  memset(s.seen, 0, (table->star_count + 63) / 64 * sizeof(s.seen[0]));
  for (size_t i = 0; i < s.method_count; i++) {
    const spile__glob_node *node = search_walk(&s, &table->nodes[0], s.methods[i].name, s.methods[i].len);
    s.method_rank = SPILE__METHODS_MAX - (int)i;
    if (node != NULL)
      search_literal(&s, node, request->method_len);
  }
  *rank = s.rank;
  return s.best;
}
