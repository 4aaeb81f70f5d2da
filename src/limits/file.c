/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a limits file: the document as a whole, and what it says for all its limits.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/text.h"
#include "limiter/env.h"
#include "limiter/limiter.h"
#include "limits/reader.h"

/* ---- What the file says for all ---- */

enum {
  TOP_KEY_PREFIX,
  TOP_ON_STORE_ERROR,
  TOP_TIMEOUT_MS,
  TOP_KEY,
  TOP_IGNORE_CASE,
  TOP_NAMED,
  TOP_ALWAYS,
  TOP_LIMITS,
  TOP_TIERS,
  TOP_SKIP,
  TOP_COUNT,
};

static const char *const top_names[TOP_COUNT] = {
    [TOP_KEY_PREFIX] = "key_prefix",
    [TOP_ON_STORE_ERROR] = "on_store_error",
    [TOP_TIMEOUT_MS] = "timeout_ms",
    [TOP_KEY] = "key",
    [TOP_IGNORE_CASE] = "ignore_case",
    [TOP_NAMED] = "named",
    [TOP_ALWAYS] = "always",
    [TOP_LIMITS] = "limits",
    [TOP_TIERS] = "tiers",
    [TOP_SKIP] = "skip",
};

static void prefix_read(spile__reader *reader, const spile__node *node) {
  const char *prefix = json_string_value(node->value);
  size_t len = json_string_length(node->value);
  if (prefix == NULL || !spile__key_prefix_valid(prefix, len)) {
    spile__fault_error(&reader->faults, node, "write " SPILE__KEY_PREFIX_FORM, "%s is no prefix of keys",
                       spile__show_value(&reader->document, node).text);
    return;
  }
  reader->limits->key_prefix = spile__arena_text(&reader->limits->arena, prefix, len);
  reader->limits->key_prefix_place = spile__place_of(reader, node);
}

static void store_error_read(spile__reader *reader, const spile__node *node) {
  reader->on_store_error = SPILE_ON_STORE_ERROR_OPEN;
  /* One that is misspelt is an error already. */
  if (node == NULL && reader->faults.errors > 0)
    return;
  if (node == NULL) {
    bool table = json_object_get(reader->document.json, "limits") == NULL;
    spile__fault_warning(&reader->faults, reader->document.nodes,
                         table ? "write {\"on_store_error\": \"open\", \"limits\": {...}} and the routes in \"limits\""
                               : "write \"on_store_error\": \"open\", or \"closed\" or \"fail\"",
                         "there is no on_store_error, so requests pass while the store cannot answer");
    return;
  }
  int word = spile__word_read(reader, node, spile__on_store_error_words);
  if (word >= 0)
    reader->on_store_error = (spile_on_store_error)(word + 1);
}

/* The chain of limits without a key: the caller's company, else the person, else the address. */
static void chain_default(spile__reader *reader) {
  static const spile__key_part parts[] = {
      {.kind = SPILE__KEY_TENANT}, {.kind = SPILE__KEY_USER}, {.kind = SPILE__KEY_IP}};
  reader->chain = (spile__key_chain){parts, sizeof(parts) / sizeof(parts[0])};
}

static void all_read(spile__reader *reader, const spile__node *const *top) {
  chain_default(reader);
  store_error_read(reader, top[TOP_ON_STORE_ERROR]);
  if (top[TOP_KEY_PREFIX] != NULL)
    prefix_read(reader, top[TOP_KEY_PREFIX]);
  if (top[TOP_TIMEOUT_MS] != NULL)
    (void)spile__integer_read(reader, top[TOP_TIMEOUT_MS], "milliseconds", 1, SPILE__TIMEOUT_MAX_MS,
                              &reader->timeout_ms);
  bool key_known = top[TOP_KEY] == NULL || spile__chain_read(reader, top[TOP_KEY], &reader->chain);
  if (top[TOP_IGNORE_CASE] != NULL)
    (void)spile__bool_read(reader, top[TOP_IGNORE_CASE], &reader->limits->ignore_case);
  reader->chain_knows_callers = key_known && spile__chain_knows_callers(&reader->chain);
  if (top[TOP_TIERS] != NULL && spile__chain_is_ip(&reader->chain))
    spile__fault_warning(&reader->faults, top[TOP_KEY], "write [\"tenant\", \"user\", \"ip\"]",
                         "ip is the only key, though the file has tiers and so knows its callers");
}

