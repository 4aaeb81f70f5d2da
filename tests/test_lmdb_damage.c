/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data files that are damaged when they are opened. LMDB itself ends the process on most of them, so each is opened in
 * a child: it must say what is wrong or answer rightly, and repair must make the store usable again.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/lmdb_check.h"
#include "lmdb_rig.h"

#define HOUR_MS 3600000
#define PAGE 4096
#define TAIL "store?map_size=1MiB"

enum { KEYS = 1500, CAPACITY = 9 };

static uint64_t seed;

static uint64_t draw(uint64_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed % below;
}

/* A hash key that is the same in every run, so that a round that fails can be repeated. */
static bool same_random(void *user, void *bytes, size_t size) {
  (void)user;
  memset(bytes, 0x5a, size);
  return true;
}

/* Every seventh key is too long for LMDB, so that it is stored as a hash. */
static const char *key_of(int i) {
  static char key[700];
  (void)snprintf(key, sizeof(key), i % 7 == 0 ? "%0600d" : i % 3 == 0 ? "%090d" : "key-%d", i);
  return key;
}

static int charges_of(int i) {
  return 1 + i % 5;
}

/* A store of some levels with free pages, whose buckets are known. */
static void store_fill(lmdb_rig *rig, const spile_spec *spec) {
  spile_store *store = rig_open(rig, TAIL);
  for (int i = 0; i < KEYS; i++) {
    for (int n = 0; n < charges_of(i); n++)
      cr_assert(eq(int, take_one(store, spec, key_of(i)), SPILE_ALLOWED));
  }
  spile_error error = {0};
  for (int i = KEYS; i < KEYS + 200; i++) {
    const char *key = key_of(i);
    cr_assert(eq(int, take_one(store, spec, key), SPILE_ALLOWED));
    spile_item item = {.key = key, .key_len = strlen(key), .spec = spec};
    cr_assert(eq(int, store->ops->clear(store, &item, INT64_MAX, &error), SPILE_OK));
  }
  rig_close(store);
}

typedef struct image {
  unsigned char *bytes;
  size_t size;
  size_t used; /* bytes of pages in use */
} image;

static image image_read(const lmdb_rig *rig) {
  image file = {0};
  int fd = open(rig_path(rig, "store/data.mdb"), O_RDONLY);
  struct stat status;
  cr_assert(fd >= 0 && fstat(fd, &status) == 0);
  file.size = (size_t)status.st_size;
  file.bytes = malloc(file.size);
  cr_assert(eq(sz, (size_t)read(fd, file.bytes, file.size), file.size));
  (void)close(fd);
  for (file.used = file.size; file.used > 0 && file.bytes[file.used - 1] == 0;)
    file.used--;
  file.used = (file.used + PAGE - 1) / PAGE * PAGE;
  return file;
}

