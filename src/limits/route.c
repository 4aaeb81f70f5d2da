/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/route.h"

#include <string.h>

#include "limits/limits.h"

/* ---- One spelling ---- */

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

/*
 * The characters of which an escape is another path: those that end a path or a segment, and the percent sign, which
 * would begin another escape. Control characters are none that a text should have.
 */
static bool stays_escaped(int c) {
  return c == '/' || c == '?' || c == '#' || c == '%' || c < 0x20 || c == 0x7f;
}

static bool spelling_put(spile__route_text *out, char c) {
  if (out->len == SPILE__ROUTE_LEN_MAX)
    return false;
  out->bytes[out->len++] = c;
  return true;
}

/* One character of a path, which is two more in `path` when it is escaped; moves `*path` behind it. */
static bool spelling_put_escaped(spile__route_text *out, const char **path, bool ignore_case) {
  const char *at = *path;
  int high = at[0] == '%' ? hex_value(at[1]) : -1;
  int low = high >= 0 ? hex_value(at[2]) : -1;
  if (low < 0) {
    *path += 1;
    return spelling_put(out, ignore_case ? letter_lower(*at) : *at);
  }
  *path += 3;
  int byte = high * 16 + low;
  if (!stays_escaped(byte))
    return spelling_put(out, ignore_case ? letter_lower((char)byte) : (char)byte);
  return spelling_put(out, '%') && spelling_put(out, letter_upper(at[1])) && spelling_put(out, letter_upper(at[2]));
}

static bool is_path_end(char c) {
  return c == '\0' || c == '?' || c == '#';
}

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

/* Drops the segment that starts at `from`, its slash, and for ".." the segment before. */
static void spelling_drop(spile__route_text *out, size_t from, size_t path_from) {
  bool two = out->len - from == 3;
  out->len = from;
  if (!two || from == path_from)
    return;
  while (out->len > path_from && out->bytes[--out->len] != '/') {
  }
}

static bool spelling_put_path(spile__route_text *out, const char *target, size_t target_len, bool ignore_case) {
  const char *end = target + target_len;
  const char *path = path_begin(target);
  size_t path_from = out->len;
  while (path < end && !is_path_end(*path)) {
    size_t from = out->len;
    /* What begins without a slash is given one, but for the star of OPTIONS and of globs. */
    bool slash = *path == '/' || (from == path_from && *path != '*');
    while (path < end && *path == '/')
      path++;
    if (slash && !spelling_put(out, '/'))
      return false;
    while (path < end && *path != '/' && !is_path_end(*path)) {
      if (!spelling_put_escaped(out, &path, ignore_case))
        return false;
    }
    const char *segment = out->bytes + from;
    size_t len = out->len - from;
    if (slash && ((len == 2 && memcmp(segment, "/.", 2) == 0) || (len == 3 && memcmp(segment, "/..", 3) == 0)))
      spelling_drop(out, from, path_from);
    else if (len == 1 && slash)
      out->len = from;
  }
  return out->len > path_from || spelling_put(out, '/');
}

bool spile__route_spell(spile__route_text *out, const char *method, const char *path, bool ignore_case) {
  if (path == NULL)
    return false;
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
  if (method_len == 0 || (text && path_len == 0) || method_len >= SPILE__ROUTE_LEN_MAX)
    return false;

  out->len = 0;
  for (size_t i = 0; i < method_len; i++) {
    if (is_blank(method[i]))
      return false;
    (void)spelling_put(out, letter_upper(method[i]));
  }
  out->method_len = method_len;
  if (!spelling_put(out, ' ') || !spelling_put_path(out, path, path_len, ignore_case))
    return false;
  out->bytes[out->len] = '\0';
  return true;
}

/* ---- Globs ---- */

/* A piece of text: the path of a glob. */
typedef struct span {
  const char *bytes;
  size_t len;
} span;

/* Where the last star's run may have to grow, everything before it is matched for good: the earliest match is best. */
static bool span_matches(span pattern, span text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = SIZE_MAX;
  size_t run_end = 0;
  while (t < text.len) {
    if (p < pattern.len && pattern.bytes[p] == '*') {
      star = p++;
      run_end = t;
    } else if (p < pattern.len && pattern.bytes[p] == text.bytes[t]) {
      p++;
      t++;
    } else if (star != SIZE_MAX) {
      p = star + 1;
      t = ++run_end;
    } else {
      return false;
    }
  }
  while (p < pattern.len && pattern.bytes[p] == '*')
    p++;
  return p == pattern.len;
}

