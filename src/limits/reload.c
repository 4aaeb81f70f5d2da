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

/* ---- Refusing ---- */

/* Begins a message as those of loading begin: FILE:LINE:COLUMN: PATH: … */
static void refusal_begin(spile__text *text, spile_error *error, const spile_limits *limits,
                          const spile__place *place) {
  error->code = SPILE_ECONFIG;
  spile__text_init(text, error->message, sizeof(error->message));
  error->column = place->column;
  spile__text_put(text, limits->file);
  spile__text_put(text, ":");
  spile__text_put_number(text, place->line);
  spile__text_put(text, ":");
  spile__text_put_number(text, place->column);
  spile__text_put(text, ": ");
  spile__text_put(text, place->path);
  spile__text_put(text, ": ");
  for (char *c = error->message; *c != '\0'; c++) {
    if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7f)
      *c = '?';
  }
}

/* Both prefixes are of letters that can be shown. */
static int prefix_refuse(spile_error *error, const spile_limits *limits, const char *limiter) {
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  spile__text text;
  refusal_begin(&text, error, limits, limits->key_prefix_place);
  spile__text_put_quoted(&text, limits->key_prefix, strlen(limits->key_prefix));
  spile__text_put(&text, " is not the limiter's, ");
  spile__text_put_quoted(&text, limiter, strlen(limiter));
  spile__text_put(&text, "; write that, or open the limiter with options.key_prefix as the file has it");
  return SPILE_ECONFIG;
}

/* Better said once and before any request comes than of every request afterwards. */
static int secret_refuse(spile_error *error, const spile_limits *limits) {
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  const char *name = spile_limit_name(limits->by_api_key->limit);
  spile__text text;
  refusal_begin(&text, error, limits, limits->by_api_key_place);
  spile__text_put(&text, "the limit ");
  spile__text_put_quoted(&text, name, strlen(name));
  spile__text_put(&text, " is by \"api_key\", and the limiter has no secret to hash it with; open it with "
                         "options.secret_file, or take \"api_key\" out");
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
    return prefix_refuse(error, limits, limiter->key_prefix);
  if (limits != NULL && limits->by_api_key != NULL && !limiter->secret.is_set)
    return secret_refuse(error, limits);
  spile__slot_exchange(&limiter->limits, spile_limits_ref(limits), limits_hold, limits_release);
  return SPILE_OK;
}

spile_limits *spile_current_limits(spile_limiter *limiter) {
  if (limiter == NULL || limiter->fork_generation != spile__fork_generation())
    return NULL;
  return spile__slot_hold(&limiter->limits);
}
