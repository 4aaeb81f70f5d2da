/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything fails once: each allocation, and each call to the C library, of every public function over every store,
 * in turn; once, and from then on. A run uses a store from opening to closing while one call fails (torture_seam.h).
 * Whatever happens, each function returns one of its documented codes, a take without an answer names a reason, no
 * block and no descriptor is left, and with the failure gone the same limiter answers (or says that it has to be opened
 * anew, and then that works).
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <spile/spile.h>
#include <spile/testing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "redis_server.h"
#include "redis_standin.h"
#include "temp_dir.h"
#include "torture_seam.h"

#define TIMEOUT_MS 20
/* No call may take longer than its time and this, whatever fails. */
#define SLACK_MS 1500

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int open_fds(void) {
  int count = 0;
  DIR *dir = opendir("/proc/self/fd");
  cr_assert(dir != NULL);
  while (readdir(dir) != NULL)
    count++;
  (void)closedir(dir);
  return count;
}

/* A directory in memory where there is one: what is measured here is not the disk. */
static void quick_dir_make(char dir[TEMP_DIR_LEN]) {
  if (access("/dev/shm", W_OK) == 0)
    (void)setenv("TMPDIR", "/dev/shm", 1);
  temp_dir_make(dir);
}

/* ---- One run ---- */

typedef struct run {
  const char *uri;
  spile_limit *limits[2];
  int shown;
  int unanswered;  /* calls that ended without an answer */
  char fault[300]; /* the first thing that is not as documented */
} run;

static void run_fault(run *self, const char *call, int code, int reason, const char *message) {
  if (self->fault[0] == '\0')
    (void)snprintf(self->fault, sizeof(self->fault), "%s: %d, %s: %.200s", call, code, spile_reason_name(reason),
                   message);
}

static void run_check(run *self, const char *call, int result, const spile_error *error, int64_t began_ms) {
  bool known = result == SPILE_OK || (result == SPILE_ENOMEM && error->code == result) ||
               (result == SPILE_EUNAVAILABLE && error->code == result && error->reason != SPILE_REASON_NONE);
  self->unanswered += result != SPILE_OK;
  if (!known || (result != SPILE_OK && error->message[0] == '\0') || now_ms() - began_ms > TIMEOUT_MS + SLACK_MS)
    run_fault(self, call, result, error->reason, error->message);
}

static void run_check_take(run *self, const char *call, int result, const spile_decision *decision, int64_t began_ms) {
  bool answer = result > 0 && decision->decided_by == SPILE_BY_STORE && decision->store_error == SPILE_REASON_NONE;
  bool none = (result == SPILE_EUNAVAILABLE || result == SPILE_ENOMEM) && decision->decided_by == SPILE_BY_NOBODY &&
              decision->store_error != SPILE_REASON_NONE && decision->detail[0] != '\0';
  self->unanswered += none;
  if ((!answer && !none) || now_ms() - began_ms > TIMEOUT_MS + SLACK_MS)
    run_fault(self, call, result, decision->store_error, decision->detail);
}

static bool show_one(void *user, const spile_stored *stored) {
  (void)stored;
  ((run *)user)->shown++;
  return true;
}

