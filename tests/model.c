/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The level form. With N/P the refill in lowest terms, a bucket of capacity C holds at most C·P units, a millisecond
 * adds N units and a take of cost c needs c·P of them:
 *
 *   level(now) = min(C·P, level(at) + (now − at)·N)
 *
 * A leaky bucket is the same, and delays what it admits for as long as the level before the take would need to fill.
 *
 * A clock that steps back makes now − at negative and the level smaller, below zero if need be. A level so far below
 * zero that more than the deepest debt and one second are missing, level < −debt·P − 1000·N, is set to zero.
 *
 * A charge makes it level − c·P, but no deeper than the debt unless it is there already; a refund level + c·P, but no
 * more than full. How much a take up to is granted is found by trying costs.
 *
 * Magnitudes: |now − at| ≤ 1.1·10^13 and N < 10^13, so the gain stays below 10^27; a level is below 2^53 and P below
 * 4·10^11, so a converted product is below 2^92. All far from 2^127.
 */
#include "model.h"

#include <stdlib.h>

#define MODEL_EXACT_MAX (((model_int)1 << 53) - 1)
#define MODEL_TEN_YEARS_MS ((model_int)10 * 365 * 24 * 60 * 60 * 1000)
#define MODEL_TOLERANCE_MS 1000

model_int model_floor(model_int a, model_int b) {
  model_int quotient = a / b;
  return quotient * b > a ? quotient - 1 : quotient;
}

static model_int model_ceil(model_int a, model_int b) {
  return -model_floor(-a, b);
}

static model_int model_full(const model_limit *limit) {
  return (model_int)limit->capacity * limit->period_ms;
}

bool model_limit_make(model_limit *out, int64_t capacity, int64_t refill_tokens, int64_t refill_period_ms,
                      int64_t debt) {
  if (capacity < 1 || refill_tokens < 1 || refill_period_ms < 1 || debt < 0)
    return false;
  /* The greatest common divisor, by halving and subtracting. */
  int64_t a = refill_tokens;
  int64_t b = refill_period_ms;
  int64_t twos = 1;
  while (a != b) {
    if (a % 2 == 0 && b % 2 == 0)
      twos *= 2;
    if (a % 2 == 0 || b % 2 == 0) {
      a = a % 2 == 0 ? a / 2 : a;
      b = b % 2 == 0 ? b / 2 : b;
    } else if (a > b) {
      a -= b;
    } else {
      b -= a;
    }
  }
  int64_t divisor = a * twos;
  *out = (model_limit){
      .capacity = capacity, .refill = refill_tokens / divisor, .period_ms = refill_period_ms / divisor, .debt = debt};
  model_int deepest = ((model_int)capacity + debt) * out->period_ms;
  return deepest + (model_int)1001 * out->refill <= MODEL_EXACT_MAX && out->period_ms <= MODEL_TEN_YEARS_MS &&
         deepest <= MODEL_TEN_YEARS_MS * out->refill;
}

bool model_limit_of(model_limit *out, spile_algorithm algorithm, int64_t capacity, int64_t refill_tokens,
                    int64_t refill_period_ms, int64_t debt) {
  *out =
      (model_limit){.capacity = capacity, .refill = 1, .period_ms = refill_period_ms, .algorithm = (int64_t)algorithm};
  if (model_is_window(out))
    return debt == 0 && model_window_bounds(out);
  bool made = model_limit_make(out, capacity, refill_tokens, refill_period_ms, debt);
  out->algorithm = (int64_t)algorithm;
  return made;
}

void model_bucket_finish(model_bucket *bucket) {
  free(bucket->log);
  bucket->log = NULL;
}

int64_t model_full_time_ms(const model_limit *limit) {
  if (model_is_window(limit))
    return model_window_full_time_ms(limit);
  return (int64_t)model_ceil(model_full(limit), limit->refill);
}

bool model_same(const model_limit *a, const model_limit *b) {
  return a->capacity == b->capacity && a->refill == b->refill && a->period_ms == b->period_ms && a->debt == b->debt;
}

/* The level at now_ms in units of `limit`. *moved: the clock rule or a conversion made it, and a take has to keep it.
 */
