/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secret over libsodium: BLAKE2b (RFC 7693), which takes a key of its own. A text of any form may stand in the
 * file, so the key is its hash and not its first bytes.
 */
#include "limiter/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

#include "core/text.h"

#define SECRET_FILE_LEN_MIN 32
#define SECRET_FILE_LEN_MAX 4096

_Static_assert(SPILE__SECRET_LEN == crypto_generichash_KEYBYTES, "the key has the length the hash recommends");

static int secret_fail(spile_error *error, const char *path, const char *what) {
  if (error == NULL || error->code != 0)
    return SPILE_ECONFIG;
  error->code = SPILE_ECONFIG;
  spile__text text;
  spile__text_init(&text, error->message, sizeof(error->message));
  spile__text_put(&text, "secret_file ");
  spile__text_put_quoted(&text, path, strlen(path));
  spile__text_put(&text, " ");
  spile__text_put(&text, what);
  return SPILE_ECONFIG;
}

/* Reads up to `size` bytes. @return how many there are, or -1 */
static ssize_t file_read(const char *path, char *bytes, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return -1;
  size_t len = 0;
  ssize_t got = 1;
  while (len < size && got != 0) {
    got = read(file, bytes + len, size - len);
    if (got < 0 && errno != EINTR)
      break;
    len += got > 0 ? (size_t)got : 0;
  }
  (void)close(file);
  return got < 0 ? -1 : (ssize_t)len;
}

static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

int spile__secret_load(spile__secret *out, const char *path, spile_error *error) {
  if (sodium_init() < 0)
    return secret_fail(error, path, "cannot be used: libsodium does not start");
  char bytes[SECRET_FILE_LEN_MAX + 1];
  ssize_t got = file_read(path, bytes, sizeof(bytes));
  if (got < 0)
    return secret_fail(error, path, "cannot be read; make it with: head -c 32 /dev/urandom | base64");

  size_t len = (size_t)got;
  const char *start = bytes;
  while (len > 0 && is_space(start[len - 1]))
    len--;
  while (len > 0 && is_space(*start)) {
    start++;
    len--;
  }
  int result = SPILE_OK;
  if ((size_t)got == sizeof(bytes)) {
    result = secret_fail(error, path, "has more than 4096 bytes; 32 random ones are enough");
  } else if (len < SECRET_FILE_LEN_MIN) {
    result = secret_fail(error, path, "has less than 32 bytes; make it with: head -c 32 /dev/urandom | base64");
  } else {
    (void)crypto_generichash(out->key, sizeof(out->key), (const unsigned char *)start, len, NULL, 0);
    out->is_set = true;
  }
  sodium_memzero(bytes, sizeof(bytes));
  return result;
}

void spile__secret_hash(const spile__secret *secret, const char *kind, size_t kind_len, const void *bytes, size_t len,
                        char out[SPILE__HASH_TEXT_LEN]) {
  static const char hex[] = "0123456789abcdef";
  unsigned char hash[SPILE__HASH_TEXT_LEN / 2];
  crypto_generichash_state state;
  (void)crypto_generichash_init(&state, secret->key, sizeof(secret->key), sizeof(hash));
  (void)crypto_generichash_update(&state, (const unsigned char *)kind, kind_len);
  (void)crypto_generichash_update(&state, bytes, len);
  (void)crypto_generichash_final(&state, hash, sizeof(hash));
  for (size_t i = 0; i < sizeof(hash); i++) {
    out[2 * i] = hex[hash[i] >> 4];
    out[2 * i + 1] = hex[hash[i] & 15];
  }
}
