/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over what is stored, a page of SCAN at a time, so that neither the server nor a link is held for long.
 *
 * Buckets on the server's own clock end by themselves: cleaning is for those whose time was given, which the server
 * never expires.
 */
#include <stdio.h>
#include <string.h>

#include "backends/address.h"
#include "backends/redis.h"
#include "core/algorithm.h"
#include "core/checked.h"

/* How many keys the server is asked to look at for one page. It may return some more. */
#define PAGE_COUNT "256"

/* Names of others may match the pattern as well and be longer than ours, up to a point. */
static const spile__redis_bounds page_bounds = {
    .bulk_max = 65536, .elements_max = 65536, .total_max = 16 * 1024 * 1024};
static const spile__redis_bounds value_bounds = {.bulk_max = 9216, .elements_max = 0, .total_max = 10240};

/* A value longer than this is not a bucket. */
#define VALUE_LEN_MAX 127

/* But for a log: a shape, two bytes, and its entries. */
#define LOG_ENTRY_LEN 8
#define LOG_VALUE_LEN_MAX (64 + 2 + LOG_ENTRY_LEN * SPILE__LOG_MAX)

/* How many keys one command or one pipeline names. */
#define BATCH_MAX 128

/* Removes the keys whose bucket is full at the given time and past the tolerance; what a take moved meanwhile stays. */
static const char sweep_script[] = "local removed = 0\n"
                                   "for i = 1, #KEYS do\n"
                                   "  local expires = redis.call('PEXPIRETIME', KEYS[i])\n"
                                   "  if expires >= 1e13 and expires <= tonumber(ARGV[1]) then\n"
                                   "    removed = removed + redis.call('UNLINK', KEYS[i])\n"
                                   "  end\n"
                                   "end\n"
                                   "return removed\n";

/* ---- One page of SCAN ---- */

typedef struct list_page {
  redisReply *reply;
  redisReply **keys;
  size_t n;
} list_page;

/* Reads the page at `cursor` and moves it on; "0" is the start and the end. */
static int page_read(spile__redis_link *link, const char *pattern, char cursor[24], int64_t deadline_ms,
                     list_page *page, spile_error *error) {
  const char *argv[6] = {"SCAN", cursor, "MATCH", pattern, "COUNT", PAGE_COUNT};
  size_t argv_len[6];
  for (int i = 0; i < 6; i++)
    argv_len[i] = strlen(argv[i]);
  link->out.len = 0;
  if (!spile__redis_command(link->env, &link->out, 6, argv, argv_len))
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for the command");
  redisReply *reply;
  int result = spile__redis_link_call(link, deadline_ms, &page_bounds, 1, &reply, error);
  if (result != SPILE_OK)
    return result;
  bool valid = reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
               reply->element[0]->type == REDIS_REPLY_STRING && reply->element[0]->len > 0 &&
               reply->element[0]->len < 24 && reply->element[1]->type == REDIS_REPLY_ARRAY;
  for (size_t i = 0; valid && i < reply->element[1]->elements; i++)
    valid = reply->element[1]->element[i]->type == REDIS_REPLY_STRING;
  if (!valid) {
    result = spile__redis_link_refused(link, reply, error);
    freeReplyObject(reply);
    return result;
  }
  memcpy(cursor, reply->element[0]->str, reply->element[0]->len + 1);
  *page = (list_page){.reply = reply, .keys = reply->element[1]->element, .n = reply->element[1]->elements};
  return SPILE_OK;
}

/* Takes a bucket's name apart, in a copy. @return false when it is not the name of a bucket */
static bool name_decode(const redisReply *name, char copy[SPILE__REDIS_NAME_LEN_MAX], spile__redis_key *out) {
  if (name->len > SPILE__REDIS_NAME_LEN_MAX)
    return false;
  memcpy(copy, name->str, name->len);
  return spile__redis_key_decode(copy, name->len, out);
}

/* ---- Clean ---- */

