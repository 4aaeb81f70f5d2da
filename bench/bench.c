/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void bench_fatal(const char *format, ...) {
  va_list args;
  va_start(args, format);
  (void)fflush(stdout);
  (void)fputs("bench: ", stderr);
  (void)vfprintf(stderr, format, args);
  (void)fputc('\n', stderr);
  va_end(args);
  exit(1);
}

void *bench_allocate(size_t count, size_t size) {
  void *block = calloc(count, size);
  if (block == NULL)
    bench_fatal("out of memory for %zu times %zu bytes; ask for fewer keys", count, size);
  return block;
}

static int64_t clock_ns(clockid_t id) {
  struct timespec now;
  (void)clock_gettime(id, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t bench_now_ns(void) {
  return clock_ns(CLOCK_MONOTONIC);
}

int64_t bench_cpu_ns(void) {
  return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void bench_pin(int n) {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0)
    return;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET((size_t)cpu, &usable) || n-- > 0)
      continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    (void)sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

/* SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). */
uint64_t bench_random(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t n, double q) {
  qsort(values, n, sizeof(*values), compare);
  return values[(size_t)(q * (double)(n - 1) + 0.5)];
}

/* ---- Keys and limits ---- */

void bench_key_make(char key[BENCH_KEY_LEN], size_t number) {
  char text[BENCH_KEY_LEN + 1];
  (void)snprintf(text, sizeof(text), "tenant=%010llu/search", (unsigned long long)number % 10000000000);
  memcpy(key, text, BENCH_KEY_LEN);
}

spile_limiter *bench_open(const char *uri, int64_t (*now_ms)(void *clock)) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.now_ms = now_ms;
  spile_limiter *limiter;
  spile_error error = {0};
  if (spile_open(&limiter, uri, &options, &error) != SPILE_OK)
    bench_fatal("%s: %s", uri, error.message);
  return limiter;
}

spile_limit *bench_limit(const char *text) {
  spile_limit *limit;
  spile_error error = {0};
  if (spile_limit_parse(&limit, text, &error) != SPILE_OK)
    bench_fatal("%s: %s", text, error.message);
  return limit;
}

/* ---- The command line ---- */

static void usage(const char *program, const char *about, const bench_option *options, size_t n) {
  (void)printf("usage: %s [--OPTION N]…\n\n%s\n", program, about);
  for (size_t i = 0; i < n; i++)
    (void)printf("  --%-10s %s (%lld)\n", options[i].name, options[i].meaning, (long long)*options[i].value);
  exit(0);
}

static void option_read(const bench_option *option, const char *text) {
  char *end;
  errno = 0;
  long long value = text != NULL ? strtoll(text, &end, 10) : 0;
  if (text == NULL || end == text || *end != '\0' || errno != 0 || value < option->min || value > option->max)
    bench_fatal("--%s needs a number from %lld to %lld", option->name, (long long)option->min, (long long)option->max);
  *option->value = value;
}

static void machine_print(void) {
  char model[128] = "unknown processor";
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "r");
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || colon == NULL)
      continue;
    colon[strcspn(colon, "\n")] = '\0';
    (void)snprintf(model, sizeof(model), "%s", colon + 1 + strspn(colon + 1, " "));
    break;
  }
  if (file != NULL)
    (void)fclose(file);
  (void)printf("# spile %s, static library; compiler %s; %ld x %s\n", spile_version(), __VERSION__,
               sysconf(_SC_NPROCESSORS_ONLN), model);
}

