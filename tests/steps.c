/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few buckets, and few limits at a time, so that each bucket is met often, with other numbers and at awkward moments:
 * half of the steps in time go to an instant at which some answer is about to change. Limits are everyday ones, odd
 * ones and ones at the bounds; they change under the buckets all the time.
 */
#include "steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define STEPS_VARIANTS 4 /* of each name: callers that disagree about its numbers */
#define STEPS_HINTS 8
#define TEN_YEARS_MS INT64_C(315360000000)
#define EXACT_MAX ((INT64_C(1) << 53) - 1)

typedef struct variant {
  model_limit model;
  spile_limit *limit;
} variant;

typedef struct steps {
  const steps_subject *subject;
  steps_result *result;
  uint64_t seed;
  uint64_t random;
  int64_t now_ms;
  model_bucket buckets[STEPS_BUCKETS];
  char keys[STEPS_KEYS][8];
  variant variants[STEPS_NAMES][STEPS_VARIANTS];
  size_t chosen[STEPS_NAMES]; /* the variant in use */
  int64_t hints[STEPS_HINTS]; /* instants at which an answer is expected to change */
  size_t hint;
  /* The vector of this step and, until it is made anew, of the one before. */
  size_t n;
  spile_request requests[SPILE_REQUESTS_MAX];
  model_request model[SPILE_REQUESTS_MAX];
  size_t numbers[SPILE_REQUESTS_MAX];
} steps;

