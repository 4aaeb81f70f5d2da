/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several calls under way at once. First every state that the machine and five calls can come to, in whatever order
 * they come, leave and never come back, is visited, and what must hold is checked in each. Then the breaker as a whole,
 * around a store in which one call is the reason for the next: while one is inside, others come and go, time passes and
 * the store breaks and heals.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <spile/testing.h>
#include <stdlib.h>
#include <string.h>

#include "limiter/breaker.h"
#include "limiter/env.h"

#define EXACTLY (UINT32_C(1) << 31) /* the draw that leaves a wait as it is */

/* ---- Every state ---- */

#define CALLERS 5
#define FAILURES_MAX 3
#define FIRST_WAIT_MS 1
#define PROBE_MS 2

typedef enum caller_state {
  CALLER_IDLE,
  CALLER_LATE,  /* under way, let through in an earlier period */
  CALLER_FRESH, /* under way, let through in this one */
  CALLER_STATES
} caller_state;

/* A state without what does not matter: times count from now, periods are this one or an earlier one. */
typedef struct place {
  spile__breaker machine;
  caller_state callers[CALLERS]; /* in order: callers cannot be told apart */
} place;

enum { WAIT_MAX_MS = FIRST_WAIT_MS << SPILE__BREAKER_DOUBLINGS, LEFT_MAX_MS = WAIT_MAX_MS + PROBE_MS + 1 };

enum { PLACES = 3 * (FAILURES_MAX + 1) * (SPILE__BREAKER_DOUBLINGS + 1) * (LEFT_MAX_MS + 1) * 243 };

#define QUEUE_MAX 100000

static size_t place_number(const place *at) {
  size_t doublings = 0;
  while (FIRST_WAIT_MS << doublings < at->machine.wait_ms)
    doublings++;
  size_t number = (size_t)at->machine.state;
  number = number * (FAILURES_MAX + 1) + (size_t)at->machine.failures;
  number = number * (SPILE__BREAKER_DOUBLINGS + 1) + doublings;
  number = number * (LEFT_MAX_MS + 1) + (size_t)at->machine.until_ms;
  for (int i = 0; i < CALLERS; i++)
    number = number * CALLER_STATES + (size_t)at->callers[i];
  return number;
}

typedef struct search {
  bool seen[PLACES];
  place queue[QUEUE_MAX];
  size_t head, tail;
  size_t probes, given_up, late, steps;
} search;

static int fresh_count(const place *at) {
  int count = 0;
  for (int i = 0; i < CALLERS; i++)
    count += at->callers[i] == CALLER_FRESH;
  return count;
}

static void place_check(const place *at) {
  const spile__breaker *machine = &at->machine;
  cr_assert(lt(int, machine->failures, FAILURES_MAX + 1));
  if (machine->state == SPILE_BREAKER_CLOSED)
    cr_assert(lt(int, machine->failures, FAILURES_MAX));
  if (machine->state == SPILE_BREAKER_OPEN)
    cr_assert(eq(int, fresh_count(at), 0), "a call of a period in which nobody is let through");
  if (machine->state == SPILE_BREAKER_HALF_OPEN)
    cr_assert(eq(int, fresh_count(at), 1), "one probe, and never another before it is given up");
  /* No wedge: if nobody under way ever comes back, somebody is let through at the time, and its answer closes. */
  spile__breaker alone = *machine;
  int64_t until_ms = machine->state == SPILE_BREAKER_CLOSED ? 0 : machine->until_ms;
  cr_assert(spile__breaker_enter(&alone, until_ms, until_ms + PROBE_MS));
  spile__breaker_leave(&alone, alone.period, SPILE__BREAKER_ANSWERED, until_ms, EXACTLY);
  cr_assert(eq(int, alone.state, SPILE_BREAKER_CLOSED));
  cr_assert(eq(i64, alone.wait_ms, FIRST_WAIT_MS));
}

