/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that read metrics: arguments checked, and handed on.
 */
#include "limiter/env.h"
#include "limiter/limiter.h"
#include "limiter/watch.h"

int spile_metrics_each(spile_limiter *limiter, spile_metrics_visitor *visit, void *user) {
  if (limiter == NULL || visit == NULL)
    return SPILE_EINVAL;
  if (limiter->fork_generation != spile__fork_generation())
    return SPILE_EFORK;
  const spile__metrics *metrics = spile__watch_metrics(limiter->watch);
  if (metrics != NULL)
    spile__metrics_each(metrics, visit, user);
  return SPILE_OK;
}

int spile_usage_read(spile_limiter *limiter, spile_usage *usage) {
  if (limiter == NULL || usage == NULL || usage->struct_size < sizeof(*usage))
    return SPILE_EINVAL;
  size_t size = usage->struct_size;
  *usage = (spile_usage)SPILE_USAGE_INIT;
  usage->struct_size = size;
  if (limiter->fork_generation != spile__fork_generation())
    return SPILE_EFORK;
  const spile_store_ops *ops = limiter->store->ops;
  if (ops->abi >= 2 && ops->usage != NULL)
    ops->usage(limiter->store, usage);
  return SPILE_OK;
}
