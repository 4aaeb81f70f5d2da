/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics as Prometheus reads them: the text format of version 0.0.4
 * (https://prometheus.io/docs/instrumenting/exposition_formats/).
 *
 * A family is written with all its samples together, so the rows are gone through once for each family of theirs. The
 * text is counted whether it fits or not, and numbers are made of digits here, so that no locale has a say.
 */
#include <spile/metrics.h>
#include <string.h>

typedef struct metrics_text {
  char *buffer;
  size_t size;
  size_t len; /* of the text, whether it is in the buffer or not */
} metrics_text;

/* ---- Text ---- */

static void put_bytes(metrics_text *text, const char *bytes, size_t len) {
  if (text->len < text->size && len < text->size - text->len)
    memcpy(text->buffer + text->len, bytes, len);
  text->len += len;
}

static void put(metrics_text *text, const char *string) {
  put_bytes(text, string, strlen(string));
}

/* At least `width` digits. */
static void put_digits(metrics_text *text, uint64_t number, size_t width) {
  char digits[20];
  size_t at = sizeof(digits);
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0 || sizeof(digits) - at < width);
  put_bytes(text, digits + at, sizeof(digits) - at);
}

/* Nanoseconds as seconds, exactly. */
static void put_seconds(metrics_text *text, uint64_t ns) {
  put_digits(text, ns / 1000000000, 1);
  uint64_t fraction = ns % 1000000000;
  if (fraction == 0)
    return;
  size_t width = 9;
  for (; fraction % 10 == 0; fraction /= 10)
    width--;
  put(text, ".");
  put_digits(text, fraction, width);
}

/*
 * How many bytes of UTF-8 make the character that begins here; 0: they are none. The well-formed sequences of The
 * Unicode Standard, table 3-7: neither longer than needed, nor a surrogate, nor above U+10FFFF.
 */
static size_t utf8_len(const unsigned char *at) {
  unsigned low = 0x80;
  unsigned high = 0xbf;
  size_t len = 0;
  if (at[0] < 0x80)
    return 1;
  if (at[0] >= 0xc2 && at[0] <= 0xdf)
    len = 2;
  else if (at[0] >= 0xe0 && at[0] <= 0xef)
    len = 3;
  else if (at[0] >= 0xf0 && at[0] <= 0xf4)
    len = 4;
  if (at[0] == 0xe0)
    low = 0xa0;
  if (at[0] == 0xed)
    high = 0x9f;
  if (at[0] == 0xf0)
    low = 0x90;
  if (at[0] == 0xf4)
    high = 0x8f;
  /* A NUL ends the text and is in no range, so nothing behind it is looked at. */
  for (size_t i = 1; i < len; i++, low = 0x80, high = 0xbf) {
    if (at[i] < low || at[i] > high)
      return 0;
  }
  return len;
}

static bool is_utf8(const char *string) {
  const unsigned char *at = (const unsigned char *)string;
  while (*at != 0) {
    size_t len = utf8_len(at);
    if (len == 0)
      return false;
    at += len;
  }
  return true;
}

static void put_escaped(metrics_text *text, const char *value) {
  for (const char *at = value; *at != '\0'; at++) {
    if (*at == '\\')
      put(text, "\\\\");
    else if (*at == '"')
      put(text, "\\\"");
    else if (*at == '\n')
      put(text, "\\n");
    else
      put_bytes(text, at, 1);
  }
}

static void put_hex(metrics_text *text, const char *value) {
  static const char hex[] = "0123456789abcdef";
  for (const char *at = value; *at != '\0'; at++) {
    put_bytes(text, &hex[(unsigned char)*at >> 4], 1);
    put_bytes(text, &hex[(unsigned char)*at & 15], 1);
  }
}

/* ---- Samples ---- */

static void put_family(metrics_text *text, const char *name, const char *type, const char *help) {
  put(text, "# HELP ");
  put(text, name);
  put(text, " ");
  put(text, help);
  put(text, "\n# TYPE ");
  put(text, name);
  put(text, " ");
  put(text, type);
  put(text, "\n");
}

/* A label, plain or in hexadecimal with a label that says so; `first` opens the list. */
static void put_label_as(metrics_text *text, bool first, const char *name, const char *value, bool plain) {
  put(text, first ? "{" : ",");
  put(text, name);
  put(text, "=\"");
  if (plain)
    put_escaped(text, value);
  else
    put_hex(text, value);
  put(text, plain ? "\"" : "\",name_encoding=\"hex\"");
}

static void put_label(metrics_text *text, bool first, const char *name, const char *value) {
  put_label_as(text, first, name, value, true);
}

/*
 * The label of a limit. A name that is not UTF-8, which no label may hold, is written in hexadecimal, and so is that of
 * a limit which is named as the row of all others: two names never become one.
 */
static void put_limit(metrics_text *text, const spile_metrics *row) {
  bool plain = is_utf8(row->limit) && (row->other || strcmp(row->limit, SPILE_METRICS_OTHER) != 0);
  put_label_as(text, true, "limit", row->limit, plain);
}