static void image_write(const lmdb_rig *rig, const unsigned char *bytes, size_t size) {
  int fd = open(rig_path(rig, "store/data.mdb"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  cr_assert(fd >= 0);
  cr_assert(eq(sz, (size_t)write(fd, bytes, size), size));
  (void)close(fd);
}

/* ---- Damages ---- */

typedef struct damage {
  const char *name;
  /* Changes `bytes`. @return the size of the file */
  size_t (*make)(unsigned char *bytes, const image *whole);
} damage;

static void flip(unsigned char *at) {
  *at ^= (unsigned char)(1U << draw(8));
}

static size_t make_bit(unsigned char *bytes, const image *whole) {
  flip(bytes + draw(whole->used));
  return whole->size;
}

/* Of a page's head or the array behind it, where LMDB looks first. */
static size_t make_head_bit(unsigned char *bytes, const image *whole) {
  flip(bytes + draw(whole->used / PAGE) * PAGE + draw(64));
  return whole->size;
}

static size_t make_meta_bit(unsigned char *bytes, const image *whole) {
  flip(bytes + draw(2) * PAGE + draw(152));
  return whole->size;
}

static size_t make_noise(unsigned char *bytes, const image *whole) {
  size_t at = draw(whole->used);
  size_t len = 1 + draw(64);
  for (size_t i = at; i < at + len && i < whole->used; i++)
    bytes[i] = (unsigned char)draw(256);
  return whole->size;
}

static size_t make_cut(unsigned char *bytes, const image *whole) {
  (void)bytes;
  return draw(2) == 0 ? draw(whole->used) : draw(whole->used / PAGE) * PAGE;
}

static size_t make_zeros(unsigned char *bytes, const image *whole) {
  memset(bytes + draw(whole->used / PAGE) * PAGE, 0, PAGE);
  return whole->size;
}

static size_t make_swap(unsigned char *bytes, const image *whole) {
  unsigned char kept[PAGE];
  unsigned char *a = bytes + draw(whole->used / PAGE) * PAGE;
  unsigned char *b = bytes + draw(whole->used / PAGE) * PAGE;
  memcpy(kept, a, PAGE);
  memmove(a, b, PAGE);
  memcpy(b, kept, PAGE);
  return whole->size;
}

/* An older version of a page, or another one, under the right number. */
static size_t make_stale(unsigned char *bytes, const image *whole) {
  unsigned char *a = bytes + draw(whole->used / PAGE) * PAGE;
  const unsigned char *b = whole->bytes + draw(whole->used / PAGE) * PAGE;
  memcpy(a + 8, b + 8, PAGE - 8);
  return whole->size;
}

static size_t make_page_noise(unsigned char *bytes, const image *whole) {
  unsigned char *page = bytes + draw(whole->used / PAGE) * PAGE;
  for (size_t i = draw(2) * 16; i < PAGE; i++)
    page[i] = (unsigned char)draw(256);
  return whole->size;
}

static size_t make_all_noise(unsigned char *bytes, const image *whole) {
  size_t size = 1 + draw(whole->used);
  for (size_t i = draw(2) * 200; i < size; i++)
    bytes[i] = (unsigned char)draw(256);
  return size;
}

static const damage damages[] = {
    {"a bit", make_bit},
    {"a bit of a page's head", make_head_bit},
    {"a bit of a meta page", make_meta_bit},
    {"some bytes", make_noise},
    {"cut", make_cut},
    {"a zeroed page", make_zeros},
    {"two pages swapped", make_swap},
    {"another page's content", make_stale},
    {"a page of noise", make_page_noise},
    {"all noise", make_all_noise},
};

enum { DAMAGES = sizeof(damages) / sizeof(damages[0]) };

/* ---- What a child finds ---- */

enum { REFUSED = 10, RIGHT, RECORDS, LOST, WRONG, UNCLEAR, OUTCOMES };

static bool said_why(const asked *got) {
  return got->outcome == SPILE_EUNAVAILABLE && got->error.message[0] != '\0' &&
         (got->error.reason == SPILE_REASON_CORRUPT || got->error.reason == SPILE_REASON_FOREIGN ||
          got->error.reason == SPILE_REASON_FORMAT);
}

/* Peeks at every bucket; takes of some, of new ones and of many more; cleans and shows. */
static int child_use(lmdb_rig *rig, spile_store *store, const spile_spec *spec) {
  bool told = strstr(rig->log, "records cannot be read") != NULL;
  int broken = 0;
  int lost = 0;
  for (int i = 0; i < KEYS; i++) {
    const char *key = key_of(i);
    asked got = ask(store, SPILE_VERB_PEEK, spec, key, strlen(key), 0, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    if (got.outcome == SPILE_ALLOWED && got.decision.remaining == CAPACITY - charges_of(i))
      continue;
    if (got.outcome == SPILE_ALLOWED && got.decision.remaining == CAPACITY && told)
      lost++;
    else if (said_why(&got))
      broken++;
    else
      return got.outcome > 0 ? WRONG : UNCLEAR;
  }
  for (int i = 0; i < KEYS + 400; i += 3) {
    const char *key = key_of(i);
    asked got = ask(store, SPILE_VERB_TAKE, spec, key, strlen(key), 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
    if (got.outcome != SPILE_ALLOWED && got.outcome != SPILE_EFULL && !said_why(&got))
      return UNCLEAR;
  }
  (void)show(store);
  rig->now_ms += INT64_C(100) * HOUR_MS;
  clean_all(store, SPILE_CLEAN_FULL, SPILE_STORE_TIME);
  rig_close(store);
  return broken > 0 ? RECORDS : lost > 0 ? LOST : RIGHT;
}

static int child_open(lmdb_rig *rig, const spile_spec *spec) {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  /* One that turns in circles is as bad as one that crashes, and counts as such. */
  (void)alarm(30);
  spile_store *store;
  asked got = {0};
  got.outcome = rig_try(rig, TAIL, "rl", false, &store, &got.error);
  if (got.outcome == SPILE_OK)
    return child_use(rig, store, spec);
  bool names_the_way = got.error.reason == SPILE_REASON_FOREIGN || strstr(got.error.message, "spile repair") != NULL;
  return said_why(&got) && names_the_way ? REFUSED : UNCLEAR;
}

static int child_run(lmdb_rig *rig, const spile_spec *spec) {
  pid_t child = fork();
  if (child == 0)
    _exit(child_open(rig, spec));
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int repair(const lmdb_rig *rig, char moved_to[600], spile_error *error) {
  char uri[600];
  (void)snprintf(uri, sizeof(uri), "lmdb:%s", rig_path(rig, "store"));
  *error = (spile_error){0};
  return spile_repair(uri, NULL, moved_to, 600, error);
}

Test(lmdb_damage, a_thousand_damaged_files_crash_nobody_and_none_answers_wrongly) {
  enum { ROUNDS = 1000 };
  lmdb_rig rig;
  rig_start(&rig);
  rig.env.random = same_random;
  spile_spec spec = spec_of("default", CAPACITY, 1, HOUR_MS);
  store_fill(&rig, &spec);
  image whole = image_read(&rig);
  unsigned char *bytes = malloc(whole.size);
  int counts[DAMAGES][OUTCOMES] = {{0}};
  cr_assert(eq(int, child_run(&rig, &spec), RIGHT));
  for (int round = 0; round < ROUNDS; round++) {
    seed = (uint64_t)round * 2654435761U + 88172645463325252U;
    const damage *kind = &damages[round % DAMAGES];
    memcpy(bytes, whole.bytes, whole.size);
    image_write(&rig, bytes, kind->make(bytes, &whole));
    int got = child_run(&rig, &spec);
    cr_assert(got >= 0, "round %d, %s: signal %d", round, kind->name, -got);
    cr_assert(got >= REFUSED && got != WRONG && got != UNCLEAR, "round %d, %s: %d", round, kind->name, got);
    counts[round % DAMAGES][got]++;
    if (got != REFUSED)
      continue;
    char moved_to[600];
    spile_error error;
    cr_assert(repair(&rig, moved_to, &error) == SPILE_OK, "round %d: %s", round, error.message);
    cr_assert(moved_to[0] != '\0');
    cr_assert(eq(int, unlink(moved_to), 0));
  }
  (void)fprintf(stderr, "%-24s refused right record lost\n", "damage");
  for (int i = 0; i < DAMAGES; i++)
    (void)fprintf(stderr, "%-24s %7d %5d %6d %4d\n", damages[i].name, counts[i][REFUSED], counts[i][RIGHT],
                  counts[i][RECORDS], counts[i][LOST]);
  free(bytes);
  free(whole.bytes);
  rig_stop(&rig);
}

static void expect_refused(lmdb_rig *rig, const char *what) {
  spile_store *store;
  spile_error error;
  cr_assert(rig_try(rig, TAIL, "rl", false, &store, &error) == SPILE_EUNAVAILABLE, "%s", what);
  cr_assert(error.reason == SPILE_REASON_CORRUPT, "%s: %s", what, error.message);
}

/* Behind a meta page's head of 16 bytes its transaction's number stands at 128. */
static uint64_t *transaction_of(const image *file, size_t page) {
  return (uint64_t *)(void *)(file->bytes + page * PAGE + 16 + 128);
}

Test(lmdb_damage, an_old_state_does_not_pass_for_the_newest) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", CAPACITY, 1, HOUR_MS);
  store_fill(&rig, &spec);
  image file = image_read(&rig);
  size_t newest = *transaction_of(&file, 1) > *transaction_of(&file, 0);
  static const int64_t changes[] = {-4, -1, 1, 2, 4, 1 << 20};
  for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
    *transaction_of(&file, newest) += (uint64_t)changes[i];
    image_write(&rig, file.bytes, file.size);
    *transaction_of(&file, newest) -= (uint64_t)changes[i];
    char what[32];
    (void)snprintf(what, sizeof(what), "%d", (int)changes[i]);
    expect_refused(&rig, what);
  }
  free(file.bytes);
  rig_stop(&rig);
}

/* Changes the length of the second value in every leaf, so that it ends early or reaches into the next. */
static void leaves_change(unsigned char *bytes, size_t used, int change) {
  for (size_t at = 2 * PAGE; at < used; at += PAGE) {
    unsigned char *page = bytes + at;
    uint16_t offset;
    memcpy(&offset, page + 18, sizeof(offset));
    if (page[10] != 2 || page[11] != 0 || offset < 16 || offset >= PAGE - 100)
      continue;
    uint16_t len;
    memcpy(&len, page + offset, sizeof(len));
    len = (uint16_t)(len + change);
    memcpy(page + offset, &len, sizeof(len));
  }
}

Test(lmdb_damage, entries_that_leave_gaps_or_overlap_are_found) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", CAPACITY, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, TAIL);
  for (int i = 0; i < 20; i++)
    cr_assert(eq(int, take_one(store, &spec, key_of(i)), SPILE_ALLOWED));
  rig_close(store);
  image file = image_read(&rig);
  static const int changes[] = {-2, 2};
  for (size_t i = 0; i < 2; i++) {
    leaves_change(file.bytes, file.used, changes[i]);
    image_write(&rig, file.bytes, file.size);
    leaves_change(file.bytes, file.used, -changes[i]);
    expect_refused(&rig, changes[i] < 0 ? "gaps" : "overlap");
  }
  free(file.bytes);
  rig_stop(&rig);
}

/* ---- Single records ---- */

/* Changes a bit of a stored record, past the library. */
static void record_flip(spile_store *store, const spile_item *item) {
  spile__lmdb_env *env = ((spile__lmdb_store *)store)->env;
  spile__lmdb_key key;
  spile__lmdb_key_make(&key, SPILE__LMDB_PRODUCTION, "rl", item, env->secret);
  MDB_val name = {key.len, key.bytes};
  MDB_val value;
  MDB_txn *txn;
  unsigned char record[56];
  cr_assert(eq(int, mdb_txn_begin(env->mdb, NULL, 0, &txn), 0));
  cr_assert(eq(int, mdb_get(txn, env->dbi, &name, &value), 0));
  cr_assert(eq(sz, value.mv_size, sizeof(record)));
  memcpy(record, value.mv_data, sizeof(record));
  record[40] ^= 1;
  value.mv_data = record;
  cr_assert(eq(int, mdb_put(txn, env->dbi, &name, &value, 0), 0));
  cr_assert(eq(int, mdb_txn_commit(txn), 0));
}

Test(lmdb_damage, a_damaged_record_fails_its_bucket_until_it_is_cleared_and_no_other) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", CAPACITY, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, TAIL);
  cr_assert(eq(int, take_one(store, &spec, "victim"), SPILE_ALLOWED));
  cr_assert(eq(int, take_one(store, &spec, "other"), SPILE_ALLOWED));
  spile_item item = {.key = "victim", .key_len = 6, .spec = &spec};
  record_flip(store, &item);
  rig_close(store);
  store = rig_open(&rig, TAIL);
  cr_assert(strstr(rig.log, "1 records cannot be read") != NULL, "%s", rig.log);
  asked got = ask(store, SPILE_VERB_TAKE, &spec, "victim", 6, 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(eq(int, got.outcome, SPILE_EUNAVAILABLE));
  cr_assert(eq(int, got.error.reason, SPILE_REASON_CORRUPT));
  cr_assert(strstr(got.error.message, "clear the bucket") != NULL, "%s", got.error.message);
  cr_assert(eq(int, take_one(store, &spec, "other"), SPILE_ALLOWED));
  got.error = (spile_error){0};
  cr_assert(eq(int, store->ops->clear(store, &item, INT64_MAX, &got.error), SPILE_OK));
  cr_assert(eq(int, take_one(store, &spec, "victim"), SPILE_ALLOWED));
  rig_close(store);
  char moved_to[600];
  spile_error error;
  cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_OK));
  cr_assert(eq(str, moved_to, ""));
  rig_stop(&rig);
}

