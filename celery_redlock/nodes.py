"""The servers together, as the algorithm sees them: names, channels, time and chance."""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from . import green, native
from .address import Address
from .channel import Channel
from .errors import ConfigError
from .green import Relay
from .node import Node, Roster, clock
from .round import Carrier

#: Channels of ended threads that are kept for new ones.
SPARE_CHANNELS = 8


class RedisNodes:
    """N independent servers. Each thread that locks gets a channel of its own (Q2); greenlets share one.

    A forked child starts afresh: it never touches its parent's connections, locks and threads.
    """

    def __init__(self, urls: Sequence[str], node_timeout: float, guarded: bool) -> None:
        self._addresses = [Address(url, node_timeout, number) for number, url in enumerate(urls, 1)]
        self._node_timeout = node_timeout
        self._guarded = guarded
        self.names = [address.name for address in self._addresses]
        self._start()

    def _start(self) -> None:
        self._met = False
        roster = Roster()
        self._nodes = [
            Node(index, address, roster, self._node_timeout, self._guarded)
            for index, address in enumerate(self._addresses)
        ]
        self._local = threading.local()
        self._spare: list[Channel] = []
        self._channels: weakref.WeakSet[Channel | Relay] = weakref.WeakSet()
        self._relay: Relay | None = None
        self._starting_relay = native.Lock()
        self._pid = os.getpid()  # last: other threads may look at it meanwhile

    def now(self) -> float:
        return clock()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def secret(self) -> str:
        """128 bits, as 32 hex digits: from the system, so that a fork does not repeat them."""
        return secrets.token_hex(16)

    def teller(self) -> Callable[[Callable[[], object]], object]:
        return green.teller() if native.patched_by() else _tell_at_once

    def channel(self) -> Channel | Relay:
        """The calling thread's."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        if native.patched_by():
            return self._shared_channel()
        loan: _Loan | None = getattr(self._local, "loan", None)
        if loan is None or loan.channel.closed:
            loan = self._local.loan = _Loan(self._take_channel(), self._spare)
        return loan.channel

    def _take_channel(self) -> Channel:
        try:
            return self._spare.pop()
        except IndexError:
            channel = Channel(self._nodes, clock, self._node_timeout)
            self._channels.add(channel)
            return channel

    def _shared_channel(self) -> Relay:
        with self._starting_relay:
            if self._relay is None or self._relay.closed:
                self._relay = Relay(Channel(self._nodes, clock, self._node_timeout))
                self._channels.add(self._relay)
            return self._relay

    def meet(self, channel: Carrier, quorum: int, patience: float) -> None:
        channel.open(quorum if self._met else len(self._nodes), patience)
        self._met = True
        for node in self._nodes:
            if node.fault:
                raise ConfigError(node.fault)

    def close(self) -> None:
        if self._pid != os.getpid():
            self._leave_to_parent()
            return
        channels = list(self._channels)
        self._start()
        for channel in channels:
            channel.close()

    def _leave_to_parent(self) -> None:
        channels = list(self._channels)
        self._start()
        for channel in channels:
            channel.abandon()


class _Loan:
    """A thread's hold on its channel. It lies in a thread-local, and so ends with the thread."""

    def __init__(self, channel: Channel, spare: list[Channel]) -> None:
        self.channel = channel
        self.spare = spare

    def __del__(self) -> None:
        if len(self.spare) < SPARE_CHANNELS and not self.channel.closed:
            self.spare.append(self.channel)


def _tell_at_once(work: Callable[[], object]) -> None:
    work()
