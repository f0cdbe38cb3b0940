"""A locked task is tested without servers: its locks are in memory, and go wrong on demand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import setup_logging

from celery_redlock import LeaseLost, LockedTask, LockHeld, QuorumUnreachable, Redlock
from celery_redlock.signals import lock_lost
from celery_redlock.testing import MemoryLocks
from celery_redlock.testing import locks as locks_module

from ..waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        yield app


@pytest.fixture
def locks(app: Celery) -> Iterator[MemoryLocks]:
    with MemoryLocks(app) as locks:
        yield locks


def echo(self: Any, number: int) -> int:
    return number


def check(self: Any, number: int) -> int:
    self.lease.check()
    return int(self.request.retries)


def take_one_more(self: Any, number: int) -> Any:
    return self.redlock.acquire("mine", task_id="7")


def declare(app: Any, body: Any = echo, **options: Any) -> Any:
    return app.task(base=LockedTask, bind=True, name="sync", shared=False, **options)(body)


def test_an_eager_call_holds_its_lock_while_it_runs(app: Celery, locks: MemoryLocks) -> None:
    def body(self: Any, number: int) -> None:
        assert locks.leases() == [self.lease]
        assert self.lock_info(number).task_id == self.request.id

    sync = declare(app, body)
    sync.apply((7,)).get()
    assert locks.leases() == []
    assert sync.lock_info(7) is None


def test_so_does_delay_where_everything_is_eager(app: Celery, locks: MemoryLocks) -> None:
    app.conf.task_always_eager = True
    assert declare(app, check).delay(7).get() == 0


@pytest.mark.parametrize("policy", [None, "retry", "wait", "fail"])
def test_a_lock_that_someone_else_holds_is_refused_in_no_time(
    app: Celery, locks: MemoryLocks, policy: str | None
) -> None:
    sync = declare(app, lock_on_conflict=policy, lock_wait=60)
    start = time.monotonic()
    with locks.held(sync, number=7):
        refused = sync.apply((7,)).result
        assert isinstance(refused, LockHeld)
        assert refused.holder is not None
        assert refused.holder.task_id == "someone-else"
        assert sync.apply((8,)).get() == 8
    assert sync.apply((7,)).get() == 7
    assert time.monotonic() - start < 5


def test_a_task_that_skips_is_skipped(app: Celery, locks: MemoryLocks) -> None:
    sync = declare(app, lock_on_conflict="skip")
    with locks.held(sync, 7):
        assert sync.apply((7,)).state == "IGNORED"


def test_leases_live_on_while_another_is_waited_for(app: Celery, locks: MemoryLocks) -> None:
    @app.task(base=LockedTask, lock_wait=60, shared=False)
    def inner() -> None: ...

    def body(self: Any, number: int) -> None:
        assert isinstance(inner.apply().result, LockHeld)
        self.lease.check()

    sync = declare(app, body, lock_ttl=0.5)
    with locks.held(inner):
        sync.apply((7,)).get()


def test_the_next_one_is_refused_and_then_no_more(app: Celery, locks: MemoryLocks) -> None:
    sync = declare(app)
    locks.refuse_next()
    locks.refuse_next()
    states = [sync.apply((number,)).state for number in range(3)]
    assert states == ["FAILURE", "FAILURE", "SUCCESS"]


def test_no_node_answers(app: Celery, locks: MemoryLocks) -> None:
    sync = declare(app)
    with locks.unreachable():
        assert isinstance(sync.apply((7,)).result, QuorumUnreachable)
    assert sync.apply((7,)).get() == 7


def test_single_nodes_can_fail(app: Celery, locks: MemoryLocks) -> None:
    locks.nodes[0].up = False
    with locks.unreachable():
        assert not locks.nodes[1].up
    assert not locks.nodes[0].up
    assert declare(app).apply((7,)).get() == 7


def test_a_body_loses_its_lease(app: Celery, locks: MemoryLocks) -> None:
    told = threading.Event()

    def tell(**kwargs: Any) -> None:
        told.set()

    def body(self: Any, number: int) -> None:
        locks.lose()
        assert self.lease.loss.reason == "vanished"
        assert self.lock_info(number) is None
        assert told.wait(5)

    lock_lost.connect(tell)
    declare(app, body).apply((7,)).get()


def test_a_body_that_lost_its_lease_is_interrupted(app: Celery, locks: MemoryLocks) -> None:
    came_to: list[str] = []

    def body(self: Any, number: int) -> None:
        try:
            locks.lose()
            time.sleep(10)
        finally:
            came_to.append("cleanup")

    sync = declare(app, body, lock_on_lost="interrupt")
    assert isinstance(sync.apply((7,)).result, LeaseLost)
    assert came_to == ["cleanup"]
    assert sync.apply((7,)).state == "FAILURE"


@pytest.mark.parametrize("on_lost", ["warn", "interrupt"])
def test_the_next_lease_is_lost_when_the_body_begins(
    app: Celery, locks: MemoryLocks, on_lost: str
) -> None:
    came_to: list[str] = []

    def body(self: Any, number: int) -> None:
        came_to.append("body")
        self.lease.check()
        came_to.append("end")

    sync = declare(app, body, lock_on_lost=on_lost)
    locks.lose_next()
    assert isinstance(sync.apply((7,)).result, LeaseLost)
    assert came_to == (["body"] if on_lost == "warn" else [])
    sync.apply((7,)).get()
    assert came_to[-1] == "end"


def test_a_task_that_was_refused_has_no_lease_to_lose(app: Celery, locks: MemoryLocks) -> None:
    sync = declare(app, check)
    locks.lose_next()
    locks.refuse_next()
    results = [sync.apply((7,)).result for _ in range(3)]
    assert [type(result) for result in results] == [LockHeld, LeaseLost, int]


def test_what_retries_by_itself_sees_the_loss(app: Celery, locks: MemoryLocks) -> None:
    sync = declare(app, check, autoretry_for=[LeaseLost])
    locks.lose_next()
    assert sync.apply((7,)).get() == 1


def leave_a_lock_behind(app: Celery, then_fail: bool = False) -> None:
    with MemoryLocks(app) as locks:
        lease = declare(app, take_one_more).apply((7,)).get()
        assert locks.leases() == [lease]
        assert not then_fail, "failed by itself"


def test_a_lock_that_is_left_behind_is_an_error(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match=r"still locked at the end of the test: mine, by task 7 \("):
        leave_a_lock_behind(app)


def test_a_test_that_failed_by_itself_is_left_to_its_own_error(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks_module, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="failed by itself"):
        leave_a_lock_behind(app, then_fail=True)


@pytest.mark.parametrize("namespace", [None, "CELERY"])
def test_settings_and_lock_are_as_before_in_the_end(namespace: str | None) -> None:

    class Settings:
        CELERY_REDLOCK_NODES = redlock_nodes = "redis://127.0.0.1:1"
        CELERY_REDLOCK_EAGER = redlock_eager = False

    with Celery("shop", set_as_current=False) as app:
        app.config_from_object(Settings, namespace=namespace)
        sync = declare(app)
        before = sync.redlock
        with MemoryLocks(app) as locks:
            assert app.conf.redlock_nodes is locks.nodes
            assert "memory://0" in repr(sync.redlock)
            assert "memory://0" in repr(Redlock.from_app(app))
            with locks.held(sync, 7):
                assert isinstance(sync.apply((7,)).result, LockHeld)
        assert sync.redlock is before
        assert app.conf.get("redlock_nodes") == "redis://127.0.0.1:1"
        assert not app.conf.redlock_eager


def test_only_what_can_be_locked_can_be_held(app: Celery, locks: MemoryLocks) -> None:
    with pytest.raises(TypeError, match="task sync cannot be called with"), locks.held(declare(app)):
        ...
    with (
        Celery("other", set_as_current=False) as other,
        pytest.raises(ValueError, match="task sync is not one of"),
        locks.held(declare(other), 7),
    ):
        ...


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """A worker sets up logging for its whole process, unless someone else does."""
    setup_logging.connect(leave_it, dispatch_uid="leave it")
    yield
    setup_logging.disconnect(leave_it, dispatch_uid="leave it")


def leave_it(**kwargs: Any) -> None: ...


@pytest.mark.usefixtures("logging_as_it_was")
def test_a_worker_in_this_process_locks_in_memory_too(app: Celery, locks: MemoryLocks) -> None:
    def body(self: Any, number: int) -> None:
        while True:
            time.sleep(0.01)

    sync = declare(app, body, lock_on_lost="interrupt")
    with start_worker(app, perform_ping_check=False):
        locks.refuse_next()
        result = sync.delay(7)
        wait_until(lambda: result.state == "RETRY")
        wait_until(locks.leases)
        locks.lose()
        with pytest.raises(LeaseLost):
            result.get(timeout=10)


def test_the_example_in_the_docs_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    for code, name in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=50,
    )
    assert "4 passed" in done.stdout, done.stdout
