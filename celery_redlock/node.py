"""One server: a helper thread connects to it, learns its age, and hands the connection over."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from . import native
from .address import Address
from .channel import Channel
from .connection import Connection
from .errors import ConfigError
from .lua import ALL as SCRIPTS
from .round import LONG_AGO, Started

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

#: Seconds between attempts to connect to a node that is down: the first pause, and the longest.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

#: After so many timeouts, a node that is still being connected to is not waited for.
PATIENT_TIMEOUTS = 5


if hasattr(time, "CLOCK_BOOTTIME"):

    def clock() -> float:
        """Goes on while the machine sleeps, as the servers' clocks do; CLOCK_MONOTONIC does not."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    clock = time.monotonic


class Roster:
    """Which server answers at which URL: no server may be counted twice."""

    def __init__(self) -> None:
        self._lock = native.Lock()
        self._names: dict[str, str] = {}

    def note(self, name: str, run_id: str) -> None:
        with self._lock:
            for other, other_id in self._names.items():
                if other_id == run_id and other != name:
                    raise ConfigError(
                        f"{name} and {other} are the same server. A majority of lock nodes means "
                        f"nothing unless each is a server of its own: list each once."
                    )
            self._names[name] = run_id

    def forget(self, name: str) -> None:
        """It cannot be reached: whatever server was there may come up elsewhere."""
        with self._lock:
            self._names.pop(name, None)


class Node:
    """At most one thread at a time connects to the node, for all channels in turn."""

    def __init__(
        self, index: int, address: Address, roster: Roster, timeout: float, guarded: bool
    ) -> None:
        self.index = index
        self.name = address.name
        self.served_at = 0.0
        self.fault = ""  # what it shows to be wrong with the configuration
        self._address = address
        self._roster = roster
        self._timeout = timeout
        self._guarded = guarded
        self._lock = native.Lock()
        self._waiting: list[Channel] = []
        self._thread = native.thread(self._connect_all, "redlock-dial")
        self._dialing_since: float | None = None
        self._failure = ""
        self._failures = 0
        self._retry_at = 0.0

    def dial(self, channel: Channel) -> str | None:
        with self._lock:
            if clock() < self._retry_at:
                return self._failure
            if channel not in self._waiting:
                self._waiting.append(channel)
            # Not alive: an exception out of the blue (Ctrl-C) may have come just before its start.
            if self._dialing_since is None or not self._thread.is_alive():
                self._dialing_since = clock()
                self._thread = native.thread(self._connect_all, "redlock-dial")
                try:
                    self._thread.start()
                except RuntimeError as error:
                    return str(error)  # too many threads, or the interpreter is shutting down
            elif clock() > self._dialing_since + PATIENT_TIMEOUTS * self._timeout:
                return "still connecting"
        return None

    def _connect_all(self) -> None:
        while (channel := self._next()) is not None:
            try:
                connection = self._greet()
            except Exception as error:
                self._give_up(error)
            else:
                self._hand_over(connection, channel)

    def _next(self) -> Channel | None:
        with self._lock:
            self._dialing_since = clock() if self._waiting else None
            return self._waiting[0] if self._waiting else None

    def _hand_over(self, connection: Connection, channel: Channel) -> None:
        with self._lock:
            self.fault, self._failures, self.served_at = "", 0, clock()
            if channel in self._waiting:
                self._waiting.remove(channel)
        channel.deliver(self.index, connection)

    def _give_up(self, error: Exception) -> None:
        why = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, ConfigError):
            self._roster.forget(self.name)
        with self._lock:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            self._retry_at = clock() + random.uniform(pause / 2, pause)
            self._failure = why
            self.fault = why if isinstance(error, ConfigError) else ""
            waiting, self._waiting = self._waiting, []
        for channel in waiting:
            channel.deliver(self.index, why)

    def _greet(self) -> Connection:
        """Connect, ask the server's age, and teach it the scripts: in one flight."""
        connection = self._address.connect()
        try:
            asked = clock()
            connection.send_command("INFO", "server")
            for script in SCRIPTS:
                connection.send_command("SCRIPT", "LOAD", script.text)
            started = self._hear_age(connection, asked)
            for _ in SCRIPTS:
                _answer(connection)  # not allowed: then each is sent as text, when it is missed
            sock, connection._sock = connection._sock, None  # redis-py opened it; from here it is ours
        finally:
            connection.disconnect()
        assert sock is not None
        return Connection(native.adopted(sock), started)

    def _hear_age(self, connection: AbstractConnection, asked: float) -> Started:
        text = _answer(connection)
        told = clock()
        if isinstance(text, Exception):
            if not self._guarded:
                return LONG_AGO
            raise ConfigError(
                f"{self.name} refuses INFO ({text}), so nobody can know whether it has restarted "
                f"empty. Allow the command (ACL: +info), or set the restart guard to 0 and do "
                f"without that protection."
            )
        run_id, age = _read_info(text)
        self._roster.note(self.name, run_id)
        return Started(earliest=asked - age - 1, latest=told - age + 1)


def _answer(connection: AbstractConnection) -> Any:
    """What the server answers; or its error, if that is that we are not allowed to ask."""
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        return connection.read_response()
    except NoPermissionError as error:
        return error
    except ResponseError as error:
        if "unknown command" not in str(error):
            raise  # busy, loading, …: it will pass
        return error


def _read_info(text: Any) -> tuple[str, int]:
    """The run id, and the age in whole seconds."""
    try:
        info = dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)
        return info["run_id"], int(info["uptime_in_seconds"])
    except (AttributeError, KeyError, ValueError):
        raise ConnectionError("its answer to INFO makes no sense: it is not a Redis server") from None
