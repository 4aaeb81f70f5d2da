/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over what is stored: the sweep, cleaning, making room, showing.
 *
 * A walk goes through ranges of keys that begin alike, a bounded number of buckets at a time, and remembers the next
 * one. Removing is done in transactions of few buckets: LMDB copies a page before it changes it, so even deleting needs
 * room, and one big delete would fail on the full map it is to relieve.
 *
 * On the wall clock a bucket that was full for a second (the clock tolerance) may go at any time, whoever made it: it
 * decides as an absent one does. Every sixteenth new bucket drops what it finds among the next sixty-four, four for
 * each that came, so the size follows the live keys. Buckets of given times know another time than the sweep, which
 * leaves them alone; they go to make room for one of their own, or when told.
 */
#include <string.h>

#include "backends/address.h"
#include "backends/lmdb_store.h"
#include "core/algorithm.h"
#include "core/checked.h"
#include "core/record.h"

#define SWEEP_EVERY 16
#define SWEEP_LOOKS 64
#define READER_CHECK_EVERY 1024
#define ROOM_SWEEPS 4
#define CLEAN_LOOKS 256
#define REMOVED_MAX 64
#define EACH_LOOKS 256
#define EACH_SHOWN 32

_Static_assert(READER_CHECK_EVERY % SWEEP_EVERY == 0, "readers are checked with a sweep");

/* Which buckets a walk is about. */
typedef struct walk_rule {
  unsigned char kinds[4]; /* first bytes of keys */
  size_t kind_count;
  const char *prefix; /* NULL: any */
  bool full;          /* only those that are full … */
  int64_t full_by_ms; /* … by then */
} walk_rule;

typedef struct walker {
  const walk_rule *rule;
  spile__lmdb_place *place;
  MDB_cursor *cursor;
  spile__lmdb_key range;
  bool inside; /* the cursor stands in the range */
  MDB_val key;
  MDB_val value;
  int result; /* of LMDB, when it ended early */
} walker;

static walk_rule rule_production(void) {
  return (walk_rule){.kinds = {SPILE__LMDB_PRODUCTION, SPILE__LMDB_PRODUCTION | SPILE__LMDB_HASHED}, .kind_count = 2};
}

static walk_rule rule_simulated(const char *prefix) {
  return (walk_rule){
      .kinds = {SPILE__LMDB_SIMULATED, SPILE__LMDB_SIMULATED | SPILE__LMDB_HASHED}, .kind_count = 2, .prefix = prefix};
}

static walk_rule rule_full(const spile__lmdb_store *store, int64_t now_ms) {
  walk_rule rule = store->given_time ? rule_simulated(store->key_prefix) : rule_production();
  rule.full = true;
  rule.full_by_ms = store->given_time ? now_ms : now_ms - SPILE__TOLERANCE_MS;
  return rule;
}

/* The range of this number: all kinds, and with a prefix all kinds for each algorithm in turn. */
static bool walk_range(walker *walk) {
  const walk_rule *rule = walk->rule;
  size_t kind = walk->place->range % rule->kind_count;
  size_t round = walk->place->range / rule->kind_count;
  spile_algorithm algorithm = (spile_algorithm)(round < 255 ? round + 1 : 0);
  if (rule->prefix == NULL ? round > 0 : spile__algorithm_get(algorithm) == NULL)
    return false;
  spile__lmdb_key_range(&walk->range, rule->kinds[kind], algorithm, rule->prefix);
  return true;
}

static int walk_begin(walker *walk, const walk_rule *rule, spile__lmdb_place *place, MDB_txn *txn, MDB_dbi dbi) {
  *walk = (walker){.rule = rule, .place = place};
  return mdb_cursor_open(txn, dbi, &walk->cursor);
}

static bool walk_in_range(const walker *walk) {
  return walk->key.mv_size > walk->range.len && memcmp(walk->key.mv_data, walk->range.bytes, walk->range.len) == 0;
}

/* Goes to the next bucket. @return false at the end, or on a failure that `result` tells */
static bool walk_next(walker *walk) {
  for (;;) {
    MDB_cursor_op step = MDB_NEXT;
    if (!walk->inside) {
      if (!walk_range(walk))
        return false;
      spile__lmdb_key *from = walk->place->key.len > 0 ? &walk->place->key : &walk->range;
      walk->key = (MDB_val){from->len, from->bytes};
      step = MDB_SET_RANGE;
    }
    int result = mdb_cursor_get(walk->cursor, &walk->key, &walk->value, step);
    walk->inside = result == 0 && walk_in_range(walk);
    if (walk->inside)
      return true;
    if (result != 0 && result != MDB_NOTFOUND) {
      walk->result = result;
      return false;
    }
    walk->place->range++;
    walk->place->key.len = 0;
  }
}

/* Ends the walk before the bucket it has reached; the next one begins there. */
static void walk_pause(walker *walk) {
  walk->place->key.len = walk->key.mv_size;
  memcpy(walk->place->key.bytes, walk->key.mv_data, walk->key.mv_size);
}

