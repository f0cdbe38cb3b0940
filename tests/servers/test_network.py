"""Connections that are cut, reset, half open or one-way; and what is read from them (Q2)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_redlock import LockHeld, QuorumUnreachable
from celery_redlock.testing import Proxy, Server

from ..waiting import wait_until
from .conftest import lock_on

IN_REDIS = "redlock:{key}"


def test_connections_that_were_closed_while_idle_are_opened_again(
    five: list[Server], proxies: list[Proxy]
) -> None:
    with lock_on(proxies) as redlock:
        redlock.acquire("key").release()
        for proxy in proxies:
            proxy.reset()
        redlock.acquire("key").release()


def test_cut_off_from_a_majority_it_fails_and_comes_back_with_the_network(
    five: list[Server], proxies: list[Proxy]
) -> None:
    with lock_on(proxies) as redlock:
        redlock.acquire("key").release()
        for proxy in proxies[:3]:
            proxy.cut()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire("key")
        for proxy in proxies[:3]:
            proxy.heal()
        redlock.acquire("key", wait=5).release()


@pytest.mark.parametrize("way", [(), ("to server",), ("to client",)], ids=["both", "there", "back"])
def test_a_half_open_minority_is_not_waited_for(
    five: list[Server], proxies: list[Proxy], way: tuple[()]
) -> None:
    with lock_on(proxies, node_timeout=0.5) as redlock:
        redlock.acquire("key").release()
        for proxy in proxies[:2]:
            proxy.blackhole(*way)
        start = time.monotonic()
        for _ in range(100):
            redlock.acquire("key").release()
        assert time.monotonic() - start < 2


def test_a_majority_that_hears_but_cannot_answer_is_released_behind_the_acquire(
    five: list[Server], proxies: list[Proxy]
) -> None:
    """Q4: the nodes did grant; nobody knows; and still nothing is left."""
    with lock_on(proxies, node_timeout=0.5) as redlock:
        redlock.acquire("key").release()
        for proxy in proxies[:3]:
            proxy.blackhole("to client")
        with pytest.raises(QuorumUnreachable, match="no answer in time"):
            redlock.acquire("key")
        wait_until(lambda: not any(node.client().get(IN_REDIS) for node in five), seconds=5)


def test_a_late_reply_is_never_taken_for_the_next_one(five: list[Server], proxies: list[Proxy]) -> None:
    """Slow grants of one round arrive during later rounds, in which the lock is someone else's."""
    with lock_on(proxies) as redlock, lock_on(five) as other:
        redlock.acquire("key").release()
        for proxy in proxies:
            proxy.delay(0.15)
        lease = redlock.acquire("key")
        assert lease.release()
        held = other.acquire("key", wait=2, task_id="other")
        for proxy in proxies[:2]:
            proxy.heal()
        for _ in range(20):
            with pytest.raises(LockHeld) as caught:
                redlock.acquire("key")
            assert caught.value.holder is not None
            assert caught.value.holder.task_id == "other"
        assert held.release()


def test_every_reply_reaches_the_round_that_asked_for_it(
    five: list[Server], proxies: list[Proxy]
) -> None:
    """Fences would go back, or a key would be granted twice, if replies were mixed up."""
    with lock_on(proxies) as redlock:
        fences = []
        for number in range(100):
            proxies[number % 5].delay(0.02 * (number % 3))
            lease = redlock.acquire("key", wait=2)
            fences.append(lease.fence)
            assert lease.release()
        assert fences == sorted(set(fences))


def test_a_lock_that_is_held_is_never_said_to_be_unreachable(
    five: list[Server], proxies: list[Proxy]
) -> None:
    """The last tries before the deadline have little time left; slow nodes need some."""
    with lock_on(proxies) as redlock, lock_on(five) as other, other.lock("key"):
        redlock.acquire("else").release()
        for proxy in proxies:
            proxy.delay(0.02)
        for _ in range(8):
            with pytest.raises(LockHeld):
                redlock.acquire("key", wait=0.3)


def test_threads_that_start_together_far_away_from_the_servers_are_all_connected(
    five: list[Server], proxies: list[Proxy]
) -> None:
    for proxy in proxies:
        proxy.delay(0.05)
    with lock_on(proxies) as redlock, ThreadPoolExecutor(24) as pool:
        assert all(pool.map(lambda n: redlock.acquire(f"key-{n}").release(), range(24)))
