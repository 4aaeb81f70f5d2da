/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the Redis store share.
 *
 *   redis.c          the store: a call becomes one command, its reply becomes readings
 *   redis_list.c     walks over what is stored: clean and each
 *   redis_key.c      the names of buckets
 *   redis_address.c  the address and the password
 *   redis_names.c    the network addresses behind a host name, now
 *   redis_pool.c     the links of a store and the calls that wait for one
 *   redis_pace.c     how long things take, for those who wait
 *   redis_link.c     one connection and its deadline
 *   redis_reply.c    what a server's errors mean
 *   redis_buffer.c   commands as bytes
 *   redis_frame.c    where a reply ends, and that it is one we may get
 *   redis_socket.c   sockets, behind redis_transport.h
 */
#ifndef SPILE_BACKENDS_REDIS_H
#define SPILE_BACKENDS_REDIS_H

#include <pthread.h>
#include <stdatomic.h>

/* Its header converts integers as it likes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <hiredis.h>
#pragma GCC diagnostic pop

#include "backends/backends.h"
#include "backends/redis_transport.h"

/* ---- Names ---- */

/* Stands before the key prefix of buckets whose time is given. A key prefix has no colon. */
#define SPILE__REDIS_MARK "spile-sim:"

/* A bucket's name taken apart; the strings lie in the name that was decoded. */
typedef struct spile__redis_key {
  const char *prefix;
  size_t prefix_len;
  const char *key;
  size_t key_len;
  const char *name;
  size_t name_len;
  spile_algorithm algorithm;
  bool simulated;
} spile__redis_key;

/* ":" and the word of an algorithm. */
#define SPILE__REDIS_SUFFIX_LEN_MAX 32

/* The longest name of a bucket: mark, prefix, ":{", key, "}:", name, suffix. */
#define SPILE__REDIS_NAME_LEN_MAX \
  (10 + 64 + 2 + 3 * SPILE_KEY_LEN_MAX + 2 + 3 * SPILE_NAME_LEN_MAX + SPILE__REDIS_SUFFIX_LEN_MAX)

/* Room that the name of an item's bucket fits in, with and without the mark. */
size_t spile__redis_key_size(const char *prefix, const spile_item *item);

/* Writes the name, without a NUL. @return its length */
size_t spile__redis_key_encode(char *out, const char *prefix, bool simulated, const spile_item *item);

/* Takes a name apart, in place. @return false when it is not one that spile__redis_key_encode writes */
bool spile__redis_key_decode(char *name, size_t len, spile__redis_key *out);

/* ---- The address ---- */

typedef struct spile__redis_address {
  char target[300];    /* what messages call the server: "host:port" or the path */
  char user[256];      /* empty: the default user */
  char password[2048]; /* empty: none */
  int64_t database;
  spile__redis_peers peers; /* of a path or a numeric host */
  char host[256];           /* a name that has to be looked up, or empty */
  char port[8];
} spile__redis_address;

/*
 * Reads an address, and the password from the environment where the address has none. No message ever quotes the
 * address.
 * @return SPILE_OK; SPILE_ECONFIG
 */
int spile__redis_address_parse(spile__redis_address *out, const char *text, bool unix_socket, spile_error *error);

/* ---- Names ---- */

typedef struct spile__redis_lookup spile__redis_lookup;

/* What is known of the server's addresses, shared by all links of a store. */
typedef struct spile__redis_names {
  const spile_env *env;
  const spile__redis_transport *transport;
  void *transport_user;
  const spile__redis_address *address;
  atomic_uint generation; /* of the addresses; written under the lock */
  pthread_mutex_t lock;   /* for what follows; held for moments */
  spile__redis_peers peers;
  size_t first; /* where the next connect begins: at the one that answered last, or behind the one that failed */
  int64_t refused_until_ms[SPILE__REDIS_PEERS_MAX]; /* until then connections to that address are kept, whatever it
                                                       answers on them */
  bool suspect;                                     /* something failed since the last look-up */
  const char *why;                                  /* what was wrong with the last look-up, a constant text; or NULL */
  int64_t looked_ms;                                /* when it began */
  spile__redis_lookup *lookup;                      /* under way, or NULL */
} spile__redis_names;

/* Where a link may connect to. */
typedef struct spile__redis_route {
  spile__redis_peers peers;
  size_t first;
  unsigned generation;
  const char *why; /* why there is no address */
} spile__redis_route;

