/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread and one poll for all connections. Each client has a connection to the server of its own. What comes from
 * the client is taken apart into commands; each command that is passed on leaves an expectation in the link's queue,
 * which says what becomes of its reply.
 */
#include "fault_proxy.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LINKS_MAX 384
#define IN_SIZE 32768
#define BACK_SIZE 16384
#define EXPECTED_MAX 8
#define HELD_SIZE 8192
#define OLDER_MAX 64
#define DRIP_MS 20

const char *const fault_errors[] = {
    "-NOSCRIPT No matching script. Please use EVAL.\r\n",
    "-MOVED 3999 127.0.0.1:6381\r\n",
    "-ASK 3999 127.0.0.1:6381\r\n",
    "-READONLY You can't write against a read only replica.\r\n",
    "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
    "-LOADING Redis is loading the dataset in memory\r\n",
    "-NOAUTH Authentication required.\r\n",
    "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    "-CLUSTERDOWN Hash slot not served\r\n",
    "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
};
const int fault_error_count = sizeof(fault_errors) / sizeof(fault_errors[0]);

typedef struct proxy_reply {
  fault kind;
  const char *canned; /* answered here; NULL: by the server */
  bool muted;         /* nobody gets it */
} proxy_reply;

/* What a link will do later. */
typedef enum proxy_later { LATER_NOTHING, LATER_SEND, LATER_DRIP, LATER_FORWARD } proxy_later;

typedef struct proxy_link {
  bool used;
  int client; /* −1: gone */
  int server;
  bool silent; /* the client gets nothing more */
  char in[IN_SIZE];
  size_t in_len;
  char back[BACK_SIZE];
  size_t back_len;
  proxy_reply expected[EXPECTED_MAX];
  size_t n_expected;
  proxy_later later;
  int64_t due_ms;
  char held[HELD_SIZE];
  size_t held_len;
  size_t held_at;
} proxy_link;

struct fault_proxy {
  char directory[64];
  char path[96];
  char unix_uri[128];
  char tcp_uri[64];
  struct sockaddr_un behind;
  int listeners[2];
  pthread_t thread;
  atomic_bool ending;
  atomic_int alive; /* links in use */
  atomic_uint_least64_t connections;
  atomic_uint_least64_t met[FAULT_COUNT];
  atomic_uint marks[FAULT_KEYS_MAX];
  pthread_mutex_t lock; /* for the plan */
  fault_plan plan;
  uint64_t random;
  char older[OLDER_MAX]; /* a reply of before */
  size_t older_len;
  struct pollfd fds[2 + 2 * LINKS_MAX];
  proxy_link *owners[2 + 2 * LINKS_MAX]; /* whose each of them is */
  proxy_link links[LINKS_MAX];
};

