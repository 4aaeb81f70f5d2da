/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of progress on a terminal's standard error, a few times a second; nothing anywhere else.
 */
#ifndef SPILE_CLI_PROGRESS_H
#define SPILE_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
  bool terminal;
  bool shown;
  int64_t next_ms;
} progress;

/* `scrolls`: the result is printed meanwhile, so that on a terminal it is progress enough. */
progress progress_start(bool scrolls);
void progress_step(progress *shown, uint64_t done, const char *what);
/* Takes the line away again. */
void progress_end(progress *shown);

#endif
