"""For tests, yours and ours. Nothing here is imported by the lock itself.

memory.py has lock nodes without servers, and locks.py puts the locks of an app's tasks there;
servers.py has real servers that can be killed and frozen; proxy.py has a network that can be slow,
and can be cut.
"""

from typing import TYPE_CHECKING, Any

from .memory import ManualClock, MemoryNode, MemoryNodes
from .proxy import Proxy
from .servers import Server, ServerMissing, servers

if TYPE_CHECKING:
    from .locks import MemoryLocks

__all__ = [
    "ManualClock",
    "MemoryLocks",
    "MemoryNode",
    "MemoryNodes",
    "Proxy",
    "Server",
    "ServerMissing",
    "servers",
]


def __getattr__(name: str) -> Any:
    """MemoryLocks brings Celery's machinery along: only for those who use it."""
    if name == "MemoryLocks":
        from .locks import MemoryLocks

        return MemoryLocks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
