/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_HTTP_HTTP_H
#define SPILE_HTTP_HTTP_H

#include <spile/http.h>

#include "limits/network.h"

struct spile_http_settings {
  spile_http_forwarded forwarded;
  int hops;
  spile_http_dialect dialect;
  spile_http_reset reset;
  spile_http_body body;
  bool trusts_unix;
  size_t trusted_count;
  spile__network trusted[];
};

/* What settings are when none are given. */
extern const spile_http_settings spile__http_defaults;

#endif
