/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/gunzip.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>

#include <zlib.h>

typedef enum gunzip_state {
  GUNZIP_BETWEEN, /* members: another may begin, or the data end */
  GUNZIP_INSIDE,
  GUNZIP_PADDED, /* zeros behind the last member, as tapes and block devices leave them */
} gunzip_state;

struct gunzip {
  z_stream stream;
  gunzip_state state;
  bool begun;
};

gunzip *gunzip_open(const char **fault) {
  *fault = NULL;
  gunzip *zip = calloc(1, sizeof(*zip));
  /* 16: the gzip wrapper and no other. */
  if (zip != NULL && inflateInit2(&zip->stream, 16 + MAX_WBITS) == Z_OK)
    return zip;
  free(zip);
  return NULL;
}

void gunzip_close(gunzip *zip) {
  if (zip != NULL)
    (void)inflateEnd(&zip->stream);
  free(zip);
}

/* Passes over padding and finds the next member. @return whether one begins at *at */
static bool member_begins(gunzip *zip, const char **at, size_t *left, const char **fault) {
  *fault = NULL;
  while (zip->begun && *left > 0 && **at == '\0') {
    zip->state = GUNZIP_PADDED;
    (*at)++;
    (*left)--;
  }
  if (*left == 0)
    return false;
  if (zip->state == GUNZIP_PADDED || (zip->begun && (unsigned char)**at != 0x1f)) {
    *fault = "something that is not gzip stands behind the compressed data";
    return false;
  }
  if (zip->begun)
    (void)inflateReset(&zip->stream);
  zip->begun = true;
  zip->state = GUNZIP_INSIDE;
  return true;
}

const char *gunzip_some(gunzip *zip, const char **at, size_t *left, char *out, size_t *out_len) {
  size_t room = *out_len < UINT_MAX ? *out_len : UINT_MAX;
  *out_len = 0;
  while (*left > 0 && *out_len == 0) {
    const char *fault;
    if (zip->state != GUNZIP_INSIDE && !member_begins(zip, at, left, &fault))
      return fault;
    size_t given = *left < UINT_MAX ? *left : UINT_MAX;
    zip->stream.next_in = (z_const Bytef *)(z_const void *)*at;
    zip->stream.avail_in = (uInt)given;
    zip->stream.next_out = (Bytef *)out;
    zip->stream.avail_out = (uInt)room;
    int result = inflate(&zip->stream, Z_NO_FLUSH);
    *at += given - zip->stream.avail_in;
    *left -= given - zip->stream.avail_in;
    *out_len = room - zip->stream.avail_out;
    if (result == Z_STREAM_END)
      zip->state = GUNZIP_BETWEEN;
    else if (result == Z_MEM_ERROR)
      return "there is no memory to decompress it";
    else if (result == Z_NEED_DICT)
      return "the compressed data needs a dictionary, which gzip does not have";
    else if (result != Z_OK && result != Z_BUF_ERROR)
      return zip->stream.msg != NULL ? zip->stream.msg : "the compressed data is damaged";
  }
  return NULL;
}

const char *gunzip_end(const gunzip *zip) {
  return zip->state == GUNZIP_INSIDE ? "the compressed data is cut off" : NULL;
}
