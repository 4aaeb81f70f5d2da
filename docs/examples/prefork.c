/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that forks its workers: all of them share one bucket in an LMDB directory, without a daemon.
 *
 * A limiter belongs to the process that opened it, so each worker opens its own, after the fork. A limit is only
 * numbers: the one that was parsed before serves everybody.
 *
 * Run: prefork lmdb:DIRECTORY. The bucket holds 100 tokens and refills one a day; 4 workers ask 50 times each, and
 * exactly 100 go ahead.
 */
#include <spile/spile.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 4, REQUESTS = 50 };

/* Begins with a full bucket, whatever an earlier run left. The limiter is closed before the fork. */
static int begin(const char *store, const spile_limit *limit) {
  spile_error error = {0};
  spile_limiter *limiter = NULL;
  int result = spile_open(&limiter, store, NULL, &error);
  if (result == SPILE_OK)
    result = spile_clear(limiter, limit, "everybody", strlen("everybody"), &error);
  if (result != SPILE_OK)
    fprintf(stderr, "%s\n", error.message);
  spile_close(limiter);
  return result;
}

/* Handles REQUESTS requests. @return how many were allowed, or -1 */
static int work(const char *store, const spile_limit *limit) {
  spile_error error = {0};
  spile_limiter *limiter;
  if (spile_open(&limiter, store, NULL, &error) != SPILE_OK) {
    fprintf(stderr, "%s\n", error.message);
    return -1;
  }
  int allowed = 0;
  for (int i = 0; i < REQUESTS; i++) {
    spile_decision decision;
    int result = spile_take(limiter, limit, "everybody", strlen("everybody"), 1, &decision);
    if (result < 0) {
      fprintf(stderr, "%s: %s\n", spile_code_text(result), decision.detail);
      spile_close(limiter);
      return -1;
    }
    allowed += result == SPILE_ALLOWED;
  }
  spile_close(limiter);
  return allowed;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: prefork lmdb:DIRECTORY\n");
    return 2;
  }
  spile_error error = {0};
  spile_limit *limit;
  if (spile_limit_parse(&limit, "1/d,capacity=100", &error) != SPILE_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  if (begin(argv[1], limit) != SPILE_OK)
    return 2;
  pid_t workers[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = fork();
    if (workers[i] < 0) {
      perror("fork");
      return 2;
    }
    if (workers[i] == 0) {
      int allowed = work(argv[1], limit);
      _exit(allowed < 0 ? 255 : allowed); /* at most REQUESTS, which fits an exit status */
    }
  }
  int sum = 0;
  for (int i = 0; i < WORKERS; i++) {
    int status;
    if (waitpid(workers[i], &status, 0) != workers[i] || !WIFEXITED(status) || WEXITSTATUS(status) > REQUESTS) {
      fprintf(stderr, "worker %d failed\n", i + 1);
      return 2;
    }
    printf("worker %d: %d of %d allowed\n", i + 1, WEXITSTATUS(status), REQUESTS);
    sum += WEXITSTATUS(status);
  }
  printf("together: %d allowed\n", sum);
  spile_limit_unref(limit);
  return sum == 100 ? 0 : 1;
}