/* ---- Foreign files ---- */

/* A database of another program: named databases, long values, or values for which a key has several. */
static void foreign_make(const lmdb_rig *rig, unsigned flags, bool named) {
  (void)mkdir(rig_path(rig, "store"), 0700);
  MDB_env *env;
  MDB_txn *txn;
  MDB_dbi dbi;
  cr_assert(eq(int, mdb_env_create(&env), 0));
  (void)mdb_env_set_maxdbs(env, 4);
  (void)mdb_env_set_mapsize(env, 8 << 20);
  cr_assert(eq(int, mdb_env_open(env, rig_path(rig, "store"), MDB_NOSYNC, 0600), 0));
  cr_assert(eq(int, mdb_txn_begin(env, NULL, 0, &txn), 0));
  cr_assert(eq(int, mdb_dbi_open(txn, named ? "people" : NULL, MDB_CREATE | flags, &dbi), 0));
  for (int i = 0; i < 300; i++) {
    char key[16];
    char value[9000] = {0};
    (void)snprintf(key, sizeof(key), "%d", i);
    MDB_val name = {strlen(key), key};
    MDB_val content = {(flags & MDB_DUPSORT) != 0 ? 8 : (size_t)(i * 30), value};
    cr_assert(eq(int, mdb_put(txn, dbi, &name, &content, 0), 0));
  }
  cr_assert(eq(int, mdb_txn_commit(txn), 0));
  mdb_env_close(env);
}

