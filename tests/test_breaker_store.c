/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The breaker around a store: who is let through, what the others are told, and what it costs.
 */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <spile/testing.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "limiter/breaker.h"
#include "limiter/env.h"

#define TIMEOUT_MS 25

/* ---- An environment whose time stands still and whose random numbers are known ---- */

typedef struct world {
  spile_fake_clock *clock;
  spile_env env;
  uint32_t random;
  bool no_random;
  bool no_memory;
} world;

/* A thread that sets this waits for the others at its next look at the clock. */
static _Thread_local pthread_barrier_t *meet_at_the_clock;

static int64_t world_monotonic_ms(void *user) {
  pthread_barrier_t *meeting = meet_at_the_clock;
  meet_at_the_clock = NULL;
  if (meeting != NULL)
    (void)pthread_barrier_wait(meeting);
  return spile_fake_clock_now(((world *)user)->clock);
}

static bool world_random(void *user, void *bytes, size_t size) {
  world *w = user;
  cr_assert(eq(sz, size, sizeof(w->random)));
  memcpy(bytes, &w->random, size);
  return !w->no_random;
}

static void *world_allocate(void *user, void *block, size_t size) {
  if (((world *)user)->no_memory)
    return NULL;
  if (size != 0)
    return realloc(block, size);
  free(block);
  return NULL;
}

/* Draws are in the middle: a wait is what it is called. */
static void world_start(world *w) {
  *w = (world){.clock = spile_fake_clock_new(100000), .random = UINT32_C(1) << 31};
  spile__env_init(&w->env);
  w->env.monotonic_ms = world_monotonic_ms;
  w->env.random = world_random;
  w->env.allocate = world_allocate;
  w->env.user = w->env.allocate_user = w;
}

/* ---- A store that holds its callers until it is told ---- */

/* Waits for a change of what is under the lock, longer than anything takes that is not stuck. */
static void wait_for_change(pthread_cond_t *changed, pthread_mutex_t *lock) {
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  cr_assert(eq(int, pthread_cond_timedwait(changed, lock, &until), 0));
}

typedef struct gate_store {
  spile_store base;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int inside;  /* takes that wait in it */
  int reached; /* takes that ever came */
  bool open;   /* takes do not wait */
  int release; /* … nor does the take that came as this one … */
  int free_at; /* … nor those that came as this one or later; 0: none of them */
  int result;  /* what a take that leaves is told */
  int reason;
  int clears, cleans, lists, closes; /* calls of the other kinds */
  bool forked;
} gate_store;

static gate_store *gate_of(spile_store *store) {
  return (gate_store *)(void *)store;
}

static int gate_decide(spile_store *store, spile_call *call) {
  gate_store *gate = gate_of(store);
  (void)pthread_mutex_lock(&gate->lock);
  gate->inside++;
  int number = ++gate->reached;
  (void)pthread_cond_broadcast(&gate->changed);
  while (!gate->open && number != gate->release && (gate->free_at == 0 || number < gate->free_at))
    wait_for_change(&gate->changed, &gate->lock);
  gate->inside--;
  int result = gate->result;
  if (result != SPILE_OK) {
    call->error->code = result;
    call->error->reason = gate->reason;
  }
  (void)pthread_mutex_unlock(&gate->lock);
  return result;
}

static int gate_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)error;
  cr_assert(eq(i64, item->cost, 77));
  cr_assert(eq(i64, deadline_ms, 11));
  gate_of(store)->clears++;
  return gate_of(store)->result;
}

static int gate_clean(spile_store *store, spile_clean_what what, int64_t now_ms, int64_t deadline_ms, bool *again,
                      spile_error *error) {
  (void)error;
  cr_assert(eq(int, what, SPILE_CLEAN_PREFIX));
  cr_assert(eq(i64, now_ms, 22));
  cr_assert(eq(i64, deadline_ms, 33));
  *again = true;
  gate_of(store)->cleans++;
  return gate_of(store)->result;
}

static int gate_each(spile_store *store, int64_t now_ms, int64_t timeout_ms, spile_visitor *visit, void *user,
                     spile_error *error) {
  (void)error;
  cr_assert(eq(i64, now_ms, 44));
  cr_assert(eq(i64, timeout_ms, 55));
  cr_assert(visit(user, NULL));
  gate_of(store)->lists++;
  return gate_of(store)->result;
}

static void gate_close(spile_store *store, bool forked) {
  gate_of(store)->forked = forked;
  gate_of(store)->closes++;
}

static const spile_store_ops gate_ops = {.abi = SPILE_STORE_ABI,
                                         .name = "gate",
                                         .timeout_ms = 123,
                                         .decide = gate_decide,
                                         .clear = gate_clear,
                                         .clean = gate_clean,
                                         .each = gate_each,
                                         .close = gate_close};

