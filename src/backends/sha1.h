/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SPILE_BACKENDS_SHA1_H
#define SPILE_BACKENDS_SHA1_H

#include <stddef.h>

/* The name under which Redis keeps a script: the SHA-1 of its text (RFC 3174) in hexadecimal, NUL-terminated. */
void spile__sha1_hex(const void *data, size_t len, char out[41]);

#endif
