/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Possible worlds. A bucket in one of them is the model's; of a window only what counts is kept, without the room that
 * the model has for more, and without when in its window something was taken, which does not matter.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_oracles.h"

/* ---- Answers ---- */

bool sim_answer_same(const sim_answer *a, const sim_answer *b) {
  return a->outcome == b->outcome && a->remaining == b->remaining && a->retry_after_ms == b->retry_after_ms &&
         a->reset_after_ms == b->reset_after_ms && a->grows_after_ms == b->grows_after_ms &&
         a->delay_ms == b->delay_ms && a->granted == b->granted && a->uncharged == b->uncharged;
}

static sim_answer answer_of(const model_answer *answer) {
  return (sim_answer){.outcome = answer->outcome,
                      .remaining = answer->remaining,
                      .retry_after_ms = answer->retry_after_ms,
                      .reset_after_ms = answer->reset_after_ms,
                      .grows_after_ms = answer->grows_after_ms,
                      .delay_ms = answer->delay_ms,
                      .granted = answer->granted,
                      .uncharged = answer->uncharged};
}

size_t sim_answer_print(char *out, size_t size, const sim_answer *told) {
  static const struct {
    const char *name;
    size_t at;
  } rest[] = {{"grows", offsetof(sim_answer, grows_after_ms)},
              {"delay", offsetof(sim_answer, delay_ms)},
              {"granted", offsetof(sim_answer, granted)},
              {"uncharged", offsetof(sim_answer, uncharged)}};
  size_t at = (size_t)snprintf(out, size, "[%d %" PRId64 " %" PRId64 " %" PRId64, told->outcome, told->remaining,
                               told->retry_after_ms, told->reset_after_ms);
  for (size_t i = 0; i < sizeof(rest) / sizeof(rest[0]) && at < size; i++) {
    int64_t number;
    memcpy(&number, (const char *)told + rest[i].at, sizeof(number));
    if (number != 0)
      at += (size_t)snprintf(out + at, size - at, " %s %" PRId64, rest[i].name, number);
  }
  return at < size ? at + (size_t)snprintf(out + at, size - at, "]") : at;
}

/* ---- Buckets of one world ---- */

/* One log of the model for all worlds: they are looked at one after the other. */
static model_log world_log;

static void kept_load(const sim_kept *kept, model_bucket *out) {
  *out = kept->bucket;
  out->log = &world_log;
  world_log.n = 0;
  if (!kept->bucket.stored || !model_is_window(&kept->bucket.limit))
    return;
  world_log.reached_ms = kept->reached_ms;
  world_log.n = kept->n;
  for (size_t i = 0; i < kept->n; i++) {
    world_log.events[i].at_ms = kept->events[i].at_ms;
    world_log.events[i].tokens = kept->events[i].tokens;
  }
}

/* What was taken within one window of counts was taken at its start; in a log what was taken at once is one event. */
static void kept_store(sim_kept *kept, const model_bucket *bucket) {
  kept->bucket = *bucket;
  kept->bucket.log = NULL;
  kept->n = 0;
  if (!bucket->stored || !model_is_window(&bucket->limit))
    return;
  const model_log *log = bucket->log;
  bool is_log = bucket->limit.algorithm == SPILE_SLIDING_LOG;
  kept->reached_ms = log->reached_ms;
  for (size_t i = 0; i < log->n; i++) {
    int64_t at_ms = log->events[i].at_ms;
    /* The model keeps the window that was reached and the one before it. */
    if (!is_log)
      at_ms = at_ms >= log->reached_ms ? log->reached_ms : log->reached_ms - bucket->limit.period_ms;
    if (kept->n > 0 && kept->events[kept->n - 1].at_ms == at_ms) {
      kept->events[kept->n - 1].tokens += log->events[i].tokens;
      continue;
    }
    if (kept->n == SIM_LOG_MAX)
      abort();
    kept->events[kept->n].at_ms = at_ms;
    kept->events[kept->n++].tokens = log->events[i].tokens;
  }
}

static bool kept_same(const sim_kept *a, const sim_kept *b) {
  if (!a->bucket.stored || !b->bucket.stored)
    return a->bucket.stored == b->bucket.stored;
  if (!model_same(&a->bucket.limit, &b->bucket.limit))
    return false;
  if (!model_is_window(&a->bucket.limit))
    return a->bucket.level == b->bucket.level && a->bucket.at_ms == b->bucket.at_ms;
  return a->reached_ms == b->reached_ms && a->n == b->n &&
         memcmp(a->events, b->events, a->n * sizeof(a->events[0])) == 0;
}

/* The instant from which a bucket is as good as none, rounded down. */
static int64_t kept_until_ms(const sim_kept *kept) {
  const model_limit *limit = &kept->bucket.limit;
  if (!model_is_window(limit)) {
    model_int missing = (model_int)limit->capacity * limit->period_ms - kept->bucket.level;
    return kept->bucket.at_ms + (int64_t)(missing / limit->refill);
  }
  int64_t newest_ms = kept->n > 0 ? kept->events[kept->n - 1].at_ms : 0;
  return newest_ms + (limit->algorithm == SPILE_SLIDING_WINDOW ? 2 : 1) * limit->period_ms;
}

/* ---- Worlds ---- */

