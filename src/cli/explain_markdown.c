/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A limits file as a table in Markdown (GitHub's, or any that has tables), for those who are limited: what is in force,
 * and nothing of what only looks.
 */
#include <inttypes.h>
#include <string.h>

#include "cli/explain.h"
#include "cli/output.h"
#include "core/text.h"

/* ---- Names ---- */

/* The first character of a text of UTF-8, and how many bytes it has; of other bytes one, which is none: -1. */
static int32_t point_of(const char *text, size_t *len) {
  unsigned char lead = (unsigned char)*text;
  *len = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  if (strnlen(text, *len) < *len || !spile__is_utf8(text, *len)) {
    *len = 1;
    return -1;
  }
  int32_t point = *len == 1 ? lead : lead & (0x7f >> *len);
  for (size_t i = 1; i < *len; i++)
    point = point << 6 | ((unsigned char)text[i] & 0x3f);
  return point;
}

/* Control characters, among them those that turn the direction of what follows (Bidi_Control), and ends of lines. */
static bool is_control(int32_t point) {
  static const int32_t ranges[][2] = {{0, 0x1f},        {0x7f, 0x9f},     {0x61c, 0x61c},
                                      {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069}};
  for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
    if (point >= ranges[i][0] && point <= ranges[i][1])
      return true;
  }
  return false;
}

/* As code, which more backticks than the text has anywhere begin and end; a bar would end the cell. */
static void put_code(const char *text) {
  size_t most = 0;
  for (const char *c = text; *c != '\0'; c++) {
    size_t run = strspn(c, "`");
    most = run > most ? run : most;
  }
  for (size_t i = 0; i <= most; i++)
    output("`");
  /* A blank beside the fence is no part of the code. */
  const char *blank = most > 0 ? " " : "";
  output("%s", blank);
  size_t len;
  for (const char *c = text; *c != '\0'; c += len) {
    int32_t point = point_of(c, &len);
    if (point == '|')
      output("\\|");
    else if (point < 0 || is_control(point))
      output_escaped(c, len);
    else
      output_bytes(c, len);
  }
  output("%s", blank);
  for (size_t i = 0; i <= most; i++)
    output("`");
}

/* ---- Rows ---- */

static void row_begin(const char *route, const char *tier) {
  output("| ");
  if (route != NULL)
    put_code(route);
  else
    output("every request");
  output(" | ");
  if (tier != NULL)
    put_code(tier);
  output(" | ");
}

static void row_of_limit(const char *route, const char *tier, const spile__route_limit *limit) {
  allowance a = allowance_of(limit);
  row_begin(route, tier);
  output("%" PRId64 " | ", a.burst);
  explain_put_rate(&a);
  output("%s | %" PRId64 " | ", a.spaced ? ", spaced" : "", a.first_minute);
  explain_put_chain(&limit->chain, put_code);
  const char *name = spile_limit_name(limit->limit);
  if (name[0] == '@') {
    output("; shared by all routes with ");
    put_code(name);
  }
  output(" |\n");
}

/* Every entry has a row, or `default` would be taken to be what its requests meet. */
static void rows_of_route(const spile_route *route, const char *tier) {
  size_t rows = 0;
  for (size_t i = 0; i < route->n; i++) {
    if (route->limits[i].always || route->limits[i].shadow)
      continue;
    row_of_limit(route->text, tier, &route->limits[i]);
    rows++;
  }
  if (rows > 0)
    return;
  row_begin(route->text, tier);
  output("%s | | | |\n", route->word == SPILE_ROUTE_BLOCKED     ? "not available"
                         : route->word == SPILE_ROUTE_UNLIMITED ? "no limit of its own"
                                                                : "no limit of its own in force");
}

static void rows_of_tier(const spile__tier *tier) {
  for (size_t i = 0; i < tier->route_count; i++)
    rows_of_route(&tier->routes[i], tier->name);
}

void explain_markdown(const spile_limits *limits) {
  output("| Route | Tier | Requests at once | Then | In the first minute, at most | Counted by |\n"
         "|---|---|--:|---|--:|---|\n");
  const spile_route *any = explain_route_with_always(limits);
  for (size_t i = 0; any != NULL && i < any->n; i++) {
    if (any->limits[i].always && !any->limits[i].shadow)
      row_of_limit(NULL, NULL, &any->limits[i]);
  }
  rows_of_tier(&limits->base);
  for (size_t i = 0; i < limits->tier_count; i++)
    rows_of_tier(&limits->tiers[i]);
  output("\n`*` stands for anything; `default` for every route that is not listed. All limits that a request meets "
         "apply\ntogether; a request that one of them denies is not counted by any.\n");
}