/* Removes the buckets of a given time among [from, from + n), or of these only the ones that are full at now_ms. */
static int batch_remove(spile__redis_link *link, redisReply **from, size_t n, const char *full_at, int64_t deadline_ms,
                        spile_error *error) {
  const char *argv[3 + BATCH_MAX + 1];
  size_t argv_len[3 + BATCH_MAX + 1];
  char count[24];
  char copy[SPILE__REDIS_NAME_LEN_MAX];
  int argc = full_at != NULL ? 3 : 1;
  const int first = argc;
  for (size_t i = 0; i < n; i++) {
    spile__redis_key key;
    if (!name_decode(from[i], copy, &key) || !key.simulated)
      continue;
    argv[argc] = from[i]->str;
    argv_len[argc++] = from[i]->len;
  }
  const int n_keys = argc - first;
  if (n_keys == 0)
    return SPILE_OK;
  if (full_at != NULL) {
    (void)snprintf(count, sizeof(count), "%d", n_keys);
    argv[0] = "EVAL";
    argv[1] = sweep_script;
    argv[2] = count;
    argv[argc] = full_at;
    for (int i = 0; i < 3; i++)
      argv_len[i] = strlen(argv[i]);
    argv_len[argc++] = strlen(full_at);
  } else {
    argv[0] = "UNLINK";
    argv_len[0] = 6;
  }

  return spile__redis_remove(link, argc, argv, argv_len, n_keys, deadline_ms, error);
}

/* The walk goes on where the last step of its kind ended, and moves only when a page is done. */
static void cursor_load(spile__redis_store *store, spile_clean_what what, char cursor[24]) {
  (void)pthread_mutex_lock(&store->clean_lock);
  bool known = store->clean_what == what && store->clean_cursor[0] != '\0';
  (void)snprintf(cursor, 24, "%s", known ? store->clean_cursor : "0");
  (void)pthread_mutex_unlock(&store->clean_lock);
}

static void cursor_save(spile__redis_store *store, spile_clean_what what, const char cursor[24]) {
  (void)pthread_mutex_lock(&store->clean_lock);
  store->clean_what = what;
  memcpy(store->clean_cursor, cursor, sizeof(store->clean_cursor));
  (void)pthread_mutex_unlock(&store->clean_lock);
}

static int clean_page(spile__redis_store *store, spile__redis_link *link, spile_clean_what what, int64_t now_ms,
                      int64_t deadline_ms, bool *again, spile_error *error) {
  char pattern[96];
  if (what == SPILE_CLEAN_SIMULATED)
    (void)snprintf(pattern, sizeof(pattern), "%s*", SPILE__REDIS_MARK);
  else
    (void)snprintf(pattern, sizeof(pattern), "%s%s:{*", SPILE__REDIS_MARK, store->key_prefix);
  char full_at[24];
  (void)snprintf(full_at, sizeof(full_at), "%lld", (long long)(now_ms + SPILE__REDIS_SHIFT_MS));

  char cursor[24];
  cursor_load(store, what, cursor);
  list_page page;
  int result = page_read(link, pattern, cursor, deadline_ms, &page, error);
  if (result != SPILE_OK)
    return result;
  for (size_t i = 0; i < page.n && result == SPILE_OK; i += BATCH_MAX)
    result = batch_remove(link, page.keys + i, page.n - i < BATCH_MAX ? page.n - i : BATCH_MAX,
                          what == SPILE_CLEAN_FULL ? full_at : NULL, deadline_ms, error);
  freeReplyObject(page.reply);
  if (result != SPILE_OK)
    return result;
  cursor_save(store, what, cursor);
  *again = strcmp(cursor, "0") != 0;
  return SPILE_OK;
}

int spile__redis_clean(spile_store *base, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                       spile_error *error) {
  spile__redis_store *store = (spile__redis_store *)base;
  *again = false;
  bool own_time = what == SPILE_CLEAN_FULL ? now_ms == SPILE_STORE_TIME : !store->given_time;
  if (what != SPILE_CLEAN_SIMULATED && own_time)
    return SPILE_OK;
  spile__redis_link *link;
  int result = spile__redis_borrow(store, deadline_ms, &link, error);
  if (result != SPILE_OK)
    return result;
  result = clean_page(store, link, what, now_ms, deadline_ms, again, error);
  spile__redis_return(store, link);
  return result;
}

