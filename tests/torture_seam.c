/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The linker has a shared library's calls bound to a function of the program where it has one of that name; the real
 * one is the next. Allocations cannot look for theirs with dlsym, which allocates: glibc has a second name for them,
 * and so has a sanitizer, whose own must be called where there is one.
 */
#undef _FILE_OFFSET_BITS
#undef _FORTIFY_SOURCE

#include "torture_seam.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static _Thread_local seam_plan plan;
static _Thread_local bool armed;
static _Thread_local int calls[SEAM_COUNT];
static _Thread_local int failed;
static _Thread_local long blocks;

const char *seam_name(seam_call call) {
  static const char *const names[] = {
#define SEAM_TEXT(name) #name,
      SEAM_CALLS(SEAM_TEXT)
#undef SEAM_TEXT
  };
  return names[call];
}

void seam_arm(const seam_plan *next) {
  plan = *next;
  for (int i = 0; i < SEAM_COUNT; i++)
    calls[i] = 0;
  failed = 0;
  blocks = 0;
  armed = true;
}

void seam_disarm(void) {
  armed = false;
}

int seam_calls(seam_call call) {
  return calls[call];
}

int seam_failed(void) {
  return failed;
}

long seam_blocks(void) {
  return blocks;
}

static bool falls(seam_call call) {
  if (!armed)
    return false;
  int number = ++calls[call];
  if (call != plan.call || plan.at == 0 || number < plan.at || number - plan.at >= plan.fails)
    return false;
  failed++;
  if (plan.error != SEAM_SHORT)
    errno = plan.error;
  return true;
}

/* The plan for all threads, under the lock. */
static pthread_mutex_t everywhere_lock = PTHREAD_MUTEX_INITIALIZER;
static seam_plan everywhere;
static int everywhere_calls;
static int everywhere_failed;

int seam_arm_everywhere(const seam_plan *next) {
  (void)pthread_mutex_lock(&everywhere_lock);
  int before = everywhere_failed;
  everywhere = next != NULL ? *next : (seam_plan){0};
  everywhere_calls = 0;
  everywhere_failed = 0;
  (void)pthread_mutex_unlock(&everywhere_lock);
  return before;
}

/* @return the error, or 0 */
static int falls_everywhere(seam_call call) {
  int error = falls(call) ? plan.error : 0;
  (void)pthread_mutex_lock(&everywhere_lock);
  if (everywhere.at > 0 && everywhere.call == call) {
    int number = ++everywhere_calls;
    if (number >= everywhere.at && number - everywhere.at < everywhere.fails) {
      everywhere_failed++;
      error = everywhere.error;
    }
  }
  (void)pthread_mutex_unlock(&everywhere_lock);
  return error;
}

/* The length that a call with one may transfer; *fails when it fails. */
static size_t falls_short(seam_call call, size_t len, bool *fails) {
  bool now = falls(call);
  *fails = now && plan.error != SEAM_SHORT;
  return now && len > 1 ? 1 : len;
}

/* ---- Memory ---- */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void __libc_free(void *block);
#pragma weak __interceptor_malloc
#pragma weak __interceptor_calloc
#pragma weak __interceptor_realloc
#pragma weak __interceptor_free
extern void *__interceptor_malloc(size_t size);
extern void *__interceptor_calloc(size_t n, size_t size);
extern void *__interceptor_realloc(void *block, size_t size);
extern void __interceptor_free(void *block);

void *malloc(size_t size) {
  if (falls(SEAM_ALLOCATE))
    return NULL;
  void *block = __interceptor_malloc != NULL ? __interceptor_malloc(size) : __libc_malloc(size);
  blocks += armed && block != NULL;
  return block;
}

void *calloc(size_t n, size_t size) {
  if (falls(SEAM_ALLOCATE))
    return NULL;
  void *block = __interceptor_calloc != NULL ? __interceptor_calloc(n, size) : __libc_calloc(n, size);
  blocks += armed && block != NULL;
  return block;
}

