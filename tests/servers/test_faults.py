"""Servers that are killed, frozen, slow, emptied, full, or not what they were."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
import redis

from celery_redlock import LeaseLost, LockHeld, QuorumUnreachable, Redlock
from celery_redlock.testing import Proxy, Server

from ..waiting import wait_until
from .conftest import lock_on

IN_REDIS = "redlock:{key}"


def owners(nodes: list[Server]) -> list[str | None]:
    return [node.client().get(IN_REDIS) for node in nodes]


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def cycle(redlock: Redlock, times: int = 1) -> None:
    for _ in range(times):
        assert redlock.acquire("key").release()


@pytest.mark.parametrize("broken", [1, 2])
@pytest.mark.parametrize("fault", [Server.kill, Server.freeze], ids=["killed", "frozen"])
def test_a_minority_that_is_gone_costs_nothing_after_its_first_failure(
    redlock: Redlock, five: list[Server], broken: int, fault: Callable[[Server], None]
) -> None:
    cycle(redlock)
    for node in five[:broken]:
        fault(node)
    cycle(redlock, 3)
    # A node timeout is 1 s: fifty rounds that waited for one would take a minute.
    assert timed(lambda: cycle(redlock, 50)) < 1


@pytest.mark.parametrize("fault", [Server.kill, Server.freeze], ids=["killed", "frozen"])
def test_a_minority_that_was_never_there_costs_one_timeout(
    five: list[Server], fault: Callable[[Server], None]
) -> None:
    for node in five[:2]:
        fault(node)
    with lock_on(five, node_timeout=0.5) as redlock:
        assert timed(lambda: cycle(redlock)) < 1.5
        assert timed(lambda: cycle(redlock, 50)) < 1


@pytest.mark.parametrize("broken", [1, 2])
def test_a_minority_that_is_slow_is_not_waited_for(
    five: list[Server], proxies: list[Proxy], broken: int
) -> None:
    with lock_on(proxies) as redlock:
        cycle(redlock)
        for proxy in proxies[:broken]:
            proxy.delay(0.3)
        assert timed(lambda: cycle(redlock, 50)) < 5  # 30 s, if it were
        lease = redlock.acquire("key")
        assert lease.release()
        wait_until(lambda: owners(five) == [None] * 5)


@pytest.mark.parametrize("fault", [Server.kill, Server.freeze], ids=["killed", "frozen"])
def test_without_a_quorum_it_fails_closed_in_time_and_leaves_nothing_behind(
    five: list[Server], fault: Callable[[Server], None]
) -> None:
    with lock_on(five, node_timeout=0.5) as redlock:
        cycle(redlock)
        for node in five[:3]:
            fault(node)
        start = time.monotonic()
        with pytest.raises(QuorumUnreachable, match="2 of 5 nodes can vote, and 3 must") as caught:
            redlock.acquire("key")
        assert time.monotonic() - start < 1.5  # two timeouts, and the machine's noise
        assert set(caught.value.nodes) == {node.url for node in five[:3]}
        for node in five[:3]:
            node.thaw()
        alive = [node for node in five if node.running]
        wait_until(lambda: not any(owners(alive)))


def test_it_recovers_by_itself_when_a_quorum_is_back(redlock: Redlock, five: list[Server]) -> None:
    cycle(redlock)
    for node in five[:3]:
        node.kill()
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("key")
    for node in five[:3]:
        node.start()
    redlock.acquire("key", wait=10).release()


def test_a_lease_lives_through_the_loss_of_a_minority(five: list[Server]) -> None:
    with lock_on(five, ttl=1.5) as redlock, redlock.lock("key") as lease:
        five[0].kill()
        five[1].freeze()
        start = lease.until
        wait_until(lambda: lease.until > start + 2)
        lease.check()


@pytest.mark.parametrize("fault", [Server.kill, Server.freeze], ids=["killed", "frozen"])
def test_a_lease_that_loses_its_quorum_is_lost_before_it_ends(
    five: list[Server], fault: Callable[[Server], None]
) -> None:
    told: list[float] = []
    with lock_on(five, ttl=1.5) as redlock:
        now = redlock._quorum.nodes.now
        with redlock.lock("key", on_lost=lambda lease: told.append(now())) as lease:
            for node in five[:3]:
                fault(node)
            wait_until(lambda: bool(told))
            assert told[0] < lease.until
            with pytest.raises(LeaseLost, match="ran out before a majority of the nodes could renew"):
                lease.check()
    assert len(told) == 1


def test_flushed_under_a_lease_is_noticed_as_loss(five: list[Server]) -> None:
    with lock_on(five, ttl=1.5) as redlock, redlock.lock("key") as lease:
        for node in five[:3]:
            node.client().flushall()
        wait_until(lambda: lease.lost)
        assert lease.loss is not None
        assert lease.loss.reason == "vanished"
        wait_until(lambda: not any(owners(five)))


def test_a_flushed_minority_is_repaired(five: list[Server]) -> None:
    with lock_on(five, ttl=1.5) as redlock, redlock.lock("key") as lease:
        wait_until(lambda: all(owners(five)))
        for node in five[:2]:
            node.client().flushall()
        wait_until(lambda: owners(five) == [lease.owner] * 5)
        lease.check()


def test_a_node_that_restarts_empty_does_not_vote_until_the_guard_has_passed(
    three: list[Server],
) -> None:
    """Q9. A holds {0, 1}; 0 restarts empty; B must not get {0, 2}; A repairs 0 and lives on."""
    with lock_on(three, ttl=3, restart_guard=3) as a, lock_on(three, ttl=3, restart_guard=3) as b:
        with pytest.raises(QuorumUnreachable, match=r"started lately, votes in \d\.\d s") as caught:
            a.acquire("key")
        assert 2 < (caught.value.retry_after or 0) < 5
        lease = a.acquire("key", wait=6)
        wait_until(lambda: three[2].client().delete(IN_REDIS))  # as if the command had never come
        three[0].restart_empty()
        with pytest.raises(LockHeld):
            b.acquire("key", wait=1)
        lease.extend()
        assert not lease.lost
        assert three[0].client().get(IN_REDIS) == lease.owner


def test_without_the_guard_the_same_story_has_two_holders(three: list[Server]) -> None:
    """What other Redlock libraries do. The test above shows something only if this one holds."""
    with lock_on(three, ttl=30) as a, lock_on(three, ttl=30) as b:
        lease = a.acquire("key")
        wait_until(lambda: three[2].client().delete(IN_REDIS))
        three[0].restart_empty()
        b.acquire("key", wait=2)
        assert not lease.lost


def test_a_restarted_node_votes_again_after_the_guard(three: list[Server]) -> None:
    with lock_on(three, ttl=2, restart_guard=2) as redlock:
        redlock.acquire("key", wait=5).release()
        three[1].kill()
        three[0].restart_empty()
        start = time.monotonic()
        with pytest.raises(QuorumUnreachable):
            redlock.acquire("key", wait=1)
        redlock.acquire("key", wait=8).release()
        assert time.monotonic() - start > 2


def test_scripts_that_are_flushed_are_sent_again(redlock: Redlock, five: list[Server]) -> None:
    """Q11: in the same round, so nobody notices."""
    cycle(redlock)
    for node in five:
        node.client().script_flush()
    lease = redlock.acquire("key")
    for node in five:
        node.client().script_flush()
    lease.extend()
    for node in five:
        node.client().script_flush()
    assert lease.release()


def test_a_replica_does_not_vote(redlock: Redlock, five: list[Server]) -> None:
    for node in five[:2]:
        node.client().replicaof("127.0.0.1", five[4].port)
    cycle(redlock)
    five[2].client().replicaof("127.0.0.1", five[4].port)
    with pytest.raises(QuorumUnreachable, match="READONLY"):
        redlock.acquire("key")


def test_a_node_without_memory_does_not_vote_but_renews_and_releases(
    redlock: Redlock, five: list[Server]
) -> None:
    lease = redlock.acquire("key")
    lease.extend()
    for node in five:
        node.client().config_set("maxmemory", 1)
    with pytest.raises(QuorumUnreachable, match="OOM"):
        redlock.acquire("other")
    lease.extend()
    assert lease.release()


def test_a_node_that_pauses_its_clients_is_like_a_frozen_one(
    redlock: Redlock, five: list[Server]
) -> None:
    cycle(redlock)
    for node in five[:2]:
        node.client().client_pause(2000)
    assert timed(lambda: cycle(redlock, 20)) < 1


def test_a_server_that_does_not_let_us_is_named(redlock: Redlock, five: list[Server]) -> None:
    for node in five[:3]:
        node.client().execute_command("ACL", "SETUSER", "default", "-@all", "+ping")
    with pytest.raises(QuorumUnreachable, match="NOPERM") as caught:
        redlock.acquire("key")
    assert set(caught.value.nodes) == {node.url for node in five[:3]}


def test_a_node_that_is_busy_with_a_script_does_not_keep_new_processes_from_locking(
    three: list[Server],
) -> None:
    """It does not answer INFO either, for a while: that is no fault of the configuration."""
    client = three[0].client()
    client.config_set("lua-time-limit", 50)
    looping = threading.Thread(target=_loop_for_ever, args=[three[0]])
    looping.start()
    try:
        wait_until(lambda: _is_busy(client))
        with lock_on(three, ttl=0.5, restart_guard=0.5) as redlock:
            redlock.acquire("key", wait=5).release()
    finally:
        client.script_kill()
        looping.join()


def _loop_for_ever(server: Server) -> None:
    with (
        contextlib.closing(redis.Redis(port=server.port)) as client,
        contextlib.suppress(redis.ResponseError),
    ):
        client.eval("while true do end", 0)


def _is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "busy" in str(error).lower()
    return False


def test_a_script_flush_before_a_refused_acquire_leaves_nothing_behind(
    redlock: Redlock, five: list[Server]
) -> None:
    cycle(redlock)
    for node in five[:3]:
        node.client().set(IN_REDIS, "someone", px=30_000)
    for node in five:
        node.client().script_flush()
    with pytest.raises(LockHeld):
        redlock.acquire("key")
    with pytest.raises(LockHeld):
        redlock.acquire("key")
    wait_until(lambda: owners(five) == ["someone"] * 3 + [None] * 2)


def test_an_operators_unlock_is_noticed_at_once_even_with_a_node_down(five: list[Server]) -> None:
    with lock_on(five, ttl=3) as redlock, redlock.lock("key") as lease:
        five[4].kill()
        holder = redlock.inspect("key")
        assert holder is not None
        assert redlock.unlock("key", holder)
        start = time.monotonic()
        wait_until(lambda: lease.finished)
        assert lease.loss is not None
        assert lease.loss.reason == "vanished"
        assert time.monotonic() - start < 2.5  # with the next renewal, and not at the end of the TTL


def test_closing_and_going_on(redlock: Redlock, five: list[Server]) -> None:
    lease = redlock.acquire("key")
    redlock.close()
    lease.extend()
    redlock.close()
    assert lease.release()
    assert owners(five).count(None) >= 3
