/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests see of the memory store beyond the store contract.
 */
#ifndef SPILE_BACKENDS_MEMORY_H
#define SPILE_BACKENDS_MEMORY_H

#include <spile/sys/store.h>

/* The most entries that a call looks at for one bucket. */
#define SPILE__MEMORY_PROBES_MAX 255

/* How many entries a lookup of the item's bucket looks at. */
size_t spile__memory_probes(spile_store *store, const spile_item *item);

/* The keyed hash of the item's bucket in this table. */
uint64_t spile__memory_hash(spile_store *store, const spile_item *item);

/* Bytes of address space that the table may come to use. */
size_t spile__memory_size(const spile_store *store);

#endif