/* ---- Its parts ---- */

static void named_read(spile__reader *reader, const spile__node *node) {
  if (!json_is_object(node->value)) {
    spile__fault_error(&reader->faults, node, "write an object, {\"login\": {...}}", "%s is no object",
                       spile__show_value(&reader->document, node).text);
    reader->named_lost = true;
    return;
  }
  size_t n = json_object_size(node->value);
  reader->named = spile__arena_array(&reader->scratch, n, sizeof(*reader->named));
  if (reader->named == NULL || !spile__index_make(&reader->named_index, reader, n))
    return;
  const spile__node *child = spile__node_first(&reader->document, node);
  for (; child != NULL; child = spile__node_next(&reader->document, child)) {
    size_t len = strlen(child->name);
    if (strcmp(child->name, "unlimited") == 0 || strcmp(child->name, "blocked") == 0 || len == 0 ||
        len > SPILE_NAME_LEN_MAX - 1)
      spile__fault_error(&reader->faults, child, "write another name of 1 to 254 bytes", "%s cannot be a name",
                         spile__show(child->name, len).text);
    len = len < SPILE_NAME_LEN_MAX ? len : SPILE_NAME_LEN_MAX - 1;
    char *owner = spile__arena_take(&reader->scratch, len + 2);
    if (owner == NULL)
      return;
    owner[0] = '@';
    memcpy(owner + 1, child->name, len);
    spile__named *named = &reader->named[reader->named_count];
    named->name = child->name;
    spile__limit_read(reader, child, owner, false, &named->item);
    uint32_t index = (uint32_t)reader->named_count++;
    (void)spile__index_add(&reader->named_index, child->name, &index);
  }
}

static void always_read(spile__reader *reader, const spile__node *node) {
  if (!json_is_array(node->value)) {
    spile__fault_error(&reader->faults, node, "write a list of limits, [{\"name\": \"global\", ...}]", "%s is no list",
                       spile__show_value(&reader->document, node).text);
    return;
  }
  reader->always = spile__arena_array(&reader->scratch, SPILE_ROUTE_LIMITS_MAX, sizeof(*reader->always));
  if (reader->always == NULL)
    return;
  reader->always_too_long = !spile__list_read(reader, node, "always", reader->always, &reader->always_count);
  for (size_t i = 0; i < reader->always_count; i++)
    reader->always[i].limit.always = true;
}

static int tier_compare(const void *a, const void *b) {
  return strcmp(((const spile__tier *)a)->name, ((const spile__tier *)b)->name);
}

static void tiers_read(spile__reader *reader, const spile__node *node) {
  if (!json_is_object(node->value)) {
    spile__fault_error(&reader->faults, node, "write an object, {\"pro\": {\"default\": {...}}}", "%s is no object",
                       spile__show_value(&reader->document, node).text);
    return;
  }
  spile_limits *limits = reader->limits;
  size_t n = json_object_size(node->value);
  limits->tiers = spile__arena_array(&limits->arena, n, sizeof(*limits->tiers));
  if (limits->tiers == NULL)
    return;
  const spile__node *child = spile__node_first(&reader->document, node);
  for (; child != NULL; child = spile__node_next(&reader->document, child)) {
    size_t len = strlen(child->name);
    if (len < 1 || len > SPILE_NAME_LEN_MAX)
      spile__fault_error(&reader->faults, child, "write a name of 1 to 255 bytes", "%s cannot be the name of a tier",
                         spile__show(child->name, len).text);
    spile__tier *tier = &limits->tiers[limits->tier_count++];
    tier->name = spile__arena_text(&limits->arena, child->name, len);
    if (tier->name == NULL)
      return;
    spile__tier_read(reader, child, tier, false);
  }
  qsort(limits->tiers, limits->tier_count, sizeof(*limits->tiers), tier_compare);
}

