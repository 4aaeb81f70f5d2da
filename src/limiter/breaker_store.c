/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker around a store, which lets threads in.
 *
 * How threads share it: a mutex guards the machines, and whoever changes one publishes what the others need before
 * giving the mutex back. `gate` holds a serial number that grows with every period of any machine, whether a machine is
 * not closed, and which have counted failures. `until_ms` of a part is when it lets somebody through again, and the
 * beginning of time while it is closed. From these alone
 * - a take passes where all is closed: it reads the gate, and the serial in it is its ticket;
 * - an answer goes home where nothing is counted that it would clear: there is nothing to change;
 * - a take is refused: the time of a part that concerns it has not come.
 * So a healthy store costs two reads of a cache line that nobody writes, and a dead one two reads and a clock.
 *
 * Why reading without the mutex is right: each of the three acts as the machines would have acted in the instant of the
 * reading. An answer that misses a failure reported meanwhile was not known to be later than it. A refusal that finds
 * its time come decides nothing: it takes the mutex and asks the machines, and so does every failure; two threads
 * therefore never both become the probe.
 *
 * A period is named by the serial at its beginning, so that one ticket serves all machines: it is of the period of each
 * that has not turned since.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "core/checked.h"
#include "core/decide.h"
#include "core/text.h"
#include "limiter/breaker.h"

/* The gate: serial · 16 + (a part is not closed ? 8 : 0) + (an answer would change part i ? 1 << i : 0). */
#define GATE_NOT_CLOSED (1U << SPILE__BREAKER_PARTS)
#define GATE_SERIAL_SHIFT 4

_Static_assert(SPILE__BREAKER_PARTS + 1 == GATE_SERIAL_SHIFT, "a bit for each part and one for all");

/* A part as a bit: of the gate, and of what concerns a call. */
#define PART(part) (1U << (part))

typedef struct breaker_store {
  spile_store base;
  spile_store_ops ops;
  spile_store *inner;
  const spile_env *env;
  int64_t timeout_ms;

  atomic_uint_least64_t gate;
  atomic_int_least64_t until_ms[SPILE__BREAKER_PARTS]; /* INT64_MIN: closed */
  atomic_int state[SPILE__BREAKER_PARTS];
  atomic_int reason[SPILE__BREAKER_PARTS]; /* of the failure that opened it last */
  atomic_uint_least64_t opened[SPILE__BREAKER_PARTS];

  pthread_mutex_t lock; /* guards what follows, and the writing of what is above */
  uint64_t serial;
  spile__breaker machines[SPILE__BREAKER_PARTS];
} breaker_store;

static breaker_store *breaker_of(spile_store *store) {
  return (breaker_store *)(void *)((char *)store - offsetof(breaker_store, base));
}

/* The release lets whoever sees this gate see what belongs to it, or what is later. */
static void breaker_publish(breaker_store *breaker) {
  uint64_t gate = breaker->serial << GATE_SERIAL_SHIFT;
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    const spile__breaker *machine = &breaker->machines[i];
    bool closed = machine->state == SPILE_BREAKER_CLOSED;
    gate |= (closed ? 0 : GATE_NOT_CLOSED) | (closed && machine->failures == 0 ? 0 : PART(i));
    atomic_store_explicit(&breaker->until_ms[i], closed ? INT64_MIN : machine->until_ms, memory_order_relaxed);
    atomic_store_explicit(&breaker->state[i], (int)machine->state, memory_order_relaxed);
    atomic_store_explicit(&breaker->opened[i], machine->opened, memory_order_relaxed);
  }
  atomic_store_explicit(&breaker->gate, gate, memory_order_release);
}

/* For a draw. Without random numbers there is no jitter: the middle of the draw. */
static uint32_t breaker_random(const breaker_store *breaker) {
  uint32_t random;
  bool drawn = breaker->env->random(breaker->env->user, &random, sizeof(random));
  return drawn ? random : UINT32_C(1) << 31;
}

/* Names a period that a machine began since it was in `before`. */
static void machine_name_period(breaker_store *breaker, spile__breaker *machine, uint64_t before) {
  if (machine->period != before)
    machine->period = ++breaker->serial;
}