/* ---- Randomness ---- */

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t random_next(steps *s) {
  uint64_t x = s->random += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static int64_t random_below(steps *s, int64_t bound) {
  return (int64_t)(random_next(s) % (uint64_t)bound);
}

/* 1 to max, each magnitude about as often as any other. */
static int64_t random_magnitude(steps *s, int64_t max) {
  int64_t bound = max;
  for (int64_t halvings = random_below(s, 54); halvings > 0 && bound > 1; halvings--)
    bound /= 2;
  return 1 + random_below(s, bound);
}

/* ---- Limits ---- */

/* The largest capacity that a rate in lowest terms may have, 0 when it may have none. */
static int64_t capacity_max(int64_t refill, int64_t period_ms) {
  model_int exact = ((model_int)EXACT_MAX - (model_int)1001 * refill) / period_ms;
  model_int years = (model_int)TEN_YEARS_MS * refill / period_ms;
  model_int max = exact < years ? exact : years;
  return max < 1 ? 0 : (int64_t)max;
}

/* In numbers: capacity, tokens, period, debt. */
static void numbers_make(steps *s, int64_t numbers[4]) {
  static const int64_t usual_ms[] = {1, 1000, 60000, 3600000, 86400000, TEN_YEARS_MS};
  int64_t usual = usual_ms[random_below(s, 6)];
  int64_t *capacity = &numbers[0];
  int64_t *tokens = &numbers[1];
  int64_t *period_ms = &numbers[2];
  switch (random_below(s, 7)) {
  case 0: /* everyday */
    *tokens = 1 + random_below(s, 100);
    *period_ms = usual;
    *capacity = random_below(s, 2) != 0 ? *tokens : 1 + random_below(s, 100);
    break;
  case 1: /* slow, small */
    *tokens = 1;
    *period_ms = 1 + random_below(s, 100000);
    *capacity = 1 + random_below(s, 6);
    break;
  case 2: /* odd */
    *tokens = 1 + random_below(s, 1000);
    *period_ms = 1 + random_below(s, 20000);
    *capacity = 1 + random_below(s, 5000);
    break;
  case 3: /* more than one token a millisecond */
    *tokens = random_magnitude(s, INT64_C(8998242961279));
    *period_ms = 1 + random_below(s, 5);
    *capacity = random_magnitude(s, EXACT_MAX);
    break;
  case 4: /* the largest capacity that a rate can have, and a little less */
    *tokens = random_magnitude(s, INT64_C(8998242961279));
    *period_ms = random_magnitude(s, TEN_YEARS_MS);
    *capacity = capacity_max(*tokens, *period_ms) - random_below(s, 3);
    break;
  case 5: /* the longest period */
    *tokens = random_magnitude(s, 1000000);
    *period_ms = TEN_YEARS_MS - random_below(s, 3);
    *capacity = 1 + random_below(s, *tokens);
    break;
  default:
    *tokens = random_magnitude(s, EXACT_MAX);
    *period_ms = random_magnitude(s, TEN_YEARS_MS);
    *capacity = random_magnitude(s, EXACT_MAX);
    break;
  }
  numbers[3] = 0;
  if (*capacity < 2)
    return;
  switch (random_below(s, 4)) {
  case 0: /* within what the capacity was, so that both together reach its bound */
    numbers[3] = random_below(s, *capacity);
    *capacity -= numbers[3];
    break;
  case 1:
    numbers[3] = 1 + random_below(s, 20);
    break;
  default:
    break;
  }
}

/* A window: capacity and length. */
static void window_make(steps *s, spile_algorithm algorithm, int64_t numbers[4]) {
  static const int64_t usual_ms[] = {1, 1000, 60000, 3600000, 86400000, TEN_YEARS_MS};
  int64_t *capacity = &numbers[0];
  int64_t *window_ms = &numbers[2];
  numbers[1] = numbers[3] = 0;
  switch (random_below(s, 4)) {
  case 0: /* everyday */
    *capacity = 1 + random_below(s, 100);
    *window_ms = usual_ms[random_below(s, 6)];
    break;
  case 1: /* small and odd */
    *capacity = 1 + random_below(s, 6);
    *window_ms = 1 + random_below(s, 20000);
    break;
  case 2: /* short */
    *capacity = random_magnitude(s, 1000);
    *window_ms = 1 + random_below(s, 5);
    break;
  default: /* up to the largest capacity that two counters can have */
    *window_ms = random_magnitude(s, TEN_YEARS_MS);
    *capacity = EXACT_MAX / 3 / *window_ms - random_below(s, 3);
    if (random_below(s, 2) != 0)
      *capacity = random_magnitude(s, EXACT_MAX);
    break;
  }
  if (algorithm == SPILE_SLIDING_LOG && *capacity > 1000)
    *capacity = 1000 - random_below(s, 3);
}

/* What somebody might make of a limit that is in use. */
static void numbers_vary(steps *s, const model_limit *from, int64_t numbers[4]) {
  numbers[0] = from->capacity;
  numbers[1] = from->refill;
  numbers[2] = from->period_ms;
  numbers[3] = from->debt;
  switch (random_below(s, 8)) {
  case 0:
    numbers[0] = 1 + random_below(s, from->capacity);
    break;
  case 1:
    numbers[0] += random_magnitude(s, 1000);
    break;
  case 2: /* the same, written otherwise */
    numbers[1] *= 3;
    numbers[2] *= 3;
    break;
  case 3:
    numbers[2] += 1 + random_below(s, numbers[2]);
    break;
  case 4:
    numbers[1] += 1 + random_below(s, numbers[1]);
    break;
  case 5:
    numbers[3] = random_below(s, from->debt + 1);
    break;
  case 6:
    numbers[3] += random_magnitude(s, 1000);
    break;
  default:
    numbers[2] = random_magnitude(s, TEN_YEARS_MS);
    break;
  }
}

static void variant_make(steps *s, size_t name, size_t i) {
  static const struct {
    const char *name;
    spile_algorithm algorithm;
  } names[STEPS_NAMES] = {{"a", SPILE_TOKEN_BUCKET},       {"default", SPILE_TOKEN_BUCKET},
                          {"POST /b", SPILE_TOKEN_BUCKET}, {"c:{d}%", SPILE_TOKEN_BUCKET},
                          {"a", SPILE_LEAKY_BUCKET},       {"default", SPILE_FIXED_WINDOW},
                          {"a", SPILE_SLIDING_WINDOW},     {"POST /b", SPILE_SLIDING_LOG}};
  spile_algorithm algorithm = names[name].algorithm;
  variant *v = &s->variants[name][i];
  int64_t numbers[4];
  do {
    if (i > 0 && random_below(s, 3) > 0)
      numbers_vary(s, &s->variants[name][0].model, numbers);
    else if (algorithm >= SPILE_FIXED_WINDOW)
      window_make(s, algorithm, numbers);
    else
      numbers_make(s, numbers);
    if (algorithm >= SPILE_FIXED_WINDOW)
      numbers[1] = numbers[3] = 0;
  } while (!model_limit_of(&v->model, algorithm, numbers[0], numbers[1], numbers[2], numbers[3]));
  spile_limit_unref(v->limit);
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.name = names[name].name;
  def.algorithm = (int)algorithm;
  def.capacity = numbers[0];
  def.refill_tokens = numbers[1];
  def.refill_period_ms = numbers[2];
  def.debt = numbers[3];
  spile_error error = {0};
  if (spile_limit_create(&v->limit, &def, &error) == SPILE_OK)
    return;
  s->result->differences++;
  (void)snprintf(s->result->difference, sizeof(s->result->difference),
                 "seed %" PRIu64 " step %" PRIu64 ": limit %" PRId64 " %" PRId64 "/%" PRId64 " debt %" PRId64
                 " refused: %s",
                 s->seed, s->result->compared, numbers[0], numbers[1], numbers[2], numbers[3], error.message);
}

/* ---- Time ---- */

static void hint_add(steps *s, int64_t at_ms) {
  s->hints[s->hint++ % STEPS_HINTS] = at_ms;
}

static void time_move(steps *s) {
  const model_limit *limit = &s->model[0].limit;
  int64_t full_ms = s->n > 0 ? model_full_time_ms(limit) : 1000;
  int64_t to_ms = s->now_ms;
  switch (random_below(s, 18)) {
  case 0:
  case 1:
  case 2:
  case 3:
    break;
  case 4:
    to_ms += random_below(s, 5);
    break;
  case 5:
    to_ms += random_below(s, 3000);
    break;
  case 6:
    to_ms += random_magnitude(s, full_ms);
    break;
  case 7:
    to_ms += full_ms - 1 + random_below(s, 3);
    break;
  case 8:
    to_ms -= random_below(s, 5);
    break;
  case 9:
    to_ms -= random_below(s, 1500);
    break;
  case 10: /* an empty bucket is then about as far ahead as the clock rule lets it be */
    to_ms -= 1000 + 2 - random_below(s, 5);
    break;
  case 11:
    to_ms -= random_magnitude(s, full_ms);
    break;
  case 12:
    if (random_below(s, 8) == 0)
      to_ms += (random_below(s, 2) != 0 ? 1 : -1) * random_magnitude(s, SPILE_TIME_MAX_MS);
    break;
  case 13:
    if (random_below(s, 50) == 0) {
      const int64_t marks[] = {0, INT64_C(4294967296), INT64_C(1700000000000), SPILE_TIME_MAX_MS};
      to_ms = marks[random_below(s, 4)];
    }
    break;
  default:
    to_ms = s->hints[random_below(s, STEPS_HINTS)] - 1 + random_below(s, 3);
    break;
  }
  if (to_ms < 0)
    to_ms = random_below(s, 3);
  if (to_ms > SPILE_TIME_MAX_MS)
    to_ms = SPILE_TIME_MAX_MS - random_below(s, 3);
  s->now_ms = to_ms;
}

/* ---- Requests ---- */

static int64_t cost_make(steps *s, const model_request *request) {
  model_request probe = *request;
  probe.cost = 0;
  model_answer found;
  model_answer each;
  (void)model_decide(s->buckets, false, s->now_ms, &probe, 1, &found, &each);
  int64_t capacity = request->limit.capacity;
  switch (random_below(s, 16)) {
  case 0:
    return 0;
  case 1:
    return capacity;
  case 2:
    return random_below(s, 4) == 0 ? (random_below(s, 2) != 0 ? INT64_MAX : capacity + 1) : 1;
  case 3:
  case 4:
    return found.remaining;
  case 5:
  case 6:
    return found.remaining < capacity ? found.remaining + 1 : capacity;
  case 7:
  case 8:
    return 1 + random_below(s, capacity);
  case 9:
    return random_magnitude(s, capacity);
  default:
    return 1;
  }
}

static void requests_make(steps *s) {
  bool again = s->n > 0 && random_below(s, 2) == 0;
  for (size_t i = 0; i < STEPS_NAMES; i++) {
    if (random_below(s, 4) == 0)
      s->chosen[i] = (size_t)random_below(s, STEPS_VARIANTS);
  }
  if (!again) {
    int64_t kind = random_below(s, 64);
    s->n = kind < 36 ? 1 : kind < 63 ? (size_t)(1 + random_below(s, 4)) : (size_t)(1 + random_below(s, 64));
  }
  size_t key = (size_t)random_below(s, STEPS_KEYS);
  for (size_t i = 0; i < s->n; i++) {
    if (!again) {
      /* Mostly several names of one key, sometimes any; the same bucket twice comes by itself. */
      if (random_below(s, 3) == 0)
        key = (size_t)random_below(s, STEPS_KEYS);
      s->numbers[i] = key * STEPS_NAMES + (size_t)random_below(s, STEPS_NAMES);
    }
    size_t name = s->numbers[i] % STEPS_NAMES;
    const variant *v = &s->variants[name][s->chosen[name]];
    s->model[i] = (model_request){.bucket = s->numbers[i], .limit = v->model};
    s->model[i].cost = cost_make(s, &s->model[i]);
    s->requests[i] = (spile_request){
        .limit = v->limit, .key = s->keys[s->numbers[i] / STEPS_NAMES], .key_len = 3, .cost = s->model[i].cost};
  }
}

/* Whether no bucket is named twice. */
static bool buckets_differ(const steps *s) {
  for (size_t i = 1; i < s->n; i++) {
    for (size_t j = 0; j < i; j++) {
      if (s->numbers[i] == s->numbers[j])
        return false;
    }
  }
  return true;
}

static void cost_set(steps *s, size_t i, int64_t cost) {
  s->model[i].cost = s->requests[i].cost = cost;
}

/* Makes the costs of the requests such as the verb may have. */
static spile_verb verb_make(steps *s) {
  switch (random_below(s, 10)) {
  case 0:
    return SPILE_VERB_PEEK;
  case 1: /* to the deepest debt, and past it */
    for (size_t i = 0; i < s->n; i++) {
      const model_limit *limit = &s->model[i].limit;
      if (random_below(s, 3) == 0)
        cost_set(s, i, limit->debt + random_below(s, 3) + (random_below(s, 2) != 0 ? limit->capacity : 0));
      else if (s->n > 1 && s->model[i].cost > EXACT_MAX)
        cost_set(s, i, EXACT_MAX); /* a sum of several that is too large is cut */
    }
    return SPILE_VERB_CHARGE;
  case 2:
    return SPILE_VERB_REFUND;
  case 3: {
    if (!buckets_differ(s))
      return SPILE_VERB_TAKE;
    int64_t least = s->model[random_below(s, (int64_t)s->n)].cost;
    for (size_t i = 0; i < s->n; i++)
      cost_set(s, i, least);
    return SPILE_VERB_TAKE_UP_TO;
  }
  default:
    return SPILE_VERB_TAKE;
  }
}

/* The most of a take up to, of which the least is made. */
static int64_t most_make(steps *s) {
  int64_t least = s->model[0].cost;
  int64_t more = random_below(s, 4) == 0 ? INT64_MAX : random_magnitude(s, s->model[0].limit.capacity + 1) - 1;
  return more > INT64_MAX - least ? INT64_MAX : least + more;
}

/* ---- Comparing ---- */

/* The word of a verb. */
static const char *verb_name(spile_verb verb) {
  static const char *const names[] = {
      [SPILE_VERB_TAKE] = "take",
      [SPILE_VERB_PEEK] = "peek",
      [SPILE_VERB_CHARGE] = "charge",
      [SPILE_VERB_REFUND] = "refund",
      [SPILE_VERB_TAKE_UP_TO] = "take up to",
  };
  return names[verb];
}

static bool same_answer(int outcome, const spile_decision *got, const model_answer *want) {
  return outcome == want->outcome && got->outcome == want->outcome && got->index == want->index &&
         got->remaining == want->remaining && got->retry_after_ms == want->retry_after_ms &&
         got->reset_after_ms == want->reset_after_ms && got->grows_after_ms == want->grows_after_ms &&
         got->delay_ms == want->delay_ms && got->granted == want->granted && got->uncharged == want->uncharged &&
         got->decided_by == SPILE_BY_STORE;
}

static void difference_note(steps *s, spile_verb verb, size_t i, int result, const spile_decision *got,
                            const model_answer *want) {
  if (s->result->differences++ > 0)
    return;
  const model_request *request = &s->model[want->index];
  (void)snprintf(s->result->difference, sizeof(s->result->difference),
                 "SPILE_SEED=%" PRIu64 " %s step %" PRIu64 ": %s of %zu at %" PRId64 ", %s %zu, algorithm %" PRId64
                 " limit %" PRId64 " %" PRId64 "/%" PRId64 " debt %" PRId64 " cost %" PRId64
                 ": got %s (%d) index %u remaining %" PRId64 " retry %" PRId64 " reset %" PRId64 " grows %" PRId64
                 " delay %" PRId64 " granted %" PRId64 " uncharged %" PRId64 ", model %s index %zu remaining %" PRId64
                 " retry %" PRId64 " reset %" PRId64 " grows %" PRId64 " delay %" PRId64 " granted %" PRId64
                 " uncharged %" PRId64 "; %.80s",
                 s->seed, s->subject->name, s->result->compared, verb_name(verb), s->n, s->now_ms,
                 i == s->n ? "decision by" : "request", want->index, request->limit.algorithm, request->limit.capacity,
                 request->limit.refill, request->limit.period_ms, request->limit.debt, request->cost,
                 spile_outcome_name(got->outcome), result, got->index, got->remaining, got->retry_after_ms,
                 got->reset_after_ms, got->grows_after_ms, got->delay_ms, got->granted, got->uncharged,
                 spile_outcome_name(want->outcome), want->index, want->remaining, want->retry_after_ms,
                 want->reset_after_ms, want->grows_after_ms, want->delay_ms, want->granted, want->uncharged,
                 got->detail);
}

/* Asks both and compares everything they say. */
static void step_compare(steps *s, spile_verb verb, model_answer *want) {
  int64_t most = verb == SPILE_VERB_TAKE_UP_TO ? most_make(s) : 0;
  bool changed = false;
  for (size_t i = 0; i < s->n; i++) {
    const model_bucket *bucket = &s->buckets[s->model[i].bucket];
    changed = changed || (bucket->stored && memcmp(&bucket->limit, &s->model[i].limit, sizeof(bucket->limit)) != 0);
  }
  model_answer want_each[SPILE_REQUESTS_MAX];
  if (verb == SPILE_VERB_CHARGE || verb == SPILE_VERB_REFUND)
    model_settle(s->buckets, verb == SPILE_VERB_REFUND, s->now_ms, s->model, s->n, want, want_each);
  else if (verb == SPILE_VERB_TAKE_UP_TO)
    (void)model_take_up_to(s->buckets, s->now_ms, s->model, s->n, most, want, want_each);
  else
    (void)model_decide(s->buckets, verb == SPILE_VERB_TAKE, s->now_ms, s->model, s->n, want, want_each);
  spile_decision got;
  spile_decision got_each[SPILE_REQUESTS_MAX];
  int result =
      s->subject->decide(s->subject->self, verb, most, s->now_ms, s->requests, s->numbers, s->n, &got, got_each);
  if (!same_answer(result, &got, want) || got.capacity != s->model[want->index].limit.capacity)
    difference_note(s, verb, s->n, result, &got, want);
  for (size_t i = 0; i < s->n; i++) {
    if (!same_answer(got_each[i].outcome, &got_each[i], &want_each[i]))
      difference_note(s, verb, i, result, &got_each[i], &want_each[i]);
  }
  s->result->compared++;
  s->result->denied += want->outcome == SPILE_DENIED;
  s->result->never += want->outcome == SPILE_NEVER;
  s->result->changed += changed;
  s->result->charges += verb == SPILE_VERB_CHARGE;
  s->result->uncharged += want->uncharged > 0;
  s->result->refunds += verb == SPILE_VERB_REFUND;
  s->result->granted += want->granted > 0;
}

/*
 * A denied take promises that it succeeds retry_after_ms later and not a millisecond earlier. The steps between are
 * compared like all others; here the promise is held against the model's answers, which are then the subject's. A cost
 * of 0 promises too, unless it met other numbers or a clock far behind, which it does not write.
 */
static void promise_check(steps *s, int64_t retry_ms) {
  if (model_unwritten(s->buckets, s->now_ms, s->model, s->n))
    return;
  s->result->free_promises += s->model[0].cost == 0;
  int64_t asked_ms = s->now_ms;
  if (asked_ms + retry_ms > SPILE_TIME_MAX_MS)
    return;
  model_answer then;
  s->now_ms = asked_ms + retry_ms - 1;
  step_compare(s, SPILE_VERB_PEEK, &then);
  bool kept = then.outcome == SPILE_DENIED && then.retry_after_ms == 1;
  s->now_ms = asked_ms + retry_ms;
  step_compare(s, SPILE_VERB_PEEK, &then);
  kept = kept && then.outcome == SPILE_ALLOWED;
  s->result->promises++;
  if (!kept && s->result->differences++ == 0)
    (void)snprintf(s->result->difference, sizeof(s->result->difference),
                   "SPILE_SEED=%" PRIu64 " step %" PRIu64 ": a wait of %" PRId64 " promised at %" PRId64
                   " was not kept",
                   s->seed, s->result->compared, retry_ms, asked_ms);
  if (random_below(s, 2) != 0)
    s->now_ms = asked_ms;
}

void steps_run(const steps_subject *subject, uint64_t seed, uint64_t count, steps_result *out) {
  *out = (steps_result){0};
  steps *s = calloc(1, sizeof(*s));
  if (s == NULL)
    abort();
  s->subject = subject;
  s->result = out;
  s->seed = s->random = seed;
  s->now_ms = INT64_C(1700000000000);
  for (int i = 0; i < STEPS_KEYS; i++)
    (void)snprintf(s->keys[i], sizeof(s->keys[i]), "k%02d", i);
  for (size_t name = 0; name < STEPS_NAMES; name++) {
    for (size_t i = 0; i < STEPS_VARIANTS; i++)
      variant_make(s, name, i);
  }

  while (out->compared < count && out->differences == 0) {
    if (random_below(s, 300) == 0) {
      size_t name = (size_t)random_below(s, STEPS_NAMES);
      for (size_t i = 0; i < STEPS_VARIANTS; i++)
        variant_make(s, name, i);
      s->n = 0; /* its limits are gone */
    }
    if (s->n == 0)
      requests_make(s);
    time_move(s);
    requests_make(s);
    spile_verb verb = verb_make(s);
    model_answer answer;
    step_compare(s, verb, &answer);
    int64_t full_ms = model_full_time_ms(&s->model[answer.index].limit);
    if (random_below(s, 3) == 0)
      hint_add(s, s->now_ms + (random_below(s, 2) != 0 ? answer.reset_after_ms : answer.grows_after_ms));
    if (random_below(s, 6) == 0)
      hint_add(s, s->now_ms + answer.reset_after_ms - full_ms - 1000);
    if (answer.outcome != SPILE_DENIED)
      continue;
    hint_add(s, s->now_ms + answer.retry_after_ms);
    if (verb != SPILE_VERB_PEEK && random_below(s, 3) == 0)
      promise_check(s, answer.retry_after_ms);
  }
  for (size_t name = 0; name < STEPS_NAMES; name++) {
    for (size_t i = 0; i < STEPS_VARIANTS; i++)
      spile_limit_unref(s->variants[name][i].limit);
  }
  for (size_t i = 0; i < STEPS_BUCKETS; i++)
    model_bucket_finish(&s->buckets[i]);
  free(s);
}