/* Whatever is charged is given back, unless one of the two fails. */
static void run_settle(run *self, spile_limiter *limiter) {
  spile_decision decision;
  spile_decision each[2];
  const spile_request requests[2] = {{self->limits[0], "one", 3, 2}, {self->limits[1], "four", 4, 2}};
  int64_t began_ms = now_ms();
  int result = spile_charge(limiter, self->limits[0], "four", 4, 3, &decision);
  run_check_take(self, "charge", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_refund(limiter, self->limits[0], "four", 4, 3, &decision);
  run_check_take(self, "refund", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_charge_all(limiter, requests, 2, &decision, each);
  run_check_take(self, "charge_all", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_refund_all(limiter, requests, 2, &decision, each);
  run_check_take(self, "refund_all", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_take_up_to(limiter, self->limits[1], "five", 4, 1, 2, &decision);
  run_check_take(self, "take_up_to", result, &decision, began_ms);
}

/* Every public function that asks a store. */
static void run_use(run *self, spile_limiter *limiter) {
  spile_decision decision;
  spile_decision each[2];
  const spile_request requests[2] = {{self->limits[0], "one", 3, 1}, {self->limits[1], "two", 3, 1}};
  for (int i = 0; i < 2; i++) {
    int64_t began_ms = now_ms();
    int result = spile_take(limiter, self->limits[0], "one", 3, 1, &decision);
    run_check_take(self, "take", result, &decision, began_ms);
  }
  int64_t began_ms = now_ms();
  int result = spile_peek(limiter, self->limits[0], "one", 3, 1, &decision);
  run_check_take(self, "peek", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_take_all(limiter, requests, 2, &decision, each);
  run_check_take(self, "take_all", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_peek_all(limiter, requests, 2, &decision, each);
  run_check_take(self, "peek_all", result, &decision, began_ms);
  began_ms = now_ms();
  result = spile_wait(limiter, self->limits[1], "three", 5, 1, 0, &decision);
  run_check_take(self, "wait", result, &decision, began_ms);
  run_settle(self, limiter);

  spile_error error = {0};
  began_ms = now_ms();
  result = spile_each(limiter, show_one, self, &error);
  run_check(self, "each", result, &error, began_ms);
  error = (spile_error){0};
  began_ms = now_ms();
  result = spile_clean(limiter, SPILE_CLEAN_FULL, &error);
  if (result != SPILE_ENOTSUP)
    run_check(self, "clean", result, &error, began_ms);
  error = (spile_error){0};
  began_ms = now_ms();
  result = spile_clear(limiter, self->limits[0], "one", 3, &error);
  run_check(self, "clear", result, &error, began_ms);
}

static int run_open(run *self, spile_limiter **limiter, spile_error *error) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = TIMEOUT_MS;
  options.breaker_failures = 1000000;
  options.connections = 1;
  *error = (spile_error){0};
  return spile_open(limiter, self->uri, &options, error);
}

/* A take with nothing failing any more. @return false: not answered, and why is noted */
static bool run_works(run *self, spile_limiter *limiter, spile_decision *decision) {
  /* The machine may be too busy for one take of 20 ms; a store that does not work fails all of them. */
  int result = 0;
  for (int tries = 0; tries < 20 && result <= 0; tries++)
    result = spile_take(limiter, self->limits[0], "after", 5, 1, decision);
  if (result > 0 && decision->decided_by == SPILE_BY_STORE)
    return true;
  run_fault(self, "take after the failure", result, decision->store_error, decision->detail);
  return false;
}

/* The whole life of a limiter, while a plan fails. */
static void run_all(run *self, const seam_plan *plan) {
  spile_limiter *limiter = NULL;
  spile_error error;
  spile_decision decision;
  self->unanswered = 0;
  self->fault[0] = '\0';

  seam_arm(plan);
  int64_t began_ms = now_ms();
  int result = run_open(self, &limiter, &error);
  run_check(self, "open", result, &error, began_ms);
  if (result == SPILE_OK)
    run_use(self, limiter);
  else if (limiter != NULL)
    run_fault(self, "open", result, 0, "failed, and *out is not NULL");
  seam_disarm();
  if (result == SPILE_OK && !run_works(self, limiter, &decision) && strstr(decision.detail, "failed halfway") != NULL)
    self->fault[0] = '\0';
  spile_close(limiter);

  /* And a new one. */
  result = run_open(self, &limiter, &error);
  if (result != SPILE_OK) {
    run_fault(self, "open after the failure", result, error.reason, error.message);
    return;
  }
  (void)run_works(self, limiter, &decision);
  spile_close(limiter);
}

static void run_start(run *self, const char *uri) {
  *self = (run){.uri = uri};
  cr_assert(eq(int, spile_limit_parse(&self->limits[0], "1000000/m,name=a", NULL), SPILE_OK));
  cr_assert(eq(int, spile_limit_parse(&self->limits[1], "1000000/m,name=b", NULL), SPILE_OK));
  /*
   * What is made once in a process (handlers of fork, resolver, locale) is made now. The machine may be too busy for
   * one call of 20 ms; what is not answered without any failure is answered in none of these.
   */
  seam_plan none = {.call = SEAM_ALLOCATE};
  for (int tries = 0; tries == 0 || (tries < 20 && self->unanswered > 0); tries++) {
    run_all(self, &none);
    cr_assert(self->fault[0] == '\0', "%s", self->fault);
  }
  cr_assert(eq(int, self->unanswered, 0));
}

static void run_stop(run *self) {
  spile_limit_unref(self->limits[0]);
  spile_limit_unref(self->limits[1]);
}

/* How often a kind of call can fail once or for good, checked each time. @return runs */
static int torture_call(run *self, seam_plan plan, bool fresh, void (*refresh)(void *), void *user) {
  int runs = 0;
  for (plan.at = 1;; plan.at++, runs++) {
    if (fresh)
      refresh(user);
    int fds_before = open_fds();
    run_all(self, &plan);
    int failed = seam_failed();
    cr_assert(self->fault[0] == '\0', "%s, %s %d%s, %s: %s", self->uri, seam_name(plan.call), plan.at,
              plan.fails == INT_MAX ? " and all after it" : "",
              plan.error == SEAM_SHORT ? "short" : strerror(plan.error), self->fault);
    int fds_after = open_fds();
    cr_assert(fds_after == fds_before, "%s, %s %d, %s: %d descriptors, then %d", self->uri, seam_name(plan.call),
              plan.at, plan.error == SEAM_SHORT ? "short" : strerror(plan.error), fds_before, fds_after);
    if (failed == 0)
      return runs;
  }
}

/* ---- Allocations ---- */

/* Blocks that an open limiter's life leaves behind while each allocation fails. */
static int torture_allocations(run *self) {
  int runs = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    for (int at = 1;; at++, runs++) {
      seam_plan plan = {.call = SEAM_ALLOCATE, .at = at, .fails = for_good ? INT_MAX : 1, .error = ENOMEM};
      spile_limiter *limiter = NULL;
      spile_error error;
      spile_decision decision;
      self->fault[0] = '\0';
      seam_arm(&plan);
      int64_t began_ms = now_ms();
      int result = run_open(self, &limiter, &error);
      run_check(self, "open", result, &error, began_ms);
      if (result == SPILE_OK)
        run_use(self, limiter);
      int failed = seam_failed();
      seam_plan none = {.call = SEAM_ALLOCATE};
      long blocks = seam_blocks();
      seam_arm(&none);
      if (limiter != NULL)
        (void)run_works(self, limiter, &decision);
      spile_close(limiter);
      blocks += seam_blocks();
      seam_disarm();
      cr_assert(self->fault[0] == '\0', "%s, allocation %d%s: %s", self->uri, at, for_good ? " and all after it" : "",
                self->fault);
      cr_assert(blocks == 0, "%s, allocation %d%s: %ld blocks left", self->uri, at, for_good ? " and all after it" : "",
                blocks);
      if (failed == 0)
        break;
    }
  }
  return runs;
}

static void torture_store_allocations(const char *uri) {
  run self;
  run_start(&self, uri);
  int fds_before = open_fds();
  int runs = torture_allocations(&self);
  (void)printf("%s: %d allocations failed\n", uri, runs);
  cr_assert(lt(int, 0, runs));
  cr_assert(eq(int, open_fds(), fds_before));
  run_stop(&self);
}

Test(torture, memory_survives_every_allocation_failing) {
  torture_store_allocations("memory:?keys=100");
}

static const char *lmdb_uri(char uri[TEMP_DIR_LEN + 64], const char *dir, const char *sync) {
  (void)snprintf(uri, TEMP_DIR_LEN + 64, "lmdb:%s/store?map_size=1MiB&sync=%s", dir, sync);
  return uri;
}

Test(torture, lmdb_survives_every_allocation_failing) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  quick_dir_make(dir);
  torture_store_allocations(lmdb_uri(uri, dir, "none"));
  torture_store_allocations(lmdb_uri(uri, dir, "full"));
  temp_dir_remove(dir);
}

Test(torture, redis_survives_every_allocation_failing) {
  redis_server *server = redis_server_start();
  torture_store_allocations(redis_server_unix_uri(server));
  torture_store_allocations(redis_server_tcp_uri(server));
  redis_server_free(server);
}

/* A greeting that is longer than what the parser of replies keeps by itself: it would make its buffer anew. */
Test(torture, redis_survives_every_allocation_failing_after_a_long_greeting) {
  static char info[30100];
  int head = snprintf(info, sizeof(info), "$30000\r\n# Server\r\nredis_version:7.0.0\r\npadding:");
  memset(info + head, 'x', 30008 - (size_t)head);
  (void)snprintf(info + 30008, sizeof(info) - 30008, "\r\n");
  redis_standin *standin = standin_start(NULL, &(standin_answer){.bytes = ":0\r\n"}, 1);
  standin_set_info(standin, info);
  run self = {.uri = standin_uri(standin)};
  cr_assert(eq(int, spile_limit_parse(&self.limits[0], "5/s", NULL), SPILE_OK));
  for (int at = 1, failed = 1; failed > 0; at++) {
    seam_plan plan = {.call = SEAM_ALLOCATE, .at = at, .fails = 1, .error = ENOMEM};
    spile_limiter *limiter = NULL;
    spile_error error;
    seam_arm(&plan);
    if (run_open(&self, &limiter, &error) == SPILE_OK) {
      for (int i = 0; i < 3; i++) {
        spile_decision decision;
        int64_t began_ms = now_ms();
        int result = spile_take(limiter, self.limits[0], "one", 3, 1, &decision);
        run_check_take(&self, "take", result, &decision, began_ms);
      }
    }
    failed = seam_failed();
    spile_close(limiter);
    long blocks = seam_blocks();
    seam_disarm();
    cr_assert(self.fault[0] == '\0', "allocation %d: %s", at, self.fault);
    cr_assert(blocks == 0, "allocation %d: %ld blocks left", at, blocks);
  }
  spile_limit_unref(self.limits[0]);
  standin_stop(standin);
}

/* ---- Limits, and what is for tests ---- */

/* Makes a limit in both ways, a fake clock and a scripted store, and asks it. @return what failed as documented */
static int use_own(char fault[300]) {
  int unanswered = 0;
  spile_error error = {0};
  spile_limit *limits[2] = {NULL, NULL};
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = def.refill_tokens = 5;
  def.refill_period_ms = 1000;
  int made[2] = {spile_limit_parse(&limits[0], "5/s", &error), SPILE_OK};
  error = (spile_error){0};
  made[1] = spile_limit_create(&limits[1], &def, &error);
  for (int i = 0; i < 2; i++) {
    unanswered += made[i] != SPILE_OK;
    if ((made[i] != SPILE_OK && made[i] != SPILE_ENOMEM) || (made[i] == SPILE_OK) != (limits[i] != NULL))
      (void)snprintf(fault, 300, "limit %d: %d", i, made[i]);
  }
  spile_fake_clock *clock = spile_fake_clock_new(1000);
  spile_scripted_store *store = spile_scripted_store_new();
  unanswered += (clock == NULL) + (store == NULL);
  spile_limiter *limiter = NULL;
  if (clock != NULL && store != NULL) {
    unanswered += !spile_scripted_store_answer(store, SPILE_OK, SPILE_REASON_NONE, NULL, 0);
    unanswered += !spile_scripted_store_answer(store, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0);
    spile_options options = SPILE_OPTIONS_INIT;
    options.now_ms = spile_fake_clock_now;
    options.clock = clock;
    int opened = spile_open_store(&limiter, spile_scripted_store_base(store), &options, &error);
    unanswered += opened != SPILE_OK;
    if ((opened != SPILE_OK && opened != SPILE_ENOMEM) || (opened == SPILE_OK) != (limiter != NULL))
      (void)snprintf(fault, 300, "open: %d: %s", opened, error.message);
    for (int i = 0; i < 2 && limiter != NULL && limits[0] != NULL; i++) {
      spile_decision decision;
      int result = spile_take(limiter, limits[0], "k", 1, 1, &decision);
      unanswered += result == SPILE_ENOMEM;
      if (result != SPILE_ALLOWED && result != SPILE_EUNAVAILABLE && result != SPILE_ENOMEM)
        (void)snprintf(fault, 300, "take: %d: %s", result, decision.detail);
    }
  }
  if (limiter != NULL)
    spile_close(limiter);
  else if (store != NULL)
    spile_scripted_store_base(store)->ops->close(spile_scripted_store_base(store), false);
  spile_fake_clock_free(clock);
  spile_limit_unref(limits[0]);
  spile_limit_unref(limits[1]);
  return unanswered;
}

Test(torture, limits_clock_and_scripted_store_survive_every_allocation_failing) {
  int runs = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    for (int at = 1;; at++, runs++) {
      char fault[300] = "";
      seam_plan plan = {.call = SEAM_ALLOCATE, .at = at, .fails = for_good ? INT_MAX : 1, .error = ENOMEM};
      seam_arm(&plan);
      int unanswered = use_own(fault);
      int failed = seam_failed();
      long blocks = seam_blocks();
      seam_disarm();
      cr_assert(fault[0] == '\0', "allocation %d: %s", at, fault);
      cr_assert(blocks == 0, "allocation %d: %ld blocks left", at, blocks);
      cr_assert(failed == 0 || unanswered > 0, "allocation %d failed, and nobody said so", at);
      if (failed == 0)
        break;
    }
  }
  (void)printf("limits, fake clock, scripted store: %d allocations failed\n", runs);
  cr_assert(lt(int, 12, runs));
}

/* ---- options.allocate ---- */

typedef struct allocator {
  int calls;
  int fail_at;
  bool for_good;
  long blocks;
} allocator;

static void *allocator_work(void *user, void *block, size_t size) {
  allocator *self = user;
  if (size == 0) {
    self->blocks -= block != NULL;
    free(block);
    return NULL;
  }
  self->calls++;
  if (self->calls == self->fail_at || (self->for_good && self->calls > self->fail_at))
    return NULL;
  void *moved = realloc(block, size);
  self->blocks += block == NULL && moved != NULL;
  return moved;
}

static void torture_own_allocator(const char *uri) {
  run self;
  run_start(&self, uri);
  int runs = 0;
  for (int for_good = 0; for_good < 2; for_good++) {
    for (int at = 1;; at++, runs++) {
      allocator a = {.fail_at = at, .for_good = for_good != 0};
      spile_options options = SPILE_OPTIONS_INIT;
      options.allocate = allocator_work;
      options.allocate_user = &a;
      options.timeout_ms = TIMEOUT_MS;
      options.breaker_failures = 1000000;
      spile_limiter *limiter = NULL;
      spile_error error = {0};
      self.fault[0] = '\0';
      int result = spile_open(&limiter, uri, &options, &error);
      if (result != SPILE_OK && result != SPILE_ENOMEM)
        run_fault(&self, "open", result, error.reason, error.message);
      if (limiter != NULL)
        run_use(&self, limiter);
      bool failed = a.calls >= at;
      a.fail_at = INT_MAX;
      a.for_good = false;
      spile_decision decision;
      if (limiter != NULL)
        (void)run_works(&self, limiter, &decision);
      spile_close(limiter);
      cr_assert(self.fault[0] == '\0', "%s, allocation %d: %s", uri, at, self.fault);
      cr_assert(eq(long, a.blocks, 0));
      if (!failed)
        break;
    }
  }
  (void)printf("%s: options.allocate failed %d times\n", uri, runs);
  cr_assert(lt(int, 0, runs));
  run_stop(&self);
}

Test(torture, every_store_survives_its_own_allocator_failing) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  quick_dir_make(dir);
  redis_server *server = redis_server_start();
  torture_own_allocator("memory:?keys=100");
  torture_own_allocator(lmdb_uri(uri, dir, "none"));
  torture_own_allocator(redis_server_unix_uri(server));
  redis_server_free(server);
  temp_dir_remove(dir);
}

/* What some takes of known limits allocate: of the library itself, and in all. */
typedef struct takes_cost {
  int own;
  int charged; /* in all, by takes that were allowed … */
  int denied;  /* … and denied */
} takes_cost;

#define TAKES 1000

static takes_cost takes_measure(const char *uri) {
  allocator a = {.fail_at = INT_MAX};
  run self;
  run_start(&self, uri);
  spile_options options = SPILE_OPTIONS_INIT;
  options.allocate = allocator_work;
  options.allocate_user = &a;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, uri, &options, &error) == SPILE_OK, "%s", error.message);
  const spile_request requests[2] = {{self.limits[0], "one", 3, 1}, {self.limits[1], "two", 3, 1}};
  for (int i = 0; i < 64; i++)
    cr_assert(eq(int, spile_take_all(limiter, requests, 2, NULL, NULL), SPILE_ALLOWED));
  takes_cost cost = {.own = -a.calls};
  seam_plan none = {.call = SEAM_ALLOCATE};
  int allowed = 0;
  int denied = 0;
  seam_arm(&none);
  for (int i = 0; i < TAKES / 2; i++) {
    allowed += spile_take(limiter, self.limits[0], "one", 3, 1, NULL) == SPILE_ALLOWED;
    allowed += spile_take_all(limiter, requests, 2, NULL, NULL) == SPILE_ALLOWED;
  }
  cost.charged = seam_calls(SEAM_ALLOCATE);
  for (int i = 0; i < TAKES; i++)
    denied += spile_take(limiter, self.limits[0], "one", 3, 1000000, NULL) == SPILE_DENIED;
  cost.denied = seam_calls(SEAM_ALLOCATE) - cost.charged;
  seam_disarm();
  cost.own += a.calls;
  spile_close(limiter);
  cr_assert(eq(int, allowed, TAKES));
  cr_assert(eq(int, denied, TAKES));
  run_stop(&self);
  (void)printf("%s: %d takes charged and %d denied: %d allocations of ours; in all %d and %d\n", uri, TAKES, TAKES,
               cost.own, cost.charged, cost.denied);
  return cost;
}

