#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors next to this file: decisions of the token bucket, computed with Python's exact fractions.

They are for any implementation in any language. Run once, and the CSV is committed:  python3 tests/vectors/make.py

The state of a bucket is the instant at which it is full again, an exact fraction of a millisecond. Nothing here is
shared with the library, nor with the model in tests/model.c, which keeps a level and counts units.
"""
import math
import os
import random
from fractions import Fraction

TOLERANCE_MS = 1000
TEN_YEARS_MS = 315_360_000_000
EXACT_MAX = 2**53 - 1

HEADER = """\
# Decisions of the token bucket. Made by make.py; every scenario starts with full buckets.
#
# scenario          rows of one name belong together, in order; buckets of two scenarios have nothing in common
# step              rows with one number are one call, decided all or nothing; every bucket stands in it at most once
# at_ms             the time of the call in whole milliseconds; it may go back
# verb              take, or peek, which writes nothing
# bucket            which bucket of the scenario; its numbers may change from call to call
# capacity,refill_tokens,refill_period_ms
#                   the limit: refill_tokens come back in refill_period_ms, continuously, up to capacity
# cost              tokens asked for
# outcome,remaining,retry_after_ms,reset_after_ms
#                   what this row's limit says; retry_after_ms is empty for never
# decides           1: the call's answer is this row's
"""
COLUMNS = ("scenario,step,at_ms,verb,bucket,capacity,refill_tokens,refill_period_ms,cost,"
           "outcome,remaining,retry_after_ms,reset_after_ms,decides")


class Limit:
    def __init__(self, capacity, tokens, period_ms):
        self.written = (capacity, tokens, period_ms)
        self.capacity = capacity
        self.rate = Fraction(tokens, period_ms)  # tokens per ms; its denominator is the P of the lowest terms
        units = self.rate.denominator
        assert capacity * units + 1001 * self.rate.numerator <= EXACT_MAX, self.written
        assert units <= TEN_YEARS_MS and capacity / self.rate <= TEN_YEARS_MS, self.written
        self.key = (capacity, self.rate)

    def full_ms(self):
        return self.capacity / self.rate


class Scenario:
    """One set of buckets: bucket -> (instant at which it is full, the limit it was written under)."""

    def __init__(self, rows, name):
        self.rows, self.name, self.step, self.full_at = rows, name, 0, {}

    def tokens(self, bucket, limit, now):
        """The tokens in a bucket under `limit`, and whether reading it moved it."""
        if bucket not in self.full_at or self.full_at[bucket][0] <= now:
            return Fraction(limit.capacity), False
        full_at, old = self.full_at[bucket]
        moved = False
        if full_at - now > old.full_ms() + TOLERANCE_MS:
            full_at, moved = now + old.full_ms(), True
        tokens = old.capacity - (full_at - now) * old.rate
        if old.key != limit.key:
            unit = limit.rate.denominator
            tokens = Fraction(math.floor(tokens * unit), unit)
            tokens, moved = min(max(tokens, Fraction(0)), Fraction(limit.capacity)), True
        return tokens, moved

    def write(self, bucket, limit, now, tokens):
        if tokens == limit.capacity:
            self.full_at.pop(bucket, None)
        else:
            self.full_at[bucket] = (now + (limit.capacity - tokens) / limit.rate, limit)

    def call(self, verb, now, *requests):
        """requests: (bucket, limit, cost). Returns the deciding row's (outcome, remaining, retry, reset)."""
        found = [self.tokens(bucket, limit, now) for bucket, limit, _ in requests]
        never = any(cost > limit.capacity for _, limit, cost in requests)
        charged = verb == "take" and all(tokens >= cost for (tokens, _), (_, _, cost) in zip(found, requests))
        answers = []
        for (tokens, _), (_, limit, cost) in zip(found, requests):
            after = tokens - cost if charged else tokens
            retry = 0
            outcome = "allowed"
            if cost > limit.capacity:
                outcome, retry = "never", None
            elif tokens < cost:
                outcome, retry = "denied", math.ceil((cost - tokens) / limit.rate)
            answers.append((outcome, max(0, math.floor(after)), retry,
                            math.ceil((limit.capacity - after) / limit.rate)))
        order = {"never": 0, "denied": 1, "allowed": 2}

        def strictness(i):
            outcome, remaining, retry, reset = answers[i]
            if outcome == "allowed":
                return order[outcome], remaining, -reset, i
            return order[outcome], -(retry or 0), i

        worst = min(order[a[0]] for a in answers)
        decides = min((i for i in range(len(answers)) if order[answers[i][0]] == worst), key=strictness)
        if verb == "take" and not never:
            for (tokens, moved), (bucket, limit, cost) in zip(found, requests):
                if cost > 0 and charged:
                    self.write(bucket, limit, now, tokens - cost)
                elif cost > 0 and moved:
                    self.write(bucket, limit, now, tokens)
        for i, ((bucket, limit, cost), answer) in enumerate(zip(requests, answers)):
            outcome, remaining, retry, reset = answer
            self.rows.append(",".join(str(x) for x in (
                self.name, self.step, now, verb, bucket, *limit.written, cost, outcome, remaining,
                "" if retry is None else retry, reset, int(i == decides))))
        self.step += 1
        return answers[decides]

    def take(self, now, limit, cost=1, bucket="a"):
        return self.call("take", now, (bucket, limit, cost))

    def peek(self, now, limit, cost=1, bucket="a"):
        return self.call("peek", now, (bucket, limit, cost))


