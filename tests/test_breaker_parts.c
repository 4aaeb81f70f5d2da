/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker around a store that fails in one way and not in another: what goes on, what stops, what opens it and what
 * closes it.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <spile/testing.h>
#include <stdlib.h>
#include <string.h>

#include "core/decide.h"
#include "limiter/breaker.h"
#include "limiter/env.h"

#define USUAL_MS 25
#define BRIEF_MS 3
#define CAPACITY 10

/* ---- A store of one bucket, whose reads and charges fail as they are told ---- */

typedef struct parts_store {
  spile_store base;
  int64_t tokens;
  int read_reason;   /* of every call; 0: reads work */
  int charge_reason; /* of takes for which there are tokens; 0: charges work */
  int brief_reason;  /* of calls of impatient limits */
  bool lies;         /* the reading is out of range */
  bool drains;       /* somebody takes all after a peek */
  int peeks, takes;  /* that came */
} parts_store;

static int parts_fail(spile_call *call, int reason) {
  call->error->code = SPILE_EUNAVAILABLE;
  call->error->reason = reason;
  return SPILE_EUNAVAILABLE;
}

static int parts_decide(spile_store *store, spile_call *call) {
  parts_store *parts = (parts_store *)(void *)store;
  spile_item *item = &call->items[0];
  bool take = call->verb != SPILE_VERB_PEEK;
  parts->takes += take;
  parts->peeks += !take;
  if (parts->read_reason != 0)
    return parts_fail(call, parts->read_reason);
  if (parts->brief_reason != 0 && item->spec->timeout_ms == BRIEF_MS)
    return parts_fail(call, parts->brief_reason);
  item->reading = (spile_reading){{parts->lies ? INT64_MAX : (CAPACITY - parts->tokens) * 1000}};
  if (!take && parts->drains)
    parts->tokens = 0;
  spile__effect effect = spile__call_effect(call);
  spile_reading after;
  if (!take || !spile__item_pays(call, item) || !spile__item_apply(call, item, &effect, &after))
    return SPILE_OK;
  if (parts->charge_reason != 0)
    return parts_fail(call, parts->charge_reason);
  parts->tokens = CAPACITY - after.values[0] / 1000;
  return SPILE_OK;
}

static int parts_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)store;
  (void)item;
  (void)deadline_ms;
  (void)error;
  return SPILE_OK;
}

static void parts_close(spile_store *store, bool forked) {
  (void)store;
  (void)forked;
}

static const spile_store_ops parts_ops = {.abi = SPILE_STORE_ABI,
                                          .name = "parts",
                                          .timeout_ms = USUAL_MS,
                                          .decide = parts_decide,
                                          .clear = parts_clear,
                                          .close = parts_close};

/* ---- The breaker around it, under a clock that stands still ---- */

typedef struct world {
  spile_fake_clock *clock;
  spile_env env;
  parts_store parts;
  spile_store *store;
  spile_error error;
  spile_item item;
} world;

static int64_t world_monotonic_ms(void *user) {
  return spile_fake_clock_now(((world *)user)->clock);
}

/* No jitter. */
static bool world_random(void *user, void *bytes, size_t size) {
  (void)user;
  (void)bytes;
  (void)size;
  return false;
}

static void world_start(world *w) {
  memset(w, 0, sizeof(*w));
  w->clock = spile_fake_clock_new(100000);
  spile__env_init(&w->env);
  w->env.monotonic_ms = world_monotonic_ms;
  w->env.random = world_random;
  w->env.user = w;
  w->parts.base.ops = &parts_ops;
  w->parts.tokens = CAPACITY;
  cr_assert(eq(int, spile__breaker_open(&w->store, &w->parts.base, &w->env, USUAL_MS, 5, 1000, NULL), SPILE_OK));
}

static void world_end(world *w) {
  w->store->ops->close(w->store, false);
  spile_fake_clock_free(w->clock);
}

