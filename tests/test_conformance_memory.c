/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

static const char *memory_start(void) {
  return "memory:?keys=5000";
}

static void memory_stop(void) {
}

static const store_fixture fixture = {.start = memory_start, .stop = memory_stop, .shared = false};

#define CHECK(check) CONFORMANCE_TEST(conformance_memory, check, &fixture)
CONFORMANCE_CHECKS(CHECK)
