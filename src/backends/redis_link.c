/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to a server, and one deadline for all that a call does on it: connecting, introducing ourselves,
 * sending, waiting for the reply. Each wait is for what is left until the deadline, so no slow drip of bytes can
 * stretch it.
 *
 * A link is either in step, with nothing sent that is not answered, or closed. After a timeout, an end of the stream, a
 * reply that is not one, or bytes that nobody asked for, nobody can say which reply belongs to which question, so there
 * is no repair: the link is closed and the next call makes a new one. A link that broke while idle has run nothing, so
 * it is replaced within the same call; once the first byte of a command was sent that is never done, since the command
 * may have run.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/address.h"
#include "backends/redis.h"

/* The version in numbers that the script needs: PEXPIRETIME came with Redis 7.0. */
#define VERSION_MAJOR_MIN 7

/* The longest pause between two attempts to connect to a unix socket that takes nobody in. */
#define CONNECT_PAUSE_MAX_MS 8

/* Enough for INFO; a take's reply is a few bytes for each bucket. */
static const spile__redis_bounds greeting_bounds = {.bulk_max = 65536, .elements_max = 0, .total_max = 70000};

void spile__redis_link_close(spile__redis_link *link) {
  if (link->handle >= 0)
    link->transport->close(link->transport_user, link->handle);
  link->handle = -1;
  link->in.len = 0;
  if (link->reader != NULL)
    redisReaderFree(link->reader);
  link->reader = NULL;
}

/* ---- Talking ---- */

static const char not_an_answer[] = "what came is no answer of a Redis server to this";

/* One exchange: what to send, what to expect, and how it went. */
typedef struct link_talk {
  const spile__redis_buffer *out;
  const spile__redis_bounds *bounds;
  size_t n;
  redisReply **replies;
  int64_t deadline_ms;
  bool greeting; /* nothing can be charged by it: what fails is the connection */
  bool sent;     /* out: the server may have seen something */
  spile_error *error;
} link_talk;

static int64_t link_left_ms(const spile__redis_link *link, int64_t deadline_ms) {
  return deadline_ms - link->env->monotonic_ms(link->env->user);
}

/* What to do about an exchange that failed. */
static const char *talk_advice(spile_reason reason) {
  if (reason == SPILE_REASON_TIMEOUT)
    return "; look at its load, or give it more time";
  if (reason == SPILE_REASON_CLOSED)
    return "; look at the server's log";
  return reason == SPILE_REASON_PROTOCOL ? "; is a proxy between?" : "; look at the server";
}

static int talk_fail(spile__redis_link *link, const link_talk *talk, spile_reason reason, const char *what) {
  spile__redis_link_close(link);
  bool unclear = !talk->greeting && talk->sent;
  if (talk->greeting && (reason == SPILE_REASON_TIMEOUT || reason == SPILE_REASON_CLOSED))
    reason = SPILE_REASON_CONNECT;
  /* The address is last: a decision keeps the beginning of a message. */
  return spile__store_fail(talk->error, SPILE_EUNAVAILABLE, reason, "%s; %s%s: %s", what,
                           unclear ? "whether the command ran is not known" : "nothing was charged",
                           talk_advice(reason), link->names->address->target);
}

