/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request of a server, from what it has to what is answered: who the client is, what the limits in force say, how
 * to say it.
 */
#include <string.h>

#include "core/checked.h"
#include "core/decide.h"
#include "core/text.h"
#include "http/http.h"
#include "limiter/env.h"
#include "limiter/limiter.h"
#include "limits/ask.h"

/* Lets the limits see a request's headers. */
typedef struct first_line {
  spile_http_lookup *header;
  void *user;
} first_line;

/* Of a header that came several times the first line counts: one bucket for one request. */
static const char *first_line_get(void *user, const char *name) {
  const first_line *lines = user;
  return lines->header(lines->user, name, 0);
}

/* Answers for a request that could not be asked about. A ruling is large, and there is one at a time. */
SPILE__OUT_OF_LINE static int check_refuse(const spile_http_settings *settings, spile_http_response *response, int code,
                                           const char *why) {
  spile_ruling ruling;
  spile_error error = {0};
  ruling.route = NULL;
  ruling.skipped = false;
  ruling.n = ruling.n_shadow = ruling.n_waived = 0;
  (void)spile__fail(&error, code, why, NULL);
  spile__decision_fail(&ruling.decision, &error);
  spile_http_answer(settings, code, &ruling, 0, response);
  return code;
}

static int64_t limiter_epoch_ms(const spile_limiter *limiter) {
  return limiter->now_ms != NULL ? limiter->now_ms(limiter->clock) : limiter->env.realtime_ms(limiter->env.user);
}

SPILE__OUT_OF_LINE static int check_under(spile_limiter *limiter, const spile_limits *limits,
                                          const spile_http_request *request, int found, spile_http_response *response) {
  first_line lines = {.header = request->header, .user = request->header_user};
  spile_caller caller = SPILE_CALLER_INIT;
  caller.tenant = request->tenant;
  caller.user = request->user;
  caller.api_key = request->api_key;
  caller.tier = request->tier;
  caller.ip = response->client;
  caller.ip_is_proxy = found == SPILE_HTTP_CLIENT_NEAREST;
  caller.header = request->header != NULL ? first_line_get : NULL;
  caller.header_user = &lines;
  const char *path = request->route != NULL ? request->route : request->path;
  spile_ruling ruling;
  int result = spile__limits_ask_for(limiter, limits, request->method, path, &caller, request->cost, SPILE_VERB_TAKE,
                                     SPILE__NO_SUBJECT_BY_POLICY, &ruling);
  spile_http_answer(request->settings, result, &ruling, limiter_epoch_ms(limiter), response);
  return result;
}

int spile_http_check(spile_limiter *limiter, const spile_http_request *request, spile_http_response *response) {
  if (response == NULL || response->struct_size < sizeof(*response)) {
    /* Nobody knows how much of it may be written. */
    if (limiter != NULL)
      spile__limiter_log_misuse(limiter, "spile_http_check: the response is NULL, or was not started by "
                                         "SPILE_HTTP_RESPONSE_INIT; nothing was asked, and nothing written into it");
    return SPILE_EINVAL;
  }
  response->client[0] = '\0';
  if (limiter == NULL)
    return check_refuse(NULL, response, SPILE_EINVAL, "the limiter is NULL");
  if (request == NULL || request->struct_size < sizeof(*request))
    return check_refuse(NULL, response, SPILE_EINVAL,
                        "the request is NULL, or was not started by SPILE_HTTP_REQUEST_INIT");
  if (request->method == NULL || (request->path == NULL && request->route == NULL))
    return check_refuse(request->settings, response, SPILE_EINVAL, "the request has no method, or no path and route");
  if (limiter->fork_generation != spile__fork_generation())
    return check_refuse(request->settings, response, SPILE_EFORK, spile_code_text(SPILE_EFORK));
  int found =
      spile_http_client(request->settings, request->peer, request->header, request->header_user, response->client);
  spile_limits *limits = spile_current_limits(limiter);
  if (limits == NULL)
    return check_refuse(request->settings, response, SPILE_ECONFIG,
                        "no limits are in force: load a limits file and give it to spile_set_limits");
  int result = check_under(limiter, limits, request, found, response);
  spile_limits_unref(limits);
  return result;
}
