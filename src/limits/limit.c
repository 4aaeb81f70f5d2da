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
  spile__limit_text text;
  int64_t timeout_ms;
  bool misspelt; /* it has members that are none, so what seems to be missing may be one of those */
} limit_reading;

/* ---- Rates ---- */

/*
 * What is wrong of a message "column N: WHAT; ADVICE" or "WHAT; ADVICE", in place; `advice` gets what follows, or "".
 */
static const char *message_split(char *message, const char **advice) {
  static const char column[] = "column ";
  if (strncmp(message, column, sizeof(column) - 1) == 0) {
    char *colon = strstr(message, ": ");
    message = colon != NULL ? colon + 2 : message;
  }
  char *semicolon = strstr(message, "; ");
  *advice = semicolon != NULL ? semicolon + 2 : "";
  if (semicolon != NULL)
    *semicolon = '\0';
  return message;
}

/* Reads a rate by the rules of a limit's text form, so that a decimal is exact whatever the locale. */
static bool rate_read(limit_reading *reading, const spile__node *node, const char *rate, size_t len, const char *period,
                      const char *advice) {
  enum { RATE_LEN_MAX = 60 };
  spile__faults *faults = &reading->reader->faults;
  if (len > RATE_LEN_MAX || memchr(rate, ',', len) != NULL) {
    spile__fault_error(faults, node, advice, "%s is no rate", spile__show(rate, len).text);
    return false;
  }
  char limit[RATE_LEN_MAX + 20];
  memcpy(limit, rate, len);
  limit[len] = '\0';
  spile__text text;
  spile__text_init(&text, limit + len, sizeof(limit) - len);
  spile__text_put(&text, period);
  /* A limit of a decimal rate has to have one; it is thrown away. */
  spile__text_put(&text, ",capacity=1");
  spile__limit_text parsed;
  if (spile__limit_parse(&parsed, limit, NULL) != SPILE_OK) {
    /* It is the rate that is wrong, whatever stands behind it: told of the rate alone. */
    const char *unused;
    spile_error error = {0};
    limit[len + strlen(period)] = '\0';
    (void)spile__limit_parse(&parsed, limit, &error);
    spile__fault_error(faults, node, advice, "%s is no rate: %s", spile__show(rate, len).text,
                       message_split(error.message, &unused));
    return false;
  }
  reading->text.refill_tokens = parsed.refill_tokens;
  reading->text.refill_period_ms = parsed.refill_period_ms;
  return true;
}

static bool refill_read(limit_reading *reading, const spile__node *node) {
  static const char advice[] = "write tokens and a period, such as \"1/s\", \"1/2s\" or \"30/m\"";
  if (json_is_string(node->value))
    return rate_read(reading, node, json_string_value(node->value), json_string_length(node->value), "", advice);
  spile__fault_error(&reading->reader->faults, node, advice, "%s is no rate",
                     spile__show_value(&reading->reader->document, node).text);
  return false;
}

/* A number as written, such as 0.05: never as a double, which it has no exact form in. */
static bool refill_per_sec_read(limit_reading *reading, const spile__node *node) {
  static const char advice[] = "write tokens a second above zero with at most 9 decimals, such as 0.05";
  const char *written = reading->reader->document.text + node->at;
  size_t len = node->end - node->at;
  if (strspn(written, "0123456789.") >= len)
    return rate_read(reading, node, written, len, "/s", advice);
  spile__fault_error(&reading->reader->faults, node, advice, "%s is no rate",
                     spile__show_value(&reading->reader->document, node).text);
  return false;
}

static bool window_read(limit_reading *reading, const spile__node *node) {
  static const char advice[] = "write a length of time such as \"30s\", \"5m\" or \"1d\"";
  const char *at = json_string_value(node->value);
  int64_t window_ms = at != NULL ? spile__duration_parse(&at) : -1;
  if (window_ms < 1 || *at != '\0' || json_string_length(node->value) > 40) {
    bool too_long = window_ms == SPILE__DURATION_TOO_LONG;
    spile__fault_error(&reading->reader->faults, node, advice, "%s is %s",
                       spile__show_value(&reading->reader->document, node).text,
                       too_long ? "more than ten years" : "no length of time");
    return false;
  }
  reading->text.refill_period_ms = window_ms;
  return true;
}

/* ---- The algorithm and its rate ---- */

