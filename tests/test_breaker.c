/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker's state machine alone: its edges one by one, and long random sequences beside a model that keeps no state
 * but what happened since the last answer, and reads everything from that.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <string.h>

#include "limiter/breaker.h"

#define EXACTLY (UINT32_C(1) << 31) /* the draw that leaves a wait as it is */

/* Lets one take through that fails, `n` times. */
static void fail_in_a_row(spile__breaker *breaker, int n, int64_t now_ms) {
  for (int i = 0; i < n; i++) {
    cr_assert(spile__breaker_enter(breaker, now_ms, now_ms + 25));
    spile__breaker_leave(breaker, breaker->period, SPILE__BREAKER_FAILED, now_ms, EXACTLY);
  }
}

/* Lets a probe through at the first moment and reports of it then. @return that moment */
static int64_t probe(spile__breaker *breaker, spile__breaker_verdict verdict) {
  int64_t now_ms = breaker->until_ms;
  cr_assert(eq(int, breaker->state, SPILE_BREAKER_OPEN));
  cr_assert(spile__breaker_enter(breaker, now_ms, now_ms + 25));
  cr_assert(eq(int, breaker->state, SPILE_BREAKER_HALF_OPEN));
  spile__breaker_leave(breaker, breaker->period, verdict, now_ms, EXACTLY);
  return now_ms;
}

static bool same(const spile__breaker *a, const spile__breaker *b) {
  return a->state == b->state && a->failures == b->failures && a->wait_ms == b->wait_ms && a->until_ms == b->until_ms &&
         a->opened == b->opened && a->period == b->period;
}

Test(breaker, opens_at_the_fifth_failure_in_a_row_and_not_at_the_fourth) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 5, 1000);
  fail_in_a_row(&breaker, 4, 10);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_CLOSED));
  cr_assert(eq(u64, breaker.opened, 0));
  fail_in_a_row(&breaker, 1, 10);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_OPEN));
  cr_assert(eq(u64, breaker.opened, 1));
}

Test(breaker, begins_to_count_anew_after_an_answer) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 5, 1000);
  fail_in_a_row(&breaker, 4, 10);
  spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_ANSWERED, 10, EXACTLY);
  fail_in_a_row(&breaker, 4, 10);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_CLOSED));
  spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_NOTHING, 10, EXACTLY);
  fail_in_a_row(&breaker, 1, 10);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_OPEN));
}

Test(breaker, refuses_until_the_wait_is_over_and_not_a_millisecond_longer) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 1, 1000);
  fail_in_a_row(&breaker, 1, 500);
  cr_assert(not(spile__breaker_enter(&breaker, 500, 525)));
  cr_assert(not(spile__breaker_enter(&breaker, 1499, 1524)));
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_OPEN));
  cr_assert(spile__breaker_enter(&breaker, 1500, 1525));
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_HALF_OPEN));
}

Test(breaker, lets_one_probe_through_and_gives_it_up_at_its_time) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 1, 1000);
  fail_in_a_row(&breaker, 1, 0);
  cr_assert(spile__breaker_enter(&breaker, 1000, 1025));
  uint64_t first = breaker.period;
  cr_assert(not(spile__breaker_enter(&breaker, 1000, 1025)));
  cr_assert(not(spile__breaker_enter(&breaker, 1024, 1049)));
  cr_assert(eq(u64, breaker.period, first));
  cr_assert(spile__breaker_enter(&breaker, 1025, 1050));
  cr_assert(ne(u64, breaker.period, first));
  cr_assert(not(spile__breaker_enter(&breaker, 1049, 1074)));
}