static void gate_start(gate_store *gate) {
  *gate = (gate_store){.base = {&gate_ops}, .open = true};
  (void)pthread_mutex_init(&gate->lock, NULL);
  (void)pthread_cond_init(&gate->changed, NULL);
}

static void gate_set(gate_store *gate, bool open, int result, int reason) {
  (void)pthread_mutex_lock(&gate->lock);
  gate->open = open;
  gate->result = result;
  gate->reason = reason;
  (void)pthread_cond_broadcast(&gate->changed);
  (void)pthread_mutex_unlock(&gate->lock);
}

/* Lets go the take that came as this one, with this result. */
static void gate_release(gate_store *gate, int number, int result, int reason) {
  (void)pthread_mutex_lock(&gate->lock);
  gate->release = number;
  gate->result = result;
  gate->reason = reason;
  (void)pthread_cond_broadcast(&gate->changed);
  (void)pthread_mutex_unlock(&gate->lock);
}

static void gate_wait_inside(gate_store *gate, int inside) {
  (void)pthread_mutex_lock(&gate->lock);
  while (gate->inside != inside)
    wait_for_change(&gate->changed, &gate->lock);
  (void)pthread_mutex_unlock(&gate->lock);
}

static int gate_reached(gate_store *gate) {
  (void)pthread_mutex_lock(&gate->lock);
  int reached = gate->reached;
  (void)pthread_mutex_unlock(&gate->lock);
  return reached;
}

/* ---- Taking ---- */

static const spile_spec any_spec = {.name = "default",
                                    .name_len = 7,
                                    .algorithm = SPILE_TOKEN_BUCKET,
                                    .shape = {.capacity = 10, .refill = 1, .period_ms = 1000}};

static int take_at(spile_store *store, int64_t deadline_ms, spile_error *error) {
  spile_item item = {.key = "k", .key_len = 1, .spec = &any_spec, .cost = 1};
  *error = (spile_error){0};
  spile_call call = {.verb = SPILE_VERB_TAKE,
                     .items = &item,
                     .n = 1,
                     .now_ms = SPILE_STORE_TIME,
                     .deadline_ms = deadline_ms,
                     .error = error};
  return store->ops->decide(store, &call);
}

static int take(world *w, spile_store *store, spile_error *error) {
  return take_at(store, spile_fake_clock_now(w->clock) + TIMEOUT_MS, error);
}

static void assert_refused(world *w, spile_store *store) {
  spile_error error;
  cr_assert(eq(int, take(w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_BREAKER));
}

static spile_breaker_state state_of(const spile_store *store) {
  spile_breaker_state state;
  uint64_t opened;
  spile__breaker_read(store, &state, &opened);
  return state;
}

static uint64_t opened_of(const spile_store *store) {
  spile_breaker_state state;
  uint64_t opened;
  spile__breaker_read(store, &state, &opened);
  return opened;
}

static spile_store *breaker_over(world *w, spile_store *inner) {
  spile_store *store;
  cr_assert(eq(int, spile__breaker_open(&store, inner, &w->env, TIMEOUT_MS, 5, 1000, NULL), SPILE_OK));
  return store;
}

/* Opens the breaker over a store that is open: five failures. */
static void break_it(world *w, spile_store *store, gate_store *gate) {
  spile_error error;
  gate_set(gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, take(w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_OPEN));
}

static void finish(world *w, spile_store *store) {
  store->ops->close(store, false);
  spile_fake_clock_free(w->clock);
}

/* ---- One thread ---- */

Test(breaker_store, hands_calls_and_answers_through_unchanged) {
  world w;
  world_start(&w);
  spile_scripted_store *scripted = spile_scripted_store_new();
  spile_reading reading = {{4321}};
  cr_assert(spile_scripted_store_answer(scripted, SPILE_OK, SPILE_REASON_NONE, &reading, 1));
  cr_assert(spile_scripted_store_answer(scripted, SPILE_EUNAVAILABLE, SPILE_REASON_LOADING, NULL, 0));
  spile_store *store = breaker_over(&w, spile_scripted_store_base(scripted));
  spile_item item = {.key = "key", .key_len = 3, .spec = &any_spec, .cost = 6};
  spile_error error = {0};
  spile_call call = {
      .verb = SPILE_VERB_PEEK, .items = &item, .n = 1, .now_ms = 987, .deadline_ms = 654321, .error = &error};
  cr_assert(eq(int, store->ops->decide(store, &call), SPILE_OK));
  cr_assert(eq(i64, item.reading.values[0], 4321));
  const spile_scripted_call *seen = spile_scripted_store_call(scripted, 0);
  cr_assert(eq(int, seen->verb, SPILE_VERB_PEEK));
  cr_assert(eq(i64, seen->now_ms, 987));
  cr_assert(eq(i64, seen->deadline_ms, 654321));
  cr_assert(eq(i64, seen->items[0].cost, 6));
  cr_assert(eq(int, store->ops->decide(store, &call), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_LOADING));
  cr_assert(eq(str, error.message, "the script says so"));
  finish(&w, store);
}

Test(breaker_store, says_why_it_did_not_ask_and_for_how_long) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  cr_assert(eq(int, gate_reached(&gate), 5));
  spile_fake_clock_advance(w.clock, 260);
  spile_error error;
  cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, gate_reached(&gate), 5));
  cr_assert(eq(int, error.code, SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_BREAKER));
  cr_assert(eq(str, error.message,
               "not asked: the store failed (timeout) and is left alone for another 740 ms; repair or wait for the "
               "store"));
  cr_assert(lt(sz, strlen(error.message), sizeof(((spile_decision *)0)->detail)));
  /* The reason is that of the failure that opened it last. */
  spile_fake_clock_advance(w.clock, 740);
  gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_PROTOCOL);
  cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.reason, SPILE_REASON_PROTOCOL));
  cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(str, error.message,
               "not asked: the store failed (protocol) and is left alone for another 2000 ms; repair or wait for the "
               "store"));
  finish(&w, store);
}

