"""A program that is interrupted all the time, at any instruction: `-m tests.unit.interrupted PLACE`.

In a process of its own, since an error that comes too late would hit whatever runs there. It prints how
often a body was hit, and fails if anything else was.
"""

from __future__ import annotations

import random
import sys
import threading
import time

from celery_redlock import LeaseLost
from celery_redlock import interrupt as interrupt_module
from celery_redlock.interrupt import interrupt

ROUNDS = 400
LOST = LeaseLost("gone", "key", "taken")

# At once, and soon again; then less and less often, or nobody would ever come to an end.
interrupt_module.FIRST_PAUSE = 0.0003
interrupt_module.LONGEST_PAUSE = 0.1
sys.setswitchinterval(1e-5)


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def struck(seconds: float, swallow: bool) -> bool:
    """As `Hold.run` does it: arm, run a body, disarm; and once more, for what came just before that."""
    this = interrupt()
    begun = threading.Event()

    def strike() -> None:
        begun.wait()
        this.strike(LOST)

    striker = threading.Thread(target=strike)
    striker.start()
    this.arm()
    hit = False
    try:
        try:
            begun.set()
            try:
                spin(seconds)
            except LeaseLost:
                hit = True
                if swallow:
                    spin(seconds)
        finally:
            this.disarm()
    except LeaseLost:
        hit = True
        this.disarm()
    striker.join()
    return hit


def rounds() -> None:
    hits = 0
    for number in range(ROUNDS):
        hits += struck(random.uniform(0, 0.001), swallow=number % 2 == 0)
        spin(0.0003)  # whatever comes here, comes too late
    print(hits)


if __name__ == "__main__":
    if sys.argv[1] == "main":
        rounds()
    else:
        thread = threading.Thread(target=rounds)
        thread.start()
        thread.join()
