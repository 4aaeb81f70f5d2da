/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store of the example, which wraps another one, does what every store must do.
 */
#define WITHOUT_MAIN
#include "../docs/examples/store.c"

#include "conformance.h"

static const char *own_start(void) {
  return "memory:?keys=5000";
}

static void own_stop(void) {
}

static const store_fixture fixture = {.start = own_start, .stop = own_stop, .open = timed_open, .shared = false};

#define CHECK(check) CONFORMANCE_TEST(conformance_own, check, &fixture)
CONFORMANCE_CHECKS(CHECK)
