/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/scan.h"

#include <stdlib.h>
#include <string.h>

#include <spile/spile.h>

#include "core/checked.h"
#include "core/text.h"

/* ---- Pieces of a text ---- */

static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Behind the string that begins at `at`, or the end of the text. */
static size_t string_end(const char *text, size_t len, size_t at) {
  for (at++; at < len && text[at] != '"'; at++)
    at += text[at] == '\\' ? 1 : 0;
  return at < len ? at + 1 : len;
}

static size_t space_end(const char *text, size_t len, size_t at) {
  while (at < len && is_space(text[at]))
    at++;
  return at;
}

/* Behind a number or a word. */
static size_t word_end(const char *text, size_t len, size_t at) {
  while (at < len && !is_space(text[at]) && strchr(",:]}[{\"", text[at]) == NULL)
    at++;
  return at;
}

/* ---- Paths ---- */

enum { NAME_SHOWN = 60 };

/* One step of a path: a member whose name has `len` bytes, or an item. */
static void path_put(spile__text *path, bool first, const char *name, size_t len, uint32_t index) {
  if (name == NULL) {
    spile__text_put(path, "[");
    spile__text_put_number(path, index);
    spile__text_put(path, "]");
    return;
  }
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  size_t shown = spile__text_quotable(name, len, NAME_SHOWN, SIZE_MAX);
  if (len > 0 && len == shown && strspn(name, plain) >= len) {
    char copy[NAME_SHOWN + 1];
    memcpy(copy, name, len);
    copy[len] = '\0';
    spile__text_put(path, first ? "" : ".");
    spile__text_put(path, copy);
    return;
  }
  spile__text_put(path, "[");
  spile__text_put_quoted(path, name, shown);
  spile__text_put(path, shown < len ? "...]" : "]");
}

void spile__document_path(const spile__document *document, const spile__node *node, char *out, size_t size) {
  const spile__node *steps[SPILE__DOCUMENT_DEPTH_MAX + 1];
  size_t n = 0;
  for (; node != document->nodes && n < SPILE__DOCUMENT_DEPTH_MAX + 1; node = &document->nodes[node->parent])
    steps[n++] = node;
  spile__text path;
  spile__text_init(&path, out, size);
  for (size_t i = n; i-- > 0;) {
    const char *name = steps[i]->name;
    path_put(&path, i + 1 == n, name, name != NULL ? strlen(name) : 0, steps[i]->index);
  }
}

/* The same of a name as it stands in a text of `len` bytes, where its quote is. */
static void path_put_written(spile__text *path, bool first, const char *text, size_t len, size_t quote_at) {
  size_t end = string_end(text, len, quote_at);
  json_t *name = json_loadb(text + quote_at, end - quote_at, JSON_DECODE_ANY, NULL);
  if (name != NULL)
    path_put(path, first, json_string_value(name), json_string_length(name), 0);
  else /* no memory: as it is */
    path_put(path, first, text + quote_at + 1, end - quote_at - 2, 0);
  json_decref(name);
}

/*
 * The path of a member in a text that is JSON up to there, where its name begins: the containers that are still open,
 * each with the name or the number of what is in it.
 */
static void text_path(const char *text, size_t len, size_t member_at, char *out, size_t size) {
  struct {
    bool array;
    size_t name_at; /* of an object: where the last name stands */
    uint32_t index; /* of an array */
  } open[SPILE__DOCUMENT_DEPTH_MAX + 1];
  size_t depth = 0;
  size_t at = 0;
  while (at < member_at) {
    char c = text[at];
    if (c == '"') {
      size_t end = string_end(text, member_at, at);
      size_t colon = space_end(text, member_at, end);
      if (depth > 0 && colon < member_at && text[colon] == ':')
        open[depth - 1].name_at = at;
      at = end;
      continue;
    }
    if ((c == '{' || c == '[') && depth <= SPILE__DOCUMENT_DEPTH_MAX) {
      open[depth].array = c == '[';
      open[depth++].index = 0;
    } else if ((c == '}' || c == ']') && depth > 0) {
      depth--;
    } else if (c == ',' && depth > 0) {
      open[depth - 1].index++;
    }
    at++;
  }
  spile__text path;
  spile__text_init(&path, out, size);
  for (size_t i = 0; i + 1 < depth; i++) {
    if (open[i].array)
      path_put(&path, i == 0, NULL, 0, open[i].index);
    else
      path_put_written(&path, i == 0, text, len, open[i].name_at);
  }
  if (depth > 0)
    path_put_written(&path, depth == 1, text, len, member_at);
}

