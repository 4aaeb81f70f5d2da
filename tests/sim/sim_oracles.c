/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_oracles.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void sim_oracles_init(sim_oracles *oracles, size_t n_buckets) {
  oracles->n_buckets = n_buckets;
  oracles->most = 1;
  oracles->answers = oracles->charges = 0;
  oracles->failed = false;
  oracles->failure[0] = '\0';
  memset(oracles->inconclusive, 0, sizeof(oracles->inconclusive));
  for (size_t i = 0; i < n_buckets; i++)
    oracles->possibles[i].n = 0;
  sim_worlds_wipe(oracles);
  sim_worlds_copy(oracles);
  sim_meter_reset_all(oracles);
}

void sim_oracles_fail(sim_oracles *oracles, const char *format, ...) {
  if (oracles->failed)
    return;
  oracles->failed = true;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(oracles->failure, sizeof(oracles->failure), format, args);
  va_end(args);
}

/* ---- Possible worlds ---- */

static bool answer_same(const sim_answer *a, const sim_answer *b) {
  return a->outcome == b->outcome && a->remaining == b->remaining && a->retry_after_ms == b->retry_after_ms &&
         a->reset_after_ms == b->reset_after_ms;
}

static bool bucket_same(const model_bucket *a, const model_bucket *b) {
  if (!a->stored || !b->stored)
    return a->stored == b->stored;
  return a->level == b->level && a->at_ms == b->at_ms && a->limit.capacity == b->limit.capacity &&
         a->limit.refill == b->limit.refill && a->limit.period_ms == b->limit.period_ms &&
         a->limit.debt == b->limit.debt;
}

static bool possibles_add(sim_possibles *possibles, const sim_possible *possible) {
  for (size_t i = 0; i < possibles->n; i++) {
    const sim_possible *other = &possibles->list[i];
    if (bucket_same(&possible->bucket, &other->bucket) && answer_same(&possible->told, &other->told))
      return true;
  }
  if (possibles->n == SIM_POSSIBLE_MAX)
    return false;
  possibles->list[possibles->n++] = *possible;
  return true;
}

static void possibles_copy(sim_possibles *to, const sim_possibles *from) {
  to->n = from->n;
  memcpy(to->list, from->list, from->n * sizeof(from->list[0]));
}

static sim_answer answer_of(const model_answer *answer) {
  return (sim_answer){answer->outcome, answer->remaining, answer->retry_after_ms, answer->reset_after_ms};
}

/* Runs one item as part of a take that is charged or, `denied`, one that another item denies. */
static sim_answer item_run(model_bucket *bucket, const sim_call *call, const sim_item *item, int64_t now_ms,
                           bool denied) {
  if (call->verb == SIM_CLEAR) {
    *bucket = (model_bucket){.stored = false};
    return (sim_answer){.outcome = SPILE_ALLOWED};
  }
  model_answer decision;
  model_answer each[2];
  /* A bucket that is empty now and asked for its only token denies whatever stands beside it. */
  static const model_limit nothing = {.capacity = 1, .refill = 1, .period_ms = 1000};
  model_bucket buckets[2] = {*bucket, {.stored = true, .limit = nothing, .at_ms = now_ms}};
  const model_request requests[2] = {{.bucket = 0, .limit = item->limit, .cost = item->cost},
                                     {.bucket = 1, .limit = nothing, .cost = 1}};
  (void)model_decide(buckets, call->verb == SIM_TAKE, now_ms, requests, denied ? 2 : 1, &decision, each);
  *bucket = buckets[0];
  return answer_of(&each[0]);
}

static bool possibles_run(sim_possibles *out, const sim_possible *from, const sim_call *call, const sim_item *item,
                          int64_t now_ms, bool denied, bool written) {
  sim_possible run = *from;
  sim_answer told = item_run(&run.bucket, call, item, now_ms, denied);
  if (!written) {
    /* What is allowed is written, or it is not allowed. */
    if (call->n == 1 && told.outcome == SPILE_ALLOWED)
      return true;
    run.bucket = from->bucket;
  }
  if (call->running)
    run.told = told;
  return possibles_add(out, &run);
}