def rates(rows):
    """Ordinary life: every fraction of a token counts, waits are exact, costs at and past the edges."""
    s = Scenario(rows, "sixty_a_minute")
    limit = Limit(60, 1, 1000)
    s.take(1000, limit, 60)
    for now in (1000, 1999, 2000, 30000):
        s.peek(now, limit)
    s.take(30000, limit, 25)
    s.peek(85999, limit)
    s.peek(86000, limit)
    for name, limit in (("slow", Limit(5, 1, 20000)), ("thirteen", Limit(1, 10, 13000)), ("thirds", Limit(3, 3, 1000)),
                        ("sevenths", Limit(100, 7, 1000)), ("half_a_ms", Limit(1, 2000, 1000)),
                        ("per_day", Limit(1000, 1000, 86400000)), ("one", Limit(1, 1, 1)),
                        ("primes", Limit(7919, 104729, 1299709))):
        s = Scenario(rows, name)
        now = 1_700_000_000_000
        s.take(now, limit, limit.capacity)
        for cost in (1, limit.capacity, limit.capacity + 1, 0):
            outcome, _, retry, _ = s.peek(now, limit, cost)
            if outcome == "denied":
                s.peek(now + retry - 1, limit, cost)
                s.peek(now + retry, limit, cost)
        for i in range(30):
            now += math.ceil(limit.full_ms() * (i % 7) / 17)
            s.take(now, limit, 1 + i * limit.capacity // 40)
        s.peek(now + math.ceil(limit.full_ms()), limit, limit.capacity)


def bounds(rows):
    """Numbers at the bounds: capacity*P + 1001*N at most 2^53 - 1, periods and full times of ten years."""
    for name, limit in (("most_tokens", Limit(EXACT_MAX - 1001 * 30000, 30000, 1)),
                        ("fastest", Limit(1, (EXACT_MAX - 1) // 1001, 1)),
                        ("fast_and_large", Limit(EXACT_MAX - 1001 * 10**12, 10**12, 1)),
                        ("longest_period", Limit(1, 1, TEN_YEARS_MS)),
                        ("longest_full_time", Limit(28561, 28561, TEN_YEARS_MS - 1)),
                        ("long_and_odd", Limit(28500, 99991, TEN_YEARS_MS - 7)),
                        ("nine_quadrillion", Limit(9 * 10**15, 10**9, 1000))):
        if limit.full_ms() > TEN_YEARS_MS:
            raise ValueError(name)
        s = Scenario(rows, name)
        for now in (0, 4_294_967_295, 10**13 - 1):
            s.take(now, limit, limit.capacity)
            outcome, _, retry, _ = s.take(now, limit, 1)
            if outcome == "denied" and now + retry <= 10**13:
                s.peek(now + retry - 1, limit, 1)
                s.take(now + retry, limit, 1)
            s.take(min(10**13, now + math.ceil(limit.full_ms() / 3)), limit, max(1, limit.capacity // 5))
            s.peek(min(10**13, now + math.ceil(limit.full_ms() / 2)), limit, limit.capacity)


def clock(rows):
    """A clock that steps, both ways: what looks emptier by the step stays so; what cannot be is cut."""
    for name, limit in (("tenth", Limit(10, 1, 1000)), ("sevenths", Limit(100, 7, 1000)), ("fast", Limit(50, 300, 7))):
        full = limit.full_ms()
        for label, cut in (("at_the_edge", math.floor(full + TOLERANCE_MS)),
                           ("past_the_edge", math.floor(full + TOLERANCE_MS) + 1)):
            s = Scenario(rows, f"{name}_{label}")
            s.take(10**9, limit, limit.capacity)
            full_at = 10**9 + full
            s.peek(math.ceil(full_at - cut), limit, 0)
            s.peek(math.ceil(full_at - cut) - 1, limit, 0)
            s.take(math.ceil(full_at - cut), limit, 1)
            s.peek(10**9 - 500, limit, 1)
            s.take(10**9, limit, 1)
            s.take(10**9 + math.ceil(full / 2), limit, 2)
        s = Scenario(rows, f"{name}_back_and_forth")
        s.take(10**6, limit, limit.capacity - 1)
        for now in (10**6 - 700, 10**6, 10**6 - 999, 10**6 + 10, 10**6 - 1, 10**6 + 3000):
            s.take(now, limit, 1)
        s = Scenario(rows, f"{name}_ten_years")
        s.take(1000, limit)
        s.take(1000 + TEN_YEARS_MS, limit)
        s.peek(2000, limit)
        outcome, _, retry, _ = s.take(2000, limit)
        s.take(2000, limit, limit.capacity - 2)
        s.take(2000 + (retry or 1) - 1, limit)
        s.take(2000 + (retry or 1), limit)


def change(rows):
    """A limit that changes under a live bucket: the level is kept to a unit of the new numbers, rounded down."""
    s = Scenario(rows, "capacity_smaller")
    s.take(0, Limit(1000, 5, 900000))
    s.take(0, Limit(10, 5, 900000), 12)
    s.take(0, Limit(10, 5, 900000))
    s = Scenario(rows, "capacity_larger")
    s.take(0, Limit(10, 1, 1000), 4)
    s.take(0, Limit(20, 1, 1000))
    s.peek(0, Limit(20, 1, 1000))
    s = Scenario(rows, "slow_to_fast")
    s.take(0, Limit(5, 1, 86400000), 5)
    for now in (0, 999, 1000):
        s.take(now, Limit(5, 1, 1000))
    s = Scenario(rows, "fast_to_slow")
    s.take(0, Limit(5, 100, 1000), 5)
    for now in (0, 50, 3600000):
        s.take(now, Limit(5, 1, 3600000))
    s = Scenario(rows, "in_turn")
    s.take(0, Limit(5, 1, 20000), 5)
    for i in range(1, 121):
        s.take(1000 * i, Limit(5, 1, 20000 if i % 2 else 30000))
    s = Scenario(rows, "full_is_full")
    s.take(0, Limit(5, 1, 1000), 5)
    s.take(5000, Limit(500, 1, 1000), 500)
    s = Scenario(rows, "peek_does_not_convert")
    s.take(0, Limit(5, 1, 7000), 5)
    for now in (1, 6999, 7000):
        s.peek(now, Limit(5, 1, 3000))
        s.take(now, Limit(5, 1, 3000), 0)
    s.take(7000, Limit(5, 1, 7000))
    s = Scenario(rows, "same_rate_other_words")
    s.take(0, Limit(60, 1, 1000), 59)
    s.take(333, Limit(60, 60, 60000))
    s.take(666, Limit(60, 3600, 3600000))
    for name, a, b in (("large_products", Limit(28500, 99991, TEN_YEARS_MS - 7), Limit(28000, 99989, TEN_YEARS_MS - 11)),
                       ("units_finer", Limit(10, 3, 7), Limit(9, 7919, 104729 * 1000)),
                       ("units_coarser", Limit(9, 7919, 104729 * 1000), Limit(10, 3, 7)),
                       ("nearly_full", Limit(1000, 1, 1000), Limit(999, 1, 1001))):
        s = Scenario(rows, name)
        s.take(0, a, a.capacity)
        for i in range(1, 12):
            now = i * math.ceil(a.full_ms() / 29) + i
            s.take(now, b if i % 2 else a, 1)
            s.peek(now, a if i % 2 else b, 1)
    s = Scenario(rows, "cut_then_converted")
    s.take(10**9, Limit(10, 1, 1000), 10)
    s.take(5, Limit(20, 1, 500))
    s.take(505, Limit(20, 1, 500))


def several(rows):
    """Several limits in one call, all or nothing, and which of them decides."""
    s = Scenario(rows, "all_or_nothing")
    minute, half_hour = Limit(10, 10, 60000), Limit(30, 30, 1800000)
    for now in (0, 60000):
        for _ in range(31):
            s.call("take", now, ("minute", minute, 1), ("half_hour", half_hour, 1))
    s = Scenario(rows, "longest_wait")
    s.call("take", 0, ("a", Limit(1, 1, 1000), 1), ("b", Limit(1, 1, 3000), 1), ("c", Limit(5, 1, 1000), 1))
    s.call("take", 500, ("a", Limit(1, 1, 1000), 1), ("b", Limit(1, 1, 3000), 1), ("c", Limit(5, 1, 1000), 1))
    s.call("take", 500, ("c", Limit(5, 1, 1000), 1), ("a", Limit(1, 1, 1000), 1))
    s.call("take", 3000, ("c", Limit(5, 1, 1000), 6), ("b", Limit(1, 1, 3000), 1))
    s.call("peek", 3000, ("b", Limit(1, 1, 3000), 1), ("a", Limit(1, 1, 1000), 1))
    s = Scenario(rows, "ties")
    s.call("take", 0, ("a", Limit(5, 1, 1000), 1), ("b", Limit(5, 1, 2000), 1), ("c", Limit(5, 1, 2000), 1))
    s.call("take", 0, ("a", Limit(5, 1, 1000), 4), ("b", Limit(5, 1, 2000), 4), ("c", Limit(5, 1, 2000), 4))
    s.call("take", 0, ("b", Limit(5, 1, 2000), 1), ("c", Limit(5, 1, 2000), 1), ("a", Limit(5, 1, 1000), 0))
    s.call("take", 0, ("a", Limit(5, 1, 1000), 9), ("b", Limit(5, 1, 2000), 7))
    s = Scenario(rows, "a_denial_converts_all")
    s.call("take", 0, ("a", Limit(5, 1, 1000), 2), ("b", Limit(1, 1, 9000), 1), ("c", Limit(9, 1, 1000), 3))
    s.call("take", 100, ("a", Limit(5, 1, 7000), 1), ("b", Limit(1, 1, 9000), 1), ("c", Limit(9, 1, 3000), 0))
    s.call("peek", 1100, ("a", Limit(5, 1, 1000), 1), ("c", Limit(9, 1, 1000), 1))
    draw = random.Random(20240229)
    limits = [Limit(10, 1, 1000), Limit(3, 7, 1000), Limit(100, 100, 60000), Limit(4, 1, 20000)]
    s = Scenario(rows, "mixed")
    now = 1_700_000_000_000
    for _ in range(150):
        now += draw.choice((0, 0, 1, 37, 400, 1000, 5000, -3, -900))
        chosen = draw.sample(range(4), draw.randint(1, 4))
        s.call(draw.choice(("take", "take", "take", "peek")), now,
               *((f"b{i}", limits[i], draw.randint(0, limits[i].capacity // draw.choice((1, 2, 3)))) for i in chosen))


for make in (rates, bounds, clock, change, several):
    lines = []
    make(lines)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), make.__name__ + ".csv")
    with open(path, "w", encoding="ascii") as out:
        out.write("# " + make.__doc__ + "\n" + HEADER + COLUMNS + "\n" + "\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} rows")
