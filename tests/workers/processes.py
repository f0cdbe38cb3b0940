"""pytest-celery's containers as local processes: no Docker engine is needed.

A pytest-celery container wraps a docker-py container, and asks little of it. `ServerContainer` and
`ProcessContainer` answer that little for one of our Redis servers and for any other process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_celery import CeleryWorkerContainer, RabbitMQContainer, RedisContainer

from celery_redlock.testing import Server, servers
from celery_redlock.testing.servers import newest_server

from ..conftest import find
from . import rabbitmq

REPOSITORY = Path(__file__).parents[2]

#: Seconds in which a process must be ready, on a busy machine too.
START_TIMEOUT = 40.0


class LocalContainer:
    """What docker-py knows about every container."""

    def __init__(self, name: str) -> None:
        self.id = uuid.uuid4().hex
        self.name = f"{name}-{self.id[:6]}"
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": "127.0.0.1", "Env": []},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "HostConfig": {"PortBindings": {}},
        }

    def reload(self) -> None: ...


class ServerContainer(LocalContainer):
    """One of our own Redis servers. It keeps nothing: a restart is a restart with empty hands."""

    def __init__(self, name: str, server: Server) -> None:
        super().__init__(name)
        self.server = server
        self.pause, self.unpause = server.freeze, server.thaw
        self.wait_until_ready = server.wait_until_ready

    @property
    def status(self) -> str:
        return "running" if self.server.running else "exited"

    def logs(self) -> bytes:
        return self.server.log.encode()

    def kill(self, number: str | int = signal.SIGKILL) -> None:
        gently = as_signal(number) is not signal.SIGKILL
        self.server.stop() if gently else self.server.kill()

    def restart(self, timeout: float = 10) -> None:
        self.server.restart_empty()


class ProcessContainer(LocalContainer):
    """A program in a process group of its own, ready once it has written `prompt` to its log.

    The log is kept over restarts, as Docker does, so a prompt counts only after the latest start.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        prompt: str,
    ) -> None:
        super().__init__(name)
        self._command = [part.replace("%h", self.id[:12]) for part in command]
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self._log = directory / f"{self.name}.log"
        self._prompt = prompt.encode()
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._started_at = log.tell()
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while self._prompt not in self.logs()[self._started_at :]:
            if self.status == "exited" or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.logs().decode(errors='replace')}")
            time.sleep(0.02)

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    @property
    def pid(self) -> int:
        return self._process.pid

    def logs(self) -> bytes:
        return self._log.read_bytes()

    def kill(self, number: str | int = signal.SIGKILL) -> None:
        """SIGKILL ends all of its processes, any other signal goes to the first: as in a container."""
        if as_signal(number) is signal.SIGKILL:
            self._signal_all(signal.SIGKILL)
            self._process.wait(10)
        elif self.status == "running":
            self._process.send_signal(as_signal(number))

    def restart(self, timeout: float = 10) -> None:
        self.unpause()
        self.kill(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self.kill()
        self.start()

    def pause(self) -> None:
        self._signal_all(signal.SIGSTOP)

    def unpause(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def as_signal(number: str | int) -> signal.Signals:
    return signal.Signals[number] if isinstance(number, str) else signal.Signals(number)


class Ready:
    """Readiness without pytest-celery's polls of a second."""

    _container: ServerContainer | ProcessContainer

    def _wait_ready(self, timeout: int = 30) -> bool:
        self._container.wait_until_ready()
        return True


class RedisProcess(Ready, RedisContainer):
    _container: ServerContainer

    @property
    def client(self) -> Any:
        return self._container.server.client()

    @property
    def port(self) -> int:
        return self._container.server.port

    @property
    def url(self) -> str:
        return self._container.server.url

    host_url = url


class RabbitMQProcess(Ready, RabbitMQContainer):
    port = 0  # a property of RabbitMQContainer, which would ask Docker

    def __init__(self, container: ProcessContainer, port: int) -> None:
        super().__init__(container)
        self.port = port

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    host_url = url


class WorkerProcess(Ready, CeleryWorkerContainer):
    pass


class Processes:
    """Starts what the tests need; each thing ends with its `with` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextlib.contextmanager
    def redis(self, count: int, name: str) -> Iterator[list[RedisProcess]]:
        with servers(count, find(newest_server)) as started:
            yield [RedisProcess(ServerContainer(name, server)) for server in started]

    @contextlib.contextmanager
    def rabbitmq(self) -> Iterator[RabbitMQProcess]:
        program, epmd = find(rabbitmq.server), find(rabbitmq.port_mapper)
        home = self._directory / "rabbitmq"
        home.mkdir()
        environment = rabbitmq.environment(home)
        # Erlang would start its port mapper as a daemon that stays; it uses one that is there.
        mapper = self._process(
            "epmd", [str(epmd), "-d", "-d"], environment, "entering the main select() loop"
        )
        broker = self._process("rabbitmq", [str(program)], environment, "Server startup complete")
        with mapper, broker as raw:
            yield RabbitMQProcess(raw, int(environment["RABBITMQ_NODE_PORT"]))

    @contextlib.contextmanager
    def worker(self, command: Sequence[str], environment: Mapping[str, str]) -> Iterator[WorkerProcess]:
        python = [sys.executable, "-m", *command]
        with self._process("worker", python, environment, "ready.") as raw:
            yield WorkerProcess(raw)

    @contextlib.contextmanager
    def _process(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], prompt: str
    ) -> Iterator[ProcessContainer]:
        process = ProcessContainer(name, command, environment, self._directory, prompt)
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.kill()