void sim_worlds_imagine(sim_oracles *oracles, sim_call *call, int64_t server_ms, bool oom) {
  if (call->imagined || call->told_uncharged)
    return;
  call->imagined = true;
  for (size_t i = 0; i < call->n; i++) {
    const sim_item *item = &call->items[i];
    sim_possibles *possibles = &oracles->possibles[item->bucket];
    if (oracles->inconclusive[item->bucket])
      continue;
    sim_possibles *out = &oracles->scratch;
    out->n = 0;
    bool room = true;
    bool vector = call->n > 1 && call->verb == SIM_TAKE;
    for (size_t j = 0; j < possibles->n && room; j++) {
      const sim_possible *from = &possibles->list[j];
      room = possibles_add(out, from) && possibles_run(out, from, call, item, server_ms, false, true);
      if (vector)
        room = room && possibles_run(out, from, call, item, server_ms, true, true);
      if (oom)
        room = room && possibles_run(out, from, call, item, server_ms, true, false);
    }
    oracles->inconclusive[item->bucket] = !room;
    possibles_copy(possibles, out);
    if (out->n > oracles->most)
      oracles->most = out->n;
  }
}

static void possible_print(char *out, size_t size, const sim_possibles *possibles) {
  size_t at = 0;
  for (size_t i = 0; i < possibles->n && i < 3 && at < size; i++) {
    const sim_answer *told = &possibles->list[i].told;
    at += (size_t)snprintf(out + at, size - at, " [%d %" PRId64 " %" PRId64 " %" PRId64 "]", told->outcome,
                           told->remaining, told->retry_after_ms, told->reset_after_ms);
  }
}

/* Keeps the worlds that told the call this. */
static void possibles_keep(sim_oracles *oracles, const sim_call *call, size_t i, const sim_answer *told) {
  size_t bucket = call->items[i].bucket;
  if (oracles->inconclusive[bucket])
    return;
  sim_possibles *possibles = &oracles->possibles[bucket];
  sim_possibles *out = &oracles->scratch;
  out->n = 0;
  for (size_t j = 0; j < possibles->n; j++) {
    sim_possible possible = possibles->list[j];
    if (!answer_same(&possible.told, told))
      continue;
    possible.told = (sim_answer){0};
    (void)possibles_add(out, &possible);
  }
  if (out->n > 0) {
    possibles_copy(possibles, out);
    return;
  }
  if (oracles->blind)
    return;
  char expected[200] = "";
  possible_print(expected, sizeof(expected), possibles);
  sim_oracles_fail(oracles,
                   "no possible world explains what call %" PRIu64 " was told of bucket %zu: [%d %" PRId64 " %" PRId64
                   " %" PRId64 "]; %zu were possible:%s",
                   call->number, bucket, told->outcome, told->remaining, told->retry_after_ms, told->reset_after_ms,
                   possibles->n, expected);
}

void sim_worlds_answered(sim_oracles *oracles, const sim_call *call, const sim_answer *told) {
  oracles->answers++;
  for (size_t i = 0; i < call->n; i++)
    possibles_keep(oracles, call, i, &told[i]);
}

void sim_worlds_unanswered(sim_oracles *oracles, const sim_call *call, bool uncharged) {
  static const sim_answer not_run = {0};
  for (size_t i = 0; i < call->n; i++) {
    size_t bucket = call->items[i].bucket;
    sim_possibles *possibles = &oracles->possibles[bucket];
    if (uncharged) {
      possibles_keep(oracles, call, i, &not_run);
      continue;
    }
    sim_possibles *out = &oracles->scratch;
    out->n = 0;
    for (size_t j = 0; j < possibles->n; j++) {
      possibles->list[j].told = not_run;
      (void)possibles_add(out, &possibles->list[j]);
    }
    possibles_copy(possibles, out);
  }
}

/* Whether a bucket's expiry, a second after it is full, is over at this reading. */
static bool bucket_expired(const model_bucket *bucket, int64_t server_ms) {
  if (!bucket->stored)
    return false;
  model_int missing = (model_int)bucket->limit.capacity * bucket->limit.period_ms - bucket->level;
  return server_ms > bucket->at_ms + missing / bucket->limit.refill + 1000;
}

