/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of one JSON object, as they stand in a line: nothing is built, copied or allocated.
 *
 * The whole object is checked (RFC 8259), so that a line that was cut off is noticed wherever it was cut. Two things
 * that servers write are let through although JSON does not have them: bytes that are not UTF-8, as nginx copies them
 * from the client, and its \xNN; the lines that have them are those of hostile clients, which are the last to be left
 * out. Numbers may begin with zeros.
 */
#ifndef SPILE_CLI_JSON_H
#define SPILE_CLI_JSON_H

#include <stddef.h>

enum { JSON_PATH_SIZE = 128 };

typedef enum json_type {
  JSON_TEXT,
  JSON_NUMBER,
  JSON_WORD, /* true, false, null */
} json_type;

/*
 * Gets a scalar of the object, or of objects in it, whose names are then joined by dots. What is in arrays or has a
 * path longer than JSON_PATH_SIZE is passed over.
 *
 * @param raw  what stands in the line; of a text, what stands between the quotes
 */
typedef void json_visitor(void *user, const char *path, size_t path_len, json_type type, const char *raw,
                          size_t raw_len);

/* Reads one object and nothing behind it but white space. @return NULL, or what is wrong; scalars may have been seen */
const char *json_scan(const char *text, size_t len, json_visitor *visit, void *user);

/* Writes the text that `raw` of a JSON_TEXT stands for: at most raw_len bytes. @return how many */
size_t json_decode(char *out, const char *raw, size_t raw_len);

#endif