/* What the bucket says. @return false when it is damaged or of a later version */
static bool walk_read(const walker *walk, spile__lmdb_parts *parts, spile__state *state) {
  return walk->key.mv_size <= SPILE__LMDB_KEY_LEN_MAX &&
         spile__lmdb_key_split(parts, walk->key.mv_data, walk->key.mv_size) &&
         spile__record_decode(walk->value.mv_data, walk->value.mv_size, parts->algorithm, walk->key.mv_data,
                              walk->key.mv_size, state) == SPILE_REASON_NONE;
}

static bool walk_matches(const walker *walk) {
  spile__lmdb_parts parts;
  spile__state state;
  if (!walk->rule->full)
    return true;
  return walk_read(walk, &parts, &state) &&
         spile__algorithm_get(parts.algorithm)->full_at_ms(&state) <= walk->rule->full_by_ms;
}

/*
 * Removes what the rule says among the next buckets, in one transaction.
 * @param ended  out: the walk has reached the end, and `place` the start
 * @return a result of LMDB
 */
static int remove_some(spile__lmdb_env *env, const walk_rule *rule, spile__lmdb_place *place, size_t looks_max,
                       size_t removed_max, size_t *removed, bool *ended) {
  *removed = 0;
  *ended = false;
  MDB_txn *txn = NULL;
  walker walk;
  spile__lmdb_place start = *place;
  int result = spile__lmdb_write_begin(env, &txn);
  if (result != 0)
    return result;
  result = walk_begin(&walk, rule, place, txn, env->dbi);
  for (size_t looks = 0; result == 0; looks++) {
    if (!walk_next(&walk)) {
      result = walk.result;
      *ended = result == 0;
      break;
    }
    if (looks == looks_max || *removed == removed_max) {
      walk_pause(&walk);
      break;
    }
    if (!walk_matches(&walk))
      continue;
    result = mdb_cursor_del(walk.cursor, 0);
    *removed += result == 0;
  }
  if (result == 0 && *removed > 0)
    result = mdb_txn_commit(txn);
  else
    mdb_txn_abort(txn);
  if (result != 0)
    *place = start;
  else if (*ended)
    *place = (spile__lmdb_place){0};
  return result;
}

/* As remove_some for few buckets. On a map that is full to the last pages fewer may still go. */
static int remove_few(spile__lmdb_env *env, const walk_rule *rule, spile__lmdb_place *place, size_t looks_max,
                      size_t *removed, bool *ended) {
  int result = MDB_MAP_FULL;
  for (size_t removed_max = REMOVED_MAX; removed_max > 0 && result == MDB_MAP_FULL; removed_max /= 8)
    result = remove_some(env, rule, place, looks_max, removed_max, removed, ended);
  return result;
}

/* ---- In passing ---- */

/* A holder of the lock that died may have left anything here. */
static spile__lmdb_place *sweep_place(spile__lmdb_env *env) {
  spile__lmdb_place *place = &env->side.board->sweep_at;
  if (place->key.len > SPILE__LMDB_KEY_LEN_MAX || place->range > 1)
    *place = (spile__lmdb_place){0};
  return place;
}

void spile__lmdb_sweep(spile__lmdb_store *store, size_t inserts) {
  spile__lmdb_env *env = store->env;
  uint32_t before = env->side.board->inserts;
  uint32_t after = before + (uint32_t)inserts;
  env->side.board->inserts = after;
  if (before / SWEEP_EVERY == after / SWEEP_EVERY)
    return;
  if (before / READER_CHECK_EVERY != after / READER_CHECK_EVERY)
    (void)mdb_reader_check(env->mdb, NULL);
  if (store->given_time)
    return;
  walk_rule rule = rule_full(store, store->outside->realtime_ms(store->outside->user));
  size_t looks = (after / SWEEP_EVERY - before / SWEEP_EVERY) * SWEEP_LOOKS;
  size_t removed;
  bool ended;
  /* What fails here is met again, and reported, by the next take. */
  (void)remove_some(env, &rule, sweep_place(env), looks, looks, &removed, &ended);
}

void spile__lmdb_make_room(spile__lmdb_store *store, int64_t now_ms, size_t adds) {
  spile__lmdb_env *env = store->env;
  (void)mdb_reader_check(env->mdb, NULL);
  walk_rule rule = rule_full(store, now_ms);
  spile__lmdb_place *place = store->given_time ? &store->room_at : sweep_place(env);
  size_t removed;
  bool ended;
  for (int i = 0; i < ROOM_SWEEPS; i++) {
    int failed = remove_few(env, &rule, place, SWEEP_LOOKS, &removed, &ended);
    if (failed != 0 || (removed > 0 && spile__lmdb_env_has_room(env, adds)))
      return;
  }
}

/* ---- When told ---- */

static walk_rule clean_rule(const spile__lmdb_store *store, spile_clean_what what, int64_t now_ms) {
  switch (what) {
  case SPILE_CLEAN_FULL:
    return rule_full(store, now_ms);
  case SPILE_CLEAN_PREFIX:
    return rule_simulated(store->key_prefix);
  case SPILE_CLEAN_SIMULATED:
    break;
  }
  return rule_simulated(NULL);
}

