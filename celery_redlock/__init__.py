"""Redlock quorum locks for Celery tasks."""

from .errors import ConfigError, LeaseLost, LockHeld, QuorumUnreachable, RedlockError
from .lease import Lease, Loss
from .owner import Holder
from .redlock import Redlock

__all__ = [
    "ConfigError",
    "Holder",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "Loss",
    "QuorumUnreachable",
    "Redlock",
    "RedlockError",
]
