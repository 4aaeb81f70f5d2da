/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The headers that tell a client how much it has left, each dialect for itself, since one of them is a draft.
 */
#ifndef SPILE_HTTP_FIELDS_H
#define SPILE_HTTP_FIELDS_H

#include "http/http.h"
#include "http/writer.h"

/* Whole seconds of milliseconds, rounded up. */
int64_t spile__seconds_up(int64_t ms);

/* Seconds that a denied client is told to wait, at least 1; 0: it is not denied, or nobody knows. */
int64_t spile__retry_after_s(const spile_decision *decision);

/* Add X-RateLimit-Limit, -Remaining and -Reset; RateLimit and RateLimit-Policy. Nothing of what the store did not say.
 */
void spile__fields_x(const spile_http_settings *settings, const spile_ruling *ruling, int64_t now_ms,
                     spile__writer *writer, spile_http_response *response);
void spile__fields_draft_11(const spile_ruling *ruling, spile__writer *writer, spile_http_response *response);

/* Adds a header; a value of NULL, which did not fit, is left out. */
void spile__header_add(spile_http_response *response, const char *name, const char *value);

#endif
