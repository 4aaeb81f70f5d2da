/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls are made one at a time, by any client, at moments that are likely to matter: many of the calls after a denial
 * come exactly when it said, or a millisecond earlier. What other clients sent and gave up arrives meanwhile.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* ---- When ---- */

/* However long, the server's clock stays where clocks may be. */
static void time_pass_us(sim *s, int64_t us) {
  int64_t room_ms = SPILE_TIME_MAX_MS - 2 * SIM_TEN_YEARS_MS - sim_server_now_ms(&s->server);
  int64_t room_us = room_ms > 0 ? (room_ms < SIM_TEN_YEARS_MS ? room_ms : SIM_TEN_YEARS_MS) * 900 : 0;
  sim_world_advance(&s->world, s->world.now_us + (us < room_us ? us : room_us));
}

/* An instant that the call before told, on the server's clock: when a denial ends, when more is left, when all is.
 * @return 0 where there is none */
static int64_t time_told_ms(sim *s) {
  const spile_decision *told = &s->decision;
  if (s->last_result <= 0 || told->decided_by != SPILE_BY_STORE || s->last.verb == SIM_CLEAR)
    return 0;
  int64_t after_ms = told->retry_after_ms;
  if (s->last_result != SPILE_DENIED) {
    if (!s->mix.algorithms || sim_below(&s->random, 8) > 0)
      return 0;
    after_ms = sim_once_in(&s->random, 2) ? told->grows_after_ms : told->reset_after_ms;
  }
  if (after_ms < 1 || (after_ms > 10000000 && !sim_once_in(&s->random, 8)))
    return 0;
  return s->last.served_ms + after_ms;
}

/* Lets time pass until such an instant, or all but a millisecond of it. @return whether it could */
static bool time_pass_wait(sim *s) {
  int64_t at_ms = time_told_ms(s);
  if (at_ms == 0)
    return false;
  at_ms -= sim_once_in(&s->random, 2) ? 1 : 0;
  int64_t at_us = sim_server_reaches_us(&s->server, at_ms);
  int64_t set_out_us = at_us - s->world.latency_us;
  if (at_us <= s->world.now_us)
    return false;
  if (set_out_us > s->world.now_us)
    time_pass_us(s, set_out_us - s->world.now_us);
  s->world.steer_us = at_us - s->world.now_us <= s->world.latency_us ? at_us : 0;
  return true;
}

static void time_pass(sim *s) {
  if (s->decision.store_error == SPILE_REASON_BREAKER && sim_once_in(&s->random, 3)) {
    time_pass_us(s, sim_below(&s->random, 1000000));
    return;
  }
  int64_t full_ms = model_full_time_ms(&s->last.items[0].limit);
  switch (sim_below(&s->random, 16)) {
  case 0:
  case 1:
  case 2:
  case 3:
    break;
  case 4:
    time_pass_us(s, sim_below(&s->random, 100000));
    break;
  case 5:
    time_pass_us(s, sim_magnitude(&s->random, full_ms) * 1000);
    break;
  case 6:
    time_pass_us(s, full_ms * 1000 + sim_between(&s->random, -1000, 1000));
    break;
  case 7:
    time_pass_us(s, sim_magnitude(&s->random, 5000000));
    break;
  default:
    time_pass_us(s, sim_below(&s->random, 3000));
    break;
  }
}

static void faults_draw(sim *s) {
  sim_fault fault = sim_swarm_draw(&s->world.swarm, &s->random, SIM_MOMENT_CALL);
  if (fault == SIM_LIMIT_CHANGE)
    s->targets[sim_below(&s->random, (int64_t)s->n_targets)].variant ^= 1;
  else if (fault != SIM_NO_FAULT)
    sim_world_blow_at(&s->world, s->world.now_us + sim_below(&s->random, 30000), fault);
  if (s->world.swarm.per_million[SIM_FAILOVER] > 0 && sim_once_in(&s->random, 40))
    sim_server_replicate(&s->server);
}

static void step(sim *s) {
  faults_draw(s);
  bool waited = s->last.n > 0 && sim_below(&s->random, 10) < 4 && time_pass_wait(s);
  if (!waited && s->last.n > 0)
    time_pass(s);
  sim_client *client = &s->clients[sim_below(&s->random, (int64_t)s->n_clients)];
  sim_call_run(s, client, waited ? sim_call_again(s) : sim_call_draw(s));
}

