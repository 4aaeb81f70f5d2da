/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the LMDB store does beyond what every store does: opening, keys, room, sweeping, cleaning. test_lmdb_faults.c
 * has what happens when processes and hosts die.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/algorithm.h"
#include "core/limit.h"
#include "lmdb_rig.h"

#define HOUR_MS 3600000

/* ---- Opening ---- */

Test(lmdb, makes_the_directory_and_its_parents_for_the_owner_alone) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "a/b/c");
  struct stat status;
  cr_assert(eq(int, stat(rig_path(&rig, "a"), &status), 0));
  cr_assert(eq(int, (int)(status.st_mode & 0777), 0700));
  cr_assert(eq(int, stat(rig_path(&rig, "a/b/c/data.mdb"), &status), 0));
  cr_assert(eq(int, (int)(status.st_mode & 0777), 0600));
  cr_assert(eq(int, stat(rig_path(&rig, "a/b/c/spile.lock"), &status), 0));
  cr_assert(eq(int, (int)(status.st_mode & 0777), 0600));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb, says_what_is_wrong_with_an_address) {
  lmdb_rig rig;
  rig_start(&rig);
  static const struct {
    const char *tail;
    const char *word; /* in the message */
  } wrong[] = {{"s?sync=no", "none, meta or full"},
               {"s?map_size=1", "128KiB"},
               {"s?map_size=131071", "128KiB"},
               {"s?map_size=1GB", "1GiB"},
               {"s?size=1GiB", "sync and map_size"},
               {"s?sync", "NAME=VALUE"},
               {"s%zz", "a broken %XX escape; write a literal % as %25"},
               {"s%00", "the path of the address has a NUL (%00)"},
               {"s?sync=none&map_size=1MiB&sync=none", "the parameter \"sync\" twice"}};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    spile_store *store;
    spile_error error;
    int opened = rig_try(&rig, wrong[i].tail, "rl", false, &store, &error);
    cr_assert(opened == SPILE_ECONFIG && store == NULL, "%s", wrong[i].tail);
    cr_assert(strstr(error.message, wrong[i].word) != NULL, "%s: %s", wrong[i].tail, error.message);
  }
  spile_error error = {0};
  spile_store *store;
  spile__store_config nowhere = {.address = "?sync=none", .env = &rig.env, .key_prefix = "rl"};
  cr_assert(eq(int, spile__lmdb_open(&store, &nowhere, &error), SPILE_ECONFIG));
  char path[5000];
  memset(path, 'a', sizeof(path) - 1);
  path[0] = '/';
  path[sizeof(path) - 1] = '\0';
  nowhere.address = path;
  error = (spile_error){0};
  cr_assert(eq(int, spile__lmdb_open(&store, &nowhere, &error), SPILE_ECONFIG));
  cr_assert(strstr(error.message, "longer than the 4095 bytes it may have") != NULL, "%s", error.message);
  rig_stop(&rig);
}

/* LMDB-05 */
Test(lmdb, lmdb_05_a_second_open_through_a_link_shares_the_first) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *first = rig_open(&rig, "store");
  char target[TEMP_DIR_LEN + 256];
  (void)snprintf(target, sizeof(target), "%s", rig_path(&rig, "store"));
  cr_assert(eq(int, symlink(target, rig_path(&rig, "link")), 0));
  spile_store *second = rig_open(&rig, "link");
  cr_assert(eq(ptr, (void *)((spile__lmdb_store *)first)->env, (void *)((spile__lmdb_store *)second)->env));
  rig_close(second);

  spile_spec spec = spec_of("default", 100, 1, HOUR_MS);
  int ends[2];
  cr_assert(eq(int, pipe(ends), 0));
  pid_t child = fork();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store");
    char allowed = 0;
    for (int i = 0; i < 100; i++)
      allowed = (char)(allowed + (take_one(own, &spec, "k") == SPILE_ALLOWED));
    rig_close(own);
    _exit(write(ends[1], &allowed, 1) != 1);
  }
  int allowed = 0;
  for (int i = 0; i < 100; i++)
    allowed += take_one(first, &spec, "k") == SPILE_ALLOWED;
  char theirs = 0;
  cr_assert(eq(sz, (size_t)read(ends[0], &theirs, 1), 1));
  child_done(child);
  cr_assert(eq(int, allowed + theirs, 100));
  rig_close(first);
  rig_stop(&rig);
}

