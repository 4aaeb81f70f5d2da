/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one spelling of a request; route.h has the rules.
 *
 * A path is read from its end to its beginning. What a ".." takes away stands before it, so whoever comes from the end
 * knows of each segment whether it stays when he reaches it, and has to remember no more than how many are still to be
 * taken away. The room is therefore for the spelling alone, in whatever length of segments that take each other away it
 * is hidden. From the end an escape is known as well: its percent sign stands two before its last digit, and no digit
 * is a percent sign.
 */
#include <string.h>

#include "limits/route.h"

/* ---- Characters ---- */

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

static char letter_lower(char c) {
  return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static char letter_upper(char c) {
  return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static int hex_value(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  char lower = letter_lower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The letters of a scheme (RFC 3986, 3.1). */
static bool is_scheme(char c) {
  char lower = letter_lower(c);
  return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
}

static bool is_path_end(char c) {
  return c == '\0' || c == '?' || c == '#';
}

/*
 * The characters of which an escape is another path: those that end a path or a segment, and the percent sign, which
 * would begin another escape. Control characters are none that a text should have.
 */
static bool stays_escaped(int c) {
  return c == '/' || c == '?' || c == '#' || c == '%' || c < 0x20 || c == 0x7f;
}

/* The byte of the escape that begins at `at`, of which `len` bytes may be read. @return -1: none begins there */
static int escape_byte(const char *at, size_t len) {
  int high = len >= 3 && at[0] == '%' ? hex_value(at[1]) : -1;
  int low = high >= 0 ? hex_value(at[2]) : -1;
  return low >= 0 ? high * 16 + low : -1;
}

/* ---- Segments ---- */

/* Room that is filled from its end. */
typedef struct room {
  char *begin;
  char *at;
} room;

static bool room_put(room *r, char c) {
  if (r->at == r->begin)
    return false;
  *--r->at = c;
  return true;
}

/* How many dots a segment is, written or escaped: 1 or 2. 0: it is none of these. */
static int segment_dots(const char *from, const char *to) {
  int dots = 0;
  for (; from < to; dots++) {
    bool escaped = escape_byte(from, (size_t)(to - from)) == '.';
    if (dots == 2 || (*from != '.' && !escaped))
      return 0;
    from += escaped ? 3 : 1;
  }
  return dots;
}

/* Puts a segment without its escapes before what is there. @return false: there is no room */
static bool segment_put(room *r, const char *from, const char *to, bool ignore_case) {
  while (to > from) {
    int byte = to - from >= 3 ? escape_byte(to - 3, 3) : -1;
    bool fits;
    if (byte < 0)
      fits = room_put(r, ignore_case ? letter_lower(to[-1]) : to[-1]);
    else if (!stays_escaped(byte))
      fits = room_put(r, ignore_case ? letter_lower((char)byte) : (char)byte);
    else
      fits = room_put(r, letter_upper(to[-1])) && room_put(r, letter_upper(to[-2])) && room_put(r, '%');
    if (!fits)
      return false;
    to -= byte < 0 ? 1 : 3;
  }
  return true;
}

/* ---- Paths ---- */

/* Where the path begins in SCHEME://HOST/path, a request in absolute form (RFC 9112, 3.2.2); of another, where it does.
 */
static const char *path_begin(const char *target) {
  const char *at = target;
  char first = letter_lower(*at);
  if (first < 'a' || first > 'z')
    return target;
  while (is_scheme(*at))
    at++;
  if (strncmp(at, "://", 3) != 0)
    return target;
  for (at += 3; *at != '/' && !is_path_end(*at);)
    at++;
  return at;
}

/* Puts the path of a target before what is there. @return false: there is no room */
static bool path_put(room *r, const char *target, size_t target_len, bool ignore_case) {
  const char *path = path_begin(target);
  const char *to = path;
  while (to < target + target_len && !is_path_end(*to))
    to++;
  const char *end = r->at;
  size_t taken_away = 0; /* segments that a ".." behind them has still to take away */
  for (;;) {
    const char *from = to;
    while (from > path && from[-1] != '/')
      from--;
    int dots = segment_dots(from, to);
    if (dots == 2) {
      taken_away++;
    } else if (dots == 0 && from < to && taken_away > 0) {
      taken_away--;
    } else if (dots == 0 && from < to) {
      /* What begins without a slash is given one, but for the star of OPTIONS and of globs. */
      bool star = from == path && *path == '*';
      if (!segment_put(r, from, to, ignore_case) || (!star && !room_put(r, '/')))
        return false;
    }
    if (from == path)
      break;
    to = from - 1;
  }
  return r->at < end || room_put(r, '/');
}

/* ---- Routes ---- */

spile__spelled spile__route_spell(spile__route_text *out, const char *method, const char *path, bool ignore_case) {
  if (path == NULL)
    return SPILE__SPELLED_NO_ROUTE;
  size_t path_len = strlen(path);
  size_t method_len = method != NULL ? strlen(method) : 0;
  bool text = method == NULL;
  if (text) {
    while (is_blank(*path))
      path++, path_len--;
    method = path;
    while (*path != '\0' && !is_blank(*path))
      path++, method_len++;
    path_len -= method_len;
    while (is_blank(*path))
      path++, path_len--;
    while (path_len > 0 && is_blank(path[path_len - 1]))
      path_len--;
  }
  if (method_len == 0 || (text && path_len == 0) || strcspn(method, " \t") < method_len)
    return SPILE__SPELLED_NO_ROUTE;
  if (method_len + 2 > SPILE__ROUTE_LEN_MAX)
    return SPILE__SPELLED_TOO_LONG;

  for (size_t i = 0; i < method_len; i++)
    out->bytes[i] = letter_upper(method[i]);
  out->bytes[method_len] = ' ';
  out->method_len = method_len;
  char *begin = out->bytes + method_len + 1;
  char *end = out->bytes + SPILE__ROUTE_LEN_MAX;
  room r = {.begin = begin, .at = end};
  if (!path_put(&r, path, path_len, ignore_case))
    return SPILE__SPELLED_TOO_LONG;
  size_t len = (size_t)(end - r.at);
  memmove(begin, r.at, len);
  begin[len] = '\0';
  out->len = method_len + 1 + len;
  return SPILE__SPELLED;
}