void *realloc(void *old, size_t size) {
  if (falls(SEAM_ALLOCATE))
    return NULL;
  bool fresh = old == NULL;
  void *block = __interceptor_realloc != NULL ? __interceptor_realloc(old, size) : __libc_realloc(old, size);
  blocks += armed && fresh && block != NULL;
  return block;
}

void free(void *block) {
  blocks -= armed && block != NULL;
  if (__interceptor_free != NULL)
    __interceptor_free(block);
  else
    __libc_free(block);
}

/* A sanitizer's own would not come here for its block. */
char *strdup(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = malloc(size);
  return copy != NULL ? memcpy(copy, text, size) : NULL;
}

/* ---- Calls that return −1 ---- */

/* Not in any header: what the fortified and the old inline forms call. */
int __fxstat(int version, int fd, struct stat *out);
ssize_t __recv_chk(int fd, void *bytes, size_t len, size_t size, int flags);
ssize_t __read_chk(int fd, void *bytes, size_t len, size_t size);

static void *next_find(void **at, const char *name) {
  void *next = __atomic_load_n(at, __ATOMIC_RELAXED);
  if (next == NULL) {
    next = dlsym(RTLD_NEXT, name);
    __atomic_store_n(at, next, __ATOMIC_RELAXED);
  }
  return next;
}

