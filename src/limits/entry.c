/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entries of "limits" and of its tiers: a route and what it meets.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "limits/reader.h"

static const char word_unlimited[] = "unlimited";
static const char word_blocked[] = "blocked";
static const char word_default[] = "default";

/* ---- The text of a route ---- */

static bool is_method(const char *method, size_t len) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'+-.^_`|~";
  return (len == 1 && *method == '*') || strspn(method, letters) >= len;
}

/* Whether the path of a text that is a route begins as paths of a file do: requests may be written otherwise. */
static bool has_slash_first(const char *text) {
  text += strspn(text, " \t");
  text += strcspn(text, " \t");
  text += strspn(text, " \t");
  return *text == '/' || *text == '*';
}

/* Whether a text has the escape of a star, which no entry can mean: undone it would match any run. */
static bool has_escaped_star(const char *text) {
  const char *at = text;
  while ((at = strchr(at, '%')) != NULL && !(at[1] == '2' && (at[2] == 'A' || at[2] == 'a')))
    at++;
  return at != NULL;
}

/* Whether a text has a percent sign that begins no escape: well-written requests have it as %25. */
static bool has_lone_percent(const char *text) {
  for (const char *at = text; (at = strchr(at, '%')) != NULL; at++) {
    if (!isxdigit((unsigned char)at[1]) || !isxdigit((unsigned char)at[2]))
      return true;
  }
  return false;
}

/* Several stars in a row say no more than one. */
static size_t stars_join(char *text, size_t len) {
  size_t kept = 0;
  for (size_t i = 0; i < len; i++) {
    if (text[i] != '*' || kept == 0 || text[kept - 1] != '*')
      text[kept++] = text[i];
  }
  text[kept] = '\0';
  return kept;
}

/* Whether a text that is no route may be meant for the word of all the others. */
static bool is_default_misspelt(const char *text) {
  static const char *const words[] = {word_default};
  return strchr(text, '/') == NULL && spile__near_name(text, words, 1) != NULL;
}

const char *spile__route_read(spile__reader *reader, const spile__node *node, const char *text) {
  static const char form[] = "write METHOD and PATH, such as \"POST /search\" or \"* /api/*\"";
  static const char too_long[] = "is longer than the 255 bytes a route may have";
  static const char percent[] = "has a percent sign that begins no escape";
  spile__faults *faults = &reader->faults;
  spile__route_text route;
  const char *what = NULL;
  size_t len = 0;
  spile__spelled spelled = spile__route_spell(&route, NULL, text, reader->limits->ignore_case);
  if (spelled == SPILE__SPELLED_NO_ROUTE) {
    what = "is no route";
  } else if (spelled == SPILE__SPELLED_TOO_LONG) {
    what = too_long;
  } else {
    len = stars_join(route.bytes, route.len);
    if (!is_method(route.bytes, route.method_len))
      what = "has no method: one is capitals, or * alone for any";
    else if (!has_slash_first(text))
      what = "has a path that does not begin with a slash";
    else if (strpbrk(text, "?#") != NULL)
      what = text[strcspn(text, "?#")] == '?' ? "has a query, which is no part of a route"
                                              : "has a fragment, which is no part of a route";
    else if (len > SPILE_NAME_LEN_MAX)
      what = too_long;
    else if (has_escaped_star(text))
      what = "has the escape of a star (%2A), which only * matches";
    else if (has_lone_percent(text))
      what = percent;
    else if (!spile__is_utf8(route.bytes, len))
      what = "has escapes that are no UTF-8";
    for (const char *c = route.bytes; *c != '\0'; c++) {
      if ((unsigned char)*c < 0x20 || *c == 0x7f)
        what = "has a control character";
    }
  }
  if (what == NULL)
    return spile__arena_text(&reader->limits->arena, route.bytes, len);
  const char *advice = what == percent ? "write a percent sign as %25" : form;
  if (strcmp(text, word_default) == 0)
    what = "is what all routes without an entry meet, and no route itself";
  else if (spile__is_file_member(text))
    advice = "write it beside \"limits\", and the routes in \"limits\": {...}";
  else if (is_default_misspelt(text))
    advice = "write \"default\", which is the nearest";
  spile__fault_error(faults, node, advice, "%s %s", spile__show(text, strlen(text)).text, what);
  return NULL;
}

/* ---- What a route meets ---- */

