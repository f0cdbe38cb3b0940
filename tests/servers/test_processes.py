"""Threads, forks, and interrupts at bad moments."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redlock import LeaseLost, LockHeld, Redlock
from celery_redlock.testing import Server

from ..waiting import wait_until
from .conftest import lock_on

IN_REDIS = "redlock:{key}"


def run_in_child(work: Callable[[], object]) -> int:
    """Fork, work, and give the child's exit status: 0 if the work returned something true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_fifty_threads_take_a_hundred_locks_each(five: list[Server]) -> None:
    with lock_on(five, node_timeout=10) as redlock:
        inside, overlaps, fences = [0] * 10, [], [[] for _ in range(10)]  # type: ignore[var-annotated]

        def work(number: int) -> None:
            for turn in range(100):
                key = (number + turn) % 10
                lease = redlock.acquire(f"key-{key}", wait=50)
                inside[key] += 1
                if inside[key] != 1:
                    overlaps.append(key)
                fences[key].append(lease.fence)
                inside[key] -= 1
                assert lease.release()

        with ThreadPoolExecutor(50) as pool:
            list(pool.map(work, range(50)))
        assert not overlaps
        assert sum(map(len, fences)) == 5000
        assert all(series == sorted(set(series)) for series in fences)


def test_threads_that_end_leave_their_connections_to_new_ones(
    redlock: Redlock, five: list[Server]
) -> None:
    def clients() -> int:
        return int(five[0].client().info("clients")["connected_clients"])

    before = clients()
    for _ in range(20):
        thread = threading.Thread(target=lambda: redlock.acquire("key").release())
        thread.start()
        thread.join()
    assert clients() - before <= 2


def test_a_lease_can_be_released_by_another_thread(redlock: Redlock) -> None:
    lease = redlock.acquire("key")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lease.release).result(5)
    redlock.acquire("key").release()


def test_a_child_does_not_own_its_parents_lease(redlock: Redlock, five: list[Server]) -> None:
    with redlock.lock("key") as lease:

        def child() -> bool:
            with pytest.raises(LeaseLost):
                lease.check()
            return lease.lost and not lease.release()

        assert run_in_child(child) == 0
        lease.check()
        assert redlock.inspect("key") is not None


def test_a_child_locks_on_connections_of_its_own(redlock: Redlock) -> None:
    lease = redlock.acquire("key")

    def child() -> bool:
        with pytest.raises(LockHeld):
            redlock.acquire("key")
        for _ in range(50):
            redlock.acquire("other", wait=5).release()
        return True

    assert run_in_child(child) == 0
    for _ in range(50):
        redlock.acquire("third").release()
    assert lease.release()


def test_a_child_may_close_what_its_parents_threads_are_using(five: list[Server]) -> None:
    with lock_on(five) as redlock:
        channels = redlock._quorum.nodes.channel()
        with ThreadPoolExecutor(1) as pool:
            held, done = threading.Event(), threading.Event()

            def hold() -> None:
                with channels.lock:
                    held.set()
                    assert done.wait(20)

            holding = pool.submit(hold)
            assert held.wait(5)

            def child() -> bool:
                redlock.close()
                return redlock.acquire("childs").release()

            assert run_in_child(child) == 0
            done.set()
            holding.result(5)


def test_a_child_leaves_no_connection_of_its_parent_open(redlock: Redlock, five: list[Server]) -> None:
    """Else the server would not see the parent go."""
    redlock.acquire("key").release()
    ports = {f":{node.port}" for node in five}

    def child() -> bool:
        redlock.acquire("other").release()
        return len(_sockets_to(ports)) == 5

    assert run_in_child(child) == 0


def _sockets_to(ports: set[str]) -> list[int]:
    found = []
    for fd in range(3, 200):
        with contextlib.suppress(OSError):
            probe = socket.socket(fileno=os.dup(fd))
            with probe:
                if f":{probe.getpeername()[1]}" in ports:
                    found.append(fd)
    return found


def test_a_child_has_a_heartbeat_of_its_own(five: list[Server]) -> None:
    with lock_on(five, ttl=1) as redlock, redlock.lock("parents") as parents:

        def child() -> bool:
            with redlock.lock("childs", wait=2) as lease:
                until = lease.until
                wait_until(lambda: lease.until > until)
                return not lease.lost

        assert run_in_child(child) == 0
        parents.check()


def test_a_fork_while_other_threads_lock_does_not_hang_the_child(five: list[Server]) -> None:
    with lock_on(five, ttl=5) as redlock:
        stop = threading.Event()

        def work(name: str) -> None:
            while not stop.is_set():
                with redlock.lock(name):
                    pass

        threads = [threading.Thread(target=work, args=[f"busy-{n}"]) for n in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                assert run_in_child(lambda: redlock.acquire("childs").release()) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_ctrl_c_in_the_middle_of_acquire_leaves_nothing_behind(five: list[Server]) -> None:
    with lock_on(five, node_timeout=5) as redlock:
        redlock.acquire("key").release()
        for node in five[:3]:
            node.freeze()
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            redlock.acquire("key")
        for node in five[:3]:
            node.thaw()
        wait_until(lambda: not any(node.client().get(IN_REDIS) for node in five))


class Storm:
    """Raises TimeoutError out of a signal handler, at whatever bytecode runs when the time has come."""

    def __init__(self) -> None:
        self.armed = False

    def strike(self, number: int, frame: object) -> None:
        if self.armed:
            self.armed = False
            raise TimeoutError("out of the blue")

    def after(self, seconds: float) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.fixture
def storm() -> Iterator[Storm]:
    storm = Storm()
    old = signal.signal(signal.SIGALRM, storm.strike)
    yield storm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a __del__
def test_exceptions_out_of_the_blue_never_mix_up_replies(storm: Storm, five: list[Server]) -> None:
    """Soft time limits raise in the middle of anything. A vote must stay with its own command."""
    outcomes: Counter[str] = Counter()

    def one_try(redlock: Redlock, key: str, seconds: float) -> str:
        try:
            storm.after(seconds)
            try:
                lease = redlock.acquire(key)
            finally:
                storm.armed = False
            lease.release()
            return "granted"
        except LockHeld:
            return "refused"
        except (TimeoutError, RuntimeError):
            return "interrupted"  # RuntimeError: CPython's Thread.start() stumbled over it

    with lock_on(five, ttl=1) as redlock, lock_on(five, ttl=30) as other:
        held = other.acquire("held")
        deadline = time.monotonic() + 4
        for number in range(4000):
            if time.monotonic() > deadline:
                break
            key = "held" if number % 2 else f"free-{number}"
            outcomes[f"{key[:4]} {one_try(redlock, key, (10 + number * 7919 % 900) / 1e6)}"] += 1
        assert held.release()
    assert set(outcomes) == {"held refused", "held interrupted", "free granted", "free interrupted"}