Test(breaker, that_gave_a_probe_up_is_not_opened_by_it_but_closed) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 1, 1000);
  fail_in_a_row(&breaker, 1, 0);
  cr_assert(spile__breaker_enter(&breaker, 1000, 1025));
  uint64_t given_up = breaker.period;
  cr_assert(spile__breaker_enter(&breaker, 1025, 1050));
  spile__breaker before = breaker;
  spile__breaker_leave(&breaker, given_up, SPILE__BREAKER_FAILED, 1030, EXACTLY);
  spile__breaker_leave(&breaker, given_up, SPILE__BREAKER_NOTHING, 1030, EXACTLY);
  cr_assert(same(&breaker, &before));
  uint64_t second = breaker.period;
  spile__breaker_leave(&breaker, given_up, SPILE__BREAKER_ANSWERED, 1031, EXACTLY);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_CLOSED));
  /* The second probe is late now. */
  spile__breaker_leave(&breaker, second, SPILE__BREAKER_FAILED, 1032, EXACTLY);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_CLOSED));
  cr_assert(eq(int, breaker.failures, 0));
}

Test(breaker, is_not_touched_by_late_failures_of_takes_from_before_it_opened) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 2, 1000);
  uint64_t early = breaker.period;
  fail_in_a_row(&breaker, 2, 0);
  spile__breaker before = breaker;
  spile__breaker_leave(&breaker, early, SPILE__BREAKER_FAILED, 900, EXACTLY);
  cr_assert(same(&breaker, &before), "open");
  cr_assert(spile__breaker_enter(&breaker, 1000, 1025));
  before = breaker;
  spile__breaker_leave(&breaker, early, SPILE__BREAKER_FAILED, 1001, EXACTLY);
  cr_assert(same(&breaker, &before), "half open");
  spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_ANSWERED, 1002, EXACTLY);
  before = breaker;
  spile__breaker_leave(&breaker, early, SPILE__BREAKER_FAILED, 1003, EXACTLY);
  spile__breaker_leave(&breaker, early, SPILE__BREAKER_FAILED, 1003, EXACTLY);
  cr_assert(same(&breaker, &before), "closed again");
}

Test(breaker, doubles_its_wait_to_64_times_the_first_and_forgets_it_with_an_answer) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 3, 1000);
  static const int64_t waits[] = {1000, 2000, 4000, 8000, 16000, 32000, 64000, 64000, 64000};
  int64_t now_ms = 7;
  fail_in_a_row(&breaker, 3, now_ms);
  for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
    cr_assert(eq(i64, breaker.until_ms - now_ms, waits[i]), "opening %zu", i);
    cr_assert(eq(u64, breaker.opened, i + 1));
    now_ms = probe(&breaker, SPILE__BREAKER_FAILED);
  }
  now_ms = probe(&breaker, SPILE__BREAKER_ANSWERED);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_CLOSED));
  fail_in_a_row(&breaker, 3, now_ms);
  cr_assert(eq(i64, breaker.until_ms - now_ms, 1000));
}

Test(breaker, doubles_its_wait_for_a_probe_that_never_came_back) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 1, 1000);
  fail_in_a_row(&breaker, 1, 0);
  cr_assert(spile__breaker_enter(&breaker, 1000, 1025));
  cr_assert(spile__breaker_enter(&breaker, 1025, 1050));
  spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_FAILED, 1030, EXACTLY);
  cr_assert(eq(i64, breaker.until_ms, 1030 + 4000));
}

Test(breaker, asks_again_at_once_after_a_probe_that_learned_nothing) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 1, 1000);
  fail_in_a_row(&breaker, 1, 0);
  int64_t now_ms = probe(&breaker, SPILE__BREAKER_NOTHING);
  cr_assert(eq(int, breaker.state, SPILE_BREAKER_OPEN));
  cr_assert(eq(u64, breaker.opened, 1));
  cr_assert(spile__breaker_enter(&breaker, now_ms, now_ms + 25));
  cr_assert(not(spile__breaker_enter(&breaker, now_ms, now_ms + 25)));
  spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_FAILED, now_ms, EXACTLY);
  cr_assert(eq(i64, breaker.until_ms, now_ms + 2000));
}