Test(torture, takes_of_memory_allocate_nothing) {
  takes_cost cost = takes_measure("memory:?keys=100");
  cr_assert(eq(int, cost.own, 0));
  cr_assert(eq(int, cost.charged, 0));
  cr_assert(eq(int, cost.denied, 0));
}

/* LMDB itself takes one block for each transaction that writes, for its list of free pages, and frees it at the end. */
Test(torture, takes_of_lmdb_allocate_nothing_of_their_own) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  quick_dir_make(dir);
  takes_cost cost = takes_measure(lmdb_uri(uri, dir, "none"));
  cr_assert(eq(int, cost.own, 0));
  cr_assert(le(int, cost.charged, TAKES));
  cr_assert(eq(int, cost.denied, 0));
  temp_dir_remove(dir);
}

/* ---- Calls to the C library ---- */

typedef struct failure {
  seam_call call;
  int errors[8]; /* the first 0 ends it */
} failure;

/* What each may return, and what it seldom does. EINTR for good is none of it: no signal comes for ever. */
static const failure failures[] = {
    {SEAM_SOCKET, {EMFILE, ENFILE, ENOBUFS, ENOMEM, EACCES}},
    {SEAM_SETSOCKOPT, {ENOPROTOOPT, ENOBUFS}},
    {SEAM_CONNECT, {EINTR, EAGAIN, ECONNREFUSED, ECONNRESET, ENETUNREACH, ENOENT, EACCES}},
    {SEAM_GETSOCKOPT, {ENOBUFS, ENOTSOCK}},
    {SEAM_POLL, {EINTR, EAGAIN, ENOMEM, EINVAL}},
    {SEAM_SEND, {EINTR, EAGAIN, ECONNRESET, EPIPE, ENOBUFS, EIO, SEAM_SHORT}},
    {SEAM_RECV, {EINTR, EAGAIN, ECONNRESET, ENOMEM, EIO, SEAM_SHORT}},
    {SEAM_OPEN, {EINTR, EMFILE, ENFILE, ENOSPC, EIO, EACCES, ENOENT}},
    {SEAM_OPENAT, {EINTR, EMFILE, ENFILE, ENOSPC, EIO, EACCES}},
    {SEAM_MKDIR, {EINTR, ENOSPC, EIO, EACCES, EROFS}},
    {SEAM_FSTAT, {EINTR, EIO, EOVERFLOW}},
    {SEAM_FSTATAT, {EINTR, EIO, EACCES}},
    {SEAM_STAT, {EINTR, EIO, ENOENT}},
    {SEAM_FCNTL, {EINTR, EAGAIN, ENOLCK, EIO, EMFILE, EINVAL}},
    {SEAM_READ, {EINTR, EIO, SEAM_SHORT}},
    {SEAM_PREAD, {EINTR, EIO, SEAM_SHORT}},
    {SEAM_PWRITE, {EINTR, ENOSPC, EIO, EDQUOT, EFBIG, SEAM_SHORT}},
    {SEAM_WRITEV, {EINTR, ENOSPC, EIO, SEAM_SHORT}},
    {SEAM_FDATASYNC, {EINTR, ENOSPC, EIO}},
    {SEAM_MSYNC, {EINTR, EIO, ENOMEM}},
    {SEAM_MMAP, {ENOMEM, EAGAIN, ENODEV}},
    {SEAM_FTRUNCATE, {EINTR, ENOSPC, EIO, EFBIG}},
    {SEAM_FALLOCATE, {EINTR, ENOSPC, EIO, EOPNOTSUPP}},
    {SEAM_UNLINKAT, {EIO, EBUSY}},
    {SEAM_GETRANDOM, {EINTR, ENOSYS, EAGAIN, SEAM_SHORT}},
};

