/* SPDX-License-Identifier: Apache-2.0 */
#include "lmdb_rig.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "core/decide.h"
#include "core/limit.h"
#include "limiter/env.h"

static int64_t rig_realtime_ms(void *user) {
  return ((lmdb_rig *)user)->now_ms;
}

static void rig_log(void *user, spile_log_level level, const char *line) {
  lmdb_rig *rig = user;
  (void)snprintf(rig->log, sizeof(rig->log), "%d %s", (int)level, line);
}

void rig_start(lmdb_rig *rig) {
  memset(rig, 0, sizeof(*rig));
  spile__env_init(&rig->env);
  rig->env.realtime_ms = rig_realtime_ms;
  rig->env.user = rig;
  rig->env.log = rig_log;
  rig->env.log_user = rig;
  rig->now_ms = RIG_START_MS;
  temp_dir_make(rig->dir);
}

void rig_stop(lmdb_rig *rig) {
  temp_dir_remove(rig->dir);
}

const char *rig_path(const lmdb_rig *rig, const char *tail) {
  static char path[TEMP_DIR_LEN + 256];
  (void)snprintf(path, sizeof(path), "%s/%s", rig->dir, tail);
  return path;
}

int rig_try(lmdb_rig *rig, const char *tail, const char *prefix, bool given_time, spile_store **out,
            spile_error *error) {
  *error = (spile_error){0};
  const spile__store_config config = {.address = rig_path(rig, tail),
                                      .env = &rig->env,
                                      .key_prefix = prefix,
                                      .given_time = given_time,
                                      .timeout_ms = RIG_PATIENCE_MS};
  return spile__lmdb_open(out, &config, error);
}

spile_store *rig_open(lmdb_rig *rig, const char *tail) {
  spile_store *store;
  spile_error error;
  int opened = rig_try(rig, tail, "rl", false, &store, &error);
  cr_assert(opened == SPILE_OK, "%s", error.message);
  return store;
}

void rig_close(spile_store *store) {
  store->ops->close(store, false);
}

spile_spec spec_of(const char *name, int64_t capacity, int64_t tokens, int64_t period_ms) {
  spile_spec spec = {.name = name, .name_len = strlen(name), .algorithm = SPILE_TOKEN_BUCKET};
  spile_error error = {0};
  int made = spile__shape_make(&spec.shape, capacity, tokens, period_ms, 0, &error);
  cr_assert(made == SPILE_OK, "%s", error.message);
  spile__spec_finish(&spec);
  return spec;
}

asked ask(spile_store *store, spile_verb verb, const spile_spec *spec, const void *key, size_t key_len, int64_t cost,
          int64_t now_ms, int64_t timeout_ms) {
  const spile_env *env = ((spile__lmdb_store *)store)->outside;
  asked got = {.outcome = 0};
  spile_item item = {.key = key, .key_len = key_len, .spec = spec, .cost = cost};
  spile_call call = {.verb = verb,
                     .items = &item,
                     .n = 1,
                     .now_ms = now_ms,
                     .deadline_ms = env->monotonic_ms(env->user) + timeout_ms,
                     .error = &got.error};
  got.outcome = store->ops->decide(store, &call);
  if (got.outcome == SPILE_OK)
    got.outcome = spile__decide_call(&call, &got.decision, NULL);
  return got;
}

int take_one(spile_store *store, const spile_spec *spec, const char *key) {
  asked got = ask(store, SPILE_VERB_TAKE, spec, key, strlen(key), 1, SPILE_STORE_TIME, RIG_PATIENCE_MS);
  cr_assert(got.outcome > 0, "%s", got.error.message);
  return got.outcome;
}

static bool show_one(void *user, const spile_stored *stored) {
  shown *count = user;
  if (stored->simulated)
    count->simulated++;
  else
    count->production++;
  return true;
}

shown show(spile_store *store) {
  shown count = {0};
  spile_error error = {0};
  int walked = store->ops->each(store, SPILE_STORE_TIME, RIG_PATIENCE_MS, show_one, &count, &error);
  cr_assert(walked == SPILE_OK, "%s", error.message);
  return count;
}

void clean_all(spile_store *store, spile_clean_what what, int64_t now_ms) {
  const spile_env *env = ((spile__lmdb_store *)store)->outside;
  spile_error error = {0};
  bool again = true;
  while (again) {
    int64_t deadline_ms = env->monotonic_ms(env->user) + RIG_PATIENCE_MS;
    int cleaned = store->ops->clean(store, what, now_ms, deadline_ms, &again, &error);
    cr_assert(cleaned == SPILE_OK, "%s", error.message);
  }
}

size_t last_write(spile_store *store) {
  MDB_envinfo info;
  (void)mdb_env_info(((spile__lmdb_store *)store)->env->mdb, &info);
  return info.me_last_txnid;
}

void child_done(pid_t child) {
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  cr_assert(eq(int, status, 0));
}
