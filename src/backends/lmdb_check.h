/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a data file may be given to LMDB, which believes what it reads.
 */
#ifndef SPILE_BACKENDS_LMDB_CHECK_H
#define SPILE_BACKENDS_LMDB_CHECK_H

#include <spile/sys/store.h>

/*
 * Reads every page in use of a data file that nobody writes meanwhile.
 *
 * @param unfinished  out: the file holds nothing yet, because who was making it died or had no room
 * @return SPILE_OK; SPILE_ENOMEM; SPILE_EUNAVAILABLE with reason CORRUPT, it is damaged; FOREIGN, it is a sound
 * database of somebody else; IO, it cannot be read
 */
int spile__lmdb_check(int fd, const spile_env *outside, bool *unfinished, spile_error *error);

#endif
