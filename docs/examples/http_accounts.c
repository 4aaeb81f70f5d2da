/* SPDX-License-Identifier: Apache-2.0 */
#include "http_accounts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SLOTS 1024

static const char *accounts_file;
static long accounts_remember_s;

/* One slot for each hash, of keys that nobody has too: whatever callers send can make it forget, but not grow. */
static account slots[SLOTS];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;

bool accounts_init(const char *file, long remember_s) {
  accounts_file = file;
  accounts_remember_s = remember_s;
  FILE *in = file != NULL ? fopen(file, "r") : NULL;
  bool readable = file == NULL || (in != NULL && (fgetc(in) != EOF || ferror(in) == 0));
  if (in != NULL)
    (void)fclose(in);
  return readable;
}

/* Stands for the query of a database. */
static void account_query(account *a) {
  FILE *in = fopen(accounts_file, "r");
  char key[65], tenant[65], tier[33];
  while (in != NULL && !a->exists && fscanf(in, "%64s %64s %32s", key, tenant, tier) == 3) {
    if (strcmp(key, a->key) != 0)
      continue;
    a->exists = true;
    memcpy(a->tenant, tenant, sizeof(tenant));
    memcpy(a->tier, tier, sizeof(tier));
  }
  if (in != NULL)
    (void)fclose(in);
}

static account *slot_of(const char *key) {
  uint32_t hash = 2166136261u; /* FNV-1a */
  for (; *key != '\0'; key++)
    hash = (hash ^ (unsigned char)*key) * 16777619u;
  return &slots[hash % SLOTS];
}

bool account_find(account *out, const char *key) {
  memset(out, 0, sizeof(*out));
  size_t len = key != NULL ? strlen(key) : 0;
  if (accounts_file == NULL || len == 0 || len >= sizeof(out->key))
    return false;
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  account *slot = slot_of(key);
  (void)pthread_mutex_lock(&slots_lock);
  bool remembered = strcmp(slot->key, key) == 0 && now.tv_sec < slot->until_s;
  if (remembered)
    *out = *slot;
  (void)pthread_mutex_unlock(&slots_lock);
  if (remembered)
    return out->exists;

  memcpy(out->key, key, len);
  account_query(out);
  out->until_s = now.tv_sec + accounts_remember_s;
  (void)pthread_mutex_lock(&slots_lock);
  *slot = *out;
  (void)pthread_mutex_unlock(&slots_lock);
  return out->exists;
}