Test(breaker, draws_every_wait_within_a_fifth_and_no_other) {
  int seen[402] = {0};
  for (uint64_t random = 0; random <= UINT32_MAX; random += 104729) {
    spile__breaker breaker;
    spile__breaker_init(&breaker, 1, 1000);
    cr_assert(spile__breaker_enter(&breaker, 0, 25));
    spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_FAILED, 0, (uint32_t)random);
    cr_assert(ge(i64, breaker.until_ms, 800));
    cr_assert(le(i64, breaker.until_ms, 1200));
    seen[breaker.until_ms - 800]++;
  }
  /* 41,011 draws over 401 waits: about 102 each. */
  for (int i = 0; i <= 400; i++) {
    cr_assert(ge(int, seen[i], 80), "%d ms", 800 + i);
    cr_assert(le(int, seen[i], 125), "%d ms", 800 + i);
  }
}

Test(breaker, draws_the_ends_and_the_middle_exactly) {
  static const struct {
    int64_t wait_ms;
    uint32_t random;
    int64_t want_ms;
  } rows[] = {{1000, 0, 800},
              {1000, EXACTLY, 1000},
              {1000, UINT32_MAX, 1200},
              {1, 0, 1},
              {1, UINT32_MAX, 1},
              {5, 0, 4},
              {5, UINT32_MAX, 6},
              {4, UINT32_MAX, 4},
              {3600000, UINT32_MAX, 4320000},
              {3600000, 0, 2880000}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    spile__breaker breaker;
    spile__breaker_init(&breaker, 1, rows[i].wait_ms);
    cr_assert(spile__breaker_enter(&breaker, 0, 25));
    spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_FAILED, 0, rows[i].random);
    cr_assert(eq(i64, breaker.until_ms, rows[i].want_ms), "row %zu", i);
  }
}

Test(breaker, keeps_its_head_at_the_ends_of_time) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 1, SPILE__BREAKER_WAIT_MAX_MS);
  fail_in_a_row(&breaker, 1, INT64_MAX - 26);
  cr_assert(eq(i64, breaker.until_ms, INT64_MAX));
  cr_assert(not(spile__breaker_enter(&breaker, INT64_MAX - 1, INT64_MAX)));
  cr_assert(spile__breaker_enter(&breaker, INT64_MAX, INT64_MAX));
  spile__breaker_leave(&breaker, breaker.period, SPILE__BREAKER_FAILED, INT64_MAX, UINT32_MAX);
  cr_assert(eq(i64, breaker.until_ms, INT64_MAX));
  spile__breaker_init(&breaker, 1, 1000);
  fail_in_a_row(&breaker, 1, INT64_MIN);
  cr_assert(eq(i64, breaker.until_ms, INT64_MIN + 1000));
  cr_assert(not(spile__breaker_enter(&breaker, INT64_MIN + 999, 0)));
  cr_assert(spile__breaker_enter(&breaker, INT64_MIN + 1000, 0));
}

Test(breaker, takes_the_nearest_of_numbers_out_of_range) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 0, 0);
  cr_assert(eq(int, breaker.failures_max, 1));
  cr_assert(eq(i64, breaker.first_wait_ms, 1));
  spile__breaker_init(&breaker, -5, INT64_MAX);
  cr_assert(eq(int, breaker.failures_max, 1));
  cr_assert(eq(i64, breaker.first_wait_ms, 3600000));
}

/* ---- What a take teaches ---- */

/* What the parts learn, as a letter each for store, charges, short: Answered, Failed or nothing (-). */
static const char *lesson_of(bool take, bool brief, bool charged, int code, int reason) {
  static char letters[SPILE__BREAKER_PARTS + 1];
  const spile__breaker_report report = {take, brief, charged, code, reason};
  spile__breaker_lesson lesson = spile__breaker_judge(&report);
  for (int i = 0; i < SPILE__BREAKER_PARTS; i++)
    letters[i] = lesson.of[i] == SPILE__BREAKER_ANSWERED ? 'A' : lesson.of[i] == SPILE__BREAKER_FAILED ? 'F' : '-';
  return letters;
}

