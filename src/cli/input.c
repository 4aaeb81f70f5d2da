/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/gunzip.h"
#include "cli/output.h"

/* ---- Signals ---- */

static volatile sig_atomic_t signal_seen;

static void signal_note(int number) {
  signal_seen = number;
}

static void signals_handle(void (*handler)(int)) {
  struct sigaction action = {.sa_handler = handler};
  (void)sigemptyset(&action.sa_mask);
  (void)sigaction(SIGINT, &action, NULL);
  (void)sigaction(SIGTERM, &action, NULL);
}

void input_catch_signals(void) {
  signals_handle(signal_note);
}

void input_release_signals(void) {
  signals_handle(SIG_DFL);
}

int input_signal(void) {
  return signal_seen;
}

/* Waits until there is something to read. The signals are held off between the look at signal_seen and the wait. */
static input_result input_wait(const input *in) {
  sigset_t held;
  sigset_t before;
  (void)sigemptyset(&held);
  (void)sigaddset(&held, SIGINT);
  (void)sigaddset(&held, SIGTERM);
  (void)sigprocmask(SIG_BLOCK, &held, &before);
  struct pollfd poll = {.fd = in->fd, .events = POLLIN};
  int ready = 0;
  if (signal_seen == 0)
    ready = ppoll(&poll, 1, NULL, &before);
  int failure = errno;
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
  errno = failure;
  if (signal_seen != 0)
    return INPUT_INTERRUPTED;
  return ready >= 0 || failure == EINTR ? INPUT_LINE : INPUT_FAILED;
}

/* ---- Opening ---- */

int input_open(input *in, const char *path) {
  *in = (input){.fd = STDIN_FILENO};
  if (path != NULL && strcmp(path, "-") != 0) {
    in->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0)
      return message(EXIT_USAGE, "cannot open %s: %s", path, strerror(errno));
    in->owned = true;
  }
  struct stat status;
  in->regular = fstat(in->fd, &status) == 0 && S_ISREG(status.st_mode);
  in->start = in->regular ? (int64_t)lseek(in->fd, 0, SEEK_CUR) : 0;
  in->buffer = malloc(INPUT_LINE_MAX + 1);
  if (in->buffer != NULL)
    return EXIT_ALLOWED;
  input_close(in);
  return message(EXIT_STORE, "out of memory for input");
}

int input_open_log(input *in, const char *path) {
  int status = input_open(in, path);
  in->zip.unknown = true;
  return status;
}

void input_close(input *in) {
  gunzip_close(in->zip.gunzip);
  free(in->zip.buffer);
  if (in->owned)
    (void)close(in->fd);
  free(in->buffer);
  *in = (input){.fd = -1};
}

bool input_rewind(input *in) {
  in->from = in->to = 0;
  in->end = false;
  in->line = 0;
  return lseek(in->fd, (off_t)in->start, SEEK_SET) == in->start;
}

/* ---- Reading ---- */

/* Reads what the file has next, and waits for it. *got is 0 at the end. @return INPUT_LINE, or why not */
static input_result input_read(const input *in, char *into, size_t room, size_t *got) {
  /* Who feeds us line by line sees the answer to each before the next is waited for. */
  if (!in->regular)
    output_flush();
  for (;;) {
    input_result result = input_wait(in);
    if (result != INPUT_LINE)
      return result;
    ssize_t count = read(in->fd, into, room);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
      continue;
    if (count < 0)
      return INPUT_FAILED;
    *got = (size_t)count;
    return INPUT_LINE;
  }
}

static input_result input_damaged(input *in, const char *fault) {
  in->fault = fault;
  return INPUT_DAMAGED;
}

/* Decompresses into the free end of the buffer. */
static input_result input_inflate(input *in) {
  input_zip *zip = &in->zip;
  for (;;) {
    if (zip->left == 0) {
      zip->at = zip->buffer;
      input_result result = input_read(in, zip->buffer, INPUT_LINE_MAX + 1, &zip->left);
      if (result != INPUT_LINE)
        return result;
      in->end = zip->left == 0;
    }
    if (in->end) {
      const char *missing = gunzip_end(zip->gunzip);
      return missing != NULL ? input_damaged(in, missing) : INPUT_LINE;
    }
    size_t before = zip->left;
    size_t got = INPUT_LINE_MAX + 1 - in->to;
    const char *fault = gunzip_some(zip->gunzip, &zip->at, &zip->left, in->buffer + in->to, &got);
    zip->taken += before - zip->left;
    if (fault != NULL)
      return input_damaged(in, fault);
    in->to += got;
    if (got > 0)
      return INPUT_LINE;
  }
}

