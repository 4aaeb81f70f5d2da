/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits files in a build without jansson: none can be loaded, so none is ever in force.
 */
#include <stddef.h>

#include "core/text.h"
#include "limits/limits.h"

static int absent(spile_limits **out, spile_error *error) {
  if (out == NULL)
    return spile__fail(error, SPILE_EINVAL, "out is NULL", NULL);
  *out = NULL;
  return spile__fail(error, SPILE_ENOTSUP, "this build has no limits files; build with -Dlimits=enabled (jansson)",
                     NULL);
}

int spile_limits_parse(spile_limits **out, const char *text, size_t len, const char *file, spile_fault_visitor *visit,
                       void *user, spile_error *error) {
  (void)text;
  (void)len;
  (void)file;
  (void)visit;
  (void)user;
  return absent(out, error);
}

int spile_limits_load(spile_limits **out, const char *path, spile_fault_visitor *visit, void *user,
                      spile_error *error) {
  (void)path;
  (void)visit;
  (void)user;
  return absent(out, error);
}