/* Declares `next`: the next function of this name. */
#define NEXT(name)        \
  static void *next_at;   \
  __typeof__(&name) next; \
  *(void **)(void *)&next = next_find(&next_at, #name)

#define SEAM(kind, name, parameters, arguments)      \
  int name parameters {                              \
    NEXT(name);                                      \
    return falls(SEAM_##kind) ? -1 : next arguments; \
  }

SEAM(SOCKET, socket, (int domain, int type, int protocol), (domain, type, protocol))
SEAM(SETSOCKOPT, setsockopt, (int fd, int level, int name, const void *value, socklen_t len),
     (fd, level, name, value, len))
SEAM(CONNECT, connect, (int fd, const struct sockaddr *address, socklen_t len), (fd, address, len))
SEAM(GETSOCKOPT, getsockopt, (int fd, int level, int name, void *value, socklen_t *len), (fd, level, name, value, len))
SEAM(POLL, poll, (struct pollfd * fds, nfds_t n, int timeout), (fds, n, timeout))
SEAM(MKDIR, mkdir, (const char *path, mode_t mode), (path, mode))
SEAM(FSTAT, fstat, (int fd, struct stat *out), (fd, out))
SEAM(FSTAT, fstat64, (int fd, struct stat64 *out), (fd, out))
SEAM(FSTAT, __fxstat, (int version, int fd, struct stat *out), (version, fd, out))
SEAM(FSTATAT, fstatat, (int dir, const char *path, struct stat *out, int flags), (dir, path, out, flags))
SEAM(FSTATAT, fstatat64, (int dir, const char *path, struct stat64 *out, int flags), (dir, path, out, flags))
SEAM(STAT, stat, (const char *path, struct stat *out), (path, out))
SEAM(STAT, stat64, (const char *path, struct stat64 *out), (path, out))
SEAM(FDATASYNC, fdatasync, (int fd), (fd))
SEAM(FDATASYNC, fsync, (int fd), (fd))
SEAM(MSYNC, msync, (void *at, size_t len, int flags), (at, len, flags))
SEAM(FTRUNCATE, ftruncate, (int fd, off_t len), (fd, len))
SEAM(FTRUNCATE, ftruncate64, (int fd, off64_t len), (fd, len))
SEAM(UNLINKAT, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))

/* What follows the flags is a number, a pointer or not there; each is handed on as it came. */
#define SEAM_OPEN(kind, name, parameters, arguments) \
  int name parameters {                              \
    NEXT(name);                                      \
    va_list rest;                                    \
    va_start(rest, last);                            \
    void *argument = va_arg(rest, void *);           \
    va_end(rest);                                    \
    return falls(SEAM_##kind) ? -1 : next arguments; \
  }

SEAM_OPEN(OPEN, open, (const char *path, int last, ...), (path, last, argument))
SEAM_OPEN(OPEN, open64, (const char *path, int last, ...), (path, last, argument))
SEAM_OPEN(OPENAT, openat, (int dir, const char *path, int last, ...), (dir, path, last, argument))
SEAM_OPEN(OPENAT, openat64, (int dir, const char *path, int last, ...), (dir, path, last, argument))
SEAM_OPEN(FCNTL, fcntl, (int fd, int last, ...), (fd, last, argument))
SEAM_OPEN(FCNTL, fcntl64, (int fd, int last, ...), (fd, last, argument))

/* ---- Calls with other results ---- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *user) {
  NEXT(pthread_create);
  int error = falls_everywhere(SEAM_THREAD);
  return error != 0 ? error : next(thread, attributes, run, user);
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out) {
  NEXT(getaddrinfo);
  int error = falls_everywhere(SEAM_RESOLVE);
  if (error != 0)
    return error;
  bool known = strcmp(host, SEAM_HOST) == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0;
  return next(known ? "127.0.0.1" : host, port, hints, out);
}

#define SEAM_MMAP(name, type)                                                            \
  void *name(void *at, size_t len, int protection, int flags, int fd, type offset) {     \
    NEXT(name);                                                                          \
    return falls(SEAM_MMAP) ? MAP_FAILED : next(at, len, protection, flags, fd, offset); \
  }

SEAM_MMAP(mmap, off_t)
SEAM_MMAP(mmap64, off64_t)

#define SEAM_FALLOCATE(name, type)                                     \
  int name(int fd, type offset, type len) {                            \
    NEXT(name);                                                        \
    return falls(SEAM_FALLOCATE) ? plan.error : next(fd, offset, len); \
  }

SEAM_FALLOCATE(posix_fallocate, off_t)
SEAM_FALLOCATE(posix_fallocate64, off64_t)

#define SEAM_BYTES(kind, name, parameters, arguments) \
  ssize_t name parameters {                           \
    NEXT(name);                                       \
    bool fails;                                       \
    len = falls_short(SEAM_##kind, len, &fails);      \
    return fails ? -1 : next arguments;               \
  }

SEAM_BYTES(SEND, send, (int fd, const void *bytes, size_t len, int flags), (fd, bytes, len, flags))
SEAM_BYTES(RECV, recv, (int fd, void *bytes, size_t len, int flags), (fd, bytes, len, flags))
SEAM_BYTES(RECV, __recv_chk, (int fd, void *bytes, size_t len, size_t size, int flags), (fd, bytes, len, size, flags))
SEAM_BYTES(READ, read, (int fd, void *bytes, size_t len), (fd, bytes, len))
SEAM_BYTES(READ, __read_chk, (int fd, void *bytes, size_t len, size_t size), (fd, bytes, len, size))
SEAM_BYTES(PREAD, pread, (int fd, void *bytes, size_t len, off_t offset), (fd, bytes, len, offset))
SEAM_BYTES(PREAD, pread64, (int fd, void *bytes, size_t len, off64_t offset), (fd, bytes, len, offset))
SEAM_BYTES(PWRITE, pwrite, (int fd, const void *bytes, size_t len, off_t offset), (fd, bytes, len, offset))
SEAM_BYTES(PWRITE, pwrite64, (int fd, const void *bytes, size_t len, off64_t offset), (fd, bytes, len, offset))
SEAM_BYTES(GETRANDOM, getrandom, (void *bytes, size_t len, unsigned flags), (bytes, len, flags))

ssize_t writev(int fd, const struct iovec *parts, int count) {
  NEXT(writev);
  if (!falls(SEAM_WRITEV))
    return next(fd, parts, count);
  struct iovec first = {.iov_base = parts[0].iov_base, .iov_len = 1};
  return plan.error == SEAM_SHORT ? next(fd, &first, 1) : -1;
}