static model_int model_level(const model_bucket *bucket, const model_limit *limit, int64_t now_ms, bool *moved) {
  *moved = false;
  if (!bucket->stored)
    return model_full(limit);
  const model_limit *old = &bucket->limit;
  model_int level = bucket->level + ((model_int)now_ms - bucket->at_ms) * old->refill;
  if (level >= model_full(old))
    return model_full(limit); /* full then is full now, whatever the numbers */

  model_int lowest = -(model_int)old->debt * old->period_ms - (model_int)MODEL_TOLERANCE_MS * old->refill;
  if (level < lowest) {
    level = 0;
    *moved = true;
  }
  if (model_same(old, limit))
    return level;
  *moved = true;
  level = model_floor(level * limit->period_ms, old->period_ms);
  model_int deepest = -(model_int)limit->debt * limit->period_ms;
  if (level < deepest)
    level = deepest;
  return level > model_full(limit) ? model_full(limit) : level;
}

static void model_item_read(model_item *item, int64_t now_ms) {
  if (model_is_window(&item->limit))
    model_window_read(item, now_ms);
  else
    item->level = model_level(item->bucket, &item->limit, now_ms, &item->moved);
}

static bool model_item_fits(const model_item *item, int64_t now_ms) {
  if (item->cost > item->limit.capacity)
    return false;
  return model_is_window(&item->limit) ? model_window_fits(item, now_ms)
                                       : item->level >= item->cost * item->limit.period_ms;
}

/* The first millisecond at which one more is there, found by halving; a full bucket has none. */
static int64_t model_growth_ms(const model_limit *limit, model_int level, int64_t remaining) {
  if (level >= model_full(limit))
    return SPILE_UNKNOWN;
  int64_t low = 0;
  int64_t high = (int64_t)model_ceil(model_full(limit) - level, limit->refill);
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (model_floor(level + (model_int)middle * limit->refill, limit->period_ms) > remaining)
      high = middle;
    else
      low = middle;
  }
  return high;
}

static void model_item_answer(const model_item *item, bool charged, int64_t now_ms, model_answer *out) {
  if (model_is_window(&item->limit)) {
    model_window_answer(item, charged, now_ms, out);
    return;
  }
  model_int need = item->cost * item->limit.period_ms;
  model_int level = charged ? item->level - need : item->level;
  model_int remaining = model_floor(level, item->limit.period_ms);
  *out = (model_answer){.index = item->first,
                        .remaining = remaining < 0 ? 0 : (int64_t)remaining,
                        .reset_after_ms = (int64_t)model_ceil(model_full(&item->limit) - level, item->limit.refill)};
  out->grows_after_ms = model_growth_ms(&item->limit, level, out->remaining);
  if (item->cost > item->limit.capacity) {
    out->outcome = SPILE_NEVER;
    out->retry_after_ms = SPILE_UNKNOWN;
  } else if (item->level < need) {
    out->outcome = SPILE_DENIED;
    out->retry_after_ms = (int64_t)model_ceil(need - item->level, item->limit.refill);
  } else {
    out->outcome = SPILE_ALLOWED;
    if (item->limit.algorithm == SPILE_LEAKY_BUCKET)
      out->delay_ms = (int64_t)model_ceil(model_full(&item->limit) - item->level, item->limit.refill);
  }
}

/* Whether `a` decides before `b`, which was named earlier. */
static bool model_decides(const model_answer *a, const model_answer *b) {
  if (a->outcome != b->outcome)
    return a->outcome == SPILE_NEVER || b->outcome == SPILE_ALLOWED;
  switch (a->outcome) {
  case SPILE_ALLOWED:
    return a->remaining < b->remaining || (a->remaining == b->remaining && a->reset_after_ms > b->reset_after_ms);
  case SPILE_DENIED:
    return a->retry_after_ms > b->retry_after_ms;
  default:
    return false;
  }
}

static void model_item_write(const model_item *item, bool charged, int64_t now_ms) {
  if (model_is_window(&item->limit)) {
    model_window_write(item, charged, now_ms);
    return;
  }
  model_int level = charged ? item->level - item->cost * item->limit.period_ms : item->level;
  *item->bucket =
      (model_bucket){.stored = level < model_full(&item->limit), .limit = item->limit, .level = level, .at_ms = now_ms};
}

