/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/nearest.h"
#include "core/siphash.h"
#include "core/text.h"
#include "limits/reader.h"

/* ---- Names ---- */

/* So many names are compared with a word that is none of them. */
enum { NAMES_COMPARED = 200 };

const char *spile__near_name(const char *word, const char *const *names, size_t n) {
  size_t distance = SIZE_MAX;
  const char *nearest = n > 0 ? spile__nearest(word, strlen(word), names, n, &distance) : NULL;
  return nearest != NULL && distance <= 1 + strlen(nearest) / 3 ? nearest : NULL;
}

const char *spile__advise_name(spile__reader *reader, const char *word, const char *const *names, size_t n) {
  char advice[300];
  spile__text text;
  spile__text_init(&text, advice, sizeof(advice));
  const char *nearest = spile__near_name(word, names, n < NAMES_COMPARED ? n : NAMES_COMPARED);
  if (nearest != NULL) {
    spile__text_put(&text, "write ");
    spile__text_put(&text, spile__show(nearest, strlen(nearest)).text);
    spile__text_put(&text, ", which is the nearest");
  } else {
    spile__text_put(&text, n > 0 ? "known are " : "there are none");
    for (size_t i = 0; i < n && i < 16; i++) {
      spile__text_put(&text, i > 0 ? ", " : "");
      spile__text_put(&text, spile__show(names[i], strlen(names[i])).text);
    }
    spile__text_put(&text, n > 16 ? " and others" : "");
  }
  const char *copy = spile__arena_text(&reader->scratch, advice, strlen(advice));
  return copy != NULL ? copy : "";
}

size_t spile__name_index(const char *const *names, size_t n, const char *name) {
  size_t i = 0;
  while (i < n && strcmp(names[i], name) != 0)
    i++;
  return i;
}

bool spile__members_read(spile__reader *reader, const spile__node *object, const char *const *names, size_t n,
                         const spile__node **nodes) {
  for (size_t i = 0; i < n; i++)
    nodes[i] = NULL;
  if (!json_is_object(object->value)) {
    spile__fault_error(&reader->faults, object, "write an object, {...}", "%s is no object",
                       spile__show_value(&reader->document, object).text);
    return false;
  }
  const spile__node *child = spile__node_first(&reader->document, object);
  for (; child != NULL; child = spile__node_next(&reader->document, child)) {
    size_t i = spile__name_index(names, n, child->name);
    if (i < n)
      nodes[i] = child;
    else if (reader->faults.count < SPILE__FAULTS_MAX)
      spile__fault_error(&reader->faults, child, spile__advise_name(reader, child->name, names, n),
                         "there is no member %s here", spile__show(child->name, strlen(child->name)).text);
    else
      reader->faults.errors++;
  }
  return true;
}

void spile__members_misspelt(const spile__reader *reader, const spile__node *object, const char *const *names, size_t n,
                             bool *meant) {
  const spile__node *child = spile__node_first(&reader->document, object);
  for (; child != NULL; child = spile__node_next(&reader->document, child)) {
    if (spile__name_index(names, n, child->name) < n)
      continue;
    /* Where so many faults are found, nobody asks which name is nearest. */
    const char *nearest = NULL;
    if (reader->faults.count < SPILE__FAULTS_MAX)
      nearest = spile__near_name(child->name, names, n);
    for (size_t i = 0; i < n; i++)
      meant[i] = meant[i] || nearest == NULL || names[i] == nearest;
  }
}

/* ---- Values ---- */

