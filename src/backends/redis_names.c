/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses the server has now.
 *
 * A path and a numeric address have one for good. A host name is looked up when the store is opened and again when
 * there is reason to doubt the answer: a connection failed, or the server that answered is not the right one (a
 * replica). A look-up blocks for as long as the system's resolver does, which a take must not. So the take that finds
 * the name in doubt starts a thread for that one look-up and waits for it for half of the time that it has; whoever
 * comes meanwhile uses the old addresses. It is the only thread that this store ever starts, there is at most one of
 * it, and none for a healthy server.
 *
 * The thread cannot be cut short, so it may outlive the store: it works on a block of its own that the last of the two
 * frees. The block comes from malloc, since the store's allocator may be gone by then. The thread may even outlive the
 * use of the library, so the shared library is linked to stay mapped after dlclose.
 *
 * Every connection remembers the generation of the addresses it was made under. A new generation, when the addresses
 * changed or a server turned out to be a replica, means that idle connections are replaced before they are used. That
 * is done at once when an address is found to be wrong, and then seldom while it stays so.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backends/redis.h"

/* Between the beginnings of two look-ups, so that a dead server does not become a flood for the name server. */
#define LOOKUP_PAUSE_MS 500

/* Between two times that the connections to one address are closed because of what it answers. A server that refuses
 * takes may go on answering other calls, so there is no row of failures that opens the breaker, and without a pause
 * each take would cost a connection. Below a second, since whoever took the address over is found by connecting anew.
 */
#define REFUSED_PAUSE_MS 800

/* One look-up, owned by the store and its thread. */
struct spile__redis_lookup {
  pthread_mutex_t lock;
  pthread_cond_t ended; /* on the monotonic clock */
  int owners;
  bool done;
  const char *why; /* what the resolver returned */
  spile__redis_peers peers;
  const char *(*resolve)(void *user, const char *host, const char *port, spile__redis_peers *out);
  void *user;
  char host[256];
  char port[8];
};

/* ---- One look-up ---- */

static void lookup_drop(spile__redis_lookup *lookup) {
  (void)pthread_mutex_lock(&lookup->lock);
  bool last = --lookup->owners == 0;
  (void)pthread_mutex_unlock(&lookup->lock);
  if (!last)
    return;
  (void)pthread_cond_destroy(&lookup->ended);
  (void)pthread_mutex_destroy(&lookup->lock);
  free(lookup);
}

static void *lookup_run(void *user) {
  spile__redis_lookup *lookup = user;
  spile__redis_peers peers = {.n = 0};
  const char *why = lookup->resolve(lookup->user, lookup->host, lookup->port, &peers);
  (void)pthread_mutex_lock(&lookup->lock);
  lookup->peers = peers;
  lookup->why = why;
  lookup->done = true;
  (void)pthread_cond_broadcast(&lookup->ended);
  (void)pthread_mutex_unlock(&lookup->lock);
  lookup_drop(lookup);
  return NULL;
}

static int lookup_start(spile__redis_lookup *lookup) {
  pthread_attr_t attributes;
  int failure = pthread_attr_init(&attributes);
  if (failure != 0)
    return failure;
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  /* The program's signals are for its own threads. */
  sigset_t all;
  sigset_t before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  failure = pthread_create(&thread, &attributes, lookup_run, lookup);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  (void)pthread_attr_destroy(&attributes);
  return failure;
}

/* @return the look-up under way, owned by the caller as well; NULL: no memory or no thread */
static spile__redis_lookup *lookup_begin(const spile__redis_names *names) {
  spile__redis_lookup *lookup = calloc(1, sizeof(*lookup));
  if (lookup == NULL)
    return NULL;
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&lookup->ended, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  (void)pthread_mutex_init(&lookup->lock, NULL);
  lookup->owners = 2;
  lookup->resolve = names->transport->resolve;
  lookup->user = names->transport_user;
  memcpy(lookup->host, names->address->host, sizeof(lookup->host));
  memcpy(lookup->port, names->address->port, sizeof(lookup->port));
  if (lookup_start(lookup) == 0)
    return lookup;
  lookup->owners = 1;
  lookup_drop(lookup);
  return NULL;
}

/* Waits until it is done or the time is over. */
static void lookup_wait(spile__redis_lookup *lookup, int64_t wait_ms) {
  struct timespec until = spile__redis_until(wait_ms);
  (void)pthread_mutex_lock(&lookup->lock);
  int failure = 0;
  while (!lookup->done && failure == 0)
    failure = pthread_cond_timedwait(&lookup->ended, &lookup->lock, &until);
  (void)pthread_mutex_unlock(&lookup->lock);
}

/* ---- The names, under their lock ---- */

static bool peer_equal(const spile__redis_peer *a, const spile__redis_peer *b) {
  return a->address_len == b->address_len && memcmp(&a->address, &b->address, a->address_len) == 0;
}

/* Whether each address of `a` is one of `b`; the order says nothing, name servers turn it. */
static bool peers_within(const spile__redis_peers *a, const spile__redis_peers *b) {
  for (size_t i = 0; i < a->n; i++) {
    size_t j = 0;
    while (j < b->n && !peer_equal(&a->list[i], &b->list[j]))
      j++;
    if (j == b->n)
      return false;
  }
  return true;
}

