"""The app whose queue is drained: one task that does nothing, in each contestant's way.

`python -m benchmarks.drained fill NAME COUNT` sends so many tasks; with `drain` in place of `fill` it is
the worker that runs them. Either prints the seconds that this took, from the first task to the last.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.signals import task_postrun, task_prerun

from celery_redlock import LockedTask

PLAIN, ONE_NODE, FIVE_NODES = "plain task", "LockedTask, 1 node", "LockedTask, 5 nodes"
ONCE, SINGLETON = "celery-once", "celery-singleton"

#: Seconds. The others lock a task when it is sent: their locks must last until it has run.
LONG = 3600

BROKER = os.environ.get("DRAINED_BROKER", "memory://")

app: Any = Celery("drained", broker=BROKER, backend=BROKER)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    redlock_nodes=os.environ.get("DRAINED_NODES", ""),
    redlock_restart_guard=0,  # the servers have just been started
    singleton_backend_url=BROKER,
    singleton_lock_expiry=LONG,
)
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": BROKER, "default_timeout": LONG},
}


def nothing(number: int) -> None: ...


def declare(name: str) -> Any:
    return app.task(nothing, base=_BASES[name](), name="nothing")


def fill(name: str, count: int) -> None:
    send = declare(name).delay
    send(0)  # connects; the worker will not count the first one either
    start = time.perf_counter()
    for number in range(1, count + 1):
        send(number)
    print(time.perf_counter() - start)


def drain(name: str, count: int) -> None:
    declare(name)  # before the signals are connected: ours gives the lock back by one of them, too
    Stopwatch(count)
    app.Worker(
        pool="solo",
        loglevel="ERROR",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()


class Stopwatch:
    """From the second task's start to the last one's end, in a worker that runs one at a time."""

    def __init__(self, count: int) -> None:
        self._left = count + 1
        self._start = 0.0
        task_prerun.connect(self._started, weak=False)
        task_postrun.connect(self._ended, weak=False)

    def _started(self, args: Any, **kwargs: Any) -> None:
        if args[0] == 1:
            self._start = time.perf_counter()

    def _ended(self, state: str, **kwargs: Any) -> None:
        if state != "SUCCESS":
            os._exit(1)
        self._left -= 1
        if not self._left:
            print(time.perf_counter() - self._start, flush=True)
            os._exit(0)  # at once: a worker that is told to stop by its own task takes its time


def _once() -> Any:
    from celery_once import QueueOnce

    return QueueOnce


def _singleton() -> Any:
    from celery_singleton import Singleton

    return Singleton


#: Peers are imported only where they run.
_BASES: dict[str, Callable[[], Any]] = {
    PLAIN: lambda: app.Task,
    ONE_NODE: lambda: LockedTask,
    FIVE_NODES: lambda: LockedTask,
    ONCE: _once,
    SINGLETON: _singleton,
}

if __name__ == "__main__":
    {"fill": fill, "drain": drain}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