/* The limit that "named" has under this name, or NULL: a fault, here or of "named". */
static const spile__named *named_find(spile__reader *reader, const spile__node *node, bool words_too) {
  const char *name = json_string_value(node->value);
  uint32_t index;
  if (spile__index_find(&reader->named_index, name, &index))
    return &reader->named[index];
  if (reader->named_lost)
    return NULL;
  enum { NAMES_MAX = 100 };
  const char *names[NAMES_MAX + 2];
  size_t n = 0;
  if (words_too) {
    names[n++] = word_unlimited;
    names[n++] = word_blocked;
  }
  for (size_t i = 0; i < reader->named_count && i < NAMES_MAX; i++)
    names[n++] = reader->named[i].name;
  /* Where limits are written as text, it would be one. */
  const char *advice = "write a limit as an object, such as {\"capacity\": 10, \"refill\": \"10/s\"}";
  if (strchr(name, '/') == NULL && reader->faults.count < SPILE__FAULTS_MAX)
    advice = spile__advise_name(reader, name, names, n);
  if (reader->faults.count < SPILE__FAULTS_MAX)
    spile__fault_error(&reader->faults, node, advice, "there is no named limit %s",
                       spile__show(name, strlen(name)).text);
  else
    reader->faults.errors++;
  return NULL;
}

static void named_read(spile__reader *reader, const spile__node *node, bool words_too, spile__item *out) {
  const spile__named *named = named_find(reader, node, words_too);
  *out = named != NULL ? named->item : (spile__item){.name = NULL};
}

static bool names_equal(const spile__item *a, const spile__item *b) {
  return a->name != NULL && b->name != NULL && strcmp(a->name, b->name) == 0;
}

bool spile__list_read(spile__reader *reader, const spile__node *node, const char *owner, spile__item *out, size_t *n) {
  size_t order = 0;
  const spile__node *child = spile__node_first(&reader->document, node);
  for (; child != NULL; child = spile__node_next(&reader->document, child), order++) {
    if (order == SPILE_ROUTE_LIMITS_MAX)
      spile__fault_error(&reader->faults, child, "write fewer", "more than %d limits in one list",
                         SPILE_ROUTE_LIMITS_MAX);
    spile__item item;
    if (json_is_string(child->value))
      named_read(reader, child, false, &item);
    else
      spile__limit_read(reader, child, owner, true, &item);
    size_t kept = order < SPILE_ROUTE_LIMITS_MAX ? order : SPILE_ROUTE_LIMITS_MAX;
    size_t i = 0;
    while (i < kept && !names_equal(&out[i], &item))
      i++;
    if (i < kept)
      spile__fault_error(&reader->faults, child, "give each its own name", "this list has %s twice",
                         spile__show(item.name, strlen(item.name)).text);
    if (order < SPILE_ROUTE_LIMITS_MAX)
      out[order] = item;
  }
  *n = order < SPILE_ROUTE_LIMITS_MAX ? order : SPILE_ROUTE_LIMITS_MAX;
  return order <= SPILE_ROUTE_LIMITS_MAX;
}

/* A limit that counts addresses though the file knows its callers better. */
static void warn_of_addresses(spile__reader *reader, const spile__node *node, const spile__item *item) {
  if (!json_is_object(node->value) || !reader->chain_knows_callers || !spile__chain_is_ip(&item->limit.chain))
    return;
  const spile__node *key = spile__node_member(&reader->document, node, "key");
  spile__fault_warning(&reader->faults, key != NULL ? key : node,
                       "write [\"tenant\", \"ip\"], or leave it where nobody is signed in yet",
                       "ip is the only key, so all users behind one address share a bucket");
}

/* A route's own limits, faulty or not. @return how many, or -1: a fault that leaves that open */
static int own_limits_read(spile__reader *reader, const spile__node *node, const char *text,
                           spile__item own[SPILE_ROUTE_LIMITS_MAX]) {
  if (json_is_object(node->value)) {
    spile__limit_read(reader, node, text, false, &own[0]);
    warn_of_addresses(reader, node, &own[0]);
    return 1;
  }
  if (json_is_string(node->value)) {
    named_read(reader, node, true, &own[0]);
    return 1;
  }
  if (!json_is_array(node->value) || json_array_size(node->value) == 0) {
    spile__fault_error(&reader->faults, node,
                       "write a limit {...}, a list of limits, the name of one of \"named\", \"unlimited\" or "
                       "\"blocked\"",
                       "%s is no entry",
                       json_is_array(node->value) ? "an empty list" : spile__show_value(&reader->document, node).text);
    return -1;
  }
  size_t n;
  bool whole = spile__list_read(reader, node, text, own, &n);
  const spile__node *child = spile__node_first(&reader->document, node);
  for (size_t i = 0; i < n; i++) {
    warn_of_addresses(reader, child, &own[i]);
    child = spile__node_next(&reader->document, child);
  }
  return whole ? (int)n : -1;
}