/* A call by a limit with a timeout of its own, or 0. */
static int ask_in(world *w, spile_verb verb, int64_t cost, int64_t timeout_ms) {
  const spile_spec spec = {.name = "default",
                           .name_len = 7,
                           .algorithm = SPILE_TOKEN_BUCKET,
                           .timeout_ms = timeout_ms,
                           .shape = {.capacity = CAPACITY, .refill = 1, .period_ms = 1000}};
  w->item = (spile_item){.key = "k", .key_len = 1, .spec = &spec, .cost = cost};
  w->error = (spile_error){0};
  spile_call call = {.verb = verb,
                     .items = &w->item,
                     .n = 1,
                     .now_ms = SPILE_STORE_TIME,
                     .deadline_ms = spile_fake_clock_now(w->clock) + (timeout_ms > 0 ? timeout_ms : USUAL_MS),
                     .error = &w->error};
  int result = w->store->ops->decide(w->store, &call);
  cr_assert(eq(int, call.verb, verb), "the call is as it was");
  return result;
}

static int ask(world *w, spile_verb verb, int64_t cost) {
  return ask_in(w, verb, cost, 0);
}

static int take(world *w) {
  return ask(w, SPILE_VERB_TAKE, 1);
}

/* A take of more than there is. */
static int denial(world *w) {
  return ask(w, SPILE_VERB_TAKE, w->parts.tokens + 1);
}

static int brief_take(world *w) {
  return ask_in(w, SPILE_VERB_TAKE, 1, BRIEF_MS);
}

static void assert_refused(const world *w, int result) {
  cr_assert(eq(int, result, SPILE_EUNAVAILABLE));
  cr_assert(eq(int, w->error.reason, SPILE_REASON_BREAKER), "%s", w->error.message);
}

static spile_breaker_state part(const world *w, spile__breaker_part part) {
  spile_breaker_state state;
  uint64_t opened;
  spile__breaker_read_part(w->store, part, &state, &opened);
  return state;
}

/* Five charges that fail. */
static void break_charges(world *w, int reason) {
  w->parts.charge_reason = reason;
  for (int i = 0; i < 5; i++) {
    cr_assert(eq(int, take(w), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, w->error.reason, reason), "%d: %s", i, w->error.message);
  }
  cr_assert(eq(int, part(w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
  cr_assert(eq(int, part(w, SPILE__BREAKER_STORE), SPILE_BREAKER_CLOSED));
}

/* ---- Charges fail ---- */

Test(breaker_parts, goes_on_denying_and_peeking_while_charges_fail) {
  static const int reasons[] = {SPILE_REASON_IO, SPILE_REASON_LOCKED, SPILE_REASON_READONLY, SPILE_REASON_REFUSED,
                                SPILE_REASON_AUTH};
  for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
    world w;
    world_start(&w);
    break_charges(&w, reasons[i]);
    w.parts.takes = 0;
    for (int j = 0; j < 20; j++) {
      w.parts.tokens = CAPACITY - 4;
      cr_assert(eq(int, denial(&w), SPILE_OK));
      cr_assert(eq(i64, w.item.reading.values[0], 4000));
      cr_assert(eq(int, ask(&w, SPILE_VERB_PEEK, 1), SPILE_OK));
      cr_assert(eq(int, ask(&w, SPILE_VERB_TAKE, 0), SPILE_OK), "there is nothing to charge");
      assert_refused(&w, take(&w));
    }
    cr_assert(eq(int, w.parts.takes, 0), "nothing was asked to charge");
    cr_assert(eq(i64, w.parts.tokens, CAPACITY - 4));
    world_end(&w);
  }
}

Test(breaker_parts, says_that_it_does_not_charge_and_for_how_long) {
  world w;
  world_start(&w);
  break_charges(&w, SPILE_REASON_IO);
  spile_fake_clock_advance(w.clock, 260);
  assert_refused(&w, take(&w));
  cr_assert(
      eq(str, w.error.message,
         "not charged: charging fails (io) and is not tried for another 740 ms; denials go on; repair the store"));
  cr_assert(lt(sz, strlen(w.error.message), sizeof(((spile_decision *)0)->detail)));
  spile_breaker_state state;
  uint64_t opened;
  spile__breaker_read(w.store, &state, &opened);
  cr_assert(eq(int, state, SPILE_BREAKER_OPEN));
  cr_assert(eq(u64, opened, 1));
  world_end(&w);
}

Test(breaker_parts, counts_failed_charges_in_a_row_whatever_is_read_between) {
  world w;
  world_start(&w);
  w.parts.charge_reason = SPILE_REASON_READONLY;
  for (int i = 0; i < 5; i++) {
    cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, ask(&w, SPILE_VERB_PEEK, 1), SPILE_OK));
    cr_assert(eq(int, denial(&w), SPILE_OK));
  }
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
  world_end(&w);
}

