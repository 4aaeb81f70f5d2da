/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server around its script: a clock, buckets, and the ways to lose all of it. Its commands are sim_commands.c.
 */
#include "sim_server.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backends/sha1.h"
#include "sim_oracles.h"
#include "take_lua.h"

#define TEN_YEARS_MS INT64_C(315360000000)

/* ---- The clock ---- */

int64_t sim_server_now_ms(const sim_server *server) {
  __int128 passed_us = server->world->now_us - server->since_us;
  return (server->clock_us + (int64_t)(passed_us * (1000000 + server->drift_ppm) / 1000000)) / 1000;
}

int64_t sim_server_reaches_us(const sim_server *server, int64_t clock_ms) {
  __int128 ahead_us = (__int128)clock_ms * 1000 - server->clock_us;
  __int128 speed = 1000000 + server->drift_ppm;
  if (ahead_us <= 0)
    return 0;
  return server->since_us + (int64_t)((ahead_us * 1000000 + speed - 1) / speed);
}

static void clock_set(sim_server *server, int64_t step_ms, int64_t drift_ppm) {
  __int128 passed_us = server->world->now_us - server->since_us;
  server->clock_us += (int64_t)(passed_us * (1000000 + server->drift_ppm) / 1000000) + step_ms * 1000;
  server->since_us = server->world->now_us;
  server->drift_ppm = drift_ppm;
}

/* ---- What happens to a server ---- */

static void connections_end(sim_server *server, bool at_once) {
  static const int thens[] = {EPIPE, ECONNRESET, 0, -ECONNRESET};
  for (size_t i = 0; i < SIM_CONNS; i++) {
    sim_conn *conn = &server->world->conns[i];
    if (conn->used)
      sim_world_drop(server->world, conn, thens[at_once ? 3 : sim_below(server->random, 4)]);
  }
}

static void idle_close(sim_server *server) {
  sim_world *world = server->world;
  sim_conn *conn = &world->conns[sim_below(server->random, SIM_CONNS)];
  bool idle = conn->used && conn->open && (world->call == NULL || conn->talking != world->call->number);
  if (idle)
    sim_world_drop(world, conn, sim_once_in(server->random, 2) ? EPIPE : ECONNRESET);
}

static void restart(sim_server *server, bool keeping) {
  sim_world *world = server->world;
  connections_end(server, false);
  server->knows_script = false;
  server->down_until_us = world->now_us + (sim_once_in(server->random, 2) ? sim_below(server->random, 3000000) : 0);
  server->loading_until_us =
      server->down_until_us + (sim_once_in(server->random, 2) ? sim_below(server->random, 1000000) : 0);
  if (keeping)
    return;
  server->n_buckets = 0;
  server->epoch++;
  sim_worlds_wipe(world->oracles);
  sim_meter_reset_all(world->oracles);
  sim_server_replicate(server);
}

static void failover(sim_server *server) {
  connections_end(server, true);
  server->knows_script = false;
  sim_buckets_copy(server->buckets, server->before, server->n_before);
  server->n_buckets = server->n_before;
  server->epoch++;
  sim_worlds_restore(server->world->oracles);
  sim_meter_reset_all(server->world->oracles);
}

static void clock_step(sim_server *server, int64_t step_ms, bool within) {
  int64_t now_ms = sim_server_now_ms(server);
  bool outside = now_ms + step_ms < TEN_YEARS_MS || now_ms + step_ms > SPILE_TIME_MAX_MS - 2 * TEN_YEARS_MS;
  if (outside && !within)
    step_ms = -step_ms;
  if (step_ms < 0) {
    for (size_t i = 0; i < server->n_buckets; i++)
      sim_bucket_expire(&server->buckets[i], now_ms);
    for (size_t i = 0; i < server->n_before; i++)
      sim_bucket_expire(&server->before[i], now_ms);
    sim_worlds_forget_expired(server->world->oracles, now_ms);
  }
  clock_set(server, step_ms, server->drift_ppm);
  if (within)
    return;
  server->epoch++;
  sim_meter_reset_all(server->world->oracles);
}

void sim_server_replicate(sim_server *server) {
  sim_buckets_copy(server->before, server->buckets, server->n_buckets);
  server->n_before = server->n_buckets;
  sim_worlds_copy(server->world->oracles);
}

void sim_server_blow(sim_server *server, sim_fault blow) {
  int64_t now_us = server->world->now_us;
  switch ((int)blow) {
  case SIM_SCRIPT_FLUSH:
    server->knows_script = false;
    break;
  case SIM_RESTART_EMPTY:
    restart(server, false);
    break;
  case SIM_RESTART_KEEPING:
    restart(server, true);
    break;
  case SIM_FAILOVER:
    failover(server);
    break;
  case SIM_READONLY:
    server->readonly_until_us = now_us + sim_below(server->random, 3000000);
    break;
  case SIM_OUT_OF_MEMORY:
    server->oom_until_us = now_us + sim_below(server->random, 3000000);
    break;
  case SIM_STALL:
    server->stalled_until_us = now_us + sim_below(server->random, 200000);
    break;
  case SIM_CLOCK_WITHIN: {
    /* Never more than a second apart: what steps of more admit is another promise. */
    int64_t ahead_ms = sim_between(server->random, 0, 1000);
    clock_step(server, ahead_ms - server->ahead_ms, true);
    server->ahead_ms = ahead_ms;
    break;
  }
  case SIM_CLOCK_STEP: {
    int64_t step_ms = 1000 + sim_magnitude(server->random, TEN_YEARS_MS);
    clock_step(server, sim_once_in(server->random, 2) ? step_ms : -step_ms, false);
    break;
  }
  case SIM_CLOCK_DRIFT:
    clock_set(server, 0, sim_between(server->random, -50000, 50000));
    break;
  case SIM_IDLE_CLOSE:
    idle_close(server);
    break;
  default:
    break;
  }
}

void sim_server_heal(sim_server *server) {
  server->down_until_us = server->loading_until_us = server->readonly_until_us = server->oom_until_us =
      server->stalled_until_us = 0;
}

void sim_server_init(sim_server *server, sim_world *world, sim_random *random, sim_planted planted) {
  memset(server, 0, sizeof(*server));
  spile__sha1_hex(spile__take_lua, sizeof(spile__take_lua) - 1, server->script_sha);
  server->random = random;
  server->world = world;
  server->planted = planted;
  server->since_us = world->now_us;
  server->clock_us = INT64_C(1700000000000000) + sim_below(random, 1000000000);
  server->expires_late = sim_once_in(random, 2);
  server->knows_script = sim_once_in(random, 2);
}
