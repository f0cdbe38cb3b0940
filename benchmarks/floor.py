"""What the network and the servers cost by themselves: plain sockets, bytes packed beforehand.

It waits for all five nodes, checks nothing but two replies' first bytes, and survives no fault.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

_DELETE_OWN = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
)
_KEY, _VALUE = "bench:floor", "0123456789abcdef0123456789abcdef"


class Floor:
    def __init__(self, ports: Sequence[int], ttl: float, timeout: float) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port), timeout) for port in ports]
        for sock in self._sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        [digest] = {
            reply.split()[1].decode() for reply in self._ask(_pack("SCRIPT", "LOAD", _DELETE_OWN))
        }
        self._acquire = _pack("SET", _KEY, _VALUE, "NX", "PX", str(int(ttl * 1000)))
        self._release = _pack("EVALSHA", digest, "1", _KEY, _VALUE)

    def attempt(self) -> None:
        for reply in self._ask(self._acquire):
            assert reply == b"+OK\r\n", reply
        for reply in self._ask(self._release):
            assert reply == b":1\r\n", reply

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _ask(self, command: bytes) -> list[bytes]:
        for sock in self._sockets:
            sock.sendall(command)
        return [sock.recv(4096) for sock in self._sockets]


def _pack(*parts: str) -> bytes:
    packed = [f"${len(part)}\r\n{part}\r\n" for part in parts]
    return "".join([f"*{len(parts)}\r\n", *packed]).encode()