/*
 * How long a probe may take before it is given up: its deadline, or the usual time if that is sooner, and then as long
 * as the breaker would stay open if it failed. It keeps its deadline unless its thread is stopped or the store breaks
 * its contract. So however a probe ends or does not end, the next one is no sooner than the back-off, one that comes
 * back a little late counts, and a limit with a day's patience makes nobody wait. A call without a deadline does not
 * block.
 */
static int64_t probe_until_ms(const breaker_store *breaker, const spile__breaker *machine, const spile_call *call,
                              int64_t now_ms, uint32_t random) {
  int64_t usual_ms = spile__add_saturate(now_ms, breaker->timeout_ms);
  int64_t back_ms = call->deadline_ms < usual_ms ? call->deadline_ms : usual_ms;
  if (call->deadline_ms == INT64_MAX || back_ms < now_ms)
    back_ms = now_ms;
  return spile__add_saturate(back_ms, spile__breaker_patience_ms(machine, random));
}

/* ---- What a call is about ---- */

/* Whether one of its limits gives the store less than the usual time. */
static bool call_is_brief(const breaker_store *breaker, const spile_call *call) {
  for (size_t i = 0; i < call->n; i++) {
    int64_t own_ms = call->items[i].spec->timeout_ms;
    if (own_ms > 0 && own_ms < breaker->timeout_ms)
      return true;
  }
  return false;
}

typedef enum call_sort {
  CALL_CHARGES, /* or gives back: a bucket changes */
  CALL_DENIES,  /* which may have something to correct in the store */
  CALL_READS,   /* nothing changes */
} call_sort;

/* What a call comes to by what was read. What may not be read is somebody else's to complain about. */
static call_sort call_sort_of(const spile_call *call) {
  bool pays = false;
  for (size_t i = 0; i < call->n; i++) {
    if (!spile__item_valid(&call->items[i], call->verb))
      return CALL_READS;
    pays = pays || spile__item_pays(call, &call->items[i]);
  }
  if (!pays)
    return CALL_READS;
  spile__effect effect = spile__call_effect(call);
  bool changes = false;
  for (size_t i = 0; i < call->n && !changes; i++) {
    spile_reading after;
    changes = spile__item_apply(call, &call->items[i], &effect, &after);
  }
  if (changes)
    return CALL_CHARGES;
  return effect.goes ? CALL_READS : CALL_DENIES;
}

/* ---- The way out ---- */

/* Tells the parts that let a call in what came of it. */
SPILE__OUT_OF_LINE static int breaker_learn(breaker_store *breaker, const spile_call *call, unsigned parts,
                                            uint64_t ticket, int result) {
  if (result == SPILE_EUNAVAILABLE)
    spile__error_settle(call->error, result);
  spile__breaker_report report = {.take = call->verb != SPILE_VERB_PEEK,
                                  .brief = (parts & PART(SPILE__BREAKER_SHORT)) != 0,
                                  .code = result,
                                  .reason = result == SPILE_EUNAVAILABLE ? call->error->reason : SPILE_REASON_NONE};
  report.charged = report.take && result == SPILE_OK && call_sort_of(call) == CALL_CHARGES;
  spile__breaker_lesson lesson = spile__breaker_judge(&report);
  bool failed = false;
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++)
    failed = failed || lesson.of[i] == SPILE__BREAKER_FAILED;

  int64_t now_ms = breaker->env->monotonic_ms(breaker->env->user);
  uint32_t random = failed ? breaker_random(breaker) : 0;
  (void)pthread_mutex_lock(&breaker->lock);
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    spile__breaker *machine = &breaker->machines[i];
    if ((parts & PART(i)) == 0)
      continue;
    uint64_t period = machine->period;
    uint64_t opened = machine->opened;
    spile__breaker_leave(machine, ticket, lesson.of[i], now_ms, random);
    machine_name_period(breaker, machine, period);
    if (machine->opened != opened)
      atomic_store_explicit(&breaker->reason[i], report.reason, memory_order_relaxed);
  }
  breaker_publish(breaker);
  (void)pthread_mutex_unlock(&breaker->lock);
  return result;
}

