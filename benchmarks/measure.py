"""Take times, of several contestants in turn: what else goes on in the machine hits all alike."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

Attempt = Callable[[], object]


class Plan(NamedTuple):
    """So many rounds; in each, every contestant has a block of attempts, bounded by number and time."""

    rounds: int
    attempts: int
    seconds: float = 1.0
    pause: float = 0.0  # after each block, for what a contestant leaves running in the background
    fewer: Mapping[str, int] = {}  # attempts for some of them
    skip: int = 0  # attempts before each block that do not count, since the block before affects them


class Times:
    """Milliseconds."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        return sorted(self.samples)[int(0.99 * len(self.samples))]


def in_turn(contestants: Mapping[str, Attempt], plan: Plan) -> dict[str, Times]:
    """The times of each, after one attempt of each that does not count."""
    times = {name: Times() for name in contestants}
    for attempt in contestants.values():
        attempt()
    for _ in range(plan.rounds):
        for name in _shuffled(contestants):
            for _ in range(plan.skip):
                contestants[name]()
            _block(contestants[name], times[name], plan.fewer.get(name, plan.attempts), plan.seconds)
            time.sleep(plan.pause)
    return times


def _shuffled(names: Iterable[str]) -> list[str]:
    """Whoever comes after a certain other has a handicap, so nobody always does."""
    order = list(names)
    random.shuffle(order)
    return order


def _block(attempt: Attempt, times: Times, attempts: int, seconds: float) -> None:
    end = time.perf_counter() + seconds
    for _ in range(attempts):
        start = time.perf_counter()
        attempt()
        stop = time.perf_counter()
        times.samples.append((stop - start) * 1000)
        if stop > end:
            break


def pooled(runs: Sequence[Mapping[str, Times]]) -> dict[str, Times]:
    """All samples of several runs together."""
    together = {name: Times() for name in runs[0]}
    for run in runs:
        for name, times in run.items():
            together[name].samples += times.samples
    return together


def progress(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)
