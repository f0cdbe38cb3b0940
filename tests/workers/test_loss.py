"""A running task whose lock is lost is told in time; and stopped, if it asks for that (T11)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from pytest_celery import CeleryTestCluster, CeleryTestSetup

from celery_redlock import LeaseLost

from . import shop
from .surroundings import POOLS
from .witness import Witness

pytestmark = pytest.mark.pools(*POOLS)


class TestAMajorityThatFreezes:
    @pytest.fixture
    def nodes(self, start_nodes: Any, start_worker: Any, pool: str) -> CeleryTestCluster:
        nodes = start_nodes(3)
        self.worker = start_worker(pool=pool, nodes=nodes, env={"SHOP_TTL": "1.5"})
        return nodes

    @pytest.fixture
    def witness(self, history: Any, nodes: CeleryTestCluster, pool: str) -> Witness:
        return Witness(history, nodes, parties=1 if pool == "solo" else 2)

    def test_is_told_to_the_body_before_the_lease_ends(
        self, nodes: CeleryTestCluster, witness: Witness
    ) -> None:
        result = shop.warned.delay("a")
        witness.sees("in a")
        for node in nodes[:2]:
            node.pause()
        assert result.get(timeout=15) == "expired in time"
        self.worker.wait_for_log(f"lost the lease of task {result.id}", timeout=5)
        for node in nodes[:2]:
            node.unpause()
        witness.all_is_free()

    def test_stops_the_body_before_the_lease_ends(
        self, nodes: CeleryTestCluster, witness: Witness, pool: str
    ) -> None:
        result = shop.interrupted.delay("a")
        witness.sees("in a")
        for node in nodes[:2]:
            node.pause()
        with pytest.raises(LeaseLost, match="its time ran out") as caught:
            result.get(timeout=15)
        assert caught.value.reason == "expired"
        assert result.state == "FAILURE"
        assert "out a in time, caught 1" in witness.seen()
        for node in nodes[:2]:
            node.unpause()
        witness.all_is_free()
        assert shop.work.delay("a").get(timeout=10)


def test_a_body_that_swallows_the_error_gets_it_again(
    celery_setup: CeleryTestSetup, witness: Witness
) -> None:
    result = shop.interrupted.delay("a", swallow=3)
    witness.sees("in a")
    taken(shop.interrupted, "a")
    with pytest.raises(LeaseLost):
        result.get(timeout=15)
    assert any(note.endswith("caught 4") for note in witness.seen())


def test_nothing_is_raised_once_the_body_has_ended(
    celery_setup: CeleryTestSetup, witness: Witness
) -> None:
    """It ends by itself, at about the moment when it is interrupted: again and again."""
    for number in range(20):
        result = shop.closely.delay(f"a{number}", 0.01 * (number % 5))
        result.get(timeout=10, propagate=False)
        assert result.state == "SUCCESS" or isinstance(result.result, LeaseLost), result.result
    assert "Traceback" not in celery_setup.worker.logs().replace("celery_redlock.errors.LeaseLost", "")
    witness.all_is_free()


def test_the_tasks_own_retry_is_not_interrupted(celery_setup: CeleryTestSetup) -> None:
    assert shop.coming_back.delay("a").get(timeout=15) == 1


def test_a_body_that_goes_on_because_it_cannot_retry_is_interrupted_again(
    celery_setup: CeleryTestSetup, witness: Witness
) -> None:
    with pytest.raises(LeaseLost):
        shop.going_on.delay("a").get(timeout=15)
    assert "goes on a" in witness.seen()


@pytest.mark.pools("prefork", "gevent")
def test_a_loss_is_signalled_and_seen_by_monitors(
    celery_setup: CeleryTestSetup, witness: Witness
) -> None:
    events: list[dict[str, Any]] = []
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"task-redlock-lost": events.append})
        with receiver.consumer_context(wakeup=False) as (own, _, _):
            with contextlib.suppress(TimeoutError):
                own.drain_events(timeout=0.1)  # it subscribes when it first looks
            result = shop.warned.delay("a")
            witness.sees("in a")
            taken(shop.warned, "a")
            while not events:
                own.drain_events(timeout=10)
            result.get(timeout=10)
    assert events[0]["uuid"] == result.id
    assert events[0]["reason"] == "taken"
    witness.sees(f"signal {result.id} taken")


def taken(task: Any, *args: Any) -> None:
    """The lock goes to someone else, behind its holder's back."""
    assert task.unlock(*args) is not None
    task.redlock.acquire(task._key.of(args, {}), ttl=1.5)
