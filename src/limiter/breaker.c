/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker in two halves. The state machine is plain arithmetic on a struct: closed, after some failures in a row
 * open for a while, then half open with one probe, whose failure doubles the while. The store around it lets threads
 * in.
 *
 * How threads share it: a mutex guards the machine, and whoever changes it publishes what the others need before giving
 * the mutex back. `gate` holds the machine's period, whether failures are counted, and its state; `until_ms` and
 * `reason` are written before it. From these alone
 * - a take passes a closed breaker: it reads the gate, and the period in it is the ticket;
 * - an answer at a closed breaker without failures goes home: there is nothing to change;
 * - a take is refused: the gate is not closed and the time has not come.
 * So a healthy store costs two reads of a cache line that nobody writes, and a dead one two reads and a clock.
 *
 * Why reading without the mutex is right: each of the three acts as the machine would have acted in the instant of the
 * gate's reading, or, where a refusal read an until_ms that is newer than its gate, in the instant of that writing,
 * when the machine was about to be shut until then. An answer that misses a failure reported meanwhile was not known to
 * be later than it. A refusal that finds its time come decides nothing: it takes the mutex and asks the machine, and so
 * does every failure; two threads therefore never both become the probe.
 */
#include "limiter/breaker.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/checked.h"
#include "core/text.h"

/* ---- The state machine ---- */

void spile__breaker_init(spile__breaker *breaker, int failures_max, int64_t first_wait_ms) {
  if (first_wait_ms < 1)
    first_wait_ms = 1;
  if (first_wait_ms > SPILE__BREAKER_WAIT_MAX_MS)
    first_wait_ms = SPILE__BREAKER_WAIT_MAX_MS;
  *breaker = (spile__breaker){.failures_max = failures_max < 1 ? 1 : failures_max,
                              .first_wait_ms = first_wait_ms,
                              .state = SPILE_BREAKER_CLOSED,
                              .wait_ms = first_wait_ms,
                              .period = 1};
}

static void breaker_turn(spile__breaker *breaker, spile_breaker_state state, int64_t until_ms) {
  breaker->state = state;
  breaker->until_ms = until_ms;
  breaker->period++;
}

static void breaker_double_wait(spile__breaker *breaker) {
  int64_t most_ms = breaker->first_wait_ms << SPILE__BREAKER_DOUBLINGS;
  breaker->wait_ms = breaker->wait_ms <= most_ms / 2 ? 2 * breaker->wait_ms : most_ms;
}

/*
 * wait − s + ⌊random·(2s + 1) / 2^32⌋ with s = ⌊wait / 5⌋: each whole number from wait − s to wait + s equally often,
 * and wait itself for random = 2^31. wait < 2^28, so 2s + 1 < 2^27 and the product stays below 2^59.
 */
static int64_t breaker_draw(int64_t wait_ms, uint32_t random) {
  _Static_assert(SPILE__BREAKER_WAIT_MAX_MS << SPILE__BREAKER_DOUBLINGS < 1 << 28, "as the product needs it");
  int64_t spread_ms = wait_ms / 5;
  return wait_ms - spread_ms + (((int64_t)random * (2 * spread_ms + 1)) >> 32);
}

static void breaker_break(spile__breaker *breaker, int64_t now_ms, uint32_t random) {
  int64_t wait_ms = breaker_draw(breaker->wait_ms, random);
  breaker_turn(breaker, SPILE_BREAKER_OPEN, spile__add_saturate(now_ms, wait_ms));
  breaker->opened++;
}

bool spile__breaker_enter(spile__breaker *breaker, int64_t now_ms, int64_t probe_until_ms) {
  if (breaker->state == SPILE_BREAKER_CLOSED)
    return true;
  if (now_ms < breaker->until_ms)
    return false;
  if (breaker->state == SPILE_BREAKER_HALF_OPEN)
    breaker_double_wait(breaker);
  breaker_turn(breaker, SPILE_BREAKER_HALF_OPEN, probe_until_ms);
  return true;
}

