/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every store must do, as one suite. A store joins it with a fixture and these lines:
 *
 *   static const store_fixture fixture = {.start = …, .stop = …, .shared = …};
 *   #define CHECK(check) CONFORMANCE_TEST(conformance_NAME, check, &fixture)
 *   CONFORMANCE_CHECKS(CHECK)
 *
 * Everything goes through the public API. The time is given by a fake clock wherever a bucket has to refill.
 */
#ifndef SPILE_TESTS_CONFORMANCE_H
#define SPILE_TESTS_CONFORMANCE_H

#include <criterion/criterion.h>
#include <spile/spile.h>

typedef struct store_fixture {
  /* Starts what the store needs and returns the address for spile_open, which lives until stop. */
  const char *(*start)(void);
  void (*stop)(void);
  /* Opens a limiter on that address; NULL: spile_open. For a store that has no address of its own. */
  int (*open)(spile_limiter **out, const char *address, const spile_options *options, spile_error *error);
  /* Limiters opened on one address share buckets, also across processes. */
  bool shared;
  /* Ways in which the store can come to refuse whatever would be written while it can still be read, each for a store
   * that is just started and open; the last is NULL. NULL: a store whose writes cannot fail. */
  void (*const *refuse_writes)(void);
} store_fixture;

#define CONFORMANCE_CHECKS(X)                                  \
  X(allows_a_burst_of_the_capacity_and_not_one_more)           \
  X(core_02_keeps_the_part_of_a_token_already_earned)          \
  X(core_03_is_exact_for_a_rate_that_is_no_binary_fraction)    \
  X(core_04_counts_the_part_already_earned_in_the_wait)        \
  X(core_05_says_never_for_a_cost_above_the_capacity)          \
  X(core_06_refuses_negative_costs_and_takes_nothing_for_zero) \
  X(core_08_charges_nothing_for_a_denial)                      \
  X(core_09_earns_nothing_while_full)                          \
  X(core_10_survives_a_clock_that_goes_back)                   \
  X(core_11_cuts_the_level_when_the_capacity_shrinks)          \
  X(core_12_handles_more_than_one_token_a_millisecond)         \
  X(core_13_takes_from_several_limits_all_or_nothing)          \
  X(core_14_begins_each_window_anew)                           \
  X(core_15_weighs_the_window_before)                          \
  X(core_16_forgets_each_take_by_itself)                       \
  X(remembers_a_thousand_takes)                                \
  X(core_17_drains_a_leaky_bucket_while_hits_come_in)          \
  X(core_18_counts_beyond_32_bits)                             \
  X(core_19_peeks_without_leaving_a_trace)                     \
  X(core_20_converts_a_drained_bucket_when_its_limit_changes)  \
  X(core_21_converts_without_losing_fractions)                 \
  X(redis_03_handles_a_full_time_below_a_second)               \
  X(redis_05_loses_no_digit_near_2_to_53)                      \
  X(redis_13_keeps_any_bytes_of_a_key)                         \
  X(lmdb_03_tells_long_keys_apart)                             \
  X(tells_limits_and_keys_apart)                               \
  X(sums_requests_that_name_one_bucket)                        \
  X(refuses_one_bucket_with_two_sets_of_numbers)               \
  X(decides_by_the_strictest_limit)                            \
  X(takes_sixty_four_requests_at_once)                         \
  X(writes_a_conversion_for_a_denied_vector)                   \
  X(writes_nothing_for_a_vector_with_a_never)                  \
  X(lets_a_denial_stand_that_cannot_be_written)                \
  X(tells_the_longest_delay_of_several)                        \
  X(keeps_the_promise_of_every_denial)                         \
  X(charges_as_deep_as_the_debt_and_denies_until_it_is_paid)   \
  X(gives_back_and_keeps_nothing_of_a_full_bucket)             \
  X(settles_windows_in_the_window_of_now)                      \
  X(settles_a_log_by_its_newest_takes)                         \
  X(settles_several_buckets_in_one_step)                       \
  X(takes_up_to_what_is_there)                                 \
  X(converts_a_debt_when_its_limit_changes)                    \
  X(settles_on_its_own_clock)                                  \
  X(loses_no_charge_or_refund_of_many_threads)                 \
  X(forgets_a_bucket_when_told)                                \
  X(lists_what_is_stored)                                      \
  X(lists_every_algorithm)                                     \
  X(keeps_every_algorithm_until_it_counts_nothing)             \
  X(cleans_what_was_simulated)                                 \
  X(drops_full_buckets_only_when_told)                         \
  X(keeps_given_times_apart_from_its_own)                      \
  X(decides_on_its_own_clock)                                  \
  X(decides_every_algorithm_on_its_own_clock)                  \
  X(mem_02_lets_exactly_the_capacity_through_many_threads)     \
  X(charges_vectors_of_many_threads_all_or_nothing)            \
  X(lets_exactly_the_capacity_through_many_processes)          \
  X(lmdb_04_refuses_use_after_fork)

#define CONFORMANCE_DECLARE(check) void conformance_##check(const store_fixture *fixture);
CONFORMANCE_CHECKS(CONFORMANCE_DECLARE)
#undef CONFORMANCE_DECLARE

#define CONFORMANCE_TEST(suite, check, fixture) \
  Test(suite, check, .timeout = 120) {          \
    conformance_##check(fixture);               \
  }

#endif
