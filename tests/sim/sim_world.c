/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sim_oracles.h"
#include "sim_server.h"

/* ---- Events ---- */

static bool event_before(const sim_event *a, const sim_event *b) {
  return a->at_us < b->at_us || (a->at_us == b->at_us && a->order < b->order);
}

void sim_event_push(sim_world *world, sim_event event) {
  if (world->n_events == SIM_EVENTS)
    abort();
  event.order = world->order++;
  if (event.conn != NULL)
    event.conn->events++;
  if (event.call != NULL)
    event.call->refs++;
  size_t at = world->n_events++;
  for (; at > 0 && event_before(&event, &world->events[(at - 1) / 2]); at = (at - 1) / 2)
    world->events[at] = world->events[(at - 1) / 2];
  world->events[at] = event;
}

static sim_event event_pop(sim_world *world) {
  sim_event first = world->events[0];
  sim_event last = world->events[--world->n_events];
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= world->n_events)
      break;
    if (child + 1 < world->n_events && event_before(&world->events[child + 1], &world->events[child]))
      child++;
    if (!event_before(&world->events[child], &last))
      break;
    world->events[at] = world->events[child];
    at = child;
  }
  world->events[at] = last;
  return first;
}

void sim_world_blow_at(sim_world *world, int64_t at_us, sim_fault blow) {
  sim_event_push(world, (sim_event){.at_us = at_us, .kind = SIM_EVENT_BLOW, .blow = blow});
}

/* ---- Wires ---- */

static void mark_release(sim_mark *mark) {
  if (mark->call != NULL)
    mark->call->refs--;
}

void sim_wire_forget_marks(sim_wire *wire, size_t n) {
  for (size_t i = 0; i < n; i++)
    mark_release(&wire->marks[i]);
  wire->n_marks -= n;
  memmove(wire->marks, wire->marks + n, wire->n_marks * sizeof(wire->marks[0]));
}

static void wire_reset(sim_wire *wire) {
  sim_wire_forget_marks(wire, wire->n_marks);
  wire->base = wire->end = wire->seen = wire->read = 0;
  wire->last_us = 0;
  wire->lost = false;
}

void sim_wire_put(sim_wire *wire, const char *bytes, size_t len, sim_mark mark) {
  if (wire->read == wire->end) {
    wire->base = wire->end;
  } else if (wire->end - wire->base + len > wire->size) {
    memmove(wire->bytes, wire->bytes + (wire->read - wire->base), wire->end - wire->read);
    wire->base = wire->read;
  }
  if (wire->end - wire->base + len > wire->size || wire->n_marks == SIM_MARKS) {
    wire->lost = true;
    return;
  }
  memcpy(wire->bytes + (wire->end - wire->base), bytes, len);
  wire->end += len;
  mark.end = wire->end;
  if (mark.call != NULL)
    mark.call->refs++;
  wire->marks[wire->n_marks++] = mark;
}

/* ---- Connections ---- */

void sim_conn_release(sim_conn *conn) {
  if (!conn->used || !conn->client_closed || conn->events > 0)
    return;
  wire_reset(&conn->out);
  wire_reset(&conn->in);
  conn->used = false;
}

int64_t sim_wire_arrival(sim_world *world, sim_wire *wire, int64_t more_us) {
  int64_t at_us = world->now_us + world->latency_us / 2 + sim_below(world->random, world->latency_us) + more_us;
  /* What waited behind something else comes with it, or a moment later. */
  if (at_us < wire->last_us)
    at_us = wire->last_us + (sim_once_in(world->random, 2) ? 0 : sim_below(world->random, 1000));
  wire->last_us = at_us;
  return at_us;
}

int64_t sim_much_later_us(sim_world *world) {
  return sim_once_in(world->random, 8) ? sim_below(world->random, 3000000) : sim_below(world->random, 80000);
}

static bool conn_in_use(const sim_world *world, const sim_conn *conn) {
  return world->call != NULL && conn->talking == world->call->number;
}

/* ---- What events do ---- */

static void bytes_arrive(sim_world *world, const sim_event *event) {
  sim_conn *conn = event->conn;
  if (event->upto == 0 || conn->server_closed) {
    if (event->call != NULL)
      sim_worlds_imagine(world->oracles, event->call, sim_server_now_ms(world->server), false);
    return;
  }
  int64_t stalled_us = world->server->stalled_until_us;
  if (stalled_us > world->now_us) {
    sim_event_push(
        world,
        (sim_event){
            .at_us = stalled_us, .kind = SIM_EVENT_ARRIVES, .conn = conn, .upto = event->upto, .call = event->call});
    return;
  }
  if (event->upto > conn->out.seen)
    conn->out.seen = event->upto;
  sim_server_read(world->server, conn);
}

