/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation of the library in loading a limits file fails in turn, once and from then on: the answer is "out of
 * memory", nothing is left behind, and no file that is good or bad is said to be the other. jansson gets memory of its
 * own: it takes a string that it has none for as an invalid one, or stops at an assertion (load.c).
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <spile/limits.h>

#include "limits_text.h"
#include "torture_seam.h"

static _Alignas(16) char jansson_memory[1 << 20];
static size_t jansson_used;

static void *jansson_allocate(size_t size) {
  size = (size + 15) / 16 * 16;
  cr_assert(le(sz, size, sizeof(jansson_memory) - jansson_used));
  jansson_used += size;
  return jansson_memory + jansson_used - size;
}

static void jansson_free(void *block) {
  (void)block;
}

static void errors_count(void *user, const spile_fault *fault) {
  *(int *)user += fault->level == SPILE_FAULT_ERROR ? 1 : 0;
}

/* Loads while allocations fail from the `at`-th on. @return whether one did */
static bool load_failing(const char *text, int expected, int at, int fails) {
  spile_limits *limits = NULL;
  spile_error error = {0};
  int errors = 0;
  seam_plan plan = {.call = SEAM_ALLOCATE, .at = at, .fails = fails, .error = ENOMEM};
  jansson_used = 0;
  seam_arm(&plan);
  int result = spile_limits_parse(&limits, text, strlen(text), "test.json", errors_count, &errors, &error);
  bool lost = result == SPILE_OK &&
              strcmp(spile_route_text(spile_limits_find(limits, "POST", "/search", "pro")), "POST /search") != 0;
  spile_limits_unref(limits);
  long blocks = seam_blocks();
  int failed = seam_failed();
  seam_disarm();
  cr_assert(not(lost), "allocation %d", at);
  cr_assert(result == (failed > 0 ? SPILE_ENOMEM : expected), "allocation %d: %d, %s", at, result, error.message);
  cr_assert(result == SPILE_OK || error.code == result);
  cr_assert(blocks == 0, "allocation %d: %ld blocks are left", at, blocks);
  return failed > 0;
}

static void torture(const char *name, int expected) {
  json_set_alloc_funcs(jansson_allocate, jansson_free);
  char *text = limits_data(name);
  int at = 1;
  for (; load_failing(text, expected, at, 1); at++)
    (void)load_failing(text, expected, at, INT_MAX);
  cr_assert(lt(int, 5, at));
  free(text);
}

Test(limits_torture, a_good_file_without_memory_is_out_of_memory) {
  torture("shop.json", SPILE_OK);
}

Test(limits_torture, a_bad_file_without_memory_is_out_of_memory) {
  torture("faults.json", SPILE_ECONFIG);
}
