"""How each pool stops a body whose lease is lost: LeaseLost is raised inside it (T11).

In the main thread (prefork, solo) a signal does it, which also ends a blocking call. In another
thread (threads) it is an exception that Python raises at the next instruction, so a blocking call
comes to its end first. A greenlet (gevent, eventlet) is thrown out of what it waits for.

A body may catch the error and go on: then it gets another, until it ends. Once it has ended nothing
is raised any more, whatever was under way.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from typing import Any, ClassVar

from . import native
from .errors import ConfigError, LeaseLost
from .green import hub

#: Seconds between one error and the next, for a body that goes on: at first, and at most. They double,
#: so that a body can clean up in peace.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Interrupt:
    """Aimed at the body that the caller is about to run."""

    def __init__(self) -> None:
        self.error = LeaseLost()
        self._armed = False
        self._striking = False

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        """After this, nothing is raised any more. The last error may come while we are at it."""
        while True:
            try:
                self._armed = False
                while self._striking:
                    time.sleep(0)
                self._call_off()
                return
            except LeaseLost:
                continue

    def strike(self, error: LeaseLost, after: float = 0.0) -> None:
        """Raise the error in the body, again and again until it has ended. In another thread."""
        self.error = error
        time.sleep(after)
        pause = FIRST_PAUSE
        while self._armed:
            self._striking = True  # before looking again: `disarm` waits for the end of a strike
            try:
                if self._armed:
                    self._hit()
            finally:
                self._striking = False
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _hit(self) -> None:
        raise NotImplementedError

    def _call_off(self) -> None:
        """Take back a hit that has not arrived yet."""


def interrupt() -> Interrupt:
    """For the thread or greenlet that calls this."""
    if native.patched_by():
        return _OfGreenlet()
    if threading.current_thread() is threading.main_thread():
        return _OfMainThread()
    return _OfThread()


class _OfMainThread(Interrupt):
    """By a signal. Its handler stays installed, and does nothing unless a body is armed and struck."""

    _in_line: ClassVar[list[_OfMainThread]] = []  # a task may call another one eagerly
    _signal: int | None = None

    def __init__(self) -> None:
        super().__init__()
        if _OfMainThread._signal is None:
            _OfMainThread._signal = _install(_OfMainThread._handle)
        self._main = native.get_ident()
        self._struck = False

    def arm(self) -> None:
        self._struck = False
        self._in_line.append(self)
        super().arm()

    def _hit(self) -> None:
        self._struck = True
        assert self._signal is not None
        signal.pthread_kill(self._main, self._signal)

    def _call_off(self) -> None:
        if self in self._in_line:
            self._in_line.remove(self)

    @staticmethod
    def _handle(number: int, frame: object) -> None:
        for one in _OfMainThread._in_line:
            if one._armed and one._struck:
                one._struck = False
                raise one.error


def _install(handler: Any) -> int:
    """On a signal that nobody uses: a real-time one, or SIGUSR2 where there are none."""
    first, last = (getattr(signal, name, None) for name in ("SIGRTMIN", "SIGRTMAX"))
    candidates = range(first + 2, last + 1) if first and last else [signal.SIGUSR2]
    for number in candidates:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, handler)
            return number
    raise ConfigError(
        "lock_on_lost='interrupt' needs a signal, and all that could be used have handlers already: "
        "leave one of SIGRTMIN+2 and above to it (where there are none: SIGUSR2)"
    )


class _OfThread(Interrupt):
    def __init__(self) -> None:
        super().__init__()
        self._thread = ctypes.c_ulong(native.get_ident())

    def _hit(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(LeaseLost))

    def _call_off(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


class _OfGreenlet(Interrupt):
    def __init__(self) -> None:
        super().__init__()
        self._greenlet = sys.modules["greenlet"].getcurrent()
        self._hub = hub()

    def _hit(self) -> None:
        self._hub.call(self._throw)

    def _throw(self) -> None:
        """In the hub: no greenlet runs meanwhile, so it is armed or not, and does not change."""
        if self._armed:
            self._greenlet.throw(self.error)