Test(lmdb, refuses_a_second_open_with_other_settings) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *first = rig_open(&rig, "store?sync=none&map_size=1MiB");
  spile_store *second;
  spile_error error;
  cr_assert(eq(int, rig_try(&rig, "store?sync=full&map_size=1MiB", "rl", false, &second, &error), SPILE_ECONFIG));
  cr_assert(eq(int, rig_try(&rig, "store?map_size=2MiB", "rl", false, &second, &error), SPILE_ECONFIG));
  cr_assert(eq(int, rig_try(&rig, "store?map_size=1024KiB", "rl", false, &second, &error), SPILE_OK));
  rig_close(first);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  cr_assert(eq(int, take_one(second, &spec, "k"), SPILE_ALLOWED));
  rig_close(second);
  rig_stop(&rig);
}

Test(lmdb, uses_the_map_size_of_those_who_have_it_open) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store?map_size=2MiB");
  pid_t child = fork();
  if (child == 0) {
    spile_store *own = rig_open(&rig, "store?map_size=1MiB");
    bool same = ((spile__lmdb_store *)own)->env->pages * 4096 == 2 << 20 && strstr(rig.log, "2097152") != NULL;
    rig_close(own);
    _exit(!same);
  }
  child_done(child);
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb, keeps_buckets_from_one_open_to_the_next) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  static const char *const tails[] = {"a?sync=none", "b?sync=meta", "c?sync=full"};
  for (size_t i = 0; i < 3; i++) {
    for (int round = 0; round < 3; round++) {
      spile_store *store = rig_open(&rig, tails[i]);
      cr_assert(eq(int, take_one(store, &spec, "k"), round == 0 ? SPILE_ALLOWED : SPILE_DENIED));
      rig_close(store);
    }
  }
  rig_stop(&rig);
}

/* ---- Keys and records ---- */

/* LMDB-03 */
Test(lmdb, lmdb_03_hashes_long_keys_and_cuts_none) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store");
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  static const size_t lengths[] = {1, 495, 496, 497, 498, 499, 500, 511, 512, 600, 2000, SPILE_KEY_LEN_MAX};
  char key[SPILE_KEY_LEN_MAX];
  memset(key, 'k', sizeof(key));
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
      asked got = ask(store, SPILE_VERB_TAKE, &spec, key, lengths[i], 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
      cr_assert(eq(int, got.outcome, round == 0 ? SPILE_ALLOWED : SPILE_DENIED));
      cr_assert(eq(i64, got.decision.retry_after_ms, round == 0 ? 0 : HOUR_MS));
    }
  }
  key[599] = 'x';
  asked other = ask(store, SPILE_VERB_TAKE, &spec, key, 600, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(int, other.outcome, SPILE_ALLOWED));
  rig_close(store);
  /* The hash's own key is in the database. */
  store = rig_open(&rig, "store");
  other = ask(store, SPILE_VERB_TAKE, &spec, key, 600, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(int, other.outcome, SPILE_DENIED));
  rig_close(store);
  rig_stop(&rig);
}

static spile__lmdb_key key_of(const char *prefix, const char *name, const char *key, int kind) {
  static const uint64_t secret[2] = {1, 2};
  spile_spec spec = spec_of(name, 1, 1, 1000);
  spile_item item = {.key = key, .key_len = strlen(key), .spec = &spec};
  spile__lmdb_key made;
  spile__lmdb_key_make(&made, kind, prefix, &item, secret);
  return made;
}