/* Makes items of requests, one a bucket, and reads them. @return how many */
static size_t model_items(model_bucket *buckets, int64_t now_ms, const model_request *requests, size_t n,
                          model_item *items, size_t *item_of) {
  static model_log logs[SPILE_REQUESTS_MAX]; /* too large for a stack */
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    model_bucket *bucket = &buckets[requests[i].bucket];
    size_t j = 0;
    while (j < count && items[j].bucket != bucket)
      j++;
    item_of[i] = j;
    if (j == count)
      items[count++] = (model_item){.bucket = bucket, .limit = requests[i].limit, .first = i};
    items[j].cost += requests[i].cost;
  }
  for (size_t j = 0; j < count; j++) {
    items[j].log = &logs[j];
    model_item_read(&items[j], now_ms);
  }
  return count;
}

bool model_unwritten(model_bucket *buckets, int64_t now_ms, const model_request *requests, size_t n) {
  model_item items[SPILE_REQUESTS_MAX];
  size_t item_of[SPILE_REQUESTS_MAX];
  size_t count = model_items(buckets, now_ms, requests, n, items, item_of);
  for (size_t j = 0; j < count; j++) {
    if (items[j].moved && items[j].cost == 0)
      return true;
  }
  return false;
}

static void model_each(const model_answer *answers, const size_t *item_of, size_t n, model_answer *each) {
  for (size_t i = 0; i < n; i++) {
    each[i] = answers[item_of[i]];
    each[i].index = i;
  }
}

int model_decide(model_bucket *buckets, bool take, int64_t now_ms, const model_request *requests, size_t n,
                 model_answer *decision, model_answer *each) {
  model_item items[SPILE_REQUESTS_MAX];
  size_t item_of[SPILE_REQUESTS_MAX];
  size_t count = model_items(buckets, now_ms, requests, n, items, item_of);
  bool all_fit = true;
  bool any_never = false;
  for (size_t j = 0; j < count; j++) {
    const model_item *item = &items[j];
    all_fit = all_fit && model_item_fits(item, now_ms);
    any_never = any_never || item->cost > item->limit.capacity;
  }

  model_answer answers[SPILE_REQUESTS_MAX];
  int64_t delay_ms = 0;
  for (size_t j = 0; j < count; j++) {
    model_item_answer(&items[j], take && all_fit, now_ms, &answers[j]);
    delay_ms = answers[j].delay_ms > delay_ms ? answers[j].delay_ms : delay_ms;
    if (j == 0 || model_decides(&answers[j], decision))
      *decision = answers[j];
  }
  decision->delay_ms = decision->outcome == SPILE_ALLOWED ? delay_ms : 0;
  model_each(answers, item_of, n, each);

  for (size_t j = 0; j < count && take && !any_never; j++) {
    if (items[j].cost == 0)
      continue;
    if (all_fit || items[j].moved)
      model_item_write(&items[j], all_fit, now_ms);
  }
  return decision->outcome;
}

/* ---- Charge and refund ---- */

/* Charges an item's level. @return the whole tokens that were not charged, rounded up */
static int64_t model_level_charge(model_item *item) {
  model_int wanted = item->level - item->cost * item->limit.period_ms;
  model_int deepest = -(model_int)item->limit.debt * item->limit.period_ms;
  model_int level = wanted > deepest ? wanted : deepest;
  if (level > item->level)
    level = item->level;
  item->level = level;
  return (int64_t)model_ceil(level - wanted, item->limit.period_ms);
}

/* Charges a window one cost after the other that is as large as it can be. @return the tokens that were not charged */
static int64_t model_window_charge(model_item *item, int64_t now_ms) {
  model_int wanted = item->cost;
  model_int low = 0;
  model_int high = (wanted < item->limit.capacity ? wanted : item->limit.capacity) + 1;
  while (high - low > 1) {
    item->cost = low + (high - low) / 2;
    if (model_window_fits(item, now_ms))
      low = item->cost;
    else
      high = item->cost;
  }
  item->cost = low;
  return (int64_t)(wanted - low);
}

