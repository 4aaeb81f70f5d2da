/* SPDX-License-Identifier: Apache-2.0 */
#include "limiter/meter.h"

#include "core/text.h"

typedef struct meter_store {
  spile_store base;
  spile_store_ops ops;
  spile_store *inner;
  spile__metrics *metrics;
  const spile_env *env;
} meter_store;

static meter_store *meter_of(spile_store *store) {
  return (meter_store *)(void *)((char *)store - offsetof(meter_store, base));
}

/* The time of a call counts for each limit that it names. */
static int meter_decide(spile_store *store, spile_call *call) {
  meter_store *meter = meter_of(store);
  int64_t began_ns = meter->env->monotonic_ns(meter->env->user);
  int result = meter->inner->ops->decide(meter->inner, call);
  int64_t took_ns = meter->env->monotonic_ns(meter->env->user) - began_ns;
  for (size_t i = 0; i < call->n; i++)
    spile__metrics_call(meter->metrics, call->items[i].spec, took_ns);
  return result;
}

static int meter_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  spile_store *inner = meter_of(store)->inner;
  return inner->ops->clear(inner, item, deadline_ms, error);
}

static int meter_clean(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                       spile_error *error) {
  spile_store *inner = meter_of(store)->inner;
  return inner->ops->clean(inner, what, now_ms, deadline_ms, again, error);
}

static int meter_each(spile_store *store, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                      spile_error *error) {
  spile_store *inner = meter_of(store)->inner;
  return inner->ops->each(inner, now_ms, timeout_ms, visit, user, error);
}

static void meter_usage(spile_store *store, spile_usage *usage) {
  spile_store *inner = meter_of(store)->inner;
  inner->ops->usage(inner, usage);
}

spile_store *spile__meter_remove(spile_store *store) {
  meter_store *meter = meter_of(store);
  spile_store *inner = meter->inner;
  (void)meter->env->allocate(meter->env->allocate_user, meter, 0);
  return inner;
}

static void meter_close(spile_store *store, bool forked) {
  spile_store *inner = spile__meter_remove(store);
  inner->ops->close(inner, forked);
}

int spile__meter_open(spile_store **out, spile_store *inner, spile__metrics *metrics, const spile_env *env,
                      spile_error *error) {
  *out = NULL;
  meter_store *meter = env->allocate(env->allocate_user, NULL, sizeof(*meter));
  if (meter == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory to measure the store", NULL);
  *meter = (meter_store){.inner = inner, .metrics = metrics, .env = env};
  /* What the inner store lacks is lacking here too, so that the caller is told so. */
  bool knows_usage = inner->ops->abi >= 2 && inner->ops->usage != NULL;
  meter->ops = (spile_store_ops){.abi = inner->ops->abi,
                                 .name = inner->ops->name,
                                 .timeout_ms = inner->ops->timeout_ms,
                                 .decide = meter_decide,
                                 .clear = meter_clear,
                                 .clean = inner->ops->clean != NULL ? meter_clean : NULL,
                                 .each = inner->ops->each != NULL ? meter_each : NULL,
                                 .close = meter_close,
                                 .usage = knows_usage ? meter_usage : NULL};
  meter->base.ops = &meter->ops;
  *out = &meter->base;
  return SPILE_OK;
}
