/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store of one's own: it wraps another one and remembers how long the slowest decision took. What wraps a store is a
 * store, so this can stand wherever one can. Run: store [ADDRESS].
 */
#include <spile/sys/store.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct timed_store {
  spile_store base; /* first, so that a pointer to one is a pointer to the other */
  spile_store *inner;
  atomic_llong slowest_ns;
} timed_store;

static spile_store *inner_of(spile_store *store) {
  return ((timed_store *)store)->inner;
}

static long long now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Called by many threads at once. The inner store keeps call->deadline_ms and fills call->error; we add nothing. */
static int timed_decide(spile_store *store, spile_call *call) {
  timed_store *timed = (timed_store *)store;
  long long start_ns = now_ns();
  int result = timed->inner->ops->decide(timed->inner, call);
  long long took_ns = now_ns() - start_ns;
  long long slowest_ns = atomic_load(&timed->slowest_ns);
  while (took_ns > slowest_ns && !atomic_compare_exchange_weak(&timed->slowest_ns, &slowest_ns, took_ns)) {
  }
  return result;
}

static int timed_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  return inner_of(store)->ops->clear(inner_of(store), item, deadline_ms, error);
}

static int timed_clean(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                       spile_error *error) {
  return inner_of(store)->ops->clean(inner_of(store), what, now_ms, deadline_ms, again, error);
}

static int timed_each(spile_store *store, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                      spile_error *error) {
  return inner_of(store)->ops->each(inner_of(store), now_ms, timeout_ms, visit, user, error);
}

static void timed_close(spile_store *store, bool forked) {
  inner_of(store)->ops->close(inner_of(store), forked);
  free(store);
}

static const spile_store_ops timed_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "timed",
    .timeout_ms = 1000,
    .decide = timed_decide,
    .clear = timed_clear,
    .clean = timed_clean,
    .each = timed_each,
    .close = timed_close,
};

/* As spile_open, with a timed store in between. */
static int timed_open(spile_limiter **out, const char *address, const spile_options *options, spile_error *error) {
  timed_store *timed = calloc(1, sizeof(*timed));
  if (timed == NULL)
    return SPILE_ENOMEM;
  timed->base.ops = &timed_ops;
  int result = spile_store_open(&timed->inner, address, options, error);
  if (result != SPILE_OK) {
    free(timed);
    return result;
  }
  result = spile_open_store(out, &timed->base, options, error);
  if (result != SPILE_OK)
    timed_close(&timed->base, false);
  return result;
}

#ifndef WITHOUT_MAIN
int main(int argc, char **argv) {
  spile_error error = {0};
  spile_limiter *limiter = NULL;
  spile_limit *limit = NULL;
  if (timed_open(&limiter, argc > 1 ? argv[1] : "memory:", NULL, &error) != SPILE_OK ||
      spile_limit_parse(&limit, "100/h", &error) != SPILE_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 2;
  }
  int allowed = 0;
  for (int i = 0; i < 150; i++)
    allowed += spile_allow(limiter, limit, "alice");
  printf("%d of 150 allowed\n", allowed);
  spile_limit_unref(limit);
  spile_close(limiter);
  return allowed == 100 ? 0 : 1;
}
#endif