/* The parts that a call concerns, as it is asked. */
static unsigned call_parts(const breaker_store *breaker, const spile_call *call) {
  unsigned parts = PART(SPILE__BREAKER_STORE);
  if (call->verb != SPILE_VERB_PEEK)
    parts |= PART(SPILE__BREAKER_CHARGES);
  if (call_is_brief(breaker, call))
    parts |= PART(SPILE__BREAKER_SHORT);
  return parts;
}

/* Whether an answer would change a part that it concerns. Failed charges are cleared by a charge alone; but one that
 * was let through to probe and turned out to be none makes room for the next. */
static bool answer_matters(const spile_call *call, unsigned parts, uint64_t gate) {
  if ((gate & parts & ~PART(SPILE__BREAKER_CHARGES)) != 0)
    return true;
  bool charges = (gate & parts & PART(SPILE__BREAKER_CHARGES)) != 0;
  return charges && ((gate & GATE_NOT_CLOSED) != 0 || call_sort_of(call) == CALL_CHARGES);
}

/* The way out when not all was well. */
SPILE__OUT_OF_LINE static int breaker_leave(breaker_store *breaker, const spile_call *call, unsigned parts,
                                            uint64_t ticket, int result) {
  uint64_t gate = atomic_load_explicit(&breaker->gate, memory_order_relaxed);
  bool answered = result == SPILE_OK || result == SPILE_EFULL;
  return answered && !answer_matters(call, parts, gate) ? result : breaker_learn(breaker, call, parts, ticket, result);
}

/* ---- The way in when a part is not closed ---- */

/* What there is to say to a take that is refused. */
typedef struct breaker_refusal {
  spile__breaker_part part;
  int64_t left_ms;
} breaker_refusal;

static int breaker_refuse(const breaker_store *breaker, spile_error *error, const breaker_refusal *refusal) {
  if (error->code != 0)
    return SPILE_EUNAVAILABLE;
  static const char *const texts[SPILE__BREAKER_PARTS][3] = {
      [SPILE__BREAKER_STORE] = {"not asked: the store failed (", ") and is left alone",
                                " ms; repair or wait for the store"},
      [SPILE__BREAKER_CHARGES] = {"not charged: charging fails (", ") and is not tried",
                                  " ms; denials go on; repair the store"},
      [SPILE__BREAKER_SHORT] = {"not asked: too slow for this limit (", ") and left alone by its like",
                                " ms; give it a longer timeout_ms"}};
  int state = atomic_load_explicit(&breaker->state[refusal->part], memory_order_relaxed);
  int reason = atomic_load_explicit(&breaker->reason[refusal->part], memory_order_relaxed);
  error->code = SPILE_EUNAVAILABLE;
  error->reason = SPILE_REASON_BREAKER;
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, texts[refusal->part][0]);
  spile__text_put(&text, spile_reason_name(reason));
  if (state == SPILE_BREAKER_HALF_OPEN) {
    spile__text_put(&text, ") and one take is trying it, given up in ");
  } else {
    spile__text_put(&text, texts[refusal->part][1]);
    spile__text_put(&text, " for another ");
  }
  spile__text_put_number(&text, refusal->left_ms);
  spile__text_put(&text, texts[refusal->part][2]);
  return SPILE_EUNAVAILABLE;
}

/* Enters all of some machines, or none. Under the lock. @return whether; else `refusal` is written */
static bool machines_enter(breaker_store *breaker, const spile_call *call, unsigned parts, int64_t now_ms,
                           uint32_t random, breaker_refusal *refusal) {
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    if ((parts & PART(i)) != 0 && !spile__breaker_due(&breaker->machines[i], now_ms)) {
      *refusal = (breaker_refusal){(spile__breaker_part)i, breaker->machines[i].until_ms - now_ms};
      return false;
    }
  }
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    spile__breaker *machine = &breaker->machines[i];
    if ((parts & PART(i)) == 0)
      continue;
    uint64_t period = machine->period;
    (void)spile__breaker_enter(machine, now_ms, probe_until_ms(breaker, machine, call, now_ms, random));
    machine_name_period(breaker, machine, period);
  }
  return true;
}

