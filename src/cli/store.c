/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/store.h"

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

enum { ADDRESS_SIZE = PATH_MAX * 3 + 8 };

/* Makes every directory on the way to `path`, which may be cut at any '/'. @return 0 or an errno */
static int parents_make(char *path) {
  for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    int result = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
    *slash = '/';
    if (result != 0)
      return result;
  }
  return 0;
}

/* "lmdb:" and the path, percent-encoded where a '?' or '%' would be read as something else. */
static void address_make(char *address, const char *path) {
  size_t n = (size_t)snprintf(address, ADDRESS_SIZE, "lmdb:");
  for (const char *c = path; *c != '\0'; c++) {
    bool special = *c == '%' || *c == '?' || *c == '&';
    n += (size_t)snprintf(address + n, ADDRESS_SIZE - n, special ? "%%%02X" : "%c", (unsigned char)*c);
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
  int failure = parents_make(path);
  if (failure != 0)
    return message(EXIT_STORE, "cannot make the state directory %s: %s; give --store URI or set SPILE_STORE", path,
                   strerror(failure));
  address_make(address, path);
  return EXIT_ALLOWED;
}

/* ---- Opening ---- */

static void store_log(void *user, spile_log_level level, const char *line) {
  (void)user;
  if (level <= SPILE_LOG_WARNING)
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

int store_open(spile_limiter **out, const char *uri, int64_t timeout_ms, const int64_t *clock, const char *key_prefix) {
  *out = NULL;
  char address[ADDRESS_SIZE];
  if (uri == NULL)
    uri = getenv("SPILE_STORE");
  if (uri == NULL || uri[0] == '\0') {
    int status = default_address(address);
    if (status != EXIT_ALLOWED)
      return status;
    uri = address;
  }
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  options.key_prefix = key_prefix;
  options.log = store_log;
  if (clock != NULL) {
    options.now_ms = clock_read;
    options.clock = (void *)(uintptr_t)clock; /* only read */
  }
  spile_error error = {0};
  int result = spile_open(out, uri, &options, &error);
  return result == SPILE_OK ? EXIT_ALLOWED : store_failed(result, error.reason, error.message);
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
  return store_open(out, uri, timeout_ms, clock, key_prefix);
}
