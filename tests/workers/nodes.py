"""pytest-celery's nodes, with what a lock's tests need besides: a pause, and logs of one test only."""

from __future__ import annotations

import time
from typing import Any

import redis
from celery import Celery
from pytest_celery import RESULT_TIMEOUT, CeleryTestNode, CeleryTestSetup, CeleryTestWorker
from pytest_docker_tools.exceptions import TimeoutError as NotLogged

from ..waiting import wait_until
from .remote import ping


class Pausable:
    container: Any

    def pause(self) -> None:
        """Stop all of its processes where they are: they keep their connections, and do nothing."""
        self.container._container.pause()

    def unpause(self) -> None:
        self.container._container.unpause()


class LockNode(Pausable, CeleryTestNode):
    def __init__(self, container: Any) -> None:
        super().__init__(container)
        # Now, for a container that is down cannot say it any more.
        self._config: dict[str, Any] = super().config()

    def config(self, *_: Any, **__: Any) -> dict[str, Any]:
        return self._config

    @property
    def url(self) -> str:
        return str(self.config()["host_url"])

    @property
    def client(self) -> Any:
        return self.container.client

    def restart(self, reload_container: bool = True, force: bool = False) -> None:
        """It comes back empty, and answers."""
        super().restart(reload_container, force)
        wait_until(self._answers)  # a container's log still says that it is ready, from its first start

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


class Worker(Pausable, CeleryTestWorker):
    """A worker as one test sees it: `logs` begin where the test got it."""

    def __init__(self, container: Any, app: Celery, queue: str, seen: int = 0) -> None:
        super().__init__(container, app)
        self._queue = queue
        self._seen = seen

    @property
    def worker_queue(self) -> str:
        return self._queue

    @property
    def worker_name(self) -> str:
        return self._queue

    def logs(self) -> str:
        return str(self.container.logs()[self._seen :])

    def wait_for_log(self, log: str, message: str = "", timeout: float = RESULT_TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while log not in self.logs():
            if time.monotonic() > deadline:
                raise NotLogged(message or f"{self.name()} did not log {log!r} within {timeout} s")
            time.sleep(0.02)


class Setup(CeleryTestSetup):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.ping = ping  # pytest-celery's own would load all of pytest into each worker
