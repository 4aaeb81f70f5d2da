/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The times that servers write into logs, as milliseconds since 1970 in UTC. What is finer is cut off.
 */
#ifndef SPILE_CLI_LOGTIME_H
#define SPILE_CLI_LOGTIME_H

#include <stddef.h>

#include "cli/cursor.h"

/* Reads dd/Mon/yyyy:hh:mm:ss +hhmm where the cursor stands. */
bool logtime_common(cursor *text, int64_t *out_ms);

/*
 * Reads a whole text: yyyy-mm-ddThh:mm:ss with an optional fraction and a zone (ISO 8601, RFC 3339), the form of the
 * common log format, or a number since 1970. How many digits the number has before the point tells its unit: up to 11
 * are seconds, up to 14 milliseconds, up to 17 microseconds, up to 20 nanoseconds.
 *
 * @return NULL, or what is wrong
 */
const char *logtime_read(int64_t *out_ms, const char *text, size_t len);

#endif
