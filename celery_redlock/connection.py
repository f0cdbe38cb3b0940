"""A greeted connection to one node, and the queue of replies that the node owes us."""

from __future__ import annotations

import socket
from collections import deque

from .round import Answer, Round, Started

#: No answer of ours comes near this many bytes; whatever sends more is not a lock node.
LONGEST_REPLY = 64 * 1024


class Broken(Exception):
    """The connection is of no use any more; the message says why."""


class Connection:
    """Sends rounds and hears their answers, in order, without ever blocking.

    It is `torn` while the queue and the bytes on the wire may disagree. A signal handler that raises
    just then (Ctrl-C, a soft time limit) leaves it so, and it is not used again: a reply must never
    be taken for the answer to another command.
    """

    def __init__(self, sock: socket.socket, started: Started) -> None:
        sock.setblocking(False)
        self.fd = sock.fileno()
        self.torn = False
        self.unsent = b""
        self.blocked = False  # waiting for room to send the rest
        self.owed: deque[tuple[Round, int]] = deque()
        self._sock = sock
        self._started = started
        self._partial = b""
        self._tls = hasattr(sock, "pending")
        self._would_block: tuple[type[OSError], ...] = (BlockingIOError,)
        if self._tls:
            import ssl

            self._would_block += (ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def send(self, this: Round) -> None:
        self._push(this.payload, this.owed)

    def flush(self) -> None:
        self.torn = True
        try:
            self.unsent = self.unsent[self._sock.send(self.unsent) :]
        except self._would_block:
            pass
        except OSError as error:
            raise Broken(_system_says(error)) from error
        self.torn = False

    def hear(self, node: int) -> None:
        """Pass on every answer that has come in."""
        unknown: list[tuple[Round, int]] = []
        self.torn = True
        for line in self._lines():
            kind = line[:1]
            if not self.owed or (kind != b"+" and kind != b"-"):
                raise Broken("it sent something that is no answer of ours")
            this, index = self.owed.popleft()
            if kind == b"-" and line.startswith(b"-NOSCRIPT") and (this.open or this.only_releases):
                unknown.append((this, index))
            else:
                text = line[1:].decode("utf-8", "surrogateescape")
                this.hear(node, index, Answer(text, kind == b"+", self._started))
        self.torn = False
        for this, index in unknown:
            # Safe while the round is open, since nothing of its lease was sent behind it (Q11); and a
            # release is the last that is ever sent of its lease.
            self._push(this.commands[index].by_text(), [(this, index)])

    def overdue(self, before: float) -> bool:
        return bool(self.owed) and self.owed[0][0].sent < before

    def close(self) -> None:
        self._sock.close()

    __del__ = close

    def _push(self, payload: bytes, owed: list[tuple[Round, int]]) -> None:
        self.torn = True
        self.owed.extend(owed)
        self.unsent += payload
        self.flush()

    def _lines(self) -> list[bytes]:
        try:
            data = self._sock.recv(LONGEST_REPLY)
            while self._tls and self._sock.pending():  # type: ignore[attr-defined]
                data += self._sock.recv(LONGEST_REPLY)  # poll cannot see what TLS has buffered
        except self._would_block:
            return []
        except OSError as error:
            raise Broken(_system_says(error)) from error
        if not data:
            raise Broken("it closed the connection")
        *lines, self._partial = (self._partial + data).split(b"\r\n")
        if len(self._partial) > LONGEST_REPLY:
            raise Broken("its reply has no end")
        return lines


def _system_says(error: OSError) -> str:
    if error.errno is None:
        raise error  # not the system's: a signal handler raised it, a TimeoutError perhaps
    return error.strerror or type(error).__name__
