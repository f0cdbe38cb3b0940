"""Processes that fight for a few keys, servers that fail meanwhile, and the history of it all."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from celery_redlock import LockHeld, QuorumUnreachable, Redlock
from celery_redlock.testing import Server

TTL = 1.5
KEYS = ["a", "b", "c"]
PROCESSES = 6


class Turn(NamedTuple):
    """A lease as its holder saw it, from its grant to its release, on the clock of this machine."""

    key: str
    start: float
    end: float
    fence: int
    lost: bool


Turns: TypeAlias = "multiprocessing.queues.Queue[Turn]"


def fight(urls: Sequence[str], seed: int, seconds: float, turns: Turns) -> None:
    """Mostly short turns; some so long that only the heartbeat keeps the lock."""
    dice = random.Random(seed)
    redlock = Redlock(urls, ttl=TTL, restart_guard=TTL, node_timeout=0.3)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with redlock.lock(dice.choice(KEYS), wait=2) as lease:
                start = time.monotonic()
                time.sleep(dice.choice([0, 0.001, 0.005, 0.02]) if dice.random() < 0.99 else 2 * TTL)
                lost, end = lease.lost, time.monotonic()
            turns.put(Turn(lease.key, start, end, lease.fence, lost))
        except (LockHeld, QuorumUnreachable):
            pass


def harass(servers: Sequence[Server], dice: random.Random, seconds: float) -> int:
    """Kill, restart empty and freeze, but never touch a third server before two are sound again."""
    sound_at = dict.fromkeys(range(len(servers)), 0.0)
    faults, deadline = 0, time.monotonic() + seconds
    while (now := time.monotonic()) < deadline:
        unsound = [index for index, at in sound_at.items() if at > now]
        sound = [index for index in sound_at if index not in unsound]
        if len(unsound) < 2:
            index = dice.choice(sound)
            _hurt(servers[index], dice)
            faults += 1
            sound_at[index] = time.monotonic() + TTL + 2  # the guard, and a whole second of doubt
        time.sleep(dice.uniform(0.05, 0.5))
    return faults


def _hurt(server: Server, dice: random.Random) -> None:
    if dice.random() < 0.5:
        server.restart_empty()
    else:
        server.freeze()
        time.sleep(dice.uniform(0.1, 0.8))
        server.thaw()


def run(servers: Sequence[Server], seed: int, seconds: float) -> tuple[list[Turn], int]:
    """The turns of all processes, and how many faults there were."""
    context = multiprocessing.get_context("spawn")
    turns: Turns = context.Queue()
    urls = [server.url for server in servers]
    fighters = [
        context.Process(target=fight, args=(urls, seed + number, seconds, turns), daemon=True)
        for number in range(PROCESSES)
    ]
    for fighter in fighters:
        fighter.start()
    faults = harass(servers, random.Random(seed), seconds)
    history = list(_drain(turns, fighters))
    for fighter in fighters:
        fighter.join(10)
        assert fighter.exitcode == 0
    return history, faults


def _drain(turns: Turns, fighters: Sequence[multiprocessing.process.BaseProcess]) -> Iterator[Turn]:
    """Until all are done: a process does not end before its turns have been read."""
    while True:
        alive = any(fighter.is_alive() for fighter in fighters)
        try:
            yield turns.get(timeout=0.2)
        except queue.Empty:
            if not alive:
                return


def violations(history: Sequence[Turn]) -> list[str]:
    """Every pair of turns of one key that overlapped unnoticed, or whose fences went back."""
    found = []
    ordered = sorted(history, key=lambda turn: (turn.key, turn.start))
    for earlier, later in itertools.pairwise(ordered):
        if earlier.key != later.key:
            continue
        if later.start < earlier.end and not earlier.lost:
            found.append(f"at once: {earlier} {later}")
        if later.fence <= earlier.fence:
            found.append(f"fence: {earlier} {later}")
    return found