/* Adds the place that a step led to, `turned` if a period began. */
static void place_add(search *s, const place *from, bool turned, int64_t passed_ms) {
  place to = *from;
  spile__breaker *machine = &to.machine;
  machine->period = 2;
  machine->opened = 0;
  machine->until_ms = machine->state == SPILE_BREAKER_CLOSED ? 0 : machine->until_ms - passed_ms;
  machine->until_ms = machine->until_ms < 0 ? 0 : machine->until_ms;
  cr_assert(le(i64, machine->until_ms, LEFT_MAX_MS));
  int counts[CALLER_STATES] = {0};
  for (int i = 0; i < CALLERS; i++)
    counts[turned && to.callers[i] == CALLER_FRESH ? CALLER_LATE : to.callers[i]]++;
  int at = 0;
  for (int state = 0; state < CALLER_STATES; state++) {
    for (int i = 0; i < counts[state]; i++)
      to.callers[at++] = (caller_state)state;
  }
  size_t number = place_number(&to);
  s->steps++;
  if (s->seen[number])
    return;
  s->seen[number] = true;
  place_check(&to);
  cr_assert(lt(sz, s->tail, QUEUE_MAX));
  s->queue[s->tail++] = to;
}

static void step_enter(search *s, const place *from, int caller) {
  place to = *from;
  bool pass = spile__breaker_enter(&to.machine, 0, PROBE_MS + from->machine.wait_ms);
  bool turned = to.machine.period != from->machine.period;
  bool shut = from->machine.state != SPILE_BREAKER_CLOSED;
  cr_assert(eq(int, pass, !shut || from->machine.until_ms == 0));
  cr_assert(eq(int, turned, pass &&shut), "who passes what is shut is a probe of its own");
  s->probes += turned;
  s->given_up += turned && from->machine.state == SPILE_BREAKER_HALF_OPEN;
  if (!pass)
    return;
  for (int i = 0; i < CALLERS && turned; i++)
    to.callers[i] = to.callers[i] == CALLER_FRESH ? CALLER_LATE : to.callers[i];
  to.callers[caller] = CALLER_FRESH;
  place_add(s, &to, false, 0);
}

static void step_leave(search *s, const place *from, int caller, spile__breaker_verdict verdict) {
  place to = *from;
  bool late = from->callers[caller] == CALLER_LATE;
  spile__breaker_leave(&to.machine, late ? 1 : 2, verdict, 0, EXACTLY);
  bool turned = to.machine.period != from->machine.period;
  if (verdict == SPILE__BREAKER_ANSWERED) {
    cr_assert(eq(int, to.machine.state, SPILE_BREAKER_CLOSED));
    cr_assert(eq(int, to.machine.failures, 0));
  } else if (late) {
    cr_assert(eq(int, memcmp(&to.machine, &from->machine, sizeof(to.machine)), 0), "a late failure changes nothing");
  } else if (verdict == SPILE__BREAKER_NOTHING) {
    cr_assert(eq(int, to.machine.failures, from->machine.failures));
    cr_assert(eq(i64, to.machine.wait_ms, from->machine.wait_ms));
    if (turned)
      cr_assert(eq(i64, to.machine.until_ms, 0), "and the next may probe at once");
  } else {
    bool opens = from->machine.state == SPILE_BREAKER_HALF_OPEN || from->machine.failures == FAILURES_MAX - 1;
    cr_assert(eq(int, to.machine.state, opens ? SPILE_BREAKER_OPEN : SPILE_BREAKER_CLOSED));
    if (opens)
      cr_assert(eq(i64, to.machine.until_ms, to.machine.wait_ms));
  }
  s->late += late;
  to.callers[caller] = CALLER_IDLE;
  place_add(s, &to, turned, 0);
}

Test(breaker_interleavings, holds_in_every_state_that_five_calls_at_once_can_come_to) {
  search *s = calloc(1, sizeof(*s));
  cr_assert(s != NULL);
  place start = {.callers = {CALLER_IDLE}};
  spile__breaker_init(&start.machine, FAILURES_MAX, FIRST_WAIT_MS);
  start.machine.period = 2;
  place_add(s, &start, false, 0);
  while (s->head < s->tail) {
    const place from = s->queue[s->head++];
    for (int i = 0; i < CALLERS; i++) {
      if (from.callers[i] == CALLER_IDLE) {
        step_enter(s, &from, i);
        continue;
      }
      for (int verdict = SPILE__BREAKER_ANSWERED; verdict <= SPILE__BREAKER_NOTHING; verdict++)
        step_leave(s, &from, i, (spile__breaker_verdict)verdict);
    }
    if (from.machine.state != SPILE_BREAKER_CLOSED && from.machine.until_ms > 0)
      place_add(s, &from, false, 1);
  }
  cr_log_info("%zu states, %zu steps, %zu probes, %zu given up, %zu late", s->tail, s->steps, s->probes, s->given_up,
              s->late);
  cr_assert(lt(sz, 1000, s->tail));
  cr_assert(lt(sz, 40, s->given_up));
  cr_assert(lt(sz, 1000, s->late));
  free(s);
}

