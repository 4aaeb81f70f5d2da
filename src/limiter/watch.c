/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told of a take once it is decided.
 *
 * Nothing here is decided or remembered about a key: a crossing of the near mark is seen in the one decision that made
 * it, and the log remembers when it last spoke. So hooks need no lock, and a thread that is inside one is marked, so
 * that takes the hook makes are not told to it.
 */
#include "limiter/watch.h"

#include <stdatomic.h>
#include <string.h>

#include "core/checked.h"
#include "core/siphash.h"
#include "core/text.h"
#include "limiter/limiter.h"

#define NEAR_DEFAULT_PERCENT 20
#define LOG_PER_S_MAX 1000
/* What a limit's name and a route may take in a line, quoted: a byte becomes four at most. */
#define LINE_ROUTE_LEN 400
#define LINE_SIZE (4 * (SPILE_NAME_LEN_MAX + LINE_ROUTE_LEN) + 300)

struct spile__watch {
  const spile_env *env;
  spile__metrics *metrics; /* NULL: off */
  void (*on_denied)(void *user, const spile_event *event);
  void (*on_near_limit)(void *user, const spile_event *event);
  void *hook_user;
  int near_percent;
  int64_t log_gap_ms; /* between two lines; 0: none are written */
  limiter_logged logged;
  uint64_t subject_key[2];
};

static _Thread_local bool inside_hook __attribute__((tls_model("initial-exec")));

/* ---- Telling ---- */

static uint64_t subject_hash(const spile__watch *watch, const spile_item *item) {
  return spile__siphash64(watch->subject_key, item->key, item->key_len);
}

static void text_put_hash(spile__text *text, uint64_t hash) {
  char digits[17] = {0};
  for (int i = 15; i >= 0; i--, hash >>= 4)
    digits[i] = "0123456789abcdef"[hash & 15];
  spile__text_put(text, digits);
}

static void denied_line(char line[LINE_SIZE], const spile_event *event, uint64_t hidden) {
  spile__text text;
  spile__text_init(&text, line, LINE_SIZE);
  spile__text_put(&text, spile_outcome_name(event->decision->outcome));
  spile__text_put(&text, ": subject ");
  if (event->subject_hash != 0)
    text_put_hash(&text, event->subject_hash);
  else
    spile__text_put(&text, "unknown");
  spile__text_put(&text, ", limit ");
  spile__text_put_quoted(&text, event->limit, strlen(event->limit));
  if (event->route != NULL) {
    spile__text_put(&text, ", route ");
    spile__text_put_quoted(&text, event->route, strnlen(event->route, LINE_ROUTE_LEN));
  }
  spile__text_put(&text, ", by ");
  spile__text_put(&text, spile_decided_by_name(event->decision->decided_by));
  if (event->decision->store_error != SPILE_REASON_NONE) {
    spile__text_put(&text, " (");
    spile__text_put(&text, spile_reason_name(event->decision->store_error));
    spile__text_put(&text, ")");
  }
  if (event->decision->retry_after_ms != SPILE_UNKNOWN) {
    spile__text_put(&text, ", again in ");
    spile__text_put_number(&text, event->decision->retry_after_ms);
    spile__text_put(&text, " ms");
  }
  if (hidden > 0) {
    spile__text_put(&text, "; and ");
    spile__text_put_number(&text, (int64_t)hidden);
    spile__text_put(&text, " more since this was last said");
  }
}

static void watch_log(spile__watch *watch, const spile_event *event) {
  const spile_env *env = watch->env;
  limiter_logged *logged = &watch->logged;
  int64_t now_ms = env->monotonic_ms(env->user);
  int64_t next_ms = atomic_load_explicit(&logged->next_ms, memory_order_relaxed);
  if (now_ms < next_ms ||
      !atomic_compare_exchange_strong_explicit(&logged->next_ms, &next_ms, now_ms + watch->log_gap_ms,
                                               memory_order_relaxed, memory_order_relaxed)) {
    atomic_fetch_add_explicit(&logged->hidden, 1, memory_order_relaxed);
    return;
  }
  char line[LINE_SIZE];
  denied_line(line, event, atomic_exchange_explicit(&logged->hidden, 0, memory_order_relaxed));
  env->log(env->log_user, SPILE_LOG_INFO, line);
}

static spile_event event_of(const spile__watch *watch, const spile__taken *taken, size_t item,
                            const spile_decision *decision) {
  bool keyless = taken->about != NULL && taken->about->failure != NULL;
  return (spile_event){.limit = taken->items[item].spec->name,
                       .route = taken->about != NULL ? taken->about->route : NULL,
                       .subject_hash = keyless ? 0 : subject_hash(watch, &taken->items[item]),
                       .decision = decision};
}

static void event_tell(spile__watch *watch, const spile_event *event) {
  if (watch->log_gap_ms > 0)
    watch_log(watch, event);
  if (watch->on_denied != NULL)
    watch->on_denied(watch->hook_user, event);
}

SPILE__OUT_OF_LINE static void watch_denied(spile__watch *watch, const spile__taken *taken) {
  spile_event event = event_of(watch, taken, taken->deciding, taken->decision);
  event_tell(watch, &event);
}

/*
 * Whether the take brought the level below the mark. A charge of c tokens makes floor(level) exactly c less, so before
 * it there were remaining + c; capacity ≤ 2^53, so a hundred times it fits.
 */
