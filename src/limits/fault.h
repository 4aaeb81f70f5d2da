/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The faults of a limits file: all of them are gathered, put in the order of the text, and told one a line.
 */
#ifndef SPILE_LIMITS_FAULT_H
#define SPILE_LIMITS_FAULT_H

#include <spile/limits.h>

#include "limits/arena.h"
#include "limits/scan.h"

/* So many are told; of a file that has more, the rest is counted. */
#define SPILE__FAULTS_MAX 1000

#define SPILE__LINES_STEP 65536

typedef struct spile__found {
  spile_fault fault;
  size_t at;    /* offset in the text */
  size_t order; /* in which it was found */
} spile__found;

typedef struct spile__faults {
  const char *file;
  const spile__document *document;
  spile__arena arena;
  spile__found *found;
  size_t count;
  size_t errors; /* these two count those not kept as well */
  size_t warnings;
  /* Lines that end before each so-manieth byte; made at the first question. */
  uint32_t lines[SPILE__DOCUMENT_LEN_MAX / SPILE__LINES_STEP + 1];
  bool lines_made;
} spile__faults;

/* A text to be shown, cut and made one harmless line. */
typedef struct spile__shown {
  char text[100];
} spile__shown;
spile__shown spile__show(const char *bytes, size_t len);

/* A value as the file has it: "60", 1.5, null, {...}. */
spile__shown spile__show_value(const spile__document *document, const spile__node *node);

/* What is wrong with a value; `advice` says what to write. The format is printf's. */
void spile__fault_error(spile__faults *faults, const spile__node *node, const char *advice, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void spile__fault_warning(spile__faults *faults, const spile__node *node, const char *advice, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same where there is no document to have a node. */
void spile__fault_at(spile__faults *faults, const spile__document_fault *fault);

/* The line of a value, counted from 1. */
int spile__fault_line(spile__faults *faults, const spile__node *node);

/* Where a fault of a node is told: at the name of a member, else at the value. */
void spile__fault_place(spile__faults *faults, const spile__node *node, int *line, int *column);

/* Tells all in the order of the text, and puts the first error and how many there are into `error`. */
void spile__faults_tell(spile__faults *faults, const char *text, spile_fault_visitor *visit, void *user,
                        spile_error *error);
void spile__faults_finish(spile__faults *faults);

#endif