static bool possibles_add(sim_possibles *possibles, const sim_possible *possible) {
  for (size_t i = 0; i < possibles->n; i++) {
    const sim_possible *other = &possibles->list[i];
    if (sim_answer_same(&possible->told, &other->told) && kept_same(&possible->kept, &other->kept))
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

/* Runs a take or a peek, which another item may deny. */
static sim_answer bucket_decide(model_bucket *bucket, bool take, const model_limit *limit, int64_t cost, int64_t now_ms,
                                bool denied) {
  /* A bucket that is empty now and asked for its only token denies whatever stands beside it. */
  static const model_limit nothing = {.capacity = 1, .refill = 1, .period_ms = 1000};
  model_answer decision;
  model_answer each[2];
  model_bucket buckets[2] = {*bucket, {.stored = true, .limit = nothing, .at_ms = now_ms}};
  const model_request requests[2] = {{.bucket = 0, .limit = *limit, .cost = cost},
                                     {.bucket = 1, .limit = nothing, .cost = 1}};
  (void)model_decide(buckets, take, now_ms, requests, denied ? 2 : 1, &decision, each);
  *bucket = buckets[0];
  return answer_of(&each[0]);
}

/* Runs one item as part of a call that goes through or, `denied`, of a take that another item denies. */
static sim_answer item_run(sim_kept *kept, const sim_call *call, const sim_item *item, int64_t now_ms, bool denied) {
  const model_request request = {.bucket = 0, .limit = item->limit, .cost = item->cost};
  model_answer decision;
  model_answer each;
  model_bucket bucket;
  sim_answer told;
  kept_load(kept, &bucket);
  switch ((int)call->verb) {
  case SIM_CLEAR:
    bucket.stored = false;
    told = (sim_answer){.outcome = SPILE_ALLOWED};
    break;
  case SIM_CHARGE:
  case SIM_REFUND:
    model_settle(&bucket, call->verb == SIM_REFUND, now_ms, &request, 1, &decision, &each);
    told = answer_of(&each);
    break;
  case SIM_TAKE_UP_TO:
    (void)model_take_up_to(&bucket, now_ms, &request, 1, call->most, &decision, &each);
    told = answer_of(&each);
    break;
  default:
    told = bucket_decide(&bucket, call->verb == SIM_TAKE, &item->limit, item->cost, now_ms, denied);
    break;
  }
  kept_store(kept, &bucket);
  return told;
}

/* Adds what a run of the item makes of a world. */
static bool possibles_run(sim_possibles *out, const sim_possible *from, const sim_call *call, const sim_item *item,
                          int64_t now_ms, bool denied) {
  sim_possible run = *from;
  sim_answer told = item_run(&run.kept, call, item, now_ms, denied);
  if (call->running)
    run.told = told;
  return possibles_add(out, &run);
}

/* Whether all that a charge or a refund wrote is a correction: a denied take of the same instant writes no other. */
static bool settled_corrects(const sim_possible *from, const sim_possible *run, const sim_item *item, int64_t now_ms) {
  sim_kept denied = from->kept;
  model_bucket bucket;
  kept_load(&denied, &bucket);
  (void)bucket_decide(&bucket, true, &item->limit, 1, now_ms, true);
  kept_store(&denied, &bucket);
  return kept_same(&denied, &run->kept);
}

/* Adds the world in which an item was run by a server that refuses writes: it has nothing to pay, and what would have
 * been corrected is not. What pays is written, or the call fails. */
static bool possibles_run_unwritten(sim_possibles *out, const sim_possible *from, const sim_call *call,
                                    const sim_item *item, int64_t now_ms) {
  sim_possible run = *from;
  sim_answer told = item_run(&run.kept, call, item, now_ms, true);
  bool pays;
  if (sim_verb_settles(call->verb))
    pays = !settled_corrects(from, &run, item, now_ms);
  else
    pays = call->n == 1 && told.outcome == SPILE_ALLOWED && (call->verb == SIM_TAKE || told.granted > 0);
  if (pays)
    return true;
  run.kept = from->kept;
  if (call->running)
    run.told = told;
  return possibles_add(out, &run);
}

void sim_worlds_imagine(sim_oracles *oracles, sim_call *call, int64_t server_ms, bool refuses) {
  if (call->imagined || call->told_uncharged)
    return;
  call->imagined = true;
  bool writes = call->verb != SIM_PEEK && call->verb != SIM_CLEAR;
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
      room = possibles_add(out, from) && possibles_run(out, from, call, item, server_ms, false);
      if (vector)
        room = room && possibles_run(out, from, call, item, server_ms, true);
      if (refuses && writes)
        room = room && possibles_run_unwritten(out, from, call, item, server_ms);
    }
    oracles->inconclusive[item->bucket] = !room;
    possibles_copy(possibles, out);
    if (out->n > oracles->most)
      oracles->most = out->n;
  }
}

static void possible_print(char *out, size_t size, const sim_possibles *possibles) {
  size_t at = 0;
  for (size_t i = 0; i < possibles->n && i < 3 && at + 1 < size; i++) {
    out[at++] = ' ';
    at += sim_answer_print(out + at, size - at, &possibles->list[i].told);
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
    if (!sim_answer_same(&possible.told, told))
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
  char got[200];
  char expected[300] = "";
  (void)sim_answer_print(got, sizeof(got), told);
  possible_print(expected, sizeof(expected), possibles);
  sim_oracles_fail(oracles,
                   "no possible world explains what call %" PRIu64 " was told of bucket %zu: %s; %zu were possible:%s",
                   call->number, bucket, got, possibles->n, expected);
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
static bool kept_expired(const sim_kept *kept, int64_t server_ms) {
  return kept->bucket.stored && server_ms > kept_until_ms(kept) + 1000;
}

static void possibles_forget_expired(sim_oracles *oracles, size_t bucket, sim_possibles *possibles, int64_t server_ms) {
  sim_possibles *out = &oracles->scratch;
  out->n = 0;
  bool room = true;
  for (size_t j = 0; j < possibles->n && room; j++) {
    room = possibles_add(out, &possibles->list[j]);
    if (!kept_expired(&possibles->list[j].kept, server_ms))
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
