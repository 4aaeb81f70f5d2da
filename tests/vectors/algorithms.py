#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden vectors of every algorithm but the token bucket (make.py has that) next to this file.

Each algorithm is written from its definition, in fractions and lists; waits are found by trying instants. Nothing here
is shared with the library, nor with the model in tests/model_window.c. A log is the list of its single tokens here, a
window a dictionary from the index of a window to what it gave, a leaky bucket its water at an instant.

Run once, and the CSV is committed:  python3 tests/vectors/algorithms.py
"""
import math
import os
import random
from fractions import Fraction

TOLERANCE_MS = 1000

HEADER = """\
# Made by algorithms.py; every scenario starts with full buckets.
#
# scenario          rows of one name belong together, in order; buckets of two scenarios have nothing in common
# step              rows with one number are one call, decided all or nothing; every bucket stands in it at most once
# at_ms             the time of the call in whole milliseconds; it may go back
# verb              take, or peek, which writes nothing
# bucket            which bucket of the scenario; one name is one algorithm, its numbers may change from call to call
# algorithm,capacity,refill_tokens,refill_period_ms
#                   the limit: of a window capacity and length, and refill_tokens is 0
# cost              tokens asked for
# outcome,remaining,retry_after_ms,reset_after_ms,delay_ms
#                   what this row's limit says; retry_after_ms is empty for never
# decides           1: the call's answer is this row's
"""
COLUMNS = ("scenario,step,at_ms,verb,bucket,algorithm,capacity,refill_tokens,refill_period_ms,cost,"
           "outcome,remaining,retry_after_ms,reset_after_ms,delay_ms,decides")


def first(holds, most):
    """The least r in 0 … most for which it holds, as it does for all that follow."""
    low, high = -1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Leaky:
    """Water above the drain: `water` tokens at the instant `at`."""
    name = "leaky_bucket"

    def __init__(self, capacity, tokens, period):
        self.written = (capacity, tokens, period)
        self.capacity, self.rate = capacity, Fraction(tokens, period)
        self.unit = self.rate.denominator

    def read(self, state, now):
        if state is None:
            return None, False
        water, at, old = state
        water = water - (now - at) * old.rate
        if water <= 0:
            return None, False
        moved = water > old.capacity + TOLERANCE_MS * old.rate
        if moved:
            water = Fraction(old.capacity)
        if (old.capacity, old.rate) != (self.capacity, self.rate):
            level = Fraction(math.floor((old.capacity - water) * self.unit), self.unit)
            water = min(self.capacity - level, Fraction(self.capacity))
            moved = True
            if water <= 0:
                return None, True
        return (water, now, self), moved

    def room(self, state, now):
        return self.capacity - (state[0] - (now - state[1]) * self.rate if state and
                                state[0] > (now - state[1]) * self.rate else 0)

    def charge(self, state, now, cost):
        return ((state[0] if state else 0) + cost, now, self)

    def delay(self, state, now):
        return math.ceil(state[0] / self.rate) if state else 0

    def longest(self):
        return math.ceil(self.capacity / self.rate) + TOLERANCE_MS + 1


class Windows:
    """index of a window -> tokens it gave; and the index that was reached."""

    def __init__(self, capacity, window):
        self.written = (capacity, 0, window)
        self.capacity, self.window = capacity, window

    def delay(self, state, now):
        return 0

    def longest(self):
        return 2 * self.window + TOLERANCE_MS

    def index(self, state, now):
        return max(now // self.window, state[1]) if state else now // self.window

    def read(self, state, now):
        if state is None:
            return None, False
        gave, reached, old = state
        moved = reached * old.window > now + TOLERANCE_MS
        if moved:
            shift = reached - now // old.window
            gave, reached = {i - shift: n for i, n in gave.items()}, now // old.window
        here = max(now // old.window, reached)
        gave = {i: n for i, n in gave.items() if here - self.back <= i <= here and n > 0}
        if not gave:
            return None, False
        if (old.capacity, old.window) != (self.capacity, self.window):
            at = max(now, reached * old.window) // self.window
            gave = {at + i - here: min(n, self.capacity) for i, n in gave.items()}
            return (gave, at, self), True
        return (gave, here, self), moved

    def charge(self, state, now, cost):
        here = self.index(state, now)
        gave = dict(state[0]) if state else {}
        gave[here] = gave.get(here, 0) + cost
        return (gave, here, self)


class Fixed(Windows):
    name, back = "fixed_window", 0

    def room(self, state, now):
        return self.capacity - (state[0].get(self.index(state, now), 0) if state else 0)


class Sliding(Windows):
    name, back = "sliding_window", 1

    def room(self, state, now):
        if not state:
            return self.capacity
        here = self.index(state, now)
        into = max(0, now - here * self.window)
        weight = Fraction(self.window - into, self.window)
        return self.capacity - state[0].get(here, 0) - state[0].get(here - 1, 0) * weight


class Log(Windows):
    """The instants of single tokens, in order."""
    name = "sliding_log"

    def read(self, state, now):
        if state is None:
            return None, False
        tokens, old = state
        moved = max(tokens) > now + TOLERANCE_MS
        tokens = sorted(now if t > now + TOLERANCE_MS else t for t in tokens)
        tokens = [t for t in tokens if t > now - old.window]
        if not tokens:
            return None, False
        if (old.capacity, old.window) != (self.capacity, self.window):
            tokens = [t for t in tokens if t > now - self.window][-self.capacity:]
            return ((tokens, self) if tokens else None), True
        return (tokens, self), moved

    def room(self, state, now):
        return self.capacity - (sum(t > now - self.window for t in state[0]) if state else 0)

    def charge(self, state, now, cost):
        tokens = list(state[0]) if state else []
        return (tokens + [max([now] + tokens[-1:])] * cost, self)


class Scenario:
    def __init__(self, rows, name):
        self.rows, self.name, self.step, self.buckets = rows, name, 0, {}

    def call(self, verb, now, *requests):
        """requests: (bucket, limit, cost). Returns the deciding row's answer."""
        found = [limit.read(self.buckets.get(bucket), now) for bucket, limit, _ in requests]
        never = any(cost > limit.capacity for _, limit, cost in requests)
        fits = [limit.room(state, now) >= cost for (state, _), (_, limit, cost) in zip(found, requests)]
        charged = verb == "take" and all(fits) and not never
        answers = []
        for (state, _), (_, limit, cost) in zip(found, requests):
            outcome, retry, delay = "allowed", 0, limit.delay(state, now)
            if cost > limit.capacity:
                outcome, retry, delay = "never", None, 0
            elif limit.room(state, now) < cost:
                outcome, delay = "denied", 0
                retry = first(lambda r: limit.room(state, now + r) >= cost, limit.longest())
            after = limit.charge(state, now, cost) if charged and cost > 0 else state
            reset = first(lambda r: limit.room(after, now + r) >= limit.capacity, limit.longest())
            answers.append((outcome, max(0, math.floor(limit.room(after, now))), retry, reset, delay))
        order = {"never": 0, "denied": 1, "allowed": 2}

        def strictness(i):
            outcome, remaining, retry, reset, _ = answers[i]
            if outcome == "allowed":
                return order[outcome], remaining, -reset, i
            return order[outcome], -(retry or 0), i

        decides = min(range(len(answers)), key=strictness)
        if verb == "take" and not never:
            for (state, moved), (bucket, limit, cost) in zip(found, requests):
                if cost > 0 and charged:
                    self.buckets[bucket] = limit.charge(state, now, cost)
                elif cost > 0 and moved:
                    self.buckets[bucket] = state
        for i, ((bucket, limit, cost), (outcome, remaining, retry, reset, delay)) in enumerate(zip(requests, answers)):
            self.rows.append(",".join(str(x) for x in (
                self.name, self.step, now, verb, bucket, limit.name, *limit.written, cost, outcome, remaining,
                "" if retry is None else retry, reset, delay, int(i == decides))))
        self.step += 1
        return answers[decides]

    def take(self, now, limit, cost=1):
        return self.call("take", now, ("a", limit, cost))

    def peek(self, now, limit, cost=1):
        return self.call("peek", now, ("a", limit, cost))


