/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the Redis store share.
 *
 *   redis.c          the store: a call becomes one command, its reply becomes readings
 *   redis_list.c     walks over what is stored: clean and each
 *   redis_key.c      the names of buckets
 *   redis_address.c  the address, the password, the server's network addresses
 *   redis_link.c     one connection and its deadline
 *   redis_frame.c    where a reply ends, and that it is one we may get
 *   redis_socket.c   sockets, behind redis_transport.h
 */
#ifndef SPILE_BACKENDS_REDIS_H
#define SPILE_BACKENDS_REDIS_H

#include <pthread.h>

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
  bool simulated;
} spile__redis_key;

/* The longest name of a bucket: mark, prefix, ":{", key, "}:", name. */
#define SPILE__REDIS_NAME_LEN_MAX (10 + 64 + 2 + 3 * SPILE_KEY_LEN_MAX + 2 + 3 * SPILE_NAME_LEN_MAX)

/* Room that the name of an item's bucket fits in, with and without the mark. */
size_t spile__redis_key_size(const char *prefix, const spile_item *item);

/* Writes the name, without a NUL. @return its length */
size_t spile__redis_key_encode(char *out, const char *prefix, bool simulated, const spile_item *item);

/* Takes a name apart, in place. @return false when it is not one that spile__redis_key_encode writes */
bool spile__redis_key_decode(char *name, size_t len, spile__redis_key *out);

/* ---- The address ---- */

#define SPILE__REDIS_PEERS_MAX 8

typedef struct spile__redis_address {
  char target[300];    /* what messages call the server: "host:port" or the path */
  char user[256];      /* empty: the default user */
  char password[2048]; /* empty: none */
  int64_t database;
  spile__redis_peer peers[SPILE__REDIS_PEERS_MAX];
  size_t n_peers;       /* 0: the host name could not be resolved … */
  const char *unsolved; /* … for this reason, a constant text */
} spile__redis_address;

/*
 * Reads an address, and the password from the environment where the address has none; resolves the host, which may
 * block as long as the system's resolver does. No message ever quotes the address.
 * @return SPILE_OK, also when the host has no address now; SPILE_ECONFIG
 */
int spile__redis_address_parse(spile__redis_address *out, const char *text, bool unix_socket, spile_error *error);

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
  const spile__redis_address *address;
  size_t peer; /* where the next connect begins */
  int handle;  /* −1: not connected */
  redisReader *reader;
  spile__redis_buffer out; /* the commands of the next call */
  spile__redis_buffer in;  /* received and not yet read */
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

/*
 * Fails with what an unwanted reply says. The link is closed where it means that this server is the wrong one, and
 * where it is no error but an answer that the server may not give.
 */
int spile__redis_link_refused(spile__redis_link *link, const redisReply *reply, spile_error *error);

/* Whether a reply is an error whose first word is `word`. */
bool spile__redis_is_error(const redisReply *reply, const char *word);

void spile__redis_link_close(spile__redis_link *link);

/* ---- The store ---- */

typedef struct spile__redis_store {
  spile_store base;
  spile_env own_env;
  const spile_env *env; /* own_env */
  char key_prefix[SPILE__KEY_PREFIX_LEN_MAX + 1];
  bool given_time;
  spile__redis_address address;
  char script_sha[41];
  pthread_mutex_t lock; /* held by the call that uses what follows */
  spile__redis_link link;
  spile__redis_buffer scratch; /* names and arguments of the command being made */
  spile_clean_what clean_what; /* the walk that is under way … */
  char clean_cursor[24];       /* … and where it is; empty: at the start */
} spile__redis_store;

/* spile__redis_open over a transport of one's own. */
int spile__redis_open_over(spile_store **out, const spile__store_config *config, bool unix_socket,
                           const spile__redis_transport *transport, void *transport_user, spile_error *error);

/* Waits for the store until the deadline. @return SPILE_OK; SPILE_EUNAVAILABLE, busy */
int spile__redis_lock(spile__redis_store *store, int64_t deadline_ms, spile_error *error);

/* Runs one command, under the lock, that answers with an integer, which is not needed. */
int spile__redis_run(spile__redis_store *store, int argc, const char **argv, const size_t *argv_len,
                     int64_t deadline_ms, spile_error *error);

/* The given-time mark of instants in Redis: far enough ahead that the server never expires such a bucket. */
#define SPILE__REDIS_SHIFT_MS INT64_C(10000000000000)

int spile__redis_clean(spile_store *base, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                       spile_error *error);
int spile__redis_each(spile_store *base, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                      spile_error *error);

#endif
