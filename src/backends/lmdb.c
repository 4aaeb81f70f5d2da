/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LMDB store: the processes of one host share their buckets through a file, without a daemon.
 *
 *   lmdb:PATH?sync=none|meta|full&map_size=SIZE
 *
 * What is lost, by sync:
 *
 *   none   (default) when a process dies in whatever way: nothing that was answered. When the host goes down without
 *          the last process having closed the store: everything; the next boot starts empty, says so, and each key may
 *          take its full capacity once more.
 *   meta   a host that goes down may lose the last take, and is sound. One write to the disk for each charge.
 *   full   nothing. Two writes to the disk for each charge.
 *
 * A process that is killed inside a take may have charged it without having been able to tell, in every mode.
 *
 * A take reads first, in a read-only transaction that needs no lock: a denial changes nothing, so it ends there. Only
 * what has to be written queues for the lock, which is fair and keeps the call's deadline, and then decides again from
 * the start, at a new time, in a write transaction. LMDB's own writer lock has neither property, but is then always
 * free. Who is stopped while it holds the lock stops the others' charges, not their denials; a denial that would have
 * written something (numbers that changed, a clock that was set back) stands without it.
 */
#include <errno.h>
#include <lmdb.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "backends/address.h"
#include "backends/lmdb_store.h"
#include "core/checked.h"
#include "core/decide.h"
#include "core/record.h"

#define TIMEOUT_MS 1000
/* With less room than this a disk is full: a write takes a few pages at once. */
#define DISK_SCARCE_BYTES (256U << 10)
#define READER_NAP_NS 200000
#define READER_PATIENCE_MS 50
#define MAP_SIZE_DEFAULT (INT64_C(1) << 30)
/* Below this the reserve leaves no room to work with. */
#define MAP_SIZE_MIN (INT64_C(128) << 10)
#define MAP_SIZE_MAX (INT64_C(64) << 40)

_Static_assert(SPILE_REQUESTS_MAX <= 64, "a set of items is the bits of a uint64_t");
_Static_assert(sizeof(size_t) >= 8 || MAP_SIZE_DEFAULT <= INT32_MAX, "the default map fits the address space");

/* What was found about the items of a call; bit i is item i. */
typedef struct lmdb_found {
  uint64_t absent;
  uint64_t rewrite; /* not what shape and clock make of it */
  uint64_t changes; /* another reading after the call */
  uint64_t pays;    /* the call may write about it */
  spile__effect effect;
} lmdb_found;

/* What a call has to write: every change, and what must not wait. */
static uint64_t found_writes(const lmdb_found *found) {
  return found->pays & (found->changes | found->rewrite);
}

/* What it writes that was not there. */
static uint64_t found_fresh(const lmdb_found *found) {
  return found->absent & found->pays & found->changes;
}

static int64_t lmdb_now_ms(const spile__lmdb_store *store, const spile_call *call) {
  return call->now_ms != SPILE_STORE_TIME ? call->now_ms : store->outside->realtime_ms(store->outside->user);
}

static void lmdb_key(spile__lmdb_key *out, const spile__lmdb_store *store, const spile_item *item) {
  int kind = store->given_time ? SPILE__LMDB_SIMULATED : SPILE__LMDB_PRODUCTION;
  spile__lmdb_key_make(out, kind, store->key_prefix, item, store->env->secret);
}

static int lmdb_unreadable(spile_error *error, spile_reason reason) {
  return spile__store_fail(error, SPILE_EUNAVAILABLE, reason,
                           "what LMDB holds about this bucket %s; it was left as it is, clear the bucket to go on",
                           reason == SPILE_REASON_FORMAT    ? "was written by a later version"
                           : reason == SPILE_REASON_FOREIGN ? "is not ours"
                                                            : "is damaged");
}

/* Reads every item as of now_ms. */
static int lmdb_read(const spile__lmdb_store *store, MDB_txn *txn, int64_t now_ms, spile_call *call,
                     lmdb_found *found) {
  *found = (lmdb_found){0};
  for (size_t i = 0; i < call->n; i++) {
    spile_item *item = &call->items[i];
    const spile_spec *spec = item->spec;
    uint64_t bit = UINT64_C(1) << i;
    spile__lmdb_key key;
    lmdb_key(&key, store, item);
    MDB_val name = {key.len, key.bytes};
    MDB_val record;
    spile__state state;
    int result = mdb_get(txn, store->env->dbi, &name, &record);
    if (result != 0 && result != MDB_NOTFOUND)
      return spile__lmdb_fail(call->error, result, "read a bucket from LMDB");
    if (result == 0) {
      spile_reason reason =
          spile__record_decode(record.mv_data, record.mv_size, spec->algorithm, key.bytes, key.len, &state);
      if (reason != SPILE_REASON_NONE) {
        call->failed_item = i;
        return lmdb_unreadable(call->error, reason);
      }
    } else {
      found->absent |= bit;
    }
    if (spile__item_read(item, call->verb, result == 0 ? &state : NULL, now_ms))
      found->rewrite |= bit;
    if (spile__item_pays(call, item))
      found->pays |= bit;
  }
  found->effect = spile__call_effect(call);
  for (size_t i = 0; i < call->n; i++) {
    spile_reading after;
    if (spile__item_apply(call, &call->items[i], &found->effect, &after))
      found->changes |= UINT64_C(1) << i;
  }
  return SPILE_OK;
}

