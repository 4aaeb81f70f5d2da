/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repair: a data file that is damaged is moved aside, under a name that was free, and the next open begins an empty
 * one.
 *
 * Nothing is mended. What a damaged tree still leads to may be the wrong bucket, and a missing bucket costs one
 * capacity more, which is what any loss of state may cost.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/address.h"
#include "backends/lmdb_check.h"
#include "backends/lmdb_env.h"

#define ASIDE_MAX 100000
#define ASIDE_NAME_LEN 32

typedef struct repair {
  const spile_env *outside;
  char aside[ASIDE_NAME_LEN]; /* out: the name it was moved to; empty: it was left alone */
} repair;

/* Gives the file the first name that is free; the kernel sees to it that no file is written over. */
static int file_move(int dir_fd, repair *job, spile_error *error) {
  for (int n = 1; n <= ASIDE_MAX; n++) {
    (void)snprintf(job->aside, sizeof(job->aside), SPILE__LMDB_DATA_NAME ".damaged-%d", n);
    if (renameat2(dir_fd, SPILE__LMDB_DATA_NAME, dir_fd, job->aside, RENAME_NOREPLACE) == 0) {
      (void)fsync(dir_fd);
      return SPILE_OK;
    }
    if (errno != EEXIST)
      break;
  }
  job->aside[0] = '\0';
  return spile__lmdb_path_fail(error, "move the damaged LMDB data file aside", SPILE__LMDB_DATA_NAME);
}

static int repair_work(int dir_fd, void *user, spile_error *error) {
  repair *job = user;
  int fd = openat(dir_fd, SPILE__LMDB_DATA_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return errno == ENOENT ? SPILE_OK : spile__lmdb_path_fail(error, "open the LMDB data file", SPILE__LMDB_DATA_NAME);
  bool unfinished;
  spile_error found = {0};
  int result = spile__lmdb_check(fd, job->outside, &unfinished, &found);
  (void)close(fd);
  if (result == SPILE_OK && unfinished)
    job->outside->log(job->outside->log_user, SPILE_LOG_WARNING,
                      "lmdb: the data file is empty: there is nothing to repair, and what it may have held is lost");
  if (result == SPILE_OK)
    return SPILE_OK;
  if (result != SPILE_EUNAVAILABLE || found.reason == SPILE_REASON_FOREIGN)
    return spile__store_fail(error, result, (spile_reason)found.reason, "%s", found.message);
  result = file_move(dir_fd, job, error);
  if (result == SPILE_OK) {
    char line[300];
    /* Without what to do about it, which is done. */
    (void)snprintf(line, sizeof(line), "lmdb: moved aside to %s: %.*s", job->aside, (int)strcspn(found.message, ";"),
                   found.message);
    job->outside->log(job->outside->log_user, SPILE_LOG_WARNING, line);
  }
  return result;
}

int spile__lmdb_repair(const spile__store_config *config, char *moved_to, size_t size, spile_error *error) {
  spile__lmdb_settings settings;
  int result = spile__lmdb_settings_read(&settings, config->address, error);
  if (result != SPILE_OK)
    return result;
  if (moved_to != NULL && size < strlen(settings.path) + 1 + ASIDE_NAME_LEN)
    return spile__store_fail(error, SPILE_EINVAL, SPILE_REASON_NONE,
                             "moved_to is too short for the directory's path and %d bytes more", ASIDE_NAME_LEN + 1);
  int dir_fd = open(settings.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd < 0)
    return spile__lmdb_path_fail(error, "open the LMDB directory", settings.path);
  repair job = {.outside = config->env};
  /* Where there are no data nothing is made either: the path may be a wrong one. */
  if (faccessat(dir_fd, SPILE__LMDB_DATA_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
    result = spile__lmdb_alone(dir_fd, config, repair_work, &job, error);
  else if (errno != ENOENT)
    result = spile__lmdb_path_fail(error, "read the LMDB directory", settings.path);
  (void)close(dir_fd);
  if (result == SPILE_OK && moved_to != NULL && job.aside[0] != '\0')
    (void)snprintf(moved_to, size, "%s/%s", settings.path, job.aside);
  return result;
}
