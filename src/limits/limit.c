/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One limit of a limits file: its numbers, its policies and whose bucket it is.
 */
#include "limiter/limit.h"

#include <stdlib.h>
#include <string.h>

#include "core/algorithm.h"
#include "core/checked.h"
#include "core/text.h"
#include "limits/reader.h"

/* Longer than this a bucket hardly fills within what the file will be. */
#define FULL_TIME_ABSURD_MS (INT64_C(90) * 86400000)

enum {
  MEMBER_ALGORITHM,
  MEMBER_CAPACITY,
  MEMBER_REFILL,
  MEMBER_REFILL_PER_SEC,
  MEMBER_WINDOW,
  MEMBER_COST,
  MEMBER_NAME,
  MEMBER_KEY,
  MEMBER_ON_STORE_ERROR,
  MEMBER_ON_FULL,
  MEMBER_TIMEOUT_MS,
  MEMBER_SHADOW,
  MEMBER_DEBT,
  MEMBER_COUNT,
};

static const char *const member_names[MEMBER_COUNT] = {
    [MEMBER_ALGORITHM] = "algorithm",
    [MEMBER_CAPACITY] = "capacity",
    [MEMBER_REFILL] = "refill",
    [MEMBER_REFILL_PER_SEC] = "refillPerSec",
    [MEMBER_WINDOW] = "window",
    [MEMBER_COST] = "cost",
    [MEMBER_NAME] = "name",
    [MEMBER_KEY] = "key",
    [MEMBER_ON_STORE_ERROR] = "on_store_error",
    [MEMBER_ON_FULL] = "on_full",
    [MEMBER_TIMEOUT_MS] = "timeout_ms",
    [MEMBER_SHADOW] = "shadow",
    [MEMBER_DEBT] = "debt",
};

const char *const spile__on_store_error_words[] = {"fail", "open", "closed", NULL};
static const char *const on_full_words[] = {"closed", "open", "fail", NULL};

/* A limit that is being read. */
typedef struct limit_reading {
  spile__reader *reader;
  const spile__node *node;
  const spile__node *members[MEMBER_COUNT];
  bool misspelt[MEMBER_COUNT];       /* it may be there under a name that is none */
  const spile__algorithm *algorithm; /* NULL: nobody can say, which is a fault */
  bool has_capacity;                 /* these are there and right: what follows from them can be said */
  bool has_rate;
  bool has_debt;
  spile__limit_text text;
  int64_t timeout_ms;
} limit_reading;

/* ---- The algorithm and its rate ---- */

/* @return NULL: nobody can say, which is a fault */
static const spile__algorithm *algorithm_read(limit_reading *reading, const spile__node *node) {
  if (node == NULL && reading->misspelt[MEMBER_ALGORITHM])
    return NULL;
  const char *words[SPILE_SLIDING_LOG + 1] = {NULL};
  for (int i = 0; i < SPILE_SLIDING_LOG; i++)
    words[i] = spile__algorithm_get((spile_algorithm)(i + 1))->name;
  int word = node != NULL ? spile__word_read(reading->reader, node, words) : SPILE_TOKEN_BUCKET - 1;
  if (word < 0)
    return NULL;
  reading->text.algorithm = (spile_algorithm)(word + 1);
  return spile__algorithm_get(reading->text.algorithm);
}

/* A member that the algorithm has no use for: whoever wrote it meant something else. */
static void member_refuse(limit_reading *reading, int member, const char *advice) {
  if (reading->members[member] != NULL)
    spile__fault_error(&reading->reader->faults, reading->members[member], advice, "%s has no %s",
                       reading->algorithm->name, member_names[member]);
}

static bool refills_read(limit_reading *reading) {
  const spile__node *refill = reading->members[MEMBER_REFILL];
  const spile__node *per_sec = reading->members[MEMBER_REFILL_PER_SEC];
  bool good = refill == NULL || per_sec == NULL;
  if (!good)
    spile__fault_error(&reading->reader->faults, per_sec, "write one of them",
                       "refill and refillPerSec both say the rate");
  if (refill != NULL)
    good &= spile__refill_read(reading->reader, refill, &reading->text);
  if (per_sec != NULL)
    good &= spile__refill_per_sec_read(reading->reader, per_sec, &reading->text);
  return good && (refill != NULL || per_sec != NULL);
}

