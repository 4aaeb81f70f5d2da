/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Prometheus sees of limits files: counters go on when a file is loaded again, shadow limits are counted apart,
 * and no caller is ever named.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/limits.h>
#include <spile/metrics.h>
#include <spile/testing.h>

#include "limits_text.h"
#include "prometheus_text.h"
#include "temp_dir.h"

#define SECRET "0123456789-secret-secret-secret-secret"
#define API_KEY "Zq7xVw3kApiKey"

#ifdef SPILE_TEST_SODIUM
#define KEY_KIND "api_key"
#else
#define KEY_KIND "header:X-Key"
#endif

/* Two versions of one file: other numbers, one limit that is watched no longer, one entry that is new. */
#define FILE_WITH(search, watched, more)                                                                         \
  "{\"on_store_error\":\"open\",\"always\":[{\"name\":\"all\",\"capacity\":3,\"refill\":\"1/h\",\"key\":\"ip\"," \
  "\"shadow\":" watched "}],\"limits\":{\"default\":{\"capacity\":5,\"refill\":\"1/h\",\"key\":[\"" KEY_KIND     \
  "\"]},\"POST /search\":{\"capacity\":" search ",\"refill\":\"1/h\",\"key\":[\"tenant\"]}" more "}}"

typedef struct rig {
  char directory[TEMP_DIR_LEN];
  spile_fake_clock *clock;
  spile_limiter *limiter;
} rig;

static void rig_start(rig *r) {
  static char path[TEMP_DIR_LEN + 16];
  temp_dir_make(r->directory);
  (void)snprintf(path, sizeof(path), "%s/secret", r->directory);
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL && fputs(SECRET, file) >= 0 && fclose(file) == 0);
  r->clock = spile_fake_clock_new(INT64_C(1700000000000));
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  options.now_ms = spile_fake_clock_now;
  options.clock = r->clock;
#ifdef SPILE_TEST_SODIUM
  options.secret_file = path;
#endif
  cr_assert(eq(int, spile_open(&r->limiter, "memory:", &options, NULL), SPILE_OK));
}

static void rig_stop(rig *r) {
  spile_close(r->limiter);
  spile_fake_clock_free(r->clock);
  temp_dir_remove(r->directory);
}

static void load(const rig *r, const char *text) {
  spile_limits *limits = limits_of(text);
  cr_assert(eq(int, spile_set_limits(r->limiter, limits, NULL), SPILE_OK));
  spile_limits_unref(limits);
}

static const char *key_header(void *user, const char *name) {
  (void)user;
  return strcmp(name, "X-Key") == 0 ? API_KEY : NULL;
}

/* `n` requests of one caller, by the limits in force. @return how many were allowed */
static int requests(const rig *r, const char *path, int n) {
  spile_caller caller = SPILE_CALLER_INIT;
  caller.tenant = "acme-tenant";
  caller.api_key = API_KEY;
  caller.ip = "203.0.113.99";
  caller.header = key_header;
  spile_limits *limits = spile_current_limits(r->limiter);
  int allowed = 0;
  for (int i = 0; i < n; i++) {
    spile_ruling ruling;
    int result = spile_limits_take(r->limiter, limits, "POST", path, &caller, SPILE_ROUTE_COST, &ruling);
    cr_assert(lt(int, 0, result));
    allowed += result == SPILE_ALLOWED ? 1 : 0;
  }
  spile_limits_unref(limits);
  return allowed;
}

/* The text, to be freed, found good by the strict reader. Nothing in it says who asked. */
static char *text_of(const rig *r) {
  size_t needed;
  cr_assert(eq(int, spile_metrics_text(r->limiter, NULL, 0, &needed), SPILE_OK));
  char *text = malloc(needed);
  cr_assert(text != NULL);
  cr_assert(eq(int, spile_metrics_text(r->limiter, text, needed, &needed), SPILE_OK));
  const char *fault = prometheus_fault(text);
  cr_assert(fault == NULL, "%s\n%s", fault, text);
  static const char *const unwanted[] = {"acme", "203.0.113", API_KEY, "secret", "tenant=", "ip=", "api_key", "X-Key"};
  for (size_t i = 0; i < sizeof(unwanted) / sizeof(unwanted[0]); i++)
    cr_assert(strstr(text, unwanted[i]) == NULL, "\"%s\" is in: %s", unwanted[i], text);
  return text;
}

static double takes(const char *text, const char *limit, const char *outcome) {
  char sample[256];
  (void)snprintf(sample, sizeof(sample), "spile_limit_takes_total{limit=\"%s\",outcome=\"%s\",decided_by=\"store\"}",
                 limit, outcome);
  return prometheus_value(text, sample);
}

static double shadow_takes(const char *text, const char *limit, const char *outcome) {
  char sample[256];
  (void)snprintf(sample, sizeof(sample), "spile_shadow_takes_total{limit=\"%s\",outcome=\"%s\"}", limit, outcome);
  return prometheus_value(text, sample);
}

