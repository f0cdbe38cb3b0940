"""What a refused task's message carries to its next attempt: one header, `redlock` (T14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

HEADER = "redlock"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Tries:
    """How often in a row it was refused for one reason, and when first, in seconds since 1970."""

    count: int = 0
    first: float = 0.0

    def one_more(self, now: float) -> Tries:
        return Tries(self.count + 1, self.first if self.count else now)

    def lasting(self, now: float) -> float:
        """Seconds since the first; a clock that was set back, or another machine's, never hurries it."""
        return max(0.0, now - self.first) if self.count else 0.0


@dataclasses.dataclass(frozen=True)
class Header:
    """`keep`: its message must not be dropped, now and at any later attempt (T7)."""

    task: str
    id: str
    conflicts: Tries = Tries()
    errors: Tries = Tries()
    keep: bool = False

    @classmethod
    def read(cls, task: str, request: Any) -> Header:
        """The header of a running task; a fresh one if it has none of its own.

        Tracing libraries put a message's headers one level deeper, so it may be in either place. People
        copy headers into messages of other tasks: theirs is not ours.
        """
        fresh = cls(task, request.id)
        for headers in (request.__dict__, request.headers):
            written = headers.get(HEADER) if isinstance(headers, Mapping) else None
            if isinstance(written, Mapping) and written.get("v") == VERSION:
                try:
                    header = cls._of(written)
                except (KeyError, OverflowError, TypeError, ValueError):
                    continue
                if (header.task, header.id) == (fresh.task, fresh.id):
                    return header
        return fresh

    @classmethod
    def _of(cls, written: Mapping[str, Any]) -> Header:
        conflicts, errors = ((int(count), float(first)) for count, first in written["tries"])
        return cls(
            written.get("task", ""),
            written.get("id", ""),
            Tries(*conflicts),
            Tries(*errors),
            bool(written.get("keep")),
        )

    def written(self) -> dict[str, Any]:
        return {
            "v": VERSION,
            "task": self.task,
            "id": self.id,
            "tries": [[tries.count, tries.first] for tries in (self.conflicts, self.errors)],
            "keep": self.keep,
        }

    def after_conflict(self, now: float, keep: bool) -> Header:
        """A refusal is an answer: it ends a row of errors."""
        keep = keep or self.keep
        return dataclasses.replace(
            self, conflicts=self.conflicts.one_more(now), errors=Tries(), keep=keep
        )

    def after_error(self, now: float, keep: bool) -> Header:
        return dataclasses.replace(self, errors=self.errors.one_more(now), keep=keep or self.keep)

    def afresh(self) -> Header:
        """For the task's own retry: it has had the lock, so what came before does not count; and work
        that was begun is not dropped."""
        return Header(self.task, self.id, keep=True)