Test(breaker_store, leaves_an_earlier_failure_in_the_error) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  spile_item item = {.key = "k", .key_len = 1, .spec = &any_spec, .cost = 1};
  spile_error error = {.code = SPILE_EFULL, .message = "first"};
  spile_call call = {.verb = SPILE_VERB_TAKE, .items = &item, .n = 1, .error = &error};
  cr_assert(eq(int, store->ops->decide(store, &call), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, error.code, SPILE_EFULL));
  cr_assert(eq(str, error.message, "first"));
  finish(&w, store);
}

Test(breaker_store, takes_denials_full_stores_and_single_bad_buckets_for_answers) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  static const struct {
    int code, reason;
  } rows[] = {{SPILE_OK, 0},
              {SPILE_EFULL, 0},
              {SPILE_EUNAVAILABLE, SPILE_REASON_FOREIGN},
              {SPILE_EUNAVAILABLE, SPILE_REASON_CORRUPT},
              {SPILE_EUNAVAILABLE, SPILE_REASON_OOM}};
  spile_error error;
  for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
    /* Between four failures and four failures, each keeps it closed. */
    gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_CLOSED);
    for (int i = 0; i < 4; i++)
      cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    gate_set(&gate, true, rows[row].code, rows[row].reason);
    cr_assert(eq(int, take(&w, store, &error), rows[row].code));
    cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED), "row %zu", row);
  }
  gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_FOREIGN);
  for (int i = 0; i < 50; i++)
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  gate_set(&gate, true, SPILE_ENOMEM, 0);
  for (int i = 0; i < 50; i++)
    cr_assert(eq(int, take(&w, store, &error), SPILE_ENOMEM));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  cr_assert(eq(u64, opened_of(store), 0));
  finish(&w, store);
}

Test(breaker_store, lets_no_memory_on_this_side_neither_count_nor_break_the_row) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_LOADING);
  spile_error error;
  for (int i = 0; i < 4; i++)
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  gate_set(&gate, true, SPILE_ENOMEM, SPILE_REASON_LOADING);
  cr_assert(eq(int, take(&w, store, &error), SPILE_ENOMEM));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_LOADING);
  cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_OPEN));
  finish(&w, store);
}

Test(breaker_store, gives_the_probe_to_the_next_take_when_one_had_no_memory) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  spile_fake_clock_advance(w.clock, 1000);
  spile_error error;
  gate_set(&gate, true, SPILE_ENOMEM, 0);
  cr_assert(eq(int, take(&w, store, &error), SPILE_ENOMEM));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_OPEN));
  gate_set(&gate, true, SPILE_OK, 0);
  cr_assert(eq(int, take(&w, store, &error), SPILE_OK));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  finish(&w, store);
}

Test(breaker_store, waits_as_drawn_and_without_jitter_when_there_are_no_random_numbers) {
  static const struct {
    uint32_t random;
    bool no_random;
    int64_t want_ms;
  } rows[] = {{0, false, 800}, {UINT32_MAX, false, 1200}, {0, true, 1000}, {UINT32_MAX, true, 1000}};
  for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
    world w;
    world_start(&w);
    w.random = rows[row].random;
    w.no_random = rows[row].no_random;
    gate_store gate;
    gate_start(&gate);
    spile_store *store = breaker_over(&w, &gate.base);
    break_it(&w, store, &gate);
    spile_error error;
    spile_fake_clock_advance(w.clock, rows[row].want_ms - 1);
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, error.reason, SPILE_REASON_BREAKER), "row %zu", row);
    spile_fake_clock_advance(w.clock, 1);
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, error.reason, SPILE_REASON_TIMEOUT), "row %zu", row);
    finish(&w, store);
  }
}