/* Writes one item; the reading stays what it was before. @return a result of LMDB */
static int lmdb_write_item(const spile__lmdb_store *store, MDB_txn *txn, int64_t now_ms, const spile_call *call,
                           const spile_item *item, const lmdb_found *found) {
  const spile_spec *spec = item->spec;
  const spile__algorithm *algorithm = spile__algorithm_get(spec->algorithm);
  spile_reading reading;
  (void)spile__item_apply(call, item, &found->effect, &reading);

  spile__lmdb_key key;
  lmdb_key(&key, store, item);
  MDB_val name = {key.len, key.bytes};
  spile__state state;
  bool known = false;
  if (algorithm->log) {
    MDB_val old;
    int result = mdb_get(txn, store->env->dbi, &name, &old);
    if (result != 0 && result != MDB_NOTFOUND)
      return result;
    /* It was sound when it was read, in this very transaction. */
    known = result == 0 && spile__record_decode(old.mv_data, old.mv_size, spec->algorithm, key.bytes, key.len,
                                                &state) == SPILE_REASON_NONE;
  }
  if (!algorithm->state(&spec->shape, &reading, now_ms, known ? &state : NULL, &state)) {
    int result = mdb_del(txn, store->env->dbi, &name, NULL);
    return result == MDB_NOTFOUND ? 0 : result;
  }
  unsigned char record[SPILE__RECORD_LEN_MAX];
  MDB_val value = {spile__record_encode(record, spec->algorithm, &state, key.bytes, key.len), record};
  return mdb_put(txn, store->env->dbi, &name, &value, 0);
}

/* Writes what the call has found. @return a result of LMDB */
static int lmdb_write(const spile__lmdb_store *store, MDB_txn *txn, int64_t now_ms, const spile_call *call,
                      const lmdb_found *found) {
  uint64_t writes = found_writes(found);
  for (size_t i = 0; i < call->n; i++) {
    if ((writes >> i & 1) == 0)
      continue;
    int result = lmdb_write_item(store, txn, now_ms, call, &call->items[i], found);
    if (result != 0)
      return result;
  }
  return 0;
}

/*
 * A write that failed may be on the disk in part or as a whole. LMDB calls a write that was cut short an I/O error,
 * also where only room was missing, so that is looked at here.
 */
static int lmdb_write_failed(const spile__lmdb_store *store, int failed, spile_error *error) {
  if (failed < 0)
    return spile__lmdb_fail(error, failed, "write to LMDB");
  struct statvfs disk;
  bool full = failed == ENOSPC || (failed == EIO && fstatvfs(store->env->dir_fd, &disk) == 0 &&
                                   disk.f_bavail < DISK_SCARCE_BYTES / disk.f_frsize);
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                           "cannot write to LMDB: %s; whether it was charged is not known; %s", strerror(failed),
                           full ? "the disk is full: make room" : "look at the disk and its log");
}

/* What was to be written could not be. @return SPILE_OK where that was only to correct something; else `failure` */
static int lmdb_unwritten(const spile_call *call, const lmdb_found *found, int failure) {
  if ((found->pays & found->changes) != 0)
    return failure;
  call->error->code = 0;
  return SPILE_OK;
}

/* One attempt under the lock. @return SPILE_OK, an error; or *full: there was no room and nothing is written */
static int lmdb_attempt(spile__lmdb_store *store, spile_call *call, lmdb_found *found, bool *full) {
  *full = false;
  MDB_txn *txn = NULL;
  int failed = spile__lmdb_write_begin(store->env, &txn);
  if (failed != 0)
    return lmdb_unwritten(call, found, spile__lmdb_fail(call->error, failed, "begin a write to LMDB"));
  int64_t now_ms = lmdb_now_ms(store, call);
  int result = lmdb_read(store, txn, now_ms, call, found);
  if (result != SPILE_OK || found_writes(found) == 0) {
    mdb_txn_abort(txn);
    return result;
  }
  failed = lmdb_write(store, txn, now_ms, call, found);
  if (failed == 0)
    failed = mdb_txn_commit(txn);
  else
    mdb_txn_abort(txn);
  *full = failed == MDB_MAP_FULL;
  if (failed == 0 || *full)
    return SPILE_OK;
  return lmdb_unwritten(call, found, lmdb_write_failed(store, failed, call->error));
}

