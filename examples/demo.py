"""Five servers, four processes, one lock; two of the servers are killed on the way.

Watch the timeline at the end: in no column is there more than one bar. `make demo` runs it, and its
exit code is not 0 if a promise was broken.
"""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.queues
import queue
import random
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from celery_redlock import LockHeld, QuorumUnreachable, Redlock
from celery_redlock.testing import Server, servers

KEY = "the-one-key"
WORKERS = ["ann", "bob", "cyd", "dan"]
SECONDS = 8.0
KILLS = {2.5: 4, 4.5: 1}  # at this second, this server

TTL = 2.0  # so short, and the guard with it, that nobody gets bored
COLUMN = 0.1  # seconds for one letter of the timeline


class Turn(NamedTuple):
    """One worker's time with the lock, on the clock that all processes of this machine share."""

    worker: str
    start: float
    end: float
    fence: int
    lost: bool


Turns: TypeAlias = "multiprocessing.queues.Queue[Turn]"


def work(name: str, urls: Sequence[str], deadline: float, turns: Turns) -> None:
    """Take the lock, do something for a moment, give it back, again and again."""
    redlock = Redlock(urls, ttl=TTL, restart_guard=TTL, node_timeout=0.5)
    while time.monotonic() < deadline:
        try:
            with redlock.lock(KEY, wait=5) as lease:
                start = time.monotonic()
                time.sleep(random.uniform(0.05, 0.4))
                end = time.monotonic()
                lost = lease.lost
            turns.put(Turn(name, start, end, lease.fence, lost))
        except (LockHeld, QuorumUnreachable) as error:
            print(f"         {name} goes without: {error}", flush=True)
        time.sleep(random.uniform(0, 0.1))


def main() -> int:
    print(f"Starting 5 servers. They vote once they have been up for the restart guard, {TTL:g} s.")
    with servers(5) as nodes:
        wait_for_votes(nodes)
        start = time.monotonic()
        print(f"{', '.join(WORKERS)} fight for {KEY!r}, each a process of its own, for {SECONDS:g} s:\n")
        turns = fight(nodes, start)
    print_timeline(turns, start)
    return check(turns, start)


def wait_for_votes(nodes: Sequence[Server]) -> None:
    redlock = Redlock([node.url for node in nodes], ttl=TTL, restart_guard=TTL)
    redlock.acquire(KEY, wait=30).release()
    redlock.close()


def fight(nodes: Sequence[Server], start: float) -> list[Turn]:
    context = multiprocessing.get_context("spawn")
    queue_: Turns = context.Queue()
    urls = [node.url for node in nodes]
    workers = [
        context.Process(target=work, args=(name, urls, start + SECONDS, queue_), daemon=True)
        for name in WORKERS
    ]
    for worker in workers:
        worker.start()
    try:
        return watch(nodes, start, queue_)
    finally:
        for worker in workers:
            worker.join(10)
            worker.terminate()
            worker.join()
            assert worker.exitcode == 0, f"a worker ended with {worker.exitcode}"


def watch(nodes: Sequence[Server], start: float, turns: Turns) -> list[Turn]:
    """Tell what happens, and kill two servers in between."""
    seen: list[Turn] = []
    kills = dict(KILLS)
    while (now := time.monotonic() - start) < SECONDS + 1:
        for second in [second for second in kills if second <= now]:
            index = kills.pop(second)
            nodes[index].kill()
            print(f"{now:5.2f} s  *** server {index + 1} is killed ***", flush=True)
        try:
            turn = turns.get(timeout=0.05)
        except queue.Empty:
            continue
        seen.append(turn)
        at, held = turn.start - start, turn.end - turn.start
        print(f"{at:5.2f} s  {turn.worker} held it for {held:.2f} s, fence {turn.fence}", flush=True)
    return sorted(seen, key=lambda turn: turn.start)


def print_timeline(turns: Sequence[Turn], start: float) -> None:
    width = int(SECONDS / COLUMN)
    print("\n          " + "".join(f"{second:<10d}" for second in range(int(SECONDS))) + " seconds")
    for name in WORKERS:
        bar = [" "] * width
        for turn in turns:
            if turn.worker == name:
                mark(bar, turn.start - start, turn.end - start, "#")
        print(f"{name:8}  {''.join(bar)}")
    for number in range(1, 6):
        end = next((second for second, index in KILLS.items() if index + 1 == number), SECONDS)
        bar = [" "] * width
        mark(bar, 0, end, ".")
        print(f"server {number}  {''.join(bar).rstrip()}{'' if end == SECONDS else 'X'}")


def mark(bar: list[str], start: float, end: float, letter: str) -> None:
    """A column belongs to whoever has the lock at its beginning."""
    for column in range(len(bar)):
        if start <= column * COLUMN < end:
            bar[column] = letter


def check(turns: Sequence[Turn], start: float) -> int:
    """The promises, one by one; 0 if all were kept."""
    pairs = list(itertools.pairwise(turns))
    overlaps = sum(later.start < earlier.end for earlier, later in pairs)
    back = sum(later.fence <= earlier.fence for earlier, later in pairs)
    after = sum(turn.start - start > max(KILLS) for turn in turns)
    print(f"\n{len(turns)} turns, {after} of them after the second server was killed.")
    print(f"Two at once: {overlaps}. Fence not larger than the one before: {back}.")
    kept = not overlaps and not back and after > 0 and not any(turn.lost for turn in turns)
    print("Every promise was kept." if kept else "A PROMISE WAS BROKEN.")
    return 0 if kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
