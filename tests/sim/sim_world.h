/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between clients and the server, and time itself: nothing happens but events, one after the other, and a
 * client that waits makes them happen until its own or the end of its patience.
 *
 * A connection is two streams of bytes. What is sent stands in the stream at once and is seen at the other end when its
 * event comes; a stream keeps its order, as TCP does. Each byte remembers whose call it belongs to.
 */
#ifndef SPILE_TESTS_SIM_WORLD_H
#define SPILE_TESTS_SIM_WORLD_H

#include "backends/redis_transport.h"
#include "sim_call.h"
#include "sim_faults.h"

#define SIM_CONNS 64
#define SIM_MARKS 64
#define SIM_EVENTS 4096
#define SIM_OUT_SIZE 65536
#define SIM_IN_SIZE 8192

/* Whose the bytes before `end` are, from the mark before on. */
typedef struct sim_mark {
  uint64_t end;
  sim_call *call; /* NULL: nobody's */
  bool answer;    /* the server's reply to the command of that call, as it gave it */
  bool lie;       /* it looks as if it were */
  bool odd;       /* no server would have sent it then */
} sim_mark;

/* Positions count from the start of the connection. */
typedef struct sim_wire {
  char *bytes;
  size_t size;
  uint64_t base; /* position of bytes[0] */
  uint64_t end;  /* written up to here … */
  uint64_t seen; /* … visible at the other end up to here … */
  uint64_t read; /* … read there up to here */
  int64_t last_us;
  bool lost; /* nothing arrives any more */
  sim_mark marks[SIM_MARKS];
  size_t n_marks;
} sim_wire;

typedef struct sim_conn {
  bool used;
  unsigned generation;
  bool open;          /* connected */
  int failure;        /* what the client's calls on it return, 0: none */
  bool in_ended;      /* the client has seen the end of the stream */
  bool client_closed; /* … or left */
  bool server_closed;
  bool too_old;
  bool lied_to;
  int64_t blocked_us; /* until then nothing can be sent */
  uint64_t talking;   /* number of the call that looked or sent last */
  int events;         /* still to come */
  sim_wire out;       /* to the server */
  sim_wire in;        /* to the client */
} sim_conn;

typedef enum sim_event_kind {
  SIM_EVENT_CONNECTED,
  SIM_EVENT_ARRIVES,  /* bytes at the server */
  SIM_EVENT_DELIVERS, /* bytes at the client */
  SIM_EVENT_BLOW,     /* something happens to the server */
} sim_event_kind;

typedef struct sim_event {
  int64_t at_us;
  uint64_t order;
  sim_event_kind kind;
  sim_conn *conn;
  uint64_t upto;
  int then;       /* DELIVERS: 0, or what the stream ends with: EPIPE for its end, an errno */
  sim_call *call; /* ARRIVES: whose bytes; not NULL where they are lost */
  sim_fault blow;
} sim_event;

struct sim_server;
struct sim_oracles;

typedef struct sim_world {
  sim_random *random;
  sim_swarm swarm;
  struct sim_server *server;
  struct sim_oracles *oracles;
  int64_t now_us;
  uint64_t order;
  sim_event events[SIM_EVENTS]; /* a heap */
  size_t n_events;
  sim_conn conns[SIM_CONNS];
  int64_t latency_us; /* one way, usually */
  int64_t steer_us;   /* when the next bytes that are sent arrive; 0: after the usual time */
  sim_call *call;     /* under way, or NULL */
  bool killed;        /* the client of that call is no more */
  int open_handles;
  char spare[320]; /* the last reply to somebody, for one that is swapped */
  size_t spare_len;
  uint64_t spare_number; /* of the call it answered */
  uint64_t lies;         /* replies that nobody can tell from the right ones */
} sim_world;

extern const spile__redis_transport sim_transport;

void sim_world_init(sim_world *world, sim_random *random, int64_t now_us);
void sim_world_finish(sim_world *world);

/* The clock of the clients. */
int64_t sim_world_now_ms(const sim_world *world);

/* Lets time pass, with all that happens meanwhile. */
void sim_world_advance(sim_world *world, int64_t until_us);

void sim_world_blow_at(sim_world *world, int64_t at_us, sim_fault blow);

/* ---- For the transport ---- */

void sim_event_push(sim_world *world, sim_event event);

/* Adds bytes at the end of a wire. One that holds more than any client or server would loses them. */
void sim_wire_put(sim_wire *wire, const char *bytes, size_t len, sim_mark mark);
void sim_wire_forget_marks(sim_wire *wire, size_t n);

/* When what is sent now arrives: one way through the network, and after what is already under way on that wire. */
int64_t sim_wire_arrival(sim_world *world, sim_wire *wire, int64_t more_us);

/* Longer than most calls wait, and sometimes longer than all. */
int64_t sim_much_later_us(sim_world *world);

/* All that the wire to the client holds sets out. `then`: 0, or what follows, as of a sim_event. */
void sim_deliver(sim_world *world, sim_conn *conn, int64_t more_us, int then);

/* Frees a connection that the client left and on which nothing is under way. */
void sim_conn_release(sim_conn *conn);

/* ---- For the server ---- */

/* A reply sets out; `answer`: to the command of the call, and not to what prepares it. */
void sim_world_reply(sim_world *world, sim_conn *conn, const char *bytes, size_t len, sim_call *call, bool answer);

/* The server ends a connection. `then`: how the client learns it, an errno or EPIPE for a proper end; 0: never; below
 * zero: at once, before what is under way. */
void sim_world_drop(sim_world *world, sim_conn *conn, int then);

#endif