static int talk_fail_memory(spile__redis_link *link, const link_talk *talk) {
  /* Once something was sent it is not enough that the fault is on this side: the answer that had no room is lost. */
  if (talk->sent && !talk->greeting)
    return talk_fail(link, talk, SPILE_REASON_CLOSED, "no memory for the answer, so the connection was closed");
  spile__redis_link_close(link);
  return spile__store_fail(talk->error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for a command and its answer");
}

/* Waits until the handle is ready. @return SPILE_OK, also when a signal came; else it failed */
static int talk_wait(spile__redis_link *link, const link_talk *talk, bool writable) {
  int64_t left_ms = link_left_ms(link, talk->deadline_ms);
  if (left_ms <= 0)
    return talk_fail(link, talk, SPILE_REASON_TIMEOUT, "no answer by the deadline");
  int ready = link->transport->wait(link->transport_user, link->handle, writable, left_ms);
  return ready < 0 ? talk_fail(link, talk, SPILE_REASON_IO, strerror(-ready)) : SPILE_OK;
}

static int talk_send(spile__redis_link *link, link_talk *talk) {
  size_t at = 0;
  while (at < talk->out->len) {
    ssize_t sent =
        link->transport->send(link->transport_user, link->handle, talk->out->bytes + at, talk->out->len - at);
    if (sent > 0) {
      at += (size_t)sent;
      talk->sent = true;
    } else if (sent != 0 && sent != -EAGAIN) {
      return talk_fail(link, talk, SPILE_REASON_CLOSED, strerror((int)-sent));
    } else {
      int result = talk_wait(link, talk, true);
      if (result != SPILE_OK)
        return result;
    }
  }
  return SPILE_OK;
}

/* Receives until one whole reply stands at the start of link->in. */
static int talk_receive(spile__redis_link *link, const link_talk *talk, size_t *size) {
  spile__redis_frame frame = {0};
  for (;;) {
    int complete = spile__redis_frame_scan(&frame, link->in.bytes, link->in.len, talk->bounds);
    *size = frame.at;
    if (complete > 0)
      return SPILE_OK;
    if (complete < 0)
      return talk_fail(link, talk, SPILE_REASON_PROTOCOL, not_an_answer);
    /* A piece of an answer leaves room for the rest: what a greeting needed is enough for nearly every take. */
    if (!spile__redis_buffer_reserve(link->env, &link->in, 1))
      return talk_fail_memory(link, talk);
    ssize_t received = link->transport->receive(link->transport_user, link->handle, link->in.bytes + link->in.len,
                                                link->in.size - link->in.len, false);
    if (received > 0) {
      link->in.len += (size_t)received;
      /* A server that never stops must not keep us past the deadline either. */
      if (link_left_ms(link, talk->deadline_ms) > 0)
        continue;
      complete = spile__redis_frame_scan(&frame, link->in.bytes, link->in.len, talk->bounds);
      if (complete == 0)
        return talk_fail(link, talk, SPILE_REASON_TIMEOUT, "no answer by the deadline");
    } else if (received == 0) {
      return talk_fail(link, talk, SPILE_REASON_CLOSED, "the server closed the connection before its answer");
    } else if (received != -EAGAIN) {
      return talk_fail(link, talk, SPILE_REASON_CLOSED, strerror((int)-received));
    } else {
      int result = talk_wait(link, talk, false);
      if (result != SPILE_OK)
        return result;
    }
  }
}

/* Parses the reply of `size` bytes at the start of link->in and takes it out. */
static int talk_parse(spile__redis_link *link, const link_talk *talk, size_t size, redisReply **out) {
  void *reply = NULL;
  bool parsed = redisReaderFeed(link->reader, link->in.bytes, size) == REDIS_OK &&
                redisReaderGetReply(link->reader, &reply) == REDIS_OK && reply != NULL;
  if (!parsed)
    return link->reader->err == REDIS_ERR_OOM ? talk_fail_memory(link, talk)
                                              : talk_fail(link, talk, SPILE_REASON_PROTOCOL, not_an_answer);
  link->in.len -= size;
  memmove(link->in.bytes, link->in.bytes + size, link->in.len);
  *out = reply;
  return SPILE_OK;
}

static void replies_free(redisReply **replies, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (replies[i] != NULL)
      freeReplyObject(replies[i]);
    replies[i] = NULL;
  }
}

static int talk_run(spile__redis_link *link, link_talk *talk) {
  for (size_t i = 0; i < talk->n; i++)
    talk->replies[i] = NULL;
  int result = talk_send(link, talk);
  for (size_t i = 0; i < talk->n && result == SPILE_OK; i++) {
    size_t size;
    result = talk_receive(link, talk, &size);
    if (result == SPILE_OK)
      result = talk_parse(link, talk, size, &talk->replies[i]);
  }
  if (result == SPILE_OK && link->in.len > 0)
    result = talk_fail(link, talk, SPILE_REASON_PROTOCOL, "more came than was asked for");
  if (result != SPILE_OK && !talk->greeting)
    replies_free(talk->replies, talk->n);
  return result;
}