/* One take a millisecond for ten seconds, each attempt costing its deadline. */
Test(breaker_store, asks_a_store_that_is_dead_ten_times_and_then_once_a_second_OPS_02) {
  world w;
  world_start(&w);
  w.random = 0; /* the shortest waits */
  spile_scripted_store *scripted = spile_scripted_store_new();
  for (int i = 0; i < 100; i++)
    cr_assert(spile_scripted_store_answer(scripted, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT, NULL, 0));
  spile_store *store = breaker_over(&w, spile_scripted_store_base(scripted));
  size_t attempts[10] = {0};
  size_t before = 0;
  int64_t start_ms = spile_fake_clock_now(w.clock);
  for (int64_t now_ms = 0; now_ms < 10000; now_ms = spile_fake_clock_now(w.clock) - start_ms) {
    spile_error error;
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    size_t calls = spile_scripted_store_calls(scripted);
    attempts[now_ms / 1000] += calls - before;
    spile_fake_clock_advance(w.clock, calls > before ? TIMEOUT_MS : 1);
    before = calls;
  }
  cr_assert(ge(sz, attempts[0], 5));
  cr_assert(le(sz, attempts[0], 10));
  for (int second = 1; second < 10; second++)
    cr_assert(le(sz, attempts[second], 1), "second %d", second);
  cr_assert(ge(sz, before, 8), "it goes on trying");
  finish(&w, store);
}

/* A hundred takes a second for ten seconds at a replica, each of which costs a connection; then the primary is there.
 */
Test(breaker_store, asks_a_replica_fifteen_times_in_ten_seconds_and_the_primary_then_REDIS_10) {
  world w;
  world_start(&w);
  w.random = 0;
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_READONLY);
  spile_error error;
  for (int i = 0; i < 1000; i++) {
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    spile_fake_clock_advance(w.clock, 10);
  }
  cr_assert(ge(int, gate_reached(&gate), 8));
  cr_assert(le(int, gate_reached(&gate), 15));
  gate_set(&gate, true, SPILE_OK, 0);
  int refused = 0;
  while (take(&w, store, &error) != SPILE_OK) {
    cr_assert(eq(int, error.reason, SPILE_REASON_BREAKER));
    spile_fake_clock_advance(w.clock, 10);
    refused++;
  }
  cr_assert(le(int, refused, 640), "not longer than the wait of the third probe");
  for (int i = 0; i < 100; i++)
    cr_assert(eq(int, take(&w, store, &error), SPILE_OK));
  finish(&w, store);
}

/* ---- What wraps and what is wrapped ---- */

static bool visit_nothing(void *user, const spile_stored *stored) {
  (void)stored;
  *(int *)user += 1;
  return true;
}

Test(breaker_store, is_called_as_its_store_and_passes_what_is_asked_by_hand_even_while_open) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  cr_assert(eq(u32, store->ops->abi, SPILE_STORE_ABI));
  cr_assert(eq(str, (char *)(uintptr_t)store->ops->name, "gate"));
  cr_assert(eq(i64, store->ops->timeout_ms, 123));
  break_it(&w, store, &gate);
  spile_item item = {.key = "k", .key_len = 1, .spec = &any_spec, .cost = 77};
  spile_error error = {0};
  bool again = false;
  int visited = 0;
  static const int results[] = {SPILE_EUNAVAILABLE, SPILE_OK};
  for (int i = 0; i < 2; i++) {
    gate_set(&gate, true, results[i], 0);
    cr_assert(eq(int, store->ops->clear(store, &item, 11, &error), results[i]));
    cr_assert(eq(int, store->ops->clean(store, SPILE_CLEAN_PREFIX, 22, 33, &again, &error), results[i]));
    cr_assert(eq(int, store->ops->each(store, 44, 55, visit_nothing, &visited, &error), results[i]));
    cr_assert(eq(int, state_of(store), SPILE_BREAKER_OPEN));
  }
  cr_assert(again);
  cr_assert(eq(int, visited, 2));
  cr_assert(eq(int, gate.clears, 2));
  cr_assert(eq(int, gate.cleans, 2));
  cr_assert(eq(int, gate.lists, 2));
  finish(&w, store);
  cr_assert(eq(int, gate.closes, 1));
  cr_assert(not(gate.forked));
}