Test(lmdb, keys_say_where_each_part_ends) {
  spile__lmdb_key keys[] = {key_of("rl", "ab", "c", 1), key_of("rl", "a", "bc", 1), key_of("r", "lab", "c", 1),
                            key_of("rl", "ab", "c", 2), key_of("rla", "b", "c", 1)};
  for (size_t i = 0; i < 5; i++) {
    for (size_t j = 0; j < i; j++)
      cr_assert(keys[i].len != keys[j].len || memcmp(keys[i].bytes, keys[j].bytes, keys[i].len) != 0);
  }
  spile__lmdb_parts parts;
  cr_assert(spile__lmdb_key_split(&parts, keys[3].bytes, keys[3].len));
  cr_assert(parts.simulated && parts.name_len == 2 && memcmp(parts.name, "ab", 2) == 0 && parts.key_len == 1);
  for (size_t len = 0; len < keys[3].len; len++)
    cr_assert(not(spile__lmdb_key_split(&parts, keys[3].bytes, len)));
}

/* Puts a value under a bucket's key, behind the store's back. */
static void put_raw(spile_store *base, const char *key, const void *value, size_t value_len) {
  spile__lmdb_store *store = (spile__lmdb_store *)base;
  spile__lmdb_key made = key_of("rl", "default", key, SPILE__LMDB_PRODUCTION);
  MDB_val name = {made.len, made.bytes};
  MDB_val data;
  char copy[64];
  memcpy(copy, value, value_len);
  data = (MDB_val){value_len, copy};
  MDB_txn *txn;
  cr_assert(eq(int, mdb_txn_begin(store->env->mdb, NULL, 0, &txn), 0));
  cr_assert(eq(int, mdb_put(txn, store->env->dbi, &name, &data, 0), 0));
  cr_assert(eq(int, mdb_txn_commit(txn), 0));
}

/* LMDB-06 */
Test(lmdb, lmdb_06_reads_records_at_any_address_and_refuses_what_is_none) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store");
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  for (size_t len = 1; len <= 16; len++) {
    for (int round = 0; round < 2; round++) {
      int want = round == 0 ? SPILE_ALLOWED : SPILE_DENIED;
      asked peeked = ask(store, SPILE_VERB_PEEK, &spec, "0123456789abcdef", len, 1, SPILE_STORE_TIME, 1000);
      cr_assert(eq(int, peeked.outcome, want));
      asked taken = ask(store, SPILE_VERB_TAKE, &spec, "0123456789abcdef", len, 1, SPILE_STORE_TIME, 1000);
      cr_assert(eq(int, taken.outcome, want));
    }
  }
  static const struct {
    const char *key;
    const char *value;
    size_t len;
    int reason;
  } odd[] = {{"short", "abc", 3, SPILE_REASON_FORMAT},
             {"damaged", "\1\1\0", 3, SPILE_REASON_CORRUPT},
             {"later", "\2later version of the record", 20, SPILE_REASON_FORMAT}};
  for (size_t i = 0; i < 3; i++) {
    put_raw(store, odd[i].key, odd[i].value, odd[i].len);
    size_t before = last_write(store);
    asked got = ask(store, SPILE_VERB_TAKE, &spec, odd[i].key, strlen(odd[i].key), 1, SPILE_STORE_TIME, 1000);
    cr_assert(eq(int, got.outcome, SPILE_EUNAVAILABLE));
    cr_assert(eq(int, got.error.reason, odd[i].reason));
    cr_assert(strstr(got.error.message, "clear the bucket") != NULL);
    cr_assert(eq(sz, last_write(store), before));
    spile_item item = {.key = odd[i].key, .key_len = strlen(odd[i].key), .spec = &spec};
    int64_t deadline_ms = rig.env.monotonic_ms(NULL) + RIG_PATIENCE_MS;
    cr_assert(eq(int, store->ops->clear(store, &item, deadline_ms, &got.error), SPILE_OK));
    cr_assert(eq(int, take_one(store, &spec, odd[i].key), SPILE_ALLOWED));
  }
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb, denials_peeks_and_costs_of_zero_write_nothing) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store");
  spile_spec spec = spec_of("default", 5, 1, HOUR_MS);
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 5, SPILE_STORE_TIME, 1000).outcome, SPILE_ALLOWED));
  size_t before = last_write(store);
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 1, SPILE_STORE_TIME, 1000).outcome, SPILE_DENIED));
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "k", 1, 0, SPILE_STORE_TIME, 1000).outcome, SPILE_ALLOWED));
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "new", 3, 0, SPILE_STORE_TIME, 1000).outcome, SPILE_ALLOWED));
  cr_assert(eq(int, ask(store, SPILE_VERB_PEEK, &spec, "new", 3, 1, SPILE_STORE_TIME, 1000).outcome, SPILE_ALLOWED));
  cr_assert(eq(sz, last_write(store), before));
  /* But a denial under other numbers writes the conversion, once. */
  spile_spec slower = spec_of("default", 5, 1, 2 * HOUR_MS);
  cr_assert(eq(int, ask(store, SPILE_VERB_PEEK, &slower, "k", 1, 1, SPILE_STORE_TIME, 1000).outcome, SPILE_DENIED));
  cr_assert(eq(sz, last_write(store), before));
  for (int i = 0; i < 2; i++)
    cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &slower, "k", 1, 1, SPILE_STORE_TIME, 1000).outcome, SPILE_DENIED));
  cr_assert(eq(sz, last_write(store), before + 1));
  rig_close(store);
  rig_stop(&rig);
}