/* ---- The greeting ---- */

/* Adds "AUTH …", "SELECT …", "CLIENT SETNAME spile" and "INFO server". */
static bool greeting_make(spile__redis_link *link, spile__redis_buffer *out, size_t *n) {
  const spile__redis_address *address = link->names->address;
  const char *auth[3] = {"AUTH"};
  int auth_argc = 1;
  if (address->user[0] != '\0')
    auth[auth_argc++] = address->user;
  auth[auth_argc++] = address->password;
  size_t auth_len[3];
  for (int i = 0; i < auth_argc; i++)
    auth_len[i] = strlen(auth[i]);
  char database[24];
  int database_len = snprintf(database, sizeof(database), "%lld", (long long)address->database);

  /* Room for all at once, so that no copy of the password stays behind in a block that was too small. */
  bool made = spile__redis_buffer_reserve(link->env, out, sizeof(address->user) + sizeof(address->password) + 512);
  *n = 2;
  if (address->password[0] != '\0') {
    made = made && spile__redis_command(link->env, out, auth_argc, auth, auth_len);
    ++*n;
  }
  if (address->database != 0) {
    made = made && spile__redis_command(link->env, out, 2, (const char *[]){"SELECT", database},
                                        (size_t[]){6, (size_t)database_len});
    ++*n;
  }
  return made &&
         spile__redis_command(link->env, out, 3, (const char *[]){"CLIENT", "SETNAME", "spile"}, (size_t[]){6, 7, 5}) &&
         spile__redis_command(link->env, out, 2, (const char *[]){"INFO", "server"}, (size_t[]){4, 6});
}

/* The number behind `name` in INFO's text, -1 when it is not there. */
static int info_major(const redisReply *info, const char *name) {
  const char *at = strstr(info->str, name);
  if (at == NULL)
    return -1;
  int major = 0;
  for (at += strlen(name); *at >= '0' && *at <= '9' && major < 1000; at++)
    major = major * 10 + (*at - '0');
  return major;
}

static int version_check(spile__redis_link *link, const redisReply *info, spile_error *error) {
  /* A user without the right to ask is believed; the script itself tells then. */
  if (spile__redis_is_error(info, "NOPERM"))
    return SPILE_OK;
  if (info->type != REDIS_REPLY_STRING)
    return spile__redis_link_refused(link, info, error);
  int redis = info_major(info, "\nredis_version:");
  int valkey = info_major(info, "\nvalkey_version:");
  if (redis >= VERSION_MAJOR_MIN || valkey >= VERSION_MAJOR_MIN)
    return SPILE_OK;
  spile__redis_link_close(link);
  if (redis < 0 && valkey < 0)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_VERSION,
                             "%s does not say which Redis it is; spile needs Redis 7.0 or later, or Valkey",
                             link->names->address->target);
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_VERSION,
                           "%s is Redis %d; spile needs Redis 7.0 or later, or Valkey", link->names->address->target,
                           redis);
}

/* Judges the replies in the order of the commands. */
static int greeting_judge(spile__redis_link *link, redisReply **replies, spile_error *error) {
  const spile__redis_address *address = link->names->address;
  if (address->password[0] != '\0') {
    redisReply *auth = *replies++;
    /* A server that does not know AUTH repeats its arguments, so its words are not passed on. */
    if (auth->type == REDIS_REPLY_ERROR && !spile__redis_is_error(auth, "LOADING")) {
      spile__redis_link_close(link);
      return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_AUTH,
                               "%s refuses the user or the password; correct them in the address or the environment",
                               address->target);
    }
  }
  if (address->database != 0) {
    redisReply *select = *replies++;
    if (select->type == REDIS_REPLY_ERROR)
      return spile__redis_link_refused(link, select, error);
  }
  redisReply *set_name = *replies++;
  if (set_name->type == REDIS_REPLY_ERROR && !spile__redis_is_error(set_name, "NOPERM"))
    return spile__redis_link_refused(link, set_name, error);
  return version_check(link, *replies, error);
}

