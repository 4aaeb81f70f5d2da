/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed logs: whole ones are as good as plain ones, and of one that is not whole nothing is decided. The data is
 * compressed by zlib here and by nothing of ours.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <zlib.h>

#include "command_run.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(replay_gzip, .fini = run_finish);

static void expect_out_contains(const char *part) {
  expect_status(0);
  expect_contains(run.out, part);
}

/* Bytes that grow. */
typedef struct bytes {
  char *at;
  size_t len;
} bytes;

static void bytes_add(bytes *to, const void *from, size_t len) {
  to->at = realloc(to->at, to->len + len + 1);
  cr_assert(to->at != NULL);
  memcpy(to->at + to->len, from, len);
  to->len += len;
}

/* One gzip member. */
static void member_add(bytes *to, const void *from, size_t len, int level) {
  z_stream stream = {.next_in = (z_const Bytef *)(uintptr_t)from, .avail_in = (uInt)len};
  cr_assert(deflateInit2(&stream, level, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  size_t room = deflateBound(&stream, (uLong)len) + 64;
  char *out = malloc(room);
  cr_assert(out != NULL);
  stream.next_out = (Bytef *)out;
  stream.avail_out = (uInt)room;
  cr_assert(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  bytes_add(to, out, room - stream.avail_out);
  (void)deflateEnd(&stream);
  free(out);
}

static const char *file_write(const char *name, const bytes *content) {
  static char path[256];
  (void)snprintf(path, sizeof(path), "%s/%s", run_directory(), name);
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL, "%s: %s", path, strerror(errno));
  cr_assert(fwrite(content->at, 1, content->len, file) == content->len && fclose(file) == 0);
  return path;
}

static bytes real_log(void) {
  char path[4096];
  const char *directory = getenv("SPILE_TEST_DATA");
  cr_assert(directory != NULL, "SPILE_TEST_DATA must be the path of the directory tests");
  (void)snprintf(path, sizeof(path), "%s/data/access.log", directory);
  FILE *file = fopen(path, "rb");
  cr_assert(file != NULL, "%s: %s", path, strerror(errno));
  bytes log = {.at = NULL};
  char part[65536];
  size_t got;
  while ((got = fread(part, 1, sizeof(part), file)) > 0)
    bytes_add(&log, part, got);
  (void)fclose(file);
  return log;
}

static const char real_figures[] = "{\"requests\":5000,\"allowed\":4785,\"denied\":215,\"keys\":965,\"unparsed\":0,";

Test(replay_gzip, a_compressed_log_is_as_good_as_a_plain_one_whatever_its_name) {
  bytes log = real_log();
  for (int level = 0; level <= 9; level += 3) {
    bytes zip = {.at = NULL};
    member_add(&zip, log.at, log.len, level);
    RUN("replay", "--json", "--limit", "1/2s,capacity=5", file_write(level > 4 ? "a.log.2.gz" : "a.log", &zip));
    expect_out_contains(real_figures);
    cr_assert(eq(str, run.err, ""));
    free(zip.at);
  }
  free(log.at);
}

Test(replay_gzip, members_behind_one_another_are_one_log_wherever_they_were_cut) {
  bytes log = real_log();
  bytes zip = {.at = NULL};
  /* Members of 997 bytes: lines run over from one to the next. An empty one counts as well. */
  for (size_t from = 0; from < log.len; from += 997) {
    member_add(&zip, log.at + from, log.len - from < 997 ? log.len - from : 997, 6);
    if (from % 2 == 0)
      member_add(&zip, "", 0, 6);
  }
  RUN("replay", "--json", "--limit", "1/2s,capacity=5", file_write("a.gz", &zip));
  expect_out_contains(real_figures);
  /* Zeros behind the last are what tapes and block devices leave. */
  char zeros[1000] = {0};
  bytes_add(&zip, zeros, sizeof(zeros));
  RUN("replay", "--json", "--limit", "1/2s,capacity=5", file_write("a.gz", &zip));
  expect_out_contains(real_figures);
  free(zip.at);
  free(log.at);
}

Test(replay_gzip, rotated_logs_are_read_together_compressed_or_not) {
  bytes log = real_log();
  const char *cut = memchr(log.at + log.len / 2, '\n', log.len / 2);
  cr_assert(cut != NULL);
  size_t first_len = (size_t)(cut + 1 - log.at);
  bytes zip = {.at = NULL};
  member_add(&zip, log.at, first_len, 6);
  char older[256];
  (void)snprintf(older, sizeof(older), "%s", file_write("access.log.1.gz", &zip));
  bytes rest = {.at = log.at + first_len, .len = log.len - first_len};
  RUN("replay", "--json", "--limit", "1/2s,capacity=5", older, file_write("access.log", &rest));
  expect_out_contains(real_figures);
  free(zip.at);
  free(log.at);
}

Test(replay_gzip, standard_input_may_be_compressed_and_come_in_any_pieces) {
  static const char line[] = "{\"ts\":1,\"ip\":\"a\"}\n";
  bytes zip = {.at = NULL};
  member_add(&zip, line, sizeof(line) - 1, 6);
  member_add(&zip, line, sizeof(line) - 1, 6);
  running_command running;
  run_start(&running, &(run_options){.args = ARGS("replay", "--json", "--limit", "5/s", "-")});
  for (size_t i = 0; i < zip.len; i++) {
    cr_assert(write(running.input, zip.at + i, 1) == 1, "%s", strerror(errno));
    /* Each of the first bytes is read alone: what they are is not known before there are some. */
    int left = i < 16 ? 1 : 0;
    while (left > 0) {
      cr_assert(ioctl(running.input, FIONREAD, &left) == 0, "%s", strerror(errno));
      (void)usleep(100);
    }
  }
  (void)close(running.input);
  running.input = -1;
  char out[1024] = "";
  size_t n = 0;
  ssize_t got;
  while (n < sizeof(out) - 1 && (got = read(running.output, out + n, sizeof(out) - 1 - n)) > 0)
    n += (size_t)got;
  cr_assert(run_wait(&running) == 0);
  cr_assert(strstr(out, "{\"requests\":2,\"allowed\":2,\"denied\":0,\"keys\":1,\"unparsed\":0,") != NULL, "%s", out);
  free(zip.at);
}

Test(replay_gzip, a_file_that_is_cut_off_anywhere_is_refused_with_the_place) {
  bytes log = real_log();
  bytes zip = {.at = NULL};
  member_add(&zip, log.at, 2000, 6);
  member_add(&zip, log.at + 2000, 2000, 6);
  bytes whole = zip;
  bytes first = {.at = NULL};
  member_add(&first, log.at, 2000, 6);
  /* Of one byte nobody knows what it is: it is a line. Where the first member ends the file may end. Every third length
   * is tried, that one among them. */
  for (whole.len = 2 + (first.len - 2) % 3; whole.len < zip.len; whole.len += 3) {
    RUN("replay", "--json", "--limit", "5/s", file_write("cut.gz", &whole));
    if (whole.len == first.len) {
      expect_out_contains("\"requests\":");
      continue;
    }
    char place[128];
    (void)snprintf(place, sizeof(place), "cut.gz: the compressed data is cut off, at byte %zu, behind line ",
                   whole.len);
    expect_refusal(3, place);
    cr_assert(strstr(run.err, "nothing was decided") != NULL, "%s", run.err);
  }
  free(first.at);
  free(zip.at);
  free(log.at);
}

Test(replay_gzip, a_changed_byte_is_never_read_over) {
  bytes log = real_log();
  bytes zip = {.at = NULL};
  member_add(&zip, log.at, 3000, 6);
  const char *place = file_write("whole.gz", &zip);
  RUN("replay", "--json", "--limit", "5/s", place);
  expect_out_contains("\"requests\":");
  char *whole = strdup(run.out);
  cr_assert(whole != NULL);
  for (size_t i = 2; i < zip.len; i += 7) {
    zip.at[i] = (char)(zip.at[i] ^ 0x10);
    RUN("replay", "--json", "--limit", "5/s", file_write("damaged.gz", &zip));
    /* Time, system and flags of the header say nothing about the data, which is whole then. */
    if (run.status == 0)
      cr_assert(i < 10 && strcmp(run.out, whole) == 0, "byte %zu: %s", i, run.out);
    else
      expect_refusal(3, "damaged.gz: ");
    zip.at[i] = (char)(zip.at[i] ^ 0x10);
  }
  free(whole);
  free(zip.at);
  free(log.at);
}

Test(replay_gzip, the_place_of_damage_in_a_large_file_is_near_it) {
  bytes log = real_log();
  bytes zip = {.at = NULL};
  for (size_t from = 0; from + 1000 < log.len; from += 1000)
    member_add(&zip, log.at + from, 1000, 0);
  /* The checksum of the last member, eight bytes before the end. */
  zip.at[zip.len - 8] = (char)(zip.at[zip.len - 8] ^ 1);
  RUN("replay", "--json", "--limit", "5/s", file_write("damaged.gz", &zip));
  expect_refusal(3, "incorrect data check, at byte ");
  unsigned long long at = strtoull(strstr(run.err, "at byte ") + 8, NULL, 10);
  cr_assert(at <= zip.len && zip.len - 16 <= at, "byte %llu of %zu", at, zip.len);
  free(zip.at);
  free(log.at);
}

Test(replay_gzip, what_stands_behind_the_compressed_data_is_not_passed_over) {
  static const char line[] = "{\"ts\":1,\"ip\":\"a\"}\n";
  static const struct {
    const char *tail;
    size_t len;
    const char *why;
  } rows[] = {{"{\"ts\":1,\"ip\":\"b\"}\n", 18, "something that is not gzip stands behind"},
              {"\0\0\0x", 4, "something that is not gzip stands behind"},
              {"\0\x1f\x8b", 3, "something that is not gzip stands behind"},
              {"\x1f", 1, "cut off"},
              {"\x1fx", 2, "incorrect header check"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    bytes zip = {.at = NULL};
    member_add(&zip, line, sizeof(line) - 1, 6);
    bytes_add(&zip, rows[i].tail, rows[i].len);
    RUN("replay", "--json", "--limit", "5/s", file_write("tail.gz", &zip));
    expect_refusal(3, rows[i].why);
    free(zip.at);
  }
}

Test(replay_gzip, a_gigabyte_that_was_a_megabyte_is_one_line_too_long) {
  /* 64 members of 16 MiB of one letter each, about a megabyte in all. */
  enum { MEMBER = 1 << 24 };
  char *letters = malloc(MEMBER);
  cr_assert(letters != NULL);
  memset(letters, 'x', MEMBER);
  bytes one = {.at = NULL};
  member_add(&one, letters, MEMBER, 9);
  free(letters);
  bytes zip = {.at = NULL};
  for (int i = 0; i < 64; i++)
    bytes_add(&zip, one.at, one.len);
  static const char line[] = "\n{\"ts\":1,\"ip\":\"a\"}\n";
  member_add(&zip, line, sizeof(line) - 1, 6);
  RUN("replay", "--json", "--limit", "5/s", file_write("bomb.gz", &zip));
  expect_out_contains("{\"requests\":1,\"allowed\":1,\"denied\":0,\"keys\":1,\"unparsed\":1,");
  cr_assert(strstr(run.err, "bomb.gz:1: left out: it has more than 65536 bytes") != NULL, "%s", run.err);
  free(one.at);
  free(zip.at);
}
