/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side file answers three questions that LMDB leaves open.
 *
 * Who is here? Everybody holds a shared lock on its first byte while the directory is open. Whoever gets the exclusive
 * one is alone, and alone things may be made anew that others would be using: the lock below, or the data itself. The
 * locks are those of the open file (F_OFD_…), which turn from exclusive to shared without a gap, and which the kernel
 * drops when a process dies, however it dies.
 *
 * May the data be trusted? Data written without syncing is safe from the death of a process, since the kernel has it,
 * but not from the death of the host: then any page may be old or new. The board therefore carries the boot's id and
 * two flags. `clean` is cleared, on the disk, before the first write and set by the last to close, after everything is
 * on the disk; `loose` says that somebody wrote with sync=none meanwhile. Another boot, not clean and loose: the data
 * is no more than a guess.
 *
 * Whose turn is it? The lock in front of LMDB's own writer lock (lmdb_lock.c). It knows its holder by a thread number,
 * which means something in one PID namespace only, so a second namespace is refused.
 */
#include "backends/lmdb_side.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/address.h"

#define SIDE_NAME SPILE__LMDB_SIDE_NAME
#define SIDE_MAGIC "spileLM1"
#define SIDE_LEN 4096
#define SIDE_LAYOUT (uint32_t)(sizeof(spile__lmdb_board) << 8 | sizeof(pthread_mutex_t))

_Static_assert(sizeof(spile__lmdb_board) <= SIDE_LEN, "the board fits its file");

static int side_fail(spile_error *error, const char *what) {
  return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                           "cannot %s the file \"" SIDE_NAME "\" of the LMDB directory: %s", what, strerror(errno));
}

/* Sets the lock on the first byte to F_WRLCK, F_RDLCK or F_UNLCK, without waiting. */
static bool side_hold(const spile__lmdb_side *side, short type) {
  struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
  int result;
  do
    result = fcntl(side->fd, F_OFD_SETLK, &range);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

static bool boot_id_read(char out[SPILE__LMDB_BOOT_ID_LEN]) {
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  ssize_t got = read(fd, out, SPILE__LMDB_BOOT_ID_LEN);
  (void)close(fd);
  return got == SPILE__LMDB_BOOT_ID_LEN;
}

/* Makes sure that the file has room for the board: a mapped page without room on the disk would be a SIGBUS. */
static int side_fill(const spile__lmdb_side *side, spile_error *error) {
  int failed = posix_fallocate(side->fd, 0, SIDE_LEN);
  if (failed == 0)
    return SPILE_OK;
  errno = failed;
  return side_fail(error, "make room for");
}

static bool side_map(spile__lmdb_side *side) {
  void *at = mmap(NULL, SIDE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, side->fd, 0);
  if (at == MAP_FAILED)
    return false;
  side->board = at;
  return true;
}

static bool side_ours(const spile__lmdb_side *side) {
  return memcmp(side->board->magic, SIDE_MAGIC, sizeof(side->board->magic)) == 0;
}

/* The board for one who is alone. What it says about the data stands until the data is open; all else is made anew. */
static int side_set_up(spile__lmdb_side *side, const spile__lmdb_board *now, spile_error *error) {
  if (side_fill(side, error) != SPILE_OK)
    return SPILE_EUNAVAILABLE;
  if (!side_map(side))
    return side_fail(error, "map");
  spile__lmdb_board *board = side->board;
  /* The boot's id is written once the data are there. */
  side->known = side_ours(side) && board->boot_id[0] != '\0';
  if (!side_ours(side))
    memset(board, 0, SIDE_LEN);
  else if (memcmp(board->boot_id, side->boot_id, sizeof(board->boot_id)) != 0)
    side->untrusted = board->clean != 1 && board->loose != 0;
  if (board->layout != SIDE_LAYOUT)
    memset(&board->layout, 0, SIDE_LEN - offsetof(spile__lmdb_board, layout));
  int failed = spile__lmdb_lock_init(&board->lock);
  if (failed != 0) {
    errno = failed;
    return side_fail(error, "make a robust lock between processes in");
  }
  board->layout = SIDE_LAYOUT;
  board->pid_namespace = now->pid_namespace;
  board->map_size = now->map_size;
  memcpy(board->magic, SIDE_MAGIC, sizeof(board->magic));
  return SPILE_OK;
}

/* Whether others have set up the board. Somebody who died meanwhile leaves one that is not. */
static bool side_is_set_up(spile__lmdb_side *side) {
  struct stat status;
  if (fstat(side->fd, &status) != 0 || status.st_size < SIDE_LEN)
    return false;
  return (side->board != NULL || side_map(side)) && side_ours(side);
}

/* Whether one may join those who are here. */
static int side_join(const spile__lmdb_side *side, const spile__lmdb_board *now, spile_error *error) {
  if (side->board->layout != SIDE_LAYOUT)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_VERSION,
                             "the LMDB directory is in use by another build of spile; use one build at a time");
  if (side->board->pid_namespace != now->pid_namespace)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_REFUSED,
                             "the LMDB directory is in use from another PID namespace (a container); let them share "
                             "one, or give each its own directory");
  return SPILE_OK;
}

