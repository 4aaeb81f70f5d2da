/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A build without zlib says so of a compressed log, instead of reading it as broken lines.
 */
#include <stdio.h>
#include <string.h>

#include "run_command.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

Test(replay_gzip_absent, a_compressed_log_is_refused_with_the_way_out, .fini = run_directory_remove) {
  char path[256];
  (void)snprintf(path, sizeof(path), "%s/access.log.2.gz", run_directory());
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL);
  cr_assert(fwrite("\x1f\x8b\x08\0\0\0\0\0", 1, 8, file) == 8 && fclose(file) == 0);
  run_result run;
  run_command(&run, &(run_options){.args = ARGS("replay", "--limit", "5/s", path)});
  cr_assert(run.status == 3, "status %d: %s", run.status, run.err);
  cr_assert(eq(str, run.out, ""));
  static const char why[] =
      "access.log.2.gz: this build of spile cannot decompress gzip; pipe the file through gzip -dc";
  cr_assert(strstr(run.err, why) != NULL, "%s", run.err);
  run_result_finish(&run);
}
