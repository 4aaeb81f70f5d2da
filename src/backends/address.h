/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading store addresses, and failing with a message, for every store.
 */
#ifndef SPILE_BACKENDS_ADDRESS_H
#define SPILE_BACKENDS_ADDRESS_H

#include <spile/sys/store.h>

/* Fills `error` unless it holds an earlier failure, printf-style, and returns `code`. `error` may be NULL. */
int spile__store_fail(spile_error *error, int code, spile_reason reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Splits "path?a=1&b=2". The path (percent-decoded) goes into `path`; each parameter is handed to `param` (decoded),
 * which returns SPILE_OK or fails.
 * @return SPILE_OK; SPILE_ECONFIG, with a message; what `param` returned
 */
int spile__address_split(const char *address, char *path, size_t path_size,
                         int (*param)(void *user, const char *name, const char *value, spile_error *error), void *user,
                         spile_error *error);

/* Decodes %XX of [from, to) into `out`, NUL-terminated. @return false: a bad escape, a NUL, or no room */
bool spile__percent_decode(const char *from, const char *to, char *out, size_t out_size);

/* A whole decimal number from min to max, and nothing else. */
bool spile__number_parse(const char *text, int64_t min, int64_t max, int64_t *out);

/* A size: a whole number with an optional KiB, MiB, GiB, TiB. */
bool spile__size_parse(const char *text, int64_t min, int64_t max, int64_t *out);

#endif