Test(breaker_store, cannot_clean_or_list_when_its_store_cannot) {
  world w;
  world_start(&w);
  spile_store *store = breaker_over(&w, spile_scripted_store_base(spile_scripted_store_new()));
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, store, NULL, NULL), SPILE_OK));
  int visited = 0;
  cr_assert(eq(int, spile_clean(limiter, SPILE_CLEAN_FULL, NULL), SPILE_ENOTSUP));
  cr_assert(eq(int, spile_each(limiter, visit_nothing, &visited, NULL), SPILE_ENOTSUP));
  spile_close(limiter);
  spile_fake_clock_free(w.clock);
}

/* In the child the lock may be held by a thread that is not there; closing must not mind. */
Test(breaker_store, tells_its_store_that_it_is_closed_in_a_child) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  spile_limiter *limiter;
  cr_assert(eq(int, spile_open_store(&limiter, store, NULL, NULL), SPILE_OK));
  pid_t child = fork();
  if (child == 0) {
    spile_close(limiter);
    _exit(gate.closes == 1 && gate.forked ? 7 : 1);
  }
  int status;
  cr_assert(eq(int, waitpid(child, &status, 0), child));
  cr_assert(eq(int, status & 0x7f, 0), "a signal ended it");
  cr_assert(eq(int, WEXITSTATUS(status), 7));
  assert_refused(&w, store);
  spile_close(limiter);
  cr_assert(eq(int, gate.closes, 1));
  cr_assert(not(gate.forked));
  spile_fake_clock_free(w.clock);
}

Test(breaker_store, without_memory_leaves_the_store_to_its_owner) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  w.no_memory = true;
  spile_store *store = &gate.base;
  spile_error error = {0};
  cr_assert(eq(int, spile__breaker_open(&store, &gate.base, &w.env, TIMEOUT_MS, 5, 1000, &error), SPILE_ENOMEM));
  cr_assert(store == NULL);
  cr_assert(eq(int, error.code, SPILE_ENOMEM));
  cr_assert(ne(str, error.message, ""));
  cr_assert(eq(int, gate.closes, 0));
  spile_fake_clock_free(w.clock);
}

/* ---- What it costs: a page that cannot be written ---- */

#define PAGE_LEN 4096

static void *page_allocate(void *user, void *block, size_t size) {
  (void)user;
  if (size == 0) {
    cr_assert(eq(int, munmap(block, PAGE_LEN), 0));
    return NULL;
  }
  cr_assert(le(sz, size, PAGE_LEN));
  void *page = mmap(NULL, PAGE_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? NULL : page;
}

static int64_t no_clock(void *user) {
  (void)user;
  abort();
}

Test(breaker_store, writes_nothing_and_reads_no_clock_while_its_store_is_healthy) {
  world w;
  world_start(&w);
  w.env.allocate = page_allocate;
  w.env.monotonic_ms = no_clock;
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  cr_assert(eq(int, mprotect(store, PAGE_LEN, PROT_READ), 0));
  spile_error error;
  for (int i = 0; i < 10; i++)
    cr_assert(eq(int, take(&w, store, &error), SPILE_OK));
  gate_set(&gate, true, SPILE_EFULL, 0);
  cr_assert(eq(int, take(&w, store, &error), SPILE_EFULL));
  cr_assert(eq(int, mprotect(store, PAGE_LEN, PROT_READ | PROT_WRITE), 0));
  finish(&w, store);
}

Test(breaker_store, writes_nothing_when_it_refuses) {
  world w;
  world_start(&w);
  w.env.allocate = page_allocate;
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  cr_assert(eq(int, mprotect(store, PAGE_LEN, PROT_READ), 0));
  spile_error error;
  for (int i = 0; i < 10; i++) {
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, error.reason, SPILE_REASON_BREAKER));
  }
  cr_assert(eq(int, mprotect(store, PAGE_LEN, PROT_READ | PROT_WRITE), 0));
  finish(&w, store);
}

/* ---- Many threads ---- */

#define CROWD 64

typedef struct crowd {
  world *w;
  spile_store *store;
  pthread_barrier_t start;
  pthread_barrier_t *meeting; /* where all are that have seen it open; NULL: they do not meet */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int done;
  int answered; /* SPILE_OK */
  int refused;  /* by the breaker */
  int failed;   /* by the store */
  pthread_t threads[CROWD];
} crowd;

static void *crowd_take(void *user) {
  crowd *c = user;
  meet_at_the_clock = c->meeting;
  spile_error error;
  int result = take(c->w, c->store, &error);
  (void)pthread_mutex_lock(&c->lock);
  c->answered += result == SPILE_OK;
  c->refused += result != SPILE_OK && error.reason == SPILE_REASON_BREAKER;
  c->failed += result != SPILE_OK && error.reason != SPILE_REASON_BREAKER;
  c->done++;
  (void)pthread_cond_broadcast(&c->changed);
  (void)pthread_mutex_unlock(&c->lock);
  return NULL;
}

