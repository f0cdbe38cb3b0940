"""One thread renews all leases, only when needed, and ends by itself."""

from __future__ import annotations

import sys
import threading

import pytest

from celery_redlock import Lease, Redlock
from celery_redlock.heartbeat import Heartbeat, heartbeat
from celery_redlock.round import Command, Tally
from celery_redlock.testing import ManualClock, MemoryNodes

from ..waiting import wait_until


class Beats(Heartbeat):
    """Beats only when it is told to: no thread."""

    def watch(self, lease: Lease) -> None:
        self._leases.add(lease)
        lease.heartbeat = self


@pytest.fixture
def redlock(nodes: MemoryNodes) -> Redlock:
    return Redlock(nodes, ttl=12)


def wait_for_renewal(lease: Lease) -> None:
    until = lease.until
    wait_until(lambda: lease.until > until)
    lease.check()


def heartbeat_threads() -> int:
    return sum(thread.name == "redlock-heartbeat" for thread in threading.enumerate())


def test_nothing_is_renewed_before_a_third_of_the_ttl(
    redlock: Redlock, clock: ManualClock, sent: list[list[Command]]
) -> None:
    beats = Beats()
    beats.watch(redlock.acquire("key"))
    clock.advance(3.9)
    beats.beat()
    assert [command.script.name for commands in sent for command in commands] == ["acquire"]


def test_a_lease_is_renewed_for_as_long_as_it_is_watched(redlock: Redlock, clock: ManualClock) -> None:
    beats, lease = Beats(), redlock.acquire("key")
    beats.watch(lease)
    for _ in range(100):
        clock.advance(4.0)
        beats.beat()
    assert not lease.lost


def test_a_thousand_leases_are_renewed_in_one_round(
    redlock: Redlock, clock: ManualClock, sent: list[list[Command]]
) -> None:
    beats, leases = Beats(), [redlock.acquire(f"key-{n}") for n in range(1000)]
    for lease in leases:
        beats.watch(lease)
    sent.clear()
    clock.advance(4)
    beats.beat()
    assert [len(commands) for commands in sent] == [10]
    clock.advance(8)
    assert not any(lease.lost for lease in leases)


def test_leases_that_are_nearly_due_are_renewed_along(
    redlock: Redlock, clock: ManualClock, sent: list[list[Command]]
) -> None:
    beats = Beats()
    beats.watch(redlock.acquire("first"))
    clock.advance(0.9)
    beats.watch(redlock.acquire("second"))
    clock.advance(3.1)
    sent.clear()
    beats.beat()
    assert [len(command.keys) for commands in sent for command in commands] == [4]


def test_leases_of_different_ttls_are_renewed_for_their_own(
    redlock: Redlock, clock: ManualClock
) -> None:
    beats, short, long = Beats(), redlock.acquire("a", ttl=3), redlock.acquire("b", ttl=12)
    beats.watch(short)
    beats.watch(long)
    for _ in range(4):
        clock.advance(1)
        beats.beat()
    assert short.until == pytest.approx(clock.now + 3 - 0.032)
    assert long.until == pytest.approx(clock.now - 1 + 12 - 0.122)  # along with the short one


