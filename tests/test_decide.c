/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How several readings become one decision. Every bucket here has P = 10 units a token and refills one unit a
 * millisecond, so a debt is its time to full.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "core/decide.h"
#include "core/limit.h"

#define ITEMS_MAX 4

typedef struct decide_case {
  const char *name;
  size_t n;
  struct {
    int64_t capacity, debt, cost;
  } items[ITEMS_MAX];
  int outcome;
  uint32_t index;
  int64_t remaining, retry_ms, reset_ms; /* of a take */
  int64_t peek_remaining, peek_reset_ms;
  uint32_t peek_index;
} decide_case;

static const decide_case cases[] = {
    {"one, allowed", 1, {{5, 20, 2}}, SPILE_ALLOWED, 0, 1, 0, 40, 3, 20, 0},
    {"one, denied", 1, {{5, 20, 4}}, SPILE_DENIED, 0, 3, 10, 20, 3, 20, 0},
    {"one, never", 1, {{5, 20, 6}}, SPILE_NEVER, 0, 3, SPILE_UNKNOWN, 20, 3, 20, 0},
    {"the smallest remaining", 3, {{5, 0, 1}, {5, 20, 1}, {5, 0, 1}}, SPILE_ALLOWED, 1, 2, 0, 30, 3, 20, 1},
    {"what is left after the take counts", 2, {{5, 20, 0}, {5, 0, 4}}, SPILE_ALLOWED, 1, 1, 0, 40, 3, 20, 0},
    {"then the longest reset", 2, {{5, 20, 0}, {5, 21, 0}}, SPILE_ALLOWED, 1, 2, 0, 21, 2, 21, 1},
    {"equal remaining, the longer reset", 3, {{3, 5, 0}, {4, 15, 0}, {3, 5, 0}}, SPILE_ALLOWED, 1, 2, 0, 15, 2, 15, 1},
    {"then the first", 3, {{9, 0, 0}, {5, 21, 0}, {5, 21, 0}}, SPILE_ALLOWED, 1, 2, 0, 21, 2, 21, 1},
    {"one denies", 2, {{5, 0, 1}, {5, 50, 1}}, SPILE_DENIED, 1, 0, 10, 50, 0, 50, 1},
    {"the longest wait", 3, {{5, 50, 1}, {5, 50, 3}, {5, 50, 2}}, SPILE_DENIED, 1, 0, 30, 50, 0, 50, 1},
    {"equal waits, the first", 3, {{9, 0, 1}, {5, 50, 1}, {5, 40, 2}}, SPILE_DENIED, 1, 0, 10, 50, 0, 50, 1},
    {"a smaller remaining does not beat a wait", 2, {{5, 50, 0}, {5, 10, 5}}, SPILE_DENIED, 1, 4, 10, 10, 4, 10, 1},
    {"never beats denied", 2, {{5, 50, 5}, {5, 0, 6}}, SPILE_NEVER, 1, 5, SPILE_UNKNOWN, 0, 5, 0, 1},
    {"never, the first", 3, {{5, 0, 1}, {5, 1, 7}, {5, 0, 9}}, SPILE_NEVER, 1, 4, SPILE_UNKNOWN, 1, 4, 1, 1},
};

static const char *const names[ITEMS_MAX] = {"a", "b", "c", "d"};

static void items_of(const decide_case *row, spile_item *items, spile_spec *specs) {
  for (size_t i = 0; i < row->n; i++) {
    specs[i] = (spile_spec){.name = names[i], .name_len = 1, .algorithm = SPILE_TOKEN_BUCKET};
    cr_assert(eq(int, spile__shape_make(&specs[i].shape, row->items[i].capacity, 1, 10, 0, NULL), SPILE_OK));
    items[i] = (spile_item){.spec = &specs[i], .cost = row->items[i].cost, .reading = {{row->items[i].debt}}};
  }
}

