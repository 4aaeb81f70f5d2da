/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker: a store that wraps another one and does not ask it for what it just failed to do, so that a dead server
 * costs its deadline a few times and not on every take, and a disk that does not write costs nobody a denial.
 */
#ifndef SPILE_LIMITER_BREAKER_H
#define SPILE_LIMITER_BREAKER_H

#include <spile/sys/store.h>

/* ---- The state machine: no clock, no lock, no store ---- */

/* The longest first wait; a longer one is cut to it. 64 of them times any 32 bits stay below 2^63. */
#define SPILE__BREAKER_WAIT_MAX_MS 3600000
/* How often the wait may double. */
#define SPILE__BREAKER_DOUBLINGS 6

/*
 * Every change of state, and every new probe, begins a new period. A take carries the number of the period it was let
 * through in, its ticket: a failure means something only in its own period, so what was sent before the breaker opened,
 * and a probe that was given up, cannot count later.
 */
typedef struct spile__breaker {
  int failures_max;      /* failures in a row that open it, 1 or more */
  int64_t first_wait_ms; /* how long it stays open the first time, 1 to SPILE__BREAKER_WAIT_MAX_MS */
  spile_breaker_state state;
  int failures;     /* in a row, while closed */
  int64_t wait_ms;  /* how long it stays open this time, or would the next time, before the draw */
  int64_t until_ms; /* open: when a probe may go; half open: when the probe is given up */
  uint64_t opened;  /* how often it opened, a failed probe included */
  uint64_t period;  /* counts up from 1; whoever has several machines may let it skip numbers */
} spile__breaker;

/* Starts it closed. What is out of range becomes the nearest that is not. */
void spile__breaker_init(spile__breaker *breaker, int failures_max, int64_t first_wait_ms);

/* Whether spile__breaker_enter would let a take through. */
static inline bool spile__breaker_due(const spile__breaker *breaker, int64_t now_ms) {
  return breaker->state == SPILE_BREAKER_CLOSED || now_ms >= breaker->until_ms;
}

/*
 * May a take ask the store now? If so, breaker->period is its ticket, and it must come to spile__breaker_leave; when
 * the state is then half open, it is the one probe. A probe that has not come back by probe_until_ms is given up: that
 * counts as its failure, doubles the wait, and the next take is the probe.
 *
 * @param now_ms  any number, from a clock that does not go back; two takes may come with theirs in the wrong order
 */
bool spile__breaker_enter(spile__breaker *breaker, int64_t now_ms, int64_t probe_until_ms);

/*
 * How long after the time by which a probe that enters now should be back it is given up: as long as the breaker would
 * stay open if it failed then, so that a probe that hangs is followed as one that fails.
 *
 * @param random  as for spile__breaker_leave
 */
int64_t spile__breaker_patience_ms(const spile__breaker *breaker, uint32_t random);

/* What a take says about the store. */
typedef enum spile__breaker_verdict {
  SPILE__BREAKER_ANSWERED, /* it is alive */
  SPILE__BREAKER_FAILED,   /* it is not */
  SPILE__BREAKER_NOTHING,  /* the take went wrong on this side: nothing was learned, and a probe is still due */
} spile__breaker_verdict;

/*
 * What came of a take that was let through. An answer closes the breaker, whoever brings it and however late: it is
 * there, so the store gave it. A failure counts only in the period of its ticket: a number below the present period is
 * of an earlier one.
 *
 * @param random  any 32 bits, for the draw: the store is left alone for 0.8 to 1.2 times wait_ms; 2^31 is exactly once
 */
void spile__breaker_leave(spile__breaker *breaker, uint64_t ticket, spile__breaker_verdict verdict, int64_t now_ms,
                          uint32_t random);

/* ---- What a take teaches ---- */

/* What may be out of order by itself. Each has a machine; a take is let through by all that concern it. */
typedef enum spile__breaker_part {
  SPILE__BREAKER_STORE,   /* it answers: concerns every call */
  SPILE__BREAKER_CHARGES, /* it charges: concerns takes for which there are tokens, and not denials and peeks */
  SPILE__BREAKER_SHORT,   /* it answers in less than its usual time: concerns calls of limits that give it less */
  SPILE__BREAKER_PARTS
} spile__breaker_part;

/* How the store was asked, and what came of it. */
typedef struct spile__breaker_report {
  bool take;    /* not a peek */
  bool brief;   /* by a limit that gives it less than its usual time */
  bool charged; /* and there was something to charge */
  int code;     /* what decide returned */
  int reason;   /* of SPILE_EUNAVAILABLE */
} spile__breaker_report;

/* One verdict for each part. A part that the call does not concern learns nothing. */
typedef struct spile__breaker_lesson {
  spile__breaker_verdict of[SPILE__BREAKER_PARTS];
} spile__breaker_lesson;

spile__breaker_lesson spile__breaker_judge(const spile__breaker_report *report);

/* Gives an error of a store that may be somebody's own a reason and a message where it has none. */
void spile__error_settle(spile_error *error, int code);

/* ---- The store ---- */

/*
 * Wraps `inner`. Its name, its default deadline and what it can do are those of `inner`. decide goes by the breaker;
 * clear, clean and each are what somebody asks for by hand: they always reach the store and tell the breaker nothing.
 *
 * While the store does not charge, a take is asked as a peek first: a denial is then the store's, and only a take that
 * there are tokens for is refused, or is the probe.
 *
 * @param inner       owned by the breaker from success on
 * @param env         outlives the store; its monotonic clock is the breaker's
 * @param timeout_ms  the usual time of a call: what a limit without a timeout_ms of its own gives it
 * @return SPILE_OK; SPILE_ENOMEM, and *out is NULL
 */
int spile__breaker_open(spile_store **out, spile_store *inner, const spile_env *env, int64_t timeout_ms,
                        int failures_max, int64_t first_wait_ms, spile_error *error);

/* State of the first part that is not closed, and how often parts opened, of a store made by spile__breaker_open. */
void spile__breaker_read(const spile_store *store, spile_breaker_state *state, uint64_t *opened);

/* The same of one part. Neither takes a lock. */
void spile__breaker_read_part(const spile_store *store, spile__breaker_part part, spile_breaker_state *state,
                              uint64_t *opened);

#endif