static void nothing(void *user) {
  (void)user;
}

/* @return how many calls failed in turn */
static int torture_calls(run *self, bool fresh, void (*refresh)(void *), void *user) {
  int sum = 0;
  for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
    int runs = 0;
    for (int j = 0; j < 8 && failures[i].errors[j] != 0; j++) {
      int error = failures[i].errors[j];
      runs +=
          torture_call(self, (seam_plan){.call = failures[i].call, .fails = 1, .error = error}, fresh, refresh, user);
      int many = error == EINTR ? 3 : INT_MAX;
      runs += torture_call(self, (seam_plan){.call = failures[i].call, .fails = many, .error = error}, fresh, refresh,
                           user);
    }
    if (runs > 0)
      (void)printf(" %s %d", seam_name(failures[i].call), runs);
    sum += runs;
  }
  (void)printf(": %s, %d calls failed\n", self->uri, sum);
  (void)fflush(stdout);
  return sum;
}

static void torture_store_calls(const char *uri) {
  run self;
  run_start(&self, uri);
  cr_assert(lt(int, 0, torture_calls(&self, false, nothing, NULL)));
  run_stop(&self);
}

Test(torture, memory_survives_every_call_failing) {
  torture_store_calls("memory:?keys=100");
}

Test(torture, redis_survives_every_call_failing) {
  redis_server *server = redis_server_start();
  torture_store_calls(redis_server_unix_uri(server));
  redis_server_free(server);
}

