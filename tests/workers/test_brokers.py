"""Brokers and result backends: all that a task's life needs works with each."""

from __future__ import annotations

from typing import Any

import pytest
from celery import group
from celery.exceptions import TaskRevokedError

from ..waiting import wait_until
from . import shop
from .surroundings import POOLS
from .witness import Witness


@pytest.mark.brokers("rabbitmq")
@pytest.mark.pools(*POOLS)
def test_a_lock_over_rabbitmq(celery_setup: Any, witness: Witness) -> None:
    results = group(shop.work.s("a") for _ in range(2)).apply_async()
    assert len(set(results.get(timeout=20))) == 2
    assert [note.split()[0] for note in witness.notes()] == ["in", "out", "in", "out"]
    witness.all_is_free()


@pytest.mark.brokers("redis", "rabbitmq")
def test_results_by_rpc(start_worker: Any, witness: Witness, broker: str) -> None:
    """`reply_to` survives a retry, and a skipped task tells the caller so."""
    start_worker(concurrency=4, env={"SHOP_RESULTS": "rpc://"})
    first = shop.work.delay("a", "go")
    witness.sees("in a")
    second = shop.work.delay("a")
    skipped = shop.skipping.delay("b", "go")
    witness.sees("in b")
    with pytest.raises(TaskRevokedError):
        shop.skipping.delay("b").get(timeout=10)
    for _ in range(2):
        witness.says("go")
    assert first.get(timeout=10) < second.get(timeout=20)
    skipped.get(timeout=10)


@pytest.mark.brokers("redis", "rabbitmq")
def test_no_results_at_all(start_worker: Any, witness: Witness, broker: str) -> None:
    worker = start_worker(concurrency=4, env={"SHOP_RESULTS": "disabled://"})
    shop.work.delay("a", "go")
    witness.sees("in a")
    shop.work.delay("a")
    shop.ending.delay("b", "failure")
    shop.skipping.delay("c", "go")
    witness.sees("in c")
    shop.skipping.delay("c")
    worker.wait_for_log("skipped task", timeout=10)
    for _ in range(2):
        witness.says("go")
    witness.sees("out a", times=2)
    wait_until(lambda: not witness.held())
    assert witness.seen().count("in c") == 1
