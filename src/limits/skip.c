/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "skip": requests that are exempt from every limit.
 */
#include <string.h>

#include "limits/limits.h"

/* The value of a header, or NULL: the request has none, or nobody can say. */
static const char *header_of(const spile_caller *caller, const char *name) {
  return caller->header != NULL ? caller->header(caller->header_user, name) : NULL;
}

/* `request`: in its one spelling; NULL: it has none, and matches no route. */
static bool skip_matches(const spile__skip *skip, const spile__route_text *request, const spile_caller *caller) {
  if (skip->route != NULL && (request == NULL || !spile__route_text_matches(skip->route, request)))
    return false;
  if (skip->has_network) {
    spile__address address;
    if (caller->ip == NULL || caller->ip_is_proxy || !spile__address_parse(&address, caller->ip, strlen(caller->ip)) ||
        !spile__network_has(&skip->network, &address))
      return false;
  }
  if (skip->header == NULL)
    return true;
  const char *value = header_of(caller, skip->header);
  return value != NULL && (skip->value == NULL || strcmp(value, skip->value) == 0);
}

bool spile__limits_skips(const spile_limits *limits, const char *method, const char *path, const spile_caller *caller) {
  if (limits->skip_count == 0)
    return false;
  /* Once for all entries, as a path may be long and a file may have many. */
  spile__route_text text;
  bool spelled = spile__route_spell(&text, method, path, limits->ignore_case) == SPILE__SPELLED;
  for (size_t i = 0; i < limits->skip_count; i++) {
    if (skip_matches(&limits->skips[i], spelled ? &text : NULL, caller))
      return true;
  }
  return false;
}