Test(torture, redis_by_tcp_survives_every_call_failing) {
  redis_server *server = redis_server_start();
  torture_store_calls(redis_server_tcp_uri(server));
  redis_server_free(server);
}

/* ---- Names ---- */

/* More than the pause between two look-ups. */
#define NAME_PATIENCE_MS 20000

static void name_take(run *self, spile_limiter *limiter, spile_decision *decision) {
  int64_t began_ms = now_ms();
  int result = spile_take(limiter, self->limits[0], "one", 3, 1, decision);
  run_check_take(self, "take", result, decision, began_ms);
}

/* Takes until the store answers: nothing fails for ever, and names are looked up again. */
static void name_recovers(run *self, spile_limiter *limiter) {
  spile_decision decision = {0};
  int64_t until_ms = now_ms() + NAME_PATIENCE_MS;
  do {
    name_take(self, limiter, &decision);
    (void)poll(NULL, 0, 10);
  } while (decision.decided_by != SPILE_BY_STORE && now_ms() < until_ms);
  if (decision.decided_by != SPILE_BY_STORE)
    run_fault(self, "take", 0, decision.store_error, decision.detail);
}

/*
 * A life with a name that is looked up when it is opened and again by a thread, while the server is a replica. @return
 * how many calls failed
 */
static int name_live(run *self, redis_server *server, const seam_plan *plan) {
  spile_limiter *limiter;
  spile_decision decision;
  spile_error error;
  self->fault[0] = '\0';
  (void)seam_arm_everywhere(plan);
  cr_assert(run_open(self, &limiter, &error) == SPILE_OK, "%s", error.message);
  for (int i = 0; i < 3; i++)
    name_take(self, limiter, &decision);
  redis_server_run(server, "REPLICAOF 127.0.0.1 1");
  /* Past the pause between two look-ups, twice. */
  for (int64_t until_ms = now_ms() + 1100; now_ms() < until_ms; (void)poll(NULL, 0, 10))
    name_take(self, limiter, &decision);
  redis_server_run(server, "REPLICAOF NO ONE");
  int failed = seam_arm_everywhere(NULL);
  name_recovers(self, limiter);
  spile_close(limiter);
  return failed;
}

