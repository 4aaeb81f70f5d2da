/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes through a bad network (fault_proxy.h), with what each of them says held against what can be true.
 *
 * Every key has numbers of its own: key i has the capacity 1,000 + i and gets one token back in 100,000 s and 200 s
 * more for each i. So nothing worth a token comes back while a test runs, and an answer says exactly how much was
 * charged before it: a debt of `charged` whole tokens less the time since, below 200 s. The debt of another key is not
 * of that form for this one. A key belongs to one thread, so its book has bounds:
 *
 *   low    charged for certain: what was acknowledged, or what an answer has shown
 *   high   acknowledged, and whatever ended without anybody knowing
 *
 * An answer outside them is another take's, or a charge that was made twice. At the end the server itself is asked.
 *
 * Two faults make a right-looking reply that is wrong: an older reply in place of the right one, and a flipped bit
 * within the number. Without an echo in the reply nobody could tell. Of those takes only the range of the numbers is
 * checked, and their charges count as not known.
 */
#include "fault_proxy.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <spile/spile.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS 4
#define KEYS_EACH 50
#define KEYS (THREADS * KEYS_EACH)
#define COST_MAX 8
#define PERIOD_MIN_MS INT64_C(100000000)
#define PERIOD_STEP_MS INT64_C(200000)
#define TIMEOUT_MS 3
#define DELAY_MS 50
#define FAULTED_TAKES 100000

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- Books ---- */

typedef struct book {
  spile_limit *limit;
  char key[12];
  int64_t capacity;
  int64_t period_ms;
  int64_t acknowledged;
  int64_t unknown;
  int64_t low;
} book;

static void book_open(book *self, unsigned i) {
  *self = (book){.capacity = 1000 + i, .period_ms = PERIOD_MIN_MS + i * PERIOD_STEP_MS};
  (void)snprintf(self->key, sizeof(self->key), "%u", i);
  spile_limit_def def = SPILE_LIMIT_DEF_INIT;
  def.capacity = self->capacity;
  def.refill_tokens = 1;
  def.refill_period_ms = self->period_ms;
  def.on_store_error = SPILE_ON_STORE_ERROR_OPEN;
  spile_error error = {0};
  cr_assert(spile_limit_create(&self->limit, &def, &error) == SPILE_OK, "%s", error.message);
}

static int64_t book_high(const book *self) {
  return self->acknowledged + self->unknown;
}

/* What a debt in ms says about the charges before: whole tokens, or −1 when it is not a debt of this key. */
static int64_t book_charged(const book *self, int64_t debt_ms, int64_t age_max_ms) {
  int64_t tokens = (debt_ms + self->period_ms - 1) / self->period_ms;
  return tokens * self->period_ms - debt_ms <= age_max_ms ? tokens : -1;
}

/* ---- What the takes came to ---- */

typedef struct tally {
  uint64_t takes;
  uint64_t faulted;
  uint64_t answered; /* by the store */
  uint64_t denied;
  uint64_t crossed;    /* an answer that is not of this key, or says what cannot be */
  uint64_t unlabelled; /* allowed, and neither an answer of the store nor labelled as the policy's */
  uint64_t miraculous; /* an answer where none can have been */
  uint64_t late;       /* more than 50 ms after the deadline */
  uint64_t reasons[FAULT_COUNT][SPILE_REASONS_MAX]; /* of takes that met one fault alone */
  char first[300];                                  /* the first that went wrong */
} tally;

static void tally_add(tally *to, const tally *from) {
  to->takes += from->takes;
  to->faulted += from->faulted;
  to->answered += from->answered;
  to->denied += from->denied;
  to->crossed += from->crossed;
  to->unlabelled += from->unlabelled;
  to->miraculous += from->miraculous;
  to->late += from->late;
  for (int i = 0; i < FAULT_COUNT; i++) {
    for (int j = 0; j < SPILE_REASONS_MAX; j++)
      to->reasons[i][j] += from->reasons[i][j];
  }
  if (to->first[0] == '\0')
    memcpy(to->first, from->first, sizeof(to->first));
}

