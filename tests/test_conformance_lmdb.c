/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "temp_dir.h"

static char dir[TEMP_DIR_LEN];
static char uri[TEMP_DIR_LEN + 32];

static const char *lmdb_start(void) {
  temp_dir_make(dir);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store?map_size=64MiB", dir);
  return uri;
}

static void lmdb_stop(void) {
  temp_dir_remove(dir);
}

static const store_fixture fixture = {.start = lmdb_start, .stop = lmdb_stop, .shared = true};

#define CHECK(check) CONFORMANCE_TEST(conformance_lmdb, check, &fixture)
CONFORMANCE_CHECKS(CHECK)