/* One entry of "skip". */
static void skip_read(spile__reader *reader, const spile__node *node, spile__skip *out) {
  enum { SKIP_ROUTE, SKIP_IP, SKIP_HEADER, SKIP_VALUE, SKIP_COUNT };
  static const char *const names[SKIP_COUNT] = {"route", "ip", "header", "value"};
  const spile__node *members[SKIP_COUNT];
  spile__arena *arena = &reader->limits->arena;
  size_t errors = reader->faults.errors;
  if (!spile__members_read(reader, node, names, SKIP_COUNT, members))
    return;
  bool misspelt[SKIP_COUNT] = {false};
  if (errors != reader->faults.errors)
    spile__members_misspelt(reader, node, names, SKIP_COUNT, misspelt);
  bool may_match = misspelt[SKIP_ROUTE] || misspelt[SKIP_IP] || misspelt[SKIP_HEADER];
  if (members[SKIP_ROUTE] == NULL && members[SKIP_IP] == NULL && members[SKIP_HEADER] == NULL && !may_match)
    spile__fault_error(&reader->faults, node, "write \"route\", \"ip\" or \"header\"",
                       "this matches nothing, or everything");
  if (members[SKIP_VALUE] != NULL && members[SKIP_HEADER] == NULL && !misspelt[SKIP_HEADER])
    spile__fault_error(&reader->faults, members[SKIP_VALUE], "write \"header\" as well", "of which header is this?");
  const char *route = NULL;
  if (members[SKIP_ROUTE] != NULL && (route = spile__string_read(reader, members[SKIP_ROUTE], 1000)) != NULL)
    out->route = spile__route_read(reader, members[SKIP_ROUTE], route);
  if (members[SKIP_IP] != NULL) {
    const char *ip = json_string_value(members[SKIP_IP]->value);
    out->has_network = ip != NULL && spile__network_parse(&out->network, ip, strlen(ip));
    if (!out->has_network)
      spile__fault_error(&reader->faults, members[SKIP_IP],
                         "write an address, or a network without bits behind its prefix, such as \"10.0.0.0/8\"",
                         "%s is no network", spile__show_value(&reader->document, members[SKIP_IP]).text);
  }
  const char *header = NULL;
  if (members[SKIP_HEADER] != NULL && (header = spile__string_read(reader, members[SKIP_HEADER], 100)) != NULL) {
    out->header = spile__arena_text(arena, header, strlen(header));
    if (!spile__is_header_name(header))
      spile__fault_error(&reader->faults, members[SKIP_HEADER], "write its name alone, such as \"X-Probe\"",
                         "%s is no name that a header can have", spile__show(header, strlen(header)).text);
  }
  const char *value = NULL;
  if (members[SKIP_VALUE] != NULL && (value = spile__string_read(reader, members[SKIP_VALUE], 1000)) != NULL) {
    out->value = spile__arena_text(arena, value, strlen(value));
    size_t len = strlen(value);
    if (len > 0 && (strchr(" \t", value[0]) != NULL || strchr(" \t", value[len - 1]) != NULL))
      spile__fault_error(&reader->faults, members[SKIP_VALUE], "write it without them",
                         "%s begins or ends with blanks, which the value of a header never has",
                         spile__show(value, len).text);
  }
}

static void skips_read(spile__reader *reader, const spile__node *node) {
  if (!json_is_array(node->value)) {
    spile__fault_error(&reader->faults, node, "write a list, [{\"route\": \"GET /health\"}]", "%s is no list",
                       spile__show_value(&reader->document, node).text);
    return;
  }
  size_t n = json_array_size(node->value);
  spile__skip *skips = spile__arena_array(&reader->limits->arena, n, sizeof(*skips));
  if (skips == NULL)
    return;
  const spile__node *child = spile__node_first(&reader->document, node);
  for (size_t i = 0; child != NULL; child = spile__node_next(&reader->document, child))
    skip_read(reader, child, &skips[i++]);
  reader->limits->skips = skips;
  reader->limits->skip_count = n;
}

/* ---- The whole ---- */

bool spile__is_file_member(const char *name) {
  return spile__name_index(top_names, TOP_COUNT, name) < TOP_COUNT;
}

/* Whether a name is METHOD PATH, or nearer to "default" than to what a file has. */
static bool is_like_entry(const char *name) {
  const char *blank = strchr(name, ' ');
  if (blank != NULL && (blank[1] == '/' || blank[1] == '*'))
    return true;
  const char *names[TOP_COUNT + 1] = {"default"};
  memcpy(names + 1, top_names, sizeof(top_names));
  return spile__near_name(name, names, TOP_COUNT + 1) == names[0];
}

/*
 * A document that is a table of routes itself, as some keep it in their source: what "limits" would hold. It is one
 * also where "default" is missing or misspelt, for that is what is to be told of it: none of its members is a file's,
 * and the first of them have names as a table has.
 */
