/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linker has a shared library's calls bound to a function of the program where it has one of that name; the real
 * one is the next. With large file offsets the headers would rename ours, which LMDB does not know.
 */
#undef _FILE_OFFSET_BITS

#include "fault_seam.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static fault_plan plan;
static atomic_bool armed;
static atomic_int seen;
static atomic_int failed;

void fault_set(const fault_plan *next) {
  atomic_store(&armed, false);
  plan = *next;
  atomic_store(&seen, 0);
  atomic_store(&failed, 0);
  atomic_store(&armed, true);
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

static bool fault_falls(bool concerned) {
  if (!atomic_load(&armed) || !concerned)
    return false;
  int number = atomic_fetch_add(&seen, 1);
  if (number < plan.skip || number >= plan.skip + plan.fails)
    return false;
  (void)atomic_fetch_add(&failed, 1);
  errno = plan.error;
  return true;
}

/* LMDB writes a meta page's changing part alone; whole pages begin at multiples of their size. */
static bool is_meta(size_t size, off_t offset) {
  return offset < 8192 && size < 4096;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) {
  static ssize_t (*next)(int, const void *, size_t, off_t);
  if (next == NULL)
    *(void **)&next = dlsym(RTLD_NEXT, "pwrite");
  if (fault_falls(!plan.synced && (!plan.metas || is_meta(size, offset))))
    return -1;
  return next(fd, bytes, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  static ssize_t (*next)(int, const struct iovec *, int);
  if (next == NULL)
    *(void **)&next = dlsym(RTLD_NEXT, "writev");
  if (fault_falls(!plan.synced && !plan.metas))
    return -1;
  return next(fd, parts, count);
}

int fdatasync(int fd) {
  static int (*next)(int);
  if (next == NULL)
    *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
  if (fault_falls(!plan.metas))
    return -1;
  return next(fd);
}