Test(decide, the_strictest_limit_decides) {
  for (size_t r = 0; r < sizeof(cases) / sizeof(cases[0]); r++) {
    const decide_case *row = &cases[r];
    spile_item items[ITEMS_MAX];
    spile_spec specs[ITEMS_MAX];
    items_of(row, items, specs);
    spile_decision decision;
    spile_decision each[ITEMS_MAX];
    cr_expect(eq(int, spile__decide(items, row->n, true, &decision, each), row->outcome), "%s", row->name);
    cr_expect(eq(int, decision.outcome, row->outcome), "%s", row->name);
    cr_expect(eq(u32, decision.index, row->index), "%s", row->name);
    cr_expect(eq(i64, decision.remaining, row->remaining), "%s", row->name);
    cr_expect(eq(i64, decision.retry_after_ms, row->retry_ms), "%s", row->name);
    cr_expect(eq(i64, decision.reset_after_ms, row->reset_ms), "%s", row->name);
    cr_expect(eq(i64, decision.capacity, row->items[row->index].capacity), "%s", row->name);
    cr_expect(eq(str, (char *)decision.name, (char *)names[row->index]), "%s", row->name);
    cr_expect(eq(int, decision.decided_by, SPILE_BY_STORE), "%s", row->name);
    /* What the deciding limit says for itself is what the decision says. */
    cr_expect(eq(i64, each[row->index].remaining, decision.remaining), "%s", row->name);
    cr_expect(eq(i64, each[row->index].retry_after_ms, decision.retry_after_ms), "%s", row->name);

    cr_expect(eq(int, spile__decide(items, row->n, false, &decision, NULL), row->outcome), "%s, peek", row->name);
    cr_expect(eq(u32, decision.index, row->peek_index), "%s, peek", row->name);
    cr_expect(eq(i64, decision.remaining, row->peek_remaining), "%s, peek", row->name);
    cr_expect(eq(i64, decision.retry_after_ms, row->retry_ms), "%s, peek", row->name);
    cr_expect(eq(i64, decision.reset_after_ms, row->peek_reset_ms), "%s, peek", row->name);
  }
}

Test(decide, who_fits_is_not_reported_as_charged_when_another_denies) {
  const decide_case row = {.n = 3, .items = {{5, 0, 3}, {5, 50, 1}, {5, 20, 1}}};
  spile_item items[ITEMS_MAX];
  spile_spec specs[ITEMS_MAX];
  items_of(&row, items, specs);
  spile_decision decision;
  spile_decision each[3];
  cr_assert(eq(int, spile__decide(items, 3, true, &decision, each), SPILE_DENIED));
  cr_expect(eq(int, each[0].outcome, SPILE_ALLOWED));
  cr_expect(eq(i64, each[0].remaining, 5));
  cr_expect(eq(i64, each[0].reset_after_ms, 0));
  cr_expect(eq(i64, each[0].retry_after_ms, 0));
  cr_expect(eq(int, each[1].outcome, SPILE_DENIED));
  cr_expect(eq(i64, each[1].retry_after_ms, 10));
  cr_expect(eq(int, each[2].outcome, SPILE_ALLOWED));
  cr_expect(eq(i64, each[2].remaining, 3));
  for (uint32_t i = 0; i < 3; i++)
    cr_expect(eq(u32, each[i].index, i));
}

Test(decide, all_fit_or_not) {
  const decide_case row = {.n = 2, .items = {{5, 20, 3}, {5, 30, 2}}};
  spile_item items[ITEMS_MAX];
  spile_spec specs[ITEMS_MAX];
  items_of(&row, items, specs);
  cr_expect(spile__items_fit(items, 2));
  items[1].reading.values[0] = 31;
  cr_expect(not(spile__items_fit(items, 2)));
  cr_expect(spile__items_fit(items, 1));
  items[0].cost = 6;
  cr_expect(not(spile__items_fit(items, 1)));
  items[0].cost = INT64_MAX;
  cr_expect(not(spile__items_fit(items, 1)));
}

Test(decide, a_cleared_decision_knows_nothing) {
  spile_decision decision;
  memset(&decision, 0x55, sizeof(decision));
  spile__decision_clear(&decision);
  cr_expect(eq(int, decision.outcome, 0));
  cr_expect(eq(int, decision.decided_by, SPILE_BY_NOBODY));
  cr_expect(eq(int, decision.store_error, SPILE_REASON_NONE));
  cr_expect(eq(ptr, (void *)decision.name, NULL));
  cr_expect(eq(i64, decision.capacity, SPILE_UNKNOWN));
  cr_expect(eq(i64, decision.remaining, SPILE_UNKNOWN));
  cr_expect(eq(i64, decision.retry_after_ms, SPILE_UNKNOWN));
  cr_expect(eq(i64, decision.reset_after_ms, SPILE_UNKNOWN));
  cr_expect(eq(i64, decision.delay_ms, 0));
  cr_expect(eq(chr, decision.detail[0], '\0'));
}