static void names_take_over(spile__redis_names *names, const spile__redis_peers *peers, const char *why) {
  names->why = why;
  /* No answer is no reason to forget the addresses that were there. */
  if (why != NULL || peers->n == 0)
    return;
  names->suspect = false;
  if (peers_within(peers, &names->peers) && peers_within(&names->peers, peers))
    return;
  names->peers = *peers;
  names->first = 0;
  memset(names->refused_until_ms, 0, sizeof(names->refused_until_ms));
  atomic_fetch_add(&names->generation, 1);
}

/* Takes over what a look-up brought, if it is done. */
static void names_collect(spile__redis_names *names) {
  spile__redis_lookup *lookup = names->lookup;
  if (lookup == NULL)
    return;
  (void)pthread_mutex_lock(&lookup->lock);
  bool done = lookup->done;
  (void)pthread_mutex_unlock(&lookup->lock);
  if (!done)
    return;
  names->lookup = NULL;
  names_take_over(names, &lookup->peers, lookup->why);
  lookup_drop(lookup);
}

/* Begins a look-up if one is due. @return it, owned by the caller as well; NULL: none begun */
static spile__redis_lookup *names_look_again(spile__redis_names *names) {
  bool doubted = names->suspect || names->peers.n == 0;
  if (!doubted || names->address->host[0] == '\0' || names->transport->resolve == NULL || names->lookup != NULL)
    return NULL;
  int64_t now_ms = names->env->monotonic_ms(names->env->user);
  if (now_ms - names->looked_ms < LOOKUP_PAUSE_MS)
    return NULL;
  names->looked_ms = now_ms;
  names->lookup = lookup_begin(names);
  if (names->lookup == NULL) {
    names->why = "there is no thread or memory to look it up";
    return NULL;
  }
  (void)pthread_mutex_lock(&names->lookup->lock);
  names->lookup->owners++;
  (void)pthread_mutex_unlock(&names->lookup->lock);
  return names->lookup;
}

/* ---- For the store and its links ---- */

void spile__redis_names_open(spile__redis_names *names) {
  (void)pthread_mutex_init(&names->lock, NULL);
  names->peers = names->address->peers;
  if (names->address->host[0] == '\0')
    return;
  spile__redis_peers peers = {.n = 0};
  const char *why = "this store looks no names up";
  if (names->transport->resolve != NULL)
    why = names->transport->resolve(names->transport_user, names->address->host, names->address->port, &peers);
  names->looked_ms = names->env->monotonic_ms(names->env->user);
  names_take_over(names, &peers, why);
}

void spile__redis_names_close(spile__redis_names *names, bool forked) {
  if (forked) {
    /* The thread is the parent's and its locks are in whatever state; the copy here has no other owner. */
    free(names->lookup);
    return;
  }
  if (names->lookup != NULL)
    lookup_drop(names->lookup);
  (void)pthread_mutex_destroy(&names->lock);
}

void spile__redis_names_read(spile__redis_names *names, int64_t deadline_ms, spile__redis_route *out) {
  (void)pthread_mutex_lock(&names->lock);
  names_collect(names);
  spile__redis_lookup *begun = names_look_again(names);
  if (begun != NULL) {
    (void)pthread_mutex_unlock(&names->lock);
    int64_t left_ms = deadline_ms - names->env->monotonic_ms(names->env->user);
    lookup_wait(begun, left_ms / 2);
    lookup_drop(begun);
    (void)pthread_mutex_lock(&names->lock);
    names_collect(names);
  }
  out->peers = names->peers;
  out->first = names->first;
  out->generation = atomic_load(&names->generation);
  out->why = names->why;
  (void)pthread_mutex_unlock(&names->lock);
}

void spile__redis_names_answered(spile__redis_names *names, unsigned generation, size_t peer) {
  (void)pthread_mutex_lock(&names->lock);
  if (generation == atomic_load(&names->generation))
    names->first = peer;
  (void)pthread_mutex_unlock(&names->lock);
}

void spile__redis_names_failed(spile__redis_names *names, unsigned generation, size_t peer) {
  (void)pthread_mutex_lock(&names->lock);
  /* What was made under older addresses says nothing about these. */
  if (generation == atomic_load(&names->generation)) {
    names->suspect = true;
    if (names->peers.n > 0)
      names->first = (peer + 1) % names->peers.n;
  }
  (void)pthread_mutex_unlock(&names->lock);
}

/* Notes the refusal. @return whether it is time to close connections for it */
static bool names_refuse(spile__redis_names *names, size_t peer, bool wrong) {
  names->suspect = names->suspect || wrong;
  int64_t now_ms = names->env->monotonic_ms(names->env->user);
  if (now_ms < names->refused_until_ms[peer]) {
    /* Connections that are kept make nobody ask for the addresses, so this does; whoever is refused next collects. */
    spile__redis_lookup *begun = names_look_again(names);
    if (begun != NULL)
      lookup_drop(begun);
    return false;
  }
  names->refused_until_ms[peer] = now_ms + REFUSED_PAUSE_MS;
  if (wrong) {
    names->first = (peer + 1) % names->peers.n;
    atomic_fetch_add(&names->generation, 1);
  }
  return true;
}

bool spile__redis_names_refused(spile__redis_names *names, unsigned generation, size_t peer, bool wrong) {
  (void)pthread_mutex_lock(&names->lock);
  names_collect(names);
  bool close = generation != atomic_load(&names->generation) || names_refuse(names, peer, wrong);
  (void)pthread_mutex_unlock(&names->lock);
  return close;
}
