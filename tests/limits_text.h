/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits files in tests: loaded from text, their faults gathered as lines.
 */
#ifndef SPILE_TESTS_LIMITS_TEXT_H
#define SPILE_TESTS_LIMITS_TEXT_H

#include <spile/limits.h>

/* What loading found: "LINE:COLUMN PATH: WHAT; ADVICE" and a line end for each fault, "warning " before warnings. */
typedef struct limits_text {
  int result;
  size_t errors;
  size_t warnings;
  char faults[65536];
  spile_error error;
  spile_limits *limits;
} limits_text;

/* Loads a text that is named test.json. limits_text_finish gives back what it holds. */
limits_text *limits_text_of(const char *text);
limits_text *limits_text_of_bytes(const char *bytes, size_t len);
void limits_text_finish(limits_text *text);

/* The limits of a text without errors; the test fails when it has some. */
spile_limits *limits_of(const char *text);

/* All of a file of tests/data/limits; freed by the caller. */
char *limits_data(const char *name);
/* Its path. */
const char *limits_data_path(const char *name);

/* The text of the entry that a request meets. */
const char *entry_of(const spile_limits *limits, const char *method, const char *path, const char *tier);

#endif
