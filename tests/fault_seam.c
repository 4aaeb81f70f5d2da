/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linker has a shared library's calls bound to a function of the program where it has one of that name; the real
 * one is the next. With large file offsets the headers would rename ours, which LMDB does not know.
 */
#undef _FILE_OFFSET_BITS

#include "fault_seam.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Guarded by the mutex; `armed` spares those who are not concerned. */
static fault_plan plan;
static pthread_mutex_t plan_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool armed;
static atomic_int seen;
static atomic_int failed;

void fault_set(const fault_plan *next) {
  (void)pthread_mutex_lock(&plan_mutex);
  plan = *next;
  atomic_store(&seen, 0);
  atomic_store(&failed, 0);
  atomic_store(&armed, true);
  (void)pthread_mutex_unlock(&plan_mutex);
}

void fault_clear(void) {
  atomic_store(&armed, false);
}

int fault_failed(void) {
  return atomic_load(&failed);
}

int fault_calls(void) {
  return atomic_load(&seen);
}

typedef enum fault_kind { FAULT_PAGE, FAULT_META, FAULT_SYNC } fault_kind;

static bool plan_concerns(fault_kind kind) {
  if (plan.synced)
    return kind == FAULT_SYNC;
  return !plan.metas || kind == FAULT_META;
}

static bool fault_falls(fault_kind kind) {
  if (!atomic_load(&armed))
    return false;
  (void)pthread_mutex_lock(&plan_mutex);
  bool falls = false;
  if (atomic_load(&armed) && plan_concerns(kind)) {
    int number = atomic_fetch_add(&seen, 1);
    falls = number >= plan.skip && number - plan.skip < plan.fails;
  }
  int error = plan.error;
  (void)pthread_mutex_unlock(&plan_mutex);
  if (falls) {
    (void)atomic_fetch_add(&failed, 1);
    errno = error;
  }
  return falls;
}

/* LMDB writes a meta page's changing part alone; whole pages begin at multiples of their size. */
static bool is_meta(size_t size, off_t offset) {
  return offset < 8192 && size < 4096;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
  ssize_t (*next)(int, const void *, size_t, off_t);
  *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
  if (fault_falls(is_meta(size, offset) ? FAULT_META : FAULT_PAGE))
    return -1;
  return next(fd, bytes, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  ssize_t (*next)(int, const struct iovec *, int);
  *(void **)&next = dlsym(RTLD_NEXT, "writev");
  if (fault_falls(FAULT_PAGE))
    return -1;
  return next(fd, parts, count);
}

int fdatasync(int fd) {
  int (*next)(int);
  *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
  if (fault_falls(FAULT_SYNC))
    return -1;
  return next(fd);
}