Test(torture, a_name_survives_every_look_up_and_every_thread_failing) {
  static const failure rows[] = {{SEAM_RESOLVE, {EAI_AGAIN, EAI_SYSTEM}}, {SEAM_THREAD, {EAGAIN}}};
  redis_server *server = redis_server_start();
  char uri[64];
  (void)snprintf(uri, sizeof(uri), "redis://" SEAM_HOST "%s", strrchr(redis_server_tcp_uri(server), ':'));
  run self = {.uri = uri};
  cr_assert(eq(int, spile_limit_parse(&self.limits[0], "1000000/m", NULL), SPILE_OK));
  int sum = 0;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    for (int j = 0; j < 8 && rows[i].errors[j] != 0; j++) {
      int fds_before = open_fds();
      for (int at = 1, failed = 1; failed > 0 && at < 10; at++) {
        /* From the third on the machine's speed decides how many there are. */
        seam_plan plan = {.call = rows[i].call, .at = at, .fails = at < 3 ? 1 : INT_MAX, .error = rows[i].errors[j]};
        failed = name_live(&self, server, &plan);
        cr_assert(self.fault[0] == '\0', "%s %d: %s", seam_name(plan.call), at, self.fault);
        cr_assert(failed > 0 || at > 1, "no %s was called", seam_name(plan.call));
        sum += failed;
      }
      cr_assert(eq(int, open_fds(), fds_before));
    }
  }
  (void)printf("%s: %d look-ups and threads failed\n", uri, sum);
  spile_limit_unref(self.limits[0]);
  redis_server_free(server);
}