static void tally_note(tally *self, uint64_t *what, const book *account, int result, const spile_decision *decision,
                       uint32_t marks) {
  ++*what;
  if (self->first[0] != '\0')
    return;
  (void)snprintf(self->first, sizeof(self->first),
                 "key %s, faults %#x: result %d, by %s, reason %s, remaining %" PRId64 ", reset %" PRId64
                 ", known charges %" PRId64 " to %" PRId64 ": %s",
                 account->key, marks, result, spile_decided_by_name(decision->decided_by),
                 spile_reason_name(decision->store_error), decision->remaining, decision->reset_after_ms, account->low,
                 book_high(account), decision->detail);
}

/* ---- One taker ---- */

typedef struct swarm {
  fault_proxy *proxy;
  book *books;
  int64_t began_ms;
  uint64_t target; /* faulted takes */
  bool trusting;   /* believe also what cannot be told apart: to see the checks fail */
  atomic_uint_least64_t faulted;
} swarm;

typedef struct taker {
  swarm *swarm;
  spile_limiter *limiter;
  unsigned first_key;
  uint64_t random;
  tally tally;
  pthread_t thread;
} taker;

/* Nothing can have been charged where the reason says so. */
static bool reason_is_clear(int reason) {
  return reason != SPILE_REASON_TIMEOUT && reason != SPILE_REASON_CLOSED && reason != SPILE_REASON_PROTOCOL &&
         reason != SPILE_REASON_IO;
}

static bool decision_in_range(const book *account, const spile_decision *decision) {
  return decision->store_error == SPILE_REASON_NONE && decision->remaining >= 0 &&
         decision->remaining <= account->capacity && decision->reset_after_ms >= 0 &&
         decision->reset_after_ms <= account->capacity * account->period_ms + 2000 &&
         decision->capacity == account->capacity;
}

/* An answer of the store, which nothing can have changed on its way. */
static bool answer_fits(taker *self, book *account, int result, int64_t cost, const spile_decision *decision) {
  int64_t paid = result == SPILE_ALLOWED ? cost : 0;
  int64_t debt_ms = decision->reset_after_ms - paid * account->period_ms;
  int64_t charged = debt_ms < 0 ? -1 : book_charged(account, debt_ms, now_ms() - self->swarm->began_ms + 1000);
  bool fits = charged >= account->low && charged <= book_high(account) &&
              decision->remaining == account->capacity - charged - paid &&
              (result == SPILE_ALLOWED) == (charged + cost <= account->capacity);
  account->acknowledged += paid;
  if (fits)
    account->low = charged + paid;
  return fits;
}

static void taker_judge(taker *self, book *account, int result, int64_t cost, const spile_decision *decision,
                        uint32_t marks, int64_t took_ms) {
  tally *t = &self->tally;
  bool possible = false;
  for (int i = 0; i < FAULT_COUNT; i++) {
    if ((marks >> i & 1) == 0)
      continue;
    bool late = i == FAULT_DELAY || i == FAULT_DRIP;
    possible = possible || (fault_may_be_answered((fault)i) && (!late || took_ms >= DELAY_MS));
    /* A command may reach the proxy so late that its mark is found by the key's next take. */
    t->reasons[i][decision->store_error] += marks == UINT32_C(1) << i;
  }
  bool unseen = (marks & FAULTS_UNSEEN) != 0 && !self->swarm->trusting;
  if (decision->decided_by == SPILE_BY_STORE) {
    t->answered++;
    if (!possible)
      tally_note(t, &t->miraculous, account, result, decision, marks);
    bool fits = decision_in_range(account, decision);
    if (unseen)
      account->unknown += cost;
    else
      fits = answer_fits(self, account, result, cost, decision) && fits;
    t->denied += result == SPILE_DENIED && !unseen;
    if (!fits)
      tally_note(t, &t->crossed, account, result, decision, marks);
    return;
  }
  bool labelled = result == SPILE_ALLOWED && decision->decided_by == SPILE_BY_POLICY &&
                  decision->store_error != SPILE_REASON_NONE && decision->remaining == SPILE_UNKNOWN &&
                  decision->reset_after_ms == SPILE_UNKNOWN && decision->detail[0] != '\0';
  if (!labelled)
    tally_note(t, &t->unlabelled, account, result, decision, marks);
  if (unseen || !reason_is_clear(decision->store_error))
    account->unknown += cost;
}