/* The members up to `address` are set by the caller. Looks a host name up, which may block as long as the system's
 * resolver does. */
void spile__redis_names_open(spile__redis_names *names);
void spile__redis_names_close(spile__redis_names *names, bool forked);

/* The addresses as they are known now; begins a new look-up where they are in doubt, and waits for it for at most half
 * of the time until the deadline. */
void spile__redis_names_read(spile__redis_names *names, int64_t deadline_ms, spile__redis_route *out);

/* A server answered at one of the addresses, or none did. */
void spile__redis_names_answered(spile__redis_names *names, unsigned generation, size_t peer);
void spile__redis_names_failed(spile__redis_names *names, unsigned generation, size_t peer);

/*
 * It answered that it cannot do what was asked; `wrong`: since it is not the server that the name should lead to.
 * @return whether to close the connection and look for another server: not when that was just done
 */
bool spile__redis_names_refused(spile__redis_names *names, unsigned generation, size_t peer, bool wrong);

/* ---- Frames ---- */

typedef struct spile__redis_bounds {
  int64_t bulk_max;     /* bytes of one string */
  int64_t elements_max; /* of one array */
  size_t total_max;     /* bytes of one reply */
} spile__redis_bounds;

/* What is known of a reply that has begun to arrive. Starts as {0}. */
typedef struct spile__redis_frame {
  bool begun;
  int64_t pending; /* elements still to come */
  size_t at;       /* up to here it is read; the end of the reply when it is complete */
} spile__redis_frame;

/* @return 1 when the reply is complete, 0 when more bytes are needed, −1 when it is not one within the bounds */
int spile__redis_frame_scan(spile__redis_frame *frame, const char *bytes, size_t len,
                            const spile__redis_bounds *bounds);

/* ---- The link ---- */

typedef struct spile__redis_buffer {
  char *bytes;
  size_t len;
  size_t size;
} spile__redis_buffer;

typedef struct spile__redis_link {
  const spile_env *env;
  const spile__redis_transport *transport;
  void *transport_user;
  spile__redis_names *names;
  int handle;          /* −1: not connected */
  unsigned generation; /* of the addresses it was connected under … */
  size_t peer;         /* … and which of them it is */
  bool lent;           /* to a call; under the pool's lock */
  int64_t lent_ms;     /* since when; likewise */
  int64_t connect_ms;  /* of this loan: how long connecting took, or −1 … */
  bool connect_late;   /* … and whether it was given up for want of time */
  int exchanges;       /* of this loan: how many were answered … */
  bool exchange_late;  /* … and whether one was not in time */
  redisReader *reader;
  spile__redis_buffer out;     /* the commands of the next call */
  spile__redis_buffer in;      /* received and not yet read */
  spile__redis_buffer scratch; /* names and arguments of the command being made */
} spile__redis_link;

/* Makes room for `more` bytes. @return false: no memory */
bool spile__redis_buffer_reserve(const spile_env *env, spile__redis_buffer *buffer, size_t more);
/* Frees the bytes after overwriting them. */
void spile__redis_buffer_free(const spile_env *env, spile__redis_buffer *buffer);

/* Adds a command to a buffer. @return false: no memory */
bool spile__redis_command(const spile_env *env, spile__redis_buffer *buffer, int argc, const char **argv,
                          const size_t *argv_len);

/*
 * Sends what is in link->out, which it empties, and reads `n` replies, connecting first where needed. A link found
 * closed before anything was sent is replaced; nothing is sent twice. On failure the link is closed.
 *
 * @param replies  out, n of them, each freed by the caller (freeReplyObject); all NULL on failure
 * @return SPILE_OK, also for replies that are errors; SPILE_EUNAVAILABLE; SPILE_ENOMEM
 */
int spile__redis_link_call(spile__redis_link *link, int64_t deadline_ms, const spile__redis_bounds *bounds, size_t n,
                           redisReply **replies, spile_error *error);

void spile__redis_link_close(spile__redis_link *link);

/* ---- Errors of the server ---- */

typedef struct spile__redis_refusal {
  const char *word; /* how the error begins */
  spile_reason reason;
  bool close;         /* the connection is of no more use */
  bool wrong;         /* this is not the server that the name should lead to: look it up again */
  bool again;         /* what it lacks is sent, and the command once more */
  const char *advice; /* what to do; NULL: nobody knows */
} spile__redis_refusal;

