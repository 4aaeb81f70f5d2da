/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/replay_read.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/input.h"
#include "cli/jsonline.h"
#include "cli/output.h"
#include "cli/progress.h"

enum { FAULTS_SHOWN = 5 };

typedef struct replay_reader {
  request_log *into;
  replay_lines *lines;
  log_names names;
  bool by_route;
  uint64_t read; /* lines of all files */
  progress shown;
  char decoded[INPUT_LINE_MAX];
} replay_reader;

/* ---- Lines ---- */

/* @return NULL, or why the line is of no use */
static const char *line_parse(replay_reader *reader, log_line *out, const char *line, size_t len) {
  /* Editors on some systems begin a file with a byte order mark. */
  if (len >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
    line += 3;
    len -= 3;
  }
  size_t blanks = 0;
  while (blanks < len && (line[blanks] == ' ' || line[blanks] == '\t'))
    blanks++;
  bool json = blanks < len && line[blanks] == '{';
  const char *fault =
      json ? jsonline_parse(out, line, len, &reader->names, reader->decoded) : logline_parse(out, line, len);
  if (fault != NULL)
    return fault;
  if (reader->by_route && out->method == NULL)
    return "the request is not METHOD PATH";
  if (!reader->by_route && out->client == NULL)
    return "it has no member for the client's address; name it with --fields ip=MEMBER";
  size_t key_len = reader->by_route ? out->method_len + 1 + out->path_len : out->client_len;
  return key_len > SPILE_KEY_LEN_MAX ? "its key has more than 4096 bytes" : NULL;
}

static void fault_note(replay_reader *reader, const char *name, uint64_t line, const char *fault) {
  uint64_t nth = ++reader->lines->unparsed;
  if (nth > FAULTS_SHOWN + 1)
    return;
  progress_end(&reader->shown);
  if (nth <= FAULTS_SHOWN)
    (void)message(0, "%s:%" PRIu64 ": left out: %s", name, line, fault);
  else
    (void)message(0, "more lines are left out; the summary says how many");
}

/* ---- Files ---- */

static int read_failed(const input *in, input_result result, const char *name) {
  if (result == INPUT_DAMAGED && in->zip.gunzip != NULL)
    return message(EXIT_STORE,
                   "%s: %s, at byte %" PRIu64 ", behind line %" PRIu64
                   " of what is in it; nothing was decided. Get the "
                   "whole file, or pipe what can be read of it through gzip -dc",
                   name, in->fault, in->zip.taken, in->line);
  if (result == INPUT_DAMAGED)
    return message(EXIT_STORE, "%s: %s", name, in->fault);
  if (result == INPUT_FAILED)
    return message(EXIT_STORE, "%s: cannot read on behind line %" PRIu64 ": %s", name, in->line, strerror(errno));
  return input_failed(result);
}

/* Reads an open log to its end. */
static int lines_read(replay_reader *reader, input *in, const char *name) {
  for (;;) {
    const char *line;
    size_t len;
    input_result result = input_line(in, &line, &len);
    if (result == INPUT_END)
      return EXIT_ALLOWED;
    if (result != INPUT_LINE && result != INPUT_TOO_LONG)
      return read_failed(in, result, name);
    log_line parsed;
    const char *fault =
        result == INPUT_TOO_LONG ? "it has more than 65536 bytes" : line_parse(reader, &parsed, line, len);
    if (fault != NULL)
      fault_note(reader, name, in->line, fault);
    else if (!requests_add(reader->into, &parsed))
      return message(EXIT_STORE, "out of memory for %zu requests; replay a part of the logs", reader->into->count);
    else
      reader->lines->answered_429 += parsed.status == 429 ? 1 : 0;
    progress_step(&reader->shown, ++reader->read, "lines read");
  }
}

static bool ends_in_gz(const char *name) {
  size_t len = strlen(name);
  return len > 3 && strcmp(name + len - 3, ".gz") == 0;
}

static int log_read(replay_reader *reader, const char *path) {
  input in;
  int status = input_open_log(&in, path);
  if (status != EXIT_ALLOWED)
    return status;
  const char *name = path == NULL || strcmp(path, "-") == 0 ? "standard input" : path;
  status = lines_read(reader, &in, name);
  progress_end(&reader->shown);
  /* Even nothing has 20 bytes when it is compressed. */
  if (status == EXIT_ALLOWED && in.line == 0 && in.zip.gunzip == NULL && ends_in_gz(name))
    status = message(EXIT_STORE, "%s is empty, which no compressed file is; get the whole file", name);
  input_close(&in);
  return status;
}

/* Whether two arguments are one regular file. Those that cannot be looked at are none. */
static bool is_same_file(const struct stat *a, const struct stat *b) {
  return S_ISREG(a->st_mode) && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* A pattern such as access.log* may well name a file and a link to it. That is said once, and goes without saying where
 * there is no memory to look for it. */
static void same_files_note(const cli_options *options) {
  struct stat *files = calloc(options->argument_count + 1, sizeof(*files));
  bool said = files == NULL;
  for (size_t i = 0; i < options->argument_count && !said; i++) {
    if (stat(options->arguments[i], &files[i]) != 0)
      files[i] = (struct stat){.st_mode = 0};
    for (size_t j = 0; j < i && !said; j++) {
      said = is_same_file(&files[i], &files[j]);
      if (said)
        (void)message(0, "%s and %s are the same file; its requests are counted for each", options->arguments[j],
                      options->arguments[i]);
    }
  }
  free(files);
}

int replay_read(request_log *into, replay_lines *lines, const cli_options *options) {
  static replay_reader reader;
  reader = (replay_reader){.into = into, .lines = lines, .by_route = options->by_route};
  int status = options->fields != NULL ? log_names_parse(&reader.names, options->fields) : EXIT_ALLOWED;
  if (status != EXIT_ALLOWED)
    return status;
  same_files_note(options);
  reader.shown = progress_start(false);
  if (options->argument_count == 0)
    status = log_read(&reader, NULL);
  for (size_t i = 0; i < options->argument_count && status == EXIT_ALLOWED; i++)
    status = log_read(&reader, options->arguments[i]);
  if (status == EXIT_ALLOWED && into->count == 0 && lines->unparsed > 0)
    return message(EXIT_USAGE,
                   "none of %" PRIu64 " lines could be used; logs are read in the common and combined formats and as "
                   "JSON, one object a line, whose members --fields can name",
                   lines->unparsed);
  return status;
}