/* ---- Threads ---- */

typedef struct crowd {
  spile_store *store;
  const spile_spec *spec;
  atomic_int allowed;
} crowd;

static void *crowd_take(void *user) {
  crowd *all = user;
  for (int i = 0; i < 60; i++) {
    if (ask(all->store, SPILE_VERB_TAKE, all->spec, "k", 1, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS).outcome ==
        SPILE_ALLOWED)
      (void)atomic_fetch_add(&all->allowed, 1);
  }
  return NULL;
}

/* More threads than idle readers are kept. */
Test(lmdb, lets_exactly_the_capacity_through_twenty_four_threads) {
  enum { THREADS = SPILE__LMDB_READERS + 8 };
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1000, 1, HOUR_MS);
  crowd all = {.store = rig_open(&rig, "store"), .spec = &spec};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    cr_assert(eq(int, pthread_create(&threads[i], NULL, crowd_take, &all), 0));
  for (int i = 0; i < THREADS; i++)
    cr_assert(eq(int, pthread_join(threads[i], NULL), 0));
  cr_assert(eq(int, all.allowed, 1000));
  rig_close(all.store);
  rig_stop(&rig);
}

/* ---- Room ---- */

/* LMDB-02 */
Test(lmdb, lmdb_02_a_full_map_keeps_known_keys_going_and_can_be_cleaned) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store?map_size=1MiB");
  spile_spec spec = spec_of("default", 5, 1, 1000);
  char key[32];
  asked got;
  int known = 0;
  for (;; known++) {
    (void)snprintf(key, sizeof(key), "key-%d", known);
    got = ask(store, SPILE_VERB_TAKE, &spec, key, strlen(key), 1, SPILE_STORE_TIME, 1000);
    if (got.outcome != SPILE_ALLOWED)
      break;
    cr_assert(lt(int, known, 20000));
  }
  cr_assert(eq(int, got.outcome, SPILE_EFULL));
  cr_assert(lt(int, 1000, known));
  for (int i = 0; i < 4 * known; i++) {
    (void)snprintf(key, sizeof(key), "key-%d", i * 7919 % known);
    int want = i < 4 * known ? SPILE_ALLOWED : SPILE_DENIED;
    cr_assert(eq(int, take_one(store, &spec, key), want));
  }
  cr_assert(eq(int, take_one(store, &spec, "key-0"), SPILE_DENIED));
  cr_assert(eq(sz, show(store).production, (size_t)known));
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "new", 3, 1, SPILE_STORE_TIME, 1000).outcome, SPILE_EFULL));

  rig.now_ms += 6001;
  clean_all(store, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  cr_assert(eq(sz, show(store).production, 0));
  for (int i = 0; i < known; i++) {
    (void)snprintf(key, sizeof(key), "new-%d", i);
    cr_assert(eq(int, take_one(store, &spec, key), SPILE_ALLOWED));
  }
  rig_close(store);
  rig_stop(&rig);
}

