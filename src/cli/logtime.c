/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/logtime.h"

#include <string.h>

#include <spile/spile.h>

static const char time_range[] = "its time lies before 1970 or after 2286";
static const char time_form[] = "its time is neither a number since 1970 nor a date such as 2024-03-01T12:00:00Z";

/* ---- The calendar ---- */

/* A date and time as written, and how far its clock is ahead of UTC. */
typedef struct civil {
  int64_t year;
  int64_t month; /* from 0 */
  int64_t day;   /* from 1 */
  int64_t hour;
  int64_t minute;
  int64_t second;
  int64_t ms;
  int64_t zone_minutes;
} civil;

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

/* A second of 60 is the leap second, which clocks that count from 1970 give to the next minute. */
static const char *civil_ms(const civil *at, int64_t *out_ms) {
  if (at->month < 0 || at->month > 11 || at->day < 1 || at->hour > 23 || at->minute > 59 || at->second > 60)
    return "its time is not one that a calendar and a clock have";
  if (at->year < 1970)
    return time_range;
  if (at->day > month_days(at->year, at->month))
    return "its time names a day that the month does not have";
  int64_t minutes = (days_before(at->year, at->month) + at->day - 1) * 1440 + at->hour * 60 + at->minute;
  /* What is written is local time: east of Greenwich it is ahead of UTC. */
  *out_ms = ((minutes - at->zone_minutes) * 60 + at->second) * 1000 + at->ms;
  return *out_ms >= 0 && *out_ms <= SPILE_TIME_MAX_MS ? NULL : time_range;
}

/* ---- Parts ---- */

/* English names in any locale; the number counts from 0. */
static bool read_month(cursor *text, int64_t *out) {
  static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  for (*out = 0; text->end - text->at >= 3 && *out < 12; (*out)++) {
    if (memcmp(text->at, names + *out * 3, 3) == 0) {
      text->at += 3;
      return true;
    }
  }
  return false;
}

static bool read_clock(cursor *text, civil *out) {
  return cursor_number(text, 2, &out->hour) && cursor_skip(text, ':') && cursor_number(text, 2, &out->minute) &&
         cursor_skip(text, ':') && cursor_number(text, 2, &out->second);
}

/* Z, +hh, +hhmm or +hh:mm. */
static bool read_zone(cursor *text, civil *out) {
  if (cursor_skip(text, 'Z') || cursor_skip(text, 'z'))
    return true;
  bool west = cursor_skip(text, '-');
  if (!west && !cursor_skip(text, '+'))
    return false;
  int64_t hours;
  int64_t minutes = 0;
  if (!cursor_number(text, 2, &hours) || hours > 23)
    return false;
  bool colon = cursor_skip(text, ':');
  if ((colon || cursor_at_digit(text)) && (!cursor_number(text, 2, &minutes) || minutes > 59))
    return false;
  out->zone_minutes = (west ? -1 : 1) * (hours * 60 + minutes);
  return true;
}

/* A point or comma and digits, if one stands there. */
static bool read_fraction(cursor *text, civil *out) {
  if (!cursor_skip(text, '.') && !cursor_skip(text, ','))
    return true;
  if (!cursor_at_digit(text))
    return false;
  for (int64_t unit = 100; cursor_at_digit(text); unit /= 10)
    out->ms += (*text->at++ - '0') * unit;
  return true;
}

/* ---- Forms ---- */

static const char *common_read(cursor *text, int64_t *out_ms) {
  civil at = {.year = 0};
  bool read = cursor_number(text, 2, &at.day) && cursor_skip(text, '/') && read_month(text, &at.month) &&
              cursor_skip(text, '/') && cursor_number(text, 4, &at.year) && cursor_skip(text, ':') &&
              read_clock(text, &at) && cursor_skip(text, ' ') && read_zone(text, &at);
  return read ? civil_ms(&at, out_ms) : time_form;
}

