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

int spile_set_limits(spile_limiter *limiter, spile_limits *limits, spile_error *error) {
  if (limiter == NULL)
    return spile__fail(error, SPILE_EINVAL, "the limiter is NULL", NULL);
  if (limiter->fork_generation != spile__fork_generation())
    return spile__fail(error, SPILE_EFORK, spile_code_text(SPILE_EFORK), NULL);
  const char *prefix = limits != NULL ? limits->key_prefix : NULL;
  if (prefix != NULL && strcmp(prefix, limiter->key_prefix) != 0)
    return prefix_refuse(error, prefix, limiter->key_prefix);
  spile__slot_exchange(&limiter->limits, spile_limits_ref(limits), limits_hold, limits_release);
  return SPILE_OK;
}

spile_limits *spile_current_limits(spile_limiter *limiter) {
  if (limiter == NULL || limiter->fork_generation != spile__fork_generation())
    return NULL;
  return spile__slot_hold(&limiter->limits);
}
