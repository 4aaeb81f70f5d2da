/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket as bytes, the same on every machine.
 */
#ifndef SPILE_CORE_RECORD_H
#define SPILE_CORE_RECORD_H

#include "core/algorithm.h"

/* Room for the record of any algorithm of this version. */
#define SPILE__RECORD_LEN_MAX (40 + 8 * SPILE__LOG_MAX)

/* Writes the record of a state stored under `key`. @return its length */
size_t spile__record_encode(unsigned char *out, spile_algorithm algorithm, const spile__state *state, const void *key,
                            size_t key_len);

/*
 * Reads a record that was stored under `key`.
 * @return SPILE_REASON_NONE; SPILE_REASON_CORRUPT, it is damaged or says what cannot be; SPILE_REASON_FORMAT, a later
 *         version wrote it; SPILE_REASON_FOREIGN, it is another algorithm's
 */
spile_reason spile__record_decode(const void *record, size_t record_len, spile_algorithm algorithm, const void *key,
                                  size_t key_len, spile__state *out);

#endif