void bench_begin(int argc, char **argv, const char *about, const bench_option *options, size_t n) {
  for (int i = 1; i < argc; i += 2) {
    if (strcmp(argv[i], "--help") == 0)
      usage(argv[0], about, options, n);
    size_t at = 0;
    while (at < n && (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, options[at].name) != 0))
      at++;
    if (at == n)
      bench_fatal("there is no option %s; --help lists them", argv[i]);
    option_read(&options[at], argv[i + 1]);
  }
  const char *slash = strrchr(argv[0], '/');
  (void)printf("# %s", slash != NULL ? slash + 1 : argv[0]);
  for (size_t i = 0; i < n; i++)
    (void)printf(" --%s %lld", options[i].name, (long long)*options[i].value);
  (void)printf("\n");
  machine_print();
  for (const char *at = about; *at != '\0';) {
    size_t len = strcspn(at, "\n");
    (void)printf("# %.*s\n", (int)len, at);
    at += len + (at[len] == '\n');
  }
  (void)fflush(stdout);
}

/* ---- Rows ---- */

bench_row *bench_table_add(bench_table *table, const char *name, double (*run)(void *user), void *user) {
  if (table->count == BENCH_ROWS_MAX)
    bench_fatal("a table has at most %d rows", BENCH_ROWS_MAX);
  bench_row *row = &table->rows[table->count++];
  *row = (bench_row){.name = name, .run = run, .user = user};
  return row;
}

static const bench_row *row_find(const bench_table *table, const char *name) {
  for (size_t i = 0; i < table->count; i++) {
    if (strcmp(table->rows[i].name, name) == 0)
      return &table->rows[i];
  }
  bench_fatal("no row is called \"%s\"", name);
}

/* The median over the rounds of the row divided by its bases. */
static double row_ratio(const bench_table *table, const bench_row *row) {
  double ratios[BENCH_ROUNDS_MAX];
  for (size_t round = 0; round < table->rounds; round++) {
    double base = 0;
    for (size_t i = 0; i < 2 && row->base[i] != NULL; i++)
      base += row_find(table, row->base[i])->samples[round];
    ratios[round] = row->samples[round] / base;
  }
  return bench_quantile(ratios, table->rounds, 0.5);
}

static void row_print(const bench_table *table, const bench_row *row) {
  double sorted[BENCH_ROUNDS_MAX];
  memcpy(sorted, row->samples, table->rounds * sizeof(sorted[0]));
  double median = bench_quantile(sorted, table->rounds, 0.5);
  (void)printf("  %-40s %9.2f %9.2f", row->name, median, sorted[0]);
  if (row->base[0] != NULL) {
    double ratio = row_ratio(table, row);
    (void)printf(" %7.2f x %s", ratio, row->base[0]);
    if (row->base[1] != NULL)
      (void)printf(" + %s", row->base[1]);
    if (row->aim_ratio > 0)
      (void)printf("; aim %.2f: %s", row->aim_ratio, ratio < row->aim_ratio + 0.005 ? "met" : "missed");
  }
  if (row->aim_value > 0)
    (void)printf("; aim %.1f %s: %s", row->aim_value, table->unit, median <= row->aim_value ? "met" : "missed");
  (void)printf("\n");
}

void bench_table_run(bench_table *table) {
  for (size_t i = 0; i < table->count; i++)
    (void)table->rows[i].run(table->rows[i].user);
  for (size_t round = 0; round < table->rounds; round++) {
    for (size_t i = 0; i < table->count; i++)
      table->rows[i].samples[round] = table->rows[i].run(table->rows[i].user);
  }
  (void)printf("\n%s; %s\n  %-40s %9s %9s %7s\n", table->title, table->unit, "", "median", "least", "ratio");
  for (size_t i = 0; i < table->count; i++)
    row_print(table, &table->rows[i]);
  (void)fflush(stdout);
}

/* ---- Places ---- */

void bench_directory_make(char path[BENCH_PATH_LEN]) {
  const char *base = getenv("TMPDIR");
  int len = snprintf(path, BENCH_PATH_LEN, "%s/spile-bench-XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
  if (len >= BENCH_PATH_LEN || mkdtemp(path) == NULL)
    bench_fatal("cannot make the directory %s: %s; set TMPDIR to a place that can be written", path, strerror(errno));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk) {
  (void)info;
  (void)kind;
  (void)walk;
  return remove(path);
}

void bench_directory_remove(const char *path) {
  (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