static void remove_store(void *user) {
  char path[TEMP_DIR_LEN + 16];
  (void)snprintf(path, sizeof(path), "%s/store", (const char *)user);
  temp_dir_remove(path);
}

static void torture_lmdb_calls(const char *sync, bool fresh) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  quick_dir_make(dir);
  run self;
  run_start(&self, lmdb_uri(uri, dir, sync));
  cr_assert(lt(int, 0, torture_calls(&self, fresh, remove_store, dir)));
  run_stop(&self);
  temp_dir_remove(dir);
}

Test(torture, lmdb_survives_every_call_failing) {
  torture_lmdb_calls("none", false);
}

Test(torture, lmdb_with_syncing_survives_every_call_failing) {
  torture_lmdb_calls("full", false);
}

Test(torture, making_an_lmdb_directory_survives_every_call_failing) {
  torture_lmdb_calls("none", true);
}

/* ---- Descriptors ---- */

/* The limit under which so many descriptors are free. */
static rlim_t limit_leaving(int n) {
  rlim_t limit = 0;
  for (int fd = 0; n > 0 || fcntl(fd, F_GETFD) >= 0; fd++) {
    bool used = fcntl(fd, F_GETFD) >= 0;
    if (!used && n == 0)
      break;
    n -= !used;
    limit = (rlim_t)fd + 1;
  }
  return limit;
}

