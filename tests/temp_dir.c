/* SPDX-License-Identifier: Apache-2.0 */
#include "temp_dir.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

void temp_dir_make(char path[TEMP_DIR_LEN]) {
  const char *base = getenv("TMPDIR");
  (void)snprintf(path, TEMP_DIR_LEN, "%s/spile-test-XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
  cr_assert(mkdtemp(path) != NULL, "no temporary directory %s", path);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk) {
  (void)info;
  (void)kind;
  (void)walk;
  return remove(path);
}

void temp_dir_remove(const char *path) {
  (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