static bool refill_misspelt(const limit_reading *reading) {
  return reading->misspelt[MEMBER_REFILL] || reading->misspelt[MEMBER_REFILL_PER_SEC];
}

static void rate_of_bucket_read(limit_reading *reading) {
  const spile__node *window = reading->members[MEMBER_WINDOW];
  member_refuse(reading, MEMBER_WINDOW,
                "write \"refill\", or \"algorithm\": \"fixed_window\", \"sliding_window\" or \"sliding_log\"");
  bool none = reading->members[MEMBER_REFILL] == NULL && reading->members[MEMBER_REFILL_PER_SEC] == NULL;
  if (none && window == NULL && !refill_misspelt(reading))
    spile__fault_error(&reading->reader->faults, reading->node, "write \"refill\", such as \"1/s\"",
                       "this limit has no refill");
  reading->has_rate = refills_read(reading);
  /* Who wrote a window and no algorithm may have meant one that has it. */
  if (window != NULL && reading->members[MEMBER_ALGORITHM] == NULL)
    reading->has_rate = false;
}

/* As in the text form, a window is a refill of the whole capacity in that time. */
static void rate_of_window_read(limit_reading *reading) {
  static const char advice[] = "write \"window\", such as \"5m\"";
  const spile__node *window = reading->members[MEMBER_WINDOW];
  member_refuse(reading, MEMBER_REFILL, advice);
  member_refuse(reading, MEMBER_REFILL_PER_SEC, advice);
  if (window == NULL && !reading->misspelt[MEMBER_WINDOW])
    spile__fault_error(&reading->reader->faults, reading->node, advice, "this limit has no window");
  reading->has_rate = window != NULL && spile__window_read(reading->reader, window, &reading->text);
  reading->text.refill_tokens = reading->text.capacity;
}

/* Where nobody knows the algorithm, what is wrong with a rate by all of them. */
static void rate_of_any_read(limit_reading *reading) {
  const spile__node *window = reading->members[MEMBER_WINDOW];
  bool none = reading->members[MEMBER_REFILL] == NULL && reading->members[MEMBER_REFILL_PER_SEC] == NULL;
  if (none && window == NULL && !refill_misspelt(reading) && !reading->misspelt[MEMBER_WINDOW])
    spile__fault_error(&reading->reader->faults, reading->node, "write the one that the algorithm has",
                       "this limit has neither refill nor window");
  if (!none && window != NULL)
    spile__fault_error(&reading->reader->faults, window, "write the one that the algorithm has",
                       "refill and window both say the rate");
  (void)refills_read(reading);
  if (window != NULL)
    (void)spile__window_read(reading->reader, window, &reading->text);
}

static void numbers_read(limit_reading *reading) {
  spile__reader *reader = reading->reader;
  const spile__node *capacity = reading->members[MEMBER_CAPACITY];
  const spile__node *debt = reading->members[MEMBER_DEBT];
  if (capacity != NULL)
    reading->has_capacity =
        spile__integer_read(reader, capacity, "tokens", 1, SPILE__EXACT_MAX, &reading->text.capacity);
  else if (!reading->misspelt[MEMBER_CAPACITY])
    spile__fault_error(&reader->faults, reading->node, "write \"capacity\": the largest burst, in tokens",
                       "this limit has no capacity");
  reading->has_debt =
      debt == NULL || spile__integer_read(reader, debt, "tokens", 0, SPILE__EXACT_MAX, &reading->text.debt);
  reading->algorithm = algorithm_read(reading, reading->members[MEMBER_ALGORITHM]);
  if (reading->algorithm == NULL)
    rate_of_any_read(reading);
  else if (reading->algorithm->window)
    rate_of_window_read(reading);
  else
    rate_of_bucket_read(reading);
}