/* Logs grow under known keys: on a full map they are told so, and denials and smaller ones go on. */
Test(lmdb, lmdb_02_a_full_map_refuses_what_lets_a_log_grow) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store?map_size=1MiB");
  spile_spec log = spec_of("log", 5, 1, 3600000);
  log.algorithm = SPILE_SLIDING_LOG;
  cr_assert(eq(int, spile__sliding_log.shape_make(&log.shape, 1000, 0, 3600000, 0, NULL), SPILE_OK));
  spile__spec_finish(&log);
  spile_spec bucket = spec_of("default", 5, 1, 3600000);
  cr_assert(eq(int, take_one(store, &bucket, "bucket"), SPILE_ALLOWED));
  int full = 0;
  for (int i = 0; i < 400 && full < 20; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "log-%d", i % 200);
    for (int j = 0; j < 200 && full < 20; j++) {
      rig.now_ms++;
      asked got = ask(store, SPILE_VERB_TAKE, &log, key, strlen(key), 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
      cr_assert(got.outcome == SPILE_ALLOWED || got.outcome == SPILE_EFULL, "%s", got.error.message);
      full += got.outcome == SPILE_EFULL;
    }
  }
  cr_assert(eq(int, full, 20));
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &log, "log-0", 5, 1000, SPILE_STORE_TIME, 1000).outcome, SPILE_DENIED));
  cr_assert(eq(int, take_one(store, &bucket, "bucket"), SPILE_ALLOWED));
  rig.now_ms += 3602000;
  clean_all(store, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &log, "log-0", 5, 1, SPILE_STORE_TIME, 1000).outcome, SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}

/* Vectors of new keys, in maps of several sizes: full is said at once, and known keys go on. */
Test(lmdb, lmdb_02_says_at_once_that_a_vector_of_new_keys_finds_no_room) {
  static const struct {
    const char *tail;
    size_t n;
    int key_len;
  } rows[] = {{"a?map_size=4MiB", 64, 30},
              {"b?map_size=4MiB", 24, 480},
              {"c?map_size=128KiB", 8, 200},
              {"d?map_size=128KiB", 1, 480}};
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("d", 5, 1, 3600000);
  for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
    spile_store *store = rig_open(&rig, rows[row].tail);
    cr_assert(eq(int, take_one(store, &spec, "known"), SPILE_ALLOWED));
    int full = 0;
    for (int round = 0; full < 20; round++) {
      static char keys[64][500];
      spile_item items[64];
      for (size_t i = 0; i < rows[row].n; i++) {
        (void)snprintf(keys[i], sizeof(keys[i]), "%0*d", rows[row].key_len, round * 64 + (int)i);
        items[i] = (spile_item){.key = keys[i], .key_len = strlen(keys[i]), .spec = &spec, .cost = 1};
      }
      spile_error error = {0};
      spile_call call = {.verb = SPILE_VERB_TAKE,
                         .items = items,
                         .n = rows[row].n,
                         .now_ms = SPILE_STORE_TIME,
                         .deadline_ms = rig.env.monotonic_ms(rig.env.user) + RIG_PATIENCE_MS,
                         .error = &error};
      int64_t before_ms = rig.env.monotonic_ms(rig.env.user);
      int result = store->ops->decide(store, &call);
      int64_t took_ms = rig.env.monotonic_ms(rig.env.user) - before_ms;
      cr_assert(result == SPILE_OK || result == SPILE_EFULL, "%s: %s", rows[row].tail, error.message);
      /* The deadline is far away; what waits for it is stuck. */
      cr_assert(took_ms < RIG_PATIENCE_MS / 4, "%s, round %d: %lld ms", rows[row].tail, round, (long long)took_ms);
      full += result == SPILE_EFULL;
    }
    cr_assert(eq(int, take_one(store, &spec, "known"), SPILE_ALLOWED));
    rig_close(store);
  }
  rig_stop(&rig);
}