static void bytes_are_delivered(sim_world *world, const sim_event *event) {
  sim_conn *conn = event->conn;
  if (conn->client_closed || conn->failure != 0)
    return;
  if (event->upto > conn->in.seen)
    conn->in.seen = event->upto;
  /* What comes while nobody asks can be told from an answer. */
  for (size_t i = 0; i < conn->in.n_marks && !conn_in_use(world, conn); i++) {
    if (conn->in.marks[i].end <= conn->in.seen)
      conn->in.marks[i].lie = false;
  }
  if (event->then == EPIPE)
    conn->in_ended = true;
  else
    conn->failure = event->then;
}

static void event_happen(sim_world *world) {
  sim_event event = event_pop(world);
  world->now_us = event.at_us;
  switch (event.kind) {
  case SIM_EVENT_CONNECTED:
    if (event.then != 0)
      event.conn->failure = event.then;
    else
      event.conn->open = true;
    break;
  case SIM_EVENT_ARRIVES:
    bytes_arrive(world, &event);
    break;
  case SIM_EVENT_DELIVERS:
    bytes_are_delivered(world, &event);
    break;
  case SIM_EVENT_BLOW:
    sim_server_blow(world->server, event.blow);
    break;
  }
  if (event.call != NULL)
    event.call->refs--;
  if (event.conn != NULL) {
    event.conn->events--;
    sim_conn_release(event.conn);
  }
}

void sim_world_advance(sim_world *world, int64_t until_us) {
  while (world->n_events > 0 && world->events[0].at_us <= until_us)
    event_happen(world);
  if (until_us > world->now_us)
    world->now_us = until_us;
}

int64_t sim_world_now_ms(const sim_world *world) {
  return world->now_us / 1000;
}

/* ---- Replies ---- */

static void deliver_at(sim_world *world, sim_conn *conn, int64_t at_us, uint64_t upto, int then) {
  sim_event_push(world,
                 (sim_event){.at_us = at_us, .kind = SIM_EVENT_DELIVERS, .conn = conn, .upto = upto, .then = then});
}

void sim_deliver(sim_world *world, sim_conn *conn, int64_t more_us, int then) {
  if (!conn->in.lost)
    deliver_at(world, conn, sim_wire_arrival(world, &conn->in, more_us), conn->in.end, then);
}

void sim_world_drop(sim_world *world, sim_conn *conn, int then) {
  /* What is cut off at once is cut off also where the end is on its way already. */
  if (conn->server_closed && then >= 0)
    return;
  conn->server_closed = true;
  if (then < 0) {
    conn->in.lost = true;
    if (!conn->client_closed && conn->open)
      conn->failure = -then;
  } else if (then == 0) {
    conn->in.lost = true;
  } else {
    sim_deliver(world, conn, 0, then);
  }
}

/* Any integer answers a removal, and four noughts are a log of which nothing counts. */
static bool garbage_answers(const sim_call *call, const char *bytes) {
  if (call->verb == SIM_CLEAR)
    return true;
  return call->n == 1 && call->items[0].limit.algorithm == SPILE_SLIDING_LOG && strncmp(bytes, "*4", 2) == 0;
}

static void reply_garbage(sim_world *world, sim_conn *conn, sim_mark mark) {
  static const char *const garbage[] = {
      "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
      "$536870912\r\n",
      "*2147483647\r\n",
      "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
      "*4\r\n:0\r\n:0\r\n:0\r\n:0\r\n",
      "*0\r\n",
      "*-1\r\n",
      "$-1\r\n",
      "$1\r\n0\r\n",
      "+0\r\n",
      ":\r\n",
      ":0\n",
      ":-1\r\n",
      ":9007199254740992\r\n",
      ":9223372036854775808\r\n",
      ":-9223372036854775808\r\n",
      "%1\r\n+a\r\n:0\r\n",
      "\r\n:0\r\n",
      "::0\r\n",
      "\0\0\0\0",
  };
  const char *bytes = garbage[sim_below(world->random, sizeof(garbage) / sizeof(garbage[0]))];
  mark.answer = false;
  mark.odd = true;
  mark.lie = mark.call != NULL && garbage_answers(mark.call, bytes);
  /* What can be taken for an answer is none of the server's, also behind one that is. */
  if (mark.lie)
    mark.call = NULL;
  sim_wire_put(&conn->in, bytes, bytes[0] == '\0' ? 4 : strlen(bytes), mark);
  sim_deliver(world, conn, 0, 0);
}