static void cost_read(limit_reading *reading, int64_t *out) {
  const spile__node *cost = reading->members[MEMBER_COST];
  if (cost == NULL || !spile__integer_read(reading->reader, cost, "tokens", 1, SPILE__EXACT_MAX, out))
    return;
  if (reading->has_capacity && *out > reading->text.capacity)
    spile__fault_error(&reading->reader->faults, cost, "write a cost of at most the capacity, or a larger capacity",
                       "a cost of %lld is above the capacity of %lld, so nobody would ever be allowed", (long long)*out,
                       (long long)reading->text.capacity);
}

/* ---- Bounds ---- */

/* Whether numbers keep the bounds of the algorithm. */
static bool shape_check(limit_reading *reading, int64_t capacity, int64_t tokens, int64_t period_ms, int64_t debt,
                        spile_shape *out) {
  spile_error error = {0};
  if (reading->algorithm->shape_make(out, capacity, tokens, period_ms, debt, &error) == SPILE_OK)
    return true;
  const char *advice;
  const char *what = spile__message_split(error.message, &advice);
  spile__fault_error(&reading->reader->faults, reading->node, advice, "%s", what);
  return false;
}

/*
 * A window has no debt, whatever else it has, and a log has its bound for the capacity, whatever the window. In the
 * place of what is no part of a bound stands what keeps it.
 */
static bool window_check(limit_reading *reading, spile_shape *out) {
  bool good = reading->has_debt && (reading->text.debt == 0 || shape_check(reading, 1, 1, 1, reading->text.debt, out));
  if (!reading->has_capacity || (!reading->has_rate && reading->text.algorithm != SPILE_SLIDING_LOG))
    return false;
  int64_t window_ms = reading->has_rate ? reading->text.refill_period_ms : 1;
  good &= shape_check(reading, reading->text.capacity, reading->text.capacity, window_ms, 0, out);
  return good && reading->has_rate;
}

/* A refill that is too fast is so for any capacity, and a capacity that is too large with any debt. */
static bool bucket_check(limit_reading *reading, spile_shape *out) {
  if (!reading->has_rate)
    return false;
  int64_t capacity = reading->has_capacity ? reading->text.capacity : 1;
  int64_t debt = reading->has_capacity && reading->has_debt ? reading->text.debt : 0;
  bool good = shape_check(reading, capacity, reading->text.refill_tokens, reading->text.refill_period_ms, debt, out);
  return good && reading->has_capacity && reading->has_debt;
}

/* Checks what the numbers come to, as far as they are there and right. */
static void bounds_check(limit_reading *reading) {
  spile_shape shape;
  if (reading->algorithm == NULL)
    return;
  if (!(reading->algorithm->window ? window_check(reading, &shape) : bucket_check(reading, &shape)))
    return;
  int64_t full_ms = reading->algorithm->full_time_ms(&shape);
  if (full_ms > FULL_TIME_ABSURD_MS)
    spile__fault_warning(&reading->reader->faults, reading->node,
                         "write a faster refill or a smaller capacity, if that is not meant",
                         "an empty bucket takes %lld days to be full again", (long long)(full_ms / 86400000));
}

/* ---- Policies ---- */

static void policies_read(limit_reading *reading) {
  spile__reader *reader = reading->reader;
  reading->text.on_store_error = reader->on_store_error;
  reading->timeout_ms = reader->timeout_ms;
  if (reading->members[MEMBER_ON_STORE_ERROR] != NULL) {
    int word = spile__word_read(reader, reading->members[MEMBER_ON_STORE_ERROR], spile__on_store_error_words);
    reading->text.on_store_error = (spile_on_store_error)(word + 1);
  }
  if (reading->members[MEMBER_ON_FULL] != NULL) {
    int word = spile__word_read(reader, reading->members[MEMBER_ON_FULL], on_full_words);
    reading->text.on_full = (spile_on_full)(word < 0 ? 0 : word);
  }
  if (reading->members[MEMBER_TIMEOUT_MS] != NULL)
    (void)spile__integer_read(reader, reading->members[MEMBER_TIMEOUT_MS], "milliseconds", 1, SPILE__TIMEOUT_MAX_MS,
                              &reading->timeout_ms);
}

/* ---- Whose bucket ---- */

