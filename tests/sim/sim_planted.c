/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linked with a copy of one source file of the library in which a fault is planted. Succeeds when the simulation finds
 * it.
 */
#include <inttypes.h>
#include <stdio.h>

#include "sim_run.h"

#define TAKES_MAX 2000000

int main(int argc, char **argv) {
  sim *s = sim_new();
  sim_report report;
  sim_run(s, 1, TAKES_MAX, &(sim_options){0}, &report);
  sim_free(s);
  const char *name = argc > 1 ? argv[1] : "the fault";
  if (!report.failed) {
    (void)printf("%s: NOT FOUND in %" PRIu64 " takes\n", name, report.takes);
    return 1;
  }
  (void)printf("%s: found after %" PRIu64 " takes: %s\n", name, report.takes, report.failure);
  return 0;
}
