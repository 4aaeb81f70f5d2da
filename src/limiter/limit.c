/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of a limit: a spec and its name in one block, counted by its owners.
 */
#include "limiter/limit.h"

#include <stdlib.h>
#include <string.h>

#include "core/algorithm.h"
#include "core/checked.h"
#include "core/text.h"

int spile__limit_new(spile_limit **out, const spile__limit_text *text, int64_t timeout_ms, spile_error *error) {
  spile_shape shape;
  int result = spile__algorithm_get(text->algorithm)
                   ->shape_make(&shape, text->capacity, text->refill_tokens, text->refill_period_ms, text->debt, error);
  if (result != SPILE_OK)
    return result;
  static const char default_name[] = "default";
  const char *name = text->name != NULL ? text->name : default_name;
  size_t name_len = text->name != NULL ? text->name_len : sizeof(default_name) - 1;

  spile_limit *limit = malloc(sizeof(*limit) + name_len + 1);
  if (limit == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for a limit", NULL);
  memcpy(limit->name, name, name_len);
  limit->name[name_len] = '\0';
  limit->spec = (spile_spec){.name = limit->name,
                             .name_len = name_len,
                             .algorithm = text->algorithm,
                             .on_full = text->on_full,
                             .on_store_error = text->on_store_error,
                             .timeout_ms = timeout_ms,
                             .shape = shape};
  spile__spec_finish(&limit->spec);
  atomic_init(&limit->owners, 1);
  *out = limit;
  return SPILE_OK;
}

int spile_limit_parse(spile_limit **out, const char *text, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  if (text == NULL)
    return spile__fail(error, SPILE_EINVAL, "the text of the limit is NULL", NULL);
  spile__limit_text parsed;
  int result = spile__limit_parse(&parsed, text, error);
  return result == SPILE_OK ? spile__limit_new(out, &parsed, 0, error) : result;
}

int spile_limit_create(spile_limit **out, const spile_limit_def *def, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  if (def == NULL || def->struct_size < sizeof(*def))
    return spile__fail(error, SPILE_EINVAL, "the definition is NULL or not started by SPILE_LIMIT_DEF_INIT", NULL);
  if (def->on_full < SPILE_ON_FULL_CLOSED || def->on_full > SPILE_ON_FULL_FAIL)
    return spile__fail(error, SPILE_ECONFIG, "on_full is #; it must be a spile_on_full", (int64_t[]){def->on_full});
  if (def->on_store_error < SPILE_ON_STORE_ERROR_DEFAULT || def->on_store_error > SPILE_ON_STORE_ERROR_CLOSED)
    return spile__fail(error, SPILE_ECONFIG, "on_store_error is #; it must be a spile_on_store_error",
                       (int64_t[]){def->on_store_error});
  if (def->timeout_ms < 0 || def->timeout_ms > SPILE__TIMEOUT_MAX_MS)
    return spile__fail(error, SPILE_ECONFIG, "timeout_ms is #; it must be 0 to 3600000", &def->timeout_ms);
  spile_algorithm algorithm = def->algorithm == 0 ? SPILE_TOKEN_BUCKET : (spile_algorithm)def->algorithm;
  if (spile__algorithm_get(algorithm) == NULL)
    return spile__fail(error, SPILE_ECONFIG, "algorithm is #; it must be a spile_algorithm",
                       (int64_t[]){def->algorithm});
  spile__limit_text text = {.name = def->name,
                            .name_len = def->name != NULL ? strlen(def->name) : 0,
                            .algorithm = algorithm,
                            .on_full = (spile_on_full)def->on_full,
                            .on_store_error = (spile_on_store_error)def->on_store_error,
                            .capacity = def->capacity,
                            .refill_tokens = def->refill_tokens,
                            .refill_period_ms = def->refill_period_ms,
                            .debt = def->debt};
  if (def->name != NULL && (text.name_len < 1 || text.name_len > SPILE_NAME_LEN_MAX))
    return spile__fail(error, SPILE_ECONFIG, "the name has # bytes; it must have 1 to 255",
                       (int64_t[]){(int64_t)text.name_len});
  return spile__limit_new(out, &text, def->timeout_ms, error);
}

spile_limit *spile_limit_ref(spile_limit *limit) {
  if (limit != NULL)
    atomic_fetch_add_explicit(&limit->owners, 1, memory_order_relaxed);
  return limit;
}

void spile_limit_unref(spile_limit *limit) {
  if (limit != NULL && atomic_fetch_sub_explicit(&limit->owners, 1, memory_order_acq_rel) == 1)
    free(limit);
}

const char *spile_limit_name(const spile_limit *limit) {
  return limit->name;
}

int64_t spile_limit_capacity(const spile_limit *limit) {
  return limit->spec.shape.capacity;
}

int64_t spile_limit_full_time_ms(const spile_limit *limit) {
  return spile__algorithm_get(limit->spec.algorithm)->full_time_ms(&limit->spec.shape);
}

const spile_spec *spile_limit_spec(const spile_limit *limit) {
  return &limit->spec;
}