static void put_value(metrics_text *text, bool labels, uint64_t value) {
  put(text, labels ? "} " : " ");
  put_digits(text, value, 1);
  put(text, "\n");
}

static void put_plain(metrics_text *text, const char *name, uint64_t value) {
  put(text, name);
  put_value(text, false, value);
}

static void put_labelled(metrics_text *text, const char *name, const char *label, const char *label_value,
                         uint64_t value) {
  put(text, name);
  put_label(text, true, label, label_value);
  put_value(text, true, value);
}

/* A sample of a limit with one or two more labels (`second` may be NULL). */
static void put_of_limit(metrics_text *text, const char *name, const spile_metrics *row, const char *first,
                         const char *first_value, const char *second, const char *second_value, uint64_t value) {
  put(text, name);
  put_limit(text, row);
  put_label(text, false, first, first_value);
  if (second != NULL)
    put_label(text, false, second, second_value);
  put_value(text, true, value);
}

/* ---- Families of the whole limiter ---- */

/* NONE is left out: it never counts. */
#define REASON_WORD(name, number, word) [number] = (number) == SPILE_REASON_NONE ? NULL : (word),
static const char *const reason_words[SPILE_REASONS_MAX] = {SPILE_REASONS(REASON_WORD)};
#undef REASON_WORD

/* A store of somebody's own may have reasons that nobody knows: together they are one more. */
static uint64_t reasons_unknown(const uint64_t counts[SPILE_REASONS_MAX]) {
  uint64_t sum = 0;
  for (size_t i = 0; i < SPILE_REASONS_MAX; i++)
    sum += reason_words[i] == NULL ? counts[i] : 0;
  return sum;
}

static void put_counters(metrics_text *text, const spile_counters *counters) {
  put_family(text, "spile_takes_total", "counter",
             "Takes by outcome, whoever decided; unavailable: the store did not answer and on_store_error is fail.");
  put_labelled(text, "spile_takes_total", "outcome", "allowed", counters->allowed);
  put_labelled(text, "spile_takes_total", "outcome", "denied", counters->denied);
  put_labelled(text, "spile_takes_total", "outcome", "never", counters->never);
  put_labelled(text, "spile_takes_total", "outcome", "unavailable", counters->unavailable);

  put_family(text, "spile_full_total", "counter", "Takes that found no room for a new key.");
  put_plain(text, "spile_full_total", counters->full);

  put_family(text, "spile_policy_answers_total", "counter",
             "Takes that on_store_error answered, since the store did not or, for want of a subject, was not asked.");
  put_labelled(text, "spile_policy_answers_total", "answer", "open", counters->policy_open);
  put_labelled(text, "spile_policy_answers_total", "answer", "closed", counters->policy_closed);
  put_labelled(text, "spile_policy_answers_total", "answer", "fail", counters->unavailable);

  put_family(text, "spile_store_errors_total", "counter",
             "Takes that the store did not answer, by reason; subject: that it was not asked.");
  for (size_t i = 0; i < SPILE_REASONS_MAX; i++) {
    if (reason_words[i] != NULL)
      put_labelled(text, "spile_store_errors_total", "reason", reason_words[i], counters->store_errors[i]);
  }
  put_labelled(text, "spile_store_errors_total", "reason", "unknown", reasons_unknown(counters->store_errors));

  put_family(text, "spile_breaker_state", "gauge",
             "0: the store is asked; 1: it is left alone; 2: one take at a time tries it.");
  put_plain(text, "spile_breaker_state", (uint64_t)counters->breaker);
  put_family(text, "spile_breaker_opened_total", "counter", "How often the breaker opened.");
  put_plain(text, "spile_breaker_opened_total", counters->breaker_opened);
  put_family(text, "spile_settled_total", "counter", "Charges and refunds that went through; they are no takes.");
  put_labelled(text, "spile_settled_total", "verb", "charge", counters->charged);
  put_labelled(text, "spile_settled_total", "verb", "refund", counters->refunded);
  put_family(text, "spile_unsettled_total", "counter",
             "Charges and refunds that the store did not answer or had no room for.");
  put_plain(text, "spile_unsettled_total", counters->unsettled);
}

static void put_gauge(metrics_text *text, const char *name, const char *help, int64_t value) {
  if (value == SPILE_UNKNOWN)
    return;
  put_family(text, name, "gauge", help);
  put_plain(text, name, (uint64_t)value);
}

static void put_usage(metrics_text *text, const spile_usage *usage) {
  put_gauge(text, "spile_store_buckets", "Buckets in the store; full ones count until their place is taken.",
            usage->buckets);
  put_gauge(text, "spile_store_buckets_max", "Buckets that the store has room for.", usage->buckets_max);
  put_gauge(text, "spile_store_bytes", "Bytes of the store in use.", usage->bytes);
  put_gauge(text, "spile_store_bytes_max", "Bytes that the store may use.", usage->bytes_max);
}

/* ---- Families by limit ---- */

