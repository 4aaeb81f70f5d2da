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

void sim_watch_refused(sim_oracles *oracles, const sim_watch *watch, int64_t now_ms, const char *detail, size_t asks,
                       bool takes) {
  int index = sim_watch_part_of(detail);
  const sim_watch_part *part = &watch->parts[index];
  if (asks != (takes && index == SIM_WATCH_CHARGES ? 1 : 0))
    sim_oracles_fail(oracles, "a take that the breaker refused asked %zu times: %s", asks, detail);
  if (!part->open)
    sim_oracles_fail(oracles, "the breaker refuses after %d failures of %d: %s", part->failures, watch->failures_max,
                     detail);
  else if (now_ms >= part->open_from_ms)
    sim_oracles_fail(oracles, "the breaker refuses for longer than it may: %s", detail);
}
