/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model judges the library, so it is judged here by hand: every expected number stands in the comment above it.
 */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "model.h"

static model_limit limit_of(int64_t capacity, int64_t tokens, int64_t period_ms) {
  model_limit limit;
  cr_assert(model_limit_make(&limit, capacity, tokens, period_ms, 0));
  return limit;
}

static model_answer ask(model_bucket *bucket, bool take, int64_t now_ms, model_limit limit, int64_t cost) {
  model_request request = {.limit = limit, .cost = cost};
  model_answer answer;
  model_answer each;
  (void)model_decide(bucket, take, now_ms, &request, 1, &answer, &each);
  cr_assert(answer.outcome == each.outcome && answer.remaining == each.remaining);
  return answer;
}

static void expect(model_answer got, int outcome, int64_t remaining, int64_t retry_ms, int64_t reset_ms) {
  cr_expect(eq(int, got.outcome, outcome));
  cr_expect(eq(i64, got.remaining, remaining));
  cr_expect(eq(i64, got.retry_after_ms, retry_ms));
  cr_expect(eq(i64, got.reset_after_ms, reset_ms));
}

Test(model, limits_are_reduced_to_lowest_terms) {
  model_limit limit = limit_of(100, 60, 60000);
  cr_assert(limit.refill == 1 && limit.period_ms == 1000);
  limit = limit_of(1, 99, 77);
  cr_assert(limit.refill == 9 && limit.period_ms == 7);
}

Test(model, bounds_hold_at_the_edge_and_not_past_it) {
  model_limit limit;
  /* capacity + 1001·N = 2^53 − 1 with P = 1, N = 30000: 9007199254740991 − 30030000 */
  cr_expect(model_limit_make(&limit, INT64_C(9007199224710991), 30000, 1, 0));
  cr_expect(not(model_limit_make(&limit, INT64_C(9007199224710992), 30000, 1, 0)));
  cr_expect(not(model_limit_make(&limit, INT64_C(9007199224710991), 30000, 1, 1)));
  cr_expect(model_limit_make(&limit, 1, 1, INT64_C(315360000000), 0));
  cr_expect(not(model_limit_make(&limit, 1, 1, INT64_C(315360000001), 0)));
  /* 3 tokens at 1 in 105120000000 ms are ten years; one more ms a token is 3 ms too long */
  cr_expect(model_limit_make(&limit, 3, 1, INT64_C(105120000000), 0));
  cr_expect(not(model_limit_make(&limit, 3, 1, INT64_C(105120000001), 0)));
}

/* C = 60, 1 per 1000: empty at 1000, level 29 at 30000, 4 after 25; 56 lacking at 30000, so full at 86000. */
Test(model, the_sanity_run_of_a_bucket) {
  model_bucket bucket = {0};
  model_limit limit = limit_of(60, 1, 1000);
  expect(ask(&bucket, true, 1000, limit, 60), SPILE_ALLOWED, 0, 0, 60000);
  expect(ask(&bucket, false, 30000, limit, 1), SPILE_ALLOWED, 29, 0, 31000);
  expect(ask(&bucket, true, 30000, limit, 25), SPILE_ALLOWED, 4, 0, 56000);
  expect(ask(&bucket, false, 85999, limit, 1), SPILE_ALLOWED, 59, 0, 1);
  expect(ask(&bucket, false, 86000, limit, 61), SPILE_NEVER, 60, SPILE_UNKNOWN, 0);
}

/* Half a token a millisecond short of a token of 1.5 ms: (2·3 − 0)/2 ms for 2 tokens, rounded up. */
Test(model, waits_round_up_and_what_is_left_rounds_down) {
  model_bucket bucket = {0};
  model_limit limit = limit_of(3, 2, 3);
  expect(ask(&bucket, true, 0, limit, 3), SPILE_ALLOWED, 0, 0, 5); /* 9/2 */
  expect(ask(&bucket, true, 1, limit, 1), SPILE_DENIED, 0, 1, 4);  /* 1/2; 7/2 */
  expect(ask(&bucket, true, 2, limit, 1), SPILE_ALLOWED, 0, 0, 4); /* level 4 − 3 = 1; 8/2 */
  expect(ask(&bucket, true, 2, limit, 0), SPILE_ALLOWED, 0, 0, 4);
}