static void possibles_forget_expired(sim_oracles *oracles, size_t bucket, sim_possibles *possibles, int64_t server_ms) {
  sim_possibles *out = &oracles->scratch;
  out->n = 0;
  bool room = true;
  for (size_t j = 0; j < possibles->n && room; j++) {
    room = possibles_add(out, &possibles->list[j]);
    if (!bucket_expired(&possibles->list[j].bucket, server_ms))
      continue;
    const sim_possible gone = {.told = possibles->list[j].told};
    room = room && possibles_add(out, &gone);
  }
  if (!room)
    oracles->inconclusive[bucket] = true;
  possibles_copy(possibles, out);
}

void sim_worlds_forget_expired(sim_oracles *oracles, int64_t server_ms) {
  for (size_t i = 0; i < oracles->n_buckets; i++) {
    possibles_forget_expired(oracles, i, &oracles->possibles[i], server_ms);
    possibles_forget_expired(oracles, i, &oracles->before[i], server_ms);
  }
}

void sim_worlds_wipe(sim_oracles *oracles) {
  for (size_t i = 0; i < oracles->n_buckets; i++) {
    sim_possibles *possibles = &oracles->possibles[i];
    sim_possibles *out = &oracles->scratch;
    out->n = 0;
    for (size_t j = 0; j < possibles->n; j++) {
      const sim_possible empty = {.told = possibles->list[j].told};
      (void)possibles_add(out, &empty);
    }
    if (out->n == 0)
      (void)possibles_add(out, &(sim_possible){0});
    possibles_copy(possibles, out);
    oracles->inconclusive[i] = false;
  }
}

void sim_worlds_copy(sim_oracles *oracles) {
  for (size_t i = 0; i < oracles->n_buckets; i++) {
    sim_possibles *out = &oracles->before[i];
    possibles_copy(out, &oracles->possibles[i]);
    for (size_t j = 0; j < out->n; j++)
      out->list[j].told = (sim_answer){0};
  }
}

void sim_worlds_restore(sim_oracles *oracles) {
  for (size_t i = 0; i < oracles->n_buckets; i++)
    possibles_copy(&oracles->possibles[i], &oracles->before[i]);
}

/* ---- The meter ---- */

void sim_meter_reset(sim_oracles *oracles, size_t bucket) {
  oracles->meters[bucket] = (sim_meter){.at_ms = INT64_MIN};
}

void sim_meter_reset_all(sim_oracles *oracles) {
  for (size_t i = 0; i < oracles->n_buckets; i++)
    sim_meter_reset(oracles, i);
}

/*
 * Level: what is in the bucket of the old picture, leaking at N and holding C·P. Total: over any readings of a clock,
 * stepping or not, at most C·P + N·(latest − earliest).
 */
void sim_meter_charge(sim_oracles *oracles, const sim_item *item, int64_t server_ms) {
  sim_meter *meter = &oracles->meters[item->bucket];
  const model_limit *limit = &item->limit;
  if (meter->at_ms == INT64_MIN)
    *meter = (sim_meter){.limit = *limit, .at_ms = server_ms, .earliest_ms = server_ms, .latest_ms = server_ms};
  model_int passed_ms = (model_int)server_ms - meter->at_ms;
  meter->level -= passed_ms > 0 ? passed_ms * limit->refill : 0;
  if (meter->level < 0)
    meter->level = 0;
  meter->at_ms = server_ms;
  meter->earliest_ms = server_ms < meter->earliest_ms ? server_ms : meter->earliest_ms;
  meter->latest_ms = server_ms > meter->latest_ms ? server_ms : meter->latest_ms;
  model_int cost = (model_int)item->cost * limit->period_ms;
  meter->level += cost;
  meter->total += cost;
  oracles->charges++;
  model_int full = (model_int)limit->capacity * limit->period_ms;
  model_int span_ms = (model_int)meter->latest_ms - meter->earliest_ms;
  if (meter->level > full || meter->total > full + span_ms * limit->refill)
    sim_oracles_fail(oracles, "bucket %zu admitted more than its capacity and its refill (%s)", item->bucket,
                     meter->level > full ? "by the level" : "by the total");
}

/* ---- The breaker ---- */

void sim_watch_init(sim_watch *watch, int failures_max, int64_t first_wait_ms) {
  *watch = (sim_watch){.failures_max = failures_max, .first_wait_ms = first_wait_ms};
  for (int i = 0; i < SIM_WATCH_PARTS; i++)
    watch->parts[i].wait_ms = first_wait_ms;
}

