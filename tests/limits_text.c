/* SPDX-License-Identifier: Apache-2.0 */
#include "limits_text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fault_add(void *user, const spile_fault *fault) {
  limits_text *text = user;
  bool warning = fault->level == SPILE_FAULT_WARNING;
  cr_assert(warning || fault->level == SPILE_FAULT_ERROR);
  cr_assert(fault->count >= 1);
  *(warning ? &text->warnings : &text->errors) += fault->count;
  size_t len = strlen(text->faults);
  (void)snprintf(text->faults + len, sizeof(text->faults) - len, "%s%d:%d %s: %s; %s\n", warning ? "warning " : "",
                 fault->line, fault->column, fault->path, fault->what, fault->advice);
  /* Every fault is one line that a terminal may see. */
  for (const char *c = text->faults + len; *c != '\0'; c++)
    cr_assert(((unsigned char)*c >= 0x20 && (unsigned char)*c < 0x7f) || c[1] == '\0', "%s", text->faults + len);
}

limits_text *limits_text_of_bytes(const char *bytes, size_t len) {
  limits_text *text = calloc(1, sizeof(*text));
  cr_assert(text != NULL);
  text->result = spile_limits_parse(&text->limits, bytes, len, "test.json", fault_add, text, &text->error);
  cr_assert((text->result == SPILE_OK) == (text->limits != NULL));
  cr_assert((text->result == SPILE_ECONFIG) == (text->errors > 0), "%d, %zu errors: %s", text->result, text->errors,
            text->faults);
  cr_assert((text->result == SPILE_OK) == (text->error.code == 0));
  return text;
}

limits_text *limits_text_of(const char *text) {
  return limits_text_of_bytes(text, strlen(text));
}

void limits_text_finish(limits_text *text) {
  spile_limits_unref(text->limits);
  free(text);
}

spile_limits *limits_of(const char *text) {
  limits_text *loaded = limits_text_of(text);
  cr_assert(loaded->result == SPILE_OK, "%s", loaded->faults);
  spile_limits *limits = spile_limits_ref(loaded->limits);
  limits_text_finish(loaded);
  return limits;
}

const char *limits_data_path(const char *name) {
  static char path[4096];
  const char *directory = getenv("SPILE_TEST_DATA");
  cr_assert(directory != NULL, "SPILE_TEST_DATA must be the path of the directory tests");
  (void)snprintf(path, sizeof(path), "%s/data/limits/%s", directory, name);
  return path;
}

char *limits_data(const char *name) {
  FILE *file = fopen(limits_data_path(name), "rb");
  cr_assert(file != NULL, "%s", limits_data_path(name));
  char *text = calloc(1, 65536);
  cr_assert(text != NULL);
  cr_assert(fread(text, 1, 65535, file) < 65535);
  (void)fclose(file);
  return text;
}

const char *entry_of(const spile_limits *limits, const char *method, const char *path, const char *tier) {
  return spile_route_text(spile_limits_find(limits, method, path, tier));
}
