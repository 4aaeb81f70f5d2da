/* SPDX-License-Identifier: Apache-2.0 */
#include "limits_rig.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rig_route *const *in_force;
static size_t in_force_count;
static atomic_int owners;

static const char *const kinds[] = {
    [SPILE__KEY_TENANT] = "tenant", [SPILE__KEY_USER] = "user",      [SPILE__KEY_API_KEY] = "api_key",
    [SPILE__KEY_IP] = "ip",         [SPILE__KEY_HEADER] = "header:", [SPILE__KEY_ROUTE] = "route",
    [SPILE__KEY_GLOBAL] = "global",
};

static void part_read(spile__key_part *part, char *header, const char *text, size_t len) {
  for (int kind = SPILE__KEY_TENANT; kind <= SPILE__KEY_GLOBAL; kind++) {
    size_t kind_len = strlen(kinds[kind]);
    if (len < kind_len || strncmp(text, kinds[kind], kind_len) != 0)
      continue;
    part->kind = (spile__key_kind)kind;
    (void)snprintf(header, 64, "%.*s", (int)(len - kind_len), text + kind_len);
    part->header = kind == SPILE__KEY_HEADER ? header : NULL;
    return;
  }
  cr_assert_fail("no such kind: %s", text);
}

rig_route *rig_route_new(const char *text, spile_route_word word, const rig_limit *limits, size_t n) {
  rig_route *r = calloc(1, sizeof(*r));
  cr_assert(r != NULL && n <= RIG_LIMITS_MAX);
  r->route = (spile_route){.text = text, .word = word, .n = n, .limits = r->limits};
  for (size_t i = 0; i < n; i++) {
    spile_error error = {0};
    cr_assert(spile_limit_parse(&r->limits[i].limit, limits[i].limit, &error) == SPILE_OK, "%s", error.message);
    r->limits[i].cost = limits[i].cost != 0 ? limits[i].cost : 1;
    r->limits[i].shadow = limits[i].shadow;
    r->limits[i].always = limits[i].always;
    r->limits[i].chain.parts = r->parts[i];
    const char *at = limits[i].chain != NULL ? limits[i].chain : "ip";
    for (size_t j = 0; *at != '\0'; j++) {
      size_t len = strcspn(at, ",");
      part_read(&r->parts[i][j], r->headers[i][j], at, len);
      r->limits[i].chain.n = j + 1;
      at += len + (at[len] == ',');
    }
  }
  return r;
}

void rig_route_free(rig_route *route) {
  for (size_t i = 0; i < route->route.n; i++)
    spile_limit_unref(route->limits[i].limit);
  free(route);
}

spile_limits *rig_in_force(rig_route *const *routes, size_t n) {
  in_force = routes;
  in_force_count = n;
  /* Nobody looks inside. */
  return n > 0 ? (spile_limits *)(uintptr_t)routes : NULL;
}

int rig_owners(void) {
  return atomic_load(&owners);
}

/* ---- In the place of the loader's: the linker's --wrap brings their callers here ---- */

spile_limits *__wrap_spile_current_limits(spile_limiter *limiter);
void __wrap_spile_limits_unref(spile_limits *limits);
const spile_route *__wrap_spile_limits_find(const spile_limits *limits, const char *method, const char *path,
                                            const char *tier);
bool __wrap_spile__limits_skips(const spile_limits *limits, const char *method, const char *path,
                                const spile_caller *caller);

spile_limits *__wrap_spile_current_limits(spile_limiter *limiter) {
  (void)limiter;
  if (in_force_count == 0)
    return NULL;
  atomic_fetch_add(&owners, 1);
  return (spile_limits *)(uintptr_t)in_force;
}

void __wrap_spile_limits_unref(spile_limits *limits) {
  if (limits != NULL)
    atomic_fetch_sub(&owners, 1);
}

const spile_route *__wrap_spile_limits_find(const spile_limits *limits, const char *method, const char *path,
                                            const char *tier) {
  (void)limits;
  (void)tier;
  for (size_t i = 0; i < in_force_count; i++) {
    char text[300];
    (void)snprintf(text, sizeof(text), "%s%s%s", method != NULL ? method : "", method != NULL ? " " : "", path);
    if (strcmp(in_force[i]->route.text, text) == 0)
      return &in_force[i]->route;
  }
  return &in_force[in_force_count - 1]->route;
}

bool __wrap_spile__limits_skips(const spile_limits *limits, const char *method, const char *path,
                                const spile_caller *caller) {
  (void)limits;
  (void)method;
  (void)caller;
  return strcmp(path, "/skipped") == 0;
}
