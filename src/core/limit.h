/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits: their numbers, their bounds and their text form.
 */
#ifndef SPILE_CORE_LIMIT_H
#define SPILE_CORE_LIMIT_H

#include <spile/sys/store.h>

/* A limit as somebody wrote it. */
typedef struct spile__limit_text {
  const char *name; /* into the text; NULL where none is given */
  size_t name_len;
  spile_algorithm algorithm;
  spile_on_full on_full;
  spile_on_store_error on_store_error;
  int64_t capacity;
  int64_t refill_tokens;
  int64_t refill_period_ms;
  int64_t debt; /* tokens */
} spile__limit_text;

/*
 * Makes the shape of a limit from its numbers as written: reduces tokens/period to lowest terms and checks every bound.
 * @return SPILE_OK; SPILE_ECONFIG with a message that names the bound and by how much it is passed
 */
int spile__shape_make(spile_shape *out, int64_t capacity, int64_t refill_tokens, int64_t refill_period_ms, int64_t debt,
                      spile_error *error);

/* Whether a shape, read from a store, is one that spile__shape_make could have made. */
bool spile__shape_valid(const spile_shape *shape);

/* Whether two shapes are the same in all numbers. */
static inline bool spile__shape_equal(const spile_shape *a, const spile_shape *b) {
  return a->capacity == b->capacity && a->refill == b->refill && a->period_ms == b->period_ms && a->debt == b->debt;
}

/*
 * Reads the text form of spile_limit_parse. The result is not yet checked against the bounds.
 * @return SPILE_OK; SPILE_ECONFIG with the column of the first fault
 */
int spile__limit_parse(spile__limit_text *out, const char *text, spile_error *error);

/* Fills the fingerprint of a spec from its other members. */
void spile__spec_finish(spile_spec *spec);

/* Whether two specs name the same buckets: same name, same algorithm. */
bool spile__spec_same_bucket(const spile_spec *a, const spile_spec *b);

/*
 * Reads a duration such as "500ms", "2s", "m": a whole number (1 where none is written) and ms, s, m, h or d.
 * @param text  where to start; moved behind what was read
 * @return the milliseconds, 0 or more; -1 when there is no duration; SPILE__DURATION_TOO_LONG when it passes ten years
 */
#define SPILE__DURATION_TOO_LONG (-2)
int64_t spile__duration_parse(const char **text);

#endif