Test(lmdb_damage, another_programs_database_is_refused_and_left_alone) {
  for (int named = 0; named < 2; named++) {
    lmdb_rig rig;
    rig_start(&rig);
    foreign_make(&rig, 0, named == 1);
    image before = image_read(&rig);
    spile_store *store;
    spile_error error;
    cr_assert(eq(int, rig_try(&rig, TAIL, "rl", false, &store, &error), SPILE_EUNAVAILABLE));
    cr_assert(error.reason == SPILE_REASON_FOREIGN, "%s", error.message);
    char moved_to[600];
    cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_EUNAVAILABLE));
    cr_assert(error.reason == SPILE_REASON_FOREIGN, "%s", error.message);
    image after = image_read(&rig);
    cr_assert(eq(sz, before.size, after.size));
    cr_assert(memcmp(before.bytes, after.bytes, before.size) == 0);
    free(before.bytes);
    free(after.bytes);
    rig_stop(&rig);
  }
}

/* Settings that this store never uses cannot be told from damage. */
Test(lmdb_damage, a_database_of_other_settings_is_refused) {
  lmdb_rig rig;
  rig_start(&rig);
  foreign_make(&rig, MDB_DUPSORT, false);
  spile_store *store;
  spile_error error;
  cr_assert(eq(int, rig_try(&rig, TAIL, "rl", false, &store, &error), SPILE_EUNAVAILABLE));
  cr_assert(error.reason == SPILE_REASON_CORRUPT, "%s", error.message);
  rig_stop(&rig);
}