static int lmdb_fail_held(spile_error *error) {
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_LOCKED,
                           "a process that is stopped while it reads holds the free pages of the LMDB map; let it go "
                           "on or end it");
}

/* There was no room, and looking for some did not help. `held`: there is, but somebody who reads holds it. */
static int lmdb_full(spile_call *call, const lmdb_found *found, bool held) {
  if ((found->pays & found->changes) == 0)
    return SPILE_OK; /* a denial stands; what it would have corrected is corrected later */
  uint64_t fresh = found_fresh(found);
  /* A log that is known already grows, and needs room too, unless something is given back. */
  for (size_t i = 0; i < call->n && call->verb != SPILE_VERB_REFUND; i++) {
    if ((found->pays & found->changes) >> i & 1 && spile__algorithm_get(call->items[i].spec->algorithm)->log)
      fresh |= UINT64_C(1) << i;
  }
  if (fresh == 0 || held)
    return lmdb_fail_held(call->error);
  call->full_item = (size_t)__builtin_ctzll(fresh);
  call->full_items = fresh;
  return spile__store_fail(
      call->error, SPILE_EFULL, SPILE_REASON_NONE,
      "the LMDB map has no room for a new bucket or a larger state; close it everywhere, open it with a "
      "larger map_size");
}

/* How many buckets a call adds. */
static size_t found_adds(const lmdb_found *found) {
  return (size_t)__builtin_popcountll(found_fresh(found));
}

/* Whether there is room for the buckets that a call adds. */
static bool lmdb_has_room(const spile__lmdb_store *store, const lmdb_found *found) {
  size_t adds = found_adds(found);
  return adds == 0 || spile__lmdb_env_has_room(store->env, adds);
}

/*
 * Decides under the lock, where `found` is what was read before it.
 *
 * A write needs pages that no reader may still be looking at. A reader that lost its processor in the middle can keep
 * all those that were freed since, and gives them back in some milliseconds: that is waited for, but not long, since
 * everybody else waits behind this call. A dead one is struck from the table.
 */
static int lmdb_take(spile__lmdb_store *store, spile_call *call, lmdb_found *found) {
  const spile_env *outside = store->outside;
  int64_t patient_until_ms = outside->monotonic_ms(outside->user) + READER_PATIENCE_MS;
  if (patient_until_ms > call->deadline_ms)
    patient_until_ms = call->deadline_ms;
  bool room = lmdb_has_room(store, found);
  for (bool first = true;; first = false) {
    bool full = true;
    int result = room ? lmdb_attempt(store, call, found, &full) : SPILE_OK;
    if (result != SPILE_OK)
      return result;
    if (!full)
      break;
    if (first) {
      spile__lmdb_make_room(store, lmdb_now_ms(store, call), found_adds(found));
    } else {
      if (!room || (found->pays & found->changes) == 0 || outside->monotonic_ms(outside->user) >= patient_until_ms)
        return lmdb_full(call, found, room && spile__lmdb_readers_behind(store->env));
      (void)nanosleep(&(struct timespec){.tv_nsec = READER_NAP_NS}, NULL);
      (void)mdb_reader_check(store->env->mdb, NULL);
    }
    room = lmdb_has_room(store, found);
  }
  uint64_t fresh = found_fresh(found);
  if (fresh != 0)
    spile__lmdb_sweep(store, (size_t)__builtin_popcountll(fresh));
  return SPILE_OK;
}

static int lmdb_decide(spile_store *base, spile_call *call) {
  spile__lmdb_store *store = (spile__lmdb_store *)base;
  spile__lmdb_view view;
  int result = spile__lmdb_view_begin(&view, store->env, store->outside, call->deadline_ms, call->error);
  if (result != SPILE_OK)
    return result;
  lmdb_found found;
  result = lmdb_read(store, view.txn, lmdb_now_ms(store, call), call, &found);
  spile__lmdb_view_end(&view, store->env);
  if (result != SPILE_OK || call->verb == SPILE_VERB_PEEK || found_writes(&found) == 0)
    return result;

  result = spile__lmdb_env_lock(store->env, store->outside, call->deadline_ms, call->error);
  if (result != SPILE_OK)
    return lmdb_unwritten(call, &found, result);
  result = lmdb_take(store, call, &found);
  spile__lmdb_env_unlock(store->env);
  return result;
}

