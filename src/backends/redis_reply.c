/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the errors of a server mean: one table for all of them.
 *
 * An error that a server answers with is the best of failures: the command did not run, so nothing was charged. It is
 * still not sent again, except after NOSCRIPT, which the table says; the next take asks anew. The connection is kept
 * where the same server may answer the next command, and closed where another one should be looked for or where the
 * server is about to close it itself.
 */
#include <string.h>

#include "backends/address.h"
#include "backends/redis.h"

#define RIGHTS "give it the rights of docs/stores.md"
#define ONE_SERVER "it is a node of a cluster; point the address at one server that is not"

/* Tried in this order. A word is the first of the reply; with a blank in it, it is how the whole reply begins. */
static const spile__redis_refusal refusals[] = {
    {"NOSCRIPT", SPILE_REASON_REFUSED, .again = true, .advice = "it forgets scripts as soon as they are loaded"},
    {"READONLY", SPILE_REASON_READONLY, .close = true, .wrong = true, .advice = "point the address at the primary"},
    {"LOADING", SPILE_REASON_LOADING, .advice = "it answers when its data is read"},
    {"MASTERDOWN", SPILE_REASON_REFUSED, .close = true, .wrong = true, .advice = "it is a replica without its primary"},
    {"MOVED", SPILE_REASON_REFUSED, .close = true, .advice = ONE_SERVER},
    {"ASK", SPILE_REASON_REFUSED, .close = true, .advice = ONE_SERVER},
    {"CROSSSLOT", SPILE_REASON_REFUSED, .advice = ONE_SERVER},
    {"CLUSTERDOWN", SPILE_REASON_REFUSED, .advice = ONE_SERVER},
    {"TRYAGAIN", SPILE_REASON_REFUSED, .advice = ONE_SERVER},
    {"OOM", SPILE_REASON_OOM, .advice = "give the server more memory"},
    {"MISCONF", SPILE_REASON_REFUSED, .advice = "it cannot save its data; look at its disk and its log"},
    {"BUSY", SPILE_REASON_REFUSED, .advice = "it runs a script of somebody that does not end"},
    {"NOREPLICAS", SPILE_REASON_REFUSED, .advice = "it has fewer replicas than it was told to have"},
    {"NOAUTH", SPILE_REASON_AUTH, .close = true, .advice = "put a password in the address or in SPILE_REDIS_PASSWORD"},
    {"WRONGPASS", SPILE_REASON_AUTH, .close = true, .advice = "correct the user and the password"},
    {"NOPERM", SPILE_REASON_AUTH, .advice = RIGHTS},
    {"ERR The user executing the script", SPILE_REASON_AUTH, .advice = RIGHTS},
    {"DENIED", SPILE_REASON_AUTH, .close = true, .advice = "set a password on the server or let it accept this host"},
    {"WRONGTYPE", SPILE_REASON_FOREIGN, .advice = "use another key prefix, or remove the key"},
    {"FOREIGN", SPILE_REASON_FOREIGN, .advice = "use another key prefix, or remove the key"},
    {"VERSION", SPILE_REASON_FORMAT, .advice = "use a newer spile, or another key prefix"},
    {"ERR max number of clients", SPILE_REASON_REFUSED, .close = true, .advice = "raise its maxclients"},
    {"ERR invalid password", SPILE_REASON_AUTH, .close = true, .advice = "correct the password"},
    {"ERR value is not an integer", SPILE_REASON_FOREIGN, .advice = "use another key prefix, or remove the key"},
    {"ERR unknown command", SPILE_REASON_REFUSED,
     .advice = "spile needs EVALSHA and SCRIPT LOAD of Redis 7.0 or later"},
    {"ERR Unknown Redis command called from script", SPILE_REASON_REFUSED,
     .advice = "do not rename the commands of docs/stores.md"},
    {"ERR DB index is out of range", SPILE_REASON_REFUSED, .advice = "use a database that the server has"},
};

static const spile__redis_refusal refusal_other = {"", SPILE_REASON_REFUSED, .advice = NULL};

const spile__redis_refusal *spile__redis_refusals(size_t *n) {
  *n = sizeof(refusals) / sizeof(refusals[0]);
  return refusals;
}

static bool text_begins(const char *text, const char *word) {
  size_t len = strlen(word);
  bool words = strchr(word, ' ') != NULL;
  return strncmp(text, word, len) == 0 && (words || text[len] == ' ' || text[len] == '\0');
}

bool spile__redis_is_error(const redisReply *reply, const char *word) {
  return reply->type == REDIS_REPLY_ERROR && text_begins(reply->str, word);
}

static const spile__redis_refusal *refusal_find(const char *text) {
  for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
    if (text_begins(text, refusals[i].word))
      return &refusals[i];
  }
  return NULL;
}

/*
 * Where the error proper begins. Servers before 7.0, and what imitates them, wrap what a command within a script says:
 * "ERR Error running script (call to f_…): @user_script:1: -READONLY …", or from "@user_script" on. Nothing else is
 * unwrapped, since other errors repeat arguments, and a key could then say what it likes.
 */
static const char *text_unwrap(const char *text) {
  if (text[0] != '@' && strncmp(text, "ERR Error running script", 24) != 0)
    return text;
  const char *inner = text;
  for (const char *at = text; (at = strstr(at, " -")) != NULL; at += 2)
    inner = at + 2;
  return inner;
}

const spile__redis_refusal *spile__redis_refusal_of(const char *text) {
  const spile__redis_refusal *refusal = refusal_find(text_unwrap(text));
  return refusal != NULL ? refusal : &refusal_other;
}

/* How much of a message certainly reaches the caller: a decision keeps so many characters of it. */
#define TOLD_LEN (sizeof(((spile_decision *)0)->detail) - 1)

/*
 * The server's words, and our advice, which is never cut off. Behind its words a server names the place in the script;
 * that is left out, since its hash would fill the message, and so is the wrapping, and where later servers say that a
 * right is missing: which one it is stands at the end.
 */
static int refusal_fail(const spile__redis_refusal *refusal, const char *text, spile_error *error) {
  const char *advice = refusal->advice != NULL ? refusal->advice : "nothing was charged";
  const char *words = text_unwrap(text);
  static const char acl[] = "NOPERM ACL failure in script: ";
  if (strncmp(words, acl, strlen(acl)) == 0)
    words += strlen(acl);
  const char *place = strstr(words, " script: ");
  size_t len = place != NULL ? (size_t)(place - words) : strlen(words);
  size_t room = TOLD_LEN - strlen("the server says \"\"; ") - strlen(advice);
  return spile__store_fail(error, SPILE_EUNAVAILABLE, refusal->reason, "the server says \"%.*s\"; %s",
                           (int)(len < room ? len : room), words, advice);
}

int spile__redis_link_refused(spile__redis_link *link, const redisReply *reply, spile_error *error) {
  if (reply->type != REDIS_REPLY_ERROR) {
    spile__redis_link_close(link);
    return spile__store_fail(
        error, SPILE_EUNAVAILABLE, SPILE_REASON_PROTOCOL,
        "the answer does not belong to the command (a proxy between?); whether the command ran is not known: %s",
        link->names->address->target);
  }
  const spile__redis_refusal *refusal = spile__redis_refusal_of(reply->str);
  if (refusal->close && spile__redis_names_refused(link->names, link->generation, link->peer, refusal->wrong))
    spile__redis_link_close(link);
  return refusal_fail(refusal, reply->str, error);
}
