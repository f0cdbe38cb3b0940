"""The value that is stored in Redis under a lock's key, and the person we read out of it.

An owner looks like ``r:<32 hex digits>:<pid>:<host>:<task id>``. The digits make it unique and are
its secret: whoever knows them can release the lock. The rest is for people.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import socket
from typing import Any

RUNNING = "r"

_OWNER = re.compile(r"(?P<state>[a-z]):[0-9a-f]{32}:(?P<pid>\d+):(?P<host>[^:]*):(?P<task_id>.*)")
_UNSAFE = re.compile(r"[^\x21-\x39\x3b-\x7e]")  # printable ASCII, without blanks and colons


@functools.cache
def _here(pid: int) -> str:
    return f"{pid}:{_UNSAFE.sub('-', socket.gethostname())[:64]}"


def new_owner(random: str, task_id: str = "", state: str = RUNNING) -> str:
    return f"{state}:{random}:{_here(os.getpid())}:{as_stored(task_id)}"


def as_stored(task_id: str) -> str:
    """A task id as it comes back in a Holder: compare with this, and not with the id itself."""
    return _UNSAFE.sub("-", task_id)[:128]


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock, as a majority of the nodes tell it.

    ``remaining`` is an upper bound in seconds (None: the key has no end): a holder that is alive
    renews it. A lock that was set by another Redlock client has no task id, host or pid.
    """

    task_id: str | None = None
    host: str | None = None
    pid: int | None = None
    remaining: float | None = None
    fence: int | None = None
    value: str = dataclasses.field(default="", repr=False, compare=False)

    @classmethod
    def read(cls, value: str, remaining: float | None, fence: int | None = None) -> Holder:
        parts = _OWNER.fullmatch(value)
        if parts is None:
            return cls(remaining=remaining, fence=fence, value=value)
        return cls(
            task_id=parts["task_id"] or None,
            host=parts["host"],
            pid=int(parts["pid"]),
            remaining=remaining,
            fence=fence,
            value=value,
        )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Holder:
        known = {field.name for field in dataclasses.fields(cls)} - {"value"}
        return cls(**{name: fields[name] for name in known & fields.keys()})

    def to_json(self) -> dict[str, Any]:
        """All but the value: it is the right to release the lock."""
        fields = dataclasses.asdict(self)
        del fields["value"]
        return fields

    def __str__(self) -> str:
        if self.host is None:
            return "another Redlock client"
        process = f"pid {self.pid} on {self.host}"
        return f"task {self.task_id} ({process})" if self.task_id else process
