/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/lmdb_store.h"
#include "fault_seam.h"
#include "limiter/env.h"
#include "temp_dir.h"

static char dir[TEMP_DIR_LEN];
static char uri[TEMP_DIR_LEN + 32];

static const char *lmdb_start(void) {
  temp_dir_make(dir);
  (void)snprintf(uri, sizeof(uri), "lmdb:%s/store?map_size=64MiB", dir);
  return uri;
}

static pid_t holder;

static void lmdb_stop(void) {
  fault_clear();
  if (holder > 0) {
    (void)kill(holder, SIGKILL);
    (void)waitpid(holder, NULL, 0);
    holder = 0;
  }
  temp_dir_remove(dir);
}

static void lmdb_writes_fail(void) {
  fault_set(&(fault_plan){.fails = INT_MAX, .error = EIO});
}

static void holder_run(int told) {
  spile_env env;
  spile__env_init(&env);
  const spile__store_config config = {
      .address = uri + strlen("lmdb:"), .env = &env, .key_prefix = "rl", .timeout_ms = 10000};
  spile_store *store;
  spile_error error = {0};
  if (spile__lmdb_open(&store, &config, &error) != SPILE_OK ||
      spile__lmdb_env_lock(((spile__lmdb_store *)store)->env, &env, INT64_MAX, &error) != SPILE_OK ||
      write(told, "h", 1) != 1)
    _exit(1);
  for (;;)
    (void)pause();
}

/* A process that stands still while it writes. */
static void lmdb_is_locked(void) {
  int told[2];
  char byte;
  cr_assert(pipe(told) == 0);
  holder = fork();
  if (holder == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    holder_run(told[1]);
  }
  (void)close(told[1]);
  cr_assert(holder > 0 && read(told[0], &byte, 1) == 1);
  (void)close(told[0]);
}

static void (*const lmdb_refuse_writes[])(void) = {lmdb_writes_fail, lmdb_is_locked, NULL};

static const store_fixture fixture = {
    .start = lmdb_start, .stop = lmdb_stop, .shared = true, .refuse_writes = lmdb_refuse_writes};

#define CHECK(check) CONFORMANCE_TEST(conformance_lmdb, check, &fixture)
CONFORMANCE_CHECKS(CHECK)