/* ---- Is it one? ---- */

/* jansson's texts quote the file: what is set is one harmless line, in which \xNN is a byte as in all others. */
static void fault_set(spile__document_fault *fault, size_t at, const char *what, const char *advice) {
  fault->at = at;
  fault->advice = advice;
  spile__text text;
  spile__text_init(&text, fault->what, sizeof(fault->what));
  for (; *what != '\0'; what++) {
    unsigned char c = (unsigned char)*what;
    char as_it_is[2] = {*what, '\0'};
    if (c == '\\' && what[1] == 'x')
      spile__text_put(&text, "\\x5c");
    else
      spile__text_put(&text, c < 0x20 || c >= 0x7f ? "?" : as_it_is);
  }
}

/* What some editors write before a text, and no JSON has. */
static bool text_has_mark(const char *text, size_t len, spile__document_fault *fault) {
  bool utf8 = len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0;
  bool utf16 = len >= 2 && (memcmp(text, "\xff\xfe", 2) == 0 || memcmp(text, "\xfe\xff", 2) == 0);
  if (utf8)
    fault_set(fault, 0, "a byte order mark stands before the JSON", "save the file as UTF-8 without it");
  if (utf16)
    fault_set(fault, 0, "the text begins as UTF-16 does", "save the file as UTF-8 without a byte order mark");
  return utf8 || utf16;
}

/*
 * Bounds what jansson will make of a text before it does: how deep it goes, and how many values there are. Every value
 * but the first stands behind an opening bracket, a comma or a colon.
 */
static bool text_bounded(const char *text, size_t len, spile__document_fault *fault) {
  /* jansson passes over a NUL that follows a number. */
  const char *nul = len > 0 ? memchr(text, '\0', len) : NULL;
  if (nul != NULL) {
    fault_set(fault, (size_t)(nul - text), "a NUL byte", "write JSON (RFC 8259)");
    return false;
  }
  size_t depth = 0;
  size_t values = 1;
  for (size_t at = 0; at < len;) {
    char c = text[at];
    if (c == '"') {
      at = string_end(text, len, at);
      continue;
    }
    depth += c == '{' || c == '[' ? 1 : 0;
    depth -= (c == '}' || c == ']') && depth > 0 ? 1 : 0;
    values += c == '{' || c == '[' || c == ',' || c == ':' ? 1 : 0;
    if (depth > SPILE__DOCUMENT_DEPTH_MAX) {
      fault_set(fault, at, "more than 32 brackets inside each other", "a limits file needs no more than 6");
      return false;
    }
    if (values > SPILE__DOCUMENT_VALUES_MAX) {
      fault_set(fault, at, "more than 1000000 values", "write fewer entries, or a glob for many routes");
      return false;
    }
    at++;
  }
  return true;
}

/* The quote that begins the string whose last byte is at `at`; of another byte, `at`. The text is JSON up to there. */
static size_t string_begin(const char *text, size_t len, size_t at) {
  for (size_t i = 0; i <= at && i < len;) {
    size_t end = text[i] == '"' ? string_end(text, len, i) : i + 1;
    if (end == at + 1)
      return i;
    i = end;
  }
  return at;
}

/* ---- Numbers that jansson does not take ---- */

/* Of a number that has digits alone, or '-' and digits: whether 64 bits do not hold it. */
static bool integer_overflows(const char *digits, size_t len, bool negative) {
  static const char most[] = "9223372036854775807";
  static const char least[] = "9223372036854775808";
  size_t held = sizeof(most) - 1;
  return len > held || (len == held && memcmp(digits, negative ? least : most, held) > 0);
}

