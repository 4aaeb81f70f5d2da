/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_LIMITER_LIMIT_H
#define SPILE_LIMITER_LIMIT_H

#include <stdatomic.h>

#include "core/limit.h"

struct spile_limit {
  spile_spec spec;
  atomic_uint owners;
  char name[];
};

/*
 * Makes a limit of numbers and words whose single ranges are checked already; the bounds of the whole are checked here.
 * @return SPILE_OK; SPILE_ECONFIG; SPILE_ENOMEM
 */
int spile__limit_new(spile_limit **out, const spile__limit_text *text, int64_t timeout_ms, spile_error *error);

#endif
