/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a limiter, spread so that counting never makes threads wait for each other.
 */
#include "core/checked.h"
#include "limiter/breaker.h"
#include "limiter/env.h"
#include "limiter/limiter.h"

unsigned spile__stripe(void) {
  /* Threads get stripes in turn; more threads than stripes share them, which is slower and still exact. */
  static atomic_uint next;
  static _Thread_local unsigned stripe __attribute__((tls_model("initial-exec"))) = UINT32_MAX;
  if (stripe == UINT32_MAX)
    stripe = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % LIMITER_STRIPES;
  return stripe;
}

static void count_up(atomic_uint_least64_t *counter) {
  atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Counts what is no take: charges and refunds; a peek not at all. */
SPILE__OUT_OF_LINE static void count_settled(limiter_counts *counts, spile_verb verb, int result,
                                             const spile_decision *decision) {
  if (verb == SPILE_VERB_PEEK)
    return;
  if (result == SPILE_ALLOWED)
    count_up(verb == SPILE_VERB_CHARGE ? &counts->charged : &counts->refunded);
  else if (result == SPILE_EFULL || decision->store_error != SPILE_REASON_NONE)
    count_up(&counts->unsettled); /* not one that was refused before the store was asked */
}

void spile__limiter_count(spile_limiter *limiter, spile_verb verb, int result, const spile_decision *decision) {
  limiter_counts *counts = &limiter->counts[spile__stripe()];
  if (verb != SPILE_VERB_TAKE && verb != SPILE_VERB_TAKE_UP_TO) {
    count_settled(counts, verb, result, decision);
    return;
  }
  switch (result) {
  case SPILE_ALLOWED:
    count_up(&counts->allowed);
    break;
  case SPILE_DENIED:
    count_up(&counts->denied);
    break;
  case SPILE_NEVER:
    count_up(&counts->never);
    break;
  case SPILE_EFULL:
    count_up(&counts->full);
    count_up(&counts->unavailable);
    return;
  default:
    /* Refused before the store was asked. */
    if (decision->store_error == SPILE_REASON_NONE)
      return;
    count_up(&counts->unavailable);
    break;
  }
  if (decision->decided_by == SPILE_BY_STORE)
    return;
  if (decision->decided_by == SPILE_BY_FULL)
    count_up(&counts->full);
  if (decision->decided_by == SPILE_BY_POLICY)
    count_up(result == SPILE_ALLOWED ? &counts->policy_open : &counts->policy_closed);
  if (decision->store_error != SPILE_REASON_NONE)
    count_up(&counts->store_errors[decision->store_error]);
}

int spile_count(spile_limiter *limiter, spile_counters *out) {
  if (limiter == NULL || out == NULL || out->struct_size < sizeof(*out))
    return SPILE_EINVAL;
  if (limiter->fork_generation != spile__fork_generation())
    return SPILE_EFORK;
  *out = (spile_counters){.struct_size = out->struct_size};
  for (size_t i = 0; i < LIMITER_STRIPES; i++) {
    limiter_counts *counts = &limiter->counts[i];
    out->allowed += atomic_load_explicit(&counts->allowed, memory_order_relaxed);
    out->denied += atomic_load_explicit(&counts->denied, memory_order_relaxed);
    out->never += atomic_load_explicit(&counts->never, memory_order_relaxed);
    out->full += atomic_load_explicit(&counts->full, memory_order_relaxed);
    out->unavailable += atomic_load_explicit(&counts->unavailable, memory_order_relaxed);
    out->policy_open += atomic_load_explicit(&counts->policy_open, memory_order_relaxed);
    out->policy_closed += atomic_load_explicit(&counts->policy_closed, memory_order_relaxed);
    for (size_t j = 0; j < SPILE_REASONS_MAX; j++)
      out->store_errors[j] += atomic_load_explicit(&counts->store_errors[j], memory_order_relaxed);
    out->charged += atomic_load_explicit(&counts->charged, memory_order_relaxed);
    out->refunded += atomic_load_explicit(&counts->refunded, memory_order_relaxed);
    out->unsettled += atomic_load_explicit(&counts->unsettled, memory_order_relaxed);
  }
  if (limiter->breaker != NULL) {
    spile_breaker_state state;
    spile__breaker_read(limiter->breaker, &state, &out->breaker_opened);
    out->breaker = (int)state;
  }
  return SPILE_OK;
}
