"""What can go wrong, as exceptions.

"Held elsewhere" and "could not ask" are different failures and call for different answers, so they
are different errors. Each can be rebuilt as ``cls(*args)`` from JSON, with every argument optional:
that is how Celery carries an exception from the worker to the caller.
"""

from __future__ import annotations

from typing import Any

from .owner import Holder


class RedlockError(Exception):
    """The parent of everything this package raises."""

    def __init__(self, message: str = "", *more: Any) -> None:
        super().__init__(message, *more)
        self.message = message

    def __str__(self) -> str:
        return self.message


class ConfigError(RedlockError):
    """Something was set up in a way that can never work. The message says what to change."""


class LockHeld(RedlockError):
    """Someone else holds the lock.

    ``holder`` says who, if a majority of the nodes agree on it; ``retry_after`` is the longest time
    in seconds for which the lock stays taken if its holder does not renew it.
    """

    def __init__(
        self,
        message: str = "",
        holder: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, holder, retry_after)
        self.holder = Holder.from_json(holder) if holder else None
        self.retry_after = retry_after


class QuorumUnreachable(RedlockError):
    """Too few nodes could be asked, and none said that the lock is held.

    ``nodes`` gives the reason for each node that did not vote; ``retry_after`` is set, in seconds,
    when it is known that enough nodes will vote again by then.
    """

    def __init__(
        self,
        message: str = "",
        nodes: dict[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, nodes, retry_after)
        self.nodes = nodes or {}
        self.retry_after = retry_after


class LeaseLost(RedlockError):
    """A lease that was granted is not ours any more, though the work under it goes on.

    ``reason`` is one of the values of :data:`celery_redlock.lease.Reason`.
    """

    def __init__(self, message: str = "", key: str = "", reason: str = "") -> None:
        super().__init__(message, key, reason)
        self.key = key
        self.reason = reason