static size_t limits_add(spile__route_limit *to, size_t n, const spile__item *from, size_t count, bool shadow) {
  for (size_t i = 0; i < count; i++) {
    if (from[i].limit.shadow == shadow)
      to[n++] = from[i].limit;
  }
  return n;
}

/* Puts a route together: its own limits and those of every request; those in force first. */
static void route_make(spile__reader *reader, const spile__node *node, spile_route *out, const spile__item *own,
                       size_t own_count) {
  size_t always = out->word == SPILE_ROUTE_BLOCKED ? 0 : reader->always_count;
  size_t n = own_count + always;
  if (n > SPILE_ROUTE_LIMITS_MAX && !reader->always_too_long)
    spile__fault_error(&reader->faults, node, "write fewer", "%zu limits with those of \"always\"; a route may have %d",
                       n, SPILE_ROUTE_LIMITS_MAX);
  for (size_t i = 0; i < own_count; i++) {
    for (size_t j = 0; j < always; j++) {
      if (names_equal(&own[i], &reader->always[j]))
        spile__fault_error(&reader->faults, node, "name it in one of them", "%s is in \"always\" as well",
                           spile__show(own[i].name, strlen(own[i].name)).text);
    }
  }
  /* Of a file with errors nothing is kept. */
  if (reader->faults.errors > 0)
    return;
  spile__route_limit *limits = spile__arena_array(&reader->limits->arena, n, sizeof(*limits));
  if (limits == NULL)
    return;
  for (size_t shadow = 0; shadow < 2; shadow++) {
    out->n = limits_add(limits, out->n, own, own_count, shadow == 1);
    out->n = limits_add(limits, out->n, reader->always, always, shadow == 1);
  }
  out->limits = limits;
}

static void entry_read(spile__reader *reader, const spile__node *node, spile_route *out) {
  const char *word = json_string_value(node->value);
  out->word = SPILE_ROUTE_LIMITED;
  if (word != NULL && strcmp(word, word_unlimited) == 0)
    out->word = SPILE_ROUTE_UNLIMITED;
  if (word != NULL && strcmp(word, word_blocked) == 0)
    out->word = SPILE_ROUTE_BLOCKED;
  spile__item own[SPILE_ROUTE_LIMITS_MAX];
  int n = out->word == SPILE_ROUTE_LIMITED ? own_limits_read(reader, node, out->text, own) : 0;
  if (n >= 0)
    route_make(reader, node, out, own, (size_t)n);
}

/* ---- All of a tier ---- */

/* A glob and where it stands. */
typedef struct glob {
  const char *text;
  const spile__node *node;
  int weight;
  size_t order;
} glob;

