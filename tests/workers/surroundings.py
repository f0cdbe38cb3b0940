"""Where a shop runs: broker, results, lock nodes; and its workers there."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestCluster

from . import shop
from .nodes import Worker

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")

#: Seconds for a worker's answer. It comes in milliseconds, unless a task keeps a solo worker busy.
ANSWER_TIMEOUT = 2.0

#: Seconds in which a shared worker must have nothing left to do after a test.
IDLE_TIMEOUT = 0.5


@dataclass(frozen=True)
class Surroundings:
    launcher: Any
    broker: CeleryTestBroker
    backend: CeleryTestBackend
    nodes: CeleryTestCluster

    def with_nodes(self, nodes: CeleryTestCluster) -> Surroundings:
        return replace(self, nodes=nodes)

    def environment(self, queue: str, address: str) -> dict[str, str]:
        """`address` is "url" for a worker and "host_url" for the test, which is outside of Docker."""
        return {
            "SHOP_BROKER": self.broker.config()[address],
            "SHOP_BACKEND": self.backend.config()[address],
            "SHOP_HISTORY": self.backend.config(vhost="5")[address],
            "SHOP_NODES": " ".join(node.config()[address] for node in self.nodes),
            "SHOP_QUEUE": queue,
        }

    def start_worker(
        self,
        stack: contextlib.ExitStack,
        queue: str,
        pool: str = "prefork",
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Worker:
        command = worker_command(queue, pool, concurrency, options)
        environment = {**self.environment(queue, "url"), **(env or {})}
        container = stack.enter_context(self.launcher.worker(command, environment))
        return Worker(container, shop.app, queue)

    def lead_to(self, queue: str, env: Mapping[str, str] | None = None) -> None:
        """What the test sends goes to this queue, and is locked on these nodes, from now on."""
        shop.app.set_current()  # other tests have apps, too
        before = places(shop.app)
        shop.configure({**self.environment(queue, "host_url"), **(env or {})})
        forget_surroundings(shop.app, before)


def places(app: Any) -> tuple[str | None, str | None]:
    return app.conf.broker_url, app.conf.result_backend


def forget_surroundings(app: Any, before: tuple[str | None, str | None]) -> None:
    """Celery goes on with the broker, queue and result backend that it has used first, unless told."""
    app._pool = None
    if places(app) != before:
        consumer: Any = getattr(app._backend, "result_consumer", None)
        if getattr(consumer, "_connection", None) or getattr(consumer, "_pubsub", None):
            consumer.stop()  # else it leaves a connection open
        app._backend = app._get_backend()
    for remembered in ("amqp", "control"):
        app.__dict__.pop(remembered, None)


def worker_command(queue: str, pool: str, concurrency: int, options: Sequence[str]) -> list[str]:
    who = ["-A", "tests.workers.shop", "worker", "-n", f"{queue}@%h", "-Q", queue]
    how = ["-P", pool, "-c", str(concurrency), "--loglevel", "INFO", "-I", "tests.workers.remote"]
    quickly = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return ["celery", *who, *how, *quickly, *options]


def own_queue(name: str) -> str:
    """Never used before: a message that an earlier worker left somewhere must not come back here."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


class SharedWorkers:
    """One worker for each pool and broker, started when a test first asks for it."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], tuple[Worker, contextlib.ExitStack]] = {}

    def get(self, pool: str, around: Surroundings) -> Worker:
        key = (pool, around.broker.config()["url"])
        if key not in self._running:
            stack = contextlib.ExitStack()
            self._running[key] = around.start_worker(stack, own_queue(pool), pool), stack
        worker, _ = self._running[key]
        return Worker(worker.container, shop.app, worker.worker_queue, seen=len(worker.container.logs()))

    def give_back(self, pool: str, around: Surroundings) -> None:
        """A worker that is still busy is not for the next test: it ends here."""
        key = (pool, around.broker.config()["url"])
        worker, stack = self._running[key]
        around.lead_to(worker.worker_queue)
        if not becomes_idle(worker):
            del self._running[key]
            stack.close()

    def close(self) -> None:
        for _, stack in self._running.values():
            stack.close()


def becomes_idle(worker: Worker) -> bool:
    """Soon: a task has its result a little before the worker is done with it."""
    deadline = time.monotonic() + IDLE_TIMEOUT
    while not is_idle(worker):
        if time.monotonic() > deadline:
            return False
    return True


def is_idle(worker: Worker) -> bool:
    """It had nothing to do, its queue was empty, and since then it got nothing. Asked once, it could
    miss the retry that a task puts into the queue as it ends."""
    before = workload(worker)
    in_queue = shop.app.control.purge()
    return before is not None and before["has"] == in_queue == 0 and workload(worker) == before


def workload(worker: Worker) -> dict[str, int] | None:
    inspect = shop.app.control.inspect([worker.hostname()], timeout=ANSWER_TIMEOUT)
    answers: Any = inspect._request("workload") or {}
    return answers.get(worker.hostname())  # type: ignore[no-any-return]
