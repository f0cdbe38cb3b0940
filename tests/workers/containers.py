"""The same as processes.py, in Docker containers: `pytest tests/workers --docker`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_celery import CeleryWorkerContainer, RabbitMQContainer, RedisContainer
from pytest_docker_tools.utils import wait_for_callable

from celery_redlock.testing.servers import free_port

#: Seconds in which a container must be ready.
START_TIMEOUT = 120


class Containers:
    """Starts what the tests need; each thing ends with its `with` block."""

    def __init__(self, client: Any, network: str, worker_image: str) -> None:
        self._client = client
        self._network = network
        self._worker_image = worker_image

    @contextlib.contextmanager
    def redis(self, count: int, name: str) -> Iterator[list[Any]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self._server(RedisContainer, "6379/tcp")) for _ in range(count)]

    @contextlib.contextmanager
    def rabbitmq(self) -> Iterator[Any]:
        with self._server(RabbitMQContainer, "5672/tcp") as container:
            yield container

    @contextlib.contextmanager
    def worker(self, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Any]:
        options = {"command": ["python", "-m", *command], "environment": dict(environment)}
        with self._run(CeleryWorkerContainer, image=self._worker_image, **options) as container:
            yield container

    @contextlib.contextmanager
    def _server(self, kind: Any, port: str) -> Iterator[Any]:
        # A port of our choice stays the same when the container is restarted; Docker's would change.
        ports = {port: ("127.0.0.1", free_port())}
        command = kind.command() if kind is RedisContainer else None
        with self._run(kind, image=kind.image(), command=command, ports=ports) as container:
            yield container

    @contextlib.contextmanager
    def _run(self, kind: Any, **options: Any) -> Iterator[Any]:
        raw = self._client.containers.run(detach=True, network=self._network, **options)
        try:
            container = kind(raw)
            wait_for_callable("Waiting for a container", container.ready, START_TIMEOUT)
            yield container
        finally:
            raw.remove(force=True)
