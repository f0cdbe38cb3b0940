"""A body gets the error while it runs, and nothing gets it after that (T11)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from celery_redlock import ConfigError, LeaseLost
from celery_redlock import interrupt as interrupt_module
from celery_redlock.interrupt import Interrupt, interrupt

LOST = LeaseLost("gone", "key", "taken")


@pytest.mark.parametrize("place", ["main", "thread"])
def test_it_strikes_while_the_body_runs_and_never_after(place: str) -> None:
    program = [sys.executable, "-m", "tests.unit.interrupted", place]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50)
    assert not done.stderr
    assert int(done.stdout) > 0


def in_thread(work: Callable[[], None]) -> None:
    """Run it in a thread of its own, and raise what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(50)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def spin_until_struck(this: Interrupt) -> None:
    begun = threading.Event()

    def strike() -> None:
        begun.wait()
        this.strike(LOST)

    threading.Thread(target=strike).start()
    with pytest.raises(LeaseLost):
        spin(begun)


def spin(begun: threading.Event) -> None:
    begun.set()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


def test_one_that_is_not_armed_does_nothing() -> None:
    in_thread(lambda: interrupt().strike(LOST))


def test_one_that_was_never_armed_can_be_disarmed() -> None:
    interrupt().disarm()
    in_thread(lambda: interrupt().disarm())


def test_bodies_within_bodies() -> None:
    """A task may call another eagerly: each is interrupted by its own loss."""

    def body() -> None:
        outer, inner = interrupt(), interrupt()
        outer.arm()
        inner.arm()
        spin_until_struck(inner)
        inner.disarm()
        spin_until_struck(outer)
        outer.disarm()

    in_thread(body)


def test_a_signal_that_others_use_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: print)
    with pytest.raises(ConfigError, match="needs a signal"):
        interrupt_module._install(print)