/* All threads look at the clock in the same moment if the breaker is not closed. */
static void crowd_start(crowd *c, world *w, spile_store *store) {
  *c = (crowd){.w = w, .store = store};
  if (state_of(store) != SPILE_BREAKER_CLOSED)
    c->meeting = &c->start;
  (void)pthread_barrier_init(&c->start, NULL, CROWD);
  (void)pthread_mutex_init(&c->lock, NULL);
  (void)pthread_cond_init(&c->changed, NULL);
  for (int i = 0; i < CROWD; i++)
    cr_assert(eq(int, pthread_create(&c->threads[i], NULL, crowd_take, c), 0));
}

static void crowd_wait_done(crowd *c, int done) {
  (void)pthread_mutex_lock(&c->lock);
  while (c->done < done)
    wait_for_change(&c->changed, &c->lock);
  (void)pthread_mutex_unlock(&c->lock);
}

static void crowd_join(crowd *c) {
  for (int i = 0; i < CROWD; i++)
    cr_assert(eq(int, pthread_join(c->threads[i], NULL), 0));
}

Test(breaker_store, sends_one_probe_of_64_threads_to_a_store_that_hangs_and_opens_again_OPS_03) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  for (uint64_t round = 1; round <= 5; round++) {
    if (round == 1)
      break_it(&w, store, &gate);
    int before = gate_reached(&gate);
    spile_fake_clock_advance(w.clock, INT64_C(1000) << (round - 1));
    gate_set(&gate, false, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
    crowd c;
    crowd_start(&c, &w, store);
    /* The others are back while the probe hangs. */
    crowd_wait_done(&c, CROWD - 1);
    gate_wait_inside(&gate, 1);
    cr_assert(eq(int, state_of(store), SPILE_BREAKER_HALF_OPEN));
    cr_assert(eq(int, c.refused, CROWD - 1));
    cr_assert(eq(int, gate_reached(&gate), before + 1));
    spile_error error;
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    cr_assert(strstr(error.message, "one take is trying it") != NULL, "%s", error.message);
    gate_set(&gate, true, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
    crowd_join(&c);
    cr_assert(eq(int, c.failed, 1));
    cr_assert(eq(int, state_of(store), SPILE_BREAKER_OPEN));
    cr_assert(eq(u64, opened_of(store), round + 1));
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
    cr_assert(eq(int, error.reason, SPILE_REASON_BREAKER));
  }
  finish(&w, store);
}

Test(breaker_store, sends_one_probe_of_64_threads_to_a_store_that_is_back_and_closes_OPS_03) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  for (uint64_t round = 1; round <= 5; round++) {
    break_it(&w, store, &gate);
    int before = gate_reached(&gate);
    spile_fake_clock_advance(w.clock, 1000);
    gate_set(&gate, false, SPILE_OK, 0);
    crowd c;
    crowd_start(&c, &w, store);
    crowd_wait_done(&c, CROWD - 1);
    cr_assert(eq(int, gate_reached(&gate), before + 1));
    gate_set(&gate, true, SPILE_OK, 0);
    crowd_join(&c);
    cr_assert(eq(int, c.answered, 1));
    cr_assert(eq(int, c.refused, CROWD - 1));
    cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
    cr_assert(eq(u64, opened_of(store), round));
    crowd_start(&c, &w, store);
    crowd_join(&c);
    cr_assert(eq(int, c.answered, CROWD));
  }
  finish(&w, store);
}

/* A take on a thread of its own. */
typedef struct lone {
  spile_store *store;
  int64_t deadline_ms;
  pthread_t thread;
  int result;
} lone;

static void *lone_take(void *user) {
  lone *l = user;
  spile_error error;
  l->result = take_at(l->store, l->deadline_ms, &error);
  return NULL;
}

/* A take that hangs in the store, the `inside`-th to do so. */
static void lone_start(lone *l, spile_store *store, gate_store *gate, int64_t deadline_ms, int inside) {
  *l = (lone){.store = store, .deadline_ms = deadline_ms};
  cr_assert(eq(int, pthread_create(&l->thread, NULL, lone_take, l), 0));
  gate_wait_inside(gate, inside);
}

static void lone_release(lone *l, gate_store *gate, int number, int result) {
  gate_release(gate, number, result, SPILE_REASON_CLOSED);
  cr_assert(eq(int, pthread_join(l->thread, NULL), 0));
  cr_assert(eq(int, l->result, result));
}