/* ---- Each ---- */

/*
 * Reads what stands behind the mark of a bucket whose state is one instant: "capacity:N:P:", "capacity:N:P:debt:" and a
 * remainder. full_at_ms is set already.
 */
static bool instant_parse(const char *at, const char *end, spile__state *out) {
  int64_t numbers[5] = {0};
  int n = 0;
  for (const char *colon; (colon = memchr(at, ':', (size_t)(end - at))) != NULL; at = colon + 1) {
    char text[24];
    size_t len = (size_t)(colon - at);
    if (n == 4 || len >= sizeof(text))
      return false;
    memcpy(text, at, len);
    text[len] = '\0';
    if (!spile__number_parse(text, 1, INT64_MAX, &numbers[n++]))
      return false;
  }
  if (n < 3 || (at < end && !spile__number_parse(at, 1, INT64_MAX, &numbers[4])))
    return false;
  out->shape = (spile_shape){.capacity = numbers[0], .refill = numbers[1], .period_ms = numbers[2], .debt = numbers[3]};
  out->bucket.rem = numbers[4];
  return true;
}

/*
 * Reads what stands behind the mark of a window: "capacity:window=" and the numbers of its state but the first, which
 * is the start that full_at_ms tells.
 */
static bool window_parse(const char *at, const char *end, spile_algorithm algorithm, int64_t full_at_ms,
                         spile__state *out) {
  const spile__algorithm *table = spile__algorithm_get(algorithm);
  int64_t numbers[4] = {0};
  size_t count = 1 + table->numbers;
  char text[VALUE_LEN_MAX + 1];
  memcpy(text, at, (size_t)(end - at));
  text[end - at] = '\0';
  char *from = text;
  for (size_t i = 0; i < count; i++) {
    char *to = from + strcspn(from, ":=");
    bool last = i + 1 == count;
    if (*to != (last ? '\0' : i == 1 ? '=' : ':'))
      return false;
    *to = '\0';
    if (!spile__number_parse(from, 0, INT64_MAX, &numbers[i]))
      return false;
    from = to + 1;
  }
  out->shape = (spile_shape){.capacity = numbers[0], .refill = 1, .period_ms = numbers[1]};
  if (!table->shape_valid(&out->shape))
    return false;
  memcpy(out->numbers + 1, numbers + 2, (table->numbers - 1) * sizeof(numbers[0]));
  out->window.start_ms = 0;
  out->window.start_ms = full_at_ms - table->full_at_ms(out);
  return true;
}

/*
 * Reads what stands behind the mark of a log: "capacity:window=", and the state as lua/take.lua tells. Its instants are
 * those of the call's clock, so not shifted.
 */
static bool log_parse(const char *at, const char *end, spile__state *out) {
  const unsigned char *state = memchr(at, '=', (size_t)(end - at));
  const char *colon = state != NULL ? memchr(at, ':', (size_t)((const char *)state - at)) : NULL;
  char text[2][24] = {{0}};
  int64_t numbers[2];
  if (colon == NULL || colon - at >= 24 || (const char *)state - colon > 24)
    return false;
  memcpy(text[0], at, (size_t)(colon - at));
  memcpy(text[1], colon + 1, (size_t)((const char *)state - colon - 1));
  if (!spile__number_parse(text[0], 1, INT64_MAX, &numbers[0]) ||
      !spile__number_parse(text[1], 1, INT64_MAX, &numbers[1]))
    return false;
  out->shape = (spile_shape){.capacity = numbers[0], .refill = 1, .period_ms = numbers[1]};
  state++;
  size_t len = (size_t)((const unsigned char *)end - state);
  if (len < 2 + LOG_ENTRY_LEN || (len - 2) % LOG_ENTRY_LEN != 0 || (len - 2) / LOG_ENTRY_LEN > SPILE__LOG_MAX)
    return false;
  out->n = (len - 2) / LOG_ENTRY_LEN;
  unsigned taken = (unsigned)state[0] << 8 | state[1];
  for (size_t i = 0; i < out->n; i++) {
    const unsigned char *entry = state + 2 + LOG_ENTRY_LEN * i;
    int64_t at_ms = 0;
    for (int j = 0; j < 6; j++)
      at_ms = at_ms << 8 | entry[j];
    unsigned now_taken = (unsigned)entry[6] << 8 | entry[7];
    unsigned tokens = (now_taken - taken) & 0xffff;
    if (tokens > SPILE__LOG_MAX)
      return false;
    out->log[i] = spile__log_entry(at_ms, tokens);
    taken = now_taken;
  }
  return true;
}

