"""What the tests ask of a worker, beyond the tasks of the shop. Every worker imports this."""

from __future__ import annotations

from typing import Any

from celery import shared_task, signals
from celery.worker import state as worker_state
from celery.worker.control import inspect_command
from celery.worker.request import Request

_received: list[str] = []


@shared_task
def ping() -> str:
    return "pong"


@signals.task_received.connect
def remember(request: Request, **_: object) -> None:
    _received.append(request.id)


@inspect_command()
def workload(state: Any, **_: object) -> dict[str, int]:
    """Tasks that the worker has now, running or waiting, and tasks that it ever received."""
    timers = [timer.entry.args for timer in state.consumer.timer.schedule.queue]
    waiting = [args for args in timers if args and isinstance(args[0], Request)]
    return {"has": len(worker_state.reserved_requests) + len(waiting), "received": len(_received)}