Test(lmdb, makes_room_for_a_new_key_by_dropping_what_is_full_again) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 5, 1, 100);
  char key[32];
  for (int given_time = 0; given_time < 2; given_time++) {
    spile_store *store;
    spile_error error;
    int opened = rig_try(&rig, "store?map_size=256KiB", "rl", given_time != 0, &store, &error);
    cr_assert(opened == SPILE_OK, "%s", error.message);
    int allowed = 0;
    asked got;
    do {
      (void)snprintf(key, sizeof(key), "key-%d", allowed);
      got = ask(store, SPILE_VERB_TAKE, &spec, key, strlen(key), 1, rig.now_ms, 1000);
      allowed++;
    } while (got.outcome == SPILE_ALLOWED);
    cr_assert(eq(int, got.outcome, SPILE_EFULL));
    rig.now_ms += 5000;
    for (int i = 0; i < 4 * allowed; i++) {
      (void)snprintf(key, sizeof(key), "later-%d-%d", given_time, i);
      rig.now_ms += 2;
      got = ask(store, SPILE_VERB_TAKE, &spec, key, strlen(key), 1, rig.now_ms, 1000);
      cr_assert(got.outcome == SPILE_ALLOWED, "%d %s", i, got.error.message);
    }
    rig.now_ms += 10000;
    clean_all(store, SPILE_CLEAN_FULL, rig.now_ms);
    clean_all(store, SPILE_CLEAN_SIMULATED, rig.now_ms);
    rig_close(store);
  }
  rig_stop(&rig);
}

Test(lmdb, says_how_full_it_is) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store?map_size=1MiB");
  spile_spec spec = spec_of("usage", 1, 1, 3600000);
  spile_usage before = SPILE_USAGE_INIT;
  store->ops->usage(store, &before);
  cr_assert(eq(i64, before.buckets, 0));
  cr_assert(eq(i64, before.buckets_max, SPILE_UNKNOWN));
  cr_assert(eq(i64, before.bytes_max, 1 << 20));
  for (int i = 0; i < 1000; i++) {
    char key[16];
    (void)snprintf(key, sizeof(key), "%d", i);
    cr_assert(eq(int, take_one(store, &spec, key), SPILE_ALLOWED));
  }
  spile_usage after = SPILE_USAGE_INIT;
  store->ops->usage(store, &after);
  cr_assert(eq(i64, after.buckets, 1000));
  /* A bucket takes 30 bytes at the least, and its page is not full. */
  cr_assert(le(i64, before.bytes + 30000, after.bytes));
  cr_assert(le(i64, after.bytes, after.bytes_max));
  /* Cleaned pages are free again, though the file does not get shorter. */
  atomic_fetch_add(&rig.now_ms, 7200000);
  clean_all(store, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  spile_usage cleaned = SPILE_USAGE_INIT;
  store->ops->usage(store, &cleaned);
  cr_assert(eq(i64, cleaned.buckets, 0));
  cr_assert(lt(i64, cleaned.bytes, after.bytes));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb, the_size_follows_the_live_keys) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store?map_size=1MiB");
  spile_spec brief = spec_of("brief", 1, 1, 10);
  spile_spec lasting = spec_of("lasting", 1, 1, HOUR_MS);
  cr_assert(eq(int, take_one(store, &lasting, "k"), SPILE_ALLOWED));
  size_t most = 0;
  for (int i = 0; i < 100000; i++) {
    char key[32];
    (void)snprintf(key, sizeof(key), "visitor-%d", i);
    rig.now_ms += i % 2;
    cr_assert(eq(int, take_one(store, &brief, key), SPILE_ALLOWED));
    size_t stored = i % 5000 == 0 ? show(store).production : 0;
    most = stored > most ? stored : most;
  }
  /* Alive at a time: two each millisecond, for 10 ms and the tolerance, which is 2,020; the sweep needs a round. */
  cr_assert(lt(sz, most, 4000));
  cr_assert(eq(int, take_one(store, &lasting, "k"), SPILE_DENIED));
  rig_close(store);
  rig_stop(&rig);
}

