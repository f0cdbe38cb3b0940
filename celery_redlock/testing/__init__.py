"""For tests, yours and ours. Nothing here is imported by the lock itself.

memory.py has lock nodes without servers; servers.py has real servers that can be killed and frozen;
proxy.py has a network that can be slow, and can be cut.
"""

from .memory import ManualClock, MemoryNode, MemoryNodes
from .proxy import Proxy
from .servers import Server, ServerMissing, servers

__all__ = [
    "ManualClock",
    "MemoryNode",
    "MemoryNodes",
    "Proxy",
    "Server",
    "ServerMissing",
    "servers",
]
