"""Programs that lock under gevent or eventlet: `-m tests.servers.greenlets LIBRARY PROGRAM URL …`.

Each is run in a process of its own, since patching cannot be undone. It fails, or prints what it saw.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

if __name__ == "__main__" and sys.argv[1] == "gevent":
    from gevent import monkey

    monkey.patch_all()
elif __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and says so
        import eventlet

        eventlet.monkey_patch()

import os
import threading
import time

from celery_redlock import Lease, LeaseLost, QuorumUnreachable, Redlock
from celery_redlock.native import in_own_thread


def spawn(work: Callable[[], object]) -> Any:
    """A greenlet, by the way that every library has to make one: it has replaced the threads."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def exclusion(urls: list[str]) -> object:
    """Fifty greenlets, five keys."""
    redlock = Redlock(urls, ttl=5, restart_guard=0)
    inside, fences = [0] * 5, [[] for _ in range(5)]  # type: ignore[var-annotated]

    def work(key: int) -> None:
        for _ in range(10):
            with redlock.lock(f"key-{key}", wait=30) as lease:
                inside[key] += 1
                assert inside[key] == 1
                fences[key].append(lease.fence)
                time.sleep(0.001)
                inside[key] -= 1

    for greenlet in [spawn(lambda key=number % 5: work(key)) for number in range(50)]:  # type: ignore[misc]
        greenlet.join()
    assert all(series == sorted(set(series)) for series in fences)
    return sum(map(len, fences))


def hogging(urls: list[str]) -> object:
    """A greenlet that gives nobody else a turn, for longer than the TTL."""
    redlock = Redlock(urls, ttl=0.6, restart_guard=0)
    with redlock.lock("key") as lease:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass
        lease.check()
    return "kept"


def waiting(urls: list[str]) -> object:
    """While one greenlet waits for servers that hang, others have their turns."""
    redlock = Redlock(urls, restart_guard=0, node_timeout=1)
    turns = 0

    def ask() -> None:
        try:
            redlock.acquire("key")
        except QuorumUnreachable:
            asked.append(turns)

    asked: list[int] = []
    greenlet = spawn(ask)
    deadline = time.monotonic() + 10
    while not asked and time.monotonic() < deadline:
        turns += 1
        time.sleep(0.01)
    greenlet.join()
    return asked[0] > 20


def losing(urls: list[str]) -> object:
    """The loss is told in a greenlet, and not in the heartbeat's thread."""
    redlock = Redlock(urls, ttl=0.5, restart_guard=0)
    told: list[bool] = []
    with redlock.lock("key", on_lost=lambda lease: told.append(in_own_thread())) as lease:
        holder = redlock.inspect("key")
        assert holder is not None
        assert redlock.unlock("key", holder)
        stranger = redlock.acquire("key")
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            lease.check()
        except LeaseLost as lost:
            stranger.release()
            return f"{lost.reason} {told}"
    return "not lost"


def interrupted(urls: list[str]) -> object:
    """A greenlet that is killed while it acquires leaves no lock behind."""
    redlock = Redlock(urls, restart_guard=0, node_timeout=1)
    redlock.acquire("before").release()
    killed = sum(_killed_while_acquiring(redlock) for _ in range(20))
    redlock.acquire("key", wait=5).release()
    return killed > 0


def _killed_while_acquiring(redlock: Redlock) -> bool:
    """Whether that came in time; else it has the lock, and gives it back."""
    leases: list[Lease] = []
    library = sys.modules[sys.argv[1]]
    greenlet = library.spawn(lambda: leases.append(redlock.acquire("key")))
    library.sleep(0)  # it has asked, and waits for the answer
    greenlet.kill()
    for lease in leases:
        lease.release()
    return not leases


def closing(urls: list[str]) -> object:
    """Nothing is left of a lock that was closed, or let go of."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    for close in (True, False):
        redlock = Redlock(urls, restart_guard=0)
        with redlock.lock("key"):
            assert threads() > before
        if close:
            redlock.close()
        del redlock
        deadline = time.monotonic() + 10
        while threads() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() == before, close
    return "gone"


def forking(urls: list[str]) -> object:
    """A child has locks of its own, and its parent keeps its own."""
    redlock = Redlock(urls, ttl=5, restart_guard=0)
    with redlock.lock("parent's") as lease:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if sys.argv[1] == "eventlet":
                    eventlet.hubs.use_hub()  # as eventlet wants it after a fork
                with redlock.lock("child's"):
                    time.sleep(0.1)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        redlock.acquire("another").release()
        lease.check()
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    print(globals()[sys.argv[2]](sys.argv[3:]))
