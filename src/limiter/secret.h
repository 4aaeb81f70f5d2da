/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limiter's secret: a key from a file, and keyed hashes under it. What must not be stored as it is (an API key), or
 * is too long to be a key, is stored as 128 bits that nobody can compute or search through without the file. Every
 * process that shares buckets needs the same file.
 */
#ifndef SPILE_LIMITER_SECRET_H
#define SPILE_LIMITER_SECRET_H

#include <spile/spile.h>

#define SPILE__SECRET_LEN 32
#define SPILE__HASH_TEXT_LEN 32 /* 128 bits in lower-case hex */

typedef struct spile__secret {
  bool is_set;
  uint8_t key[SPILE__SECRET_LEN];
} spile__secret;

/*
 * Reads the secret from a file: 32 to 4096 bytes, spaces and line ends around them not counted.
 * @return SPILE_OK; SPILE_ECONFIG, it cannot be read or is too short or too long; SPILE_ENOTSUP, this build has no hash
 */
int spile__secret_load(spile__secret *out, const char *path, spile_error *error);

/*
 * Writes the hash of `kind` followed by `bytes`, and no NUL. Kinds must end in a byte that they have nowhere else, so
 * that the two cannot be joined in two ways. The secret is set.
 */
void spile__secret_hash(const spile__secret *secret, const char *kind, size_t kind_len, const void *bytes, size_t len,
                        char out[SPILE__HASH_TEXT_LEN]);

#endif
