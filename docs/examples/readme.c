/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The README's program: five takes of one key under one limit. Run: readme [STORE].
 */
#include <spile/spile.h>
#include <stdio.h>

int main(int argc, char **argv) {
  const char *store = argc > 1 ? argv[1] : "lmdb:spile-store"; /* a directory; made if missing */
  spile_error error = {0};
  spile_limit *limit = NULL;
  spile_limiter *limiter = NULL;
  if (spile_limit_parse(&limit, "1/2s,capacity=3", &error) != SPILE_OK ||
      spile_open(&limiter, store, NULL, &error) != SPILE_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  for (int i = 0; i < 5; i++) {
    spile_decision decision;
    int result = spile_take(limiter, limit, "alice", 5, 1, &decision); /* 5 bytes of key, 1 token */
    if (result == SPILE_ALLOWED)
      printf("allowed, %lld left\n", (long long)decision.remaining);
    else if (result == SPILE_DENIED && decision.decided_by == SPILE_BY_STORE)
      printf("denied, try again in %lld ms\n", (long long)decision.retry_after_ms);
    else if (result == SPILE_DENIED) /* by a policy, or for want of room: an HTTP server says 503 here, not 429 */
      printf("not now: %s\n", decision.detail);
    else
      printf("no answer: %s: %s\n", spile_code_text(result), decision.detail);
  }
  spile_close(limiter);
  spile_limit_unref(limit);
}
