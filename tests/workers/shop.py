"""The app under test: its workers run it, and the tests send its tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from celery import Celery

app = Celery("shop")


def configure(environment: Mapping[str, str]) -> None:
    app.conf.update(
        broker_url=environment["SHOP_BROKER"],
        result_backend=environment["SHOP_BACKEND"],
        task_default_queue=environment["SHOP_QUEUE"],
        redlock_nodes=environment["SHOP_NODES"].split(),
        shop_history=environment["SHOP_HISTORY"],
        broker_connection_retry_on_startup=True,
    )


if "SHOP_BROKER" in os.environ:
    configure(os.environ)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def pid() -> int:
    return os.getpid()
