/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a ruling to status, headers and body. Everything is known by now: no store is asked, so one that goes down in
 * between cannot be noticed here.
 */
#include <string.h>

#include "http/fields.h"

/* Texts of a refusal by its status. */
typedef struct refusal {
  int status;
  const char *type; /* of problems: RFC 9457, and the draft's own types for quotas */
  const char *title;
  const char *word; /* in the short form */
} refusal;

static const refusal refusals[] = {
    {429, "https://iana.org/assignments/http-problem-types#quota-exceeded", "Too Many Requests", "rate_limited"},
    {503, "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity", "Service Unavailable",
     "unavailable"},
    {403, "about:blank", "Forbidden", "blocked"},
    {500, "about:blank", "Internal Server Error", "internal_error"},
};

static const refusal *refusal_of(int status) {
  size_t i = 0;
  while (refusals[i].status != status && refusals[i].status != 500)
    i++;
  return &refusals[i];
}

static int status_of_error(int code) {
  switch (code) {
  case SPILE_EUNAVAILABLE:
  case SPILE_EFULL:
  case SPILE_ENOMEM:
  case SPILE_ENOSUBJECT:
    return 503;
  default:
    return 500;
  }
}

static int status_of(int result, const spile_ruling *ruling) {
  const spile_decision *decision = &ruling->decision;
  switch (result) {
  case SPILE_ALLOWED:
    return 200;
  case SPILE_DENIED:
    /* What the store did not decide has no wait that a client could be told. */
    return decision->decided_by == SPILE_BY_STORE && decision->retry_after_ms >= 0 ? 429 : 503;
  case SPILE_NEVER:
    return ruling->route != NULL && spile_route_word_of(ruling->route) == SPILE_ROUTE_BLOCKED ? 403 : 429;
  default:
    return status_of_error(result);
  }
}

/* ---- Bodies ---- */

static void problem_put(spile__writer *writer, const refusal *texts, const spile_ruling *ruling) {
  spile__writer_put(writer, "{\"type\":\"");
  spile__writer_put(writer, texts->type);
  spile__writer_put(writer, "\",\"title\":\"");
  spile__writer_put(writer, texts->title);
  spile__writer_put(writer, "\",\"status\":");
  spile__writer_put_number(writer, texts->status);
  if (texts->status == 429) {
    if (ruling->decision.outcome == SPILE_NEVER)
      spile__writer_put(writer,
                        ",\"detail\":\"The request costs more than the limit ever holds; waiting does not help.\"");
    spile__writer_put(writer, ",\"violated-policies\":[");
    size_t n = 0;
    for (size_t i = 0; i < ruling->n; i++) {
      if (ruling->each[i].outcome == SPILE_ALLOWED)
        continue;
      if (n++ > 0)
        spile__writer_put(writer, ",");
      spile__writer_put_name(writer, spile_limit_name(ruling->limits[i]));
    }
    spile__writer_put(writer, "]");
  }
  spile__writer_put(writer, "}");
}

static void body_add(const spile_http_settings *settings, const spile_ruling *ruling, spile__writer *writer,
                     spile_http_response *response) {
  if (settings->body == SPILE_HTTP_NO_BODY)
    return;
  const refusal *texts = refusal_of(response->status);
  bool is_problem = settings->body == SPILE_HTTP_PROBLEM;
  spile__writer_begin(writer);
  if (is_problem) {
    problem_put(writer, texts, ruling);
  } else {
    spile__writer_put(writer, "{\"error\":\"");
    spile__writer_put(writer, texts->word);
    spile__writer_put(writer, "\"}");
  }
  response->body = spile__writer_end(writer);
  if (response->body == NULL)
    return;
  response->body_len = strlen(response->body);
  spile__header_add(response, "Content-Type", is_problem ? "application/problem+json" : "application/json");
}

/* ---- The answer ---- */

/* Names live as long as their limits, which the response may outlive. */
static void decision_copy(spile_http_response *response, const spile_decision *decision) {
  response->decision = *decision;
  response->limit[0] = '\0';
  if (decision->name == NULL)
    return;
  size_t len = strnlen(decision->name, SPILE_NAME_LEN_MAX);
  memcpy(response->limit, decision->name, len);
  response->limit[len] = '\0';
  response->decision.name = response->limit;
}

void spile_http_answer(const spile_http_settings *settings, int result, const spile_ruling *ruling, int64_t now_ms,
                       spile_http_response *response) {
  if (settings == NULL)
    settings = &spile__http_defaults;
  response->header_count = 0;
  response->body = NULL;
  response->body_len = 0;
  response->status = status_of(result, ruling);
  response->skipped = ruling->skipped;
  response->n_waived = ruling->n_waived;
  decision_copy(response, &ruling->decision);

  /* What a client needs most comes first, in case not everything fits. */
  spile__writer writer;
  spile__writer_init(&writer, response->buffer, response->size);
  int64_t retry_after_s = response->status == 429 ? spile__retry_after_s(&ruling->decision) : 0;
  if (retry_after_s > 0) {
    spile__writer_begin(&writer);
    spile__writer_put_number(&writer, retry_after_s);
    spile__header_add(response, "Retry-After", spile__writer_end(&writer));
  }
  if (response->status != 200) {
    spile__header_add(response, "Cache-Control", "no-store");
    body_add(settings, ruling, &writer, response);
  }
  if (settings->dialect == SPILE_HTTP_X_RATELIMIT || settings->dialect == SPILE_HTTP_BOTH)
    spile__fields_x(settings, ruling, now_ms, &writer, response);
  if (settings->dialect == SPILE_HTTP_DRAFT_11 || settings->dialect == SPILE_HTTP_BOTH)
    spile__fields_draft_11(ruling, &writer, response);
  response->needed = writer.needed;
}

size_t spile_http_block(const spile_http_response *response, char *out, size_t size) {
  spile__writer writer;
  spile__writer_init(&writer, out, size);
  spile__writer_begin(&writer);
  for (size_t i = 0; i < response->header_count; i++) {
    spile__writer_put(&writer, response->headers[i].name);
    spile__writer_put(&writer, ": ");
    spile__writer_put(&writer, response->headers[i].value);
    spile__writer_put(&writer, "\r\n");
  }
  if (spile__writer_end(&writer) == NULL && size > 0)
    out[0] = '\0';
  return writer.needed;
}