static bool crossed(const spile_item *item, const spile_decision *decision, int percent) {
  if (decision->decided_by != SPILE_BY_STORE || decision->remaining < 0)
    return false;
  int64_t mark = decision->capacity * percent;
  return decision->remaining * 100 < mark && (decision->remaining + item->cost) * 100 >= mark;
}

static void watch_near(spile__watch *watch, const spile__taken *taken) {
  for (size_t i = 0; i < taken->n; i++) {
    if (!crossed(&taken->items[i], &taken->each[i], watch->near_percent))
      continue;
    spile_event event = event_of(watch, taken, i, &taken->each[i]);
    watch->on_near_limit(watch->hook_user, &event);
  }
}

void spile__watch_taken(spile__watch *watch, const spile__taken *taken) {
  bool shadow = taken->about != NULL && taken->about->shadow;
  for (size_t i = 0; i < taken->n && watch->metrics != NULL; i++)
    spile__metrics_take(watch->metrics, taken->items[i].spec, taken->result, &taken->each[i], shadow);
  if (shadow || inside_hook)
    return;
  bool denied = taken->result == SPILE_DENIED || taken->result == SPILE_NEVER;
  inside_hook = true;
  if (denied && (watch->on_denied != NULL || watch->log_gap_ms > 0))
    watch_denied(watch, taken);
  if (taken->result == SPILE_ALLOWED && watch->on_near_limit != NULL)
    watch_near(watch, taken);
  inside_hook = false;
}

void spile__watch_keyless(spile__watch *watch, const char *limit, const char *route, const spile_decision *decision) {
  if (watch == NULL || inside_hook)
    return;
  const spile_event event = {.limit = limit, .route = route, .decision = decision};
  inside_hook = true;
  event_tell(watch, &event);
  inside_hook = false;
}

/* ---- Opening ---- */

static const char *options_fault(const spile_options *options, int64_t *number) {
  *number = options->metrics;
  if (options->metrics < SPILE_METRICS_OFF || options->metrics > SPILE_METRICS_TIMES)
    return "metrics is #; it must be a spile_metrics_level";
  *number = options->near_limit_percent;
  if (options->near_limit_percent < 0 || options->near_limit_percent > 99)
    return "near_limit_percent is #; it must be 0 to 99";
  *number = options->log_denied_per_s;
  if (options->log_denied_per_s < 0 || options->log_denied_per_s > LOG_PER_S_MAX)
    return "log_denied_per_s is #; it must be 0 to 1000";
  return NULL;
}

static int watch_fill(spile__watch *watch, const spile_options *options, spile_error *error) {
  const spile_env *env = watch->env;
  watch->on_denied = options->on_denied;
  watch->on_near_limit = options->on_near_limit;
  watch->hook_user = options->hook_user;
  watch->near_percent = options->near_limit_percent > 0 ? options->near_limit_percent : NEAR_DEFAULT_PERCENT;
  /* Rounded up, so that there are never more lines than asked for. */
  if (options->log_denied_per_s > 0)
    watch->log_gap_ms = spile__div_ceil(1000, options->log_denied_per_s);
  if (options->subject_key != NULL)
    memcpy(watch->subject_key, options->subject_key, SPILE_SUBJECT_KEY_LEN);
  else if (!env->random(env->user, watch->subject_key, sizeof(watch->subject_key)))
    return spile__fail(error, SPILE_EUNAVAILABLE,
                       "the system gave no random numbers to hash subjects with; set options.subject_key", NULL);
  return options->metrics == SPILE_METRICS_OFF ? SPILE_OK : spile__metrics_open(&watch->metrics, env, error);
}

int spile__watch_open(spile__watch **out, const spile_options *options, const spile_env *env, spile_error *error) {
  *out = NULL;
  int64_t number;
  const char *fault = options_fault(options, &number);
  if (fault != NULL)
    return spile__fail(error, SPILE_EINVAL, fault, &number);
  if (options->metrics == SPILE_METRICS_OFF && options->on_denied == NULL && options->on_near_limit == NULL &&
      options->log_denied_per_s == 0 && options->subject_key == NULL)
    return SPILE_OK;
  spile__watch *watch = env->allocate(env->allocate_user, NULL, sizeof(*watch));
  if (watch == NULL)
    return spile__fail(error, SPILE_ENOMEM, "out of memory for metrics and hooks", NULL);
  memset(watch, 0, sizeof(*watch));
  watch->env = env;
  int result = watch_fill(watch, options, error);
  if (result == SPILE_OK)
    *out = watch;
  else
    spile__watch_close(watch);
  return result;
}

void spile__watch_close(spile__watch *watch) {
  if (watch == NULL)
    return;
  spile__metrics_close(watch->metrics);
  (void)watch->env->allocate(watch->env->allocate_user, watch, 0);
}

spile__metrics *spile__watch_metrics(spile__watch *watch) {
  return watch != NULL ? watch->metrics : NULL;
}

uint64_t spile_subject_hash(const spile_limiter *limiter, const void *key, size_t key_len) {
  if (limiter == NULL || limiter->watch == NULL || key == NULL || key_len == 0)
    return 0;
  return spile__siphash64(limiter->watch->subject_key, key, key_len);
}
