/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store.h"

#include <spile/sys/store.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "cli/output.h"

/* ---- The default store ---- */

/* "lmdb:" and the path, percent-encoded where a '?' or '%' would be read as something else. */
static void address_make(char *address, const char *path) {
  size_t n = (size_t)snprintf(address, STORE_ADDRESS_SIZE, "lmdb:");
  for (const char *c = path; *c != '\0'; c++) {
    bool special = *c == '%' || *c == '?' || *c == '&';
    n += (size_t)snprintf(address + n, STORE_ADDRESS_SIZE - n, special ? "%%%02X" : "%c", (unsigned char)*c);
  }
}

static int default_address(char *address) {
  char path[PATH_MAX];
  int len = -1;
  const char *state = getenv("XDG_STATE_HOME");
  const char *home = getenv("HOME");
  /* The XDG specification has relative paths ignored. */
  if (state != NULL && state[0] == '/')
    len = snprintf(path, sizeof(path), "%s/spile", state);
  else if (home != NULL && home[0] == '/')
    len = snprintf(path, sizeof(path), "%s/.local/state/spile", home);
  if (len < 0)
    return message(EXIT_USAGE,
                   "no place for a store: neither XDG_STATE_HOME nor HOME is an absolute path; give --store "
                   "URI or set SPILE_STORE");
  if ((size_t)len >= sizeof(path))
    return message(EXIT_USAGE, "the state directory's path is too long; give --store URI or set SPILE_STORE");
  address_make(address, path);
  return EXIT_ALLOWED;
}

/* ---- Opening ---- */

int store_find(const char **uri, char address[STORE_ADDRESS_SIZE]) {
  if (*uri == NULL)
    *uri = getenv("SPILE_STORE");
  if (*uri != NULL && (*uri)[0] != '\0')
    return EXIT_ALLOWED;
  *uri = address;
  return default_address(address);
}

/* Errors are answers that the store did not give; the verbs tell them, once. */
void store_log(void *user, spile_log_level level, const char *line) {
  (void)user;
  if (level == SPILE_LOG_WARNING)
    (void)message(0, "%s", line);
}

static int64_t clock_read(void *clock) {
  return *(const int64_t *)clock;
}

int store_failed(int code, int reason, const char *detail) {
  bool usage = code == SPILE_EINVAL || code == SPILE_ECONFIG || code == SPILE_ENOTSUP;
  int status = usage ? EXIT_USAGE : EXIT_STORE;
  const char *text = detail[0] != '\0' ? detail : spile_code_text(code);
  if (reason == SPILE_REASON_NONE)
    return message(status, "%s", text);
  return message(status, "%s (%s): %s", spile_code_text(SPILE_EUNAVAILABLE), spile_reason_name(reason), text);
}

/* ---- A store that could not be opened ---- */

/* It answers every question with why, so that the limits' on_store_error decides as it does about any other failure. */
typedef struct broken_store {
  spile_store base;
  spile_error error;
} broken_store;

static int broken_fail(const spile_store *store, spile_error *error) {
  *error = ((const broken_store *)(const void *)store)->error;
  return error->code;
}

static int broken_decide(spile_store *store, spile_call *call) {
  return broken_fail(store, call->error);
}

static int broken_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)item;
  (void)deadline_ms;
  return broken_fail(store, error);
}

static int broken_clean(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                        spile_error *error) {
  (void)what;
  (void)now_ms;
  (void)deadline_ms;
  (void)again;
  return broken_fail(store, error);
}

static int broken_each(spile_store *store, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                       spile_error *error) {
  (void)now_ms;
  (void)timeout_ms;
  (void)visit;
  (void)user;
  return broken_fail(store, error);
}

static void broken_close(spile_store *store, bool forked) {
  (void)store;
  (void)forked;
}

static const spile_store_ops broken_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "store",
    .decide = broken_decide,
    .clear = broken_clear,
    .clean = broken_clean,
    .each = broken_each,
    .close = broken_close,
};

int store_open(spile_limiter **out, const char *uri, const store_settings *settings) {
  *out = NULL;
  char address[STORE_ADDRESS_SIZE];
  int status = store_find(&uri, address);
  if (status != EXIT_ALLOWED)
    return status;
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = settings->timeout_ms;
  options.on_store_error = (int)settings->on_store_error;
  options.key_prefix = settings->key_prefix;
  options.secret_file = settings->secret_file;
  options.log = store_log;
  if (settings->clock != NULL) {
    options.now_ms = clock_read;
    options.clock = (void *)(uintptr_t)settings->clock; /* only read */
  }
  spile_error error = {0};
  int result = spile_open(out, uri, &options, &error);
  if (result == SPILE_EUNAVAILABLE) {
    static broken_store broken;
    broken = (broken_store){.base = {&broken_ops}, .error = error};
    result = spile_open_store(out, &broken.base, &options, &error);
  }
  return result == SPILE_OK ? EXIT_ALLOWED : store_failed(result, error.reason, error.message);
}

uint64_t store_keys_of(const spile_limit *limit) {
  const spile_spec *spec = spile_limit_spec(limit);
  if (spec->algorithm == SPILE_SLIDING_LOG)
    return 1 + ((uint64_t)spec->shape.capacity + 13) / 14;
  return spec->algorithm == SPILE_SLIDING_WINDOW ? 2 : 1;
}

uint64_t store_keys_needed(const cli_options *options, uint64_t keys) {
  static const uint64_t most = 100000000;
  uint64_t each = 0;
  for (size_t i = 0; i < options->limit_count; i++)
    each += store_keys_of(options->limits[i]);
  return keys <= most / (each > 0 ? each : 1) ? keys * each : most;
}

bool store_is_sized(const char *uri) {
  return uri == NULL || strcmp(uri, "memory:") == 0;
}

int store_open_simulated(spile_limiter **out, const char *uri, int64_t timeout_ms, const int64_t *clock,
                         uint64_t buckets) {
  *out = NULL;
  uint64_t random[2];
  if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
    return message(EXIT_STORE, "the system has no random bytes for a key prefix: %s", strerror(errno));
  char key_prefix[48];
  (void)snprintf(key_prefix, sizeof(key_prefix), "sim-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
  char address[48];
  if (store_is_sized(uri)) {
    (void)snprintf(address, sizeof(address), "memory:?keys=%" PRIu64, buckets > 0 ? buckets : 1);
    uri = address;
  }
  /* What was not decided by the store is no simulation of it. */
  store_settings settings = {
      .timeout_ms = timeout_ms, .on_store_error = SPILE_ON_STORE_ERROR_FAIL, .clock = clock, .key_prefix = key_prefix};
  return store_open(out, uri, &settings);
}
