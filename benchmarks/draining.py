"""What a lock adds to a task: a solo worker drains a queue of tasks that do nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from celery_redlock.testing.servers import Server, servers

from .drained import FIVE_NODES, ONCE, ONE_NODE, PLAIN, SINGLETON
from .measure import progress
from .table import ms, show

TASKS = 3_000
REPEATS = 4

#: Seconds that it may take to send all tasks, or to run them.
TIMEOUT = 60.0

#: Each contestant, how many lock nodes it has besides the broker, and what to know about its figures.
CONTESTANTS = {
    PLAIN: (0, ""),
    ONE_NODE: (1, ""),
    FIVE_NODES: (5, ""),
    ONCE: (0, "locks when sent; unlocks when run"),
    SINGLETON: (0, "locks when sent; unlocks when run"),
}


class Seconds(NamedTuple):
    """All tasks of one repeat."""

    sending: float
    running: float


Repeats = dict[str, list[Seconds]]


def draining() -> None:
    repeats: Repeats = {name: [] for name in CONTESTANTS}
    with servers(5) as nodes:
        for number in range(1, REPEATS + 1):
            progress(f"a queue of {TASKS} tasks, {number} of {REPEATS}")
            for name, (count, _) in CONTESTANTS.items():
                repeats[name].append(_fill_and_drain(name, nodes[:count]))
    head = ["", "sent in ms", "run in ms", "× plain", "by repeat", "both × plain", "by repeat", ""]
    rows = [_row(name, repeats) for name in CONTESTANTS]
    show(
        f"a task that does nothing, {TASKS} in the queue of a solo worker ({REPEATS} repeats)",
        head,
        rows,
    )


def _fill_and_drain(name: str, nodes: Sequence[Server]) -> Seconds:
    with servers(1) as [broker]:
        places = {"DRAINED_BROKER": broker.url, "DRAINED_NODES": " ".join(node.url for node in nodes)}
        return Seconds(_timed("fill", name, places), _timed("drain", name, places))


def _timed(what: str, name: str, places: dict[str, str]) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.drained", what, name, str(TASKS)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT, env={**os.environ, **places}
    )
    return float(done.stdout)


def _row(name: str, repeats: Repeats) -> list[str]:
    own, plain = repeats[name], repeats[PLAIN]
    sending, running = (
        ms(statistics.median(seconds) * 1000 / TASKS) for seconds in zip(*own, strict=True)
    )
    run = [mine.running / theirs.running for mine, theirs in zip(own, plain, strict=True)]
    both = [sum(mine) / sum(theirs) for mine, theirs in zip(own, plain, strict=True)]
    return [name, sending, running, *_spread(run), *_spread(both), CONTESTANTS[name][1]]


def _spread(ratios: Sequence[float]) -> list[str]:
    """To the plain task of the same repeat: the median, and the lowest and the highest."""
    return [f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} – {max(ratios):.2f}"]