static void watch_answered(sim_watch *watch, int part) {
  watch->parts[part] = (sim_watch_part){.wait_ms = watch->first_wait_ms};
}

static void watch_failed(sim_watch *watch, int index, int64_t now_ms) {
  sim_watch_part *part = &watch->parts[index];
  int64_t most_ms = 64 * watch->first_wait_ms;
  if (part->open)
    part->wait_ms = 2 * part->wait_ms < most_ms ? 2 * part->wait_ms : most_ms;
  else if (++part->failures < watch->failures_max)
    return;
  int64_t spread_ms = part->wait_ms / 5;
  part->open = true;
  part->closed_until_ms = now_ms + part->wait_ms - spread_ms;
  part->open_from_ms = now_ms + part->wait_ms + spread_ms;
}

static bool watch_concerns(const sim_ask *ask, int part) {
  return part == SIM_WATCH_STORE || (part == SIM_WATCH_CHARGES ? ask->take : ask->brief);
}

/* The store is there, whatever it says. */
static void watch_alive(sim_watch *watch, const sim_ask *ask) {
  watch_answered(watch, SIM_WATCH_STORE);
  if (ask->brief)
    watch_answered(watch, SIM_WATCH_SHORT);
}

static void watch_learn(sim_watch *watch, const sim_ask *ask) {
  if (ask->answered) {
    watch_alive(watch, ask);
    if (ask->take && ask->charged && !ask->corrects)
      watch_answered(watch, SIM_WATCH_CHARGES);
    return;
  }
  switch (ask->reason) {
  case SPILE_REASON_BUSY:
  case SPILE_REASON_MEMORY:
    return;
  case SPILE_REASON_OOM:
  case SPILE_REASON_FOREIGN:
  case SPILE_REASON_CORRUPT:
  case SPILE_REASON_FORMAT:
    watch_alive(watch, ask);
    return;
  case SPILE_REASON_TIMEOUT:
  case SPILE_REASON_CONNECT:
  case SPILE_REASON_RESOLVE:
    watch_failed(watch, ask->brief ? SIM_WATCH_SHORT : SIM_WATCH_STORE, ask->end_ms);
    return;
  case SPILE_REASON_REFUSED:
  case SPILE_REASON_READONLY:
  case SPILE_REASON_AUTH:
  case SPILE_REASON_IO:
    if (ask->take) {
      watch_alive(watch, ask);
      if (!ask->corrects)
        watch_failed(watch, SIM_WATCH_CHARGES, ask->end_ms);
      return;
    }
    break;
  default:
    break;
  }
  watch_failed(watch, SIM_WATCH_STORE, ask->end_ms);
}

void sim_watch_ask(sim_oracles *oracles, sim_watch *watch, const sim_ask *ask) {
  for (int i = 0; i < SIM_WATCH_PARTS; i++) {
    const sim_watch_part *part = &watch->parts[i];
    if (watch_concerns(ask, i) && part->open && ask->start_ms < part->closed_until_ms)
      sim_oracles_fail(oracles, "a take passed a breaker that is open for another %" PRId64 " ms",
                       part->closed_until_ms - ask->start_ms);
  }
  watch_learn(watch, ask);
}

int sim_watch_part_of(const char *detail) {
  if (strstr(detail, "not charged") != NULL)
    return SIM_WATCH_CHARGES;
  return strstr(detail, "too slow") != NULL ? SIM_WATCH_SHORT : SIM_WATCH_STORE;
}

void sim_watch_refused(sim_oracles *oracles, const sim_watch *watch, int64_t now_ms, const char *detail, size_t asks) {
  int index = sim_watch_part_of(detail);
  const sim_watch_part *part = &watch->parts[index];
  if (asks != (index == SIM_WATCH_CHARGES ? 1 : 0))
    sim_oracles_fail(oracles, "a take that the breaker refused asked %zu times: %s", asks, detail);
  if (!part->open)
    sim_oracles_fail(oracles, "the breaker refuses after %d failures of %d: %s", part->failures, watch->failures_max,
                     detail);
  else if (now_ms >= part->open_from_ms)
    sim_oracles_fail(oracles, "the breaker refuses for longer than it may: %s", detail);
}