static bool is_table(const spile__document *document) {
  enum { MEMBERS_LOOKED_AT = 100 };
  if (json_object_get(document->json, "limits") != NULL)
    return false;
  if (json_object_get(document->json, "default") != NULL)
    return true;
  for (size_t i = 0; i < TOP_COUNT; i++) {
    if (json_object_get(document->json, top_names[i]) != NULL)
      return false;
  }
  const spile__node *child = spile__node_first(document, document->nodes);
  for (int i = 0; child != NULL && i < MEMBERS_LOOKED_AT; i++, child = spile__node_next(document, child)) {
    if (is_like_entry(child->name))
      return true;
  }
  return false;
}

static void document_load(spile__reader *reader) {
  const spile__node *root = reader->document.nodes;
  const spile__node *top[TOP_COUNT] = {NULL};
  if (json_is_object(root->value) && is_table(&reader->document))
    top[TOP_LIMITS] = root;
  else if (!spile__members_read(reader, root, top_names, TOP_COUNT, top))
    return;
  bool misspelt[TOP_COUNT] = {false};
  if (reader->faults.errors > 0)
    spile__members_misspelt(reader, root, top_names, TOP_COUNT, misspelt);
  reader->named_lost = top[TOP_NAMED] == NULL && misspelt[TOP_NAMED];
  all_read(reader, top);
  if (top[TOP_NAMED] != NULL)
    named_read(reader, top[TOP_NAMED]);
  if (top[TOP_ALWAYS] != NULL)
    always_read(reader, top[TOP_ALWAYS]);
  if (top[TOP_LIMITS] != NULL)
    spile__tier_read(reader, top[TOP_LIMITS], &reader->limits->base, true);
  else if (!misspelt[TOP_LIMITS])
    spile__fault_error(&reader->faults, root, "write \"limits\": {\"default\": {...}}", "there is no \"limits\"");
  if (top[TOP_TIERS] != NULL)
    tiers_read(reader, top[TOP_TIERS]);
  if (top[TOP_SKIP] != NULL)
    skips_read(reader, top[TOP_SKIP]);
}

/* The tables, which only a file without faults gets. @return false: out of memory */
static bool tables_make(spile__reader *reader) {
  spile_limits *limits = reader->limits;
  bool made = spile__tier_finish(reader, &limits->base);
  for (size_t i = 0; i < limits->tier_count && made; i++)
    made = spile__tier_finish(reader, &limits->tiers[i]);
  return made;
}

static spile_limits *limits_new(void) {
  spile_limits *limits = calloc(1, sizeof(*limits));
  if (limits == NULL)
    return NULL;
  atomic_init(&limits->owners, 1);
  /* Without random numbers a file could choose texts that collide; it would load slowly, and nothing else. */
  spile_env env;
  spile__env_init(&env);
  (void)env.random(env.user, limits->hash_key, sizeof(limits->hash_key));
  return limits;
}

/* Finds the first limit of a tier that may be by API key. @return whether there is one */
static bool by_api_key_find(spile__reader *reader, const spile__tier *tier) {
  for (size_t i = 0; i < tier->route_count; i++) {
    const spile_route *route = &tier->routes[i];
    for (size_t j = 0; j < route->n; j++) {
      const spile__key_chain *chain = &route->limits[j].chain;
      for (size_t k = 0; k < chain->n; k++) {
        if (chain->parts[k].kind != SPILE__KEY_API_KEY)
          continue;
        reader->limits->by_api_key = &route->limits[j];
        reader->limits->by_api_key_place = spile__place_of(reader, &reader->document.nodes[chain->parts[k].node]);
        return true;
      }
    }
  }
  return false;
}

/* The rest, of a file without faults. @return false: out of memory */
static bool limits_finish(spile__reader *reader) {
  spile_limits *limits = reader->limits;
  if (!tables_make(reader))
    return false;
  bool found = by_api_key_find(reader, &limits->base);
  for (size_t i = 0; i < limits->tier_count && !found; i++)
    found = by_api_key_find(reader, &limits->tiers[i]);
  return !limits->arena.failed;
}

