#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes settle.csv: charge, refund and take up to under every algorithm, with debt where there is one.

Windows and logs are those of algorithms.py. A bucket is the water above its drain here, which a debt lets rise above the
capacity. Times go forward and numbers stay, as the other files have what happens when they do not.

Run once, and the CSV is committed:  python3 tests/vectors/settle.py
"""
import math
import random
from fractions import Fraction

from algorithms import Fixed, Log, Sliding, first, write

HEADER = """\
# Made by settle.py; every scenario starts with a full bucket and has one.
#
# scenario          rows of one name belong together, in order
# at_ms             the time of the call in whole milliseconds
# verb              take, peek, charge, refund, up_to
# algorithm,capacity,refill_tokens,refill_period_ms,debt
#                   the limit: of a window capacity and length, and refill_tokens is 0
# cost              tokens asked for; of up_to at least so many
# most              of up_to at most so many, else 0
# outcome,remaining,retry_after_ms,reset_after_ms
#                   the answer; retry_after_ms is empty for never
# granted,uncharged what up_to took, and whole tokens that were not charged, rounded up
scenario,at_ms,verb,algorithm,capacity,refill_tokens,refill_period_ms,debt,cost,most,\
outcome,remaining,retry_after_ms,reset_after_ms,granted,uncharged"""


class Water:
    """`water` tokens at the instant `at`: none is a full bucket, the capacity an empty one."""

    def __init__(self, name, capacity, tokens, period, debt):
        self.name, self.written, self.debt = name, (capacity, tokens, period), debt
        self.capacity, self.rate = capacity, Fraction(tokens, period)
        self.water, self.at = Fraction(0), 0

    def room(self, now):
        return self.capacity - max(Fraction(0), self.water - (now - self.at) * self.rate)

    def fill(self, now, tokens):
        self.water, self.at = self.capacity - self.room(now) + tokens, now

    def charge(self, now, cost):
        charged = min(Fraction(cost), self.room(now) + self.debt)
        self.fill(now, charged)
        return math.ceil(cost - charged)

    def refund(self, now, cost):
        self.fill(now, -min(Fraction(cost), self.capacity - self.room(now)))

    def longest(self):
        return math.ceil((self.capacity + self.debt) / self.rate)


class Counted:
    """A window or a log of algorithms.py with its state."""
    debt = 0

    def __init__(self, limit):
        self.limit, self.name, self.written, self.capacity = limit, limit.name, limit.written, limit.capacity
        self.state = None

    def room(self, now):
        return self.limit.room(self.limit.read(self.state, now)[0], now)

    def fill(self, now, tokens):
        if tokens > 0:
            self.state = self.limit.charge(self.limit.read(self.state, now)[0], now, tokens)

    def charge(self, now, cost):
        charged = min(cost, max(0, math.floor(self.room(now))))
        self.fill(now, charged)
        return cost - charged

    def refund(self, now, cost):
        state = self.limit.read(self.state, now)[0]
        if state is None:
            return
        if isinstance(self.limit, Log):
            tokens = state[0][:max(0, len(state[0]) - cost)]
            self.state = (tokens, self.limit) if tokens else None
            return
        here = self.limit.index(state, now)
        gave = {**state[0], here: max(0, state[0].get(here, 0) - cost)}
        self.state = (gave, here, self.limit)

    def longest(self):
        return self.limit.longest()


def call(rows, scenario, bucket, now, verb, cost, most=0):
    capacity, granted, uncharged, retry, outcome = bucket.capacity, 0, 0, 0, "allowed"
    room = bucket.room(now)
    if verb == "charge":
        uncharged = bucket.charge(now, cost)
    elif verb == "refund":
        bucket.refund(now, cost)
    elif cost > capacity:
        outcome, retry = "never", None
    elif room < cost:
        outcome = "denied"
        retry = first(lambda r: bucket.room(now + r) >= cost, bucket.longest())
    elif verb == "take":
        bucket.fill(now, cost)
    elif verb == "up_to":
        granted = min(most, math.floor(room))
        bucket.fill(now, granted)
    remaining = max(0, math.floor(bucket.room(now)))
    reset = first(lambda r: bucket.room(now + r) >= capacity, bucket.longest())
    rows.append(",".join(str(x) for x in (
        scenario, now, verb, bucket.name, *bucket.written, bucket.debt, cost, most, outcome, remaining,
        "" if retry is None else retry, reset, granted, uncharged)))
    return retry


def life(rows, scenario, bucket):
    """Everything at once, every denial looked at 1 ms before it ends and when it does."""
    draw = random.Random(scenario)
    now = 1_700_000_000_000 + draw.randrange(100000)
    span, most = bucket.longest(), bucket.capacity
    for _ in range(30):
        verb = draw.choice(("take", "take", "charge", "charge", "refund", "up_to"))
        cost = draw.choice((0, 1, 1, 2, (most + 1) // 2, most, most + 1 + bucket.debt, most + 1))
        retry = call(rows, scenario, bucket, now, verb, cost,
                     cost + draw.choice((0, 1, most)) if verb == "up_to" else 0)
        if retry:
            call(rows, scenario, bucket, now + retry - 1, "peek", cost)
            call(rows, scenario, bucket, now + retry, "peek", cost)
        now += draw.choice((0, 0, 1, span // 100, span // 7, span // 3))


if __name__ == "__main__":
    lines = []
    for scenario, bucket in (
            ("bucket", Water("token_bucket", 10, 1, 3000, 0)), ("bucket_debt", Water("token_bucket", 10, 1, 3000, 4)),
            ("bucket_thirds", Water("token_bucket", 5, 3, 1000, 20)), ("bucket_fast", Water("token_bucket", 50, 300, 7, 9)),
            ("leaky", Water("leaky_bucket", 3, 3, 1000, 0)), ("leaky_debt", Water("leaky_bucket", 10, 7, 5000, 6)),
            ("fixed", Counted(Fixed(5, 60000))), ("fixed_day", Counted(Fixed(10**12, 86400000))),
            ("sliding", Counted(Sliding(5, 60000))), ("sliding_primes", Counted(Sliding(7919, 104729))),
            ("log", Counted(Log(5, 60000))), ("log_odd", Counted(Log(17, 12345)))):
        life(lines, scenario, bucket)
    write("settle", HEADER, lines)