bool spile__is_header_name(const char *name) {
  static const char letters[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  size_t len = strlen(name);
  return len >= 1 && len <= 100 && strspn(name, letters) == len;
}

/* One kind: tenant, header:NAME … */
static bool key_part_read(spile__reader *reader, const spile__node *node, spile__key_part *out) {
  static const char *const words[] = {"tenant", "user", "api_key", "ip", "route", "global", "header:NAME", NULL};
  static const spile__key_kind kinds[] = {SPILE__KEY_TENANT, SPILE__KEY_USER,  SPILE__KEY_API_KEY,
                                          SPILE__KEY_IP,     SPILE__KEY_ROUTE, SPILE__KEY_GLOBAL};
  static const char header[] = "header:";
  const char *word = json_string_value(node->value);
  if (word != NULL && strncmp(word, header, sizeof(header) - 1) == 0) {
    const char *name = word + sizeof(header) - 1;
    if (!spile__is_header_name(name)) {
      spile__fault_error(&reader->faults, node, "write it as \"header:X-Api-Client\"", "%s has no name of a header",
                         spile__show(word, strlen(word)).text);
      return false;
    }
    *out = (spile__key_part){.kind = SPILE__KEY_HEADER,
                             .header = spile__arena_text(&reader->limits->arena, name, strlen(name))};
    return true;
  }
  int i = spile__word_read(reader, node, words);
  if (i >= 0 && (size_t)i < sizeof(kinds) / sizeof(kinds[0]))
    *out = (spile__key_part){.kind = kinds[i]};
  out->node = (uint32_t)(node - reader->document.nodes);
  return i >= 0;
}

/* One without a kind has a fault, and is like no other. */
static bool key_parts_equal(const spile__key_part *a, const spile__key_part *b) {
  return a->kind != 0 && a->kind == b->kind && (a->kind != SPILE__KEY_HEADER || strcasecmp(a->header, b->header) == 0);
}

bool spile__chain_read(spile__reader *reader, const spile__node *node, spile__key_chain *out) {
  enum { PARTS_MAX = 8 };
  size_t errors = reader->faults.errors;
  size_t n = json_is_array(node->value) ? json_array_size(node->value) : 1;
  if (n < 1 || n > PARTS_MAX) {
    spile__fault_error(&reader->faults, node, "write a list such as [\"tenant\", \"ip\"]",
                       "a list of %zu kinds; it must have 1 to %d", n, PARTS_MAX);
    n = n > PARTS_MAX ? PARTS_MAX : n;
  }
  spile__key_part *parts = spile__arena_array(&reader->limits->arena, n, sizeof(*parts));
  if (parts == NULL)
    return false;
  const spile__node *child = json_is_array(node->value) ? spile__node_first(&reader->document, node) : node;
  for (size_t i = 0; i < n; i++) {
    bool read = key_part_read(reader, child, &parts[i]);
    if (reader->limits->arena.failed)
      return false;
    size_t j = 0;
    while (j < i && !key_parts_equal(&parts[i], &parts[j]))
      j++;
    if (j < i)
      spile__fault_error(&reader->faults, child, "write it once", "%s is in the list twice",
                         spile__show_value(&reader->document, child).text);
    else if (read && i > 0 && (parts[i - 1].kind == SPILE__KEY_ROUTE || parts[i - 1].kind == SPILE__KEY_GLOBAL))
      spile__fault_warning(&reader->faults, child, "put it before, or leave it out",
                           "this is never asked for, as every request has what stands before it");
    child = spile__node_next(&reader->document, child);
  }
  if (errors != reader->faults.errors)
    return false;
  *out = (spile__key_chain){parts, n};
  return true;
}

bool spile__chain_is_ip(const spile__key_chain *chain) {
  return chain->n == 1 && chain->parts[0].kind == SPILE__KEY_IP;
}

bool spile__chain_knows_callers(const spile__key_chain *chain) {
  for (size_t i = 0; i < chain->n; i++) {
    spile__key_kind kind = chain->parts[i].kind;
    if (kind == SPILE__KEY_TENANT || kind == SPILE__KEY_USER || kind == SPILE__KEY_API_KEY)
      return true;
  }
  return false;
}

/* ---- The whole ---- */

/* The name of the bucket: `owner`, or `owner`#`name`. NULL: a fault, or out of memory. */
static const char *bucket_name(limit_reading *reading, const char *owner, bool needs_name) {
  spile__reader *reader = reading->reader;
  const spile__node *node = reading->members[MEMBER_NAME];
  if (node != NULL && owner[0] == '@') {
    spile__fault_error(&reader->faults, node, "leave it out", "a named limit has a name already");
    node = NULL;
  }
  if (node == NULL && needs_name && reading->misspelt[MEMBER_NAME])
    return NULL;
  if (node == NULL && needs_name) {
    spile__fault_error(&reader->faults, reading->node, "write \"name\", such as \"day\"",
                       "a limit in a list needs a name, which its buckets keep when the list changes");
    return NULL;
  }
  const char *name = node != NULL ? spile__string_read(reader, node, SPILE_NAME_LEN_MAX) : "";
  if (name == NULL)
    return NULL;
  size_t owner_len = strlen(owner);
  size_t len = owner_len + (node != NULL ? 1 + strlen(name) : 0);
  if (len > SPILE_NAME_LEN_MAX) {
    spile__fault_error(&reader->faults, node != NULL ? node : reading->node, "write a shorter name",
                       "the name of its buckets would have %zu bytes; it may have %d", len, SPILE_NAME_LEN_MAX);
    return NULL;
  }
  char *text = spile__arena_take(&reader->scratch, len + 1);
  if (text == NULL)
    return NULL;
  memcpy(text, owner, owner_len);
  if (node != NULL) {
    text[owner_len] = '#';
    memcpy(text + owner_len + 1, name, len - owner_len - 1);
  }
  return text;
}

/* Keeps the limit with the others, which own it. */
static void limit_keep(spile__reader *reader, spile_limit *limit) {
  spile_limits *limits = reader->limits;
  if (limits->made_count == reader->made_room) {
    size_t room = reader->made_room == 0 ? 64 : reader->made_room * 2;
    spile_limit **made = realloc(limits->made, room * sizeof(spile_limit *));
    if (made == NULL) {
      spile_limit_unref(limit);
      limits->arena.failed = true;
      return;
    }
    limits->made = made;
    reader->made_room = room;
  }
  limits->made[limits->made_count++] = limit;
}

static void limit_make(limit_reading *reading, spile__route_limit *out) {
  spile__reader *reader = reading->reader;
  spile_error error = {0};
  int result = spile__limit_new(&out->limit, &reading->text, reading->timeout_ms, &error);
  SPILE__ASSERT(result != SPILE_ECONFIG); /* the bounds are checked */
  if (result == SPILE_OK)
    limit_keep(reader, out->limit);
  else
    reader->limits->arena.failed = true;
}

void spile__limit_read(spile__reader *reader, const spile__node *node, const char *owner, bool needs_name,
                       spile__item *out) {
  limit_reading reading = {.reader = reader, .node = node};
  *out = (spile__item){.limit = {.cost = 1, .chain = reader->chain}};
  size_t errors = reader->faults.errors;
  if (!spile__members_read(reader, node, member_names, MEMBER_COUNT, reading.members))
    return;
  if (errors != reader->faults.errors)
    spile__members_misspelt(reader, node, member_names, MEMBER_COUNT, reading.misspelt);
  numbers_read(&reading);
  cost_read(&reading, &out->limit.cost);
  bounds_check(&reading);
  policies_read(&reading);
  if (reading.members[MEMBER_SHADOW] != NULL)
    (void)spile__bool_read(reader, reading.members[MEMBER_SHADOW], &out->limit.shadow);
  if (reading.members[MEMBER_KEY] != NULL)
    (void)spile__chain_read(reader, reading.members[MEMBER_KEY], &out->limit.chain);
  out->name = bucket_name(&reading, owner, needs_name);
  if (out->name == NULL || reader->limits->arena.failed || errors != reader->faults.errors)
    return;
  reading.text.name = out->name;
  reading.text.name_len = strlen(out->name);
  limit_make(&reading, &out->limit);
}
