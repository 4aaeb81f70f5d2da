/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bad network: a proxy between the library and a real server, in a thread of its own, that does one thing wrong with
 * each take that passes, drawn by weight from a seed. It listens on a unix socket and on a loopback port.
 *
 * Takes are told apart by their key, which a test makes a number: what was done to the takes of each key is noted
 * before the first byte of an answer leaves, so that a test knows what to expect of a take that has ended.
 */
#ifndef SPILE_TESTS_FAULT_PROXY_H
#define SPILE_TESTS_FAULT_PROXY_H

#include <stdbool.h>
#include <stdint.h>

#include "redis_server.h"

/* One a take. `answered`: the caller may get an answer of the store nevertheless. */
#define FAULTS(X)                                                                                                   \
  X(NONE, "no fault", true)                                                                                         \
  X(DELAY, "reply after the deadline", true) /* by one who was held up even longer */                               \
  X(DROP, "reply dropped", false)                                                                                   \
  X(DUPLICATE, "reply twice", false)                                                                                \
  X(OLDER_BEFORE, "an older reply before it", false)                                                                \
  X(SWAP, "an older reply in its place", true)                                                                      \
  X(CUT, "reply cut, connection closed", false)                                                                     \
  X(STALL, "reply cut, then silence", false)                                                                        \
  X(RESET, "reply cut, connection reset", false)                                                                    \
  X(DRIP, "one byte per 20 ms", true) /* in the same way */                                                         \
  X(GARBAGE, "garbage before the reply", false)                                                                     \
  X(BIT_FLIP, "one bit of the reply flipped", true)                                                                 \
  X(HTTP, "an HTTP reply", false)                                                                                   \
  X(HUGE_STRING, "`$536870912`", false)                                                                             \
  X(HUGE_ARRAY, "`*2147483647`", false)                                                                             \
  X(DEEP_ARRAY, "5,000 nested arrays", false)                                                                       \
  X(ERROR, "an error of the server", true) /* the request is not passed on; NOSCRIPT is answered by a second one */ \
  X(LOST, "request dropped", false)                                                                                 \
  X(LATE, "request passed on after the deadline", false)                                                            \
  X(TWICE, "request passed on twice", true) /* for proving that a test sees a second charge */

typedef enum fault {
#define FAULT_ENUM(name, text, answered) FAULT_##name,
  FAULTS(FAULT_ENUM)
#undef FAULT_ENUM
      FAULT_COUNT
} fault;

/* Faults whose reply may look right and be wrong: nobody can tell. */
#define FAULTS_UNSEEN (UINT32_C(1) << FAULT_SWAP | UINT32_C(1) << FAULT_BIT_FLIP)

typedef struct fault_plan {
  unsigned weights[FAULT_COUNT];
  unsigned greeting_odds; /* one in so many replies to other commands is spoilt as well; 0: none … */
  fault greeting_kind;    /* … like this; NONE: drawn … */
  const char *greeting;   /* … if the command begins with this; NULL: any */
  int delay_ms;           /* how much later what is late comes */
  int cut_at;             /* bytes before a cut; −1: drawn anew each time */
  int error;              /* which of fault_errors; −1: drawn */
} fault_plan;

/* The errors, as the server would send them. */
extern const char *const fault_errors[];
extern const int fault_error_count;

const char *fault_name(fault kind);
bool fault_may_be_answered(fault kind);

#define FAULT_KEYS_MAX 1024

typedef struct fault_proxy fault_proxy;

fault_proxy *fault_proxy_start(redis_server *server, uint64_t seed);
const char *fault_proxy_unix_uri(const fault_proxy *proxy);
const char *fault_proxy_tcp_uri(const fault_proxy *proxy);

/* From the next command on. */
void fault_proxy_set(fault_proxy *proxy, const fault_plan *plan);
/* A plan of one fault, always. */
fault_plan fault_plan_of(fault kind);

/* The faults, as bits, that takes of this key met since the last call. */
uint32_t fault_proxy_marks(fault_proxy *proxy, unsigned key);

/* Takes that met a fault, and connections that were made, since the start. */
uint64_t fault_proxy_met(fault_proxy *proxy, fault kind);
uint64_t fault_proxy_connections(fault_proxy *proxy);

/* Waits until all clients have left and everything that was or will be passed on has been answered by the server. */
void fault_proxy_settle(fault_proxy *proxy);
void fault_proxy_stop(fault_proxy *proxy);

/* A generator of a test's own: splitmix64. */
uint64_t fault_random(uint64_t *state);

#endif
