/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

/* ---- What can be shown ---- */

enum { SHOWN_MAX = 40 };

spile__shown spile__show(const char *bytes, size_t len) {
  static const char cut[] = "...";
  spile__shown shown;
  spile__text text;
  spile__text_init(&text, shown.text, sizeof(shown.text));
  size_t kept = spile__text_quotable(bytes, len, SHOWN_MAX, sizeof(shown.text) - sizeof(cut));
  spile__text_put_quoted(&text, bytes, kept);
  spile__text_put(&text, kept < len ? cut : "");
  return shown;
}

spile__shown spile__show_value(const spile__document *document, const spile__node *node) {
  if (json_is_string(node->value))
    return spile__show(json_string_value(node->value), json_string_length(node->value));
  spile__shown shown;
  spile__text text;
  spile__text_init(&text, shown.text, sizeof(shown.text));
  if (json_is_object(node->value) || json_is_array(node->value)) {
    spile__text_put(&text, json_is_object(node->value) ? "an object" : "a list");
    return shown;
  }
  /* A number, true, false or null: letters of ASCII. */
  size_t len = node->end - node->at;
  size_t cut = len < SHOWN_MAX ? len : SHOWN_MAX;
  memcpy(shown.text, document->text + node->at, cut);
  text.at += cut;
  spile__text_put(&text, cut < len ? "..." : "");
  *text.at = '\0';
  return shown;
}

/* ---- Gathering ---- */

/* Room for one more, or NULL: there are enough, or no memory. The count is kept all the same. */
static spile__found *faults_room(spile__faults *faults, spile_fault_level level) {
  *(level == SPILE_FAULT_ERROR ? &faults->errors : &faults->warnings) += 1;
  if (faults->count == SPILE__FAULTS_MAX)
    return NULL;
  if (faults->found == NULL)
    faults->found = spile__arena_array(&faults->arena, SPILE__FAULTS_MAX, sizeof(*faults->found));
  return faults->found != NULL ? &faults->found[faults->count] : NULL;
}

static void found_set(spile__faults *faults, spile__found *found, size_t at, spile_fault_level level, const char *path,
                      const char *what, const char *advice) {
  found->at = at;
  found->order = faults->count;
  found->fault = (spile_fault){.level = (int)level,
                               .count = 1,
                               .file = faults->file,
                               .path = spile__arena_text(&faults->arena, path, strlen(path)),
                               .what = spile__arena_text(&faults->arena, what, strlen(what)),
                               .advice = spile__arena_text(&faults->arena, advice, strlen(advice))};
  if (!faults->arena.failed)
    faults->count++;
}

static size_t fault_offset(const spile__node *node) {
  return node->name != NULL ? node->name_at : node->at;
}

__attribute__((format(printf, 5, 0))) static void fault_add(spile__faults *faults, spile_fault_level level,
                                                            const spile__node *node, const char *advice,
                                                            const char *format, va_list args) {
  spile__found *found = faults_room(faults, level);
  if (found == NULL)
    return;
  char path[SPILE__DOCUMENT_PATH_SIZE];
  char what[600];
  spile__document_path(faults->document, node, path, sizeof(path));
  (void)vsnprintf(what, sizeof(what), format, args);
  found_set(faults, found, fault_offset(node), level, path, what, advice);
}

void spile__fault_error(spile__faults *faults, const spile__node *node, const char *advice, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fault_add(faults, SPILE_FAULT_ERROR, node, advice, format, args);
  va_end(args);
}

void spile__fault_warning(spile__faults *faults, const spile__node *node, const char *advice, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fault_add(faults, SPILE_FAULT_WARNING, node, advice, format, args);
  va_end(args);
}

void spile__fault_at(spile__faults *faults, const spile__document_fault *fault) {
  spile__found *found = faults_room(faults, SPILE_FAULT_ERROR);
  if (found != NULL)
    found_set(faults, found, fault->at, SPILE_FAULT_ERROR, fault->path, fault->what, fault->advice);
}

/* ---- Telling ---- */

/* Where an offset is; goes on from where the last one was. */
typedef struct place {
  size_t at;
  size_t line_start;
  int line;
} place;

static void place_move(place *p, const char *text, size_t at) {
  for (; p->at < at; p->at++) {
    if (text[p->at] == '\n') {
      p->line++;
      p->line_start = p->at + 1;
    }
  }
}