/* Whether the server turned the connection away: one error, then the end. */
static bool greeting_turned_away(const redisReply *first) {
  return first != NULL &&
         (spile__redis_is_error(first, "DENIED") || spile__redis_is_error(first, "ERR max number of clients"));
}

static int link_greet(spile__redis_link *link, int64_t deadline_ms, spile_error *error) {
  spile__redis_buffer out = {0};
  redisReply *replies[4] = {NULL};
  spile_error failure = {0};
  link_talk talk = {.out = &out,
                    .bounds = &greeting_bounds,
                    .replies = replies,
                    .deadline_ms = deadline_ms,
                    .greeting = true,
                    .error = &failure};
  int result;
  link->reader = redisReaderCreate();
  /* It would replace a large empty buffer by a new one, and aborts when there is no memory for that. */
  if (link->reader != NULL)
    link->reader->maxbuf = 0;
  if (link->reader == NULL || !greeting_make(link, &out, &talk.n))
    result = talk_fail_memory(link, &talk);
  else
    result = talk_run(link, &talk);
  spile__redis_buffer_free(link->env, &out);
  if (greeting_turned_away(replies[0]))
    result = spile__redis_link_refused(link, replies[0], error);
  else if (result == SPILE_OK)
    result = greeting_judge(link, replies, error);
  else if (error != NULL && error->code == 0)
    *error = failure;
  replies_free(replies, talk.n);
  if (result != SPILE_OK)
    spile__redis_link_close(link);
  return result;
}

/* ---- Connecting ---- */

/*
 * Begins to connect. A unix socket says "try again" at once where TCP would wait: when more clients have come than the
 * server has taken in. So it is tried again, after a pause that grows.
 */
static int link_connect_begin(spile__redis_link *link, const spile__redis_peer *peer, int64_t deadline_ms,
                              bool *pending) {
  for (int64_t pause_ms = 1;; pause_ms = pause_ms < CONNECT_PAUSE_MAX_MS ? 2 * pause_ms : pause_ms) {
    int handle = link->transport->connect(link->transport_user, peer, pending);
    int64_t left_ms = link_left_ms(link, deadline_ms);
    if (handle != -EAGAIN || left_ms <= 0)
      return handle;
    (void)link->transport->wait(link->transport_user, -1, true, pause_ms < left_ms ? pause_ms : left_ms);
  }
}

/* Connects to one address. @return 0 or −errno; −ETIMEDOUT at the deadline */
static int link_connect_peer(spile__redis_link *link, const spile__redis_peer *peer, int64_t deadline_ms) {
  bool pending;
  int handle = link_connect_begin(link, peer, deadline_ms, &pending);
  if (handle < 0)
    return handle;
  int result = 0;
  while (pending && result == 0) {
    int64_t left_ms = link_left_ms(link, deadline_ms);
    int ready = left_ms > 0 ? link->transport->wait(link->transport_user, handle, true, left_ms) : -ETIMEDOUT;
    if (ready > 0) {
      pending = false;
      result = link->transport->connected(link->transport_user, handle);
    } else {
      result = ready;
    }
  }
  if (result != 0) {
    link->transport->close(link->transport_user, handle);
    return result;
  }
  link->handle = handle;
  return 0;
}

static const char *connect_failure_text(int failure) {
  if (failure == -ETIMEDOUT)
    return "no answer by the deadline";
  return failure == -EAGAIN ? "it is there and takes nobody in" : strerror(-failure);
}

static const char *connect_advice(int failure) {
  switch (failure) {
  case -ETIMEDOUT:
    return "look for a firewall, a stopped server or a wrong address";
  case -EAGAIN:
    return "look whether it is stopped or overloaded";
  case -EACCES:
  case -EPERM:
    return "give this user the right to the socket";
  case -EMFILE:
  case -ENFILE:
    return "raise the limit of open files";
  default:
    return "start the server or correct the address";
  }
}

/*
 * Connects to the first address that answers, beginning with the one that did last. Each gets an equal share of the
 * time that is left, so that one that swallows packets leaves time for the next.
 */