/*
 * C = 10, 1 per 1000, emptied at 20000. At 19000 the level is −1; at 18999 it is 1001 units short of empty, which is
 * cut to empty, so the next token comes at 19999 and the bucket is full at 28999.
 */
Test(model, a_clock_a_second_behind_is_believed_and_one_more_is_cut) {
  model_bucket bucket = {0};
  model_limit limit = limit_of(10, 1, 1000);
  expect(ask(&bucket, true, 20000, limit, 10), SPILE_ALLOWED, 0, 0, 10000);
  expect(ask(&bucket, true, 19000, limit, 0), SPILE_DENIED, 0, 1000, 11000);
  expect(ask(&bucket, true, 19000, limit, 1), SPILE_DENIED, 0, 2000, 11000);
  expect(ask(&bucket, false, 18999, limit, 1), SPILE_DENIED, 0, 1000, 10000);
  expect(ask(&bucket, false, 20000, limit, 1), SPILE_DENIED, 0, 1000, 10000); /* a peek did not keep the cut */
  expect(ask(&bucket, true, 18999, limit, 1), SPILE_DENIED, 0, 1000, 10000);
  expect(ask(&bucket, false, 20000, limit, 1), SPILE_ALLOWED, 1, 0, 8999); /* a take did */
}

/* 1.7 of 5 tokens at 1 per 7 ms (12 of 35 units) are ⌊12·3/7⌋ = 5 units of 1 per 3 ms: 1 token, 1 ms to the second. */
Test(model, a_conversion_keeps_a_unit_of_the_new_shape) {
  model_bucket bucket = {0};
  expect(ask(&bucket, true, 0, limit_of(5, 1, 7), 5), SPILE_ALLOWED, 0, 0, 35);
  expect(ask(&bucket, true, 12, limit_of(5, 1, 3), 2), SPILE_DENIED, 1, 1, 10);
  cr_expect(bucket.level == 5 && bucket.at_ms == 12 && bucket.limit.period_ms == 3);
  expect(ask(&bucket, true, 12, limit_of(1, 1, 3), 1), SPILE_ALLOWED, 0, 0, 3);
}

Test(model, a_vector_charges_all_or_none_and_the_longest_wait_decides) {
  model_bucket buckets[2] = {0};
  model_request requests[3] = {{.bucket = 0, .limit = limit_of(2, 1, 10), .cost = 1},
                               {.bucket = 1, .limit = limit_of(3, 1, 50), .cost = 2},
                               {.bucket = 0, .limit = limit_of(2, 1, 10), .cost = 1}};
  model_answer answer;
  model_answer each[3];
  /* Bucket 0 gives both of its tokens, bucket 1 keeps one. */
  cr_assert(eq(int, model_decide(buckets, true, 0, requests, 3, &answer, each), SPILE_ALLOWED));
  cr_expect(answer.index == 0 && answer.remaining == 0 && each[1].remaining == 1 && each[2].remaining == 0);
  /* 2 tokens of 10 ms against 1 of 50 ms; nothing is charged. */
  cr_assert(eq(int, model_decide(buckets, true, 0, requests, 3, &answer, each), SPILE_DENIED));
  cr_expect(answer.index == 1 && answer.retry_after_ms == 50 && each[0].retry_after_ms == 20);
  cr_expect(each[1].remaining == 1 && each[2].index == 2 && each[2].retry_after_ms == 20);
  /* Twice 1 and 3 of capacity 2 can never be. */
  requests[2].cost = 2;
  cr_assert(eq(int, model_decide(buckets, true, 1000, requests, 3, &answer, each), SPILE_NEVER));
  cr_expect(answer.index == 0 && each[1].outcome == SPILE_ALLOWED && each[1].remaining == 3);
}