void spile__breaker_leave(spile__breaker *breaker, uint64_t ticket, spile__breaker_verdict verdict, int64_t now_ms,
                          uint32_t random) {
  if (verdict == SPILE__BREAKER_ANSWERED) {
    if (breaker->state != SPILE_BREAKER_CLOSED)
      breaker_turn(breaker, SPILE_BREAKER_CLOSED, 0);
    breaker->failures = 0;
    breaker->wait_ms = breaker->first_wait_ms;
    return;
  }
  /* No ticket is of a period in which the breaker is open, so from here on it is closed or this is its probe. */
  if (ticket != breaker->period)
    return;
  bool probe = breaker->state == SPILE_BREAKER_HALF_OPEN;
  if (verdict == SPILE__BREAKER_NOTHING) {
    if (probe)
      breaker_turn(breaker, SPILE_BREAKER_OPEN, now_ms);
    return;
  }
  if (probe)
    breaker_double_wait(breaker);
  else if (++breaker->failures < breaker->failures_max)
    return;
  breaker_break(breaker, now_ms, random);
}

/*
 * What counts is what would go wrong with the next take as well, whatever its bucket: no connection, no answer, no
 * right to ask, a server that refuses or cannot be understood, a queue that does not move, a disk that does not write.
 * REFUSED, READONLY, LOADING and AUTH are answers of a server that lives, but not of one that decides, and each costs a
 * connection or its turn. VERSION counts since a server too old refuses every take at a connection each; a single
 * record of a later version has answers between its failures.
 *
 * What is found under one bucket (FOREIGN, CORRUPT) and a server without memory for a new one (OOM; it still moves and
 * denies the known ones) show that the store does its work. So do SPILE_EFULL and a denial. No memory in this process,
 * an argument, a fork: these say nothing of the store, and a breaker below this one did not ask it.
 */
spile__breaker_verdict spile__breaker_judge(int code, int reason) {
  if (code == SPILE_OK || code == SPILE_EFULL)
    return SPILE__BREAKER_ANSWERED;
  if (code != SPILE_EUNAVAILABLE)
    return SPILE__BREAKER_NOTHING;
  switch (reason) {
  case SPILE_REASON_OOM:
  case SPILE_REASON_FOREIGN:
  case SPILE_REASON_CORRUPT:
    return SPILE__BREAKER_ANSWERED;
  case SPILE_REASON_BREAKER:
  case SPILE_REASON_MEMORY:
    return SPILE__BREAKER_NOTHING;
  default:
    return SPILE__BREAKER_FAILED;
  }
}

/* ---- The store ---- */

/* The gate: period · 8 + (failures counted ? 4 : 0) + state. */
#define GATE_STATE 3U
#define GATE_FAILURES 4U
#define GATE_PERIOD_SHIFT 3

typedef struct breaker_store {
  spile_store base;
  spile_store_ops ops;
  spile_store *inner;
  const spile_env *env;

  atomic_uint_least64_t gate;
  atomic_int_least64_t until_ms;
  atomic_int reason; /* of the failure that opened it last */
  atomic_uint_least64_t opened;

  pthread_mutex_t lock; /* guards what follows, and the writing of the four above */
  spile__breaker machine;
} breaker_store;

static breaker_store *breaker_of(spile_store *store) {
  return (breaker_store *)(void *)((char *)store - offsetof(breaker_store, base));
}

static spile_breaker_state gate_state(uint64_t gate) {
  return (spile_breaker_state)(gate & GATE_STATE);
}

/* The release lets whoever sees this gate see the until_ms and the reason that belong to it, or later ones. */
static void breaker_publish(breaker_store *breaker) {
  const spile__breaker *machine = &breaker->machine;
  uint64_t gate = machine->period << GATE_PERIOD_SHIFT | (machine->failures > 0 ? GATE_FAILURES : 0) | machine->state;
  atomic_store_explicit(&breaker->until_ms, machine->until_ms, memory_order_relaxed);
  atomic_store_explicit(&breaker->opened, machine->opened, memory_order_relaxed);
  atomic_store_explicit(&breaker->gate, gate, memory_order_release);
}

