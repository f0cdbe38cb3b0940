"""The locks of an app's tasks, kept in memory for the time of a test, and ready to go wrong.

Nothing is mocked: tasks, policies, heartbeat and algorithm are the real ones, on nodes in memory.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery
from celery._state import get_current_task

from .. import task as tasks
from ..errors import LeaseLost
from ..heartbeat import heartbeat
from ..lease import Lease
from ..node import clock as real_clock
from ..options import connect
from ..owner import Holder
from ..redlock import LEAST_TTL
from ..task import LockedTask
from .memory import MemoryNodes

#: The task id of the holder that a test sees where someone else holds a lock.
SOMEONE_ELSE = "someone-else"

#: Seconds. A worker gives a task's lock back just after its result is there: so long it may take.
PATIENCE = 2.0

#: Seconds by which time goes on at once: each lease is renewed in between.
STEP = LEAST_TTL / 4


class MemoryLocks:
    """While the `with` block lasts, the app's tasks lock in memory; eager ones, too.

    :param app: the app whose tasks are tested.
    :param count: how many nodes there are; `nodes` are these, each of which can fail by itself.

    It ends with an error if a lock is still held then. In the thread that entered the block, waiting
    for a lock takes no time: what would be refused after ten seconds is refused at once.
    """

    def __init__(self, app: Celery, count: int = 3) -> None:
        self.app = app
        self.nodes: MemoryNodes = _Nodes(count)
        self._granted: list[Lease] = []
        self._doomed: list[Lease] = []
        self._refusals = threading.Semaphore(0)
        self._losses = threading.Semaphore(0)

    def __enter__(self) -> MemoryLocks:
        with contextlib.ExitStack() as cleanup:
            for name, value in {"redlock_nodes": self.nodes, "redlock_eager": True}.items():
                cleanup.enter_context(_put(*_place(self.app, name), value))
            self._others, self._redlock = connect(self.app), connect(self.app)
            self._redlock.acquire = self._acquire  # type: ignore[method-assign]
            cleanup.enter_context(_put(tasks._redlocks, self.app, self._redlock))
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        with self._cleanup:
            left = self._await_release()
            if left and error is None:
                raise AssertionError(
                    f"still locked at the end of the test: {', '.join(map(_described, left))}. If a "
                    f"worker runs it, wait for its end; if your code took the lock itself, release it."
                )

    def leases(self) -> list[Lease]:
        """Those that the app's tasks hold now."""
        return [lease for lease in self._granted if not lease.ended]

    @contextlib.contextmanager
    def held(self, task: Any, *args: Any, **kwargs: Any) -> Iterator[Lease]:
        """Inside the block, someone else holds the lock of the task with these arguments."""
        if task.app is not self.app:
            raise ValueError(f"task {task.name} is not one of {self.app}: enter MemoryLocks(its app)")
        key = task._key.of(args, kwargs)
        if key is None:
            raise TypeError(f"task {task.name} cannot be called with {args} and {kwargs}")
        with self._others.lock(key, ttl=task._options.ttl, task_id=SOMEONE_ELSE) as lease:
            yield lease

    def refuse_next(self) -> None:
        """The next attempt to take a lock finds it held by someone else, however long it waits."""
        self._refusals.release()

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Inside the block, no node answers."""
        nodes = [self.nodes[index] for index in range(len(self.nodes))]
        were_up = [node.up for node in nodes]
        for node in nodes:
            node.up = False
        try:
            yield
        finally:
            for node, was_up in zip(nodes, were_up, strict=True):
                node.up = was_up

    def lose(self) -> None:
        """Every lease that is held now is lost, as if an operator had unlocked it.

        Called by a body, this may raise LeaseLost: that is how the body is interrupted, if it asks for
        that.
        """
        self._lose(self.leases())

    def lose_next(self) -> None:
        """The next lease of a task is lost when the body begins. An interrupted one ends there."""
        self._losses.release()

    def _acquire(self, key: str, **options: Any) -> Lease:
        """In place of the `acquire` of the app's Redlock."""
        with contextlib.ExitStack() as refusing:
            if self._refusals.acquire(blocking=False):
                refusing.enter_context(self._others.lock(key, task_id=SOMEONE_ELSE))
            lease = type(self._redlock).acquire(self._redlock, key, **options)
        self._granted.append(lease)
        task = get_current_task()
        if isinstance(task, LockedTask) and task.lease is None and self._losses.acquire(blocking=False):
            self._doomed.append(lease)
            self._tap(task)
        return lease

    def _tap(self, task: Any) -> None:
        """Be there when the body begins: within what retries it by itself, if it has that."""
        name = "_orig_run" if hasattr(task, "_orig_run") else "run"
        body = getattr(task, name)
        if getattr(body, "tapped_by", None) is self:
            return

        @functools.wraps(body)
        def tapped(*args: Any, **kwargs: Any) -> Any:
            if task.lease in self._doomed:
                self._doomed.remove(task.lease)
                self._lose([task.lease])
                if task._options.on_lost == "interrupt":
                    _await_interrupt()
            return body(*args, **kwargs)

        tapped.tapped_by = self  # type: ignore[attr-defined]
        self._cleanup.enter_context(_put(task.__dict__, name, tapped))

    def _lose(self, leases: list[Lease]) -> None:
        """In another thread, as the heartbeat is one: an interrupt of ours must not come in between."""
        with ThreadPoolExecutor(1, "redlock-loss") as elsewhere:
            list(elsewhere.map(self._take_away, leases))

    def _take_away(self, lease: Lease) -> None:
        self._others.unlock(lease.key, Holder.read(lease.owner, None))
        with contextlib.suppress(LeaseLost):
            lease.extend()

    def _await_release(self) -> list[Lease]:
        """What is still held when patience ends; it is released."""
        deadline = time.monotonic() + PATIENCE
        while (left := self.leases()) and time.monotonic() < deadline:
            time.sleep(0.005)
        for lease in left:
            lease.release()
        return left


class _Nodes(MemoryNodes):
    """In the test's own thread, waiting takes no time: while it waits, it can let nobody go on."""

    def __init__(self, count: int) -> None:
        self._ahead = 0.0
        self._thread = threading.current_thread()
        super().__init__(count, lambda: real_clock() + self._ahead)

    def sleep(self, seconds: float) -> None:
        if threading.current_thread() is not self._thread:
            super().sleep(seconds)
            return
        end = self._ahead + seconds
        while self._ahead < end:
            self._ahead = min(self._ahead + STEP, end)
            heartbeat().beat()


def _place(app: Celery, name: str) -> tuple[Any, str]:
    """Where a setting is changed for certain: Django's `CELERY_REDLOCK_…` comes before `redlock_…`."""
    app.conf.get(name)  # as long as nobody has read a setting, they are not loaded
    return app.conf.changes, app.conf._to_keys(name)[0]


@contextlib.contextmanager
def _put(places: MutableMapping[Any, Any], place: Any, value: Any) -> Iterator[None]:
    """Inside the block, the value is there; after it, what was there before."""
    nothing = object()
    before = places.get(place, nothing)
    places[place] = value
    try:
        yield
    finally:
        if before is nothing:
            del places[place]
        else:
            places[place] = before


def _await_interrupt() -> None:
    """It is on its way, and comes in between two naps."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.001)


def _described(lease: Lease) -> str:
    return f"{lease.key}, by {Holder.read(lease.owner, None)}"