def life(rows, make, others):
    """Ordinary life, every denial at its end and 1 ms before; clocks that step; numbers that change."""
    draw = random.Random(20240229)
    for name, limit in others:
        s = Scenario(rows, name)
        now = 1_700_000_000_000 + draw.randrange(100000)
        span = limit.longest()
        for _ in range(24):
            cost = draw.choice((1, 1, 1, 2, limit.capacity, (limit.capacity + 1) // 2, 0, limit.capacity + 1))
            outcome, _, retry, _, _ = s.take(now, limit, cost)
            if outcome == "denied":
                s.peek(now + retry - 1, limit, cost)
                s.peek(now + retry, limit, cost)
            now += draw.choice((0, 0, 1, span // 100, span // 7, span // 3, span, -1, -500, -999))
    for name, steps in (("back_within_the_tolerance", (0, -1, -999, -1000, 0, 1500)),
                        ("back_past_it", (0, -1001, -1000, 0, 900)),
                        ("far_ahead_and_back", (0, 10**9, 0, 500, 1500, 4000))):
        s = Scenario(rows, name)
        limit = make(4, 2000)
        for step in steps:
            for cost in (2, 1, 3):
                s.take(10**9 + 123 + step, limit, cost)
            s.peek(10**9 + 123 + step, limit, 4)
    for name, limits in (("smaller", (make(10, 5000), make(3, 5000))), ("larger", (make(3, 5000), make(10, 5000))),
                         ("longer", (make(5, 3000), make(5, 7000))), ("shorter", (make(5, 7000), make(5, 3000))),
                         ("in_turn", (make(5, 20000), make(5, 30000)))):
        s = Scenario(rows, name)
        s.take(10**9, limits[0], limits[0].capacity)
        for i in range(1, 14):
            s.peek(10**9 + 977 * i, limits[(i + 1) % 2])
            s.take(10**9 + 977 * i, limits[i % 2])


def leaky_bucket(rows):
    make = lambda capacity, period: Leaky(capacity, capacity, period)
    life(rows, make, [("ten", Leaky(10, 1, 3000)), ("thirds", Leaky(3, 3, 1000)), ("fast", Leaky(50, 300, 7))])


def fixed_window(rows):
    life(rows, Fixed, [("minute", Fixed(5, 60000)), ("second", Fixed(1, 1000)), ("day", Fixed(10**12, 86400000)),
                       ("most", Fixed(2**53 - 1, 315360000000)), ("ms", Fixed(3, 1))])


def sliding_window(rows):
    life(rows, Sliding, [("minute", Sliding(5, 60000)), ("second", Sliding(1, 1000)), ("primes", Sliding(7919, 104729)),
                         ("most", Sliding((2**53 - 1) // 3 // 60000, 60000)), ("ms", Sliding(3, 1)),
                         ("longest", Sliding(9520, 315360000000))])


def sliding_log(rows):
    life(rows, Log, [("minute", Log(5, 60000)), ("second", Log(1, 1000)), ("odd", Log(17, 12345)), ("ms", Log(3, 1)),
                     ("thousand", Log(1000, 3600000))])


def mixed(rows):
    """Vectors of all algorithms."""
    draw = random.Random(20240301)
    s = Scenario(rows, "mixed")
    limits = {"leaky": Leaky(10, 1, 1000), "fixed": Fixed(6, 5000), "sliding": Sliding(8, 7000), "log": Log(5, 4000)}
    now = 1_700_000_000_000
    for _ in range(120):
        now += draw.choice((0, 0, 1, 37, 400, 1000, 5000, -3, -900))
        chosen = draw.sample(sorted(limits), draw.randint(1, 4))
        s.call(draw.choice(("take", "take", "take", "peek")), now,
               *((name, limits[name], draw.randint(0, 3)) for name in chosen))


def write(name, header, lines):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".csv")
    with open(path, "w", encoding="ascii") as out:
        out.write(header + "\n" + "\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} rows")


if __name__ == "__main__":
    for make in (leaky_bucket, fixed_window, sliding_window, sliding_log, mixed):
        lines = []
        make(lines)
        write(make.__name__, HEADER + COLUMNS, lines)