static int lmdb_clear(spile_store *base, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  spile__lmdb_store *store = (spile__lmdb_store *)base;
  int result = spile__lmdb_env_lock(store->env, store->outside, deadline_ms, error);
  if (result != SPILE_OK)
    return result;
  spile__lmdb_key key;
  lmdb_key(&key, store, item);
  MDB_val name = {key.len, key.bytes};
  MDB_txn *txn = NULL;
  int failed = spile__lmdb_write_begin(store->env, &txn);
  if (failed == 0) {
    failed = mdb_del(txn, store->env->dbi, &name, NULL);
    if (failed == 0)
      failed = mdb_txn_commit(txn);
    else
      mdb_txn_abort(txn);
  }
  bool held = failed == MDB_MAP_FULL && spile__lmdb_readers_behind(store->env);
  spile__lmdb_env_unlock(store->env);
  if (held)
    return lmdb_fail_held(error);
  return failed == 0 || failed == MDB_NOTFOUND ? SPILE_OK
                                               : spile__lmdb_fail(error, failed, "remove a bucket from LMDB");
}

static void lmdb_close(spile_store *base, bool forked) {
  spile__lmdb_store *store = (spile__lmdb_store *)base;
  spile_env outside = store->own_outside;
  spile__lmdb_env_close(store->env, forked);
  (void)outside.allocate(outside.allocate_user, store, 0);
}

static void lmdb_usage(spile_store *base, spile_usage *usage) {
  spile__lmdb_env_usage(((spile__lmdb_store *)base)->env, usage);
}

static const spile_store_ops lmdb_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "lmdb",
    .timeout_ms = TIMEOUT_MS,
    .decide = lmdb_decide,
    .clear = lmdb_clear,
    .clean = spile__lmdb_clean,
    .each = spile__lmdb_each,
    .close = lmdb_close,
    .usage = lmdb_usage,
};

static int lmdb_param(void *user, const char *name, const char *value, spile_error *error) {
  spile__lmdb_settings *settings = user;
  static const struct {
    const char *word;
    unsigned flags;
  } modes[] = {{"none", MDB_NOSYNC}, {"meta", MDB_NOMETASYNC}, {"full", 0}};
  if (strcmp(name, "sync") == 0) {
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
      if (strcmp(value, modes[i].word) == 0) {
        settings->sync_flags = modes[i].flags;
        return SPILE_OK;
      }
    }
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE, "sync is \"%s\"; write none, meta or full",
                             value);
  }
  if (strcmp(name, "map_size") == 0) {
    int64_t max = MAP_SIZE_MAX < (int64_t)(SIZE_MAX / 4) ? MAP_SIZE_MAX : (int64_t)(SIZE_MAX / 4);
    if (spile__size_parse(value, MAP_SIZE_MIN, max, &settings->map_size))
      return SPILE_OK;
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "map_size is \"%s\"; write a size from 128KiB to 64TiB, such as 256MiB or 1GiB", value);
  }
  return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                           "lmdb: has no parameter \"%s\"; the parameters are sync and map_size", name);
}

int spile__lmdb_settings_read(spile__lmdb_settings *out, const char *address, spile_error *error) {
  *out = (spile__lmdb_settings){.sync_flags = MDB_NOSYNC, .map_size = MAP_SIZE_DEFAULT};
  int result = spile__address_split(address, out->path, sizeof(out->path), lmdb_param, out, error);
  if (result == SPILE_OK && out->path[0] == '\0')
    return spile__store_fail(error, SPILE_ECONFIG, SPILE_REASON_NONE,
                             "lmdb: needs a directory, as in lmdb:/var/lib/NAME");
  return result;
}

int spile__lmdb_open(spile_store **out, const spile__store_config *config, spile_error *error) {
  *out = NULL;
  const spile_env *outside = config->env;
  spile__lmdb_settings settings;
  int result = spile__lmdb_settings_read(&settings, config->address, error);
  if (result != SPILE_OK)
    return result;

  spile__lmdb_store *store = outside->allocate(outside->allocate_user, NULL, sizeof(*store));
  if (store == NULL)
    return spile__store_fail(error, SPILE_ENOMEM, SPILE_REASON_NONE, "out of memory for an LMDB store");
  memset(store, 0, sizeof(*store));
  store->base.ops = &lmdb_ops;
  store->own_outside = *outside;
  store->outside = &store->own_outside;
  memcpy(store->key_prefix, config->key_prefix, strlen(config->key_prefix) + 1);
  store->given_time = config->given_time;
  atomic_init(&store->clean_anew, false);
  /* Opening waits for those who are opening or closing, as long as a take may wait by default, or longer if it may. */
  spile__store_config patient = *config;
  if (patient.timeout_ms < TIMEOUT_MS)
    patient.timeout_ms = TIMEOUT_MS;
  result = spile__lmdb_env_open(&store->env, &settings, &patient, error);
  if (result != SPILE_OK) {
    (void)outside->allocate(outside->allocate_user, store, 0);
    return result;
  }
  *out = &store->base;
  return SPILE_OK;
}