bool spile__integer_read(spile__reader *reader, const spile__node *node, const char *unit, int64_t min, int64_t max,
                         int64_t *out) {
  char advice[120];
  spile__text text;
  spile__text_init(&text, advice, sizeof(advice));
  spile__text_put(&text, "write a whole number of ");
  spile__text_put(&text, unit);
  spile__text_put(&text, " from ");
  spile__text_put_number(&text, min);
  spile__text_put(&text, " to ");
  spile__text_put_number(&text, max);
  if (!json_is_integer(node->value)) {
    bool number = json_is_real(node->value);
    spile__fault_error(&reader->faults, node, advice, "%s is no whole number%s",
                       spile__show_value(&reader->document, node).text,
                       number                        ? ""
                       : json_is_string(node->value) ? " but a string"
                                                     : "");
    return false;
  }
  int64_t number = json_integer_value(node->value);
  if (number < min || number > max) {
    spile__fault_error(&reader->faults, node, advice, "%s is too %s", spile__show_value(&reader->document, node).text,
                       number < min ? "small" : "large");
    return false;
  }
  *out = number;
  return true;
}

int spile__word_read(spile__reader *reader, const spile__node *node, const char *const *words) {
  size_t n = 0;
  const char *word = json_string_value(node->value);
  for (; words[n] != NULL; n++) {
    if (word != NULL && strcmp(word, words[n]) == 0)
      return (int)n;
  }
  spile__fault_error(&reader->faults, node, spile__advise_name(reader, word != NULL ? word : "", words, n),
                     "%s is not one of the words", spile__show_value(&reader->document, node).text);
  return -1;
}

static bool has_control(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++) {
    if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
      return true;
  }
  return false;
}

const char *spile__string_read(spile__reader *reader, const spile__node *node, size_t max) {
  const char *string = json_string_value(node->value);
  size_t len = json_string_length(node->value);
  if (string != NULL && len >= 1 && len <= max && !has_control(string, len))
    return string;
  char advice[100];
  spile__text text;
  spile__text_init(&text, advice, sizeof(advice));
  spile__text_put(&text, "write a string of 1 to ");
  spile__text_put_number(&text, (int64_t)max);
  spile__text_put(&text, " bytes without control characters");
  spile__fault_error(&reader->faults, node, advice, "%s is no name", spile__show_value(&reader->document, node).text);
  return NULL;
}

bool spile__bool_read(spile__reader *reader, const spile__node *node, bool *out) {
  *out = json_is_true(node->value);
  if (json_is_boolean(node->value))
    return true;
  spile__fault_error(&reader->faults, node, "write true or false", "%s is neither true nor false",
                     spile__show_value(&reader->document, node).text);
  return false;
}

const spile__place *spile__place_of(spile__reader *reader, const spile__node *node) {
  spile__arena *arena = &reader->limits->arena;
  spile__place *place = spile__arena_take(arena, sizeof(*place));
  char path[SPILE__DOCUMENT_PATH_SIZE];
  if (place == NULL)
    return NULL;
  spile__document_path(&reader->document, node, path, sizeof(path));
  place->path = spile__arena_text(arena, path, strlen(path));
  spile__fault_place(&reader->faults, node, &place->line, &place->column);
  return place->path != NULL ? place : NULL;
}

/* ---- Texts by hash ---- */

bool spile__index_make(spile__index *index, spile__reader *reader, size_t n) {
  index->hash_key = reader->limits->hash_key;
  index->slot_count = 4;
  while (index->slot_count < n * 2)
    index->slot_count *= 2;
  index->slots = spile__arena_array(&reader->scratch, index->slot_count, sizeof(*index->slots));
  return index->slots != NULL;
}

static size_t index_slot(const spile__index *index, const char *text) {
  size_t at = spile__siphash64(index->hash_key, text, strlen(text)) & (index->slot_count - 1);
  while (index->slots[at].text != NULL && strcmp(index->slots[at].text, text) != 0)
    at = (at + 1) & (index->slot_count - 1);
  return at;
}

bool spile__index_add(spile__index *index, const char *text, uint32_t *value) {
  size_t at = index_slot(index, text);
  if (index->slots[at].text != NULL) {
    *value = index->slots[at].value;
    return false;
  }
  index->slots[at].text = text;
  index->slots[at].value = *value;
  return true;
}

bool spile__index_find(const spile__index *index, const char *text, uint32_t *value) {
  if (index->slot_count == 0)
    return false;
  size_t at = index_slot(index, text);
  *value = index->slots[at].value;
  return index->slots[at].text != NULL;
}