/*
 * How long a probe may take before it is given up: its deadline, which it keeps unless its thread is stopped or the
 * store breaks its contract, and then as long as the breaker was open last. So however a probe ends or does not end,
 * the next one is no sooner than the back-off, and one that comes back a little late counts. A call without a deadline
 * does not block.
 */
static int64_t probe_until_ms(const spile__breaker *machine, const spile_call *call, int64_t now_ms) {
  int64_t back_ms = call->deadline_ms == INT64_MAX || call->deadline_ms < now_ms ? now_ms : call->deadline_ms;
  return spile__add_saturate(back_ms, machine->wait_ms);
}

/* What there is to say to a take that is refused. */
typedef struct breaker_refusal {
  spile_breaker_state state;
  int64_t left_ms;
  int reason;
} breaker_refusal;

static int breaker_refuse(spile_error *error, const breaker_refusal *refusal) {
  if (error->code != 0)
    return SPILE_EUNAVAILABLE;
  error->code = SPILE_EUNAVAILABLE;
  error->reason = SPILE_REASON_BREAKER;
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, "not asked: the store failed (");
  spile__text_put(&text, spile_reason_name(refusal->reason));
  spile__text_put(&text, refusal->state == SPILE_BREAKER_OPEN ? ") and is left alone for another "
                                                              : ") and one take is trying it, given up in ");
  spile__text_put_number(&text, refusal->left_ms);
  spile__text_put(&text, " ms; repair or wait for the store");
  return SPILE_EUNAVAILABLE;
}

/* The way in when the breaker is not closed. @return whether the take may ask; else `refusal` is written */
SPILE__OUT_OF_LINE static bool breaker_enter_slowly(breaker_store *breaker, const spile_call *call, uint64_t gate,
                                                    uint64_t *ticket, breaker_refusal *refusal) {
  int64_t until_ms = atomic_load_explicit(&breaker->until_ms, memory_order_relaxed);
  int64_t now_ms = breaker->env->monotonic_ms(breaker->env->user);
  bool pass = false;
  if (now_ms >= until_ms) {
    (void)pthread_mutex_lock(&breaker->lock);
    pass = spile__breaker_enter(&breaker->machine, now_ms, probe_until_ms(&breaker->machine, call, now_ms));
    *ticket = breaker->machine.period;
    breaker_publish(breaker);
    gate = atomic_load_explicit(&breaker->gate, memory_order_relaxed);
    until_ms = breaker->machine.until_ms;
    (void)pthread_mutex_unlock(&breaker->lock);
  }
  if (!pass)
    *refusal = (breaker_refusal){.state = gate_state(gate),
                                 .left_ms = until_ms - now_ms,
                                 .reason = atomic_load_explicit(&breaker->reason, memory_order_relaxed)};
  return pass;
}

/* The way out when the machine has something to learn. */
SPILE__OUT_OF_LINE static void breaker_leave_slowly(breaker_store *breaker, uint64_t ticket,
                                                    spile__breaker_verdict verdict, int reason) {
  int64_t now_ms = breaker->env->monotonic_ms(breaker->env->user);
  uint32_t random;
  /* Without random numbers there is no jitter: the middle of the draw. */
  if (verdict != SPILE__BREAKER_FAILED || !breaker->env->random(breaker->env->user, &random, sizeof(random)))
    random = UINT32_C(1) << 31;
  (void)pthread_mutex_lock(&breaker->lock);
  uint64_t opened = breaker->machine.opened;
  spile__breaker_leave(&breaker->machine, ticket, verdict, now_ms, random);
  if (breaker->machine.opened != opened)
    atomic_store_explicit(&breaker->reason, reason, memory_order_relaxed);
  breaker_publish(breaker);
  (void)pthread_mutex_unlock(&breaker->lock);
}

