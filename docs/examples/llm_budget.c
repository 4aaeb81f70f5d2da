/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A budget of tokens for a language model, whose cost is known only when the answer has been written.
 *
 * Before the call an estimate is taken: the tokens of the prompt, and as many for the answer as it may have at most or,
 * where the budget has less, as many as there are. Afterwards the difference is settled: what was not needed is
 * refunded, and what was needed beyond the estimate is charged. The level may fall below zero by the limit's debt, so
 * that an answer longer than expected is paid by who asked for it, and nobody's next call is let through before it is
 * paid.
 *
 *   llm_budget memory:
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <spile/spile.h>

/* What a call is expected to need, and what it will have needed. */
typedef struct llm_call {
  const char *user;
  int64_t prompt;     /* tokens, counted before the call */
  int64_t answer_min; /* below this an answer is of no use */
  int64_t answer_max;
  int64_t answer; /* tokens that the model will have written */
  int64_t hidden; /* and others that it used without being asked, such as for tools */
} llm_call;

/* Gives back or charges what the estimate was wrong by. @return false: the store did not answer */
static bool settle(spile_limiter *limiter, const spile_limit *limit, const char *user, int64_t taken, int64_t used) {
  spile_decision after;
  int result = SPILE_ALLOWED;
  if (used < taken)
    result = spile_refund(limiter, limit, user, strlen(user), taken - used, &after);
  else if (used > taken)
    result = spile_charge(limiter, limit, user, strlen(user), used - taken, &after);
  if (result < 0) {
    /* It may have been done or not. Sending it again could do it twice, so it goes into the books instead. */
    (void)fprintf(stderr, "%s: %" PRId64 " taken, %" PRId64 " used, not settled: %s\n", user, taken, used,
                  after.detail);
    return false;
  }
  if (used == taken)
    printf("  used exactly that\n");
  else if (used < taken)
    printf("  refunded %" PRId64 ", %" PRId64 " left\n", taken - used, after.remaining);
  else
    printf("  charged %" PRId64 " more, %" PRId64 " left, full in %" PRId64 " s%s\n", used - taken, after.remaining,
           (after.reset_after_ms + 999) / 1000, after.uncharged > 0 ? ", not all of it" : "");
  return true;
}

/* @return 1 the call was made, 0 it has to wait, -1 no answer from the store */
static int ask_model(spile_limiter *limiter, const spile_limit *limit, const llm_call *call) {
  spile_decision taken;
  int result = spile_take_up_to(limiter, limit, call->user, strlen(call->user), call->prompt + call->answer_min,
                                call->prompt + call->answer_max, &taken);
  if (result < 0) {
    (void)fprintf(stderr, "%s: %s\n", call->user, taken.detail);
    return -1;
  }
  if (result == SPILE_DENIED) {
    printf("%s: denied, a call of %" PRId64 " fits in %" PRId64 " s\n", call->user, call->prompt + call->answer_min,
           (taken.retry_after_ms + 999) / 1000);
    return 0;
  }
  if (result == SPILE_NEVER) {
    printf("%s: never, the budget is %" PRId64 "\n", call->user, taken.capacity);
    return 0;
  }

  /* Here the model would be asked, with this as its max_tokens. */
  int64_t max_tokens = taken.granted - call->prompt;
  int64_t answer = call->answer < max_tokens ? call->answer : max_tokens;
  printf("%s: %" PRId64 " taken, max_tokens=%" PRId64 "\n", call->user, taken.granted, max_tokens);
  return settle(limiter, limit, call->user, taken.granted, call->prompt + answer + call->hidden) ? 1 : -1;
}

int main(int argc, char **argv) {
  spile_limiter *limiter;
  spile_limit *limit;
  spile_error error = {0};
  if (spile_open(&limiter, argc > 1 ? argv[1] : "memory:", NULL, &error) != SPILE_OK) {
    (void)fprintf(stderr, "llm_budget: %s\n", error.message);
    return 1;
  }
  /* 10,000 tokens a day, of which nothing comes back while this runs, and an overdraft of 2,000. */
  if (spile_limit_parse(&limit, "10000/d,name=llm,debt=2000", &error) != SPILE_OK) {
    (void)fprintf(stderr, "llm_budget: %s\n", error.message);
    spile_close(limiter);
    return 1;
  }

  static const llm_call calls[] = {
      {"alice", 500, 100, 4000, 1200, 0},   /* short answer: 3,300 refunded */
      {"alice", 800, 100, 4000, 4000, 300}, /* used tools: 300 charged */
      {"alice", 1200, 500, 4000, 4000, 0},  /* the estimate is cut to what is there */
      {"bob", 9000, 500, 4000, 1000, 1500}, /* overdrawn by 1,500 */
      {"bob", 100, 100, 1000, 100, 0},      /* waits until that is paid */
      {"carol", 9950, 100, 200, 100, 0},    /* larger than the budget */
  };
  static const int made[] = {1, 1, 1, 1, 0, 0};
  int failed = 0;
  for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
    failed |= ask_model(limiter, limit, &calls[i]) != made[i];
  spile_limit_unref(limit);
  spile_close(limiter);
  return failed;
}
