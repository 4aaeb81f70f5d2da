/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker without a clock, a lock or a store: a state machine that is plain arithmetic on a struct, and a table of
 * what a take teaches.
 *
 * The machine: closed, after some failures in a row open for a while, then half open with one probe, whose failure
 * doubles the while. A store has three of them, since it can fail in three ways that do not imply each other: it does
 * not answer, it answers and does not charge, it answers and not in the short time that some limits give it. A peek
 * that is answered says nothing about charging, and an impatient limit nothing about the others.
 */
#include "limiter/breaker.h"

#include "core/checked.h"

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

static int64_t wait_doubled(const spile__breaker *breaker, int64_t wait_ms) {
  int64_t most_ms = breaker->first_wait_ms << SPILE__BREAKER_DOUBLINGS;
  return wait_ms <= most_ms / 2 ? 2 * wait_ms : most_ms;
}

static void breaker_double_wait(spile__breaker *breaker) {
  breaker->wait_ms = wait_doubled(breaker, breaker->wait_ms);
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

int64_t spile__breaker_patience_ms(const spile__breaker *breaker, uint32_t random) {
  int64_t wait_ms = wait_doubled(breaker, breaker->wait_ms);
  /* The probe that is under way is given up for this one, which is its failure. */
  if (breaker->state == SPILE_BREAKER_HALF_OPEN)
    wait_ms = wait_doubled(breaker, wait_ms);
  return breaker_draw(wait_ms, random);
}

bool spile__breaker_enter(spile__breaker *breaker, int64_t now_ms, int64_t probe_until_ms) {
  if (breaker->state == SPILE_BREAKER_CLOSED)
    return true;
  if (!spile__breaker_due(breaker, now_ms))
    return false;
  if (breaker->state == SPILE_BREAKER_HALF_OPEN) {
    breaker_double_wait(breaker);
    breaker->opened++;
  }
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
  if (ticket < breaker->period)
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

/* ---- What a take teaches ---- */

typedef enum breaker_meaning {
  MEANS_DEAD,      /* the next call would fare no better, whatever it asks */
  MEANS_LATE,      /* the same, unless it was given less than the usual time: then the next like it would fare so */
  MEANS_UNCHARGED, /* the next charge would fare no better, but what only reads may be answered */
  MEANS_LOCKED,    /* the same, unless it was given less than the usual time */
  MEANS_BUCKET,    /* the store does its work; this bucket it cannot decide about */
  MEANS_NOTHING,   /* it went wrong on this side: the store had no part in it */
} breaker_meaning;

/* What each reason says about the next call. The one place where it is decided what counts. */
static const unsigned char meanings[] = {
    [SPILE_REASON_NONE] = MEANS_DEAD,          /* a store that does not say why */
    [SPILE_REASON_TIMEOUT] = MEANS_LATE,       /* no answer */
    [SPILE_REASON_BUSY] = MEANS_NOTHING,       /* our own calls had all the connections */
    [SPILE_REASON_CONNECT] = MEANS_LATE,       /* nobody there, or not in time */
    [SPILE_REASON_CLOSED] = MEANS_DEAD,        /* it hangs up on questions */
    [SPILE_REASON_PROTOCOL] = MEANS_DEAD,      /* it, or what is between, does not speak our language */
    [SPILE_REASON_REFUSED] = MEANS_UNCHARGED,  /* MISCONF, NOREPLICAS and others let reads pass */
    [SPILE_REASON_READONLY] = MEANS_UNCHARGED, /* a replica, whose data tells whom to deny */
    [SPILE_REASON_LOADING] = MEANS_DEAD,       /* it answers nothing yet */
    [SPILE_REASON_OOM] = MEANS_BUCKET,         /* no room for a new bucket; known ones are denied and moved */
    [SPILE_REASON_AUTH] = MEANS_UNCHARGED,     /* the right that is missing may be the one to write */
    [SPILE_REASON_FOREIGN] = MEANS_BUCKET,     /* somebody else's value, WRONGTYPE */
    [SPILE_REASON_VERSION] = MEANS_DEAD,       /* of the server: too old for every take */
    [SPILE_REASON_IO] = MEANS_UNCHARGED,       /* a full disk, a write or a sync that fails */
    [SPILE_REASON_CORRUPT] = MEANS_BUCKET,     /* a damaged record */
    [SPILE_REASON_RESOLVE] = MEANS_LATE,       /* no address, or not in time */
    [SPILE_REASON_BREAKER] = MEANS_NOTHING,    /* a breaker below this one, which did not ask */
    [SPILE_REASON_MEMORY] = MEANS_NOTHING,     /* of this process */
    [SPILE_REASON_FORMAT] = MEANS_BUCKET,      /* a record of a later version */
    [SPILE_REASON_LOCKED] = MEANS_LOCKED,      /* whoever has the lock of all writers does not give it back */
    [SPILE_REASON_SUBJECT] = MEANS_NOTHING,    /* a store was not asked */
};

static breaker_meaning reason_meaning(int reason) {
  bool known = reason >= 0 && (size_t)reason < sizeof(meanings);
  return known ? (breaker_meaning)meanings[reason] : MEANS_DEAD;
}

/*
 * An answer clears what it disproves: any answer that the store does not answer, that of a call with less than the
 * usual time that it is too slow for those, and only a charge that it does not charge. A refusal to charge is an answer
 * too. What refuses a mere read is dead, whatever it says; so a reason that only seems to concern charges is found out
 * by the reads that go on.
 */
spile__breaker_lesson spile__breaker_judge(const spile__breaker_report *report) {
  spile__breaker_lesson lesson;
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++)
    lesson.of[i] = SPILE__BREAKER_NOTHING;
  bool decided = report->code == SPILE_OK || report->code == SPILE_EFULL;
  if (!decided && report->code != SPILE_EUNAVAILABLE)
    return lesson; /* no memory, an argument, a fork */

  breaker_meaning meaning = decided ? MEANS_BUCKET : reason_meaning(report->reason);
  if (!report->take && meaning == MEANS_UNCHARGED)
    meaning = MEANS_DEAD;
  if (!report->take && meaning == MEANS_LOCKED)
    meaning = MEANS_LATE;
  switch (meaning) {
  case MEANS_NOTHING:
    return lesson;
  case MEANS_DEAD:
    lesson.of[SPILE__BREAKER_STORE] = SPILE__BREAKER_FAILED;
    return lesson;
  case MEANS_LATE:
    lesson.of[report->brief ? SPILE__BREAKER_SHORT : SPILE__BREAKER_STORE] = SPILE__BREAKER_FAILED;
    return lesson;
  case MEANS_LOCKED:
    if (!report->brief)
      lesson.of[SPILE__BREAKER_CHARGES] = SPILE__BREAKER_FAILED;
    break;
  case MEANS_UNCHARGED:
    lesson.of[SPILE__BREAKER_CHARGES] = SPILE__BREAKER_FAILED;
    break;
  case MEANS_BUCKET:
    if (report->code == SPILE_OK && report->charged)
      lesson.of[SPILE__BREAKER_CHARGES] = SPILE__BREAKER_ANSWERED;
    break;
  }
  lesson.of[SPILE__BREAKER_STORE] = SPILE__BREAKER_ANSWERED;
  if (report->brief)
    lesson.of[SPILE__BREAKER_SHORT] = SPILE__BREAKER_ANSWERED;
  return lesson;
}
