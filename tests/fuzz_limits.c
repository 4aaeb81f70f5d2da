/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz_limits.h"

#include <spile/limits.h>
#include <stdbool.h>
#include <string.h>

static void demand(bool condition) {
  if (!condition)
    __builtin_trap();
}

typedef struct seen {
  int errors;
  int line;
  int column;
} seen;

static void fault_see(void *user, const spile_fault *fault) {
  seen *s = user;
  demand(fault->line >= 1 && fault->column >= 1);
  demand(fault->line > s->line || (fault->line == s->line && fault->column >= s->column));
  s->line = fault->line;
  s->column = fault->column;
  s->errors += fault->level == SPILE_FAULT_ERROR ? 1 : 0;
  const char *const texts[] = {fault->path, fault->what, fault->advice};
  for (size_t i = 0; i < 3; i++) {
    for (const char *c = texts[i]; *c != '\0'; c++)
      demand((unsigned char)*c >= 0x20 && (unsigned char)*c < 0x7f);
  }
  demand(fault->what[0] != '\0' && fault->advice[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  spile_limits *limits;
  spile_error error = {0};
  seen s = {0};
  int result = spile_limits_parse(&limits, (const char *)bytes, size, "fuzz.json", fault_see, &s, &error);
  demand((result == SPILE_OK) == (limits != NULL));
  demand((result == SPILE_ECONFIG) == (s.errors > 0));
  if (limits == NULL)
    return 0;
  static const char *const routes[] = {"POST /search", "GET /api/x", "", "PUT /a/%2e%2e/b//", "default", "* /*"};
  static const char *const tiers[] = {NULL, "pro", "free", ""};
  for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
    const spile_route *route = spile_limits_find(limits, NULL, routes[i], tiers[i % 4]);
    demand(route != NULL && spile_route_count(route) <= SPILE_ROUTE_LIMITS_MAX);
    for (size_t j = 0; j < spile_route_count(route); j++) {
      int64_t cost;
      const spile_limit *limit = spile_route_limit(route, j, &cost, NULL);
      demand(cost >= 1 && cost <= spile_limit_capacity(limit));
      demand(strlen(spile_limit_name(limit)) <= SPILE_NAME_LEN_MAX);
    }
  }
  spile_limits_unref(limits);
  return 0;
}