/* Probes of `deadline_ms` after now (or as it is when that is none or past) are given up `until_ms` after now. */
static void wedge(int64_t deadline_ms, int64_t until_ms) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  spile_fake_clock_advance(w.clock, 1000);
  gate_set(&gate, false, SPILE_OK, 0);
  lone first;
  lone second;
  lone_start(&first, store, &gate, deadline_ms, 1);
  spile_fake_clock_advance(w.clock, until_ms - 1);
  assert_refused(&w, store);
  spile_fake_clock_advance(w.clock, 1);
  lone_start(&second, store, &gate, spile_fake_clock_now(w.clock) + TIMEOUT_MS, 2);
  assert_refused(&w, store);

  lone_release(&first, &gate, 6, SPILE_EUNAVAILABLE);
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_HALF_OPEN), "a late failure changes nothing");
  cr_assert(eq(u64, opened_of(store), 2));
  assert_refused(&w, store);
  lone_release(&second, &gate, 7, SPILE_OK);
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  cr_assert(eq(u64, opened_of(store), 2));
  finish(&w, store);
}

/* A little late is not given up: it is when the breaker would ask again anyway. */
Test(breaker_store, gives_up_a_probe_that_is_a_wait_behind_its_deadline) {
  wedge(101000 + TIMEOUT_MS, TIMEOUT_MS + 2000);
}

/* Nobody waits for a limit that gives its own takes an hour. */
Test(breaker_store, gives_up_a_probe_after_the_usual_time_however_patient_it_is) {
  wedge(101000 + 3600000, TIMEOUT_MS + 2000);
}

Test(breaker_store, gives_up_a_probe_without_a_deadline_or_with_one_that_is_past_after_a_wait) {
  wedge(INT64_MAX, 2000);
  wedge(0, 2000);
  wedge(101000, 2000);
}

Test(breaker_store, is_closed_by_the_late_answer_of_a_probe_it_gave_up) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  break_it(&w, store, &gate);
  spile_fake_clock_advance(w.clock, 1000);
  gate_set(&gate, false, SPILE_OK, 0);
  lone first;
  lone second;
  lone_start(&first, store, &gate, 0, 1);
  spile_fake_clock_advance(w.clock, 2000);
  lone_start(&second, store, &gate, 0, 2);
  lone_release(&first, &gate, 6, SPILE_OK);
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  lone_release(&second, &gate, 7, SPILE_EUNAVAILABLE);
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  cr_assert(eq(u64, opened_of(store), 2));
  finish(&w, store);
}

/* Probes that do not come back are asked after, drawn and counted as probes that fail. */
Test(breaker_store, follows_probes_that_hang_as_probes_that_fail) {
  static const uint32_t randoms[] = {0, UINT32_C(1) << 31, UINT32_MAX};
  static const int64_t tenths[] = {8, 10, 12};
  for (int i = 0; i < 3; i++) {
    world w;
    world_start(&w);
    gate_store gate;
    gate_start(&gate);
    spile_store *store = breaker_over(&w, &gate.base);
    break_it(&w, store, &gate);
    w.random = randoms[i];
    spile_fake_clock_advance(w.clock, 1000);
    gate_set(&gate, false, SPILE_OK, 0);
    enum { PROBES = 9 };
    lone probes[PROBES];
    int64_t wait_ms = 1000;
    for (int probe = 0; probe < PROBES; probe++) {
      cr_assert(eq(u64, opened_of(store), (uint64_t)(probe == 0 ? 1 : probe)));
      lone_start(&probes[probe], store, &gate, spile_fake_clock_now(w.clock) + TIMEOUT_MS, probe + 1);
      cr_assert(eq(u64, opened_of(store), (uint64_t)probe + 1));
      wait_ms = wait_ms < 64000 ? 2 * wait_ms : wait_ms;
      spile_fake_clock_advance(w.clock, TIMEOUT_MS + wait_ms * tenths[i] / 10 - 1);
      assert_refused(&w, store);
      spile_fake_clock_advance(w.clock, 1);
    }
    for (int probe = 0; probe < PROBES; probe++)
      lone_release(&probes[probe], &gate, 6 + probe, SPILE_EUNAVAILABLE);
    finish(&w, store);
  }
}