/* ---- When the faults are over ---- */

/* What a refusal says of how long it goes on. */
static int64_t refusal_left_ms(const spile_decision *decision) {
  const char *another = strstr(decision->detail, "for another ");
  const char *given_up = strstr(decision->detail, "given up in ");
  const char *at = another != NULL ? another : given_up;
  return at != NULL ? strtoll(at + strlen("for another "), NULL, 10) : 0;
}

static void client_recovers(sim *s, sim_client *client) {
  int64_t start_ms = sim_world_now_ms(&s->world);
  int64_t patience_ms = 1000;
  bool waited[SIM_WATCH_PARTS] = {false};
  sim_call *call;
  do {
    if (sim_world_now_ms(&s->world) - start_ms > patience_ms) {
      sim_oracles_fail(&s->oracles, "no answer %" PRId64 " ms after the faults ended: %s",
                       sim_world_now_ms(&s->world) - start_ms, s->decision.detail);
      return;
    }
    call = sim_call_new(s, SIM_TAKE);
    call->n = 1;
    call->items[0].limit = sim_item_limit(s, &call->items[0])->model;
    call->items[0].cost = 1;
    sim_call_run(s, client, call);
    int64_t left_ms = 10;
    if (s->decision.store_error == SPILE_REASON_BREAKER) {
      left_ms = refusal_left_ms(&s->decision);
      bool *waits = &waited[sim_watch_part_of(s->decision.detail)];
      patience_ms += *waits ? 0 : left_ms;
      *waits = true;
    }
    sim_world_advance(&s->world, s->world.now_us + left_ms * 1000);
  } while (s->decision.decided_by != SPILE_BY_STORE && !s->oracles.failed);
  s->report->recoveries++;
}

/* The longest that a bucket takes to be full again. */
static int64_t longest_ms(const model_limit *limit) {
  model_limit deepest = *limit;
  deepest.capacity += limit->debt;
  return model_full_time_ms(&deepest);
}

/* Takes all that a bucket holds, where the breaker may still be waiting for what this client has not tried since. */
static void target_drain(sim *s, sim_client *client, size_t bucket) {
  for (int refused = 0; refused <= SIM_WATCH_PARTS; refused++) {
    sim_call *call = sim_call_new(s, SIM_TAKE);
    call->n = 1;
    call->items[0].bucket = bucket;
    call->items[0].limit = sim_item_limit(s, &call->items[0])->model;
    call->items[0].cost = call->items[0].limit.capacity;
    sim_call_run(s, client, call);
    if (s->decision.store_error != SPILE_REASON_BREAKER)
      return;
    sim_world_advance(&s->world, s->world.now_us + refusal_left_ms(&s->decision) * 1000);
  }
}

/*
 * Whatever happened, a bucket that was left alone for long enough admits its capacity. Where the clock was set back it
 * may have to be asked once, to be cut, and then keeps what it promised.
 */
static void targets_recover(sim *s, sim_client *client) {
  for (size_t i = 0; i < s->n_targets && !s->oracles.failed; i++) {
    const sim_target *target = &s->targets[i];
    int64_t full_ms = longest_ms(&target->variants[0].model);
    int64_t other_ms = longest_ms(&target->variants[1].model);
    int64_t until_ms = sim_server_now_ms(&s->server) + (full_ms > other_ms ? full_ms : other_ms) + 2000;
    for (int tries = 0; tries < 2 && until_ms < SPILE_TIME_MAX_MS - 2 * SIM_TEN_YEARS_MS; tries++) {
      sim_world_advance(&s->world, sim_server_reaches_us(&s->server, until_ms));
      target_drain(s, client, i);
      if (s->last_result == SPILE_ALLOWED && s->decision.decided_by == SPILE_BY_STORE)
        break;
      if (s->last_result != SPILE_DENIED || tries > 0)
        sim_oracles_fail(&s->oracles, "a bucket that is full again does not admit its capacity: %d by %s",
                         s->last_result, spile_decided_by_name(s->decision.decided_by));
      until_ms = s->last.served_ms + s->decision.retry_after_ms;
    }
  }
}