/* ---- Calls within calls ---- */

#define USUAL_MS 25
#define BRIEF_MS 3
#define CAPACITY 1000
#define DEPTH 6

typedef struct nest {
  spile_store base;
  spile_fake_clock *clock;
  spile_env env;
  spile_store *store;
  uint64_t seed;
  int depth;
  bool calm;               /* nothing breaks and nobody else comes */
  bool charges_alone;      /* nothing else breaks */
  bool dead, unpaid, slow; /* what is broken now */
  size_t asked, nested, refused, corrections, opened[SPILE__BREAKER_PARTS];
} nest;

static uint64_t random_below(nest *n, uint64_t count) {
  uint64_t z = n->seed += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return (z ^ z >> 31) % count;
}

static spile_breaker_state part_state(const nest *n, spile__breaker_part part) {
  spile_breaker_state state;
  uint64_t opened;
  spile__breaker_read_part(n->store, part, &state, &opened);
  return state;
}

/* What a call of the nest is about. */
typedef struct nest_call {
  spile_verb verb;
  bool denied;
  bool brief;
} nest_call;

static int nest_ask(nest *n, nest_call what) {
  const spile_spec spec = {.name = "default",
                           .name_len = 7,
                           .algorithm = SPILE_TOKEN_BUCKET,
                           .timeout_ms = what.brief ? BRIEF_MS : 0,
                           .shape = {.capacity = CAPACITY, .refill = 1, .period_ms = 1000}};
  spile_item item = {.key = "k", .key_len = 1, .spec = &spec, .cost = what.denied ? 2 : 1};
  spile_error error = {0};
  spile_call call = {.verb = what.verb,
                     .items = &item,
                     .n = 1,
                     .now_ms = SPILE_STORE_TIME,
                     .deadline_ms = spile_fake_clock_now(n->clock) + (what.brief ? BRIEF_MS : USUAL_MS),
                     .error = &error};
  int64_t now_ms = spile_fake_clock_now(n->clock);
  bool shut = part_state(n, SPILE__BREAKER_STORE) == SPILE_BREAKER_OPEN;
  size_t asked = n->asked;
  n->depth++;
  int result = n->store->ops->decide(n->store, &call);
  n->depth--;
  bool refused = result != SPILE_OK && error.reason == SPILE_REASON_BREAKER;
  n->refused += refused;
  if (n->charges_alone && (what.denied || what.verb == SPILE_VERB_PEEK))
    cr_assert(eq(int, result, SPILE_OK), "what only reads goes on: %s", error.message);
  if (refused && shut && n->asked == asked)
    cr_assert(eq(i64, spile_fake_clock_now(n->clock), now_ms), "who is refused does not wait");
  return result;
}

/* While a call is inside: time passes, others come and go, the store breaks and heals. */
static void nest_meanwhile(nest *n) {
  if (n->calm)
    return;
  if (random_below(n, 4) == 0)
    spile_fake_clock_advance(n->clock, (int64_t)random_below(n, random_below(n, 8) == 0 ? 300 : 20));
  for (uint64_t others = random_below(n, 3); others > 0 && n->depth < DEPTH; others--) {
    n->nested++;
    (void)nest_ask(n, (nest_call){random_below(n, 4) == 0 ? SPILE_VERB_PEEK : SPILE_VERB_TAKE, random_below(n, 2) == 0,
                                  random_below(n, 3) == 0});
  }
  if (random_below(n, 40) == 0) {
    n->dead = !n->charges_alone && random_below(n, 3) == 0;
    n->slow = !n->charges_alone && random_below(n, 3) == 0;
    n->unpaid = random_below(n, 2) == 0;
  }
}