Test(breaker_store, is_not_touched_by_a_failure_from_before_it_opened) {
  world w;
  world_start(&w);
  gate_store gate;
  gate_start(&gate);
  spile_store *store = breaker_over(&w, &gate.base);
  gate_set(&gate, false, SPILE_OK, 0);
  lone early[6];
  for (int i = 0; i < 6; i++)
    lone_start(&early[i], store, &gate, INT64_MAX, i + 1);
  (void)pthread_mutex_lock(&gate.lock);
  gate.free_at = 7;
  (void)pthread_mutex_unlock(&gate.lock);
  spile_error error;
  gate_set(&gate, false, SPILE_EUNAVAILABLE, SPILE_REASON_TIMEOUT);
  for (int i = 0; i < 5; i++)
    cr_assert(eq(int, take(&w, store, &error), SPILE_EUNAVAILABLE));
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_OPEN));
  lone_release(&early[0], &gate, 1, SPILE_EUNAVAILABLE);
  cr_assert(eq(u64, opened_of(store), 1));
  spile_fake_clock_advance(w.clock, 1000);
  gate_set(&gate, false, SPILE_OK, 0);
  cr_assert(eq(int, take(&w, store, &error), SPILE_OK));
  /* Closed again: five more of them would open it if they counted. */
  for (int i = 1; i < 6; i++)
    lone_release(&early[i], &gate, i + 1, SPILE_EUNAVAILABLE);
  cr_assert(eq(int, state_of(store), SPILE_BREAKER_CLOSED));
  cr_assert(eq(u64, opened_of(store), 1));
  finish(&w, store);
}

/* ---- A storm: threads, random outcomes, a moving clock ---- */

typedef struct storm {
  spile_store base;
  world *w;
  spile_store *store;
  atomic_bool calm; /* the store is healthy */
  atomic_uint takes;
  atomic_uint untold; /* takes whose result does not say what happened */
  atomic_uint reached;
} storm;

static int storm_decide(spile_store *store, spile_call *call) {
  storm *s = (storm *)(void *)store;
  unsigned number = atomic_fetch_add_explicit(&s->reached, 1, memory_order_relaxed);
  if (atomic_load(&s->calm) || number % 7 == 0)
    return SPILE_OK;
  if (number % 31 == 0)
    return SPILE_ENOMEM;
  call->error->code = SPILE_EUNAVAILABLE;
  call->error->reason = SPILE_REASON_TIMEOUT;
  return SPILE_EUNAVAILABLE;
}

static int storm_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)store;
  (void)item;
  (void)deadline_ms;
  (void)error;
  return SPILE_OK;
}

static void storm_close(spile_store *store, bool forked) {
  (void)store;
  (void)forked;
}

static const spile_store_ops storm_ops = {.abi = SPILE_STORE_ABI,
                                          .name = "storm",
                                          .timeout_ms = TIMEOUT_MS,
                                          .decide = storm_decide,
                                          .clear = storm_clear,
                                          .close = storm_close};

static void *storm_run(void *user) {
  storm *s = user;
  for (int i = 0; i < 20000; i++) {
    spile_error error;
    int result = take(s->w, s->store, &error);
    bool refused = result != SPILE_OK && error.reason == SPILE_REASON_BREAKER;
    bool told = refused ? strstr(error.message, "(timeout)") != NULL
                        : result == SPILE_OK || result == SPILE_ENOMEM || error.reason == SPILE_REASON_TIMEOUT;
    if (!told)
      atomic_fetch_add_explicit(&s->untold, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->takes, 1, memory_order_relaxed);
    if (i % 4 == 0)
      spile_fake_clock_advance(s->w->clock, 1);
    if (i % 1000 == 0)
      (void)state_of(s->store);
  }
  return NULL;
}

Test(breaker_store, comes_out_of_a_storm_closed_and_answering) {
  world w;
  world_start(&w);
  storm s = {.base = {&storm_ops}, .w = &w};
  cr_assert(eq(int, spile__breaker_open(&s.store, &s.base, &w.env, TIMEOUT_MS, 3, 2, NULL), SPILE_OK));
  pthread_t threads[8];
  for (int i = 0; i < 8; i++)
    cr_assert(eq(int, pthread_create(&threads[i], NULL, storm_run, &s), 0));
  for (int i = 0; i < 8; i++)
    (void)pthread_join(threads[i], NULL);
  cr_assert(eq(u32, atomic_load(&s.takes), 160000));
  cr_assert(eq(u32, atomic_load(&s.untold), 0));
  cr_assert(lt(u32, atomic_load(&s.reached), 160000));
  cr_assert(lt(u64, 100, opened_of(s.store)));

  atomic_store(&s.calm, true);
  spile_fake_clock_advance(w.clock, 64 * 3);
  unsigned before = atomic_load(&s.reached);
  spile_error error;
  for (int i = 0; i < 100; i++)
    cr_assert(eq(int, take(&w, s.store, &error), SPILE_OK));
  cr_assert(eq(u32, atomic_load(&s.reached), before + 100));
  cr_assert(eq(int, state_of(s.store), SPILE_BREAKER_CLOSED));
  finish(&w, s.store);
}