/* Every reason as a take, a peek, and both by a limit that gives less than the usual time. */
Test(breaker, judges_every_reason) {
  static const char *const wants[SPILE_REASONS_MAX][4] = {
      [SPILE_REASON_NONE] = {"F--", "F--", "F--", "F--"},    [SPILE_REASON_TIMEOUT] = {"F--", "F--", "--F", "--F"},
      [SPILE_REASON_BUSY] = {"---", "---", "---", "---"},    [SPILE_REASON_CONNECT] = {"F--", "F--", "--F", "--F"},
      [SPILE_REASON_CLOSED] = {"F--", "F--", "F--", "F--"},  [SPILE_REASON_PROTOCOL] = {"F--", "F--", "F--", "F--"},
      [SPILE_REASON_REFUSED] = {"AF-", "F--", "AFA", "F--"}, [SPILE_REASON_READONLY] = {"AF-", "F--", "AFA", "F--"},
      [SPILE_REASON_LOADING] = {"F--", "F--", "F--", "F--"}, [SPILE_REASON_OOM] = {"A--", "A--", "A-A", "A-A"},
      [SPILE_REASON_AUTH] = {"AF-", "F--", "AFA", "F--"},    [SPILE_REASON_FOREIGN] = {"A--", "A--", "A-A", "A-A"},
      [SPILE_REASON_VERSION] = {"F--", "F--", "F--", "F--"}, [SPILE_REASON_IO] = {"AF-", "F--", "AFA", "F--"},
      [SPILE_REASON_CORRUPT] = {"A--", "A--", "A-A", "A-A"}, [SPILE_REASON_RESOLVE] = {"F--", "F--", "--F", "--F"},
      [SPILE_REASON_BREAKER] = {"---", "---", "---", "---"}, [SPILE_REASON_MEMORY] = {"---", "---", "---", "---"},
      [SPILE_REASON_FORMAT] = {"A--", "A--", "A-A", "A-A"},  [SPILE_REASON_LOCKED] = {"AF-", "F--", "A-A", "--F"},
      [SPILE_REASON_SUBJECT] = {"---", "---", "---", "---"}};
#define ROW(name, number, text)                                                                            \
  for (int i = 0; i < 4; i++)                                                                              \
    cr_assert(eq(str, (char *)(uintptr_t)lesson_of(i % 2 == 0, i >= 2, false, SPILE_EUNAVAILABLE, number), \
                 (char *)(uintptr_t)wants[number][i]),                                                     \
              "%s, %d", text, i);
  SPILE_REASONS(ROW)
#undef ROW
  cr_assert(eq(str, (char *)(uintptr_t)lesson_of(true, false, false, SPILE_EUNAVAILABLE, 999), "F--"));
  cr_assert(eq(str, (char *)(uintptr_t)lesson_of(true, false, false, SPILE_EUNAVAILABLE, -1), "F--"));
}