/* @return whether the call may ask, as what concerns `parts`, with its ticket; else `refusal` is written */
static bool breaker_enter(breaker_store *breaker, const spile_call *call, unsigned parts, uint64_t *ticket,
                          breaker_refusal *refusal) {
  *ticket = atomic_load_explicit(&breaker->gate, memory_order_acquire) >> GATE_SERIAL_SHIFT;
  int64_t now_ms = breaker->env->monotonic_ms(breaker->env->user);
  bool closed = true;
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    int64_t until_ms = atomic_load_explicit(&breaker->until_ms[i], memory_order_relaxed);
    if ((parts & PART(i)) != 0 && now_ms < until_ms) {
      *refusal = (breaker_refusal){(spile__breaker_part)i, until_ms - now_ms};
      return false;
    }
    closed = closed && ((parts & PART(i)) == 0 || until_ms == INT64_MIN);
  }
  if (closed)
    return true;
  uint32_t random = breaker_random(breaker);
  (void)pthread_mutex_lock(&breaker->lock);
  bool pass = machines_enter(breaker, call, parts, now_ms, random, refusal);
  *ticket = breaker->serial;
  breaker_publish(breaker);
  (void)pthread_mutex_unlock(&breaker->lock);
  return pass;
}

static int breaker_ask(breaker_store *breaker, spile_call *call, unsigned parts, uint64_t ticket) {
  int result = breaker->inner->ops->decide(breaker->inner, call);
  return breaker_leave(breaker, call, parts, ticket, result);
}

/* Asks a take as a peek. */
static int breaker_ask_first(breaker_store *breaker, spile_call *call, unsigned parts) {
  uint64_t ticket;
  breaker_refusal refusal;
  parts &= ~PART(SPILE__BREAKER_CHARGES);
  if (!breaker_enter(breaker, call, parts, &ticket, &refusal))
    return breaker_refuse(breaker, call->error, &refusal);
  spile_verb verb = call->verb;
  call->verb = SPILE_VERB_PEEK;
  int result = breaker_ask(breaker, call, parts, ticket);
  call->verb = verb;
  return result;
}

static bool charges_are_due(const breaker_store *breaker) {
  int64_t until_ms = atomic_load_explicit(&breaker->until_ms[SPILE__BREAKER_CHARGES], memory_order_relaxed);
  return breaker->env->monotonic_ms(breaker->env->user) >= until_ms;
}

/*
 * A part is not closed. Where it is that of charges, a take is a peek first, and what is denied, or fails, or has
 * nothing to charge is answered with that. So what probes is a charge, and no flood of denials keeps one from it.
 *
 * A denial may have something to correct in the store: a clock that was set back, numbers that changed. Until it is
 * written the wait that was told is not kept, and where all are denied no charge ever comes to close this. So once
 * somebody may try, a denial is asked as a take after all, beside the probe.
 *
 * What charges without asking, or refunds, cannot be denied, so there is nothing to ask first.
 */
SPILE__OUT_OF_LINE static int breaker_decide_slowly(breaker_store *breaker, spile_call *call) {
  unsigned parts = call_parts(breaker, call);
  bool take = call->verb == SPILE_VERB_TAKE || call->verb == SPILE_VERB_TAKE_UP_TO;
  int charges = atomic_load_explicit(&breaker->state[SPILE__BREAKER_CHARGES], memory_order_relaxed);
  bool ask_first = take && charges != SPILE_BREAKER_CLOSED;
  for (bool asked = !take;; ask_first = true) {
    if (ask_first) {
      asked = true;
      int result = breaker_ask_first(breaker, call, parts);
      call_sort sort = result == SPILE_OK ? call_sort_of(call) : CALL_READS;
      if (sort == CALL_READS || (sort == CALL_DENIES && !charges_are_due(breaker)))
        return result;
      if (sort == CALL_DENIES)
        parts &= ~PART(SPILE__BREAKER_CHARGES);
    }
    uint64_t ticket;
    breaker_refusal refusal;
    if (breaker_enter(breaker, call, parts, &ticket, &refusal))
      return breaker_ask(breaker, call, parts, ticket);
    /* Charges began to fail just now, and this one may be a denial. */
    if (asked || refusal.part != SPILE__BREAKER_CHARGES)
      return breaker_refuse(breaker, call->error, &refusal);
  }
}

