/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "backends/redis_transport.h"

static int socket_connect(void *user, const spile__redis_peer *peer, bool *pending) {
  (void)user;
  *pending = false;
  int fd = socket(peer->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return -errno;
  if (peer->address.ss_family != AF_UNIX) {
    /* A take is one small packet each way: waiting for more to send would only delay it. */
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  if (connect(fd, (const struct sockaddr *)&peer->address, peer->address_len) == 0)
    return fd;
  int failure = errno;
  if (failure == EINPROGRESS || failure == EINTR) {
    *pending = true;
    return fd;
  }
  (void)close(fd);
  return -failure;
}

static int socket_connected(void *user, int handle) {
  (void)user;
  int failure = 0;
  socklen_t len = sizeof(failure);
  if (getsockopt(handle, SOL_SOCKET, SO_ERROR, &failure, &len) != 0)
    return -errno;
  return -failure;
}

static ssize_t socket_send(void *user, int handle, const void *bytes, size_t len) {
  (void)user;
  ssize_t sent;
  do
    sent = send(handle, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (sent < 0 && errno == EINTR);
  return sent < 0 ? -errno : sent;
}

static ssize_t socket_receive(void *user, int handle, void *bytes, size_t size, bool peek) {
  (void)user;
  ssize_t received;
  do
    received = recv(handle, bytes, size, MSG_DONTWAIT | (peek ? MSG_PEEK : 0));
  while (received < 0 && errno == EINTR);
  return received < 0 ? -errno : received;
}

static int socket_wait(void *user, int handle, bool writable, int64_t timeout_ms) {
  (void)user;
  struct pollfd poll_fd = {.fd = handle, .events = writable ? POLLOUT : POLLIN};
  int ready = poll(&poll_fd, 1, timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms);
  if (ready < 0)
    return errno == EINTR ? 0 : -errno;
  return ready > 0;
}

static void socket_close(void *user, int handle) {
  (void)user;
  (void)close(handle);
}

static const char *socket_resolve(void *user, const char *host, const char *port, spile__redis_peers *out) {
  (void)user;
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
  struct addrinfo *found = NULL;
  out->n = 0;
  int failure = getaddrinfo(host, port, &hints, &found);
  if (failure != 0)
    return gai_strerror(failure);
  for (struct addrinfo *at = found; at != NULL && out->n < SPILE__REDIS_PEERS_MAX; at = at->ai_next) {
    spile__redis_peer *peer = &out->list[out->n];
    if (at->ai_addrlen > sizeof(peer->address))
      continue;
    memset(&peer->address, 0, sizeof(peer->address));
    memcpy(&peer->address, at->ai_addr, at->ai_addrlen);
    peer->address_len = at->ai_addrlen;
    out->n++;
  }
  freeaddrinfo(found);
  return out->n > 0 ? NULL : "no address of a known kind";
}

const spile__redis_transport spile__redis_sockets = {
    .connect = socket_connect,
    .connected = socket_connected,
    .send = socket_send,
    .receive = socket_receive,
    .wait = socket_wait,
    .close = socket_close,
    .resolve = socket_resolve,
};