/* ---- Given times ---- */

Test(lmdb, each_kind_of_cleaning_removes_its_own_kind) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, 1000);
  spile_store *production = rig_open(&rig, "store");
  spile_store *mine;
  spile_store *theirs;
  spile_error error;
  cr_assert(eq(int, rig_try(&rig, "store", "mine", true, &mine, &error), SPILE_OK));
  cr_assert(eq(int, rig_try(&rig, "store", "theirs", true, &theirs, &error), SPILE_OK));
  char key[600];
  memset(key, 'k', sizeof(key));
  for (int i = 0; i < 300; i++) {
    int written = snprintf(key, sizeof(key), "%d", i);
    size_t len = i % 3 == 0 ? sizeof(key) : (size_t)written;
    cr_assert(eq(int, ask(production, SPILE_VERB_TAKE, &spec, key, len, 1, SPILE_STORE_TIME, 1000).outcome, 1));
    cr_assert(eq(int, ask(mine, SPILE_VERB_TAKE, &spec, key, len, 1, 1000 + i, 1000).outcome, 1));
    cr_assert(eq(int, ask(theirs, SPILE_VERB_TAKE, &spec, key, len, 1, 1000 + i, 1000).outcome, 1));
  }
  cr_assert(eq(sz, show(production).production, 300));
  cr_assert(eq(sz, show(mine).simulated, 300));
  cr_assert(eq(sz, show(mine).production, 0));

  /* On the wall clock all are long full; at 2,100 the first 101 of the given times are. */
  clean_all(mine, SPILE_CLEAN_FULL, 2100);
  cr_assert(eq(sz, show(mine).simulated, 199));
  cr_assert(eq(sz, show(theirs).simulated, 300));
  rig.now_ms += 1999;
  clean_all(production, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  cr_assert(eq(sz, show(production).production, 300));
  rig.now_ms += 1;
  clean_all(production, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  cr_assert(eq(sz, show(production).production, 0));
  cr_assert(eq(sz, show(theirs).simulated, 300));
  clean_all(mine, SPILE_CLEAN_PREFIX, 2100);
  cr_assert(eq(sz, show(mine).simulated, 0));
  cr_assert(eq(sz, show(theirs).simulated, 300));
  cr_assert(eq(int, take_one(production, &spec, "k"), SPILE_ALLOWED));
  clean_all(production, SPILE_CLEAN_SIMULATED, SPILE_STORE_TIME);
  cr_assert(eq(sz, show(theirs).simulated, 0));
  cr_assert(eq(sz, show(production).production, 1));
  rig_close(theirs);
  rig_close(mine);
  rig_close(production);
  rig_stop(&rig);
}

Test(lmdb, sweeps_on_the_wall_clock_leave_given_times_alone) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, 10);
  spile_store *store = rig_open(&rig, "store");
  spile_store *given;
  spile_error error;
  cr_assert(eq(int, rig_try(&rig, "store", "rl", true, &given, &error), SPILE_OK));
  for (int i = 0; i < 200; i++) {
    char key[32];
    (void)snprintf(key, sizeof(key), "given-%d", i);
    cr_assert(eq(int, ask(given, SPILE_VERB_TAKE, &spec, key, strlen(key), 1, 1000, 1000).outcome, SPILE_ALLOWED));
  }
  for (int i = 0; i < 5000; i++) {
    char key[32];
    (void)snprintf(key, sizeof(key), "visitor-%d", i);
    rig.now_ms++;
    cr_assert(eq(int, take_one(store, &spec, key), SPILE_ALLOWED));
  }
  shown count = show(store);
  cr_assert(eq(sz, count.simulated, 200));
  cr_assert(lt(sz, count.production, 2500));
  rig_close(given);
  rig_close(store);
  rig_stop(&rig);
}