Test(breaker_parts, begins_to_count_failed_charges_anew_after_one_that_did_not_fail) {
  world w;
  world_start(&w);
  for (int i = 0; i < 10; i++) {
    w.parts.charge_reason = i % 5 == 4 ? 0 : SPILE_REASON_IO;
    cr_assert(eq(int, take(&w), i % 5 == 4 ? SPILE_OK : SPILE_EUNAVAILABLE));
  }
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
  world_end(&w);
}

Test(breaker_parts, probes_with_a_charge_and_is_closed_by_nothing_else) {
  world w;
  world_start(&w);
  break_charges(&w, SPILE_REASON_IO);
  spile_fake_clock_advance(w.clock, 999);
  w.parts.takes = 0;
  cr_assert(eq(int, denial(&w), SPILE_OK));
  cr_assert(eq(int, w.parts.takes, 0));
  spile_fake_clock_advance(w.clock, 1);
  for (int i = 0; i < 10; i++) {
    cr_assert(eq(int, denial(&w), SPILE_OK));
    cr_assert(eq(int, ask(&w, SPILE_VERB_PEEK, 1), SPILE_OK));
  }
  cr_assert(eq(int, w.parts.takes, 10), "a denial may now correct what it finds");
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN), "and is not the probe");
  /* The probe fails: the wait doubles. */
  cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, w.error.reason, SPILE_REASON_IO));
  spile_fake_clock_advance(w.clock, 1999);
  assert_refused(&w, take(&w));
  spile_fake_clock_advance(w.clock, 1);
  w.parts.charge_reason = 0;
  cr_assert(eq(int, take(&w), SPILE_OK));
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
  cr_assert(eq(i64, w.parts.tokens, CAPACITY - 1));
  world_end(&w);
}

Test(breaker_parts, makes_room_for_the_next_probe_when_one_was_denied_after_all) {
  world w;
  world_start(&w);
  break_charges(&w, SPILE_REASON_IO);
  spile_fake_clock_advance(w.clock, 1000);
  w.parts.drains = true;
  w.parts.takes = 0;
  cr_assert(eq(int, take(&w), SPILE_OK));
  cr_assert(eq(i64, w.item.reading.values[0], CAPACITY * 1000), "it was denied");
  cr_assert(eq(int, w.parts.takes, 1), "when it was asked to charge");
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
  w.parts.drains = false;
  w.parts.tokens = CAPACITY;
  w.parts.charge_reason = 0;
  cr_assert(eq(int, take(&w), SPILE_OK));
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
  world_end(&w);
}

/* What refuses everything is found out by the reads that go on, and then left alone. */
Test(breaker_parts, leaves_a_store_alone_that_refuses_reads_as_well) {
  world w;
  world_start(&w);
  w.parts.read_reason = SPILE_REASON_REFUSED;
  for (int i = 0; i < 10; i++) {
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, w.error.reason, SPILE_REASON_REFUSED), "%d", i);
  }
  cr_assert(eq(int, part(&w, SPILE__BREAKER_STORE), SPILE_BREAKER_OPEN));
  int before = w.parts.takes + w.parts.peeks;
  for (int i = 0; i < 10; i++) {
    assert_refused(&w, take(&w));
    assert_refused(&w, denial(&w));
    assert_refused(&w, ask(&w, SPILE_VERB_PEEK, 1));
  }
  cr_assert(eq(int, w.parts.takes + w.parts.peeks, before));
  /* One charge closes both. */
  w.parts.read_reason = 0;
  spile_fake_clock_advance(w.clock, 1000);
  cr_assert(eq(int, take(&w), SPILE_OK));
  cr_assert(eq(int, part(&w, SPILE__BREAKER_STORE), SPILE_BREAKER_CLOSED));
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
  world_end(&w);
}