static uint32_t lines_count(const char *text, size_t from, size_t to) {
  uint32_t lines = 0;
  while (from < to)
    lines += text[from++] == '\n' ? 1 : 0;
  return lines;
}

static int line_of(spile__faults *faults, size_t at) {
  const char *text = faults->document->text;
  if (!faults->lines_made) {
    for (size_t i = 1; i * SPILE__LINES_STEP <= faults->document->len; i++)
      faults->lines[i] = faults->lines[i - 1] + lines_count(text, (i - 1) * SPILE__LINES_STEP, i * SPILE__LINES_STEP);
    faults->lines_made = true;
  }
  size_t step = at / SPILE__LINES_STEP;
  return (int)(faults->lines[step] + lines_count(text, step * SPILE__LINES_STEP, at)) + 1;
}

int spile__fault_line(spile__faults *faults, const spile__node *node) {
  return line_of(faults, node->at);
}

void spile__fault_place(spile__faults *faults, const spile__node *node, int *line, int *column) {
  const char *text = faults->document->text;
  size_t at = fault_offset(node);
  size_t line_start = at;
  while (line_start > 0 && text[line_start - 1] != '\n')
    line_start--;
  *line = line_of(faults, at);
  *column = (int)(at - line_start) + 1;
}

static int found_compare(const void *a, const void *b) {
  const spile__found *x = a;
  const spile__found *y = b;
  if (x->at != y->at)
    return x->at < y->at ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

/* FILE:LINE:COLUMN: PATH: WHAT; ADVICE, and how many there are. */
static void error_fill(const spile__faults *faults, const spile_fault *fault, spile_error *error) {
  if (error == NULL || error->code != 0)
    return;
  error->code = SPILE_ECONFIG;
  error->column = fault->column;
  char more[60] = "";
  if (faults->errors > 1)
    (void)snprintf(more, sizeof(more), " (the first of %zu errors)", faults->errors);
  /* What is cut, if anything must be, is not the count. */
  (void)snprintf(error->message, sizeof(error->message) - strlen(more), "%s:%d:%d: %s%s%s%s%s", fault->file,
                 fault->line, fault->column, fault->path, fault->path[0] != '\0' ? ": " : "", fault->what,
                 fault->advice[0] != '\0' ? "; " : "", fault->advice);
  size_t len = strlen(error->message);
  memcpy(error->message + len, more, strlen(more) + 1);
  for (char *c = error->message; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7f)
      *c = '?';
  }
}

/* How many of a level there are that are not kept, where the last that is kept stands. */
static void hidden_tell(const spile__faults *faults, spile_fault_level level, size_t hidden, spile_fault_visitor *visit,
                        void *user, spile_error *error) {
  if (hidden == 0 || faults->count == 0)
    return;
  char what[80];
  (void)snprintf(what, sizeof(what), "%zu more %s not shown", hidden,
                 level == SPILE_FAULT_ERROR ? (hidden == 1 ? "error is" : "errors are")
                                            : (hidden == 1 ? "warning is" : "warnings are"));
  spile_fault rest = faults->found[faults->count - 1].fault;
  rest.level = (int)level;
  rest.path = "";
  rest.what = what;
  rest.advice = "correct these first";
  rest.count = hidden;
  if (level == SPILE_FAULT_ERROR)
    error_fill(faults, &rest, error);
  if (visit != NULL)
    visit(user, &rest);
}

void spile__faults_tell(spile__faults *faults, const char *text, spile_fault_visitor *visit, void *user,
                        spile_error *error) {
  if (faults->count > 0)
    qsort(faults->found, faults->count, sizeof(*faults->found), found_compare);
  place p = {.line = 1};
  size_t told[2] = {0}; /* errors, warnings */
  for (size_t i = 0; i < faults->count; i++) {
    spile_fault *fault = &faults->found[i].fault;
    told[fault->level == SPILE_FAULT_ERROR ? 0 : 1]++;
    place_move(&p, text, faults->found[i].at);
    fault->line = p.line;
    fault->column = (int)(faults->found[i].at - p.line_start) + 1;
    if (fault->level == SPILE_FAULT_ERROR)
      error_fill(faults, fault, error);
    if (visit != NULL)
      visit(user, fault);
  }
  hidden_tell(faults, SPILE_FAULT_ERROR, faults->errors - told[0], visit, user, error);
  hidden_tell(faults, SPILE_FAULT_WARNING, faults->warnings - told[1], visit, user, error);
}

void spile__faults_finish(spile__faults *faults) {
  spile__arena_finish(&faults->arena);
}