/* ---- Repair ---- */

Test(lmdb_damage, repair_keeps_every_damaged_file_under_a_name_of_its_own) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  for (int n = 1; n <= 3; n++) {
    char wanted[600];
    char moved_to[600];
    spile_error error;
    rig_close(rig_open(&rig, "store"));
    cr_assert(eq(int, truncate(rig_path(&rig, "store/data.mdb"), 2 * PAGE + n), 0));
    cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_OK));
    char tail[64];
    (void)snprintf(tail, sizeof(tail), "store/data.mdb.damaged-%d", n);
    (void)snprintf(wanted, sizeof(wanted), "%s", rig_path(&rig, tail));
    cr_assert(eq(str, moved_to, wanted));
    for (int old = 1; old <= n; old++) {
      struct stat status;
      (void)snprintf(tail, sizeof(tail), "store/data.mdb.damaged-%d", old);
      cr_assert(eq(int, stat(rig_path(&rig, tail), &status), 0));
      cr_assert(eq(i64, (int64_t)status.st_size, 2 * PAGE + old));
    }
    spile_store *store = rig_open(&rig, "store");
    cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
    rig_close(store);
  }
  rig_stop(&rig);
}

Test(lmdb_damage, repair_leaves_what_is_sound_empty_or_not_there_alone) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  char moved_to[600];
  spile_error error;
  cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, mkdir(rig_path(&rig, "store"), 0700), 0));
  cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_OK));
  cr_assert(eq(str, moved_to, ""));
  cr_assert(ne(int, access(rig_path(&rig, "store/spile.lock"), F_OK), 0));
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_OK));
  cr_assert(eq(str, moved_to, ""));
  store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb_damage, repair_is_refused_while_anybody_has_the_store_open) {
  lmdb_rig rig;
  rig_start(&rig);
  char moved_to[600];
  spile_error error;
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, repair(&rig, moved_to, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_BUSY));
  cr_assert(strstr(error.message, "this process") != NULL, "%s", error.message);
  pid_t child = fork();
  if (child == 0) {
    int result = repair(&rig, moved_to, &error);
    _exit(result != SPILE_EUNAVAILABLE || error.reason != SPILE_REASON_BUSY ||
          strstr(error.message, "another process") == NULL);
  }
  child_done(child);
  rig_close(store);
  rig_stop(&rig);
}

