"""Threads, locks and poll as they were before gevent or eventlet put greenlets in their place (T12).

The lock's own threads must be real ones: a heartbeat that is a greenlet starves beside a greenlet
that keeps the processor for itself. Without those libraries, this is just the standard library.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol


def patched_by() -> str:
    """The library whose greenlets stand where this process had threads; or an empty string."""
    gevent = sys.modules.get("gevent.monkey")
    if gevent is not None and gevent.is_module_patched("socket"):
        return "gevent"
    eventlet = sys.modules.get("eventlet.patcher")
    if eventlet is not None and eventlet.is_monkey_patched("socket"):
        return "eventlet"
    return ""


def _original(module: str, name: str) -> Any:
    library = patched_by()
    if library == "gevent":
        return sys.modules["gevent.monkey"].get_original(module, name)
    if library == "eventlet":
        return getattr(sys.modules["eventlet.patcher"].original(module), name)
    return getattr(importlib.import_module(module), name)


# Taken now, since they may be replaced later.
Lock: Callable[[], Any] = _original("_thread", "allocate_lock")
RLock: Callable[[], Any] = _original("_thread", "RLock")
get_ident: Callable[[], int] = _original("_thread", "get_ident")
poll: Callable[[], Any] = _original("select", "poll")
read: Callable[[int, int], bytes] = _original("os", "read")
write: Callable[[int, bytes], int] = _original("os", "write")
socket: Callable[..., Any] = _original("socket", "socket")
_start_new_thread: Callable[..., Any] = _original("_thread", "start_new_thread")


class Alarm:
    """Wakes the one thread that waits for it; if none does, the next that comes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is ringing already

    def wait(self, seconds: float) -> bool:
        return bool(self._lock.acquire(True, seconds))


class Thread(Protocol):
    def start(self) -> None: ...

    def is_alive(self) -> bool: ...


def thread(work: Callable[[], object], name: str) -> Thread:
    """A daemon thread, to be started."""
    if patched_by():
        return _RawThread(work)
    return threading.Thread(target=work, name=name, daemon=True)


_own: set[int] = set()
os.register_at_fork(after_in_child=_own.clear)


def in_own_thread() -> bool:
    """Whether the caller runs in a native thread of ours, beside a process full of greenlets."""
    return bool(_own) and get_ident() in _own


class _RawThread:
    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._alive = False

    def start(self) -> None:
        self._alive = True
        try:
            _start_new_thread(self._run, ())
        except BaseException:
            self._alive = False
            raise

    def is_alive(self) -> bool:
        return self._alive

    def _run(self) -> None:
        _own.add(get_ident())
        try:
            self._work()
        finally:
            self._alive = False
            _own.discard(get_ident())
            _close_hub()


def _close_hub() -> None:
    """gevent gives a hub to every thread that uses one of its sockets, and leaves it open."""
    if patched_by() == "gevent":
        hub = sys.modules["gevent._hub_local"].get_hub_if_exists()
        if hub is not None:
            hub.destroy(destroy_loop=True)


def adopted(sock: Any) -> Any:
    """The same connection as a native, non-blocking socket: a green one must stay in its thread."""
    if not patched_by():
        return sock
    if hasattr(sock, "pending"):
        return _AdoptedTls(sock)
    twin = socket(fileno=os.dup(sock.fileno()))
    sock.close()
    return twin


class _AdoptedTls:
    """OpenSSL's end of a green socket, without the green around it: it does not wait either way."""

    def __init__(self, sock: Any) -> None:
        self._green = sock
        self._raw = getattr(
            sock, "_sock", sock
        )  # gevent has the system's socket inside, eventlet is one
        self._tls = sock._sslobj
        self.fileno = self._raw.fileno
        self.send = self._tls.write
        self.recv = self._tls.read
        self.pending = self._tls.pending
        self.close = self._raw.close

    def setblocking(self, blocking: bool) -> None:
        assert not blocking
        self._raw.setblocking(False)