Test(limits_metrics, counters_go_on_when_a_file_is_loaded_again) {
  rig r;
  rig_start(&r);
  load(&r, FILE_WITH("2", "true", ""));
  cr_assert(eq(int, requests(&r, "/search", 5), 2));
  cr_assert(eq(int, requests(&r, "/else", 4), 4));
  char *before = text_of(&r);
  cr_assert(eq(dbl, takes(before, "POST /search", "allowed"), 2));
  cr_assert(eq(dbl, takes(before, "POST /search", "denied"), 3));
  cr_assert(eq(dbl, takes(before, "default", "allowed"), 4));
  /* The 6 that came through were seen by the watching limit, which has 3 tokens; no caller was denied by it. */
  cr_assert(eq(dbl, shadow_takes(before, "always#all", "allowed"), 3));
  cr_assert(eq(dbl, shadow_takes(before, "always#all", "denied"), 3));
  cr_assert(eq(dbl, prometheus_value(before, "spile_takes_total{outcome=\"allowed\"}"), 6));
  cr_assert(eq(dbl, prometheus_value(before, "spile_takes_total{outcome=\"denied\"}"), 3));

  load(&r, FILE_WITH("4", "true", ",\"POST /new\":{\"capacity\":1,\"refill\":\"1/h\",\"key\":\"global\"}"));
  char *loaded = text_of(&r);
  cr_assert(eq(dbl, takes(loaded, "POST /search", "allowed"), 2));
  cr_assert(eq(dbl, takes(loaded, "POST /search", "denied"), 3));
  cr_assert(eq(dbl, shadow_takes(loaded, "always#all", "denied"), 3));

  /* An empty bucket stays empty with more capacity, for an hour. */
  cr_assert(eq(int, requests(&r, "/search", 1), 0));
  spile_fake_clock_advance(r.clock, 3600000);
  cr_assert(eq(int, requests(&r, "/search", 1), 1));
  cr_assert(eq(int, requests(&r, "/new", 2), 1));
  char *after = text_of(&r);
  cr_assert(eq(dbl, takes(after, "POST /search", "allowed"), 3));
  cr_assert(eq(dbl, takes(after, "POST /search", "denied"), 4));
  cr_assert(eq(dbl, takes(after, "default", "allowed"), 4));
  cr_assert(eq(dbl, takes(after, "POST /new", "allowed"), 1));
  cr_assert(eq(dbl, takes(after, "POST /new", "denied"), 1));
  /* One of its tokens came back. */
  cr_assert(eq(dbl, shadow_takes(after, "always#all", "allowed"), 4));
  cr_assert(eq(dbl, shadow_takes(after, "always#all", "denied"), 4));
  cr_assert(eq(dbl, prometheus_value(after, "spile_takes_total{outcome=\"allowed\"}"), 8));
  cr_assert(eq(dbl, prometheus_value(after, "spile_takes_total{outcome=\"denied\"}"), 5));
  free(before);
  free(loaded);
  free(after);
  rig_stop(&r);
}

Test(limits_metrics, a_limit_that_is_put_in_force_is_counted_as_such_from_then_on) {
  rig r;
  rig_start(&r);
  load(&r, FILE_WITH("100", "true", ""));
  cr_assert(eq(int, requests(&r, "/search", 5), 5));
  load(&r, FILE_WITH("100", "false", ""));
  cr_assert(eq(int, requests(&r, "/search", 2), 0));
  char *text = text_of(&r);
  cr_assert(eq(dbl, shadow_takes(text, "always#all", "allowed"), 3));
  cr_assert(eq(dbl, shadow_takes(text, "always#all", "denied"), 2));
  cr_assert(eq(dbl, takes(text, "always#all", "denied"), 2));
  cr_assert(eq(dbl, takes(text, "POST /search", "allowed"), 7));
  free(text);
  rig_stop(&r);
}

Test(limits_metrics, a_file_that_is_refused_changes_no_counter) {
  rig r;
  rig_start(&r);
  load(&r, FILE_WITH("2", "true", ""));
  cr_assert(eq(int, requests(&r, "/search", 3), 2));
  char *before = text_of(&r);
  limits_text *bad = limits_text_of(FILE_WITH("2.5", "true", ""));
  cr_assert(eq(int, bad->result, SPILE_ECONFIG));
  limits_text_finish(bad);
  spile_limits *foreign = limits_of("{\"key_prefix\":\"other\",\"on_store_error\":\"open\",\"limits\":{\"default\":"
                                    "\"unlimited\"}}");
  cr_assert(eq(int, spile_set_limits(r.limiter, foreign, NULL), SPILE_ECONFIG));
  spile_limits_unref(foreign);
  char *after = text_of(&r);
  cr_assert(eq(str, after, before));
  free(before);
  free(after);
  rig_stop(&r);
}
