"""Redlock quorum locks for Celery tasks."""

from typing import TYPE_CHECKING, Any

from .errors import ConfigError, LeaseLost, LockHeld, QuorumUnreachable, RedlockError
from .lease import Lease, Loss
from .owner import Holder
from .redlock import Redlock

if TYPE_CHECKING:
    from .task import LockedTask

__all__ = [
    "ConfigError",
    "Holder",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "LockedTask",
    "Loss",
    "QuorumUnreachable",
    "Redlock",
    "RedlockError",
]


def __getattr__(name: str) -> Any:
    """LockedTask brings Celery's machinery along: only for those who use it."""
    if name == "LockedTask":
        from .task import LockedTask

        return LockedTask
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
