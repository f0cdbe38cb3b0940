"""A body gets the error while it runs, and nothing gets it after that (T11)."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock import ConfigError, LeaseLost
from celery_redlock import interrupt as interrupt_module
from celery_redlock.interrupt import Interrupt, interrupt

LOST = LeaseLost("gone", "key", "taken")


@pytest.fixture(autouse=True)
def haste(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It strikes at once and all the time, between any two instructions."""
    monkeypatch.setattr(interrupt_module, "FIRST_PAUSE", 0.0003)
    monkeypatch.setattr(interrupt_module, "LONGEST_PAUSE", 0.0003)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def in_main_thread(work: Callable[[], None]) -> None:
    work()


def in_other_thread(work: Callable[[], None]) -> None:
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


@pytest.fixture(params=[in_main_thread, in_other_thread])
def somewhere(request: pytest.FixtureRequest) -> Iterator[Any]:
    return request.param  # type: ignore[no-any-return]


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def struck(seconds: float, swallow: bool) -> bool:
    """Arm, be struck from another thread, disarm; whether the error came meanwhile."""
    this = interrupt()
    striker = threading.Thread(target=this.strike, args=(LOST,))
    this.arm()
    striker.start()
    hit = False
    while striker.is_alive():  # so hasty is it that it may strike before each of these is entered
        try:
            try:
                spin(seconds)
            except LeaseLost:
                hit = True
                if swallow:
                    spin(seconds)
            this.disarm()
            striker.join()
        except LeaseLost:
            hit = True
    return hit


def test_one_that_was_never_armed_can_be_disarmed(somewhere: Any) -> None:
    somewhere(lambda: interrupt().disarm())


def test_it_strikes_while_the_body_runs_and_never_after(somewhere: Any) -> None:
    hits = 0

    def rounds() -> None:
        nonlocal hits
        for number in range(300):
            hits += struck(random.uniform(0, 0.001), swallow=number % 2 == 0)
            spin(0.0005)  # whatever comes here, comes too late

    somewhere(rounds)
    assert hits > 0


def test_a_blocking_call_in_the_main_thread_is_ended() -> None:
    this = interrupt()
    this.arm()
    threading.Thread(target=this.strike, args=(LOST,)).start()
    with pytest.raises(LeaseLost, match="gone"):
        threading.Event().wait(20)
    this.disarm()


def test_one_that_is_not_armed_does_nothing(somewhere: Any) -> None:
    def body() -> None:
        interrupt().strike(LOST)
        spin(0.001)

    somewhere(body)


def test_bodies_within_bodies(somewhere: Any) -> None:
    """A task may call another eagerly: each is interrupted by its own loss."""

    def body() -> None:
        outer, inner = interrupt(), interrupt()
        outer.arm()
        inner.arm()
        strike_until_lost(inner)
        inner.disarm()
        spin(0.001)
        strike_until_lost(outer)
        outer.disarm()
        spin(0.001)

    somewhere(body)


def strike_until_lost(this: Interrupt) -> None:
    threading.Thread(target=this.strike, args=(LOST,)).start()
    with pytest.raises(LeaseLost):
        spin(20)


def test_a_signal_that_others_use_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: print)
    with pytest.raises(ConfigError, match="needs a signal"):
        interrupt_module._install(print)
