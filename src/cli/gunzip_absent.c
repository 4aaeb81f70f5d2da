/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of gunzip.c in a build without zlib. */
#include "cli/gunzip.h"

gunzip *gunzip_open(const char **fault) {
  *fault = "this build of spile cannot decompress gzip; pipe the file through gzip -dc";
  return NULL;
}

void gunzip_close(gunzip *zip) {
  (void)zip;
}

const char *gunzip_some(gunzip *zip, const char **at, size_t *left, char *out, size_t *out_len) {
  (void)zip;
  (void)at;
  (void)left;
  (void)out;
  *out_len = 0;
  return NULL;
}

const char *gunzip_end(const gunzip *zip) {
  (void)zip;
  return NULL;
}