/* Looks at the first bytes of the buffer, and puts them back if they are compressed. */
static input_result input_recognize(input *in) {
  static const struct {
    const char *bytes;
    size_t len;
    const char *fault; /* NULL: gzip */
  } magics[] = {
      {"\x1f\x8b", 2, NULL},
      {"\x28\xb5\x2f\xfd", 4, "it is compressed with zstd; pipe it through zstd -dc"},
      {"\xfd\x37zXZ", 5, "it is compressed with xz; pipe it through xz -dc"},
      {"BZh", 3, "it is compressed with bzip2; pipe it through bzip2 -dc"},
  };
  enum { MAGICS = sizeof(magics) / sizeof(magics[0]), LONGEST = 5 };
  while (in->to < LONGEST && !in->end) {
    size_t got = 0;
    input_result result = input_read(in, in->buffer + in->to, INPUT_LINE_MAX + 1 - in->to, &got);
    if (result != INPUT_LINE)
      return result;
    in->to += got;
    in->end = got == 0;
  }
  in->zip.unknown = false;
  size_t i = 0;
  while (i < MAGICS && (in->to < magics[i].len || memcmp(in->buffer, magics[i].bytes, magics[i].len) != 0))
    i++;
  if (i == MAGICS)
    return INPUT_LINE;
  if (magics[i].fault != NULL)
    return input_damaged(in, magics[i].fault);

  const char *fault;
  in->zip.gunzip = gunzip_open(&fault);
  if (fault != NULL)
    return input_damaged(in, fault);
  in->zip.buffer = malloc(INPUT_LINE_MAX + 1);
  if (in->zip.gunzip == NULL || in->zip.buffer == NULL)
    return input_damaged(in, "there is no memory to decompress it");
  memcpy(in->zip.buffer, in->buffer, in->to);
  in->zip.at = in->zip.buffer;
  in->zip.left = in->to;
  in->to = 0;
  in->end = false;
  return input_inflate(in);
}

/* Reads what there is into the free end of the buffer. @return INPUT_LINE (also at the end), or why not */
static input_result input_fill(input *in) {
  if (in->from > 0) {
    memmove(in->buffer, in->buffer + in->from, in->to - in->from);
    in->to -= in->from;
    in->from = 0;
  }
  if (in->zip.unknown)
    return input_recognize(in);
  if (in->zip.gunzip != NULL)
    return input_inflate(in);
  size_t got = 0;
  input_result result = input_read(in, in->buffer + in->to, INPUT_LINE_MAX + 1 - in->to, &got);
  in->to += got;
  in->end = result == INPUT_LINE && got == 0;
  return result;
}

input_result input_line(input *in, const char **line, size_t *len) {
  bool too_long = false;
  size_t looked = 0; /* bytes from in->from on that hold no line end */
  for (;;) {
    char *start = in->buffer + in->from;
    char *end = memchr(start + looked, '\n', in->to - in->from - looked);
    if (end == NULL && !in->end) {
      looked = in->to - in->from;
      if (looked > INPUT_LINE_MAX) {
        too_long = true;
        in->from = in->to;
        looked = 0;
      }
      input_result result = input_fill(in);
      if (result != INPUT_LINE)
        return result;
      continue;
    }
    if (end == NULL && in->from == in->to && !too_long)
      return INPUT_END;
    *line = start;
    *len = end != NULL ? (size_t)(end - start) : in->to - in->from;
    in->from += *len + (end != NULL ? 1 : 0);
    in->line++;
    if (*len > 0 && start[*len - 1] == '\r')
      (*len)--;
    return too_long ? INPUT_TOO_LONG : INPUT_LINE;
  }
}

input_result input_keep(input *in) {
  if (in->regular)
    return input_rewind(in) ? INPUT_END : INPUT_FAILED;
  int memory = memfd_create("spile-input", MFD_CLOEXEC);
  if (memory < 0)
    return INPUT_FAILED;
  input_result result = INPUT_LINE;
  while (result == INPUT_LINE && !in->end) {
    in->from = in->to = 0;
    result = input_fill(in);
    for (size_t done = 0; result == INPUT_LINE && done < in->to;) {
      ssize_t wrote = write(memory, in->buffer + done, in->to - done);
      if (wrote >= 0)
        done += (size_t)wrote;
      else if (errno != EINTR)
        result = INPUT_FAILED;
    }
  }
  if (result != INPUT_LINE) {
    int failure = errno;
    (void)close(memory);
    errno = failure;
    return result;
  }
  if (in->owned)
    (void)close(in->fd);
  in->fd = memory;
  in->owned = true;
  in->regular = true;
  return input_rewind(in) ? INPUT_END : INPUT_FAILED;
}

int input_failed(input_result result) {
  if (result == INPUT_INTERRUPTED)
    return 128 + input_signal();
  return message(EXIT_STORE, "cannot read the input: %s", strerror(errno));
}
