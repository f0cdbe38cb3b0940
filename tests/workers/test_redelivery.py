"""A message that the broker delivers twice neither runs twice at once nor is lost (T7)."""

from __future__ import annotations

import os
import signal
from typing import Any

import celery
import pytest

from ..waiting import wait_until
from . import shop
from .nodes import Worker
from .witness import Witness

#: Messages are acknowledged late, and those of a lost worker are rejected.
LATE = {"SHOP_ACKS_LATE": "1"}


def children(worker: Worker) -> list[int]:
    """The processes of its pool."""
    stats: Any = shop.app.control.inspect([worker.hostname()], timeout=5).stats()
    return list(stats[worker.hostname()]["pool"]["processes"])


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="its kombu looks every 100 s, and cannot be told")
@pytest.mark.parametrize("task", [shop.work, shop.skipping, shop.failing])
def test_after_the_visibility_timeout_the_copy_waits_for_the_original(
    task: Any, start_worker: Any, witness: Witness
) -> None:
    """The original runs for longer than Redis waits for its acknowledgement."""
    workers = [start_worker(env={**LATE, "SHOP_VISIBILITY": "1"}) for _ in range(2)]
    result = task.delay("a", "go")
    witness.sees("in a")
    wait_until(
        lambda: any("tries again" in worker.logs() for worker in workers), 25
    )  # the copy has come
    witness.says("go")
    first = result.get(timeout=10)
    witness.says("go")
    witness.sees("in a", times=2)  # at least once is what late acks promise: the copy runs, afterwards
    witness.sees("out a", times=2)
    assert [note.split()[0] for note in witness.notes()][:4] == ["in", "out", "in", "out"]
    assert witness.fences()[0] == first < witness.fences()[1]


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
@pytest.mark.parametrize("task", [shop.work, shop.skipping, shop.failing])
def test_after_its_child_was_killed_the_task_runs_again(
    task: Any, start_worker: Any, witness: Witness, broker: str
) -> None:
    """It comes back at once, while the dead one's lock still has time to live."""
    worker = start_worker(env=LATE, concurrency=1)
    result = task.delay("a", "go")
    witness.sees("in a")
    os.kill(children(worker)[0], signal.SIGKILL)
    witness.sees("in a", times=2, seconds=shop.TTL + 4)
    witness.says("go")
    assert result.get(timeout=10) == witness.fences()[1] > witness.fences()[0]
    wait_until(lambda: not witness.held())


@pytest.mark.parametrize("broker", ["rabbitmq"])
@pytest.mark.parametrize("task", [shop.work, shop.skipping])
def test_after_its_worker_was_killed_the_task_runs_elsewhere(
    task: Any, start_worker: Any, witness: Witness, broker: str
) -> None:
    first = start_worker(env=LATE)
    result = task.delay("a", "go")
    witness.sees("in a")
    start_worker(env=LATE)
    first.kill()
    witness.sees("in a", times=2, seconds=shop.TTL + 10)
    witness.says("go")
    assert result.get(timeout=10) == witness.fences()[1]
