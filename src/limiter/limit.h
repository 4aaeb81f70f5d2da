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

#endif