/* Of a number with a fraction or an exponent: whether it may be beyond a double, which ends below 1.8e308. */
static bool real_overflows(const char *digits, size_t len) {
  size_t whole = 0;
  while (whole < len && digits[whole] >= '0' && digits[whole] <= '9')
    whole++;
  size_t at = whole;
  while (at < len && digits[at] != 'e' && digits[at] != 'E')
    at++;
  size_t exponent = 0;
  at += at + 1 < len && digits[at + 1] == '+' ? 2 : 1;
  for (; at < len && digits[at] >= '0' && digits[at] <= '9' && exponent < SPILE__DOCUMENT_LEN_MAX; at++)
    exponent = exponent * 10 + (size_t)(digits[at] - '0');
  return whole + exponent > 308;
}

/* Puts another number that is too large for any member in the place of one, in as many bytes or fewer. */
static bool number_replace(char *number, size_t len) {
  bool negative = number[0] == '-';
  char *digits = number + (negative ? 1 : 0);
  size_t digits_len = len - (negative ? 1 : 0);
  bool integer = strspn(digits, "0123456789") >= digits_len;
  const char *other = integer ? "9007199254740993" : "1e300";
  if (integer ? !integer_overflows(digits, digits_len, negative) : !real_overflows(digits, digits_len))
    return false;
  memset(digits, ' ', digits_len);
  memcpy(digits, other, strlen(other));
  return true;
}

/*
 * Reads a text with numbers that jansson does not hold, so that they are told like all other faults: with others in
 * their places, the rest of which is blank, it reads a copy. @return NULL: no memory, or another error
 */
static json_t *numbers_pass_over(spile__document *document, json_error_t *error) {
  size_t len = document->len;
  char *copy = malloc(len + 1);
  if (copy == NULL) {
    *error = (json_error_t){.text = ""};
    return NULL;
  }
  memcpy(copy, document->text, len);
  copy[len] = '\0';
  for (size_t at = 0; at < len;) {
    size_t end = copy[at] == '"' ? string_end(copy, len, at) : at + 1;
    if (copy[at] == '-' || (copy[at] >= '0' && copy[at] <= '9')) {
      end = word_end(copy, len, at);
      if (number_replace(copy + at, end - at) && !document->has_too_large) {
        document->has_too_large = true;
        document->too_large_at = at;
      }
    }
    at = end;
  }
  json_t *json = document->has_too_large ? json_loadb(copy, len, JSON_REJECT_DUPLICATES, error) : NULL;
  free(copy);
  return json;
}

/* Where and what the error of a text is. jansson's position is behind the token it stumbled over. */
static int document_refuse(spile__document *document, const json_error_t *error, spile__document_fault *fault) {
  enum json_error_code code = json_error_code(error);
  /* Mostly jansson says nothing at all when an allocation fails. */
  if (code == json_error_out_of_memory || error->text[0] == '\0')
    return SPILE_ENOMEM;
  size_t at = error->position > 0 ? (size_t)error->position : 0;
  at = at < document->len ? at : document->len;
  if (code != json_error_premature_end_of_input)
    at = string_begin(document->text, document->len, at - (at > 0 ? 1 : 0));
  if (code == json_error_duplicate_key) {
    fault_set(fault, at, "this member is here twice", "write it once");
    text_path(document->text, document->len, at, fault->path, sizeof(fault->path));
    return SPILE_ECONFIG;
  }
  if (code != json_error_premature_end_of_input) {
    while (at > 0 && word_end(document->text, document->len, at - 1) > at)
      at--;
  }
  bool nul = code == json_error_null_character || code == json_error_null_byte_in_key;
  fault_set(fault, at, nul ? "a NUL character (\\u0000) in a text" : error->text,
            nul ? "leave it out: no name and no value has one" : "write JSON (RFC 8259)");
  return SPILE_ECONFIG;
}

/* ---- The walk ---- */

typedef struct walk {
  spile__document *document;
  size_t room;
  bool failed;
} walk;

static uint32_t walk_add(walk *w, spile__node node) {
  spile__document *document = w->document;
  if (document->count == w->room) {
    size_t room = w->room == 0 ? 64 : w->room * 2;
    spile__node *nodes = realloc(document->nodes, room * sizeof(*nodes));
    if (nodes == NULL) {
      w->failed = true;
      return SPILE__NO_NODE;
    }
    document->nodes = nodes;
    w->room = room;
  }
  document->nodes[document->count] = node;
  return (uint32_t)document->count++;
}

