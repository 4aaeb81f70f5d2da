/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Millions of takes of the real limiter, breaker and Redis store, with everything around them made up. A failure prints
 * one line; with what it begins with in the environment, the same run fails in the same way again:
 *
 *   SPILE_SIM_SEED=274 SPILE_SIM_TAKES=53 tests/sim/test_simulation --filter 'simulation/keeps_every_promise'
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_run.h"

/* More than any planted fault needs. */
#define PLANTED_TAKES 2000000

static uint64_t setting(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static sim_report run(uint64_t seed, uint64_t takes, sim_options options) {
  sim *s = sim_new();
  sim_report report;
  sim_run(s, seed, takes, &options, &report);
  sim_free(s);
  return report;
}

static const char *const algorithm_names[SIM_ALGORITHMS] = {
    [SPILE_TOKEN_BUCKET] = "token buckets", [SPILE_LEAKY_BUCKET] = "leaky buckets",
    [SPILE_FIXED_WINDOW] = "fixed windows", [SPILE_SLIDING_WINDOW] = "sliding windows",
    [SPILE_SLIDING_LOG] = "sliding logs",
};

static void print_report(const sim_report *report) {
  (void)fprintf(stderr,
                "%" PRIu64 " takes in %" PRIu64 " runs: the store answered %" PRIu64 ", %" PRIu64
                " may have been charged and %" PRIu64 " were not (%" PRIu64
                " of these refused by the breaker); %" PRIu64
                " were answered without a charge while charges failed; the server ran %" PRIu64 "\n",
                report->takes, report->runs, report->answered, report->unclear, report->uncharged, report->refused,
                report->first, report->served);
  (void)fprintf(stderr,
                "%" PRIu64 " charges metered; at most %zu possible worlds, %" PRIu64 " buckets with too many; %" PRIu64
                " recoveries, %" PRIu64 " killed clients; %" PRIu64
                " answers that only an echo could tell; digest %016" PRIx64 "\n",
                report->charges, report->most, report->inconclusive, report->recoveries, report->reopened, report->lies,
                report->digest);
  for (int i = SPILE_TOKEN_BUCKET; i < SIM_ALGORITHMS; i++)
    (void)fprintf(stderr, "%s %" PRIu64 ", ", algorithm_names[i], report->limited[i]);
  (void)fprintf(stderr,
                "%" PRIu64 " charges, %" PRIu64 " not in full, %" PRIu64 " refunds, %" PRIu64 " takes up to, %" PRIu64
                " of more than the least\n",
                report->asked[SIM_CHARGE], report->uncharged_part, report->asked[SIM_REFUND],
                report->asked[SIM_TAKE_UP_TO], report->granted);
  for (int i = SIM_NO_FAULT + 1; i < SIM_FAULTS; i++)
    (void)fprintf(stderr, "%s %" PRIu64 "%s", sim_fault_name((sim_fault)i), report->faults[i],
                  i + 1 < SIM_FAULTS ? ", " : "\n");
}

Test(simulation, keeps_every_promise) {
  uint64_t seed = setting("SPILE_SIM_SEED", 1);
  uint64_t takes = setting("SPILE_SIM_TAKES", SIM_TAKES);
  (void)fprintf(stderr, "SPILE_SIM_SEED=%" PRIu64 " SPILE_SIM_TAKES=%" PRIu64 "\n", seed, takes);
  sim_report report = run(seed, takes, (sim_options){0});
  print_report(&report);
  cr_assert(report.failed == false, "%s", report.failure);
  /* What never happened was not tested. */
  if (takes < 300000)
    return;
  for (int i = SIM_NO_FAULT + 1; i < SIM_FAULTS; i++)
    cr_expect(report.faults[i] > 0, "%s never happened", sim_fault_name((sim_fault)i));
  for (int i = SPILE_TOKEN_BUCKET; i < SIM_ALGORITHMS; i++)
    cr_expect(report.limited[i] > takes / 20, "%s were met %" PRIu64 " times", algorithm_names[i], report.limited[i]);
  cr_expect(report.asked[SIM_CHARGE] > takes / 100);
  cr_expect(report.uncharged_part > takes / 1000);
  cr_expect(report.asked[SIM_REFUND] > takes / 100);
  cr_expect(report.asked[SIM_TAKE_UP_TO] > takes / 100);
  cr_expect(report.granted > takes / 1000);
  cr_expect(report.answered > takes / 2);
  cr_expect(report.unclear > takes / 100);
  cr_expect(report.refused > takes / 200);
  cr_expect(report.first > takes / 10000);
  cr_expect(report.charges > takes / 4);
  cr_expect(report.most > 10);
  cr_expect(report.inconclusive < report.runs / 1000 + 1);
}

Test(simulation, is_the_same_run_for_the_same_seed) {
  sim_report first = run(7, 200000, (sim_options){0});
  sim_report second = run(7, 200000, (sim_options){0});
  sim_report other = run(7007, 200000, (sim_options){0});
  cr_assert(first.failed == false, "%s", first.failure);
  cr_expect(eq(u64, first.digest, second.digest));
  cr_expect(ne(u64, first.digest, other.digest));
  cr_expect(eq(int, memcmp(first.faults, second.faults, sizeof(first.faults)), 0));
}

/* ---- Faults of the script, planted one at a time; those of the library are in meson.build ---- */

static const char *planted_text(sim_planted planted) {
  static const char *const texts[SIM_PLANTED] = {[SIM_NOTHING_PLANTED] = "nothing",
#define PLANTED_TEXT(name, text) [SIM_PLANT_##name] = text,
                                                 SIM_PLANTED_LIST(PLANTED_TEXT)
#undef PLANTED_TEXT
  };
  return texts[planted];
}

Test(simulation, finds_every_fault_planted_in_the_script) {
  for (int planted = SIM_NOTHING_PLANTED + 1; planted < SIM_PLANTED; planted++) {
    sim_report report = run(1, PLANTED_TAKES, (sim_options){.planted = (sim_planted)planted});
    (void)fprintf(stderr, "%7" PRIu64 " takes: %s\n", report.takes, planted_text((sim_planted)planted));
    cr_expect(report.failed, "not found in %" PRIu64 " takes: %s", report.takes, planted_text((sim_planted)planted));
  }
}

/* The meter shares no formula with the model, so it would see a mistake that model and core have in common. */
Test(simulation, finds_by_the_meter_alone_what_admits_too_much) {
  static const sim_planted too_much[] = {SIM_PLANT_FULL_AT_GOES_BACK,      SIM_PLANT_EXPIRY_FROM_NOW,
                                         SIM_PLANT_EXPIRY_BEFORE_FULL,     SIM_PLANT_EXPIRY_WITHOUT_TOLERANCE,
                                         SIM_PLANT_FRACTION_LOST,          SIM_PLANT_DEBT_FORGOTTEN,
                                         SIM_PLANT_WINDOW_GOES_BACK,       SIM_PLANT_WINDOW_BEFORE_FORGOTTEN,
                                         SIM_PLANT_WINDOW_BEFORE_REFUNDED, SIM_PLANT_LOG_FORGETS_EARLY};
  for (size_t i = 0; i < sizeof(too_much) / sizeof(too_much[0]); i++) {
    sim_report report = run(1, PLANTED_TAKES, (sim_options){.planted = too_much[i], .meter_alone = true});
    (void)fprintf(stderr, "%7" PRIu64 " takes: %s\n", report.takes, planted_text(too_much[i]));
    cr_expect(report.failed && strstr(report.failure, "admitted more") != NULL, "%s: %s", planted_text(too_much[i]),
              report.failure);
  }
  sim_report none = run(1, 200000, (sim_options){.meter_alone = true});
  cr_expect(none.failed == false, "%s", none.failure);
}

/* The line that a failure prints, read back. */
Test(simulation, fails_again_by_what_a_failure_prints) {
  sim_report report = run(1, PLANTED_TAKES, (sim_options){.planted = SIM_PLANT_COST_0_WRITES});
  cr_assert(report.failed);
  uint64_t seed;
  uint64_t takes;
  cr_assert(eq(int, sscanf(report.failure, "SPILE_SIM_SEED=%" SCNu64 " SPILE_SIM_TAKES=%" SCNu64, &seed, &takes), 2));
  sim_report again = run(seed, takes, (sim_options){.planted = SIM_PLANT_COST_0_WRITES});
  cr_expect(eq(str, again.failure, report.failure));
  cr_expect(eq(u64, again.takes, takes));
  sim_report before = run(seed, takes - 1, (sim_options){.planted = SIM_PLANT_COST_0_WRITES});
  cr_expect(strcmp(before.failure, report.failure) != 0);
}
