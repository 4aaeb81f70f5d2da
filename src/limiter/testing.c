/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake clock and the scripted store.
 */
#include <spile/testing.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- The fake clock ---- */

struct spile_fake_clock {
  atomic_int_least64_t now_ms;
};

spile_fake_clock *spile_fake_clock_new(int64_t now_ms) {
  spile_fake_clock *clock = malloc(sizeof(*clock));
  if (clock != NULL)
    atomic_init(&clock->now_ms, now_ms);
  return clock;
}

void spile_fake_clock_free(spile_fake_clock *clock) {
  free(clock);
}

int64_t spile_fake_clock_now(void *clock) {
  return atomic_load(&((spile_fake_clock *)clock)->now_ms);
}

void spile_fake_clock_sleep(void *clock, int64_t ms) {
  spile_fake_clock_advance(clock, ms);
}

void spile_fake_clock_set(spile_fake_clock *clock, int64_t now_ms) {
  atomic_store(&clock->now_ms, now_ms);
}

void spile_fake_clock_advance(spile_fake_clock *clock, int64_t ms) {
  atomic_fetch_add(&clock->now_ms, ms);
}

/* ---- The scripted store ---- */

typedef struct scripted_answer {
  int code;
  spile_reason reason;
  spile_reading readings[SPILE_REQUESTS_MAX];
} scripted_answer;

/* Calls and answers are kept by pointer, so that what a test holds does not move when the lists grow. */
struct spile_scripted_store {
  spile_store base;
  pthread_mutex_t lock;
  scripted_answer **answers;
  size_t answer_count;
  size_t answers_given;
  spile_scripted_call **calls;
  size_t call_count;
};

static spile_scripted_store *scripted_of(spile_store *store) {
  return (spile_scripted_store *)(void *)((char *)store - offsetof(spile_scripted_store, base));
}

/* Appends `element` to a list of pointers. @return false: no memory */
static bool list_append(void ***list, size_t *count, void *element) {
  void **grown = realloc(*list, (*count + 1) * sizeof(*grown));
  if (grown == NULL)
    return false;
  *list = grown;
  grown[(*count)++] = element;
  return true;
}

static char *copy_text(const void *bytes, size_t len) {
  char *copy = malloc(len + 1);
  if (copy != NULL) {
    memcpy(copy, bytes, len);
    copy[len] = '\0';
  }
  return copy;
}

static void call_free(spile_scripted_call *call) {
  for (size_t i = 0; i < call->n; i++) {
    free((char *)(uintptr_t)call->items[i].key);
    free((char *)(uintptr_t)call->items[i].name);
  }
  free(call);
}

static spile_scripted_call *call_copy(const spile_call *call) {
  spile_scripted_call *copy = calloc(1, sizeof(*copy));
  if (copy == NULL)
    return NULL;
  copy->verb = call->verb;
  copy->now_ms = call->now_ms;
  copy->deadline_ms = call->deadline_ms;
  copy->most = call->most;
  for (; copy->n < call->n; copy->n++) {
    const spile_item *item = &call->items[copy->n];
    char *key = copy_text(item->key, item->key_len);
    char *name = copy_text(item->spec->name, item->spec->name_len);
    if (key == NULL || name == NULL) {
      free(key);
      free(name);
      call_free(copy);
      return NULL;
    }
    copy->items[copy->n].key = key;
    copy->items[copy->n].key_len = item->key_len;
    copy->items[copy->n].name = name;
    copy->items[copy->n].shape = item->spec->shape;
    copy->items[copy->n].cost = item->cost;
  }
  return copy;
}

static int scripted_decide(spile_store *store, spile_call *call) {
  spile_scripted_store *scripted = scripted_of(store);
  spile_scripted_call *copy = call_copy(call);
  if (copy == NULL)
    return SPILE_ENOMEM;
  (void)pthread_mutex_lock(&scripted->lock);
  bool kept = list_append((void ***)&scripted->calls, &scripted->call_count, copy);
  const scripted_answer *answer = NULL;
  if (kept && scripted->answers_given < scripted->answer_count)
    answer = scripted->answers[scripted->answers_given++];
  (void)pthread_mutex_unlock(&scripted->lock);
  if (!kept) {
    call_free(copy);
    return SPILE_ENOMEM;
  }
  for (size_t i = 0; i < call->n; i++)
    call->items[i].reading = answer != NULL ? answer->readings[i] : (spile_reading){{0}};
  if (answer == NULL || answer->code == SPILE_OK)
    return SPILE_OK;
  call->full_item = 0;
  call->error->code = answer->code;
  call->error->reason = (int)answer->reason;
  static const char message[] = "the script says so";
  memcpy(call->error->message, message, sizeof(message));
  return answer->code;
}

static int scripted_clear(spile_store *store, const spile_item *item, int64_t deadline_ms, spile_error *error) {
  (void)store;
  (void)item;
  (void)deadline_ms;
  (void)error;
  return SPILE_OK;
}

static void scripted_close(spile_store *store, bool forked) {
  (void)forked;
  spile_scripted_store *scripted = scripted_of(store);
  for (size_t i = 0; i < scripted->call_count; i++)
    call_free(scripted->calls[i]);
  for (size_t i = 0; i < scripted->answer_count; i++)
    free(scripted->answers[i]);
  free(scripted->calls);
  free(scripted->answers);
  (void)pthread_mutex_destroy(&scripted->lock);
  free(scripted);
}

static const spile_store_ops scripted_ops = {
    .abi = SPILE_STORE_ABI,
    .name = "scripted",
    .timeout_ms = 1000,
    .decide = scripted_decide,
    .clear = scripted_clear,
    .close = scripted_close,
};

spile_scripted_store *spile_scripted_store_new(void) {
  spile_scripted_store *scripted = calloc(1, sizeof(*scripted));
  if (scripted == NULL)
    return NULL;
  scripted->base.ops = &scripted_ops;
  (void)pthread_mutex_init(&scripted->lock, NULL);
  return scripted;
}

spile_store *spile_scripted_store_base(spile_scripted_store *store) {
  return &store->base;
}

bool spile_scripted_store_answer(spile_scripted_store *store, int code, spile_reason reason,
                                 const spile_reading *readings, size_t n) {
  scripted_answer *answer = calloc(1, sizeof(*answer));
  if (answer == NULL)
    return false;
  answer->code = code;
  answer->reason = reason;
  for (size_t i = 0; i < n && i < SPILE_REQUESTS_MAX; i++)
    answer->readings[i] = readings[i];
  (void)pthread_mutex_lock(&store->lock);
  bool kept = list_append((void ***)&store->answers, &store->answer_count, answer);
  (void)pthread_mutex_unlock(&store->lock);
  if (!kept)
    free(answer);
  return kept;
}

size_t spile_scripted_store_calls(spile_scripted_store *store) {
  (void)pthread_mutex_lock(&store->lock);
  size_t count = store->call_count;
  (void)pthread_mutex_unlock(&store->lock);
  return count;
}

const spile_scripted_call *spile_scripted_store_call(spile_scripted_store *store, size_t i) {
  (void)pthread_mutex_lock(&store->lock);
  const spile_scripted_call *call = i < store->call_count ? store->calls[i] : NULL;
  (void)pthread_mutex_unlock(&store->lock);
  return call;
}
