/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_LIMITER_LIMITER_H
#define SPILE_LIMITER_LIMITER_H

#include <stdatomic.h>

#include <spile/sys/store.h>

#include "backends/backends.h"
#include "limiter/secret.h"
#include "limiter/slot.h"
#include "limiter/watch.h"

/* Counters are spread over cache lines, one per thread as far as they go, so that counting never makes threads wait. */
#define LIMITER_STRIPES 16

typedef struct limiter_counts {
  _Alignas(64) atomic_uint_least64_t allowed;
  atomic_uint_least64_t denied;
  atomic_uint_least64_t never;
  atomic_uint_least64_t full;
  atomic_uint_least64_t unavailable;
  atomic_uint_least64_t policy_open;
  atomic_uint_least64_t policy_closed;
  atomic_uint_least64_t store_errors[SPILE_REASONS_MAX];
  atomic_uint_least64_t charged;
  atomic_uint_least64_t refunded;
  atomic_uint_least64_t unsettled;
} limiter_counts;

/* When failures of one kind were last logged: a store that fails on every take must not fill the log. */
typedef struct limiter_logged {
  atomic_int_least64_t next_ms;
  atomic_uint_least64_t hidden; /* failures since the last line */
} limiter_logged;

struct spile_limiter {
  spile_store *store;       /* what is asked: the breaker, or the store itself */
  spile_store *breaker;     /* NULL: there is none */
  unsigned fork_generation; /* of the process that opened it */
  int64_t timeout_ms;       /* 0: the store never blocks */
  int64_t (*now_ms)(void *clock);
  void (*sleep_ms)(void *clock, int64_t ms);
  void *clock;
  spile_on_store_error on_store_error; /* DEFAULT: each limit's own */
  spile_env env;
  spile__watch *watch; /* NULL: nothing is told of takes but by the counters below */
  char key_prefix[SPILE__KEY_PREFIX_LEN_MAX + 1];
  spile__slot limits;   /* the limits file in force; a spile_limits */
  spile__secret secret; /* for subjects of limits files … */
  unsigned ipv6_prefix; /* … and so is this, in bits */
  limiter_logged logged[SPILE_REASONS_MAX];
  limiter_counts counts[LIMITER_STRIPES];
};

/* Room on the stack for so many requests where a call has no more: a limits file has no more for one request. */
#define SPILE__FEW 16

/*
 * What a store that may be somebody's own gave in the place of an answer: one line, a reason and a text in any case.
 * @param valid  whether the contract lets a store answer `result`
 * @return the code to hand on: `result`, or SPILE_EUNAVAILABLE
 */
int spile__answer_settle(spile_error *error, int result, bool valid);

/*
 * The time for a call and its deadline; without items the deadline is the limiter's.
 * @return SPILE_OK; SPILE_EINVAL, the given time is out of range
 */
int spile__limiter_time(const spile_limiter *limiter, const spile_item *items, size_t n, int64_t *now_ms,
                        int64_t *deadline_ms);

/*
 * Decides items of which no two name one bucket. Decisions are written on every result.
 *
 * @param most  of a take up to, at least the items' cost; else 0
 * @return as spile_take; of a charge or a refund as spile_charge
 */
int spile__limiter_decide(spile_limiter *limiter, spile_verb verb, int64_t most, spile_item *items, size_t n,
                          spile_decision *decision, spile_decision *each);

/* Decides as a store that does not answer leaves it, without asking one. `why` has a code below zero and a reason. */
int spile__limiter_decide_failed(spile_limiter *limiter, spile_verb verb, const spile_error *why,
                                 const spile_item *items, size_t n, spile_decision *decision, spile_decision *each);

/*
 * As spile_take_all, spile_peek_all, spile_charge_all and spile_refund_all.
 * @param about  what else is known of the take; NULL: nothing
 */
int spile__limiter_ask(spile_limiter *limiter, spile_verb verb, const spile_request *requests, size_t n,
                       spile_decision *decision, spile_decision *each, const spile__about *about);

/* Whether `len` bytes can be a key_prefix, and what they must be. */
#define SPILE__KEY_PREFIX_FORM "1 to 64 of A-Z a-z 0-9 - . _ ~"
bool spile__key_prefix_valid(const char *prefix, size_t len);

/* Says in the log, once a second, that a function was called so that nothing else can tell it. */
void spile__limiter_log_misuse(spile_limiter *limiter, const char *what);

/* Sets a decision that there is none, and why. */
void spile__decision_fail(spile_decision *decision, const spile_error *error);

/* Which of LIMITER_STRIPES the calling thread counts in. */
unsigned spile__stripe(void);

/* What happens to a limit that its store cannot decide; never DEFAULT. */
spile_on_store_error spile__limiter_policy(const spile_limiter *limiter, const spile_spec *spec);

/* Counts a call by its result and by who decided; a peek not at all, charges and refunds apart from takes. */
void spile__limiter_count(spile_limiter *limiter, spile_verb verb, int result, const spile_decision *decision);

#endif
