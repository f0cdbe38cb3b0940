"""Four workers, ten keys, five hundred tasks, and lock nodes that die on the way: the promise itself."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from pytest_celery import CeleryTestCluster

from celery_redlock import Redlock

from ..waiting import wait_until
from . import shop
from .surroundings import POOLS
from .witness import Witness

TASKS, KEYS, WORKERS = 500, 10, 4

#: How many of the tasks are done when the first lock node is killed, when the second, and when both
#: are restarted, empty.
KILLS = (100, 150)
RESTARTS = 300


@pytest.mark.timeout(180)
@pytest.mark.pools(*POOLS)
def test_no_two_bodies_of_one_key_overlap_and_none_is_lost(
    pool: str, start_nodes: Any, start_worker: Any, history: Any
) -> None:
    nodes = start_nodes(5)
    wait_out_the_guard(nodes)
    for _ in range(WORKERS):
        start_worker(pool=pool, concurrency=4, nodes=nodes, env={"SHOP_TTL": "2", "SHOP_GUARD": "2"})
    witness = Witness(history, nodes, parties=1)
    rng = random.Random(1)
    results = [
        shop.brief.delay(f"key-{number % KEYS}", number, rng.uniform(0, 0.02)) for number in range(TASKS)
    ]
    disturb(nodes, history)
    wait_for_tasks(history, TASKS)
    states = [result.state for result in results]
    assert set(states) == {"SUCCESS"}, "a task did not end as it should"
    check(witness)
    wait_until(lambda: not witness.held(), 10)


def wait_out_the_guard(nodes: CeleryTestCluster) -> None:
    """Servers that have just started do not vote yet."""
    redlock = Redlock([node.url for node in nodes], ttl=2, restart_guard=2)
    redlock.acquire("they vote", wait=20).release()
    redlock.close()


def disturb(nodes: CeleryTestCluster, history: Any) -> None:
    for kill, node in zip(KILLS, nodes[:2], strict=True):
        wait_for_tasks(history, kill)
        node.kill()
    wait_for_tasks(history, RESTARTS)
    for node in nodes[:2]:
        node.restart()


def wait_for_tasks(history: Any, number: int) -> None:
    wait_until(lambda: history.llen("done") >= number, 120)


def check(witness: Witness) -> None:
    """From the history: each body's way in and way out, by key, in the order in which they happened."""
    notes = [note.split() for note in witness.notes()]
    ran = [number for way, _, number, _ in notes if way == "in"]
    assert sorted(map(int, ran)) == list(range(TASKS)), "a task was lost, or ran twice"
    for key in range(KEYS):
        mine = [note for note in notes if note[1] == f"key-{key}"]
        ways = [way for way, *_ in mine]
        assert ways == ["in", "out"] * (len(mine) // 2), f"two bodies of key-{key} at once"
        fences = [int(fence) for way, _, _, fence in mine if way == "in"]
        assert all(a < b for a, b in itertools.pairwise(fences)), "a fence that does not grow"