/* Reads the value of a bucket of this algorithm that is full at full_at_ms. @return false when it is none */
static bool value_parse(const redisReply *reply, spile_algorithm algorithm, int64_t full_at_ms, spile__state *out) {
  const spile__algorithm *table = spile__algorithm_get(algorithm);
  size_t mark_len = strlen(table->mark);
  size_t len_max = table->log ? LOG_VALUE_LEN_MAX : VALUE_LEN_MAX;
  if (reply->type != REDIS_REPLY_STRING || reply->len > len_max || reply->len <= mark_len ||
      memcmp(reply->str, table->mark, mark_len) != 0)
    return false;
  const char *at = reply->str + mark_len;
  const char *end = reply->str + reply->len;
  out->bucket.full_at_ms = full_at_ms;
  bool read = table->instant ? instant_parse(at, end, out)
              : table->log   ? log_parse(at, end, out)
                             : window_parse(at, end, algorithm, full_at_ms, out);
  return read && table->shape_valid(&out->shape) && table->state_valid(out) &&
         (!table->log || table->full_at_ms(out) == full_at_ms);
}

/*
 * Fills what is shown of one bucket from the replies to GETRANGE, PEXPIRETIME and PTTL.
 * @param now_ms  as in a call; simulated buckets of a store on its own clock are shown as of the server's
 * @return false when it is not a bucket, or has just gone
 */
static bool stored_fill(const spile__redis_key *key, redisReply **replies, int64_t now_ms, spile_stored *out) {
  spile__state state;
  if (replies[1]->type != REDIS_REPLY_INTEGER || replies[2]->type != REDIS_REPLY_INTEGER || replies[1]->integer < 0 ||
      replies[2]->integer < 0)
    return false;
  if (now_ms == SPILE_STORE_TIME)
    now_ms = replies[1]->integer - replies[2]->integer;
  int64_t shift_ms = key->simulated ? SPILE__REDIS_SHIFT_MS : 0;
  int64_t full_at_ms = replies[1]->integer - shift_ms - SPILE__TOLERANCE_MS;
  if (now_ms < 0 || now_ms > SPILE_TIME_MAX_MS || !value_parse(replies[0], key->algorithm, full_at_ms, &state))
    return false;
  *out = spile__stored_make(key->algorithm, &state, now_ms);
  out->key = key->key;
  out->key_len = key->key_len;
  out->name = key->name;
  out->name_len = key->name_len;
  out->simulated = key->simulated;
  return true;
}

/* Whether the key of these replies is no longer there. */
static bool has_gone(redisReply **replies) {
  return (replies[1]->type == REDIS_REPLY_INTEGER && replies[1]->integer == -2) ||
         (replies[2]->type == REDIS_REPLY_INTEGER && replies[2]->integer == -2);
}

/* Whether a name may be that of a log, whose values are long. */
static bool name_is_log(const redisReply *name) {
  const char *word = spile__algorithm_get(SPILE_SLIDING_LOG)->name;
  size_t len = strlen(word);
  return name->len > len && memcmp(name->str + name->len - len, word, len) == 0;
}