static int link_connect_route(spile__redis_link *link, const spile__redis_route *route, int64_t deadline_ms,
                              spile_error *error) {
  int failure = -ETIMEDOUT;
  link->generation = route->generation;
  link->peer = route->first;
  for (size_t tried = 0; tried < route->peers.n; tried++) {
    int64_t left_ms = link_left_ms(link, deadline_ms);
    if (left_ms <= 0)
      break;
    int64_t share_ms = left_ms / (int64_t)(route->peers.n - tried);
    failure =
        link_connect_peer(link, &route->peers.list[link->peer], deadline_ms - left_ms + (share_ms > 0 ? share_ms : 1));
    if (failure == 0)
      break;
    spile__redis_names_failed(link->names, link->generation, link->peer);
    link->peer = (link->peer + 1) % route->peers.n;
  }
  if (failure != 0)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_CONNECT,
                             "no connection: %s; nothing was charged; %s: %s", connect_failure_text(failure),
                             connect_advice(failure), link->names->address->target);
  int result = link_greet(link, deadline_ms, error);
  if (result == SPILE_OK)
    spile__redis_names_answered(link->names, link->generation, link->peer);
  else
    spile__redis_names_failed(link->names, link->generation, link->peer);
  return result;
}

static int link_connect(spile__redis_link *link, int64_t deadline_ms, spile_error *error) {
  spile__redis_route route;
  spile__redis_names_read(link->names, deadline_ms, &route);
  if (route.peers.n == 0)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_RESOLVE,
                             "%s has no address (%s); correct the name or the name server; it is looked up again",
                             link->names->address->target, route.why != NULL ? route.why : "none found");
  int64_t before_ms = link_left_ms(link, deadline_ms);
  int result = link_connect_route(link, &route, deadline_ms, error);
  int64_t after_ms = link_left_ms(link, deadline_ms);
  link->connect_late = result != SPILE_OK && after_ms <= 0;
  /* What was refused at once says nothing about how long connecting takes. */
  if (result == SPILE_OK || link->connect_late)
    link->connect_ms = before_ms - after_ms;
  return result;
}

/* Whether an idle link leads where it should, is still there and has nothing to say. */
static bool link_is_idle(spile__redis_link *link) {
  if (link->handle < 0 || link->generation != atomic_load(&link->names->generation))
    return false;
  char byte;
  ssize_t received = link->transport->receive(link->transport_user, link->handle, &byte, 1, true);
  return received == -EAGAIN;
}

/* Talks, and notes for the pool how it went. */
static int link_exchange(spile__redis_link *link, link_talk *talk) {
  int result = talk_run(link, talk);
  if (result == SPILE_OK)
    link->exchanges++;
  else
    link->exchange_late = link_left_ms(link, talk->deadline_ms) <= 0;
  return result;
}

int spile__redis_link_call(spile__redis_link *link, int64_t deadline_ms, const spile__redis_bounds *bounds, size_t n,
                           redisReply **replies, spile_error *error) {
  link_talk talk = {
      .out = &link->out, .bounds = bounds, .n = n, .replies = replies, .deadline_ms = deadline_ms, .error = error};
  for (size_t i = 0; i < n; i++)
    replies[i] = NULL;
  if (link_left_ms(link, deadline_ms) <= 0) {
    link->out.len = 0;
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_BUSY,
                             "the time for the call to %s was over before anything was sent; nothing was charged",
                             link->names->address->target);
  }
  int result = SPILE_OK;
  if (link_is_idle(link)) {
    /* The server may close it just now; that is not yet a failure, as long as nothing was sent. */
    spile_error ignored = {0};
    talk.error = &ignored;
    result = link_exchange(link, &talk);
    if (result == SPILE_OK || talk.sent || result == SPILE_ENOMEM) {
      if (error != NULL && error->code == 0)
        *error = ignored;
      link->out.len = 0;
      return result;
    }
    talk.error = error;
  }
  spile__redis_link_close(link);
  result = link_connect(link, deadline_ms, error);
  if (result == SPILE_OK)
    result = link_exchange(link, &talk);
  link->out.len = 0;
  return result;
}
