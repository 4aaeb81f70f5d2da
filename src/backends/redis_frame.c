/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds where a reply ends before it is parsed, and refuses what we cannot have asked for: a length that would make the
 * parser allocate without end, a type that RESP2 does not have, a line that does not end. So the parser sees only whole
 * replies of a size that was chosen here, however the bytes arrive.
 *
 * A reply is a count of elements that are still to come: one at first, and an array adds as many as it announces.
 */
#include <string.h>

#include "backends/redis.h"

/* Error replies of scripts carry their place; no line of a reply to us is longer. */
#define LINE_MAX_LEN 4096

/* A whole number of at most 19 digits between the type byte and the line's end. @return false when it is none */
static bool frame_number(const char *at, const char *end, int64_t *out) {
  bool negative = at < end && *at == '-';
  if (negative)
    at++;
  if (at == end || end - at > 19)
    return false;
  int64_t number = 0;
  for (; at < end; at++) {
    /* Counted downwards, since the smallest integer has no positive twin. */
    if (*at < '0' || *at > '9' || __builtin_mul_overflow(number, 10, &number) ||
        __builtin_sub_overflow(number, *at - '0', &number))
      return false;
  }
  *out = number;
  return negative || !__builtin_sub_overflow(0, number, out);
}

int spile__redis_frame_scan(spile__redis_frame *frame, const char *bytes, size_t len,
                            const spile__redis_bounds *bounds) {
  if (!frame->begun) {
    frame->begun = true;
    frame->pending = 1;
  }
  while (frame->pending > 0) {
    size_t left = len - frame->at;
    if (frame->at > bounds->total_max)
      return -1;
    if (left == 0)
      return 0;
    const char *line = bytes + frame->at;
    if (memchr("+-:$*", line[0], 5) == NULL)
      return -1;
    const char *end = memchr(line, '\n', left < LINE_MAX_LEN ? left : LINE_MAX_LEN);
    if (end == NULL)
      return left < LINE_MAX_LEN ? 0 : -1;
    if (end[-1] != '\r')
      return -1;
    size_t size = (size_t)(end + 1 - line);
    int64_t number = 0;
    if (line[0] != '+' && line[0] != '-' && !frame_number(line + 1, end - 1, &number))
      return -1;
    if (line[0] == '$' && number >= 0) {
      if (number > bounds->bulk_max)
        return -1;
      size_t body = (size_t)number + 2;
      if (left - size < body)
        return frame->at + size + body > bounds->total_max ? -1 : 0;
      if (line[size + body - 2] != '\r' || line[size + body - 1] != '\n')
        return -1;
      size += body;
    } else if (line[0] == '*' && number > 0) {
      if (number > bounds->elements_max)
        return -1;
      frame->pending += number;
    } else if ((line[0] == '$' || line[0] == '*') && number < -1) {
      return -1;
    }
    frame->at += size;
    frame->pending--;
  }
  return frame->at <= bounds->total_max ? 1 : -1;
}