bool logtime_common(cursor *text, int64_t *out_ms) {
  return common_read(text, out_ms) == NULL;
}

static const char *iso_read(cursor *text, int64_t *out_ms) {
  civil at = {.year = 0};
  bool read = cursor_number(text, 4, &at.year) && cursor_skip(text, '-') && cursor_number(text, 2, &at.month) &&
              cursor_skip(text, '-') && cursor_number(text, 2, &at.day) &&
              (cursor_skip(text, 'T') || cursor_skip(text, 't') || cursor_skip(text, ' ')) && read_clock(text, &at) &&
              read_fraction(text, &at);
  if (!read)
    return time_form;
  (void)cursor_skip(text, ' ');
  if (text->at == text->end)
    return "its time has no zone, such as Z or +01:00, so nobody knows when it was";
  if (!read_zone(text, &at))
    return time_form;
  at.month--;
  return civil_ms(&at, out_ms);
}

/* A decimal number: its digits without leading zeros, and where its point is. */
typedef struct decimal {
  char digits[20];
  int64_t kept;  /* digits in `digits`; what comes behind those matters to no time */
  int64_t point; /* digits before the point; negative: zeros behind it before the first digit */
} decimal;

static void decimal_digits(decimal *out, cursor *text, int64_t before_point) {
  for (; cursor_at_digit(text); text->at++) {
    bool leading = out->kept == 0 && *text->at == '0';
    if (!leading && out->kept < (int64_t)sizeof(out->digits))
      out->digits[out->kept++] = *text->at;
    out->point += leading ? before_point - 1 : before_point;
  }
}

/* DIGITS[.DIGITS][e[+-]DIGITS]. A line has at most 2^16 bytes, which bounds all counts but the exponent. */
static bool decimal_read(decimal *out, cursor *text) {
  *out = (decimal){.kept = 0};
  if (!cursor_at_digit(text))
    return false;
  decimal_digits(out, text, 1);
  if (cursor_skip(text, '.')) {
    if (!cursor_at_digit(text))
      return false;
    decimal_digits(out, text, 0);
  }
  if (!cursor_skip(text, 'e') && !cursor_skip(text, 'E'))
    return true;
  bool negative = cursor_skip(text, '-');
  if (!negative)
    (void)cursor_skip(text, '+');
  if (!cursor_at_digit(text))
    return false;
  int64_t exponent = 0;
  for (; cursor_at_digit(text); text->at++) {
    if (exponent < 1000000)
      exponent = exponent * 10 + (*text->at - '0');
  }
  out->point += negative ? -exponent : exponent;
  return true;
}

static const char *number_read(const decimal *number, int64_t *out_ms) {
  *out_ms = 0;
  if (number->kept == 0)
    return NULL;
  if (number->point > 20)
    return time_range;
  /* The digits of the number in milliseconds: three more than of seconds, three fewer than of microseconds. */
  int64_t digits = number->point <= 11   ? number->point + 3
                   : number->point <= 14 ? number->point
                   : number->point <= 17 ? number->point - 3
                                         : number->point - 6;
  /* At most 14 digits, which int64_t holds. */
  for (int64_t i = 0; i < digits; i++)
    *out_ms = *out_ms * 10 + (i < number->kept ? number->digits[i] - '0' : 0);
  return *out_ms <= SPILE_TIME_MAX_MS ? NULL : time_range;
}

const char *logtime_read(int64_t *out_ms, const char *text, size_t len) {
  cursor at = {.at = text, .end = text + len};
  if (cursor_skip(&at, '-'))
    return decimal_read(&(decimal){.kept = 0}, &at) && at.at == at.end ? time_range : time_form;
  decimal number;
  if (decimal_read(&number, &at) && at.at == at.end)
    return number_read(&number, out_ms);
  at.at = text;
  const char *fault = memchr(text, '/', len) != NULL ? common_read(&at, out_ms) : iso_read(&at, out_ms);
  return fault == NULL && at.at != at.end ? time_form : fault;
}
