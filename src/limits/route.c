/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/route.h"

#include <string.h>

#include "limits/limits.h"

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
  return spile__route_spell(&request, method, path, limits->ignore_case) == SPILE__SPELLED &&
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