Test(breaker_parts, is_opened_for_charges_by_charges_even_where_other_takes_time_out) {
  world w;
  world_start(&w);
  for (int i = 0; i < 5; i++) {
    w.parts.read_reason = SPILE_REASON_TIMEOUT;
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
    w.parts.read_reason = 0;
    w.parts.charge_reason = SPILE_REASON_IO;
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
  }
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
  cr_assert(eq(int, part(&w, SPILE__BREAKER_STORE), SPILE_BREAKER_CLOSED), "a refusal to charge is an answer");
  world_end(&w);
}

/* ---- What concerns one bucket, or this process ---- */

Test(breaker_parts, is_not_opened_by_one_bucket_nor_by_calls_that_had_to_queue) {
  static const int reasons[] = {SPILE_REASON_FORMAT, SPILE_REASON_FOREIGN, SPILE_REASON_CORRUPT,
                                SPILE_REASON_OOM,    SPILE_REASON_BUSY,    SPILE_REASON_MEMORY};
  for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
    world w;
    world_start(&w);
    w.parts.read_reason = reasons[i];
    for (int j = 0; j < 100; j++) {
      cr_assert(eq(int, j % 2 == 0 ? take(&w) : ask(&w, SPILE_VERB_PEEK, 1), SPILE_EUNAVAILABLE));
      cr_assert(eq(int, w.error.reason, reasons[i]));
    }
    world_end(&w);
  }
}

Test(breaker_parts, is_opened_by_a_server_that_is_too_old_for_all) {
  world w;
  world_start(&w);
  w.parts.read_reason = SPILE_REASON_VERSION;
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
  assert_refused(&w, denial(&w));
  world_end(&w);
}

/* Waiting for a connection neither counts nor says that the store is alive. */
Test(breaker_parts, lets_calls_that_had_to_queue_not_break_the_row) {
  world w;
  world_start(&w);
  for (int i = 0; i < 9; i++) {
    w.parts.read_reason = i % 2 == 0 ? SPILE_REASON_TIMEOUT : SPILE_REASON_BUSY;
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
  }
  cr_assert(eq(int, part(&w, SPILE__BREAKER_STORE), SPILE_BREAKER_OPEN));
  world_end(&w);
}

/* ---- Impatient limits ---- */

Test(breaker_parts, is_opened_by_impatient_takes_for_these_alone) {
  static const int reasons[] = {SPILE_REASON_TIMEOUT, SPILE_REASON_CONNECT, SPILE_REASON_RESOLVE};
  for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
    world w;
    world_start(&w);
    w.parts.brief_reason = reasons[i];
    for (int j = 0; j < 5; j++) {
      cr_assert(eq(int, brief_take(&w), SPILE_EUNAVAILABLE));
      cr_assert(eq(int, w.error.reason, reasons[i]));
      cr_assert(eq(int, take(&w), SPILE_OK), "who has the usual time is answered");
    }
    assert_refused(&w, brief_take(&w));
    cr_assert(strstr(w.error.message, "timeout_ms") != NULL, "%s", w.error.message);
    cr_assert(eq(int, take(&w), SPILE_OK));
    cr_assert(eq(int, part(&w, SPILE__BREAKER_SHORT), SPILE_BREAKER_OPEN), "an answer in the usual time is no proof");
    w.parts.brief_reason = 0;
    spile_fake_clock_advance(w.clock, 1000);
    cr_assert(eq(int, brief_take(&w), SPILE_OK));
    cr_assert(eq(int, part(&w, SPILE__BREAKER_SHORT), SPILE_BREAKER_CLOSED));
    world_end(&w);
  }
}

Test(breaker_parts, does_not_take_an_impatient_probe_for_proof_that_the_store_is_dead) {
  world w;
  world_start(&w);
  w.parts.read_reason = SPILE_REASON_TIMEOUT;
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
  spile_fake_clock_advance(w.clock, 1000);
  /* The store answers again, but not in the time that these give it; they are let try, and then stopped. */
  w.parts.read_reason = 0;
  w.parts.brief_reason = SPILE_REASON_TIMEOUT;
  for (int i = 0; i < 5; i++) {
    cr_assert(eq(int, brief_take(&w), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, w.error.reason, SPILE_REASON_TIMEOUT));
  }
  assert_refused(&w, brief_take(&w));
  cr_assert(eq(int, take(&w), SPILE_OK), "the probe is still due");
  cr_assert(eq(int, part(&w, SPILE__BREAKER_STORE), SPILE_BREAKER_CLOSED));
  world_end(&w);
}

