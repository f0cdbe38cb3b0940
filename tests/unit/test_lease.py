"""A lease is lost once, by the clock, and says why."""

from __future__ import annotations

import logging
import os

import pytest

from celery_redlock import Lease, LeaseLost, Redlock
from celery_redlock.lease import margin
from celery_redlock.testing import ManualClock, MemoryNodes
from celery_redlock.vote import drift


@pytest.fixture
def lease(clock: ManualClock) -> Lease:
    return Redlock(MemoryNodes(3, clock), ttl=10).acquire("key")


def test_loss_is_declared_before_the_lease_ends(lease: Lease, clock: ManualClock) -> None:
    clock.advance(10 - drift(10) - margin(10) - 0.001)
    assert not lease.lost
    lease.check()
    clock.advance(0.002)
    assert lease.lost
    assert clock.now < lease.until


def test_a_lost_lease_says_why(lease: Lease, clock: ManualClock) -> None:
    clock.advance(10)
    with pytest.raises(LeaseLost, match=r"'key' \(fence \d+\) is gone: its time ran out") as caught:
        lease.check()
    assert caught.value.reason == "expired"
    assert lease.loss is not None
    assert lease.loss.reason == "expired"
    assert lease.remaining == 0


def test_loss_is_told_once(lease: Lease, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Lease] = []
    lease.on_lost = told.append
    clock.advance(10)
    assert lease.lost
    assert lease.lost
    lease.lose("taken")
    assert told == [lease]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert lease.loss is not None
    assert lease.loss.reason == "expired"


def test_loss_is_final(lease: Lease, clock: ManualClock) -> None:
    clock.advance(10)
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.extend()


def test_a_callback_that_fails_is_logged(
    lease: Lease, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(lease: Lease) -> None:
        raise ValueError("oops")

    lease.on_lost = fail
    clock.advance(10)
    assert lease.lost
    assert "on_lost of the lease on 'key' failed" in caplog.text


def test_a_released_lease_is_not_lost_but_not_ours_either(lease: Lease, clock: ManualClock) -> None:
    lease.release()
    clock.advance(20)
    assert not lease.lost
    assert lease.remaining == 0
    with pytest.raises(LeaseLost, match="it was released"):
        lease.check()


def test_no_loss_is_told_after_the_release(lease: Lease) -> None:
    told: list[Lease] = []
    lease.on_lost = told.append
    lease.release()
    lease.lose("taken")
    assert told == []


def test_a_lease_shows_its_key_and_number_and_not_its_secret(lease: Lease) -> None:
    assert repr(lease) == f"<Lease on 'key', fence {lease.fence}, 9.9 s left>"
    lease.release()
    assert repr(lease) == f"<Lease on 'key', fence {lease.fence}, released>"


def test_in_another_process_the_lease_is_not_ours(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert lease.lost
    assert not lease.release()
    with pytest.raises(LeaseLost, match="it belongs to the parent of this process"):
        lease.check()
    monkeypatch.undo()
    lease.check()
    assert lease.release()