int spile__lmdb_clean(spile_store *base, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                      spile_error *error) {
  spile__lmdb_store *store = (spile__lmdb_store *)base;
  *again = false;
  if (now_ms == SPILE_STORE_TIME)
    now_ms = store->outside->realtime_ms(store->outside->user);
  int result = spile__lmdb_env_lock(store->env, store->outside, deadline_ms, error);
  if (result != SPILE_OK) {
    atomic_store(&store->clean_anew, true);
    return result;
  }
  if (atomic_exchange(&store->clean_anew, false))
    store->clean_at = (spile__lmdb_place){0};
  walk_rule rule = clean_rule(store, what, now_ms);
  size_t removed;
  bool ended;
  int failed = remove_few(store->env, &rule, &store->clean_at, CLEAN_LOOKS, &removed, &ended);
  if (failed == MDB_MAP_FULL && mdb_reader_check(store->env->mdb, NULL) == 0)
    failed = remove_few(store->env, &rule, &store->clean_at, CLEAN_LOOKS, &removed, &ended);
  spile__lmdb_env_unlock(store->env);
  if (failed != 0) {
    atomic_store(&store->clean_anew, true);
    return spile__lmdb_fail(error, failed, "remove buckets from LMDB");
  }
  *again = !ended;
  return SPILE_OK;
}

/* ---- Showing ---- */

typedef struct each_entry {
  spile__lmdb_key key;
  spile_stored stored; /* without what the key says */
} each_entry;

/* Copies what is to show of the next few buckets. */
static int each_read(spile__lmdb_store *store, const walk_rule *rule, spile__lmdb_place *place, int64_t now_ms,
                     int64_t deadline_ms, each_entry *entries, size_t *count, bool *ended, spile_error *error) {
  *count = 0;
  *ended = false;
  spile__lmdb_view view;
  int result = spile__lmdb_view_begin(&view, store->env, store->outside, deadline_ms, error);
  if (result != SPILE_OK)
    return result;
  walker walk;
  int failed = walk_begin(&walk, rule, place, view.txn, store->env->dbi);
  for (size_t looks = 0; failed == 0; looks++) {
    if (!walk_next(&walk)) {
      failed = walk.result;
      *ended = true;
      break;
    }
    if (looks == EACH_LOOKS || *count == EACH_SHOWN) {
      walk_pause(&walk);
      break;
    }
    spile__lmdb_parts parts;
    spile__state state;
    each_entry *entry = &entries[*count];
    if (!walk_read(&walk, &parts, &state))
      continue;
    entry->stored = spile__stored_make(parts.algorithm, &state, now_ms);
    entry->key.len = walk.key.mv_size;
    memcpy(entry->key.bytes, walk.key.mv_data, walk.key.mv_size);
    *count += 1;
  }
  if (walk.cursor != NULL && !view.locked)
    mdb_cursor_close(walk.cursor);
  spile__lmdb_view_end(&view, store->env);
  return failed == 0 ? SPILE_OK : spile__lmdb_fail(error, failed, "read what is stored in LMDB");
}

static bool each_show(const each_entry *entry, spile_visitor *visit, void *user) {
  spile__lmdb_parts parts;
  (void)spile__lmdb_key_split(&parts, entry->key.bytes, entry->key.len);
  spile_stored stored = entry->stored;
  stored.key = parts.key;
  stored.key_len = parts.key_len;
  stored.name = (const char *)parts.name;
  stored.name_len = parts.name_len;
  stored.simulated = parts.simulated;
  return visit(user, &stored);
}

/* The visitor runs outside any transaction: it may take its time, or take tokens, and holds no old pages. */
int spile__lmdb_each(spile_store *base, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                     spile_error *error) {
  spile__lmdb_store *store = (spile__lmdb_store *)base;
  const spile_env *outside = store->outside;
  walk_rule rule = rule_simulated(store->key_prefix);
  if (!store->given_time) {
    rule.kinds[2] = SPILE__LMDB_PRODUCTION;
    rule.kinds[3] = SPILE__LMDB_PRODUCTION | SPILE__LMDB_HASHED;
    rule.kind_count = 4;
  }
  each_entry *entries = outside->allocate(outside->allocate_user, NULL, EACH_SHOWN * sizeof(*entries));
  if (entries == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "out of memory to show what is stored");
  spile__lmdb_place place = {0};
  int result = SPILE_OK;
  bool ended = false;
  while (result == SPILE_OK && !ended) {
    size_t count;
    int64_t deadline_ms = outside->monotonic_ms(outside->user) + timeout_ms;
    int64_t at_ms = now_ms != SPILE_STORE_TIME ? now_ms : outside->realtime_ms(outside->user);
    result = each_read(store, &rule, &place, at_ms, deadline_ms, entries, &count, &ended, error);
    bool more = result == SPILE_OK;
    for (size_t i = 0; i < count && more; i++)
      more = each_show(&entries[i], visit, user);
    ended = ended || !more;
  }
  (void)outside->allocate(outside->allocate_user, entries, 0);
  return result;
}