Test(breaker, judges_answers_by_what_they_disprove) {
  static const struct {
    const char *name;
    bool take, brief, charged;
    int code;
    const char *want;
  } rows[] = {{"a charge", true, false, true, SPILE_OK, "AA-"},
              {"a charge in a short time", true, true, true, SPILE_OK, "AAA"},
              {"a denial", true, false, false, SPILE_OK, "A--"},
              {"a denial in a short time", true, true, false, SPILE_OK, "A-A"},
              {"a peek", false, false, false, SPILE_OK, "A--"},
              {"no room for a new bucket", true, false, true, SPILE_EFULL, "A--"},
              {"no memory", true, true, true, SPILE_ENOMEM, "---"},
              {"an argument", true, true, true, SPILE_EINVAL, "---"},
              {"a fork", true, true, true, SPILE_EFORK, "---"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const char *got = lesson_of(rows[i].take, rows[i].brief, rows[i].charged, rows[i].code, SPILE_REASON_TIMEOUT);
    cr_assert(eq(str, (char *)(uintptr_t)got, (char *)(uintptr_t)rows[i].want), "%s", rows[i].name);
  }
}

/* ---- OPS-02: four callers, one take a millisecond each, a store that drops packets, 25 ms a take ---- */

static void ops_02_run(uint64_t *seed, uint32_t (*draw)(uint64_t *)) {
  spile__breaker breaker;
  spile__breaker_init(&breaker, 5, 1000);
  struct {
    bool asking;
    int64_t back_ms;
    uint64_t ticket;
  } callers[4] = {{0}};
  int attempts[10] = {0};
  for (int64_t now_ms = 0; now_ms < 10000; now_ms++) {
    for (int i = 0; i < 4; i++) {
      if (callers[i].asking && now_ms < callers[i].back_ms)
        continue;
      if (callers[i].asking)
        spile__breaker_leave(&breaker, callers[i].ticket, SPILE__BREAKER_FAILED, now_ms, draw(seed));
      callers[i].asking = spile__breaker_enter(&breaker, now_ms, now_ms + 25 + breaker.wait_ms);
      callers[i].back_ms = now_ms + 25;
      callers[i].ticket = breaker.period;
      attempts[now_ms / 1000] += callers[i].asking;
    }
  }
  cr_assert(ge(int, attempts[0], 5));
  cr_assert(le(int, attempts[0], 10));
  int later = 0;
  for (int second = 1; second < 10; second++) {
    cr_assert(le(int, attempts[second], 1), "second %d", second);
    later += attempts[second];
  }
  cr_assert(ge(int, later, 2));
}

static uint64_t random_next(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static uint32_t draw_least(uint64_t *seed) {
  (void)seed;
  return 0;
}

static uint32_t draw_most(uint64_t *seed) {
  (void)seed;
  return UINT32_MAX;
}

static uint32_t draw_any(uint64_t *seed) {
  return (uint32_t)random_next(seed);
}

Test(breaker, asks_a_dead_store_ten_times_in_the_first_second_and_once_in_each_later_one_OPS_02) {
  uint64_t seed = 2;
  ops_02_run(&seed, draw_least);
  ops_02_run(&seed, draw_most);
  for (int i = 0; i < 200; i++)
    ops_02_run(&seed, draw_any);
}

/* ---- The model ---- */

#define MODEL_STEPS 200
#define MODEL_TAKES 6

typedef enum fact_kind { FACT_FAILURE, FACT_OPENED, FACT_PROBE, FACT_UNTOLD } fact_kind;

/* What happened, and the time that goes with it: opened until, probe given up at, nothing learned at. */
typedef struct fact {
  fact_kind kind;
  int64_t ms;
} fact;

/* What happened since the last answer, and which of the takes under way would count by failing. */
typedef struct model {
  int failures_max;
  int64_t first_wait_ms;
  fact facts[MODEL_STEPS];
  size_t n;
  uint64_t opened;
  bool counts[MODEL_TAKES];
} model;

static size_t model_count(const model *m, fact_kind kind) {
  size_t count = 0;
  for (size_t i = 0; i < m->n; i++)
    count += m->facts[i].kind == kind;
  return count;
}

static const fact *model_last(const model *m) {
  return model_count(m, FACT_OPENED) > 0 ? &m->facts[m->n - 1] : NULL;
}

static spile_breaker_state model_state(const model *m) {
  if (model_last(m) == NULL)
    return SPILE_BREAKER_CLOSED;
  return model_last(m)->kind == FACT_PROBE ? SPILE_BREAKER_HALF_OPEN : SPILE_BREAKER_OPEN;
}

static void model_add(model *m, fact_kind kind, int64_t ms) {
  m->facts[m->n++] = (fact){kind, ms};
  if (kind != FACT_FAILURE)
    memset(m->counts, 0, sizeof(m->counts));
}

static bool model_enter(model *m, size_t take, int64_t now_ms, int64_t give_up_ms) {
  const fact *last = model_last(m);
  if (last != NULL && now_ms < last->ms)
    return false;
  m->opened += last != NULL && last->kind == FACT_PROBE;
  if (last != NULL)
    model_add(m, FACT_PROBE, give_up_ms);
  m->counts[take] = true;
  return true;
}

/* The first wait, doubled for each probe that ended without an answer and was not excused, 64 times at most. */
static __int128 model_wait(const model *m) {
  __int128 wait_ms = m->first_wait_ms;
  for (size_t i = 0; i + 1 < m->n; i++) {
    if (m->facts[i].kind == FACT_PROBE && m->facts[i + 1].kind != FACT_UNTOLD)
      wait_ms *= 2;
    if (wait_ms > 64 * m->first_wait_ms)
      wait_ms = 64 * m->first_wait_ms;
  }
  return wait_ms;
}

/* Whether the machine drew what it may: within a fifth of the wait, and where in it the random number says. */
static void model_check_draw(const model *m, int64_t now_ms, int64_t until_ms, uint32_t random) {
  __int128 wait_ms = model_wait(m);
  __int128 drawn_ms = (__int128)until_ms - now_ms;
  if (until_ms == INT64_MAX) {
    cr_assert(now_ms + wait_ms + wait_ms / 5 >= INT64_MAX, "a wait is cut only at the end of time");
    return;
  }
  long double meant_ms = (long double)wait_ms * (0.8L + 0.4L * random / 4294967296.0L);
  long double off_ms = (long double)drawn_ms - meant_ms;
  bool within = 5 * drawn_ms >= 4 * wait_ms && 5 * drawn_ms <= 6 * wait_ms && off_ms < 2 && off_ms > -2;
  cr_assert(within, "drawn %" PRId64 " of %" PRId64 " with %" PRIu32, (int64_t)drawn_ms, (int64_t)wait_ms, random);
}

static void model_leave(model *m, size_t take, spile__breaker_verdict verdict, int64_t now_ms, int64_t until_ms,
                        uint32_t random) {
  if (verdict == SPILE__BREAKER_ANSWERED) {
    if (model_last(m) != NULL)
      memset(m->counts, 0, sizeof(m->counts));
    m->n = 0;
    return;
  }
  if (!m->counts[take])
    return;
  bool probing = model_last(m) != NULL;
  if (verdict == SPILE__BREAKER_NOTHING) {
    if (probing)
      model_add(m, FACT_UNTOLD, now_ms);
    return;
  }
  if (!probing)
    model_add(m, FACT_FAILURE, now_ms);
  if (probing || model_count(m, FACT_FAILURE) == (size_t)m->failures_max) {
    model_add(m, FACT_OPENED, until_ms);
    m->opened++;
    model_check_draw(m, now_ms, until_ms, random);
  }
}

/* What the random sequences came by, so that they are known to have tried everything. */
typedef struct sights {
  size_t steps, opened, given_up, late, capped, untold, at_the_end;
} sights;

static int64_t later(int64_t now_ms, int64_t by_ms) {
  int64_t sum_ms;
  return __builtin_add_overflow(now_ms, by_ms, &sum_ms) ? INT64_MAX : sum_ms;
}

/* The next time: mostly near the moment that matters. */
static int64_t time_move(const model *m, int64_t now_ms, uint64_t random) {
  const fact *last = model_last(m);
  int64_t to_ms = now_ms;
  if (random % 8 == 0)
    return later(now_ms, (int64_t)(random >> 8) % 2000);
  if (last != NULL && random % 8 < 4 && last->ms > INT64_MIN)
    to_ms = later(last->ms - 1, (int64_t)(random >> 8) % 3);
  return to_ms > now_ms ? to_ms : now_ms;
}

static spile__breaker_verdict verdict_draw(uint64_t random, unsigned answers_percent) {
  if (random % 100 < answers_percent)
    return SPILE__BREAKER_ANSWERED;
  return random % 100 >= 95 ? SPILE__BREAKER_NOTHING : SPILE__BREAKER_FAILED;
}

static void sequence_run(uint64_t *seed, sights *seen) {
  static const int64_t waits_ms[] = {1, 3, 4, 5, 10, 999, 1000, 3600000};
  static const unsigned answers[] = {0, 2, 10, 50};
  static const int64_t starts_ms[] = {0, 1, INT64_MIN, INT64_MAX - 1000, INT64_MAX - 30000, 1700000000000};
  model m = {.failures_max = 1 + (int)(random_next(seed) % 6), .first_wait_ms = waits_ms[random_next(seed) % 8]};
  unsigned answers_percent = answers[random_next(seed) % 4];
  int64_t now_ms = starts_ms[random_next(seed) % 6];
  spile__breaker breaker;
  spile__breaker_init(&breaker, m.failures_max, m.first_wait_ms);
  bool asking[MODEL_TAKES] = {false};
  uint64_t tickets[MODEL_TAKES] = {0};

  /* A step adds two facts at most. */
  for (size_t step = 0; step < MODEL_STEPS / 2; step++) {
    now_ms = time_move(&m, now_ms, random_next(seed));
    size_t take = random_next(seed) % MODEL_TAKES;
    uint32_t random = (uint32_t)random_next(seed);
    if (asking[take]) {
      spile__breaker_verdict verdict = verdict_draw(random_next(seed), answers_percent);
      seen->late += !m.counts[take];
      seen->untold += m.counts[take] && verdict == SPILE__BREAKER_NOTHING && model_last(&m) != NULL;
      spile__breaker_leave(&breaker, tickets[take], verdict, now_ms, random);
      model_leave(&m, take, verdict, now_ms, breaker.until_ms, random);
      asking[take] = false;
    } else {
      int64_t give_up_ms = later(now_ms, (int64_t)(random_next(seed) % 30));
      seen->given_up += model_state(&m) == SPILE_BREAKER_HALF_OPEN && now_ms >= model_last(&m)->ms;
      asking[take] = spile__breaker_enter(&breaker, now_ms, give_up_ms);
      tickets[take] = breaker.period;
      cr_assert(eq(int, asking[take], model_enter(&m, take, now_ms, give_up_ms)));
    }
    cr_assert(eq(int, breaker.state, model_state(&m)));
    cr_assert(eq(u64, breaker.opened, m.opened));
    if (model_last(&m) != NULL)
      cr_assert(eq(i64, breaker.until_ms, model_last(&m)->ms));
    else
      cr_assert(eq(sz, (size_t)breaker.failures, model_count(&m, FACT_FAILURE)));
    seen->steps++;
    seen->capped += model_last(&m) != NULL && model_wait(&m) == 64 * m.first_wait_ms;
    seen->at_the_end += now_ms == INT64_MAX;
  }
  seen->opened += m.opened;
}

Test(breaker, does_what_the_model_does_on_random_sequences) {
  uint64_t seed = 20260101;
  sights seen = {0};
  while (seen.steps < 1200000)
    sequence_run(&seed, &seen);
  cr_log_info("%zu steps, %zu openings, %zu given up, %zu late, %zu at the cap, %zu untold, %zu at the end of time",
              seen.steps, seen.opened, seen.given_up, seen.late, seen.capped, seen.untold, seen.at_the_end);
  cr_assert(lt(sz, 50000, seen.opened));
  cr_assert(lt(sz, 10000, seen.given_up));
  cr_assert(lt(sz, 10000, seen.late));
  cr_assert(lt(sz, 10000, seen.capped));
  cr_assert(lt(sz, 1000, seen.untold));
  cr_assert(lt(sz, 1000, seen.at_the_end));
}
