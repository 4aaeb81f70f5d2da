/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seam below everything: a test program that links this has the calls of the library, of hiredis and of LMDB to the
 * C library go through here, where the n-th of a kind can be made to fail. Only calls of the thread that armed it
 * count; threads and look-ups of names can also be made to fail wherever they are asked for.
 */
#ifndef SPILE_TESTS_TORTURE_SEAM_H
#define SPILE_TESTS_TORTURE_SEAM_H

#include <stdbool.h>

/* Kinds of calls; every spelling of a call (open, open64, __open64_2 …) is one kind. */
#define SEAM_CALLS(X)                                              \
  X(ALLOCATE) /* malloc, calloc, realloc; strdup comes here too */ \
  X(SOCKET)                                                        \
  X(SETSOCKOPT)                                                    \
  X(CONNECT)                                                       \
  X(GETSOCKOPT)                                                    \
  X(POLL)                                                          \
  X(SEND)                                                          \
  X(RECV)                                                          \
  X(OPEN)                                                          \
  X(OPENAT)                                                        \
  X(MKDIR)                                                         \
  X(FSTAT)                                                         \
  X(FSTATAT)                                                       \
  X(STAT)                                                          \
  X(FCNTL)                                                         \
  X(READ)                                                          \
  X(PREAD)                                                         \
  X(PWRITE)                                                        \
  X(WRITEV)                                                        \
  X(FDATASYNC) /* fsync too */                                     \
  X(MSYNC)                                                         \
  X(MMAP)                                                          \
  X(FTRUNCATE)                                                     \
  X(FALLOCATE)                                                     \
  X(UNLINKAT)                                                      \
  X(GETRANDOM)                                                     \
  X(THREAD)  /* pthread_create */                                  \
  X(RESOLVE) /* getaddrinfo; its errors are those of netdb.h */

typedef enum seam_call {
#define SEAM_ENUM(name) SEAM_##name,
  SEAM_CALLS(SEAM_ENUM)
#undef SEAM_ENUM
      SEAM_COUNT
} seam_call;

#define SEAM_SHORT (-1) /* for `error`: the call succeeds with a single byte */

typedef struct seam_plan {
  seam_call call;
  int at;    /* the first that fails, counted from 1; 0: none, calls are only counted */
  int fails; /* how many fail in a row; INT_MAX: all from then on */
  int error; /* the errno, or SEAM_SHORT */
} seam_plan;

const char *seam_name(seam_call call);

void seam_arm(const seam_plan *plan);
void seam_disarm(void);

/* The same for calls of all threads; THREAD and RESOLVE only. NULL disarms. @return how many failed before */
int seam_arm_everywhere(const seam_plan *plan);

/* A host name that always has the address 127.0.0.1. */
#define SEAM_HOST "seam.test"

/* Since it was armed: calls of a kind, calls that failed, and blocks allocated less blocks freed. */
int seam_calls(seam_call call);
int seam_failed(void);
long seam_blocks(void);

#endif