Test(decide, a_charge_tells_the_least_that_is_left_and_the_most_that_was_not_charged) {
  const decide_case row = {.n = 3, .items = {{5, 0, 9}, {5, 45, 1}, {5, 20, 0}}};
  spile_item items[ITEMS_MAX];
  spile_spec specs[ITEMS_MAX];
  items_of(&row, items, specs);
  specs[1].shape.debt = 2;
  spile_call call = {.verb = SPILE_VERB_CHARGE, .items = items, .n = 3};
  spile_decision decision;
  spile_decision each[3];
  cr_assert(eq(int, spile__decide_call(&call, &decision, each), SPILE_ALLOWED));
  /* Both have nothing left; the second is 5 units below zero, so longer from full. */
  cr_expect(eq(u32, decision.index, 1));
  cr_expect(eq(i64, decision.remaining, 0));
  cr_expect(eq(i64, decision.reset_after_ms, 55));
  cr_expect(eq(i64, decision.retry_after_ms, 0));
  cr_expect(eq(i64, decision.uncharged, 4));
  cr_expect(eq(int, decision.decided_by, SPILE_BY_STORE));
  cr_expect(each[0].uncharged == 4 && each[1].uncharged == 0 && each[2].uncharged == 0);
  cr_expect(each[0].reset_after_ms == 50 && each[2].remaining == 3);
  cr_expect(eq(i64, items[0].reading.values[0], 0), "readings stay what they were before");
}

Test(decide, a_refund_is_never_refused) {
  const decide_case row = {.n = 2, .items = {{5, 60, 1}, {5, 10, 3}}};
  spile_item items[ITEMS_MAX];
  spile_spec specs[ITEMS_MAX];
  items_of(&row, items, specs);
  spile_call call = {.verb = SPILE_VERB_REFUND, .items = items, .n = 2};
  spile_decision decision;
  spile_decision each[2];
  cr_assert(eq(int, spile__decide_call(&call, &decision, each), SPILE_ALLOWED));
  cr_expect(decision.index == 0 && decision.remaining == 0 && decision.reset_after_ms == 50);
  cr_expect(each[1].remaining == 5 && each[1].reset_after_ms == 0 && each[1].uncharged == 0);
}

Test(decide, a_take_up_to_gives_every_limit_the_same) {
  static const struct {
    const char *name;
    int64_t least, most;
    int outcome;
    int64_t granted, remaining;
    uint32_t index;
  } rows[] = {
      {"what the scarcest has", 1, 9, SPILE_ALLOWED, 3, 0, 1},
      {"the most", 1, 2, SPILE_ALLOWED, 2, 1, 1},
      {"exactly", 3, 3, SPILE_ALLOWED, 3, 0, 1},
      {"less than the least", 4, 9, SPILE_DENIED, 0, 3, 1},
      {"nothing asked", 0, 0, SPILE_ALLOWED, 0, 3, 1},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const decide_case row = {.n = 2, .items = {{9, 10, rows[i].least}, {5, 20, rows[i].least}}};
    spile_item items[ITEMS_MAX];
    spile_spec specs[ITEMS_MAX];
    items_of(&row, items, specs);
    spile_call call = {.verb = SPILE_VERB_TAKE_UP_TO, .items = items, .n = 2, .most = rows[i].most};
    spile_decision decision;
    spile_decision each[2];
    cr_expect(eq(int, spile__decide_call(&call, &decision, each), rows[i].outcome), "%s", rows[i].name);
    cr_expect(eq(i64, decision.granted, rows[i].granted), "%s", rows[i].name);
    cr_expect(eq(i64, decision.remaining, rows[i].remaining), "%s", rows[i].name);
    cr_expect(eq(u32, decision.index, rows[i].index), "%s", rows[i].name);
    cr_expect(each[0].granted == rows[i].granted && each[1].granted == rows[i].granted, "%s", rows[i].name);
  }
}

Test(decide, a_grant_of_nothing_is_allowed_above_zero_and_denied_below) {
  for (int64_t debt = 41; debt <= 51; debt += 5) {
    const decide_case row = {.n = 1, .items = {{5, debt, 0}}};
    spile_item items[ITEMS_MAX];
    spile_spec specs[ITEMS_MAX];
    items_of(&row, items, specs);
    spile_call call = {.verb = SPILE_VERB_TAKE_UP_TO, .items = items, .n = 1, .most = 5};
    spile_decision decision;
    int outcome = spile__decide_call(&call, &decision, NULL);
    cr_expect(eq(int, outcome, debt <= 50 ? SPILE_ALLOWED : SPILE_DENIED));
    cr_expect(eq(i64, decision.granted, 0));
    cr_expect(eq(i64, decision.retry_after_ms, debt <= 50 ? 0 : 1));
    cr_expect(not(spile__call_effect(&call).goes), "so nothing is written for it");
  }
}
