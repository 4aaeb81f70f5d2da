/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much time a thing will need, from how long it took lately: a mean, and a mean distance from it, that follow each
 * new time by an eighth and a quarter of what they are off. Mean and four distances hold nearly every time; they are
 * the weights of TCP's retransmission timer (RFC 6298, section 2), which answers the same question.
 *
 * Times are whole milliseconds, and thousandths are kept, so that a thing that takes 0 or 1 ms has a mean between. What
 * was given up says only that it takes longer than that, so it counts when the mean is below.
 */
#include "backends/redis.h"

#define PER_MS 1000

/* Longer ones are as good as this: no call waits that long, and nothing overflows. */
#define TOOK_MAX_MS 3600000

void spile__redis_pace_learn(spile__redis_pace *pace, int64_t took_ms, bool late) {
  int64_t took = (took_ms < 0 ? 0 : took_ms > TOOK_MAX_MS ? TOOK_MAX_MS : took_ms) * PER_MS;
  if (late && took <= pace->mean)
    return;
  if (!pace->known) {
    *pace = (spile__redis_pace){.known = true, .mean = took, .deviation = took / 2};
    return;
  }
  int64_t off = took - pace->mean;
  pace->mean += off / 8;
  pace->deviation += ((off < 0 ? -off : off) - pace->deviation) / 4;
}

int64_t spile__redis_pace_need_ms(const spile__redis_pace *pace) {
  int64_t need_ms = (pace->mean + 4 * pace->deviation + PER_MS - 1) / PER_MS;
  return need_ms > 1 ? need_ms : 1;
}
