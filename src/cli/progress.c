/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { PROGRESS_PERIOD_MS = 250, PROGRESS_STEPS = 1024 };

static int64_t progress_now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

progress progress_start(bool scrolls) {
  progress shown = {.terminal = isatty(STDERR_FILENO) && !(scrolls && isatty(STDOUT_FILENO))};
  if (shown.terminal)
    shown.next_ms = progress_now_ms() + PROGRESS_PERIOD_MS;
  return shown;
}

void progress_step(progress *shown, uint64_t done, const char *what) {
  /* The clock is asked now and then only; a step may be shorter than the asking. */
  if (!shown->terminal || done % PROGRESS_STEPS != 0)
    return;
  int64_t now_ms = progress_now_ms();
  if (now_ms < shown->next_ms)
    return;
  shown->next_ms = now_ms + PROGRESS_PERIOD_MS;
  shown->shown = true;
  (void)fprintf(stderr, "\r%" PRIu64 " %s", done, what);
}

void progress_end(progress *shown) {
  if (shown->shown)
    (void)fprintf(stderr, "\r\033[K");
  shown->shown = false;
}
