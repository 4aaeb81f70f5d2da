/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client reads here it will act upon, so nothing may be earlier than the truth: every time is rounded up, and a
 * number that the store did not give is left out instead of made up.
 *
 * draft-ietf-httpapi-ratelimit-headers-11, with one item for each limit:
 *
 *   RateLimit-Policy  q: the capacity; w: the seconds from an empty bucket to a full one
 *   RateLimit         r: what is left; t: the seconds until that is one more, which the core knows for every algorithm
 *
 * A Retry-After should not be earlier than any t. It is that of the longest wait, so no limit that denied has a later
 * t; one that would have allowed may have, and then its t, which may be left out, is left out.
 */
#include "http/fields.h"

#include <spile/sys/store.h>

#include "core/checked.h"

int64_t spile__seconds_up(int64_t ms) {
  return ms / 1000 + (ms % 1000 > 0);
}

int64_t spile__retry_after_s(const spile_decision *decision) {
  if (decision->outcome != SPILE_DENIED || decision->retry_after_ms < 0)
    return 0;
  int64_t seconds = spile__seconds_up(decision->retry_after_ms);
  return seconds > 0 ? seconds : 1;
}

void spile__header_add(spile_http_response *response, const char *name, const char *value) {
  if (value != NULL)
    response->headers[response->header_count++] = (spile_http_header){name, value};
}

static bool is_known(const spile_decision *decision) {
  return decision->decided_by == SPILE_BY_STORE && decision->remaining >= 0 && decision->reset_after_ms >= 0;
}

static void number_add(spile__writer *writer, spile_http_response *response, const char *name, int64_t number) {
  spile__writer_begin(writer);
  spile__writer_put_number(writer, number);
  spile__header_add(response, name, spile__writer_end(writer));
}

void spile__fields_x(const spile_http_settings *settings, const spile_ruling *ruling, int64_t now_ms,
                     spile__writer *writer, spile_http_response *response) {
  const spile_decision *decision = &ruling->decision;
  if (!is_known(decision))
    return;
  int64_t reset_ms = decision->reset_after_ms;
  if (decision->outcome == SPILE_DENIED && decision->retry_after_ms > reset_ms)
    reset_ms = decision->retry_after_ms;
  int64_t start_ms = settings->reset == SPILE_HTTP_RESET_EPOCH && now_ms > 0 ? now_ms : 0;
  number_add(writer, response, "X-RateLimit-Limit", decision->capacity);
  number_add(writer, response, "X-RateLimit-Remaining", decision->remaining);
  number_add(writer, response, "X-RateLimit-Reset", spile__seconds_up(spile__add_saturate(start_ms, reset_ms)));
}

/* Writes one item of either header. */
static void item_put(spile__writer *writer, const spile_limit *limit, const spile_decision *decision, bool policy,
                     int64_t retry_after_s) {
  spile__writer_put_name(writer, spile_limit_name(limit));
  if (policy) {
    int64_t window_s = spile__seconds_up(spile_limit_full_time_ms(limit));
    spile__writer_put(writer, ";q=");
    spile__writer_put_number(writer, spile_limit_capacity(limit));
    spile__writer_put(writer, ";w=");
    spile__writer_put_number(writer, window_s > 0 ? window_s : 1);
    return;
  }
  spile__writer_put(writer, ";r=");
  spile__writer_put_number(writer, decision->remaining);
  int64_t grows_after_s = spile__seconds_up(decision->grows_after_ms);
  if (decision->grows_after_ms == SPILE_UNKNOWN || (retry_after_s > 0 && grows_after_s > retry_after_s))
    return;
  spile__writer_put(writer, ";t=");
  spile__writer_put_number(writer, grows_after_s);
}

static void list_add(const spile_ruling *ruling, bool policy, spile__writer *writer, spile_http_response *response) {
  int64_t retry_after_s = spile__retry_after_s(&ruling->decision);
  size_t n = 0;
  spile__writer_begin(writer);
  for (size_t i = 0; i < ruling->n; i++) {
    if (!is_known(&ruling->each[i]))
      continue;
    if (n++ > 0)
      spile__writer_put(writer, ", ");
    item_put(writer, ruling->limits[i], &ruling->each[i], policy, retry_after_s);
  }
  const char *value = spile__writer_end(writer);
  /* An empty list is no header. */
  if (n > 0)
    spile__header_add(response, policy ? "RateLimit-Policy" : "RateLimit", value);
}

void spile__fields_draft_11(const spile_ruling *ruling, spile__writer *writer, spile_http_response *response) {
  if (!is_known(&ruling->decision))
    return;
  list_add(ruling, true, writer, response);
  list_add(ruling, false, writer, response);
}
