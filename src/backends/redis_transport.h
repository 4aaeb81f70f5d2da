/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Redis store asks of the network, as a table, so that a simulator can stand in for the sockets. Nothing here
 * blocks but `wait` and `resolve`. Failures are negative errno values.
 */
#ifndef SPILE_BACKENDS_REDIS_TRANSPORT_H
#define SPILE_BACKENDS_REDIS_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* One address of a server. */
typedef struct spile__redis_peer {
  struct sockaddr_storage address;
  socklen_t address_len;
} spile__redis_peer;

#define SPILE__REDIS_PEERS_MAX 8

/* The addresses behind a name. */
typedef struct spile__redis_peers {
  spile__redis_peer list[SPILE__REDIS_PEERS_MAX];
  size_t n;
} spile__redis_peers;

typedef struct spile__redis_transport {
  /* Begins to connect. @return a handle, 0 or more, −EAGAIN: try again soon; `*pending` when the end has to be waited
   * for (writable) */
  int (*connect)(void *user, const spile__redis_peer *peer, bool *pending);
  /* How a pending connect ended. @return 0 or −errno */
  int (*connected)(void *user, int handle);
  /* @return bytes taken over, or −errno; −EAGAIN when it would block. Raises no signal. */
  ssize_t (*send)(void *user, int handle, const void *bytes, size_t len);
  /* @return bytes, 0 at the end of the stream, or −errno; −EAGAIN when nothing is there. `peek` leaves them. */
  ssize_t (*receive)(void *user, int handle, void *bytes, size_t size, bool peek);
  /*
   * @param handle  −1: none, only the time passes
   * @return 1 when readable (or writable) or broken, 0 when the time is over or a signal came, or −errno
   */
  int (*wait)(void *user, int handle, bool writable, int64_t timeout_ms);
  void (*close)(void *user, int handle);
  /*
   * Looks a host name up. Blocks, and is called when the store is opened and later by a thread of its own, which may
   * outlive the store. NULL: names have no addresses; numeric ones need no look-up.
   * @return NULL, with at least one address; or why there is none, a constant text
   */
  const char *(*resolve)(void *user, const char *host, const char *port, spile__redis_peers *out);
} spile__redis_transport;

/* Real sockets; `user` is not used. */
extern const spile__redis_transport spile__redis_sockets;

#endif
