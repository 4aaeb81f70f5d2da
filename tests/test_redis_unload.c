/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared library is unloaded while a thread of it looks a host name up. Nothing of the library is linked here: it
 * is opened as a plug-in would open it, and its look-ups come to the getaddrinfo of this program, which holds them.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <spile/spile.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static atomic_int asked;
static atomic_bool held;

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out) {
  (void)host;
  (void)port;
  (void)out;
  if ((hints->ai_flags & AI_NUMERICHOST) != 0)
    return EAI_NONAME;
  atomic_fetch_add(&asked, 1);
  while (atomic_load(&held))
    (void)poll(NULL, 0, 1);
  return EAI_AGAIN;
}

static int threads_of_this_process(void) {
  int count = 0;
  DIR *dir = opendir("/proc/self/task");
  cr_assert(dir != NULL);
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
    count += entry->d_name[0] != '.';
  (void)closedir(dir);
  return count;
}

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Declares a variable of the name of a function of the library, found in it. */
#define FIND(library, name)                                   \
  __typeof__(&spile_##name) name;                             \
  *(void **)(void *)&name = dlsym((library), "spile_" #name); \
  cr_assert(name != NULL, "the library lacks spile_" #name)

Test(redis_unload, a_look_up_under_way_outlives_the_limiter_and_the_library) {
  const char *path = getenv("SPILE_LIBRARY");
  cr_assert(path != NULL, "SPILE_LIBRARY must name the shared library");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  cr_assert(library != NULL, "%s", dlerror());
  FIND(library, open);
  FIND(library, close);
  FIND(library, limit_parse);
  FIND(library, limit_unref);
  FIND(library, take);

  spile_limiter *limiter;
  spile_limit *limit;
  spile_decision decision;
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = 20;
  options.breaker_failures = SPILE_BREAKER_OFF;
  cr_assert(eq(int, open(&limiter, "redis://name.test", &options, NULL), SPILE_OK));
  cr_assert(eq(int, limit_parse(&limit, "5/s", NULL), SPILE_OK));
  int threads_before = threads_of_this_process();
  atomic_store(&held, true);
  /* Past the pause between two look-ups, a take begins one in a thread. */
  for (int64_t until_ms = now_ms() + 20000; atomic_load(&asked) < 2; (void)poll(NULL, 0, 5)) {
    cr_assert(now_ms() < until_ms, "the name is not looked up again");
    cr_assert(eq(int, take(limiter, limit, "k", 1, 1, &decision), SPILE_EUNAVAILABLE));
  }
  cr_assert(eq(int, threads_of_this_process(), threads_before + 1));

  /* Neither waits for the look-up, or the test would not end. */
  close(limiter);
  limit_unref(limit);
  cr_assert(eq(int, dlclose(library), 0));
  atomic_store(&held, false);
  for (int64_t until_ms = now_ms() + 20000; threads_of_this_process() > threads_before; (void)poll(NULL, 0, 1))
    cr_assert(now_ms() < until_ms, "the thread of the look-up does not end");
}