/* The whole table, for its test. */
const spile__redis_refusal *spile__redis_refusals(size_t *n);

/* What an error means. Never NULL: an unknown one is refused, and the connection kept. */
const spile__redis_refusal *spile__redis_refusal_of(const char *text);

/*
 * Fails with what an unwanted reply says, and closes the link where the table says so and where the reply is no error
 * but an answer that the server may not give.
 */
int spile__redis_link_refused(spile__redis_link *link, const redisReply *reply, spile_error *error);

/* Whether a reply is an error that begins with `word`. */
bool spile__redis_is_error(const redisReply *reply, const char *word);

/* ---- The pool ---- */

#define SPILE__REDIS_LINKS_MAX 64
#define SPILE__REDIS_LINKS_DEFAULT 4

/* How long something took lately: a mean and a mean distance from it, both in thousandths of a millisecond. */
typedef struct spile__redis_pace {
  bool known;
  int64_t mean;
  int64_t deviation;
} spile__redis_pace;

/* Takes over one more time. `late`: it was given up after so long, and would have taken longer. */
void spile__redis_pace_learn(spile__redis_pace *pace, int64_t took_ms, bool late);

/* How much time nearly every one needs: 1 ms or more. */
int64_t spile__redis_pace_need_ms(const spile__redis_pace *pace);

typedef struct spile__redis_waiter spile__redis_waiter;

typedef struct spile__redis_pool {
  const spile_env *env;
  pthread_mutex_t lock;
  size_t n_free;
  spile__redis_link *free[SPILE__REDIS_LINKS_MAX]; /* a stack: those with a connection on top */
  spile__redis_waiter *waiters;                    /* the longest waiting first; empty while a link is free */
  size_t n_waiting;
  uint64_t n_queued;         /* calls that have waited since the start, also those that got none */
  spile__redis_pace trip;    /* of a call on a connection, from getting the link to its answer */
  spile__redis_pace connect; /* of making a connection */
} spile__redis_pool;

void spile__redis_pool_init(spile__redis_pool *pool, const spile_env *env, spile__redis_link *links, size_t n);
void spile__redis_pool_finish(spile__redis_pool *pool);

/*
 * Borrows a link. Waits in turn until the deadline while all are lent.
 * @return NULL: none came free while there was time enough for an answer
 */
spile__redis_link *spile__redis_pool_take(spile__redis_pool *pool, int64_t deadline_ms);
void spile__redis_pool_give(spile__redis_pool *pool, spile__redis_link *link);

/* The instant so many milliseconds from now on CLOCK_MONOTONIC. */
struct timespec spile__redis_until(int64_t wait_ms);

/* ---- The store ---- */

typedef struct spile__redis_store {
  spile_store base;
  spile_env own_env;
  const spile_env *env; /* own_env */
  char key_prefix[SPILE__KEY_PREFIX_LEN_MAX + 1];
  bool given_time;
  spile__redis_address address;
  char script_sha[41];
  spile__redis_names names;
  spile__redis_pool pool;
  pthread_mutex_t clean_lock;  /* for what follows */
  spile_clean_what clean_what; /* the walk that is under way … */
  char clean_cursor[24];       /* … and where it is; empty: at the start */
  size_t n_links;
  spile__redis_link links[];
} spile__redis_store;

/* spile__redis_open over a transport of one's own. */
int spile__redis_open_over(spile_store **out, const spile__store_config *config, bool unix_socket,
                           const spile__redis_transport *transport, void *transport_user, spile_error *error);

/*
 * Borrows a link of the store until spile__redis_return.
 * @return SPILE_OK; SPILE_EUNAVAILABLE, busy: none came free by the deadline
 */
int spile__redis_borrow(spile__redis_store *store, int64_t deadline_ms, spile__redis_link **out, spile_error *error);
void spile__redis_return(spile__redis_store *store, spile__redis_link *link);

/* Runs one command that answers with how many of `n` keys it removed. */
int spile__redis_remove(spile__redis_link *link, int argc, const char **argv, const size_t *argv_len, int n,
                        int64_t deadline_ms, spile_error *error);

/* The given-time mark of instants in Redis: far enough ahead that the server never expires such a bucket. */
#define SPILE__REDIS_SHIFT_MS INT64_C(10000000000000)

int spile__redis_clean(spile_store *base, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                       spile_error *error);
int spile__redis_each(spile_store *base, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                      spile_error *error);

#endif
