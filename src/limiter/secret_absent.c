/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secret in a build without libsodium: there is none, so nothing is ever hashed.
 */
#include <string.h>

#include "core/text.h"
#include "limiter/secret.h"

int spile__secret_load(spile__secret *out, const char *path, spile_error *error) {
  (void)path;
  out->is_set = false;
  return spile__fail(error, SPILE_ENOTSUP,
                     "secret_file is set and this build cannot hash: build with libsodium (-Dsodium=enabled)", NULL);
}

void spile__secret_hash(const spile__secret *secret, const char *kind, size_t kind_len, const void *bytes, size_t len,
                        char out[SPILE__HASH_TEXT_LEN]) {
  (void)secret;
  (void)kind;
  (void)kind_len;
  (void)bytes;
  (void)len;
  /* Without a secret no caller comes here. */
  memset(out, '0', SPILE__HASH_TEXT_LEN);
}