static bool put_takes(void *user, const spile_metrics *row) {
  static const char name[] = "spile_limit_takes_total";
  metrics_text *text = user;
  put_of_limit(text, name, row, "outcome", "allowed", "decided_by", "store", row->allowed);
  put_of_limit(text, name, row, "outcome", "denied", "decided_by", "store", row->denied);
  put_of_limit(text, name, row, "outcome", "never", "decided_by", "store", row->never);
  put_of_limit(text, name, row, "outcome", "allowed", "decided_by", "full", row->full_open);
  put_of_limit(text, name, row, "outcome", "denied", "decided_by", "full", row->full_closed);
  put_of_limit(text, name, row, "outcome", "none", "decided_by", "full", row->full_failed);
  return true;
}

static void put_reasons(metrics_text *text, const spile_metrics *row, const char *answer,
                        const uint64_t counts[SPILE_REASONS_MAX]) {
  static const char name[] = "spile_limit_policy_answers_total";
  for (size_t i = 0; i < SPILE_REASONS_MAX; i++) {
    if (reason_words[i] != NULL && counts[i] > 0)
      put_of_limit(text, name, row, "answer", answer, "reason", reason_words[i], counts[i]);
  }
  uint64_t unknown = reasons_unknown(counts);
  if (unknown > 0)
    put_of_limit(text, name, row, "answer", answer, "reason", "unknown", unknown);
}

static bool put_policy(void *user, const spile_metrics *row) {
  put_reasons(user, row, "open", row->policy_open);
  put_reasons(user, row, "closed", row->policy_closed);
  put_reasons(user, row, "fail", row->unavailable);
  return true;
}

static bool put_shadow(void *user, const spile_metrics *row) {
  static const char name[] = "spile_shadow_takes_total";
  metrics_text *text = user;
  if (row->shadow_allowed + row->shadow_denied + row->shadow_failed == 0)
    return true;
  put_of_limit(text, name, row, "outcome", "allowed", NULL, NULL, row->shadow_allowed);
  put_of_limit(text, name, row, "outcome", "denied", NULL, NULL, row->shadow_denied);
  put_of_limit(text, name, row, "outcome", "none", NULL, NULL, row->shadow_failed);
  return true;
}

static void put_bucket(metrics_text *text, const spile_metrics *row, size_t range, uint64_t count) {
  put(text, "spile_store_duration_seconds_bucket");
  put_limit(text, row);
  put(text, ",le=\"");
  if (range + 1 < SPILE_METRICS_RANGES)
    put_seconds(text, (uint64_t)spile_metrics_bound_ns(range));
  else
    put(text, "+Inf");
  put(text, "\"");
  put_value(text, true, count);
}

static bool put_durations(void *user, const spile_metrics *row) {
  metrics_text *text = user;
  uint64_t count = 0;
  for (size_t i = 0; i < SPILE_METRICS_RANGES; i++)
    count += row->calls[i];
  if (count == 0)
    return true;
  count = 0;
  for (size_t i = 0; i < SPILE_METRICS_RANGES; i++) {
    count += row->calls[i];
    put_bucket(text, row, i, count);
  }
  put(text, "spile_store_duration_seconds_sum");
  put_limit(text, row);
  put(text, "} ");
  put_seconds(text, row->calls_ns);
  put(text, "\n");
  put(text, "spile_store_duration_seconds_count");
  put_limit(text, row);
  put_value(text, true, count);
  return true;
}

/* The header of a family stands only before samples. */
static void put_rows(metrics_text *text, spile_limiter *limiter, const char *name, const char *type, const char *help,
                     spile_metrics_visitor *visit) {
  metrics_text before = *text;
  put_family(text, name, type, help);
  size_t header_end = text->len;
  (void)spile_metrics_each(limiter, visit, text);
  if (text->len == header_end)
    *text = before;
}

int spile_metrics_text(spile_limiter *limiter, char *buffer, size_t size, size_t *needed) {
  if (limiter == NULL || needed == NULL || (buffer == NULL && size > 0))
    return SPILE_EINVAL;
  *needed = 0;
  if (size > 0)
    buffer[0] = '\0';
  spile_counters counters = SPILE_COUNTERS_INIT;
  spile_usage usage = SPILE_USAGE_INIT;
  int result = spile_count(limiter, &counters);
  if (result == SPILE_OK)
    result = spile_usage_read(limiter, &usage);
  if (result != SPILE_OK)
    return result;

  metrics_text text = {.buffer = buffer, .size = size};
  put_counters(&text, &counters);
  put_usage(&text, &usage);
  put_rows(&text, limiter, "spile_limit_takes_total", "counter",
           "Takes that asked a limit, by what that limit said and who decided it.", put_takes);
  put_rows(&text, limiter, "spile_limit_policy_answers_total", "counter",
           "Takes that asked a limit and got its on_store_error, by reason.", put_policy);
  put_rows(&text, limiter, "spile_shadow_takes_total", "counter", "What shadow limits would have said.", put_shadow);
  put_rows(&text, limiter, "spile_store_duration_seconds", "histogram",
           "How long the store took to decide, by each limit that it was asked about.", put_durations);
  *needed = text.len + 1;
  if (size > 0)
    buffer[*needed <= size ? text.len : 0] = '\0';
  return SPILE_OK;
}