Test(breaker_parts, is_closed_by_an_impatient_probe_that_is_answered) {
  world w;
  world_start(&w);
  w.parts.read_reason = SPILE_REASON_TIMEOUT;
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, take(&w), SPILE_EUNAVAILABLE));
  w.parts.read_reason = 0;
  spile_fake_clock_advance(w.clock, 1000);
  cr_assert(eq(int, brief_take(&w), SPILE_OK));
  cr_assert(eq(int, take(&w), SPILE_OK));
  world_end(&w);
}

/* Who waits briefly for a lock learns nothing about who has it. */
Test(breaker_parts, is_not_opened_by_impatient_takes_that_found_the_store_locked) {
  world w;
  world_start(&w);
  w.parts.brief_reason = SPILE_REASON_LOCKED;
  for (int i = 0; i < 50; i++)
    cr_assert(eq(int, brief_take(&w), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, w.error.reason, SPILE_REASON_LOCKED));
  cr_assert(eq(int, take(&w), SPILE_OK));
  world_end(&w);
}

/* ---- Answers that are none ---- */

Test(breaker_parts, hands_on_readings_that_may_not_be_without_judging_them) {
  world w;
  world_start(&w);
  break_charges(&w, SPILE_REASON_IO);
  w.parts.lies = true;
  cr_assert(eq(int, take(&w), SPILE_OK));
  cr_assert(eq(i64, w.item.reading.values[0], INT64_MAX));
  cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
  world_end(&w);
}

/* ---- What charges without asking ---- */

Test(breaker_parts, counts_failed_charges_and_refunds_as_charges) {
  static const spile_verb verbs[] = {SPILE_VERB_CHARGE, SPILE_VERB_REFUND};
  for (size_t v = 0; v < 2; v++) {
    world w;
    world_start(&w);
    w.parts.tokens = CAPACITY - 4;
    w.parts.charge_reason = SPILE_REASON_READONLY;
    for (int i = 0; i < 5; i++)
      cr_assert(eq(int, ask(&w, verbs[v], 3), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
    cr_assert(eq(int, part(&w, SPILE__BREAKER_STORE), SPILE_BREAKER_CLOSED));
    w.parts.takes = w.parts.peeks = 0;
    assert_refused(&w, ask(&w, SPILE_VERB_CHARGE, 3));
    assert_refused(&w, ask(&w, SPILE_VERB_REFUND, 3));
    assert_refused(&w, take(&w));
    cr_assert(eq(int, w.parts.takes, 0));
    cr_assert(eq(int, w.parts.peeks, 1), "of the take; what cannot be denied is not asked first");
    /* It closes by one that goes through. */
    w.parts.charge_reason = 0;
    spile_fake_clock_advance(w.clock, 1000);
    cr_assert(eq(int, ask(&w, verbs[v], 1), SPILE_OK), "%s", w.error.message);
    cr_assert(eq(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
    world_end(&w);
  }
}

Test(breaker_parts, is_not_closed_by_a_charge_or_refund_that_changed_nothing) {
  world w;
  world_start(&w);
  break_charges(&w, SPILE_REASON_IO);
  spile_fake_clock_advance(w.clock, 1000);
  w.parts.tokens = CAPACITY;
  cr_assert(eq(int, ask(&w, SPILE_VERB_REFUND, 3), SPILE_OK), "full: nothing to give back");
  cr_assert(ne(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
  w.parts.tokens = 0;
  cr_assert(eq(int, ask(&w, SPILE_VERB_CHARGE, 3), SPILE_OK), "empty: nothing to charge");
  cr_assert(ne(int, part(&w, SPILE__BREAKER_CHARGES), SPILE_BREAKER_CLOSED));
  world_end(&w);
}