static int breaker_decide(spile_store *store, spile_call *call) {
  breaker_store *breaker = breaker_of(store);
  uint64_t gate = atomic_load_explicit(&breaker->gate, memory_order_acquire);
  uint64_t ticket = gate >> GATE_PERIOD_SHIFT;
  if (gate_state(gate) != SPILE_BREAKER_CLOSED) {
    breaker_refusal refusal;
    if (!breaker_enter_slowly(breaker, call, gate, &ticket, &refusal))
      return breaker_refuse(call->error, &refusal);
  }

  int result = breaker->inner->ops->decide(breaker->inner, call);

  int reason = result == SPILE_EUNAVAILABLE ? call->error->reason : SPILE_REASON_NONE;
  spile__breaker_verdict verdict = spile__breaker_judge(result, reason);
  gate = atomic_load_explicit(&breaker->gate, memory_order_relaxed);
  bool healthy = gate_state(gate) == SPILE_BREAKER_CLOSED && (gate & GATE_FAILURES) == 0;
  if (verdict != SPILE__BREAKER_ANSWERED || !healthy)
    breaker_leave_slowly(breaker, ticket, verdict, reason);
  return result;
}

static int breaker_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  spile_store *inner = breaker_of(store)->inner;
  return inner->ops->clear(inner, item, deadline_ms, error);
}

static int breaker_clean(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                         spile_error *error) {
  spile_store *inner = breaker_of(store)->inner;
  return inner->ops->clean(inner, what, now_ms, deadline_ms, again, error);
}

static int breaker_each(spile_store *store, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                        spile_error *error) {
  spile_store *inner = breaker_of(store)->inner;
  return inner->ops->each(inner, now_ms, timeout_ms, visit, user, error);
}

static void breaker_close(spile_store *store, bool forked) {
  breaker_store *breaker = breaker_of(store);
  breaker->inner->ops->close(breaker->inner, forked);
  /* In a child the lock may be held by a thread that exists only in the parent. */
  if (!forked)
    (void)pthread_mutex_destroy(&breaker->lock);
  breaker->env->allocate(breaker->env->allocate_user, breaker, 0);
}

int spile__breaker_open(spile_store **out, spile_store *inner, const spile_env *env, int failures_max,
                        int64_t first_wait_ms, spile_error *error) {
  *out = NULL;
  breaker_store *breaker = env->allocate(env->allocate_user, NULL, sizeof(*breaker));
  if (breaker == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for a breaker", NULL);
  *breaker = (breaker_store){.inner = inner, .env = env};
  /* What the inner store lacks is lacking here too, so that the caller is told so. */
  breaker->ops = (spile_store_ops){.abi = SPILE_STORE_ABI,
                                   .name = inner->ops->name,
                                   .timeout_ms = inner->ops->timeout_ms,
                                   .decide = breaker_decide,
                                   .clear = breaker_clear,
                                   .clean = inner->ops->clean != NULL ? breaker_clean : NULL,
                                   .each = inner->ops->each != NULL ? breaker_each : NULL,
                                   .close = breaker_close};
  breaker->base.ops = &breaker->ops;
  (void)pthread_mutex_init(&breaker->lock, NULL);
  spile__breaker_init(&breaker->machine, failures_max, first_wait_ms);
  breaker_publish(breaker);
  *out = &breaker->base;
  return SPILE_OK;
}

void spile__breaker_read(const spile_store *store, spile_breaker_state *state, uint64_t *opened) {
  const breaker_store *breaker =
      (const breaker_store *)(const void *)((const char *)store - offsetof(breaker_store, base));
  *state = gate_state(atomic_load_explicit(&breaker->gate, memory_order_acquire));
  *opened = atomic_load_explicit(&breaker->opened, memory_order_relaxed);
}