static void *taker_run(void *user) {
  taker *self = user;
  swarm *s = self->swarm;
  while (atomic_load(&s->faulted) < s->target) {
    unsigned i = self->first_key + (unsigned)(fault_random(&self->random) % KEYS_EACH);
    int64_t cost = 1 + (int64_t)(fault_random(&self->random) % COST_MAX);
    book *account = &s->books[i];
    (void)fault_proxy_marks(s->proxy, i);
    spile_decision decision;
    int64_t start_ms = now_ms();
    int result = spile_take(self->limiter, account->limit, account->key, strlen(account->key), cost, &decision);
    int64_t took_ms = now_ms() - start_ms;
    self->tally.late += took_ms > TIMEOUT_MS + 50;
    uint32_t marks = fault_proxy_marks(s->proxy, i);
    taker_judge(self, account, result, cost, &decision, marks, took_ms);
    self->tally.takes++;
    if ((marks & ~(UINT32_C(1) << FAULT_NONE)) != 0) {
      self->tally.faulted++;
      (void)atomic_fetch_add(&s->faulted, 1);
    }
  }
  return NULL;
}

/* ---- The swarm ---- */

static spile_limiter *limiter_open(const char *uri, int connections) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.timeout_ms = TIMEOUT_MS;
  options.breaker_failures = SPILE_BREAKER_OFF;
  options.connections = connections;
  spile_limiter *limiter;
  spile_error error = {0};
  cr_assert(spile_open(&limiter, uri, &options, &error) == SPILE_OK, "%s", error.message);
  return limiter;
}