/* Another file would be another store, beside the one that they use. */
Test(lmdb_damage, a_data_file_removed_under_others_is_not_made_anew) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  spile_store *store = rig_open(&rig, "store");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  cr_assert(eq(int, unlink(rig_path(&rig, "store/data.mdb")), 0));
  pid_t child = fork();
  if (child == 0) {
    spile_store *other;
    spile_error error = {0};
    int result = rig_try(&rig, "store", "rl", false, &other, &error);
    _exit(result != SPILE_EUNAVAILABLE || error.reason != SPILE_REASON_IO ||
          strstr(error.message, "was removed while other processes have it open") == NULL);
  }
  child_done(child);
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_DENIED));
  rig_close(store);
  store = rig_open(&rig, "store");
  cr_assert(strstr(rig.log, "the data file is gone") != NULL, "%s", rig.log);
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}

Test(lmdb_damage, repair_says_what_is_wrong_with_its_arguments) {
  char room[64];
  spile_error error = {0};
  cr_assert(eq(int, spile_repair(NULL, NULL, room, sizeof(room), NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_repair("lmdb:/tmp/x", NULL, room, 0, NULL), SPILE_EINVAL));
  cr_assert(eq(int, spile_repair("lmdb:/tmp/x", NULL, room, 20, &error), SPILE_EINVAL));
  cr_assert(strstr(error.message, "moved_to") != NULL, "%s", error.message);
  cr_assert(eq(int, spile_repair("memory:", NULL, room, sizeof(room), NULL), SPILE_ENOTSUP));
  cr_assert(eq(int, spile_repair("lmdb:", NULL, NULL, 0, NULL), SPILE_ECONFIG));
}

/* Who was killed while making the file has lost nothing. */
Test(lmdb_damage, an_unfinished_new_file_is_made_again) {
  lmdb_rig rig;
  rig_start(&rig);
  spile_spec spec = spec_of("default", 1, 1, HOUR_MS);
  cr_assert(eq(int, mkdir(rig_path(&rig, "fresh"), 0700), 0));
  MDB_env *env;
  cr_assert(eq(int, mdb_env_create(&env), 0));
  cr_assert(eq(int, mdb_env_open(env, rig_path(&rig, "fresh"), 0, 0600), 0));
  mdb_env_close(env);
  cr_assert(eq(int, truncate(rig_path(&rig, "fresh/data.mdb"), PAGE), 0));
  spile_store *store = rig_open(&rig, "fresh");
  cr_assert(eq(int, take_one(store, &spec, "k"), SPILE_ALLOWED));
  rig_close(store);
  rig_stop(&rig);
}