/* Asks for value, expiry and time to live of n keys at once. */
static int batch_read(spile__redis_store *store, redisReply **keys, size_t n, int64_t timeout_ms, redisReply **replies,
                      spile_error *error) {
  spile__redis_link *link;
  int64_t deadline_ms = store->env->monotonic_ms(store->env->user) + timeout_ms;
  int result = spile__redis_borrow(store, deadline_ms, &link, error);
  if (result != SPILE_OK)
    return result;
  bool made = true;
  link->out.len = 0;
  for (size_t i = 0; i < n && made; i++) {
    /* Not GET: what lies under a name of ours may be somebody's large value. */
    const char *last = name_is_log(keys[i]) ? "8191" : "127";
    made = spile__redis_command(link->env, &link->out, 4, (const char *[]){"GETRANGE", keys[i]->str, "0", last},
                                (size_t[]){8, keys[i]->len, 1, strlen(last)}) &&
           spile__redis_command(link->env, &link->out, 2, (const char *[]){"PEXPIRETIME", keys[i]->str},
                                (size_t[]){11, keys[i]->len}) &&
           spile__redis_command(link->env, &link->out, 2, (const char *[]){"PTTL", keys[i]->str},
                                (size_t[]){4, keys[i]->len});
  }
  result = made ? spile__redis_link_call(link, deadline_ms, &value_bounds, 3 * n, replies, error)
                : spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "no memory for the command");
  spile__redis_return(store, link);
  return result;
}

/* One walk and what it shows. */
typedef struct list_walk {
  int64_t now_ms;
  int64_t timeout_ms; /* of each step */
  spile_visitor *visit;
  void *user;
  bool ended;       /* the visitor has seen enough */
  uint64_t foreign; /* keys that are no buckets */
  spile_error *error;
} list_walk;

/* The visitor runs while no link is borrowed, so that it may use the store. */
static int page_show(spile__redis_store *store, list_walk *walk, const list_page *page) {
  for (size_t from = 0; from < page->n && !walk->ended; from += BATCH_MAX) {
    size_t n = page->n - from < BATCH_MAX ? page->n - from : BATCH_MAX;
    redisReply *replies[3 * BATCH_MAX];
    int result = batch_read(store, page->keys + from, n, walk->timeout_ms, replies, walk->error);
    if (result != SPILE_OK)
      return result;
    for (size_t i = 0; i < n && !walk->ended; i++) {
      char copy[SPILE__REDIS_NAME_LEN_MAX];
      spile__redis_key key;
      spile_stored stored;
      if (name_decode(page->keys[from + i], copy, &key) && stored_fill(&key, &replies[3 * i], walk->now_ms, &stored))
        walk->ended = !walk->visit(walk->user, &stored);
      else if (!has_gone(&replies[3 * i]))
        walk->foreign++;
    }
    for (size_t i = 0; i < 3 * n; i++)
      freeReplyObject(replies[i]);
  }
  return SPILE_OK;
}

static int walk_run(spile__redis_store *store, list_walk *walk, bool simulated) {
  char pattern[96];
  (void)snprintf(pattern, sizeof(pattern), "%s%s:{*", simulated ? SPILE__REDIS_MARK : "", store->key_prefix);
  char cursor[24] = "0";
  int result;
  do {
    list_page page;
    int64_t deadline_ms = store->env->monotonic_ms(store->env->user) + walk->timeout_ms;
    spile__redis_link *link;
    result = spile__redis_borrow(store, deadline_ms, &link, walk->error);
    if (result != SPILE_OK)
      return result;
    result = page_read(link, pattern, cursor, deadline_ms, &page, walk->error);
    spile__redis_return(store, link);
    if (result != SPILE_OK)
      return result;
    result = page_show(store, walk, &page);
    freeReplyObject(page.reply);
  } while (result == SPILE_OK && !walk->ended && strcmp(cursor, "0") != 0);
  return result;
}

int spile__redis_each(spile_store *base, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                      spile_error *error) {
  spile__redis_store *store = (spile__redis_store *)base;
  list_walk walk = {.now_ms = now_ms, .timeout_ms = timeout_ms, .visit = visit, .user = user, .error = error};
  int result = store->given_time ? SPILE_OK : walk_run(store, &walk, false);
  if (result == SPILE_OK && !walk.ended)
    result = walk_run(store, &walk, true);
  if (walk.foreign > 0) {
    char line[200];
    (void)snprintf(line, sizeof(line),
                   "redis: left out %llu keys under \"%s:\" that are no buckets of this version; takes of them fail",
                   (unsigned long long)walk.foreign, store->key_prefix);
    store->env->log(store->env->log_user, SPILE_LOG_WARNING, line);
  }
  return result;
}
