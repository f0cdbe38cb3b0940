"""What other locks for Celery tasks got wrong, or stumbled over."""

from __future__ import annotations

import datetime
import decimal
import time
import uuid
from typing import Any

import pytest
from celery import chain
from celery.exceptions import TaskRevokedError
from pytest_celery import CeleryTestSetup

from celery_redlock import LockHeld

from ..waiting import wait_until
from . import shop
from .surroundings import POOLS
from .witness import Witness


@pytest.mark.pools(*POOLS)
@pytest.mark.parametrize("task", [shop.skipping, shop.failing])
def test_a_refused_task_leaves_the_holders_lock_alone(
    task: Any, start_worker: Any, witness: Witness, pool: str
) -> None:
    start_worker(pool=pool)
    if pool == "solo":
        start_worker(pool=pool)
    first = task.delay("a", "go")
    witness.sees("in a")
    with pytest.raises((TaskRevokedError, LockHeld)):
        task.delay("a").get(timeout=10)
    assert len(witness.held()) == 1
    holder = task.lock_info("a")
    assert holder is not None
    assert holder.task_id == first.id
    witness.says("go")
    first.get(timeout=10)


@pytest.mark.parametrize("eager_locks", [False, True])
def test_an_eager_call_does_not_free_the_lock_of_another_run(
    eager_locks: bool, celery_setup: CeleryTestSetup, witness: Witness
) -> None:
    first = shop.lasting.delay("a", "go")
    witness.sees("in a")
    shop.app.conf.redlock_eager = eager_locks
    try:
        result = shop.lasting.apply(args=["a"])
        assert isinstance(result.result, LockHeld) == eager_locks
    finally:
        shop.app.conf.redlock_eager = False
    assert len(witness.held()) == 1
    witness.says("go")
    first.get(timeout=10)


@pytest.mark.pools(*POOLS)
def test_bodies_that_are_longer_than_the_ttl_do_not_overlap(
    pool: str, start_worker: Any, witness: Witness
) -> None:
    """The TTL is half a second, which is also less than the whole seconds that some count in."""
    for _ in range(2):
        start_worker(pool=pool, env={"SHOP_TTL": "0.5"})
    results = [shop.waiting.delay("a", f"go-{number}") for number in range(2)]
    witness.sees("in a")
    name = witness.held().pop()
    assert witness.nodes[0].client.pttl(name) <= 500
    time.sleep(1.5)  # three TTLs: time itself is what is to pass
    assert witness.seen() == ["in a"]
    for number in range(2):
        witness.says(f"go-{number}")
    assert len({result.get(timeout=10) for result in results}) == 2
    assert witness.seen() == ["in a", "out a", "in a", "out a"]


@pytest.mark.pools("prefork", "threads", "gevent", "eventlet")
def test_each_run_gives_back_its_own_lock(celery_setup: CeleryTestSetup, witness: Witness) -> None:
    """Threads and greenlets share the task itself."""
    first, second = shop.work.delay("a", "go a"), shop.work.delay("b", "go b")
    witness.sees("in a")
    witness.sees("in b")
    witness.says("go a")
    first.get(timeout=10)
    wait_until(lambda: len(witness.held()) == 1)
    holder = shop.work.lock_info("b")
    assert holder is not None
    assert holder.task_id == second.id
    witness.says("go b")
    second.get(timeout=10)
    witness.all_is_free()


class TestTheKeyOfWhatArrives:
    def test_is_one_for_every_way_to_write_a_call(self, celery_setup: CeleryTestSetup) -> None:
        task = shop.by_signature
        ways = [
            task.delay(1),
            task.delay(x=1),
            task.delay(1, 2),
            task.delay(y=2, x=1),
            task.apply_async((1,), serializer="yaml"),
            task.apply_async((1,), serializer="msgpack"),
            shop.app.send_task(task.name, kwargs={"x": 1, "y": 2}),
            chain(shop.add.s(0, 1), task.s()).apply_async(),
        ]
        assert len({way.get(timeout=10) for way in ways}) == 1

    @pytest.mark.parametrize(
        "value",
        [
            (1, (2, 3)),
            {1: "a", 9: "b", 10: "c"},
            datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc),
            uuid.UUID(int=7),
            decimal.Decimal("1.10"),
            {"a": "1_b-2"},
        ],
    )
    def test_is_the_callers_too(self, value: Any, celery_setup: CeleryTestSetup) -> None:
        expected = shop.by_signature._key.of((value,), {})
        assert shop.by_signature.delay(value).get(timeout=10) == expected

    def test_differs_where_the_arguments_do(self, celery_setup: CeleryTestSetup) -> None:
        calls = [shop.by_signature.delay(value) for value in (1, "1", 1.0, True, None, [1], {"1": 1})]
        assert len({call.get(timeout=10) for call in calls}) == len(calls)

    @pytest.mark.parametrize("task", [shop.by_template, shop.by_callable])
    def test_may_be_made_by_the_user(self, task: Any, celery_setup: CeleryTestSetup) -> None:
        keys = [
            task.delay({"customer": customer, "number": number}).get(timeout=10)
            for customer, number in ((1, 1), (1, 2), (2, 1))
        ]
        assert keys[0] == keys[1] != keys[2]


def test_a_tracing_library_that_nests_headers(start_worker: Any, witness: Witness) -> None:
    """Sentry puts the headers of what is published one level deeper: the count of tries survives."""
    start_worker(env={"SHOP_SENTRY": "1"})
    blocking = shop.impatient.delay("a", "go")
    witness.sees("in a")
    with pytest.raises(LockHeld, match="2 tries"):
        shop.impatient.delay("a").get(timeout=15)
    witness.says("go")
    blocking.get(timeout=10)


def test_headers_that_were_copied_from_another_task_do_not_count(
    celery_setup: CeleryTestSetup, witness: Witness
) -> None:
    forged = {"v": 1, "task": shop.impatient.name, "id": "another", "tries": [[9, 1.0], [9, 1.0]]}
    first = shop.impatient.delay("a", "go")
    witness.sees("in a")
    second = shop.impatient.apply_async(("a",), headers={"redlock": forged})
    wait_until(lambda: second.state == "RETRY")
    witness.says("go")
    assert first.get(timeout=10) < second.get(timeout=10)


def test_an_app_whose_tasks_are_all_locked(start_worker: Any, witness: Witness) -> None:
    start_worker(env={"SHOP_TASK_CLS": "celery_redlock:LockedTask"})
    assert shop.app.send_task("tests.workers.shop.pid").get(timeout=10) > 0
    assert any("tests.workers.shop.pid:" in key for key in witness.nodes[0].client.keys("*:fence"))
