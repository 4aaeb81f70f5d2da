/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/logline.h"

#include <stdbool.h>
#include <string.h>

/* What is left of the line. */
typedef struct log_cursor {
  const char *at;
  const char *end;
} log_cursor;

static bool cursor_skip(log_cursor *cursor, char c) {
  if (cursor->at == cursor->end || *cursor->at != c)
    return false;
  cursor->at++;
  return true;
}

/* Exactly `digits` digits. */
static bool cursor_number(log_cursor *cursor, int digits, int64_t *out) {
  *out = 0;
  for (; digits > 0; digits--) {
    if (cursor->at == cursor->end || *cursor->at < '0' || *cursor->at > '9')
      return false;
    *out = *out * 10 + (*cursor->at++ - '0');
  }
  return true;
}

/* English names in any locale; the number counts from 0. */
static bool cursor_month(log_cursor *cursor, int64_t *out) {
  static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  for (*out = 0; cursor->end - cursor->at >= 3 && *out < 12; (*out)++) {
    if (memcmp(cursor->at, names + *out * 3, 3) == 0) {
      cursor->at += 3;
      return true;
    }
  }
  return false;
}

static bool is_leap(int64_t year) {
  return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* Days from 1970-01-01 to the first of a month (0 to 11) of 1970 or later. */
static int64_t days_before(int64_t year, int64_t month) {
  static const int64_t days[12] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  /* Leap days in the years 1 to y − 1 are those of y − 1: y/4 − y/100 + y/400; 477 of them lie before 1970. */
  int64_t past = year - 1;
  int64_t leap_days = past / 4 - past / 100 + past / 400 - 477;
  return (year - 1970) * 365 + leap_days + days[month] + (month > 1 && is_leap(year) ? 1 : 0);
}

static int64_t month_days(int64_t year, int64_t month) {
  return month == 11 ? 31 : days_before(year, month + 1) - days_before(year, month);
}

/* dd/Mon/yyyy:hh:mm:ss +hhmm */
static bool cursor_time(log_cursor *cursor, int64_t *out_ms) {
  int64_t day, month, year, hour, minute, second, zone_hour, zone_minute;
  bool read = cursor_number(cursor, 2, &day) && cursor_skip(cursor, '/') && cursor_month(cursor, &month) &&
              cursor_skip(cursor, '/') && cursor_number(cursor, 4, &year) && cursor_skip(cursor, ':') &&
              cursor_number(cursor, 2, &hour) && cursor_skip(cursor, ':') && cursor_number(cursor, 2, &minute) &&
              cursor_skip(cursor, ':') && cursor_number(cursor, 2, &second) && cursor_skip(cursor, ' ');
  if (!read || year < 1970 || day < 1 || day > month_days(year, month) || hour > 23 || minute > 59 || second > 60)
    return false;
  bool west = cursor_skip(cursor, '-');
  if (!west && !cursor_skip(cursor, '+'))
    return false;
  if (!cursor_number(cursor, 2, &zone_hour) || !cursor_number(cursor, 2, &zone_minute) || zone_hour > 23 ||
      zone_minute > 59)
    return false;
  int64_t seconds = (days_before(year, month) + day - 1) * 86400 + hour * 3600 + minute * 60 + second;
  int64_t zone = (zone_hour * 60 + zone_minute) * 60;
  /* What is written is local time: east of Greenwich it is ahead of UTC. */
  *out_ms = (west ? seconds + zone : seconds - zone) * 1000;
  return *out_ms >= 0 && *out_ms <= INT64_C(10000000000000);
}

static bool is_method_char(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* METHOD TARGET …, which scanners and broken clients need not send. */
static void request_parse(log_line *out, const char *at, const char *end) {
  const char *method = at;
  while (at < end && is_method_char(*at))
    at++;
  size_t method_len = (size_t)(at - method);
  if (method_len == 0 || at == end || *at != ' ')
    return;
  const char *path = ++at;
  while (at < end && *at != ' ' && *at != '?' && *at != '#')
    at++;
  if (at == path)
    return;
  out->method = method;
  out->method_len = method_len;
  out->path = path;
  out->path_len = (size_t)(at - path);
}

/* The quote that ends what begins at `at`; one behind a backslash does not. */
static const char *quote_end(const char *at, const char *end) {
  while (at < end && *at != '"')
    at += *at == '\\' && end - at > 1 ? 2 : 1;
  return at < end ? at : NULL;
}

const char *logline_parse(log_line *out, const char *line, size_t len) {
  *out = (log_line){.client = line};
  log_cursor cursor = {.at = line, .end = line + len};
  const char *client_end = memchr(line, ' ', len);
  if (client_end == NULL || client_end == line)
    return "it does not begin with a client address";
  out->client_len = (size_t)(client_end - line);

  /* A user's name may hold blanks and brackets: the time is the first bracket that reads as one. */
  bool found = false;
  for (const char *at = client_end; !found;) {
    at = memchr(at, '[', (size_t)(cursor.end - at));
    if (at == NULL)
      return "it has no time such as [10/Oct/2000:13:55:36 -0700]";
    cursor.at = ++at;
    found = at[-2] == ' ' && cursor_time(&cursor, &out->time_ms) && cursor_skip(&cursor, ']');
  }
  if (!cursor_skip(&cursor, ' ') || !cursor_skip(&cursor, '"'))
    return "it has no quoted request behind the time";
  const char *request = cursor.at;
  const char *request_end = quote_end(request, cursor.end);
  if (request_end == NULL)
    return "the quoted request does not end";
  cursor.at = request_end + 1;
  int64_t status;
  if (!cursor_skip(&cursor, ' ') || !cursor_number(&cursor, 3, &status))
    return "it has no status behind the request";
  request_parse(out, request, request_end);
  return NULL;
}