/* @return NULL: a fault */
static const spile__algorithm *algorithm_read(limit_reading *reading, const spile__node *node) {
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
static bool member_refuse(limit_reading *reading, int member, const char *algorithm, const char *advice) {
  if (reading->members[member] == NULL)
    return true;
  spile__fault_error(&reading->reader->faults, reading->members[member], advice, "%s has no %s", algorithm,
                     member_names[member]);
  return false;
}

/* A member that has to be there. */
static void member_miss(limit_reading *reading, const char *advice, const char *what) {
  if (!reading->misspelt)
    spile__fault_error(&reading->reader->faults, reading->node, advice, "%s", what);
}

static bool rate_of_bucket_read(limit_reading *reading, const char *algorithm) {
  const spile__node *refill = reading->members[MEMBER_REFILL];
  const spile__node *per_sec = reading->members[MEMBER_REFILL_PER_SEC];
  bool good =
      member_refuse(reading, MEMBER_WINDOW, algorithm,
                    "write \"refill\", or \"algorithm\": \"fixed_window\", \"sliding_window\" or \"sliding_log\"");
  if (refill != NULL && per_sec != NULL) {
    spile__fault_error(&reading->reader->faults, per_sec, "write one of them",
                       "refill and refillPerSec both say the rate");
    good = false;
  }
  if (refill == NULL && per_sec == NULL && good) {
    member_miss(reading, "write \"refill\", such as \"1/s\"", "this limit has no refill");
    good = false;
  }
  if (refill != NULL)
    good &= refill_read(reading, refill);
  if (per_sec != NULL)
    good &= refill_per_sec_read(reading, per_sec);
  return good;
}

/* As in the text form, a window is a refill of the whole capacity in that time. */
static bool rate_of_window_read(limit_reading *reading, const char *algorithm) {
  static const char advice[] = "write \"window\", such as \"5m\"";
  bool good = member_refuse(reading, MEMBER_REFILL, algorithm, advice);
  good &= member_refuse(reading, MEMBER_REFILL_PER_SEC, algorithm, advice);
  if (reading->members[MEMBER_WINDOW] == NULL) {
    member_miss(reading, advice, "this limit has no window");
    return false;
  }
  good &= window_read(reading, reading->members[MEMBER_WINDOW]);
  reading->text.refill_tokens = reading->text.capacity;
  return good;
}

static bool numbers_read(limit_reading *reading) {
  spile__reader *reader = reading->reader;
  bool good = true;
  const spile__node *capacity = reading->members[MEMBER_CAPACITY];
  if (capacity != NULL) {
    good = spile__integer_read(reader, capacity, "tokens", 1, SPILE__EXACT_MAX, &reading->text.capacity);
  } else {
    member_miss(reading, "write \"capacity\": the largest burst, in tokens", "this limit has no capacity");
    good = false;
  }
  const spile__algorithm *algorithm = algorithm_read(reading, reading->members[MEMBER_ALGORITHM]);
  if (algorithm == NULL)
    return false;
  bool rate =
      algorithm->window ? rate_of_window_read(reading, algorithm->name) : rate_of_bucket_read(reading, algorithm->name);
  return good && rate;
}

static bool cost_read(limit_reading *reading, int64_t *out) {
  *out = 1;
  const spile__node *cost = reading->members[MEMBER_COST];
  if (cost != NULL && !spile__integer_read(reading->reader, cost, "tokens", 1, SPILE__EXACT_MAX, out))
    return false;
  if (reading->text.capacity < 1 || *out <= reading->text.capacity)
    return true;
  spile__fault_error(&reading->reader->faults, cost, "write a cost of at most the capacity, or a larger capacity",
                     "a cost of %lld is above the capacity of %lld, so nobody would ever be allowed", (long long)*out,
                     (long long)reading->text.capacity);
  return false;
}

/* ---- Policies ---- */

static bool policies_read(limit_reading *reading) {
  spile__reader *reader = reading->reader;
  bool good = true;
  reading->text.on_store_error = reader->on_store_error;
  reading->timeout_ms = reader->timeout_ms;
  if (reading->members[MEMBER_ON_STORE_ERROR] != NULL) {
    int word = spile__word_read(reader, reading->members[MEMBER_ON_STORE_ERROR], spile__on_store_error_words);
    reading->text.on_store_error = (spile_on_store_error)(word + 1);
    good &= word >= 0;
  }
  if (reading->members[MEMBER_ON_FULL] != NULL) {
    int word = spile__word_read(reader, reading->members[MEMBER_ON_FULL], on_full_words);
    reading->text.on_full = (spile_on_full)(word < 0 ? 0 : word);
    good &= word >= 0;
  }
  if (reading->members[MEMBER_TIMEOUT_MS] != NULL)
    good &= spile__integer_read(reader, reading->members[MEMBER_TIMEOUT_MS], "milliseconds", 1, SPILE__TIMEOUT_MAX_MS,
                                &reading->timeout_ms);
  if (reading->members[MEMBER_DEBT] != NULL)
    good &=
        spile__integer_read(reader, reading->members[MEMBER_DEBT], "tokens", 0, SPILE__EXACT_MAX, &reading->text.debt);
  return good;
}

/* ---- Whose bucket ---- */

static bool is_header_name(const char *name) {
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
    if (!is_header_name(name)) {
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

static bool key_parts_equal(const spile__key_part *a, const spile__key_part *b) {
  return a->kind == b->kind && (a->kind != SPILE__KEY_HEADER || strcasecmp(a->header, b->header) == 0);
}

bool spile__chain_read(spile__reader *reader, const spile__node *node, spile__key_chain *out) {
  enum { PARTS_MAX = 8 };
  size_t n = json_is_array(node->value) ? json_array_size(node->value) : 1;
  if (n < 1 || n > PARTS_MAX) {
    spile__fault_error(&reader->faults, node, "write a list such as [\"tenant\", \"ip\"]",
                       "a list of %zu kinds; it must have 1 to %d", n, PARTS_MAX);
    return false;
  }
  spile__key_part *parts = spile__arena_array(&reader->limits->arena, n, sizeof(*parts));
  if (parts == NULL)
    return false;
  const spile__node *child = json_is_array(node->value) ? spile__node_first(&reader->document, node) : node;
  bool good = true;
  for (size_t i = 0; i < n; i++) {
    bool read = key_part_read(reader, child, &parts[i]);
    good &= read && !reader->limits->arena.failed;
    for (size_t j = 0; j < i && good; j++) {
      if (!key_parts_equal(&parts[i], &parts[j]))
        continue;
      spile__fault_error(&reader->faults, child, "write it once", "%s is in the list twice",
                         spile__show_value(&reader->document, child).text);
      good = false;
    }
    if (good && i > 0 && (parts[i - 1].kind == SPILE__KEY_ROUTE || parts[i - 1].kind == SPILE__KEY_GLOBAL))
      spile__fault_warning(&reader->faults, child, "put it before, or leave it out",
                           "this is never asked for, as every request has what stands before it");
    child = spile__node_next(&reader->document, child);
  }
  *out = (spile__key_chain){parts, n};
  return good;
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
    return NULL;
  }
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

/* Keeps the limit with the others, which own it. @return false: out of memory */
static bool limit_keep(spile__reader *reader, spile_limit *limit) {
  spile_limits *limits = reader->limits;
  if (limits->made_count == reader->made_room) {
    size_t room = reader->made_room == 0 ? 64 : reader->made_room * 2;
    spile_limit **made = realloc(limits->made, room * sizeof(spile_limit *));
    if (made == NULL) {
      spile_limit_unref(limit);
      limits->arena.failed = true;
      return false;
    }
    limits->made = made;
    reader->made_room = room;
  }
  limits->made[limits->made_count++] = limit;
  return true;
}

static bool limit_make(limit_reading *reading, spile__route_limit *out) {
  spile__reader *reader = reading->reader;
  spile_error error = {0};
  int result = spile__limit_new(&out->limit, &reading->text, reading->timeout_ms, &error);
  if (result == SPILE_ENOMEM)
    reader->limits->arena.failed = true;
  if (result == SPILE_ECONFIG) {
    const char *advice;
    const char *what = message_split(error.message, &advice);
    spile__fault_error(&reader->faults, reading->node, advice, "%s", what);
  }
  if (result != SPILE_OK || !limit_keep(reader, out->limit))
    return false;
  int64_t full_ms = spile_limit_full_time_ms(out->limit);
  if (full_ms > FULL_TIME_ABSURD_MS)
    spile__fault_warning(&reader->faults, reading->node,
                         "write a faster refill or a smaller capacity, if that is not meant",
                         "an empty bucket takes %lld days to be full again", (long long)(full_ms / 86400000));
  return true;
}

bool spile__limit_read(spile__reader *reader, const spile__node *node, const char *owner, bool needs_name,
                       spile__route_limit *out) {
  limit_reading reading = {.reader = reader, .node = node};
  *out = (spile__route_limit){.cost = 1, .chain = reader->chain};
  size_t errors = reader->faults.errors;
  if (!spile__members_read(reader, node, member_names, MEMBER_COUNT, reading.members))
    return false;
  reading.misspelt = errors != reader->faults.errors;
  bool good = numbers_read(&reading);
  good &= cost_read(&reading, &out->cost);
  good &= policies_read(&reading);
  if (reading.members[MEMBER_SHADOW] != NULL)
    good &= spile__bool_read(reader, reading.members[MEMBER_SHADOW], &out->shadow);
  if (reading.members[MEMBER_KEY] != NULL)
    good &= spile__chain_read(reader, reading.members[MEMBER_KEY], &out->chain);
  const char *name = bucket_name(&reading, owner, needs_name);
  if (!good || name == NULL || errors != reader->faults.errors)
    return false;
  reading.text.name = name;
  reading.text.name_len = strlen(name);
  return limit_make(&reading, out);
}
