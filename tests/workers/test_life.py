"""Whatever way a task ends, its lock is given back, and the next one runs (T1–T4)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import celery
import pytest
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded

from ..waiting import wait_until
from . import shop
from .nodes import Worker
from .surroundings import POOLS
from .witness import Witness

pytestmark = [pytest.mark.pools(*POOLS), pytest.mark.usefixtures("celery_setup")]


@pytest.fixture
def afterwards(witness: Witness) -> Callable[..., None]:
    """The lock is free, no heartbeat is left, and the next task runs."""

    def check(seconds: float = 5) -> None:
        witness.all_is_free(seconds)
        assert shop.ending.delay("a", "well").get(timeout=10) == "well"
        witness.all_is_free()

    return check


def test_the_lock_is_held_while_the_body_runs_and_no_longer(
    witness: Witness, afterwards: Callable[..., None]
) -> None:
    result = shop.work.delay("a", "go")
    witness.sees("in a")
    holder = shop.work.lock_info("a", "whatever")
    assert holder is not None
    assert holder.task_id == result.id
    assert len(witness.held()) == 1
    witness.says("go")
    assert result.get(timeout=10) == witness.fences()[0] == holder.fence
    afterwards()
    assert shop.work.lock_info("a") is None


def test_it_is_renewed_while_the_body_runs(witness: Witness, afterwards: Callable[..., None]) -> None:
    result = shop.work.delay("a", "go")
    witness.sees("in a")
    name = witness.held().pop()
    node = witness.nodes[0].client
    before = node.pttl(name)
    wait_until(lambda: node.pttl(name) > before)
    witness.says("go")
    result.get(timeout=10)
    afterwards()


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("well", "SUCCESS"),
        ("failure", "FAILURE"),
        ("retry", "SUCCESS"),
        ("retry with other arguments", "SUCCESS"),
        ("unstorable", "FAILURE"),
        ("itself", "SUCCESS"),
    ],
)
def test_every_end_of_a_body(end: str, state: str, afterwards: Callable[..., None]) -> None:
    result = shop.ending.delay("a", end)
    result.get(timeout=10, propagate=False)
    assert result.state == state
    afterwards()


@pytest.mark.parametrize("end", ["ignore", "reject", "replace"])
def test_an_end_without_a_result_of_its_own(
    end: str, witness: Witness, afterwards: Callable[..., None]
) -> None:
    shop.ending.delay("a", end)
    witness.sees(f"in a {end}")
    afterwards()


def test_autoretry(afterwards: Callable[..., None], witness: Witness) -> None:
    assert shop.retried.delay("a").get(timeout=15) == 2
    assert witness.seen() == ["in a 0", "in a 1", "in a 2"]
    afterwards()


def test_a_task_that_calls_itself_does_not_lock_itself_out(afterwards: Callable[..., None]) -> None:
    assert shop.ending.delay("a", "itself").get(timeout=10) == "inner and outer"
    afterwards()


def test_arguments_that_do_not_fit_are_the_bodys_own_error(afterwards: Callable[..., None]) -> None:
    result = shop.app.send_task(shop.ending.name, args=["a"])
    with pytest.raises(TypeError, match="end"):
        result.get(timeout=10)
    afterwards()


@pytest.mark.parametrize("task", [shop.careless, shop.loud])
def test_a_subclass_that_forgets_super_neither_loses_nor_leaks_the_lock(
    task: Any, witness: Witness, afterwards: Callable[..., None]
) -> None:
    result = task.delay("a", "go")
    witness.sees("in a")
    assert len(witness.held()) == 1
    witness.says("go")
    assert result.get(timeout=10) == witness.fences()[0]
    afterwards()


@pytest.mark.pools("prefork")
def test_a_soft_time_limit(witness: Witness, afterwards: Callable[..., None]) -> None:
    with pytest.raises(SoftTimeLimitExceeded):
        shop.softly_limited.delay("a").get(timeout=10)
    afterwards()


@pytest.mark.pools("prefork", "gevent")
def test_a_hard_time_limit(afterwards: Callable[..., None]) -> None:
    with pytest.raises(TimeLimitExceeded):
        shop.hard_limited.delay("a").get(timeout=10)
    afterwards(shop.TTL + 2)


def test_a_result_backend_that_is_down(
    pool: str, launcher: Any, start_worker: Callable[..., Worker], witness: Witness
) -> None:
    with launcher.redis(1, "results") as [results]:
        worker = start_worker(pool=pool, env={"SHOP_RESULTS": results.url})
        shop.work.delay("a", "go")
        witness.sees("in a")
        results.kill("SIGKILL")
        witness.says("go")
        witness.sees("out a")
        wait_until(lambda: not witness.held(), 15)
        shop.work.apply_async(("a",), ignore_result=True)
        witness.sees("out a", times=2)
        wait_until(lambda: not witness.held(), 15)
        assert "Traceback" in worker.logs()


@pytest.mark.pools("prefork", "gevent", "eventlet")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGQUIT", "SIGKILL"])
def test_revoked_and_terminated(
    name: str, pool: str, witness: Witness, afterwards: Callable[..., None]
) -> None:
    result = shop.work.delay("a", "never")
    witness.sees("in a")
    result.revoke(terminate=True, signal=name)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=10)
    afterwards(shop.TTL + 2)


@pytest.mark.pools("prefork")
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_child_that_ends(end: str, witness: Witness, afterwards: Callable[..., None]) -> None:
    shop.ending.delay("a", end)
    witness.sees(f"in a {end}")
    afterwards(shop.TTL + 2)


def test_a_direct_call_takes_no_lock(witness: Witness) -> None:
    assert shop.lenient("a") == "unlocked"
    assert shop.lenient.apply(args=["a"]).get() == "unlocked"
    assert not witness.held()


@pytest.mark.pools("prefork", "threads", "gevent", "solo")
@pytest.mark.parametrize("kind", ["SIGTERM", "SIGQUIT"])
def test_shutdown(kind: str, pool: str, start_worker: Callable[..., Worker], witness: Witness) -> None:
    """Warm: the task ends in peace. Cold: it is cut off (but no thread can be), and its lock is free
    within the TTL."""
    if pool == "solo" and kind == "SIGQUIT" and celery.VERSION < (5, 7):
        pytest.skip("a solo worker of older Celery does not end then")
    worker = start_worker(pool=pool)
    result = shop.work.delay("a", "go")
    witness.sees("in a")
    worker.kill(kind)
    if kind == "SIGTERM":
        worker.wait_for_log("Warm shutdown", timeout=10)
        witness.says("go")
        assert result.get(timeout=10) == witness.fences()[0]
    elif pool == "threads":
        witness.says("go")
    wait_until(lambda: worker.container.status == "exited", 15)
    wait_until(lambda: not witness.held(), shop.TTL + 2)


@pytest.mark.pools("prefork")
def test_a_child_that_is_replaced_after_some_tasks(
    start_worker: Callable[..., Worker], witness: Witness
) -> None:
    start_worker(concurrency=1, options=["--max-tasks-per-child", "1"])
    first, second = shop.work.delay("a"), shop.work.delay("a")
    assert first.get(timeout=10) < second.get(timeout=10)
    wait_until(lambda: not witness.held())


@pytest.mark.pools(*POOLS)
def test_a_killed_holder_is_followed_within_the_ttl(
    pool: str, start_worker: Callable[..., Worker], witness: Witness
) -> None:
    """The bar: TTL + 2 s."""
    first = start_worker(pool=pool)
    shop.work.delay("a", "never")
    witness.sees("in a")
    first.kill()
    killed = time.monotonic()
    start_worker(pool=pool)
    shop.waiting.delay("a")  # another task: it has a lock of its own
    next_one = shop.work.delay("a")
    witness.sees("in a", times=3, seconds=shop.TTL + 4)
    assert time.monotonic() - killed < shop.TTL + 2
    next_one.get(timeout=10)
