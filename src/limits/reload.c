/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limits in force on a limiter. They are exchanged as a whole, and who asks holds the ones it began with.
 */
#include <string.h>

#include "core/text.h"
#include "limiter/env.h"
#include "limiter/limiter.h"
#include "limits/limits.h"

static void *limits_hold(void *value) {
  return spile_limits_ref(value);
}

static void limits_release(void *value) {
  spile_limits_unref(value);
}

/* Says that two prefixes differ; both are of letters that can be shown. */
static int prefix_refuse(spile_error *error, const char *file, const char *limiter) {
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  error->code = SPILE_ECONFIG;
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, "the limits file has the key_prefix ");
  spile__text_put_quoted(&text, file, strlen(file));
  spile__text_put(&text, ", the limiter ");
  spile__text_put_quoted(&text, limiter, strlen(limiter));
  spile__text_put(&text, "; open the limiter with options.key_prefix as spile_limits_key_prefix says");
  return SPILE_ECONFIG;
}

/* ---- Limits that need a secret ---- */

/* The first limit of a tier that may be by API key, or NULL. */
static const spile__route_limit *tier_by_api_key(const spile__tier *tier) {
  for (size_t i = 0; i < tier->route_count; i++) {
    const spile_route *route = &tier->routes[i];
    for (size_t j = 0; j < route->n; j++) {
      const spile__key_chain *chain = &route->limits[j].chain;
      for (size_t k = 0; k < chain->n; k++) {
        if (chain->parts[k].kind == SPILE__KEY_API_KEY)
          return &route->limits[j];
      }
    }
  }
  return NULL;
}

static const spile__route_limit *limits_by_api_key(const spile_limits *limits) {
  const spile__route_limit *found = tier_by_api_key(&limits->base);
  for (size_t i = 0; i < limits->tier_count && found == NULL; i++)
    found = tier_by_api_key(&limits->tiers[i]);
  return found;
}

/* Better said once and before any request comes than of every request afterwards. */
static int secret_refuse(spile_error *error, const spile__route_limit *limit) {
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  error->code = SPILE_ECONFIG;
  const char *name = spile_limit_name(limit->limit);
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, "the limiter has no secret to hash API keys with; open it with options.secret_file, or take "
                         "\"api_key\" out of the key of the limit ");
  spile__text_put_quoted(&text, name, strlen(name));
  return SPILE_ECONFIG;
}

/* ---- In force ---- */

int spile_set_limits(spile_limiter *limiter, spile_limits *limits, spile_error *error) {
  if (limiter == NULL)
    return spile__fail(error, SPILE_EINVAL, "the limiter is NULL", NULL);
  if (limiter->fork_generation != spile__fork_generation())
    return spile__fail(error, SPILE_EFORK, spile_code_text(SPILE_EFORK), NULL);
  const char *prefix = limits != NULL ? limits->key_prefix : NULL;
  if (prefix != NULL && strcmp(prefix, limiter->key_prefix) != 0)
    return prefix_refuse(error, prefix, limiter->key_prefix);
  const spile__route_limit *by_api_key = limits != NULL && !limiter->secret.is_set ? limits_by_api_key(limits) : NULL;
  if (by_api_key != NULL)
    return secret_refuse(error, by_api_key);
  spile__slot_exchange(&limiter->limits, spile_limits_ref(limits), limits_hold, limits_release);
  return SPILE_OK;
}

spile_limits *spile_current_limits(spile_limiter *limiter) {
  if (limiter == NULL || limiter->fork_generation != spile__fork_generation())
    return NULL;
  return spile__slot_hold(&limiter->limits);
}