/* Links a new child behind the last one of its parent. */
static void walk_link(walk *w, uint32_t parent, uint32_t last, uint32_t child) {
  if (last == SPILE__NO_NODE)
    w->document->nodes[parent].first = child;
  else
    w->document->nodes[last].next = child;
}

static size_t walk_value(walk *w, size_t at, spile__node node, uint32_t *out);

/* The members of an object, which jansson keeps in the order of the text, or the items of an array. */
static size_t walk_children(walk *w, size_t at, const json_t *value, uint32_t parent) {
  const char *text = w->document->text;
  size_t len = w->document->len;
  bool object = json_is_object(value);
  /* jansson iterates over what it will not change, and asks for a pointer that could. */
  json_t *container = (json_t *)(uintptr_t)value;
  void *member = object ? json_object_iter(container) : NULL;
  uint32_t last = SPILE__NO_NODE;
  size_t size = object ? json_object_size(value) : json_array_size(value);
  at++;
  for (size_t i = 0; i < size && !w->failed; i++) {
    at = space_end(text, len, at);
    spile__node child = {.index = (uint32_t)i, .parent = parent, .name_at = (uint32_t)at};
    if (object) {
      SPILE__ASSERT(member != NULL && text[at] == '"');
      child.name = json_object_iter_key(member);
      child.value = json_object_iter_value(member);
      member = json_object_iter_next(container, member);
      at = space_end(text, len, string_end(text, len, at)) + 1; /* behind the colon */
    } else {
      child.value = json_array_get(value, i);
    }
    uint32_t index = SPILE__NO_NODE;
    at = walk_value(w, space_end(text, len, at), child, &index);
    walk_link(w, parent, last, index);
    last = index;
    at = space_end(text, len, at) + 1; /* behind the comma, or the closing bracket */
  }
  return size > 0 ? at : space_end(text, len, at) + 1;
}

/* As deep as the text, which is bounded. @return where the value ends */
static size_t walk_value(walk *w, size_t at, spile__node node, uint32_t *out) {
  const char *text = w->document->text;
  node.at = (uint32_t)at;
  uint32_t index = walk_add(w, node);
  if (w->failed)
    return at;
  size_t end;
  if (json_is_object(node.value) || json_is_array(node.value))
    end = walk_children(w, at, node.value, index);
  else if (json_is_string(node.value))
    end = string_end(text, w->document->len, at);
  else
    end = word_end(text, w->document->len, at);
  w->document->nodes[index].end = (uint32_t)end;
  *out = index;
  return end;
}

int spile__document_read(spile__document *out, const char *text, size_t len, spile__document_fault *fault) {
  *out = (spile__document){.text = text, .len = len};
  *fault = (spile__document_fault){.advice = ""};
  if (text_has_mark(text, len, fault) || !text_bounded(text, len, fault))
    return SPILE_ECONFIG;
  json_error_t error;
  out->json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
  if (out->json == NULL && json_error_code(&error) == json_error_numeric_overflow)
    out->json = numbers_pass_over(out, &error);
  if (out->json == NULL)
    return document_refuse(out, &error, fault);
  walk w = {.document = out};
  uint32_t root;
  (void)walk_value(&w, space_end(text, len, 0), (spile__node){.value = out->json}, &root);
  return w.failed ? SPILE_ENOMEM : SPILE_OK;
}

void spile__document_finish(spile__document *document) {
  json_decref(document->json);
  free(document->nodes);
  *document = (spile__document){0};
}

/* ---- Reading it ---- */

const spile__node *spile__node_first(const spile__document *document, const spile__node *node) {
  return node->first != SPILE__NO_NODE ? &document->nodes[node->first] : NULL;
}

const spile__node *spile__node_next(const spile__document *document, const spile__node *node) {
  return node->next != SPILE__NO_NODE ? &document->nodes[node->next] : NULL;
}

const spile__node *spile__node_member(const spile__document *document, const spile__node *object, const char *name) {
  const spile__node *child = spile__node_first(document, object);
  while (child != NULL && (child->name == NULL || strcmp(child->name, name) != 0))
    child = spile__node_next(document, child);
  return child;
}
