/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <spile/spile.h>

#include "core/text.h"

/* The errno of the first write that failed; 0 while none did. */
static int output_error;

/* ---- Messages ---- */

static bool is_plain(unsigned char c) {
  return c >= 0x20 && c < 0x7f && c != '\\';
}

/* One write, so that lines of several processes do not mix; a byte becomes four at most. */
__attribute__((format(printf, 2, 0))) static void line_write(const char *before, const char *format, va_list args) {
  char text[1024];
  if (vsnprintf(text, sizeof(text), format, args) < 0)
    return;
  char line[sizeof(text) * 4 + 16];
  size_t n = (size_t)snprintf(line, sizeof(line), "%s", before);
  for (const char *c = text; *c != '\0'; c++) {
    if (is_plain((unsigned char)*c) || *c == '\\')
      line[n++] = *c;
    else
      n += (size_t)snprintf(line + n, sizeof(line) - n, "\\x%02x", (unsigned)(unsigned char)*c);
  }
  line[n++] = '\n';
  (void)fwrite(line, 1, n, stderr);
}

int message(int status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  line_write("spile: ", format, args);
  va_end(args);
  return status;
}

void message_plain(const char *format, ...) {
  va_list args;
  va_start(args, format);
  line_write("", format, args);
  va_end(args);
}

/* ---- Standard output ---- */

static void output_note(bool written) {
  if (!written && output_error == 0)
    output_error = errno != 0 ? errno : EIO;
}

void output(const char *format, ...) {
  va_list args;
  va_start(args, format);
  errno = 0;
  output_note(vprintf(format, args) >= 0);
  va_end(args);
}

void output_bytes(const void *bytes, size_t len) {
  errno = 0;
  output_note(fwrite(bytes, 1, len, stdout) == len);
}

void output_escaped(const void *bytes, size_t len) {
  const unsigned char *at = bytes;
  for (size_t i = 0; i < len; i++) {
    if (is_plain(at[i]))
      output_bytes(&at[i], 1);
    else
      output("\\x%02x", (unsigned)at[i]);
  }
}

void output_duration(int64_t ms) {
  static const struct {
    const char *name;
    int64_t ms;
  } units[] = {{"d", 86400000}, {"h", 3600000}, {"min", 60000}};
  const char *space = "";
  for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
    if (ms < units[i].ms)
      continue;
    output("%s%" PRId64 " %s", space, ms / units[i].ms, units[i].name);
    ms %= units[i].ms;
    space = " ";
  }
  if (ms % 1000 != 0)
    output("%s%" PRId64 ".%03" PRId64 " s", space, ms / 1000, ms % 1000);
  else if (ms != 0 || *space == '\0')
    output("%s%" PRId64 " s", space, ms / 1000);
}

bool output_failed(void) {
  return output_error != 0;
}

void output_flush(void) {
  errno = 0;
  output_note(fflush(stdout) == 0);
}

int output_finish(int status) {
  output_flush();
  /* A signal may have broken off a write; that it came is the better news. */
  if (output_error == 0 || status > 128)
    return status;
  if (output_error == EPIPE)
    return 128 + SIGPIPE;
  return message(EXIT_STORE, "cannot write the result: %s", strerror(output_error));
}

/* ---- JSON ---- */

void output_json_number(int64_t number) {
  if (number == SPILE_UNKNOWN)
    output("null");
  else
    output("%" PRId64, number);
}

void output_json_member(const char *name, const void *bytes, size_t len) {
  const unsigned char *at = bytes;
  bool utf8 = spile__is_utf8(bytes, len);
  output("\"%s\":\"", name);
  for (size_t i = 0; i < len; i++) {
    unsigned char c = at[i];
    if (c == '"' || c == '\\')
      output("\\%c", c);
    else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !utf8))
      output("\\u%04x", (unsigned)c);
    else
      output_bytes(&c, 1);
  }
  output("\"");
  if (!utf8)
    output(",\"%s_encoding\":\"bytes\"", name);
}
