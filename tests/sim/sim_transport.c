/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store knows as the network. It blocks in wait alone, and there everything else happens meanwhile.
 */
#include <errno.h>
#include <string.h>

#include "sim_oracles.h"
#include "sim_server.h"

#define CONN_BITS 6
_Static_assert(SIM_CONNS == 1 << CONN_BITS, "a handle is the number of a connection and how often it was used");

static sim_conn *conn_of(sim_world *world, int handle) {
  sim_conn *conn = &world->conns[handle & (SIM_CONNS - 1)];
  if (handle >= 0 && conn->used && !conn->client_closed && conn->generation == (unsigned)handle >> CONN_BITS)
    return conn;
  sim_oracles_fail(world->oracles, "a connection is used that is not open");
  return NULL;
}

static int world_connect(void *user, const spile__redis_peer *peer, bool *pending) {
  (void)peer;
  sim_world *world = user;
  *pending = false;
  size_t slot = 0;
  while (slot < SIM_CONNS && world->conns[slot].used)
    slot++;
  if (slot == SIM_CONNS)
    return -EMFILE;
  sim_fault fault = sim_swarm_draw(&world->swarm, world->random, SIM_MOMENT_CONNECT);
  bool refused = fault == SIM_REFUSED || world->server->down_until_us > world->now_us;
  if (refused && sim_once_in(world->random, 2))
    return -ECONNREFUSED;

  sim_conn *conn = &world->conns[slot];
  unsigned generation = (conn->generation + 1) & 0xffffff;
  sim_wire out = conn->out;
  sim_wire in = conn->in;
  *conn = (sim_conn){.used = true, .generation = generation, .too_old = fault == SIM_TOO_OLD, .out = out, .in = in};
  world->open_handles++;
  int handle = (int)(generation << CONN_BITS | slot);
  if (fault != SIM_SWALLOWED && !refused && sim_once_in(world->random, 4)) {
    conn->open = true;
  } else {
    *pending = true;
    if (fault != SIM_SWALLOWED)
      sim_event_push(world, (sim_event){.at_us = sim_wire_arrival(world, &conn->in, 0),
                                        .kind = SIM_EVENT_CONNECTED,
                                        .conn = conn,
                                        .then = refused ? ECONNREFUSED : 0});
  }
  if (fault == SIM_TURNED_AWAY) {
    static const char full[] = "-ERR max number of clients reached\r\n";
    sim_wire_put(&conn->in, full, sizeof(full) - 1, (sim_mark){.call = world->call});
    sim_deliver(world, conn, 0, EPIPE);
    conn->server_closed = true;
  }
  return handle;
}

static int world_connected(void *user, int handle) {
  sim_world *world = user;
  const sim_conn *conn = conn_of(world, handle);
  return conn == NULL ? -EBADF : -conn->failure;
}

static ssize_t world_send(void *user, int handle, const void *bytes, size_t len) {
  sim_world *world = user;
  sim_conn *conn = conn_of(world, handle);
  if (conn == NULL)
    return -EBADF;
  if (conn->failure != 0)
    return -conn->failure;
  if (conn->blocked_us > world->now_us)
    return -EAGAIN;
  size_t taken = len;
  int64_t more_us = 0;
  switch ((int)sim_swarm_draw(&world->swarm, world->random, SIM_MOMENT_SEND)) {
  case SIM_SEND_RESET:
    conn->failure = ECONNRESET;
    conn->server_closed = true;
    return -ECONNRESET;
  case SIM_SEND_SHORT:
    taken = 1 + (size_t)sim_below(world->random, (int64_t)len);
    conn->blocked_us = world->now_us + sim_below(world->random, 5000);
    break;
  case SIM_REQUEST_LOST:
    conn->out.lost = true;
    break;
  case SIM_REQUEST_LATE:
    more_us = sim_much_later_us(world);
    break;
  default:
    break;
  }
  conn->talking = world->call != NULL ? world->call->number : 0;
  sim_wire_put(&conn->out, bytes, taken, (sim_mark){.call = world->call});
  int64_t at_us = sim_wire_arrival(world, &conn->out, more_us);
  if (world->steer_us >= world->now_us && more_us == 0)
    at_us = conn->out.last_us = world->steer_us;
  world->steer_us = 0;
  sim_event_push(world, (sim_event){.at_us = at_us,
                                    .kind = SIM_EVENT_ARRIVES,
                                    .conn = conn,
                                    .upto = conn->out.lost ? 0 : conn->out.end,
                                    .call = world->call});
  return (ssize_t)taken;
}