static int breaker_decide(spile_store *store, spile_call *call) {
  breaker_store *breaker = breaker_of(store);
  uint64_t gate = atomic_load_explicit(&breaker->gate, memory_order_acquire);
  if ((gate & GATE_NOT_CLOSED) != 0)
    return breaker_decide_slowly(breaker, call);

  int result = breaker->inner->ops->decide(breaker->inner, call);

  uint64_t ticket = gate >> GATE_SERIAL_SHIFT;
  gate = atomic_load_explicit(&breaker->gate, memory_order_relaxed);
  bool healthy = (gate & ((1U << GATE_SERIAL_SHIFT) - 1)) == 0;
  if ((result == SPILE_OK || result == SPILE_EFULL) && healthy)
    return result;
  return breaker_leave(breaker, call, call_parts(breaker, call), ticket, result);
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

static void breaker_usage(spile_store *store, spile_usage *usage) {
  spile_store *inner = breaker_of(store)->inner;
  inner->ops->usage(inner, usage);
}

static void breaker_close(spile_store *store, bool forked) {
  breaker_store *breaker = breaker_of(store);
  breaker->inner->ops->close(breaker->inner, forked);
  /* In a child the lock may be held by a thread that exists only in the parent. */
  if (!forked)
    (void)pthread_mutex_destroy(&breaker->lock);
  breaker->env->allocate(breaker->env->allocate_user, breaker, 0);
}

int spile__breaker_open(spile_store **out, spile_store *inner, const spile_env *env, int64_t timeout_ms,
                        int failures_max, int64_t first_wait_ms, spile_error *error) {
  *out = NULL;
  breaker_store *breaker = env->allocate(env->allocate_user, NULL, sizeof(*breaker));
  if (breaker == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for a breaker", NULL);
  *breaker = (breaker_store){.inner = inner, .env = env, .timeout_ms = timeout_ms, .serial = 1};
  /* What the inner store lacks is lacking here too, so that the caller is told so. */
  breaker->ops = (spile_store_ops){.abi = inner->ops->abi,
                                   .name = inner->ops->name,
                                   .timeout_ms = inner->ops->timeout_ms,
                                   .decide = breaker_decide,
                                   .clear = breaker_clear,
                                   .clean = inner->ops->clean != NULL ? breaker_clean : NULL,
                                   .each = inner->ops->each != NULL ? breaker_each : NULL,
                                   .close = breaker_close,
                                   .usage = inner->ops->abi >= 2 && inner->ops->usage != NULL ? breaker_usage : NULL};
  breaker->base.ops = &breaker->ops;
  (void)pthread_mutex_init(&breaker->lock, NULL);
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++)
    spile__breaker_init(&breaker->machines[i], failures_max, first_wait_ms);
  breaker_publish(breaker);
  *out = &breaker->base;
  return SPILE_OK;
}

static const breaker_store *breaker_read_only(const spile_store *store) {
  return (const breaker_store *)(const void *)((const char *)store - offsetof(breaker_store, base));
}

void spile__breaker_read_part(const spile_store *store, spile__breaker_part part, spile_breaker_state *state,
                              uint64_t *opened) {
  const breaker_store *breaker = breaker_read_only(store);
  *state = (spile_breaker_state)atomic_load_explicit(&breaker->state[part], memory_order_relaxed);
  *opened = atomic_load_explicit(&breaker->opened[part], memory_order_relaxed);
}

void spile__breaker_read(const spile_store *store, spile_breaker_state *state, uint64_t *opened) {
  *state = SPILE_BREAKER_CLOSED;
  *opened = 0;
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++) {
    spile_breaker_state part_state;
    uint64_t part_opened;
    spile__breaker_read_part(store, (spile__breaker_part)i, &part_state, &part_opened);
    *state = *state == SPILE_BREAKER_CLOSED ? part_state : *state;
    *opened += part_opened;
  }
}