/* Settles one item, and writes it where that changes something. */
static void model_item_settle(model_item *item, bool refund, int64_t now_ms, model_answer *out) {
  const model_int paid = item->cost;
  bool window = model_is_window(&item->limit);
  bool changed = false;
  int64_t uncharged = 0;
  if (window && refund) {
    changed = model_window_refund(item, now_ms);
    item->cost = 0;
  } else if (window) {
    uncharged = model_window_charge(item, now_ms);
    changed = item->cost > 0;
  } else {
    model_int before = item->level;
    if (refund)
      item->level += paid * item->limit.period_ms;
    else
      uncharged = model_level_charge(item);
    if (item->level > model_full(&item->limit))
      item->level = model_full(&item->limit);
    changed = item->level != before;
    item->cost = 0;
  }
  bool charged = window && item->cost > 0;
  model_item_answer(item, charged, now_ms, out);
  out->outcome = SPILE_ALLOWED;
  out->retry_after_ms = out->delay_ms = 0;
  out->uncharged = uncharged;
  if (paid > 0 && (changed || item->moved))
    model_item_write(item, charged, now_ms);
}

void model_settle(model_bucket *buckets, bool refund, int64_t now_ms, const model_request *requests, size_t n,
                  model_answer *decision, model_answer *each) {
  model_item items[SPILE_REQUESTS_MAX];
  size_t item_of[SPILE_REQUESTS_MAX];
  size_t count = model_items(buckets, now_ms, requests, n, items, item_of);
  model_answer answers[SPILE_REQUESTS_MAX];
  int64_t uncharged = 0;
  for (size_t j = 0; j < count; j++) {
    model_item_settle(&items[j], refund, now_ms, &answers[j]);
    uncharged = answers[j].uncharged > uncharged ? answers[j].uncharged : uncharged;
    if (j == 0 || model_decides(&answers[j], decision))
      *decision = answers[j];
  }
  decision->uncharged = uncharged;
  model_each(answers, item_of, n, each);
}

/* ---- Take up to ---- */

/* Writes what must not wait. */
static void model_items_correct(model_bucket *buckets, int64_t now_ms, const model_request *requests, size_t n) {
  model_item items[SPILE_REQUESTS_MAX];
  size_t item_of[SPILE_REQUESTS_MAX];
  size_t count = model_items(buckets, now_ms, requests, n, items, item_of);
  for (size_t j = 0; j < count; j++) {
    if (items[j].moved)
      model_item_write(&items[j], false, now_ms);
  }
}

int model_take_up_to(model_bucket *buckets, int64_t now_ms, const model_request *requests, size_t n, int64_t most,
                     model_answer *decision, model_answer *each) {
  model_request tries[SPILE_REQUESTS_MAX];
  bool never = false;
  for (size_t i = 0; i < n; i++) {
    tries[i] = requests[i];
    never = never || requests[i].cost > requests[i].limit.capacity;
    most = most < requests[i].limit.capacity ? most : requests[i].limit.capacity;
  }
  /* The largest cost that all of them have. */
  model_item items[SPILE_REQUESTS_MAX];
  size_t item_of[SPILE_REQUESTS_MAX];
  size_t count = model_items(buckets, now_ms, requests, n, items, item_of);
  int64_t low = requests[0].cost - 1;
  int64_t high = most + 1;
  while (high - low > 1 && !never) {
    int64_t middle = low + (high - low) / 2;
    bool all_fit = true;
    for (size_t j = 0; j < count; j++) {
      items[j].cost = middle;
      all_fit = all_fit && model_item_fits(&items[j], now_ms);
    }
    if (all_fit)
      low = middle;
    else
      high = middle;
  }
  if (!never && low >= requests[0].cost) {
    for (size_t i = 0; i < n; i++)
      tries[i].cost = low;
    (void)model_decide(buckets, true, now_ms, tries, n, decision, each);
    decision->granted = low;
    for (size_t i = 0; i < n; i++)
      each[i].granted = low;
    /* A grant of nothing is no denial, but corrects what one would. */
    if (low > 0 || most == 0)
      return decision->outcome;
    model_items_correct(buckets, now_ms, requests, n);
    return decision->outcome;
  }
  (void)model_decide(buckets, !never, now_ms, requests, n, decision, each);
  if (!never && requests[0].cost == 0 && most > 0)
    model_items_correct(buckets, now_ms, requests, n);
  return decision->outcome;
}