/* One byte after the other. */
static void reply_drip(sim_world *world, sim_conn *conn, uint64_t from) {
  int64_t step_us = 1 + sim_below(world->random, 20000);
  for (uint64_t upto = from + 1; upto <= conn->in.end; upto++)
    deliver_at(world, conn, sim_wire_arrival(world, &conn->in, step_us), upto, 0);
}

void sim_world_reply(sim_world *world, sim_conn *conn, const char *bytes, size_t len, sim_call *call, bool answer) {
  if (conn->client_closed || conn->in.lost)
    return;
  sim_wire *wire = &conn->in;
  sim_mark mark = {.call = call, .answer = answer};
  sim_fault fault = sim_swarm_draw(&world->swarm, world->random, SIM_MOMENT_REPLY);
  if (fault == SIM_REPLY_GARBAGE) {
    reply_garbage(world, conn, mark);
    return;
  }
  bool spare = world->spare_len > 0 && world->spare_number != (call != NULL ? call->number : 0);
  if (fault == SIM_REPLY_SWAPPED && answer && spare) {
    sim_wire_put(wire, world->spare, world->spare_len, (sim_mark){.lie = true, .odd = true});
    sim_deliver(world, conn, 0, 0);
    return;
  }
  if (answer && call != NULL) {
    call->answer_len += len;
    if (len <= sizeof(world->spare) && bytes[0] != '-') {
      memcpy(world->spare, bytes, len);
      world->spare_len = len;
      world->spare_number = call->number;
    }
  }

  uint64_t from = wire->end;
  switch ((int)fault) {
  case SIM_REPLY_LOST:
    wire->lost = true;
    break;
  case SIM_REPLY_LATE:
    sim_wire_put(wire, bytes, len, mark);
    sim_deliver(world, conn, sim_much_later_us(world), 0);
    break;
  case SIM_REPLY_TWICE:
    sim_wire_put(wire, bytes, len, mark);
    sim_wire_put(wire, bytes, len, (sim_mark){.call = call, .odd = true});
    sim_deliver(world, conn, 0, 0);
    break;
  case SIM_REPLY_AGAIN:
    sim_wire_put(wire, bytes, len, mark);
    sim_deliver(world, conn, 0, 0);
    sim_wire_put(wire, bytes, len, (sim_mark){.call = call, .lie = true, .odd = true});
    sim_deliver(world, conn, sim_much_later_us(world), 0);
    break;
  case SIM_REPLY_CUT:
  case SIM_REPLY_RESET:
    sim_wire_put(wire, bytes, (size_t)sim_below(world->random, (int64_t)len), mark);
    sim_deliver(world, conn, 0, fault == SIM_REPLY_CUT ? EPIPE : ECONNRESET);
    conn->server_closed = true;
    break;
  case SIM_REPLY_DRIP:
    sim_wire_put(wire, bytes, len, mark);
    reply_drip(world, conn, wire->lost ? wire->end : from);
    break;
  case SIM_REPLY_PIECES:
    sim_wire_put(wire, bytes, len, mark);
    from += (uint64_t)sim_below(world->random, (int64_t)len);
    deliver_at(world, conn, sim_wire_arrival(world, wire, 0), from, 0);
    sim_deliver(world, conn, sim_below(world->random, 10000), 0);
    break;
  default:
    sim_wire_put(wire, bytes, len, mark);
    sim_deliver(world, conn, 0, 0);
    break;
  }
}

/* ---- Beginning and end ---- */

void sim_world_init(sim_world *world, sim_random *random, int64_t now_us) {
  world->random = random;
  world->now_us = now_us;
  world->latency_us = 1 + sim_magnitude(random, 2000);
  world->n_events = 0;
  world->order = 0;
  world->steer_us = 0;
  world->call = NULL;
  world->killed = false;
  world->open_handles = 0;
  world->spare_len = 0;
  world->lies = 0;
  for (size_t i = 0; i < SIM_CONNS; i++) {
    sim_conn *conn = &world->conns[i];
    *conn = (sim_conn){.out = {.bytes = conn->out.bytes, .size = SIM_OUT_SIZE},
                       .in = {.bytes = conn->in.bytes, .size = SIM_IN_SIZE}};
    if (conn->out.bytes == NULL)
      conn->out.bytes = malloc(SIM_OUT_SIZE);
    if (conn->in.bytes == NULL)
      conn->in.bytes = malloc(SIM_IN_SIZE);
    if (conn->out.bytes == NULL || conn->in.bytes == NULL)
      abort();
  }
}

void sim_world_finish(sim_world *world) {
  for (size_t i = 0; i < SIM_CONNS; i++) {
    free(world->conns[i].out.bytes);
    free(world->conns[i].in.bytes);
  }
}
