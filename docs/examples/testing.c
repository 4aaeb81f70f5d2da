/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How to test code that uses spile: the memory store, a clock that stands still until told, and a store that fails when
 * told. Nothing sleeps, and every run gives the same answers.
 *
 * The code under test is may_send: three messages at once, one more every ten seconds, and none while the store is
 * down.
 */
#include <spile/spile.h>
#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool may_send(spile_limiter *limiter, const spile_limit *limit, const char *user, int64_t *wait_ms) {
  spile_decision decision;
  int result = spile_take(limiter, limit, user, strlen(user), 1, &decision);
  *wait_ms = decision.retry_after_ms;
  return result == SPILE_ALLOWED;
}

static void expect(bool truth, const char *what) {
  printf("%s: %s\n", truth ? "ok" : "NOT OK", what);
  if (!truth)
    exit(1);
}

static void test_time(const spile_limit *limit) {
  spile_fake_clock *clock = spile_fake_clock_new(1000);
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = spile_fake_clock_now;
  options.sleep_ms = spile_fake_clock_sleep;
  options.clock = clock;
  spile_limiter *limiter = NULL;
  int64_t wait_ms;
  expect(clock != NULL && spile_open(&limiter, "memory:", &options, NULL) == SPILE_OK, "the store opens");
  for (int i = 0; i < 3; i++)
    expect(may_send(limiter, limit, "alice", &wait_ms), "three messages go at once");
  expect(!may_send(limiter, limit, "alice", &wait_ms) && wait_ms == 10000, "the fourth waits ten seconds");
  spile_fake_clock_advance(clock, 9999);
  expect(!may_send(limiter, limit, "alice", &wait_ms) && wait_ms == 1, "a millisecond early is too early");
  spile_fake_clock_advance(clock, 1);
  expect(may_send(limiter, limit, "alice", &wait_ms), "then it goes");
  spile_decision decision;
  expect(spile_wait(limiter, limit, "alice", strlen("alice"), 1, SPILE_FOREVER, &decision) == SPILE_ALLOWED &&
             spile_fake_clock_now(clock) == 21000,
         "a wait moves the clock by ten seconds and does not sleep");
  spile_close(limiter);
  spile_fake_clock_free(clock);
}

static void test_outage(const spile_limit *limit) {
  spile_scripted_store *store = spile_scripted_store_new();
  spile_limiter *limiter = NULL;
  int64_t wait_ms;
  expect(store != NULL && spile_open_store(&limiter, spile_scripted_store_base(store), NULL, NULL) == SPILE_OK,
         "the scripted store opens");
  expect(spile_scripted_store_answer(store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0), "it is told to fail");
  expect(!may_send(limiter, limit, "alice", &wait_ms) && wait_ms == SPILE_UNKNOWN, "nothing goes while it is down");
  expect(may_send(limiter, limit, "alice", &wait_ms), "afterwards it does");
  expect(spile_scripted_store_calls(store) == 2, "it was asked twice");
  spile_close(limiter);
}

int main(void) {
  spile_limit *limit;
  if (spile_limit_parse(&limit, "1/10s,capacity=3", NULL) != SPILE_OK)
    return 1;
  test_time(limit);
  test_outage(limit);
  spile_limit_unref(limit);
  return 0;
}
