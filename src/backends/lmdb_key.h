/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key of a bucket in the database.
 */
#ifndef SPILE_BACKENDS_LMDB_KEY_H
#define SPILE_BACKENDS_LMDB_KEY_H

#include <spile/sys/store.h>

/* The longest key LMDB takes as it is usually built. */
#define SPILE__LMDB_KEY_LEN_MAX 511

/* The first byte of a key. */
enum {
  SPILE__LMDB_META = 0,       /* not a bucket: what the database says about itself */
  SPILE__LMDB_PRODUCTION = 1, /* decided at the clock's time */
  SPILE__LMDB_SIMULATED = 2,  /* decided at given times */
  SPILE__LMDB_HASHED = 0x80,  /* with one of the two above: what follows the prefix is a hash */
};

typedef struct spile__lmdb_key {
  size_t len;
  unsigned char bytes[SPILE__LMDB_KEY_LEN_MAX];
} spile__lmdb_key;

/* Where a walk over several ranges of keys goes on. All zero: at the start. */
typedef struct spile__lmdb_place {
  size_t range;
  spile__lmdb_key key; /* empty: at the start of the range */
} spile__lmdb_place;

/* What a key says. The pointers are into the key; name and key are NULL in a hashed one. */
typedef struct spile__lmdb_parts {
  bool simulated;
  spile_algorithm algorithm;
  const unsigned char *prefix;
  size_t prefix_len;
  const unsigned char *name;
  size_t name_len;
  const unsigned char *key;
  size_t key_len;
} spile__lmdb_parts;

/* Makes the key of a bucket; `kind` is PRODUCTION or SIMULATED, `secret` the database's own hash key. */
void spile__lmdb_key_make(spile__lmdb_key *out, int kind, const char *prefix, const spile_item *item,
                          const uint64_t secret[2]);

/* Takes a key apart. @return false when it is not the key of a bucket */
bool spile__lmdb_key_split(spile__lmdb_parts *out, const void *bytes, size_t len);

/* Makes what all keys of a kind, or of an algorithm and prefix as well (NULL: any), begin with. `first` is the key's
 * first byte. */
void spile__lmdb_key_range(spile__lmdb_key *out, int first, spile_algorithm algorithm, const char *prefix);

/* The database's hash key is stored with a checksum, under a key of its own. */
#define SPILE__LMDB_SECRET_LEN 24

extern const unsigned char spile__lmdb_secret_key[5];

bool spile__lmdb_secret_is_key(const void *key, size_t len);
void spile__lmdb_secret_write(unsigned char out[SPILE__LMDB_SECRET_LEN], const uint64_t secret[2]);
/* @return false: it is damaged */
bool spile__lmdb_secret_read(uint64_t secret[2], const void *value, size_t len);

#endif
