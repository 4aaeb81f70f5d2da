/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may go wrong. Each run switches about half of the faults off and gives each of the others a rate of its own: a
 * run in which everything happens at once never gets as far as one in which a few things do (swarm testing).
 *
 * A fault belongs to the moment at which it is drawn: when a call begins, a connection is made, bytes are sent, a take
 * is served, a reply leaves, a call waits.
 */
#ifndef SPILE_TESTS_SIM_FAULTS_H
#define SPILE_TESTS_SIM_FAULTS_H

#include "sim_random.h"

/* moment, fault, most often in a million moments */
#define SIM_FAULT_LIST(X)                                                                               \
  X(CALL, SCRIPT_FLUSH, 20000)                                                                          \
  X(CALL, RESTART_EMPTY, 3000)   /* connections end, scripts and data are gone */                       \
  X(CALL, RESTART_KEEPING, 3000) /* connections end, scripts are gone */                                \
  X(CALL, FAILOVER, 3000)        /* connections end, scripts are gone, data is as it was a while ago */ \
  X(CALL, READONLY, 3000)        /* for a while the server is a replica */                              \
  X(CALL, OUT_OF_MEMORY, 5000)   /* for a while the server has no memory */                             \
  X(CALL, STALL, 10000)          /* for a while the server does nothing */                              \
  X(CALL, CLOCK_WITHIN, 20000)   /* the server's clock steps by up to the tolerance */                  \
  X(CALL, CLOCK_STEP, 5000)      /* … by more, up to years */                                         \
  X(CALL, CLOCK_DRIFT, 5000)     /* … or runs at another speed */                                     \
  X(CALL, IDLE_CLOSE, 10000)     /* the server closes a connection that is not in use */                \
  X(CALL, LIMIT_CHANGE, 30000)   /* a limit gets other numbers */                                       \
  X(CONNECT, REFUSED, 100000)                                                                           \
  X(CONNECT, SWALLOWED, 100000)  /* packets of the connection are dropped */                            \
  X(CONNECT, TURNED_AWAY, 50000) /* too many clients: one error, then the end */                        \
  X(CONNECT, TOO_OLD, 20000)     /* the server is a Redis 6 */                                          \
  X(SEND, REQUEST_LOST, 50000)                                                                          \
  X(SEND, REQUEST_LATE, 50000)                                                                          \
  X(SEND, SEND_SHORT, 100000) /* the socket takes a part */                                             \
  X(SEND, SEND_RESET, 30000)                                                                            \
  X(SERVE, ERROR_REPLY, 50000)                                                                          \
  X(REPLY, REPLY_LOST, 50000)                                                                           \
  X(REPLY, REPLY_LATE, 50000)                                                                           \
  X(REPLY, REPLY_TWICE, 30000)   /* both copies in one piece */                                         \
  X(REPLY, REPLY_AGAIN, 30000)   /* the second copy later */                                            \
  X(REPLY, REPLY_SWAPPED, 10000) /* with one of another connection */                                   \
  X(REPLY, REPLY_CUT, 30000)     /* after some bytes the stream ends … */                             \
  X(REPLY, REPLY_RESET, 30000)   /* … or breaks */                                                    \
  X(REPLY, REPLY_GARBAGE, 30000)                                                                        \
  X(REPLY, REPLY_DRIP, 30000)    /* one byte at a time, each late */                                    \
  X(REPLY, REPLY_PIECES, 100000) /* two pieces */                                                       \
  X(WAIT, WAIT_FAILS, 10000)                                                                            \
  X(WAIT, SIGNAL, 50000)                                                                                \
  X(WAIT, KILLED, 10000) /* the process of the client ends between sending and receiving */             \
  X(ALLOCATE, NO_MEMORY, 30000)                                                                         \
  X(RANDOM, NO_RANDOM, 200000)

typedef enum sim_moment {
  SIM_MOMENT_CALL,
  SIM_MOMENT_CONNECT,
  SIM_MOMENT_SEND,
  SIM_MOMENT_SERVE,
  SIM_MOMENT_REPLY,
  SIM_MOMENT_WAIT,
  SIM_MOMENT_ALLOCATE,
  SIM_MOMENT_RANDOM,
  SIM_MOMENTS
} sim_moment;

typedef enum sim_fault {
  SIM_NO_FAULT,
#define SIM_FAULT_ENUM(moment, name, most) SIM_##name,
  SIM_FAULT_LIST(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
      SIM_FAULTS
} sim_fault;

typedef struct sim_swarm {
  int64_t per_million[SIM_FAULTS];
  int64_t of_moment[SIM_MOMENTS]; /* their sums */
  uint64_t happened[SIM_FAULTS];
} sim_swarm;

/* Draws the rates of a run. */
void sim_swarm_make(sim_swarm *swarm, sim_random *random);

/* From now on nothing goes wrong. */
void sim_swarm_end(sim_swarm *swarm);

/* What goes wrong at this moment, mostly nothing. */
sim_fault sim_swarm_draw(sim_swarm *swarm, sim_random *random, sim_moment moment);

const char *sim_fault_name(sim_fault fault);

#endif
