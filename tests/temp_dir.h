/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory for one test.
 */
#ifndef SPILE_TESTS_TEMP_DIR_H
#define SPILE_TESTS_TEMP_DIR_H

#define TEMP_DIR_LEN 512

/* Makes an empty directory under $TMPDIR or /tmp and writes its path; the test fails when it cannot. */
void temp_dir_make(char path[TEMP_DIR_LEN]);

/* Removes it with all that is in it. */
void temp_dir_remove(const char *path);

#endif