uint64_t fault_random(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

static const struct {
  const char *text;
  bool answered;
} faults[] = {
#define FAULT_ROW(name, text, answered) {text, answered},
    FAULTS(FAULT_ROW)
#undef FAULT_ROW
};

const char *fault_name(fault kind) {
  return faults[kind].text;
}

bool fault_may_be_answered(fault kind) {
  return faults[kind].answered;
}

static int64_t proxy_now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- Links ---- */

static void link_drop_client(proxy_link *link, bool reset) {
  if (link->client < 0)
    return;
  struct linger none = {.l_onoff = 1, .l_linger = 0};
  if (reset)
    (void)setsockopt(link->client, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  (void)close(link->client);
  link->client = -1;
  if (link->later == LATER_SEND || link->later == LATER_DRIP)
    link->later = LATER_NOTHING;
}

/* Ends when the client has gone and the server owes nothing: what was passed on has run. */
static void link_end_if_done(fault_proxy *proxy, proxy_link *link) {
  bool owed = link->n_expected > 0 || link->later == LATER_FORWARD;
  if (!link->used || (link->server >= 0 && (link->client >= 0 || owed)))
    return;
  link_drop_client(link, false);
  if (link->server >= 0)
    (void)close(link->server);
  link->used = false;
  (void)atomic_fetch_sub(&proxy->alive, 1);
}

static void link_put(proxy_link *link, const char *bytes, size_t len) {
  while (len > 0 && link->client >= 0 && !link->silent) {
    ssize_t sent = send(link->client, bytes, len, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0)
      return; /* a client that reads no more gets no more */
    bytes += sent;
    len -= (size_t)sent;
  }
}

static void link_forward(proxy_link *link, const char *bytes, size_t len) {
  while (len > 0 && link->server >= 0) {
    ssize_t sent = send(link->server, bytes, len, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR)
      continue;
    if (sent < 0) {
      (void)close(link->server);
      link->server = -1;
      return;
    }
    bytes += sent;
    len -= (size_t)sent;
  }
}

static void link_hold(proxy_link *link, proxy_later later, const char *bytes, size_t len, int delay_ms) {
  if (len > HELD_SIZE)
    len = HELD_SIZE;
  memcpy(link->held, bytes, len);
  link->held_len = len;
  link->held_at = 0;
  link->later = later;
  link->due_ms = proxy_now_ms() + delay_ms;
}

static void link_accept(fault_proxy *proxy, int listener) {
  int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (client < 0)
    return;
  size_t at = 0;
  while (at < LINKS_MAX && proxy->links[at].used)
    at++;
  int server = at < LINKS_MAX ? socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (server < 0 || connect(server, (struct sockaddr *)&proxy->behind, sizeof(proxy->behind)) != 0) {
    if (server >= 0)
      (void)close(server);
    (void)close(client);
    return;
  }
  int on = 1;
  (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  proxy_link *link = &proxy->links[at];
  link->used = true;
  link->client = client;
  link->server = server;
  link->silent = false;
  link->in_len = link->back_len = link->n_expected = 0;
  link->later = LATER_NOTHING;
  (void)atomic_fetch_add(&proxy->alive, 1);
  (void)atomic_fetch_add(&proxy->connections, 1);
}

/* ---- Replies ---- */

/* The bytes of the first whole reply, 0 when more have to come. The server is trusted; arrays are not used. */
static size_t reply_size(const char *bytes, size_t len) {
  const char *end = memchr(bytes, '\n', len);
  if (end == NULL)
    return 0;
  size_t size = (size_t)(end - bytes) + 1;
  if (bytes[0] == '$' && bytes[1] != '-')
    size += (size_t)strtoul(bytes + 1, NULL, 10) + 2;
  return size <= len ? size : 0;
}

static size_t cut_point(fault_proxy *proxy, size_t len) {
  if (proxy->plan.cut_at >= 0)
    return (size_t)proxy->plan.cut_at < len ? (size_t)proxy->plan.cut_at : len - 1;
  return (size_t)(fault_random(&proxy->random) % len);
}

static void put_two(proxy_link *link, const char *first, size_t first_len, const char *second, size_t second_len) {
  char both[BACK_SIZE + 512];
  memcpy(both, first, first_len);
  memcpy(both + first_len, second, second_len);
  link_put(link, both, first_len + second_len);
}

static void put_then_silence(proxy_link *link, const char *bytes, size_t len) {
  link_put(link, bytes, len);
  link->silent = true;
}

/* A beginning that announces more than anybody has, and some of it. */
static void put_monster(proxy_link *link, const char *head, const char *body) {
  char bytes[20000];
  size_t len = strlen(head);
  size_t body_len = strlen(body);
  memcpy(bytes, head, len);
  for (; len + body_len <= sizeof(bytes); len += body_len)
    memcpy(bytes + len, body, body_len);
  put_then_silence(link, bytes, len);
}

static void reply_spoil(fault_proxy *proxy, proxy_link *link, fault kind, const char *bytes, size_t len) {
  static const char garbage[] = "\x01\xff garbage \r\n";
  static const char http[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
  char flipped[BACK_SIZE];
  switch (kind) {
  case FAULT_NONE:
  case FAULT_ERROR:
  case FAULT_TWICE:
    link_put(link, bytes, len);
    break;
  case FAULT_DELAY:
    link_hold(link, LATER_SEND, bytes, len, proxy->plan.delay_ms);
    break;
  case FAULT_DRIP:
    link_hold(link, LATER_DRIP, bytes, len, 0);
    break;
  case FAULT_DROP:
  case FAULT_LOST:
  case FAULT_LATE:
    break;
  case FAULT_DUPLICATE:
    put_two(link, bytes, len, bytes, len);
    break;
  case FAULT_OLDER_BEFORE:
    put_two(link, proxy->older, proxy->older_len, bytes, len);
    break;
  case FAULT_SWAP:
    link_put(link, proxy->older, proxy->older_len);
    break;
  case FAULT_CUT:
  case FAULT_RESET:
    link_put(link, bytes, cut_point(proxy, len));
    link_drop_client(link, kind == FAULT_RESET);
    break;
  case FAULT_STALL:
    put_then_silence(link, bytes, cut_point(proxy, len));
    break;
  case FAULT_GARBAGE:
    put_two(link, garbage, sizeof(garbage) - 1, bytes, len);
    break;
  case FAULT_BIT_FLIP:
    memcpy(flipped, bytes, len);
    flipped[fault_random(&proxy->random) % len] ^= (char)(1 << fault_random(&proxy->random) % 8);
    link_put(link, flipped, len);
    break;
  case FAULT_HTTP:
    put_then_silence(link, http, sizeof(http) - 1);
    break;
  case FAULT_HUGE_STRING:
    put_monster(link, "$536870912\r\n", "xxxxxxxxxxxxxxxx");
    break;
  case FAULT_HUGE_ARRAY:
    put_monster(link, "*2147483647\r\n", ":1\r\n");
    break;
  case FAULT_DEEP_ARRAY:
    put_monster(link, "*1\r\n", "*1\r\n");
    break;
  case FAULT_COUNT:
    break;
  }
}

/* Hands out what stands at the head of the queue, as far as it is there. */
static void replies_pass(fault_proxy *proxy, proxy_link *link) {
  while (link->n_expected > 0) {
    const proxy_reply *first = &link->expected[0];
    size_t size = first->canned != NULL ? strlen(first->canned) : reply_size(link->back, link->back_len);
    if (size == 0)
      return;
    const char *bytes = first->canned != NULL ? first->canned : link->back;
    if (!first->muted)
      reply_spoil(proxy, link, first->kind, bytes, size);
    if (first->canned == NULL) {
      if (bytes[0] == ':' && size <= OLDER_MAX) {
        memcpy(proxy->older, bytes, size);
        proxy->older_len = size;
      }
      link->back_len -= size;
      memmove(link->back, link->back + size, link->back_len);
    }
    link->n_expected--;
    memmove(link->expected, link->expected + 1, link->n_expected * sizeof(link->expected[0]));
  }
}

/* ---- Commands ---- */

/* The bytes of the first whole command, 0 when more have to come; the words of it that matter. */
static size_t command_size(const char *bytes, size_t len, const char **name, const char **key) {
  const char *at = memchr(bytes, '\n', len);
  if (at == NULL)
    return 0;
  long words = strtol(bytes + 1, NULL, 10);
  at++;
  for (long i = 0; i < words; i++) {
    const char *end = memchr(at, '\n', len - (size_t)(at - bytes));
    if (end == NULL)
      return 0;
    const char *word = end + 1;
    at = word + strtol(at + 1, NULL, 10) + 2;
    if (at > bytes + len)
      return 0;
    if (i == 0)
      *name = word;
    if (i == 3)
      *key = word;
  }
  return (size_t)(at - bytes);
}

static fault draw_by_weight(fault_proxy *proxy) {
  unsigned sum = 0;
  for (int i = 0; i < FAULT_COUNT; i++)
    sum += proxy->plan.weights[i];
  if (sum == 0)
    return FAULT_NONE;
  unsigned drawn = (unsigned)(fault_random(&proxy->random) % sum);
  int kind = 0;
  while (drawn >= proxy->plan.weights[kind])
    drawn -= proxy->plan.weights[kind++];
  bool no_older = (kind == FAULT_SWAP || kind == FAULT_OLDER_BEFORE) && proxy->older_len == 0;
  return no_older ? FAULT_NONE : (fault)kind;
}

static fault draw_for_greeting(fault_proxy *proxy, const char *name) {
  static const fault kinds[] = {FAULT_DELAY, FAULT_DROP,    FAULT_CUT,      FAULT_STALL,      FAULT_RESET,
                                FAULT_DRIP,  FAULT_GARBAGE, FAULT_BIT_FLIP, FAULT_HUGE_STRING};
  const fault_plan *plan = &proxy->plan;
  if (plan->greeting_odds == 0 || fault_random(&proxy->random) % plan->greeting_odds != 0)
    return FAULT_NONE;
  if (plan->greeting != NULL && strncmp(name, plan->greeting, strlen(plan->greeting)) != 0)
    return FAULT_NONE;
  if (plan->greeting_kind != FAULT_NONE)
    return plan->greeting_kind;
  return kinds[fault_random(&proxy->random) % (sizeof(kinds) / sizeof(kinds[0]))];
}

static void expect(proxy_link *link, fault kind, const char *canned, bool muted) {
  if (link->n_expected < EXPECTED_MAX)
    link->expected[link->n_expected++] = (proxy_reply){.kind = kind, .canned = canned, .muted = muted};
}

static void command_pass(fault_proxy *proxy, proxy_link *link, const char *bytes, size_t len, const char *name,
                         const char *key) {
  if (strncmp(name, "EVALSHA", 7) != 0) {
    link_forward(link, bytes, len);
    expect(link, draw_for_greeting(proxy, name), NULL, false);
    return;
  }
  fault kind = draw_by_weight(proxy);
  (void)atomic_fetch_add(&proxy->met[kind], 1);
  const char *number = memchr(key, '{', 64);
  unsigned index = number != NULL ? (unsigned)strtoul(number + 1, NULL, 10) : 0;
  if (index < FAULT_KEYS_MAX)
    (void)atomic_fetch_or(&proxy->marks[index], 1U << kind);
  if (kind == FAULT_LOST)
    return;
  if (kind == FAULT_LATE) {
    link_hold(link, LATER_FORWARD, bytes, len, proxy->plan.delay_ms);
    return;
  }
  if (kind == FAULT_ERROR) {
    int error = proxy->plan.error;
    if (error < 0)
      error = (int)(fault_random(&proxy->random) % (unsigned)fault_error_count);
    expect(link, kind, fault_errors[error], false);
    return;
  }
  link_forward(link, bytes, len);
  if (kind == FAULT_TWICE) {
    link_forward(link, bytes, len);
    expect(link, kind, NULL, true);
  }
  expect(link, kind, NULL, false);
}

static void client_read(fault_proxy *proxy, proxy_link *link) {
  ssize_t got = recv(link->client, link->in + link->in_len, IN_SIZE - link->in_len, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (got <= 0) {
    link_drop_client(link, false);
    return;
  }
  link->in_len += (size_t)got;
  const char *name = "";
  const char *key = "";
  size_t size;
  (void)pthread_mutex_lock(&proxy->lock);
  while (link->in_len > 0 && (size = command_size(link->in, link->in_len, &name, &key)) > 0) {
    command_pass(proxy, link, link->in, size, name, key);
    link->in_len -= size;
    memmove(link->in, link->in + size, link->in_len);
  }
  replies_pass(proxy, link);
  (void)pthread_mutex_unlock(&proxy->lock);
}

static void server_read(fault_proxy *proxy, proxy_link *link) {
  ssize_t got = recv(link->server, link->back + link->back_len, BACK_SIZE - link->back_len, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (got <= 0) {
    (void)close(link->server);
    link->server = -1;
    return;
  }
  link->back_len += (size_t)got;
  (void)pthread_mutex_lock(&proxy->lock);
  replies_pass(proxy, link);
  (void)pthread_mutex_unlock(&proxy->lock);
}

/* ---- The thread ---- */

static void link_due(proxy_link *link) {
  proxy_later later = link->later;
  if (later == LATER_DRIP && link->held_at < link->held_len) {
    link_put(link, link->held + link->held_at++, 1);
    link->due_ms = proxy_now_ms() + DRIP_MS;
    return;
  }
  link->later = LATER_NOTHING;
  if (later == LATER_SEND)
    link_put(link, link->held, link->held_len);
  if (later == LATER_FORWARD) {
    link_forward(link, link->held, link->held_len);
    expect(link, FAULT_LATE, NULL, true);
  }
}

static void *proxy_run(void *user) {
  fault_proxy *proxy = user;
  struct pollfd *fds = proxy->fds;
  proxy_link **owners = proxy->owners;
  while (!atomic_load(&proxy->ending)) {
    size_t n = 0;
    int wait_ms = 10;
    for (int i = 0; i < 2; i++)
      fds[n++] = (struct pollfd){.fd = proxy->listeners[i], .events = POLLIN};
    int64_t now_ms = proxy_now_ms();
    for (size_t i = 0; i < LINKS_MAX; i++) {
      proxy_link *link = &proxy->links[i];
      if (!link->used)
        continue;
      if (link->later != LATER_NOTHING && link->due_ms <= now_ms)
        link_due(link);
      if (link->later != LATER_NOTHING && link->due_ms - now_ms < wait_ms)
        wait_ms = link->due_ms > now_ms ? (int)(link->due_ms - now_ms) : 0;
      link_end_if_done(proxy, link);
      for (int side = 0; side < 2 && link->used; side++) {
        int fd = side == 0 ? link->client : link->server;
        if (fd < 0)
          continue;
        owners[n] = link;
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
      }
    }
    if (poll(fds, n, wait_ms) <= 0)
      continue;
    for (size_t i = 2; i < n; i++) {
      if (fds[i].revents == 0)
        continue;
      /* The other side may have been closed by what was just read. */
      if (fds[i].fd == owners[i]->client)
        client_read(proxy, owners[i]);
      else if (fds[i].fd == owners[i]->server)
        server_read(proxy, owners[i]);
    }
    for (int i = 0; i < 2; i++) {
      if (fds[i].revents != 0)
        link_accept(proxy, proxy->listeners[i]);
    }
  }
  return NULL;
}

/* ---- For tests ---- */

fault_plan fault_plan_of(fault kind) {
  fault_plan plan = {.delay_ms = 50, .cut_at = -1, .error = -1};
  plan.weights[kind] = 1;
  return plan;
}

fault_proxy *fault_proxy_start(redis_server *server, uint64_t seed) {
  fault_proxy *proxy = calloc(1, sizeof(*proxy));
  cr_assert(proxy != NULL);
  (void)snprintf(proxy->directory, sizeof(proxy->directory), "/tmp/spile-proxy-XXXXXX");
  cr_assert(mkdtemp(proxy->directory) != NULL, "mkdtemp: %s", strerror(errno));
  (void)snprintf(proxy->path, sizeof(proxy->path), "%s/redis.sock", proxy->directory);
  (void)snprintf(proxy->unix_uri, sizeof(proxy->unix_uri), "redis+unix://%s", proxy->path);
  proxy->behind.sun_family = AF_UNIX;
  (void)snprintf(proxy->behind.sun_path, sizeof(proxy->behind.sun_path), "%s",
                 redis_server_unix_uri(server) + strlen("redis+unix://"));
  proxy->random = seed;
  proxy->plan = fault_plan_of(FAULT_NONE);
  (void)pthread_mutex_init(&proxy->lock, NULL);

  struct sockaddr_un path = {.sun_family = AF_UNIX};
  (void)snprintf(path.sun_path, sizeof(path.sun_path), "%s", proxy->path);
  int fd = proxy->listeners[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&path, sizeof(path)) == 0 && listen(fd, 512) == 0);
  struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(port);
  fd = proxy->listeners[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&port, len) == 0 && listen(fd, 512) == 0 &&
            getsockname(fd, (struct sockaddr *)&port, &len) == 0);
  (void)snprintf(proxy->tcp_uri, sizeof(proxy->tcp_uri), "redis://127.0.0.1:%d", ntohs(port.sin_port));
  cr_assert(pthread_create(&proxy->thread, NULL, proxy_run, proxy) == 0);
  return proxy;
}

const char *fault_proxy_unix_uri(const fault_proxy *proxy) {
  return proxy->unix_uri;
}

const char *fault_proxy_tcp_uri(const fault_proxy *proxy) {
  return proxy->tcp_uri;
}

void fault_proxy_set(fault_proxy *proxy, const fault_plan *plan) {
  (void)pthread_mutex_lock(&proxy->lock);
  proxy->plan = *plan;
  (void)pthread_mutex_unlock(&proxy->lock);
}

uint32_t fault_proxy_marks(fault_proxy *proxy, unsigned key) {
  return atomic_exchange(&proxy->marks[key], 0);
}

uint64_t fault_proxy_met(fault_proxy *proxy, fault kind) {
  return atomic_load(&proxy->met[kind]);
}

uint64_t fault_proxy_connections(fault_proxy *proxy) {
  return atomic_load(&proxy->connections);
}

void fault_proxy_settle(fault_proxy *proxy) {
  for (int64_t until_ms = proxy_now_ms() + 20000; atomic_load(&proxy->alive) > 0; (void)poll(NULL, 0, 1))
    cr_assert(proxy_now_ms() < until_ms, "%d connections of the proxy stay open", atomic_load(&proxy->alive));
}

void fault_proxy_stop(fault_proxy *proxy) {
  atomic_store(&proxy->ending, true);
  (void)pthread_join(proxy->thread, NULL);
  for (size_t i = 0; i < LINKS_MAX; i++) {
    proxy_link *link = &proxy->links[i];
    if (!link->used)
      continue;
    link_drop_client(link, false);
    if (link->server >= 0)
      (void)close(link->server);
  }
  for (int i = 0; i < 2; i++)
    (void)close(proxy->listeners[i]);
  (void)unlink(proxy->path);
  (void)rmdir(proxy->directory);
  (void)pthread_mutex_destroy(&proxy->lock);
  free(proxy);
}
