/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks share.
 *
 * A figure of a shared machine says little; the ratio of two figures that were taken in turn says much. So a benchmark
 * is a table of rows that are measured in rounds: every row once, then every row again. A row's ratio is the median of
 * the ratios within each round, and whatever slowed a round down slowed both.
 */
#ifndef SPILE_BENCH_H
#define SPILE_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <spile/spile.h>

/* Says why on the error stream and ends the program. */
_Noreturn void bench_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As malloc, zeroed, and never NULL. */
void *bench_allocate(size_t count, size_t size);

/* The monotonic clock, and the processor time of the calling thread: what others do meanwhile is not in it. */
int64_t bench_now_ns(void);
int64_t bench_cpu_ns(void);

/* The next of a sequence of random numbers; `state` is any start. */
uint64_t bench_random(uint64_t *state);

/* Keeps the process on the n-th of the processors it may use, counted from 0; does nothing when there are fewer. */
void bench_pin(int n);

/* Sorts the values. @return the one below which the share `q`, 0 to 1, lies; 0.5 is the median. n is 1 or more */
double bench_quantile(double *values, size_t n, double q);

/* ---- Keys and limits ---- */

#define BENCH_KEY_LEN 24

/* The key with this number, not NUL-terminated. */
void bench_key_make(char key[BENCH_KEY_LEN], size_t number);

/* Opens a store (`now_ms` NULL: its own clock) and makes a limit; never NULL. */
spile_limiter *bench_open(const char *uri, int64_t (*now_ms)(void *clock));
spile_limit *bench_limit(const char *text);

/* ---- The command line ---- */

typedef struct bench_option {
  const char *name; /* as in --name N */
  int64_t *value;   /* holds the default */
  int64_t min;
  int64_t max;
  const char *meaning;
} bench_option;

/*
 * Reads --name N … and prints how the program was called with the values in force. `about` says what it measures, in
 * whole lines. --help prints it with the options and ends the program.
 */
void bench_begin(int argc, char **argv, const char *about, const bench_option *options, size_t n);

/* ---- Rows ---- */

#define BENCH_ROWS_MAX 40
#define BENCH_ROUNDS_MAX 1000

typedef struct bench_row {
  const char *name;
  double (*run)(void *user); /* takes one sample */
  void *user;
  const char *base[2]; /* names of the rows whose sum it is divided by, or NULL */
  double aim_ratio;    /* at most, of the ratio; 0: none */
  double aim_value;    /* at most, of the median; 0: none */
  double samples[BENCH_ROUNDS_MAX];
} bench_row;

typedef struct bench_table {
  const char *title;
  const char *unit;
  size_t rounds;
  size_t count;
  bench_row rows[BENCH_ROWS_MAX];
} bench_table;

/* One more row; a row comes after its bases. Returns it, so that bases and aims can be set. */
bench_row *bench_table_add(bench_table *table, const char *name, double (*run)(void *user), void *user);

/* Measures one round that does not count and then all that do, and prints median, least and ratio of each row. */
void bench_table_run(bench_table *table);

/* ---- Places ---- */

#define BENCH_PATH_LEN 256

/* Makes an empty directory under $TMPDIR or /tmp. */
void bench_directory_make(char path[BENCH_PATH_LEN]);

/* Removes it with all that is in it. */
void bench_directory_remove(const char *path);

#endif