static span path_of(const char *pattern) {
  const char *path = strchr(pattern, ' ') + 1;
  return (span){path, strlen(path)};
}

/* The path that a glob implies: "/a" of one that ends as "/a" and "/" and a star. len 0: none. */
static span path_implied(span path) {
  if (path.len > 2 && memcmp(path.bytes + path.len - 2, "/*", 2) == 0)
    return (span){path.bytes, path.len - 2};
  return (span){path.bytes, 0};
}

size_t spile__glob_implied_len(const char *pattern) {
  span path = path_of(pattern);
  span implied = path_implied(path);
  return implied.len > 0 ? (size_t)(path.bytes - pattern) + implied.len : 0;
}

/* The path that is a slash has no slash at its end besides. */
static bool is_root(span path) {
  return path.len == 1 && path.bytes[0] == '/';
}

static bool path_matches(span pattern, span path) {
  span implied = path_implied(pattern);
  return span_matches(pattern, path) || (implied.len > 0 && !is_root(path) && span_matches(implied, path));
}

size_t spile__methods_of(const spile__route_text *request, spile__method methods[SPILE__METHODS_MAX]) {
  size_t n = 0;
  methods[n++] = (spile__method){request->bytes, request->method_len};
  if (request->method_len == 4 && memcmp(request->bytes, "HEAD", 4) == 0)
    methods[n++] = (spile__method){"GET", 3};
  methods[n++] = (spile__method){"*", 1};
  return n;
}

bool spile__route_text_matches(const char *pattern, const spile__route_text *request) {
  span path = path_of(pattern);
  size_t method_len = (size_t)(path.bytes - pattern) - 1;
  spile__method methods[SPILE__METHODS_MAX];
  size_t n = spile__methods_of(request, methods);
  bool same = false;
  for (size_t i = 0; i < n && !same; i++)
    same = methods[i].len == method_len && memcmp(methods[i].name, pattern, method_len) == 0;
  size_t skip = request->method_len + 1;
  return same && path_matches(path, (span){request->bytes + skip, request->len - skip});
}

bool spile__route_matches(const spile_limits *limits, const char *pattern, const char *method, const char *path) {
  spile__route_text request;
  return spile__route_spell(&request, method, path, limits->ignore_case) &&
         spile__route_text_matches(pattern, &request);
}

bool spile__is_glob(const char *pattern) {
  const char *space = strchr(pattern, ' ');
  return space != NULL && strchr(space, '*') != NULL;
}

int spile__glob_weight(const char *pattern) {
  span path = path_of(pattern);
  int weight = 0;
  for (size_t i = 0; i < path.len; i++)
    weight += path.bytes[i] != '*' ? 1 : 0;
  return weight;
}

/*
 * Whether a path matches both. Without a star one of them is that path. With a star in each, the literal beginnings
 * must agree as far as both go, and so must the ends; that is enough, for the longer beginning, the inner pieces of the
 * one, those of the other and the longer end, with a letter between each two, is a path that matches both.
 */
static bool spans_meet(span a, span b) {
  const char *a_star = memchr(a.bytes, '*', a.len);
  const char *b_star = memchr(b.bytes, '*', b.len);
  if (a_star == NULL)
    return span_matches(b, a);
  if (b_star == NULL)
    return span_matches(a, b);
  size_t a_head = (size_t)(a_star - a.bytes);
  size_t b_head = (size_t)(b_star - b.bytes);
  if (memcmp(a.bytes, b.bytes, a_head < b_head ? a_head : b_head) != 0)
    return false;
  for (size_t i = 1; a.bytes[a.len - i] != '*' && b.bytes[b.len - i] != '*'; i++) {
    if (a.bytes[a.len - i] != b.bytes[b.len - i])
      return false;
  }
  return true;
}

bool spile__globs_meet(const char *a, const char *b) {
  span a_path = path_of(a);
  span b_path = path_of(b);
  size_t a_method = (size_t)(a_path.bytes - a);
  size_t b_method = (size_t)(b_path.bytes - b);
  if (a_method != b_method || memcmp(a, b, a_method) != 0)
    return false;
  span a_paths[2] = {a_path, path_implied(a_path)};
  span b_paths[2] = {b_path, path_implied(b_path)};
  for (size_t i = 0; i < 4; i++) {
    span a_one = a_paths[i / 2];
    span b_one = b_paths[i % 2];
    bool root = i > 0 && (is_root(a_one) || is_root(b_one));
    if (a_one.len > 0 && b_one.len > 0 && !root && spans_meet(a_one, b_one))
      return true;
  }
  return false;
}