/* Three threads share two connections of the unix socket; the fourth comes by TCP. */
static void swarm_run(swarm *s, uint64_t seed, tally *sum) {
  spile_limiter *limiters[2] = {limiter_open(fault_proxy_unix_uri(s->proxy), 2),
                                limiter_open(fault_proxy_tcp_uri(s->proxy), 1)};
  taker takers[THREADS];
  atomic_store(&s->faulted, 0);
  for (unsigned i = 0; i < THREADS; i++) {
    takers[i] =
        (taker){.swarm = s, .limiter = limiters[i == THREADS - 1], .first_key = i * KEYS_EACH, .random = seed + i + 1};
    cr_assert(pthread_create(&takers[i].thread, NULL, taker_run, &takers[i]) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    (void)pthread_join(takers[i].thread, NULL);
    tally_add(sum, &takers[i].tally);
  }
  spile_close(limiters[0]);
  spile_close(limiters[1]);
  fault_proxy_settle(s->proxy);
}

/* What the server has charged a key in truth. */
static int64_t server_charged(redis_server *server, const book *account, int64_t age_max_ms) {
  int64_t left_ms = redis_server_integer(server, "PTTL rl:{%s}:default", account->key);
  return left_ms < 0 ? 0 : book_charged(account, left_ms - 1000, age_max_ms);
}

/* Charges that nobody asked for, and charges that were acknowledged and are not there. */
static void books_audit(const swarm *s, redis_server *server, int64_t *twice, int64_t *lost, int64_t *total) {
  *twice = *lost = *total = 0;
  for (int i = 0; i < KEYS; i++) {
    const book *account = &s->books[i];
    int64_t charged = server_charged(server, account, now_ms() - s->began_ms + 1000);
    cr_assert(ge(i64, charged, 0));
    *total += charged;
    *twice += charged > book_high(account) ? charged - book_high(account) : 0;
    *lost += charged < account->low ? account->low - charged : 0;
    *lost += charged < account->acknowledged ? account->acknowledged - charged : 0;
  }
}

static void swarm_start(swarm *s, redis_server *server, uint64_t seed, uint64_t target) {
  *s = (swarm){.proxy = fault_proxy_start(server, seed), .target = target, .began_ms = now_ms()};
  s->books = calloc(KEYS, sizeof(*s->books));
  cr_assert(s->books != NULL);
  for (unsigned i = 0; i < KEYS; i++)
    book_open(&s->books[i], i);
}

static void swarm_stop(swarm *s) {
  for (int i = 0; i < KEYS; i++)
    spile_limit_unref(s->books[i].limit);
  free(s->books);
  fault_proxy_stop(s->proxy);
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

static long resident_kib(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  cr_assert(file != NULL && fscanf(file, "%*d %ld", &pages) == 1);
  (void)fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Every fault, those that cost the time of a deadline less often. */
static fault_plan plan_all(void) {
  fault_plan plan = {.greeting_odds = 24, .delay_ms = DELAY_MS, .cut_at = -1, .error = -1};
  for (int i = 0; i < FAULT_COUNT; i++)
    plan.weights[i] = 6;
  static const fault slow[] = {FAULT_DELAY, FAULT_DROP, FAULT_STALL, FAULT_DRIP, FAULT_LOST, FAULT_LATE};
  for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++)
    plan.weights[slow[i]] = 4;
  plan.weights[FAULT_ERROR] = 20;
  plan.weights[FAULT_TWICE] = 0;
  return plan;
}

static uint64_t seed_get(void) {
  const char *text = getenv("SPILE_SEED");
  uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : UINT64_C(3);
  (void)printf("SPILE_SEED=%" PRIu64 "\n", seed);
  (void)fflush(stdout);
  return seed;
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

static void tally_show(const swarm *s, const tally *t) {
  (void)printf("| fault | takes that met it | answered by the store | by the policy, and why |\n|---|---|---|---|\n");
  for (int i = 0; i < FAULT_COUNT; i++) {
    if (fault_proxy_met(s->proxy, (fault)i) == 0)
      continue;
    uint64_t all = 0;
    for (int j = 0; j < SPILE_REASONS_MAX; j++)
      all += t->reasons[i][j];
    (void)printf("| %s | %" PRIu64 " | %" PRIu64 " |", fault_name((fault)i), all, t->reasons[i][0]);
    for (int j = 1; j < SPILE_REASONS_MAX; j++) {
      if (t->reasons[i][j] > 0)
        (void)printf(" %s %" PRIu64, spile_reason_name(j), t->reasons[i][j]);
    }
    (void)printf(" |\n");
  }
}

Test(faults, a_hundred_thousand_faulted_takes_cross_no_answer_charge_nothing_twice_and_admit_nothing_unlabelled) {
  const char *text = getenv("SPILE_FAULTED_TAKES");
  uint64_t target = text != NULL ? strtoull(text, NULL, 10) : FAULTED_TAKES;
  uint64_t seed = seed_get();
  redis_server *server = redis_server_start();
  swarm s;
  swarm_start(&s, server, seed, target / 10);
  fault_plan plan = plan_all();
  fault_proxy_set(s.proxy, &plan);
  tally sum = {0};
  int fds_before = open_fds();
  swarm_run(&s, seed, &sum);
  long kib_before = resident_kib();
  s.target = target - target / 10;
  swarm_run(&s, seed + THREADS, &sum);
  long kib_after = resident_kib();
  int fds_after = open_fds();
  int64_t took_ms = now_ms() - s.began_ms;

  int64_t twice;
  int64_t lost;
  int64_t total;
  books_audit(&s, server, &twice, &lost, &total);
  tally_show(&s, &sum);
  (void)printf("%" PRIu64 " takes, %" PRIu64 " faulted, over %" PRIu64 " connections in %.1f s: %" PRIu64
               " answers crossed, %" PRId64 " of %" PRId64 " tokens charged twice, %" PRId64 " lost, %" PRIu64
               " admitted without a label, %" PRIu64 " answers without a reply, %" PRIu64
               " more than 50 ms late; %d descriptors before and %d after, "
               "%ld KiB and %ld KiB\n",
               sum.takes, sum.faulted, fault_proxy_connections(s.proxy), (double)took_ms / 1000, sum.crossed, twice,
               total, lost, sum.unlabelled, sum.miraculous, sum.late, fds_before, fds_after, kib_before, kib_after);
  cr_assert(ge(u64, sum.faulted, target));
  cr_assert(sum.crossed == 0 && sum.unlabelled == 0 && sum.miraculous == 0, "%s", sum.first);
  cr_assert(eq(i64, twice, 0));
  cr_assert(eq(i64, lost, 0));
  cr_assert(eq(int, fds_after, fds_before));
  cr_assert(KEEPS_MEMORY || kib_after - kib_before < 2048, "%ld KiB grew to %ld KiB", kib_before, kib_after);
  cr_assert(sum.denied > 0 || target < FAULTED_TAKES, "no key was ever exhausted");
  /* Each fault was met, and ended in an answer of the policy where it cannot end in one of the store. */
  for (int i = 0; i < FAULT_TWICE; i++) {
    cr_assert(target < 10000 || fault_proxy_met(s.proxy, (fault)i) > 100, "%s: too few", fault_name((fault)i));
    cr_assert(fault_may_be_answered((fault)i) || sum.reasons[i][SPILE_REASON_NONE] == 0,
              "%s was answered %" PRIu64 " times", fault_name((fault)i), sum.reasons[i][SPILE_REASON_NONE]);
  }

  /* With the faults gone, every key is answered by the store, and says what the server has. */
  plan = fault_plan_of(FAULT_NONE);
  fault_proxy_set(s.proxy, &plan);
  spile_limiter *limiter = limiter_open(fault_proxy_unix_uri(s.proxy), 1);
  for (int i = 0; i < KEYS; i++) {
    book *account = &s.books[i];
    spile_decision decision = {0};
    for (int tries = 0; tries < 1000 && decision.decided_by != SPILE_BY_STORE; tries++)
      cr_assert(lt(int, 0, spile_peek(limiter, account->limit, account->key, strlen(account->key), 1, &decision)));
    int64_t charged = server_charged(server, account, now_ms() - s.began_ms + 1000);
    cr_assert(eq(i64, decision.remaining, account->capacity - charged));
  }
  spile_close(limiter);
  swarm_stop(&s);
  redis_server_free(server);
}

/* ---- Cut at every byte ---- */

/* One take through a proxy that spoils one thing always. */
static int take_spoilt(spile_limiter *limiter, const book *account, spile_decision *decision) {
  return spile_take(limiter, account->limit, account->key, strlen(account->key), 1, decision);
}

static void cut_everywhere(fault kind, int expected) {
  redis_server *server = redis_server_start();
  swarm s;
  swarm_start(&s, server, 9, 0);
  spile_limiter *limiter = limiter_open(fault_proxy_unix_uri(s.proxy), 1);
  int64_t charges = 0;
  /* The server has to know the script, else it is its NOSCRIPT that is cut. */
  spile_decision first = {0};
  for (int tries = 0; tries < 100 && first.decided_by != SPILE_BY_STORE; tries++)
    cr_assert(eq(int, take_spoilt(limiter, &s.books[1], &first), SPILE_ALLOWED));
  /* The reply to a take whose bucket is in debt is ":" and eight digits or more, and the line's end. */
  for (int at = 0; at <= 10; at++) {
    fault_plan plan = fault_plan_of(kind);
    plan.cut_at = at;
    fault_proxy_set(s.proxy, &plan);
    spile_decision decision;
    int result = take_spoilt(limiter, &s.books[0], &decision);
    /* On a machine that is busy with others the deadline may pass before anything is sent, or before the fault. */
    bool unsent = decision.store_error == SPILE_REASON_CONNECT || decision.store_error == SPILE_REASON_BUSY;
    bool slow = unsent || decision.store_error == SPILE_REASON_TIMEOUT;
    cr_assert(result == SPILE_ALLOWED && decision.decided_by == SPILE_BY_POLICY &&
                  (decision.store_error == expected || slow),
              "byte %d: %s: %s", at, spile_reason_name(decision.store_error), decision.detail);
    charges += !unsent;
  }
  spile_close(limiter);
  fault_proxy_settle(s.proxy);
  int64_t charged = server_charged(server, &s.books[0], 60000);
  cr_assert(charged > 0 && charged <= charges, "%" PRId64 " charged of %" PRId64, charged, charges);
  swarm_stop(&s);
  redis_server_free(server);
}

Test(faults, a_reply_that_ends_at_any_byte_is_no_answer) {
  cut_everywhere(FAULT_CUT, SPILE_REASON_CLOSED);
}

Test(faults, a_reply_that_is_reset_at_any_byte_is_no_answer) {
  cut_everywhere(FAULT_RESET, SPILE_REASON_CLOSED);
}

Test(faults, a_reply_that_stops_at_any_byte_is_no_answer) {
  cut_everywhere(FAULT_STALL, SPILE_REASON_TIMEOUT);
}

/* The greeting ends with the reply to INFO. Nothing is charged by a greeting, so the reason is always "connect". */
static void cut_greeting_everywhere(fault kind, int step) {
  redis_server *server = redis_server_start();
  redisReply *info = redis_server_command(server, "INFO server");
  int len = (int)info->len + (int)strlen("$1000\r\n\r\n");
  freeReplyObject(info);
  swarm s;
  swarm_start(&s, server, 10, 0);
  spile_limiter *limiter = limiter_open(fault_proxy_unix_uri(s.proxy), 1);
  for (int i = 0; i < 2; i++) {
    for (int at = 0; at < (i == 0 ? 4 : len - 4); at += step) {
      fault_plan plan = fault_plan_of(FAULT_NONE);
      plan.greeting_odds = 1;
      plan.greeting_kind = kind;
      plan.greeting = i == 0 ? "CLIENT" : "INFO";
      plan.cut_at = at;
      fault_proxy_set(s.proxy, &plan);
      spile_decision decision;
      int result = take_spoilt(limiter, &s.books[0], &decision);
      /* "busy" is a machine so busy that the deadline passed before anything was sent. */
      bool unsent = decision.store_error == SPILE_REASON_CONNECT || decision.store_error == SPILE_REASON_BUSY;
      cr_assert(result == SPILE_ALLOWED && decision.decided_by == SPILE_BY_POLICY && unsent, "%s, byte %d: %s: %s",
                plan.greeting, at, spile_reason_name(decision.store_error), decision.detail);
    }
  }
  spile_close(limiter);
  fault_proxy_settle(s.proxy);
  cr_assert(eq(i64, server_charged(server, &s.books[0], 60000), 0));
  swarm_stop(&s);
  redis_server_free(server);
}

Test(faults, a_greeting_that_ends_at_any_byte_is_no_connection) {
  cut_greeting_everywhere(FAULT_CUT, 1);
}

Test(faults, a_greeting_that_stops_at_any_byte_is_no_connection) {
  cut_greeting_everywhere(FAULT_STALL, 3);
}

/* ---- That the checks can fail ---- */

Test(faults, the_checks_see_an_answer_of_another_take) {
  redis_server *server = redis_server_start();
  swarm s;
  swarm_start(&s, server, 7, 500);
  s.trusting = true;
  fault_plan plan = fault_plan_of(FAULT_SWAP);
  plan.weights[FAULT_NONE] = 3;
  fault_proxy_set(s.proxy, &plan);
  tally sum = {0};
  swarm_run(&s, 7, &sum);
  (void)printf("%" PRIu64 " of %" PRIu64 " swapped replies were believed, and seen by the checks\n", sum.crossed,
               sum.reasons[FAULT_SWAP][SPILE_REASON_NONE]);
  cr_assert(lt(u64, sum.reasons[FAULT_SWAP][SPILE_REASON_NONE] / 2, sum.crossed));
  swarm_stop(&s);
  redis_server_free(server);
}

Test(faults, the_checks_see_a_second_charge) {
  redis_server *server = redis_server_start();
  swarm s;
  swarm_start(&s, server, 8, 500);
  fault_plan plan = fault_plan_of(FAULT_TWICE);
  plan.weights[FAULT_NONE] = 3;
  fault_proxy_set(s.proxy, &plan);
  tally sum = {0};
  swarm_run(&s, 8, &sum);
  int64_t twice;
  int64_t lost;
  int64_t total;
  books_audit(&s, server, &twice, &lost, &total);
  (void)printf("%" PRId64 " of %" PRId64 " tokens were charged twice, and seen by the checks\n", twice, total);
  cr_assert(lt(i64, 0, twice));
  cr_assert(lt(u64, 0, sum.crossed));
  swarm_stop(&s);
  redis_server_free(server);
}