typedef struct first_seen {
  spile_stored stored;
  char name[16];
  char key[16];
  int calls;
} first_seen;

static bool see_first(void *user, const spile_stored *stored) {
  first_seen *seen = user;
  seen->calls++;
  seen->stored = *stored;
  if (stored->key != NULL) {
    memcpy(seen->name, stored->name, stored->name_len);
    memcpy(seen->key, stored->key, stored->key_len);
  }
  return false;
}

Test(lmdb, shows_a_bucket_as_it_is_stored_and_stops_when_told) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_store *store = rig_open(&rig, "store");
  spile_spec spec = spec_of("search", 60, 2, 2000);
  char longest[SPILE_KEY_LEN_MAX] = {1};
  spile_error error = {0};
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "anna", 4, 10, SPILE_STORE_TIME, 1000).outcome, 1));
  cr_assert(eq(int, ask(store, SPILE_VERB_TAKE, &spec, "bert", 4, 10, SPILE_STORE_TIME, 1000).outcome, 1));
  rig.now_ms += 2500;
  first_seen seen = {.calls = 0};
  cr_assert(eq(int, store->ops->each(store, SPILE_STORE_TIME, 1000, see_first, &seen, &error), SPILE_OK));
  cr_assert(eq(int, seen.calls, 1));
  cr_assert(eq(str, seen.name, "search"));
  cr_assert(eq(str, seen.key, "anna"));
  cr_assert(eq(str, (char *)seen.stored.algorithm, "token_bucket"));
  cr_assert(eq(i64, seen.stored.capacity, 60));
  cr_assert(eq(i64, seen.stored.refill_tokens, 1));
  cr_assert(eq(i64, seen.stored.refill_period_ms, 1000));
  cr_assert(eq(i64, seen.stored.remaining, 52));
  cr_assert(eq(i64, seen.stored.reset_after_ms, 7500));
  cr_assert(not(seen.stored.simulated));

  rig.now_ms += 100000;
  clean_all(store, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  cr_assert(
      eq(int, ask(store, SPILE_VERB_TAKE, &spec, longest, sizeof(longest), 1, SPILE_STORE_TIME, 1000).outcome, 1));
  cr_assert(eq(int, store->ops->each(store, SPILE_STORE_TIME, 1000, see_first, &seen, &error), SPILE_OK));
  cr_assert(eq(int, seen.calls, 2));
  cr_assert(zero(ptr, (void *)seen.stored.name));
  cr_assert(seen.stored.key == NULL);
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb, refuses_an_environment_of_somebody_else) {
  lmdb_rig rig;
  rig_start(&rig);
  cr_assert(eq(int, mkdir(rig_path(&rig, "other"), 0700), 0));
  MDB_env *env;
  MDB_txn *txn;
  MDB_dbi dbi;
  MDB_val word = {3, (void *)"abc"};
  cr_assert(eq(int, mdb_env_create(&env), 0));
  cr_assert(eq(int, mdb_env_open(env, rig_path(&rig, "other"), 0, 0600), 0));
  cr_assert(eq(int, mdb_txn_begin(env, NULL, 0, &txn), 0));
  cr_assert(eq(int, mdb_dbi_open(txn, NULL, 0, &dbi), 0));
  cr_assert(eq(int, mdb_put(txn, dbi, &word, &word, 0), 0));
  cr_assert(eq(int, mdb_txn_commit(txn), 0));
  mdb_env_close(env);
  spile_store *store;
  spile_error error = {0};
  cr_assert(eq(int, rig_try(&rig, "other", "rl", false, &store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_FOREIGN));
  rig_stop(&rig);
}