static void starve(const char *uri, int n, int *answered) {
  run self;
  run_start(&self, uri);
  spile_limiter *limiter = NULL;
  spile_error error;
  struct rlimit before;
  cr_assert(eq(int, getrlimit(RLIMIT_NOFILE, &before), 0));
  int fds_before = open_fds();
  struct rlimit few = {.rlim_cur = limit_leaving(n), .rlim_max = before.rlim_max};
  cr_assert(eq(int, setrlimit(RLIMIT_NOFILE, &few), 0));
  int64_t began_ms = now_ms();
  int result = run_open(&self, &limiter, &error);
  run_check(&self, "open", result, &error, began_ms);
  if (limiter != NULL)
    run_use(&self, limiter);
  bool starved = self.unanswered > 0;
  cr_assert(eq(int, setrlimit(RLIMIT_NOFILE, &before), 0));
  spile_decision decision;
  if (limiter != NULL)
    (void)run_works(&self, limiter, &decision);
  spile_close(limiter);
  cr_assert(self.fault[0] == '\0', "%s with %d descriptors: %s", uri, n, self.fault);
  cr_assert(eq(int, open_fds(), fds_before));
  *answered += !starved;
  run_stop(&self);
}

/* With none to eight free, each store says that it cannot, or works. */
Test(torture, few_descriptors_are_enough_or_missed_politely) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  quick_dir_make(dir);
  redis_server *server = redis_server_start();
  const char *uris[3] = {"memory:?keys=100", lmdb_uri(uri, dir, "none"), redis_server_unix_uri(server)};
  for (int i = 0; i < 3; i++) {
    int answered = 0;
    for (int n = 0; n <= 8; n++)
      starve(uris[i], n, &answered);
    (void)printf("%s works with %d descriptors\n", uris[i], 9 - answered);
    cr_assert(lt(int, 0, answered));
    cr_assert(i == 0 ? answered == 9 : answered < 9);
  }
  redis_server_free(server);
  temp_dir_remove(dir);
}

/* ---- Ten thousand lives ---- */

#define LIVES 10000

static long resident_kib(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  cr_assert(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
  (void)fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* A build that keeps freed memory on purpose says nothing about memory; it has a leak checker instead. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KEEPS_MEMORY true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KEEPS_MEMORY true
#endif
#endif
#ifndef KEEPS_MEMORY
#define KEEPS_MEMORY false
#endif

static void live_and_die(const char *uri) {
  run self;
  run_start(&self, uri);
  int fds_before = open_fds();
  long kib_before = 0;
  int64_t began_ms = now_ms();
  int answered = 0;
  for (int i = 0; i < LIVES; i++) {
    spile_limiter *limiter;
    spile_error error;
    cr_assert(run_open(&self, &limiter, &error) == SPILE_OK, "%s", error.message);
    answered += spile_take(limiter, self.limits[0], "one", 3, 1, NULL) == SPILE_ALLOWED;
    spile_close(limiter);
    if (i == LIVES / 10)
      kib_before = resident_kib();
  }
  long kib_after = resident_kib();
  (void)printf("%s: opened, asked and closed %d times in %.1f s, %d answers, %ld KiB and %ld KiB, %d descriptors and "
               "%d\n",
               uri, LIVES, (double)(now_ms() - began_ms) / 1000, answered, kib_before, kib_after, fds_before,
               open_fds());
  cr_assert(eq(int, open_fds(), fds_before));
  cr_assert(KEEPS_MEMORY || kib_after - kib_before < 512, "%ld KiB grew to %ld KiB", kib_before, kib_after);
  /* A busy machine may let the time of a few takes pass. */
  cr_assert(lt(int, LIVES * 9 / 10, answered));
  run_stop(&self);
}

Test(torture, memory_lives_ten_thousand_times) {
  live_and_die("memory:?keys=100");
}

Test(torture, redis_lives_ten_thousand_times) {
  redis_server *server = redis_server_start();
  live_and_die(redis_server_unix_uri(server));
  redis_server_free(server);
}

Test(torture, lmdb_lives_ten_thousand_times) {
  char dir[TEMP_DIR_LEN];
  char uri[TEMP_DIR_LEN + 64];
  quick_dir_make(dir);
  live_and_die(lmdb_uri(uri, dir, "none"));
  temp_dir_remove(dir);
}
