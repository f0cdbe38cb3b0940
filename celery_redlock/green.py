"""Locks under gevent and eventlet: one native thread does the asking for all greenlets (T12).

A greenlet hands its round to that thread and waits, while other greenlets run. The heartbeat, which
is a native thread as well, hands over its renewals in the same way; so what is sent later never
overtakes what was sent earlier, whoever sent it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from . import native
from .channel import Channel, Waiting
from .round import Command, Tally

logger = logging.getLogger("celery_redlock")

#: Seconds. Whoever waits looks so often whether anyone is still there to wake him.
LONGEST_WAIT = 1.0
LONGEST_NAP = 60.0


class Event(Protocol):
    def set(self) -> None:
        """In the hub."""

    def wait(self, seconds: float) -> bool: ...


class Hub(Protocol):
    """What runs the greenlets of one thread, as far as it can be spoken to from other threads."""

    def call(self, work: Callable[[], object]) -> None:
        """Have it called by the hub itself, soon. It must not wait for anything."""

    def spawn(self, work: Callable[[], object]) -> None:
        """Have it called in a greenlet of its own, soon."""

    def event(self) -> Event: ...


class GeventHub:
    def __init__(self, hub: Any) -> None:
        import gevent.event

        self._calls: deque[Callable[[], object]] = deque()
        self._spawn = gevent.spawn
        self.event: Callable[[], Event] = gevent.event.Event
        self._bell = hub.loop.async_(ref=False)
        self._bell.start(self._run)

    def call(self, work: Callable[[], object]) -> None:
        self._calls.append(work)
        self._bell.send()

    def spawn(self, work: Callable[[], object]) -> None:
        self.call(lambda: self._spawn(work))

    def _run(self) -> None:
        _call_all(self._calls)


class EventletHub:
    def __init__(self, hub: Any) -> None:
        import eventlet

        self._calls: deque[Callable[[], object]] = deque()
        self._spawn = eventlet.spawn_n
        self._bell_out, self._bell_in = os.pipe()
        os.set_blocking(self._bell_out, False)
        os.set_blocking(self._bell_in, False)
        hub.add(hub.READ, self._bell_out, self._run, lambda *_: None, lambda: None)

    def call(self, work: Callable[[], object]) -> None:
        self._calls.append(work)
        try:
            native.write(self._bell_in, b"!")
        except BlockingIOError:
            pass  # it rings already, and loudly

    def spawn(self, work: Callable[[], object]) -> None:
        self.call(lambda: self._spawn(work))

    def event(self) -> Event:
        return _EventletEvent()

    def _run(self, fd: int) -> None:
        native.read(fd, 4096)
        _call_all(self._calls)


class _EventletEvent:
    def __init__(self) -> None:
        from eventlet.event import Event

        self._event = Event()

    def set(self) -> None:
        if not self._event.ready():
            self._event.send(True)

    def wait(self, seconds: float) -> bool:
        return bool(self._event.wait(timeout=seconds))


def _call_all(calls: deque[Callable[[], object]]) -> None:
    while calls:
        try:
            calls.popleft()()
        except Exception:
            logger.exception("a call in the hub failed")


_hubs: weakref.WeakKeyDictionary[Any, Hub] = weakref.WeakKeyDictionary()
os.register_at_fork(after_in_child=_hubs.clear)  # else parent and child would hear one bell


def hub() -> Hub:
    """Of the calling thread."""
    library = native.patched_by()
    if library == "gevent":
        current = sys.modules["gevent"].get_hub()
    else:
        current = sys.modules["eventlet.hubs"].get_hub()
    if current not in _hubs:
        _hubs[current] = GeventHub(current) if library == "gevent" else EventletHub(current)
    return _hubs[current]


def teller() -> Callable[[Callable[[], object]], object]:
    """How our threads tell something to whoever calls this: in a greenlet of its hub."""
    here = hub()
    return lambda work: here.spawn(work) if native.in_own_thread() else work()


class Relay:
    """Carries the rounds of all greenlets and of the heartbeat: a Carrier, on one channel."""

    def __init__(self, channel: Channel) -> None:
        self._handing_over = native.RLock()
        self._thread = _CarryingThread(channel)
        weakref.finalize(self, self._thread.close)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """For our own threads, and let go while they wait. A greenlet has nothing to gain from it: what
        it hands over, it hands over at once, and another greenlet could come in between all the same.
        """
        return self._handing_over if native.in_own_thread() else contextlib.nullcontext()

    @property
    def closed(self) -> bool:
        return self._thread.closed

    def open(self, wanted: int, patience: float) -> None:
        channel = self._thread.channel
        if not channel.complete:
            self._carry(lambda: channel.opening(wanted, patience))

    def round(
        self,
        commands: Sequence[Command],
        tally: Tally,
        patience: float,
        nodes: Iterable[int] | None = None,
    ) -> None:
        channel = self._thread.channel
        self._carry(lambda: channel.asking(commands, tally, patience, nodes), wait=patience > 0)

    def close(self) -> None:
        self._thread.close()

    def abandon(self) -> None:
        self._thread.channel.abandon()

    def _carry(self, begin: Callable[[], Waiting], wait: bool = True) -> None:
        event: native.Alarm | Event
        if native.in_own_thread():
            event = alarm = native.Alarm()
            order = _Order(begin, alarm.ring)
        else:
            here = hub()
            event = green = here.event()
            order = _Order(begin, lambda: here.call(green.set))
        with self._handing_over:
            self._thread.take(order)
        if wait:
            with self._lock_let_go():
                self._wait(order, event)

    @contextlib.contextmanager
    def _lock_let_go(self) -> Iterator[None]:
        """If the caller has it: only our own threads ever keep it."""
        held = native.in_own_thread() and self._handing_over._is_owned()
        state = self._handing_over._release_save() if held else None
        try:
            yield
        finally:
            if held:
                self._handing_over._acquire_restore(state)

    def _wait(self, order: _Order, event: native.Alarm | Event) -> None:
        try:
            while not order.done and not self.closed:
                event.wait(LONGEST_WAIT)
        except BaseException:
            order.cancelled = True  # nothing of it may be sent any more
            raise
        if order.error is not None:
            raise order.error


class _Order:
    """A round on its way, or the opening of connections."""

    def __init__(self, begin: Callable[[], Waiting], wake: Callable[[], object]) -> None:
        self.begin = begin
        self.wake = wake
        self.cancelled = False
        self.done = False
        self.error: Exception | None = None
        self._waiting: Waiting | None = None

    def go_on(self) -> float | None:
        """For how many seconds it still waits; None: it is done."""
        try:
            if not self.cancelled:
                self._waiting = self._waiting or self.begin()
                if (left := next(self._waiting, None)) is not None:
                    return left
            elif self._waiting is not None:
                self._waiting.close()
        except Exception as error:
            self.error = error
        self.done = True
        try:
            self.wake()
        except Exception as error:  # its hub is gone, and with it whoever waited there
            logger.warning("nobody is left to hear of a lock's round: %s", error)
        return None


class _CarryingThread:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.closed = False
        self._orders: deque[_Order] = deque()
        self._under_way: list[_Order] = []
        native.thread(self._run, "redlock-relay").start()

    def take(self, order: _Order) -> None:
        self._orders.append(order)
        self.channel.wake()

    def close(self) -> None:
        self.closed = True
        self.channel.wake()

    def _run(self) -> None:
        while not self.closed:
            try:
                self.channel.serve(self._go_on())
            except Exception:
                logger.exception("a round stumbled; others go on")
        self.channel.close()

    def _go_on(self) -> float:
        """Let all that is under way go on; for how long there is nothing more to do for it."""
        while self._orders:
            self._under_way.append(self._orders.popleft())
        left = [(order, order.go_on()) for order in self._under_way]
        self._under_way = [order for order, seconds in left if seconds is not None]
        return min((seconds for _, seconds in left if seconds is not None), default=LONGEST_NAP)
