"""One thread's connections, one per node, and how a round goes out over them.

A round is sent to every node before any reply is read; replies are taken as they come, and the round
ends as soon as its tally has heard enough (Q1). What a slow node still owes is heard later, on the
same connection and in order (Q2). Everything happens in the calling thread, except connecting.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Protocol

from . import native
from .connection import Broken, Connection
from .round import Answer, Command, Round, Tally

#: How many releases wait for a node that is being connected to; a key's TTL covers the others.
LONGEST_LINE = 100

_RDHUP = getattr(select, "POLLRDHUP", 0)  # Linux tells only those who ask that the other end is gone
_READ = select.POLLIN | _RDHUP
_GONE = select.POLLHUP | select.POLLERR | _RDHUP


#: What waits for something: it yields for how many seconds still, each time it is asked.
Waiting = Generator[float, None, None]


class Dialer(Protocol):
    """Connects to one node, outside the caller's time."""

    @property
    def served_at(self) -> float:
        """When it last delivered a connection, to whomever."""

    def dial(self, channel: Channel) -> str | None:
        """Have a connection delivered to the channel; or say why that cannot be, for now."""


class Channel:
    """The real :class:`~celery_redlock.round.Carrier`.

    Whoever uses it holds its lock: a release may come from another thread than its acquire.
    """

    closed = True  # until it is set up

    def __init__(
        self, dialers: Sequence[Dialer], clock: Callable[[], float], node_timeout: float
    ) -> None:
        self.lock = native.RLock()
        self._dialers = dialers
        self._clock = clock
        self._node_timeout = node_timeout
        self._connections: dict[int, Connection] = {}
        self._awaited: dict[int, list[Round]] = {}  # what to send to a node once it is connected
        self._poll = native.poll()
        self._node_at: dict[int, int] = {}
        self._deliveries: deque[tuple[int, Connection | str]] = deque()
        self._bell = native.Lock()
        self._bell_out, self._bell_in = os.pipe()
        self._poll.register(self._bell_out, select.POLLIN)
        self.closed = False

    @property
    def complete(self) -> bool:
        """Whether every node is connected."""
        return len(self._connections) == len(self._dialers)

    def open(self, wanted: int, patience: float) -> None:
        if not self.complete:
            with self.lock:
                self._attend(self.opening(wanted, patience))

    def round(
        self,
        commands: Sequence[Command],
        tally: Tally,
        patience: float,
        nodes: Iterable[int] | None = None,
    ) -> None:
        with self.lock:
            self.serve(0)
            self._attend(self.asking(commands, tally, patience, nodes))

    def _attend(self, waiting: Waiting) -> None:
        try:
            for left in waiting:
                self.serve(left)
        finally:
            waiting.close()  # also when interrupted: nothing of it may be sent any more

    def opening(self, wanted: int, patience: float) -> Waiting:
        start = self._clock()
        self.serve(0)
        for node in range(len(self._dialers)):
            if node not in self._connections:
                self._dial(node, None)
        while len(self._connections) < wanted and self._awaited:
            # Others may be in line before us: as long as the line moves, time is not up.
            moved = max(self._dialers[node].served_at for node in self._awaited)
            if (left := max(start, moved) + patience - self._clock()) <= 0:
                break
            yield left

    def asking(
        self,
        commands: Sequence[Command],
        tally: Tally,
        patience: float,
        nodes: Iterable[int] | None = None,
    ) -> Waiting:
        receivers = range(len(self._dialers)) if nodes is None else list(nodes)
        this = Round(commands, tally, len(receivers), self._clock())
        try:
            for node in receivers:
                self._send(node, this)
            while this.open and (left := this.sent + patience - self._clock()) > 0:
                yield left
        finally:
            this.open = False

    def deliver(self, node: int, connection: Connection | str) -> None:
        """A dialer hands over a connection, or the reason why there is none."""
        with self._bell:
            if not self.closed:
                self._deliveries.append((node, connection))
                self._ring()
            elif isinstance(connection, Connection):
                connection.close()

    def wake(self) -> None:
        """End a `serve` that is waiting in another thread."""
        if self.closed:
            return  # in a forked child, a thread of the parent may have held the bell
        with self._bell:
            if not self.closed:
                self._ring()

    def _ring(self) -> None:
        native.write(self._bell_in, b"!")

    def close(self) -> None:
        with self.lock, self._bell:
            for node in list(self._connections):
                self._drop(node, "the channel was closed")
            self.abandon()

    def abandon(self) -> None:
        """Close our ends and take no lock: for a forked child, whose parent's threads held them."""
        if not self.closed:
            self.closed = True
            delivered = [c for _, c in self._deliveries if isinstance(c, Connection)]
            for connection in [*self._connections.values(), *delivered]:
                connection.close()
            self._poll = native.poll()
            os.close(self._bell_out)
            os.close(self._bell_in)

    __del__ = abandon

    def _send(self, node: int, this: Round) -> None:
        connection = self._connections.get(node)
        if connection and connection.torn:
            self._drop(node, "interrupted")
        elif connection and self._is_overdue(connection, this):
            self._drop(node, f"no answer within {self._node_timeout:g} s")
        elif connection:
            try:
                connection.send(this)
            except Broken as broken:
                self._drop(node, str(broken))
            else:
                self._watch(connection)
            return
        self._dial(node, this)

    def _is_overdue(self, connection: Connection, this: Round) -> bool:
        """But a release goes where its acquire went: a server that wakes up carries out both."""
        return connection.overdue(this.sent - self._node_timeout) and not this.only_releases

    def _dial(self, node: int, this: Round | None) -> None:
        waiting = [older for older in self._awaited.get(node, []) if _still_wanted(older)]
        self._awaited[node] = waiting[-LONGEST_LINE:] + ([] if this is None else [this])
        why_not = "the channel was closed" if self.closed else self._dialers[node].dial(self)
        if why_not is not None:
            self._refuse(node, why_not)

    def _refuse(self, node: int, why_not: str) -> None:
        for this in self._awaited.pop(node, []):
            this.hear_nothing(node, why_not)

    def serve(self, seconds: float) -> None:
        """Wait for anything to happen on any connection, and deal with all that has."""
        for fd, event in self._poll.poll(seconds * 1000):
            if fd == self._bell_out:
                native.read(fd, 4096)
                self._collect()
                continue
            node = self._node_at.get(fd, -1)
            connection = self._connections.get(node)
            if connection is None or connection.fd != fd:
                self._poll.unregister(fd)  # its drop was interrupted half-way
                continue
            if connection.torn:
                self._drop(node, "interrupted")
                continue
            try:
                if event & select.POLLOUT:
                    connection.flush()
                if event & ~select.POLLOUT:
                    connection.hear(node)
                if event & _GONE:  # seen now, and not after the next round was sent into the void
                    raise Broken("it closed the connection")
            except Broken as broken:
                self._drop(node, str(broken))
            else:
                self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        if connection.unsent:
            self._poll.modify(connection.fd, _READ | select.POLLOUT)
            connection.blocked = True
        elif connection.blocked:
            self._poll.modify(connection.fd, _READ)
            connection.blocked = False

    def _collect(self) -> None:
        """Take in the connections that were delivered, and send them what waits for them."""
        while self._deliveries:
            node, connection = self._deliveries.popleft()
            if isinstance(connection, str):
                self._refuse(node, connection)
            elif node in self._connections:
                connection.close()
            else:
                self._poll.register(connection.fd, _READ)
                self._node_at[connection.fd] = node
                self._connections[node] = connection
                for this in self._awaited.pop(node, []):
                    if _still_wanted(this):
                        self._send(node, this)

    def _drop(self, node: int, why: str) -> None:
        """Never re-sent elsewhere: the server may yet carry out what it was sent."""
        connection = self._connections.pop(node)
        self._node_at.pop(connection.fd, None)
        self._poll.unregister(connection.fd)
        connection.close()
        for this, index in connection.owed:
            this.hear(node, index, Answer(why, False))


def _still_wanted(this: Round) -> bool:
    """A release is good for something at any time: it takes back what nobody waits for any more."""
    return this.open or this.only_releases