static int glob_compare(const void *a, const void *b) {
  const glob *x = a;
  const glob *y = b;
  if (x->weight != y->weight)
    return x->weight < y->weight ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

/*
 * Two globs of equal weight and one method that one path can match would leave it to chance which of them applies. Each
 * is told once, with the first that it meets. SPILE__STARS_MAX bounds the pairs.
 */
static void globs_compare(spile__reader *reader, glob *globs, size_t n) {
  qsort(globs, n, sizeof(*globs), glob_compare);
  for (size_t i = 1; i < n; i++) {
    size_t j = i;
    while (j > 0 && globs[j - 1].weight == globs[i].weight)
      j--;
    while (j < i && !spile__globs_meet(globs[j].text, globs[i].text))
      j++;
    if (j < i)
      spile__fault_error(&reader->faults, globs[i].node, "make one of them longer, or write the routes in question out",
                         "this and %s (line %d) can match one request, and both have %d literal characters",
                         spile__show(globs[j].text, strlen(globs[j].text)).text,
                         spile__fault_line(&reader->faults, globs[j].node), globs[i].weight);
  }
}

/* What the entries of a tier are compared by while they are read. */
typedef struct tier_reading {
  spile__index index; /* of texts: which child of the tier's node */
  const spile__node **nodes;
  glob *globs;
  size_t glob_count;
  size_t stars;
  bool default_misspelt; /* one that is no route may be meant for it */
} tier_reading;

/* Notes a route and compares it with those before. @return false: a fault */
static bool route_note(spile__reader *reader, tier_reading *reading, const spile__node *node, const char *text,
                       size_t order) {
  uint32_t index = (uint32_t)order;
  reading->nodes[order] = node;
  if (!spile__index_add(&reading->index, text, &index)) {
    const spile__node *first = reading->nodes[index];
    spile__fault_error(&reader->faults, node, "write one of them", "this means the same as %s (line %d): %s",
                       spile__show(first->name, strlen(first->name)).text, spile__fault_line(&reader->faults, first),
                       spile__show(text, strlen(text)).text);
    return false;
  }
  for (const char *c = strchr(text, ' '); *c != '\0'; c++)
    reading->stars += *c == '*' ? 1 : 0;
  if (reading->stars > SPILE__STARS_MAX)
    return true; /* told once, when all are read */
  if (spile__is_glob(text))
    reading->globs[reading->glob_count++] = (glob){text, node, spile__glob_weight(text), order};
  return true;
}

static void tier_entries_read(spile__reader *reader, const spile__node *node, spile__tier *tier,
                              tier_reading *reading) {
  spile_route *fallback = NULL;
  const spile__node *child = spile__node_first(&reader->document, node);
  for (size_t order = 0; child != NULL; child = spile__node_next(&reader->document, child), order++) {
    spile_route *route = &tier->routes[tier->route_count];
    bool is_default = strcmp(child->name, word_default) == 0;
    route->text = is_default ? word_default : spile__route_read(reader, child, child->name);
    if (is_default)
      fallback = route;
    /* An entry whose route is wrong is read all the same, for the faults in it. */
    if (route->text == NULL && is_default_misspelt(child->name))
      reading->default_misspelt = true;
    bool good = route->text != NULL && (is_default || route_note(reader, reading, child, route->text, order));
    spile_route unused = {.text = word_default};
    entry_read(reader, child, good ? route : &unused);
    tier->route_count += good ? 1 : 0;
    if (reader->limits->arena.failed || reader->scratch.failed)
      return;
  }
  tier->fallback = fallback;
}

void spile__tier_read(spile__reader *reader, const spile__node *node, spile__tier *tier, bool needs_default) {
  if (!json_is_object(node->value)) {
    spile__fault_error(&reader->faults, node, "write an object of routes, {\"default\": {...}}", "%s is no object",
                       spile__show_value(&reader->document, node).text);
    return;
  }
  size_t n = json_object_size(node->value);
  tier_reading reading = {.nodes = spile__arena_array(&reader->scratch, n, sizeof(spile__node *)),
                          .globs = spile__arena_array(&reader->scratch, n, sizeof(glob))};
  tier->routes = spile__arena_array(&reader->limits->arena, n, sizeof(*tier->routes));
  if (!spile__index_make(&reading.index, reader, n) || reading.nodes == NULL || reading.globs == NULL ||
      tier->routes == NULL)
    return;
  tier_entries_read(reader, node, tier, &reading);
  if (reading.stars > SPILE__STARS_MAX)
    spile__fault_error(&reader->faults, node, "write fewer globs, or shorter ones",
                       "the routes have %zu stars, not %d at most", reading.stars, SPILE__STARS_MAX);
  else
    globs_compare(reader, reading.globs, reading.glob_count);
  if (needs_default && tier->fallback == NULL && !reading.default_misspelt)
    spile__fault_error(
        &reader->faults, node,
        "write \"default\": {\"capacity\": 60, \"refill\": \"1/s\"}, or \"default\": \"unlimited\" if that is meant",
        "there is no \"default\", which routes that are not listed meet");
}

bool spile__tier_finish(spile__reader *reader, spile__tier *tier) {
  const spile_route **routes = spile__arena_array(&reader->scratch, tier->route_count, sizeof(*routes));
  if (routes == NULL)
    return false;
  size_t n = 0;
  for (size_t i = 0; i < tier->route_count; i++) {
    if (&tier->routes[i] != tier->fallback)
      routes[n++] = &tier->routes[i];
  }
  return spile__table_make(&tier->table, &reader->limits->arena, reader->limits->hash_key, routes, n);
}