/* Alone, or with others whose board is set up. */
static int side_enter(spile__lmdb_side *side, const spile__lmdb_board *now, int64_t timeout_ms, const spile_env *env,
                      spile_error *error) {
  int64_t deadline_ms = env->monotonic_ms(env->user) + timeout_ms;
  for (;;) {
    side->alone = side_hold(side, F_WRLCK);
    if (side->alone)
      return side_set_up(side, now, error);
    if (errno != EAGAIN && errno != EACCES)
      return side_fail(error, "lock");
    if (side_hold(side, F_RDLCK)) {
      if (side_is_set_up(side))
        return side_join(side, now, error);
      (void)side_hold(side, F_UNLCK);
    }
    if (env->monotonic_ms(env->user) >= deadline_ms)
      return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_BUSY,
                               "another process has been opening or closing the LMDB directory all the time; if it is "
                               "stopped, let it go on or end it");
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
}

int spile__lmdb_side_open(spile__lmdb_side *side, int dir_fd, int64_t map_size, int64_t timeout_ms,
                          const spile_env *env, spile_error *error) {
  *side = (spile__lmdb_side){.fd = -1};
  struct stat namespace;
  if (!boot_id_read(side->boot_id) || stat("/proc/self/ns/pid", &namespace) != 0)
    return spile__store_fail(error, SPILE_EUNAVAILABLE, SPILE_REASON_IO,
                             "cannot read the boot id and the PID namespace from /proc, which the LMDB store needs: %s",
                             strerror(errno));
  const spile__lmdb_board now = {.map_size = map_size, .pid_namespace = namespace.st_ino};

  side->fd = openat(dir_fd, SIDE_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (side->fd < 0)
    return side_fail(error, "open");
  return side_enter(side, &now, timeout_ms, env, error);
}

int spile__lmdb_side_mark(spile__lmdb_side *side, bool loose, spile_error *error) {
  spile__lmdb_board *board = side->board;
  if (side->alone) {
    /* What was clean is on the disk, and what was not trusted is gone. */
    if (board->clean == 1 || side->untrusted)
      board->loose = 0;
    board->clean = 0;
    memcpy(board->boot_id, side->boot_id, sizeof(board->boot_id));
  }
  if (loose)
    board->loose = 1;
  return msync(board, SIDE_LEN, MS_SYNC) == 0 ? SPILE_OK : side_fail(error, "sync");
}

void spile__lmdb_side_share(spile__lmdb_side *side) {
  side->alone = !side_hold(side, F_RDLCK);
}

bool spile__lmdb_side_last(spile__lmdb_side *side) {
  side->alone = side_hold(side, F_WRLCK);
  return side->alone;
}

void spile__lmdb_side_clean(spile__lmdb_side *side) {
  side->board->clean = 1;
  side->board->loose = 0;
}

void spile__lmdb_side_close(spile__lmdb_side *side) {
  if (side->board != NULL)
    (void)munmap(side->board, SIDE_LEN);
  side->board = NULL;
  if (side->fd >= 0)
    (void)close(side->fd);
  side->fd = -1;
}
