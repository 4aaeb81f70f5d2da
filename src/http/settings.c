/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the HTTP side, checked once so that no request meets a mistake in them.
 */
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "http/http.h"

const spile_http_settings spile__http_defaults = {.forwarded = SPILE_HTTP_PEER};

static int options_check(const spile_http_options *options, spile_error *error) {
  static const char unstarted[] = "the options are NULL or not started by SPILE_HTTP_OPTIONS_INIT";
  if (options == NULL || options->struct_size < sizeof(*options))
    return spile__fail(error, SPILE_EINVAL, unstarted, NULL);
  if (options->forwarded < SPILE_HTTP_PEER || options->forwarded > SPILE_HTTP_FORWARDED)
    return spile__fail(error, SPILE_EINVAL, "forwarded is #; it must be a spile_http_forwarded",
                       (int64_t[]){options->forwarded});
  if (options->dialect < SPILE_HTTP_X_RATELIMIT || options->dialect > SPILE_HTTP_NEITHER)
    return spile__fail(error, SPILE_EINVAL, "dialect is #; it must be a spile_http_dialect",
                       (int64_t[]){options->dialect});
  if (options->reset < SPILE_HTTP_RESET_EPOCH || options->reset > SPILE_HTTP_RESET_SECONDS)
    return spile__fail(error, SPILE_EINVAL, "reset is #; it must be a spile_http_reset", (int64_t[]){options->reset});
  if (options->body < SPILE_HTTP_PROBLEM || options->body > SPILE_HTTP_NO_BODY)
    return spile__fail(error, SPILE_EINVAL, "body is #; it must be a spile_http_body", (int64_t[]){options->body});
  if (options->hops < 0 || options->hops > SPILE_HTTP_HOPS_MAX)
    return spile__fail(error, SPILE_EINVAL, "hops is #; it must be 0 to 32", (int64_t[]){options->hops});
  if (options->trusted_count > SPILE_HTTP_TRUSTED_MAX || (options->trusted_count > 0 && options->trusted == NULL))
    return spile__fail(error, SPILE_EINVAL, "trusted must name 0 to 256 networks", NULL);
  if (options->hops > 0 && options->trusted_count > 0)
    return spile__fail(error, SPILE_ECONFIG, "hops and trusted are both given; proxies are known by one of them", NULL);
  if ((options->hops > 0 || options->trusted_count > 0) && options->forwarded == SPILE_HTTP_PEER)
    return spile__fail(error, SPILE_ECONFIG,
                       "proxies are trusted and no header is named; set forwarded to the one they write", NULL);
  return SPILE_OK;
}

static int network_fail(const char *text, spile_error *error) {
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  error->code = SPILE_ECONFIG;
  spile__text message;
  spile__text_init(&message, error->message, sizeof(error->message));
  spile__text_put(&message, "trusted: ");
  spile__text_put_quoted(&message, text, strlen(text));
  spile__text_put(&message, " is no network; write one like 10.0.0.0/8, with no bits beyond its prefix, or unix:");
  return SPILE_ECONFIG;
}

int spile_http_settings_create(spile_http_settings **out, const spile_http_options *options, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  int result = options_check(options, error);
  if (result != SPILE_OK)
    return result;
  spile_http_settings *settings = calloc(1, sizeof(*settings) + options->trusted_count * sizeof(settings->trusted[0]));
  if (settings == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for the settings", NULL);
  settings->forwarded = (spile_http_forwarded)options->forwarded;
  settings->hops = options->hops;
  settings->dialect = (spile_http_dialect)options->dialect;
  settings->reset = (spile_http_reset)options->reset;
  settings->body = (spile_http_body)options->body;
  for (size_t i = 0; i < options->trusted_count; i++) {
    const char *text = options->trusted[i] != NULL ? options->trusted[i] : "";
    if (strcmp(text, "unix:") == 0) {
      settings->trusts_unix = true;
    } else if (spile__network_parse(&settings->trusted[settings->trusted_count], text, strlen(text))) {
      settings->trusted_count++;
    } else {
      spile_http_settings_free(settings);
      return network_fail(text, error);
    }
  }
  *out = settings;
  return SPILE_OK;
}

void spile_http_settings_free(spile_http_settings *settings) {
  free(settings);
}
