/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a server adds to see its limits: counters by limit, a hook on denials, and the text that it gives to Prometheus.
 * The program takes a few times and prints the text, as the server's /metrics would.
 */
#include <inttypes.h>
#include <spile/metrics.h>
#include <stdio.h>
#include <stdlib.h>

/* Must not block: count, or put into a queue. The key itself is not here, only a hash that stands for it. */
static void on_denied(void *user, const spile_event *event) {
  (void)user;
  (void)fprintf(stderr, "%s: %016" PRIx64 " may come again in %" PRId64 " ms\n", event->limit, event->subject_hash,
                event->decision->retry_after_ms);
}

/* The answer to a scrape, freed by the caller; NULL when there is none. */
static char *scrape(spile_limiter *limiter) {
  char *text = NULL;
  size_t size = 0;
  size_t needed = 0;
  while (spile_metrics_text(limiter, text, size, &needed) == SPILE_OK && needed > size) {
    size = needed + 1024; /* counters get longer meanwhile */
    char *larger = realloc(text, size);
    if (larger == NULL)
      break;
    text = larger;
  }
  if (needed > 0 && needed <= size)
    return text;
  free(text);
  return NULL;
}

int main(int argc, char **argv) {
  spile_options options = SPILE_OPTIONS_INIT;
  options.metrics = SPILE_METRICS_TIMES;
  options.on_denied = on_denied;
  spile_limiter *limiter;
  spile_limit *limit = NULL;
  spile_error error = {0};
  if (spile_open(&limiter, argc > 1 ? argv[1] : "memory:", &options, &error) != SPILE_OK ||
      spile_limit_parse(&limit, "1/s,capacity=3,name=search", &error) != SPILE_OK) {
    (void)fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  for (int i = 0; i < 5; i++)
    (void)!spile_allow(limiter, limit, "tenant=acme");

  char *text = scrape(limiter);
  if (text != NULL)
    (void)fputs(text, stdout);
  bool good = text != NULL;
  free(text);
  spile_limit_unref(limit);
  spile_close(limiter);
  return good ? 0 : 1;
}