def test_an_unanswered_renewal_is_tried_at_once_and_then_every_tenth_of_the_ttl(
    redlock: Redlock, nodes: MemoryNodes, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    beats, lease = Beats(), redlock.acquire("key")
    beats.watch(lease)
    nodes[0].up = nodes[1].up = nodes[2].up = False
    clock.advance(4)
    beats.beat()
    assert lease.renew_at == clock.now
    beats.beat()
    assert lease.renew_at == pytest.approx(clock.now + 1.2)
    assert "could not renew the lease on 'key': memory://0: it is down" in caplog.text
    assert len(caplog.records) == 1
    nodes[0].up = True
    clock.advance(1.2)
    beats.beat()
    assert lease.until == pytest.approx(clock.now + 12 - 0.122)


def test_a_lease_that_cannot_be_renewed_is_lost_in_time(
    redlock: Redlock, nodes: MemoryNodes, clock: ManualClock
) -> None:
    told: list[float] = []
    beats, lease = Beats(), redlock.acquire("key")
    lease.on_lost = lambda lease: told.append(clock.now)
    beats.watch(lease)
    for node in range(3):
        nodes[node].frozen = True
    while not lease.lost:
        clock.advance(0.01)
        beats.beat()
    assert len(told) == 1
    assert told[0] < lease.until
    assert lease.loss is not None
    assert lease.loss.reason == "expired"


def test_a_lease_that_vanished_is_lost_at_the_next_beat(
    redlock: Redlock, nodes: MemoryNodes, clock: ManualClock
) -> None:
    beats, lease = Beats(), redlock.acquire("key")
    beats.watch(lease)
    for node in range(3):
        nodes[node].flush()
    clock.advance(4)
    beats.beat()
    assert lease.loss is not None
    assert lease.loss.reason == "vanished"
    assert redlock.inspect("key") is None


def test_renewals_end_when_the_lease_was_held_for_its_longest_time(
    redlock: Redlock, clock: ManualClock
) -> None:
    beats, lease = Beats(), redlock.acquire("key")
    lease.hold_for(30)
    beats.watch(lease)
    start = clock.now
    while not lease.lost:
        clock.advance(0.1)
        beats.beat()
    assert lease.loss is not None
    assert lease.loss.reason == "held too long"
    assert 30 <= clock.now - start < 30 + 12


def test_a_longest_hold_below_the_first_renewal_means_no_renewal(
    redlock: Redlock, clock: ManualClock, sent: list[list[Command]]
) -> None:
    beats, lease = Beats(), redlock.acquire("key")
    lease.hold_for(1)
    beats.watch(lease)
    sent.clear()
    while not lease.lost:
        clock.advance(0.5)
        beats.beat()
    assert sent == []


def test_nodes_that_hang_leave_time_to_renew_the_leases_on_others(clock: ManualClock) -> None:
    beats = Beats()
    hanging, sound = MemoryNodes(3, clock), MemoryNodes(3, clock)
    stuck = Redlock(hanging, ttl=12).acquire("key")
    short = Redlock(sound, ttl=1).acquire("key")
    for node in range(3):
        hanging[node].frozen = True
    beats.watch(stuck)
    beats.watch(short)
    while not stuck.lost:
        clock.advance(0.02)
        beats.beat()
        assert not short.lost


def test_a_released_lease_is_never_renewed_again(
    redlock: Redlock, nodes: MemoryNodes, clock: ManualClock
) -> None:
    beats, lease = Beats(), redlock.acquire("key")
    beats.watch(lease)
    clock.advance(4)
    lease.release()
    beats.beat()
    assert redlock.inspect("key") is None


def test_a_release_during_a_renewal_follows_it_on_the_same_channel() -> None:
    """Q8: sent elsewhere, it could overtake the renewal, which would then put the key back."""
    clock = ManualClock()
    nodes = MemoryNodes(3, clock)
    redlock, beats = Redlock(nodes, ttl=12), Beats()
    lease = redlock.acquire("key")
    beats.watch(lease)
    clock.advance(4)
    renewing, go_on = threading.Event(), threading.Event()
    heartbeats_channel = type(nodes.channel())(nodes)
    real_round = heartbeats_channel.round

    def slow_round(commands: list[Command], tally: Tally, patience: float, nodes: object = None) -> None:
        if commands[0].script.name == "extend":
            renewing.set()
            assert go_on.wait(5)
        real_round(commands, tally, patience, nodes)  # type: ignore[arg-type]

    heartbeats_channel.round = slow_round  # type: ignore[assignment]
    nodes.channel = lambda: heartbeats_channel  # type: ignore[method-assign]
    renewal = threading.Thread(target=beats.beat)
    renewal.start()
    assert renewing.wait(5)
    release = threading.Thread(target=lease.release)
    release.start()
    release.join(0.1)
    assert release.is_alive(), "it waits for the renewal"
    go_on.set()
    renewal.join(5)
    release.join(5)
    assert not lease.lost
    assert all(nodes[node].get("redlock:{key}") is None for node in range(3))


def test_the_thread_ends_when_there_is_nothing_to_renew() -> None:
    wait_until(lambda: heartbeat_threads() == 0)
    with Redlock(MemoryNodes(3), ttl=1).lock("key") as lease:
        wait_for_renewal(lease)
        assert heartbeat_threads() == 1
    wait_until(lambda: heartbeat_threads() == 0)


def test_one_thread_serves_all_the_locks_of_a_process() -> None:
    one, other = Redlock(MemoryNodes(3), ttl=5), Redlock(MemoryNodes(5), ttl=9)
    with one.lock("a"), one.lock("b"), other.lock("a"), other.lock("b"):
        assert heartbeat_threads() == 1


def test_a_shorter_lease_wakes_the_thread_from_its_nap() -> None:
    long, short = Redlock(MemoryNodes(3), ttl=30), Redlock(MemoryNodes(3), ttl=1)
    with long.lock("key"), short.lock("key") as lease:
        wait_for_renewal(lease)


def test_the_heartbeat_survives_its_own_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = MemoryNodes(3)
    real_channel, failed = nodes.channel, threading.Event()

    def fail_once() -> object:
        if threading.current_thread().name == "redlock-heartbeat" and not failed.is_set():
            failed.set()
            raise RuntimeError("oops")
        return real_channel()

    monkeypatch.setattr(nodes, "channel", fail_once)
    with Redlock(nodes, ttl=1).lock("key") as lease:
        assert failed.wait(5)
        wait_for_renewal(lease)
    assert "the heartbeat stumbled; it goes on" in caplog.text


def test_a_callback_may_release_the_lease() -> None:
    nodes = MemoryNodes(3)
    released = threading.Event()

    def release(lease: Lease) -> None:
        lease.release()
        released.set()

    with Redlock(nodes, ttl=0.3).lock("key", on_lost=release) as lease:
        for node in range(3):
            nodes[node].flush()
        assert released.wait(5)
    assert lease.loss is not None
    assert lease.loss.reason in ("vanished", "expired")  # expired: the machine was slow


def test_a_callback_may_wait_for_whoever_releases_the_lease() -> None:
    """It is called outside the heartbeat's own lock."""
    clock = ManualClock()
    nodes = MemoryNodes(3, clock)
    beats, lease = Beats(), Redlock(nodes, ttl=12).acquire("key")
    released: list[bool] = []

    def wait_for_release(lost: Lease) -> None:
        thread = threading.Thread(target=lease.release)
        thread.start()
        thread.join(5)
        released.append(not thread.is_alive())

    lease.on_lost = wait_for_release
    beats.watch(lease)
    for node in range(3):
        nodes[node].frozen = True
    while not released:
        clock.advance(0.05)
        beats.beat()
    assert released == [True]


def test_a_callback_that_exits_does_not_end_the_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    lost_nodes, nodes = MemoryNodes(3), MemoryNodes(3)
    with Redlock(nodes, ttl=1).lock("key") as lease:
        with Redlock(lost_nodes, ttl=1).lock("key", on_lost=lambda lost: sys.exit(1)) as lost:
            for node in range(3):
                lost_nodes[node].flush()
            wait_until(lambda: lost.finished)
        wait_for_renewal(lease)
    assert "the heartbeat stumbled; it goes on" in caplog.text


def test_trouble_with_one_lock_does_not_keep_others_from_being_renewed(clock: ManualClock) -> None:
    beats, bad, good = Beats(), MemoryNodes(3, clock), MemoryNodes(3, clock)
    first, second = Redlock(bad, ttl=12).acquire("key"), Redlock(good, ttl=12).acquire("key")
    beats.watch(first)
    beats.watch(second)
    bad.channel = lambda: 1 / 0  # type: ignore
    for _ in range(60):
        clock.advance(0.3)
        beats.beat()
    assert not second.lost
    assert first.lost


def test_a_lease_that_is_over_is_not_renewed_even_if_it_is_still_watched(
    redlock: Redlock, clock: ManualClock, sent: list[list[Command]]
) -> None:
    beats, over, alive = Beats(), redlock.acquire("over"), redlock.acquire("alive")
    beats.watch(over)
    beats.watch(alive)
    clock.advance(4)
    over.finish("taken")
    sent.clear()
    beats.beat()
    assert [len(command.keys) for commands in sent for command in commands] == [2]


def test_the_process_has_one_heartbeat() -> None:
    assert heartbeat() is heartbeat()