/* Notes whose bytes the client takes. */
static void marks_take(sim_world *world, sim_conn *conn, uint64_t upto) {
  sim_wire *wire = &conn->in;
  size_t gone = 0;
  for (size_t i = 0; i < wire->n_marks && wire->read < upto; i++) {
    const sim_mark *mark = &wire->marks[i];
    uint64_t to = mark->end < upto ? mark->end : upto;
    size_t n = (size_t)(to - wire->read);
    wire->read = to;
    gone += mark->end == to;
    if (world->call == NULL || n == 0)
      continue;
    world->call->odd_taken = world->call->odd_taken || mark->odd;
    if (mark->lie)
      conn->lied_to = world->call->lied = true;
    if (mark->call == world->call) {
      world->call->answer_taken += mark->answer ? n : 0;
    } else {
      world->call->foreign_taken += n;
      world->call->lied = world->call->lied || conn->lied_to;
    }
  }
  sim_wire_forget_marks(wire, gone);
}

static ssize_t world_receive(void *user, int handle, void *bytes, size_t size, bool peek) {
  sim_world *world = user;
  sim_conn *conn = conn_of(world, handle);
  if (conn == NULL)
    return -EBADF;
  if (conn->failure != 0)
    return -conn->failure;
  sim_wire *wire = &conn->in;
  size_t there = (size_t)(wire->seen - wire->read);
  /* Whoever looked and saw nothing takes what comes from now on for an answer, also where sending has to wait. */
  if (peek && there == 0 && world->call != NULL)
    conn->talking = world->call->number;
  if (there == 0)
    return conn->in_ended ? 0 : -EAGAIN;
  size_t n = there < size ? there : size;
  memcpy(bytes, wire->bytes + (wire->read - wire->base), n);
  if (!peek)
    marks_take(world, conn, wire->read + n);
  return (ssize_t)n;
}

static bool conn_ready(const sim_world *world, const sim_conn *conn, bool writable) {
  if (conn->failure != 0)
    return true;
  if (writable)
    return conn->open && conn->blocked_us <= world->now_us;
  return conn->in.seen > conn->in.read || conn->in_ended;
}

static int world_wait(void *user, int handle, bool writable, int64_t timeout_ms) {
  sim_world *world = user;
  const sim_conn *conn = conn_of(world, handle);
  if (conn == NULL)
    return -EBADF;
  if (timeout_ms <= 0)
    sim_oracles_fail(world->oracles, "a wait of %lld ms", (long long)timeout_ms);
  int64_t until_us = world->now_us + timeout_ms * 1000;
  sim_fault fault = sim_swarm_draw(&world->swarm, world->random, SIM_MOMENT_WAIT);
  if (fault == SIM_KILLED)
    world->killed = true;
  if (fault == SIM_KILLED || fault == SIM_WAIT_FAILS)
    return -EIO;
  if (fault == SIM_SIGNAL)
    until_us = world->now_us + sim_below(world->random, timeout_ms * 1000);
  while (!conn_ready(world, conn, writable)) {
    int64_t next_us = world->n_events > 0 ? world->events[0].at_us : INT64_MAX;
    if (writable && conn->open && conn->blocked_us < next_us)
      next_us = conn->blocked_us;
    if (next_us > until_us) {
      world->now_us = until_us;
      return 0;
    }
    sim_world_advance(world, next_us);
  }
  return 1;
}

static void world_close(void *user, int handle) {
  sim_world *world = user;
  sim_conn *conn = conn_of(world, handle);
  if (conn == NULL)
    return;
  conn->client_closed = true;
  world->open_handles--;
  sim_conn_release(conn);
}

const spile__redis_transport sim_transport = {
    .connect = world_connect,
    .connected = world_connected,
    .send = world_send,
    .receive = world_receive,
    .wait = world_wait,
    .close = world_close,
};
