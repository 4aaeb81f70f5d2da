/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/logline.h"

#include <string.h>

#include "cli/logtime.h"

/* ---- Parts ---- */

void logline_set_client(log_line *out, const char *text, size_t len) {
  out->client = text;
  out->client_len = len;
  const char *colon = memchr(text, ':', len);
  const char *bracket = len > 2 && text[0] == '[' ? memchr(text, ']', len) : NULL;
  if (bracket != NULL && bracket > text + 1) {
    out->client = text + 1;
    out->client_len = (size_t)(bracket - out->client);
  } else if (colon != NULL && colon > text && memchr(colon + 1, ':', len - (size_t)(colon + 1 - text)) == NULL) {
    /* One colon alone is no IPv6 address. */
    out->client_len = (size_t)(colon - text);
  }
}

static bool is_method(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++) {
    char c = text[i];
    bool fine = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    if (!fine)
      return false;
  }
  return len > 0;
}

/* SCHEME://HOST/path names the same route as /path (RFC 9112, section 3.2.2). @return where the path begins */
static const char *target_path(const char *target, const char *end) {
  const char *at = target;
  while (at < end && ((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z')))
    at++;
  if (at == target || end - at < 3 || memcmp(at, "://", 3) != 0)
    return target;
  for (at += 3; at < end && *at != '/' && *at != '?' && *at != '#';)
    at++;
  return at;
}

void logline_set_target(log_line *out, const char *method, size_t method_len, const char *target, size_t target_len) {
  if (!is_method(method, method_len) || target_len == 0)
    return;
  const char *end = target + target_len;
  const char *path = target_path(target, end);
  const char *at = path;
  while (at < end && *at != '?' && *at != '#')
    at++;
  bool bare = at == path; /* a host alone, or a query alone: the root */
  if (bare && path == target)
    return;
  out->method = method;
  out->method_len = method_len;
  out->path = bare ? "/" : path;
  out->path_len = bare ? 1 : (size_t)(at - path);
}

void logline_set_request(log_line *out, const char *text, size_t len) {
  const char *blank = memchr(text, ' ', len);
  if (blank == NULL)
    return;
  const char *target = blank + 1;
  size_t left = len - (size_t)(target - text);
  const char *target_end = memchr(target, ' ', left);
  size_t target_len = target_end != NULL ? (size_t)(target_end - target) : left;
  logline_set_target(out, text, (size_t)(blank - text), target, target_len);
}

/* ---- The common format ---- */

/* The quote that ends what begins at `at`; one behind a backslash does not. */
static const char *quote_end(const char *at, const char *end) {
  while (at < end && *at != '"')
    at += *at == '\\' && end - at > 1 ? 2 : 1;
  return at < end ? at : NULL;
}

const char *logline_parse(log_line *out, const char *line, size_t len) {
  *out = (log_line){.client = NULL};
  cursor text = {.at = line, .end = line + len};
  const char *client_end = memchr(line, ' ', len);
  if (client_end == NULL || client_end == line)
    return "it does not begin with a client address";
  logline_set_client(out, line, (size_t)(client_end - line));

  /* A user's name may hold blanks and brackets: the time is the first bracket that reads as one. */
  bool found = false;
  for (const char *at = client_end; !found;) {
    at = memchr(at, '[', (size_t)(text.end - at));
    if (at == NULL)
      return "it has no time such as [10/Oct/2000:13:55:36 -0700]";
    text.at = ++at;
    found = at[-2] == ' ' && logtime_common(&text, &out->time_ms) && cursor_skip(&text, ']');
  }
  if (!cursor_skip(&text, ' ') || !cursor_skip(&text, '"'))
    return "it has no quoted request behind the time";
  const char *request = text.at;
  const char *request_end = quote_end(request, text.end);
  if (request_end == NULL)
    return "the quoted request does not end";
  text.at = request_end + 1;
  int64_t status;
  if (!cursor_skip(&text, ' ') || !cursor_number(&text, 3, &status))
    return "it has no status behind the request";
  out->status = (int)status;
  logline_set_request(out, request, (size_t)(request_end - request));
  return NULL;
}