static int nest_decide(spile_store *store, spile_call *call) {
  nest *n = (nest *)(void *)store;
  bool brief = call->items[0].spec->timeout_ms > 0;
  bool take = call->verb == SPILE_VERB_TAKE;
  bool denied = call->items[0].cost > 1;
  n->asked++;
  cr_assert(ne(int, part_state(n, SPILE__BREAKER_STORE), SPILE_BREAKER_OPEN), "nobody passes while it is open");
  if (brief)
    cr_assert(ne(int, part_state(n, SPILE__BREAKER_SHORT), SPILE_BREAKER_OPEN));
  if (take && !denied)
    cr_assert(ne(int, part_state(n, SPILE__BREAKER_CHARGES), SPILE_BREAKER_OPEN));
  /* A denial beside the probe finds charges refused until they are due, and turns nothing. */
  if (take && denied && part_state(n, SPILE__BREAKER_CHARGES) != SPILE_BREAKER_CLOSED)
    n->corrections++;
  int reason = 0;
  if (n->dead)
    reason = SPILE_REASON_CLOSED;
  else if (n->slow && brief)
    reason = SPILE_REASON_TIMEOUT;
  else if (n->unpaid && take && !denied)
    reason = SPILE_REASON_IO;
  nest_meanwhile(n);
  call->items[0].reading = (spile_reading){{(CAPACITY - 1) * 1000}};
  if (reason == 0)
    return SPILE_OK;
  call->error->code = SPILE_EUNAVAILABLE;
  call->error->reason = reason;
  return SPILE_EUNAVAILABLE;
}

static int nest_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)store;
  (void)item;
  (void)deadline_ms;
  (void)error;
  return SPILE_OK;
}

static void nest_close(spile_store *store, bool forked) {
  (void)store;
  (void)forked;
}

static const spile_store_ops nest_ops = {.abi = SPILE_STORE_ABI,
                                         .name = "nest",
                                         .timeout_ms = USUAL_MS,
                                         .decide = nest_decide,
                                         .clear = nest_clear,
                                         .close = nest_close};

static int64_t nest_monotonic_ms(void *user) {
  return spile_fake_clock_now(((nest *)user)->clock);
}

static bool nest_random(void *user, void *bytes, size_t size) {
  uint64_t random = random_below(user, UINT64_MAX);
  memcpy(bytes, &random, size);
  return true;
}

/* When all is well again every kind of call is answered after the longest wait, and all is closed. */
static void nest_recover(nest *n) {
  n->calm = true;
  n->dead = n->unpaid = n->slow = false;
  spile_fake_clock_advance(n->clock, 64 * 12 + USUAL_MS + 64 * 10);
  cr_assert(eq(int, nest_ask(n, (nest_call){SPILE_VERB_TAKE, false, true}), SPILE_OK));
  cr_assert(eq(int, nest_ask(n, (nest_call){SPILE_VERB_TAKE, false, false}), SPILE_OK));
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    spile_breaker_state state;
    uint64_t opened;
    spile__breaker_read_part(n->store, (spile__breaker_part)i, &state, &opened);
    cr_assert(eq(int, state, SPILE_BREAKER_CLOSED), "part %d", i);
    n->opened[i] += opened;
  }
  n->calm = false;
}

static void nest_run(uint64_t seed, nest *sum) {
  nest n = {.base = {&nest_ops}, .seed = seed, .charges_alone = seed % 4 == 0};
  n.clock = spile_fake_clock_new(100000);
  spile__env_init(&n.env);
  n.env.monotonic_ms = nest_monotonic_ms;
  n.env.random = nest_random;
  n.env.user = &n;
  int failures_max = 1 + (int)random_below(&n, 5);
  cr_assert(eq(int, spile__breaker_open(&n.store, &n.base, &n.env, USUAL_MS, failures_max, 10, NULL), SPILE_OK));
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < 30; i++)
      nest_meanwhile(&n);
    nest_recover(&n);
  }
  n.store->ops->close(n.store, false);
  spile_fake_clock_free(n.clock);
  sum->asked += n.asked;
  sum->nested += n.nested;
  sum->refused += n.refused;
  sum->corrections += n.corrections;
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++)
    sum->opened[i] += n.opened[i] / 10;
}

Test(breaker_interleavings, holds_for_calls_that_come_and_go_while_others_are_inside) {
  nest sum = {.seed = 0};
  for (uint64_t seed = 1; seed <= 400; seed++)
    nest_run(seed, &sum);
  cr_log_info("%zu asked, %zu within others, %zu refused, opened %zu, %zu, %zu", sum.asked, sum.nested, sum.refused,
              sum.opened[0], sum.opened[1], sum.opened[2]);
  cr_assert(lt(sz, 100000, sum.nested));
  cr_assert(lt(sz, 10000, sum.refused));
  cr_assert(lt(sz, 100, sum.corrections));
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++)
    cr_assert(lt(sz, 100, sum.opened[i]), "part %d", i);
}
