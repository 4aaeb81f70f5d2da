/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the entry of a request in a limits file: how much longer it takes among many entries than among few.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <spile/limits.h>

#include "bench.h"

static const char *const about =
    "ns of a thread's processor time per spile_limits_find, smaller is better; the ratio is to the same among 10 "
    "entries\n"
    "exact: METHOD and path are written out; prefix: /r/NAME/*; suffix: /*/NAME; default: as suffix, and none matches";

static int64_t rounds_option = 21;
static int64_t ops_option = 20000;

enum { SHAPES = 4, SIZES = 3 };

/* A number stands between the two parts of an entry, and of a request that meets it. */
static const struct {
  const char *name;
  const char *entry[2];
  const char *request[2];
} shapes[SHAPES] = {
    {"exact", {"GET /r/name", ""}, {"/r/name", ""}},
    {"prefix", {"* /r/name", "/*"}, {"/r/name", "/x/y"}},
    {"suffix", {"* /*/name", ""}, {"/some/tenant/name", ""}},
    {"default", {"* /*/name", ""}, {"/r/name", "/x"}},
};

static const int sizes[SIZES] = {10, 100, 1000};

typedef struct lookup {
  spile_limits *limits;
  char (*requests)[64];
  int count;
} lookup;

static void lookup_make(lookup *l, int shape, int count) {
  size_t room = (size_t)count * 100 + 200;
  char *text = bench_allocate(room, 1);
  size_t len = (size_t)snprintf(text, room, "{\"on_store_error\":\"open\",\"limits\":{\"default\":\"unlimited\"");
  l->requests = bench_allocate((size_t)count, sizeof(*l->requests));
  l->count = count;
  for (int i = 0; i < count; i++) {
    char entry[64];
    /* Names of one length, as their letters are what a search goes through. */
    (void)snprintf(entry, sizeof(entry), "%s%d%s", shapes[shape].entry[0], 100000 + i, shapes[shape].entry[1]);
    (void)snprintf(l->requests[i], sizeof(l->requests[i]), "%s%d%s", shapes[shape].request[0], 100000 + i,
                   shapes[shape].request[1]);
    len += (size_t)snprintf(text + len, room - len, ",\"%s\":\"blocked\"", entry);
  }
  len += (size_t)snprintf(text + len, room - len, "}}");
  spile_error error = {0};
  if (spile_limits_parse(&l->limits, text, len, "bench", NULL, NULL, &error) != SPILE_OK)
    bench_fatal("%s", error.message);
  free(text);
}

static double lookup_run(void *user) {
  lookup *l = user;
  uint64_t random = 1;
  size_t found = 0;
  int64_t start = bench_cpu_ns();
  for (int64_t i = 0; i < ops_option; i++) {
    const spile_route *route =
        spile_limits_find(l->limits, "GET", l->requests[bench_random(&random) % (uint64_t)l->count], NULL);
    found += (size_t)spile_route_word_of(route);
  }
  double ns = (double)(bench_cpu_ns() - start) / (double)ops_option;
  return found > 0 ? ns : 0;
}

int main(int argc, char **argv) {
  const bench_option options[] = {
      {"rounds", &rounds_option, 1, BENCH_ROUNDS_MAX, "times that each row is measured"},
      {"ops", &ops_option, 1, 100000000, "look-ups in one sample"},
  };
  bench_begin(argc, argv, about, options, sizeof(options) / sizeof(options[0]));
  bench_table table = {.title = "Finding an entry", .unit = "ns", .rounds = (size_t)rounds_option};
  static lookup lookups[SHAPES][SIZES];
  static char names[SHAPES][SIZES][32];
  for (int shape = 0; shape < SHAPES; shape++) {
    for (int size = 0; size < SIZES; size++) {
      lookup_make(&lookups[shape][size], shape, sizes[size]);
      (void)snprintf(names[shape][size], sizeof(names[shape][size]), "%s, %d", shapes[shape].name, sizes[size]);
      bench_row *row = bench_table_add(&table, names[shape][size], lookup_run, &lookups[shape][size]);
      row->base[0] = size > 0 ? names[shape][0] : NULL;
      row->aim_ratio = size > 0 ? 2 : 0;
    }
  }
  bench_table_run(&table);
  for (int shape = 0; shape < SHAPES; shape++) {
    for (int size = 0; size < SIZES; size++) {
      spile_limits_unref(lookups[shape][size].limits);
      free(lookups[shape][size].requests);
    }
  }
  return 0;
}
