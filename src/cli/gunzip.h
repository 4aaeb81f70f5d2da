/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes gzip data apart, piece by piece: one member behind the other, each with its checksum and length checked
 * (RFC 1952). It reads no files; who has the bytes hands them in.
 */
#ifndef SPILE_CLI_GUNZIP_H
#define SPILE_CLI_GUNZIP_H

#include <stddef.h>

typedef struct gunzip gunzip;

/* @return NULL: out of memory, or this build has no zlib (*fault says so, and NULL for the former) */
gunzip *gunzip_open(const char **fault);
/* NULL is fine. */
void gunzip_close(gunzip *zip);

/*
 * Inflates what it can of the bytes at *at, and moves *at over them.
 *
 * @param left     bytes at *at; what was read is taken off
 * @param out_len  in: room at `out`, above 0; out: bytes written. 0 when more input is needed
 * @return NULL, or what is wrong with the bytes at *at
 */
const char *gunzip_some(gunzip *zip, const char **at, size_t *left, char *out, size_t *out_len);

/* @return NULL where the data may end, or what is missing */
const char *gunzip_end(const gunzip *zip);

#endif