/* Reads a text that may be too large or no JSON, which stand alone. @return SPILE_OK; SPILE_ECONFIG; SPILE_ENOMEM */
static int text_load(spile__reader *reader, const char *text, size_t len) {
  spile__document_fault fault = {.path = "", .advice = "write fewer entries, or globs"};
  int result = SPILE_ECONFIG;
  if (len > SPILE__DOCUMENT_LEN_MAX)
    (void)snprintf(fault.what, sizeof(fault.what), "the file is larger than the %u MiB it may have",
                   SPILE__DOCUMENT_LEN_MAX >> 20);
  else
    result = spile__document_read(&reader->document, text, len, &fault);
  if (result == SPILE_ECONFIG)
    spile__fault_at(&reader->faults, &fault);
  if (result != SPILE_OK)
    return result;
  reader->faults.document = &reader->document;
  document_load(reader);
  if (reader->document.has_too_large && reader->faults.errors == 0) {
    fault = (spile__document_fault){.at = reader->document.too_large_at,
                                    .what = "this number is too large",
                                    .advice = "write one of 15 digits at most"};
    spile__fault_at(&reader->faults, &fault);
  }
  bool failed = reader->limits->arena.failed || reader->scratch.failed || reader->faults.arena.failed;
  if (!failed && reader->faults.errors == 0)
    failed = !limits_finish(reader);
  if (failed)
    return SPILE_ENOMEM;
  return reader->faults.errors > 0 ? SPILE_ECONFIG : SPILE_OK;
}

int spile_limits_parse(spile_limits **out, const char *text, size_t len, const char *file, spile_fault_visitor *visit,
                       void *user, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  if (text == NULL || file == NULL)
    return spile__fail(error, SPILE_EINVAL, "the text or the name of the limits file is NULL", NULL);
  spile__reader *reader = calloc(1, sizeof(*reader));
  spile_limits *limits = limits_new();
  if (reader == NULL || limits == NULL) {
    free(reader);
    free(limits);
    return spile__fail(error, SPILE_ENOMEM, "out of memory for a limits file", NULL);
  }
  reader->limits = limits;
  reader->faults.file = file;
  limits->file = spile__arena_text(&limits->arena, file, strlen(file));
  int result = text_load(reader, text, len);
  if (result == SPILE_ENOMEM)
    (void)spile__fail(error, SPILE_ENOMEM, "out of memory for a limits file", NULL);
  else
    spile__faults_tell(&reader->faults, text, visit, user, error);
  spile__faults_finish(&reader->faults);
  spile__arena_finish(&reader->scratch);
  spile__document_finish(&reader->document);
  free(reader);
  if (result == SPILE_OK)
    *out = limits;
  else
    spile__limits_free(limits);
  return result;
}

/* ---- Files ---- */

/* All of a file, and one byte more than may be where it is too large. @return an errno; 0 with `*out`, to be freed */
static int file_read(const char *path, char **out, size_t *len) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return errno;
  size_t room = 65536;
  size_t have = 0;
  char *text = malloc(room);
  int failure = text == NULL ? ENOMEM : 0;
  while (failure == 0 && have <= SPILE__DOCUMENT_LEN_MAX) {
    if (have == room) {
      char *more = realloc(text, room * 2);
      if (more == NULL) {
        failure = ENOMEM;
        break;
      }
      text = more;
      room *= 2;
    }
    ssize_t got = read(fd, text + have, room - have);
    if (got == 0)
      break;
    if (got > 0)
      have += (size_t)got;
    else if (errno != EINTR)
      failure = errno;
  }
  (void)close(fd);
  if (failure != 0) {
    free(text);
    return failure;
  }
  *out = text;
  *len = have;
  return 0;
}

int spile_limits_load(spile_limits **out, const char *path, spile_fault_visitor *visit, void *user,
                      spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  if (path == NULL)
    return spile__fail(error, SPILE_EINVAL, "the path of the limits file is NULL", NULL);
  char *text = NULL;
  size_t len = 0;
  int failure = file_read(path, &text, &len);
  if (failure == ENOMEM)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for a limits file", NULL);
  if (failure == 0) {
    int result = spile_limits_parse(out, text, len, path, visit, user, error);
    free(text);
    return result;
  }
  spile__faults faults;
  memset(&faults, 0, sizeof(faults));
  faults.file = path;
  spile__document_fault fault = {.advice = "name a file that can be read"};
  (void)snprintf(fault.what, sizeof(fault.what), "cannot read the file: %s", strerror(failure));
  spile__fault_at(&faults, &fault);
  spile__faults_tell(&faults, "", visit, user, error);
  spile__faults_finish(&faults);
  return SPILE_ECONFIG;
}