static void faults_end(sim *s) {
  for (int i = 0; i < SIM_FAULTS; i++)
    s->report->faults[i] += s->world.swarm.happened[i];
  sim_swarm_end(&s->world.swarm);
  /* What was already on its way comes first. */
  sim_world_advance(&s->world, s->world.now_us + 5000000);
  sim_server_heal(&s->server);
  s->world.latency_us = 50;
  for (size_t i = 0; i < SIM_CONNS; i++) {
    sim_conn *conn = &s->world.conns[i];
    if (conn->used && (conn->in.lost || conn->out.lost || conn->server_closed) && conn->failure == 0)
      conn->failure = ECONNRESET;
  }
}

/* ---- Runs ---- */

static void run_start(sim *s, uint64_t seed, const sim_options *options) {
  s->seed = seed;
  s->random = (sim_random){seed};
  s->takes = s->number = 0;
  s->next_call = 0;
  s->blocks = 0;
  memset(s->calls, 0, sizeof(s->calls));
  memset(&s->last, 0, sizeof(s->last));
  memset(&s->decision, 0, sizeof(s->decision));
  s->last_result = 0;
  sim_world_init(&s->world, &s->random, sim_below(&s->random, 1000000000));
  sim_swarm_make(&s->world.swarm, &s->random);
  s->world.server = &s->server;
  s->world.oracles = &s->oracles;
  sim_server_init(&s->server, &s->world, &s->random, options->planted);
  s->oracles.failed = false;
  sim_mix_draw(s);
  sim_targets_draw(s);
  sim_oracles_init(&s->oracles, s->n_targets);
  s->oracles.blind = options->meter_alone;
  sim_clients_draw(s);
}

static void run_end(sim *s) {
  for (size_t i = 0; i < s->n_clients; i++)
    sim_client_close(s, &s->clients[i]);
  for (size_t i = 0; i < s->n_targets; i++) {
    spile_limit_unref(s->targets[i].variants[0].limit);
    spile_limit_unref(s->targets[i].variants[1].limit);
    s->report->inconclusive += s->oracles.inconclusive[i];
  }
  if (s->blocks != 0)
    sim_oracles_fail(&s->oracles, "%ld blocks of memory are left", s->blocks);
  if (s->world.open_handles != 0)
    sim_oracles_fail(&s->oracles, "%d connections are left open", s->world.open_handles);
  sim_report *report = s->report;
  report->runs++;
  report->served += s->server.takes;
  report->charges += s->oracles.charges;
  if (s->oracles.most > report->most)
    report->most = s->oracles.most;
  report->failed = s->oracles.failed;
  if (report->failed)
    (void)snprintf(report->failure, sizeof(report->failure),
                   "SPILE_SIM_SEED=%" PRIu64 " SPILE_SIM_TAKES=%" PRIu64 ": %s", s->seed, s->takes, s->oracles.failure);
}

void sim_run(sim *s, uint64_t seed, uint64_t takes, const sim_options *options, sim_report *report) {
  memset(report, 0, sizeof(*report));
  s->report = report;
  for (; report->takes < takes && !report->failed; seed++) {
    run_start(s, seed, options);
    uint64_t length = 100 + (uint64_t)sim_magnitude(&s->random, 8000);
    for (; s->takes < length && report->takes < takes && !s->oracles.failed; s->takes++)
      step(s);
    faults_end(s);
    for (size_t i = 0; i < s->n_clients && !s->oracles.failed; i++)
      client_recovers(s, &s->clients[i]);
    if (!s->oracles.failed)
      targets_recover(s, &s->clients[0]);
    run_end(s);
  }
}

sim *sim_new(void) {
  sim *s = calloc(1, sizeof(*s));
  if (s == NULL)
    abort();
  sim_env_init(s);
  /* A password comes from the address alone. */
  (void)unsetenv("SPILE_REDIS_PASSWORD");
  (void)unsetenv("SPILE_REDIS_PASSWORD_FILE");
  return s;
}

void sim_free(sim *s) {
  if (s != NULL)
    sim_world_finish(&s->world);
  free(s);
}
