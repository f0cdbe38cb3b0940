"""The lock on every kind of server that we know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock import LeaseLost, LockHeld, Redlock
from celery_redlock.testing import Server, servers
from celery_redlock.vote import drift

from .conftest import lock_on

IN_REDIS = "redlock:{key}"


@pytest.fixture(scope="module")
def nodes(program: Path) -> Iterator[list[Server]]:
    with servers(3, program) as started:
        yield started


@pytest.fixture
def redlock(nodes: list[Server]) -> Iterator[Redlock]:
    for node in nodes:
        node.client().flushall()
    with lock_on(nodes, ttl=5) as redlock:
        yield redlock


def values(nodes: list[Server]) -> list[str | None]:
    return [node.client().get(IN_REDIS) for node in nodes]


def test_a_lock_is_one_plain_value_on_every_node(redlock: Redlock, nodes: list[Server]) -> None:
    lease = redlock.acquire("key", task_id="task-1")
    lease.extend()  # by now all nodes have been heard
    assert set(values(nodes)) == {lease.owner}
    for node in nodes:
        assert 4000 < node.client().pttl(IN_REDIS) <= 5000
        assert node.client().get(IN_REDIS + ":fence") == str(lease.fence)
        assert node.client().pttl(IN_REDIS + ":fence") > 590_000


def test_one_holder_at_a_time(redlock: Redlock) -> None:
    lease = redlock.acquire("key", task_id="task-1")
    with pytest.raises(LockHeld) as caught:
        redlock.acquire("key")
    assert caught.value.holder is not None
    assert caught.value.holder.task_id == "task-1"
    assert 4 < (caught.value.retry_after or 0) <= 5
    assert lease.release()
    assert redlock.acquire("key").fence > lease.fence


def test_other_keys_are_other_locks(redlock: Redlock) -> None:
    redlock.acquire("a")
    redlock.acquire("b")


def test_a_release_leaves_no_lock(redlock: Redlock, nodes: list[Server]) -> None:
    redlock.acquire("key").release()
    redlock.acquire("other")  # the same connections: what was sent before is done
    assert values(nodes) == [None, None, None]


def test_a_release_after_expiry_spares_the_next_holder(redlock: Redlock, nodes: list[Server]) -> None:
    late = redlock.acquire("key", ttl=0.2)
    lease = redlock.acquire("key", wait=3)
    assert late.lost
    assert not late.release()
    assert values(nodes) == [lease.owner] * 3


def test_extending_keeps_the_lock(redlock: Redlock, nodes: list[Server]) -> None:
    lease = redlock.acquire("key")
    for node in nodes:
        node.client().pexpire(IN_REDIS, 500)
    lease.extend()
    assert lease.remaining > 5 - drift(5) - 0.5
    assert all(node.client().pttl(IN_REDIS) > 4000 for node in nodes)


def test_extending_a_flushed_lock_is_a_loss(redlock: Redlock, nodes: list[Server]) -> None:
    lease = redlock.acquire("key")
    for node in nodes:
        node.client().flushall()
    with pytest.raises(LeaseLost) as caught:
        lease.extend()
    assert caught.value.reason == "vanished"


def test_inspect_and_unlock(redlock: Redlock) -> None:
    assert redlock.inspect("key") is None
    lease = redlock.acquire("key", task_id="task-1")
    holder = redlock.inspect("key")
    assert holder is not None
    assert (holder.task_id, holder.fence) == ("task-1", lease.fence)
    assert redlock.unlock("key", holder)
    assert redlock.inspect("key") is None


def test_fences_grow_over_many_grants(redlock: Redlock) -> None:
    fences = []
    for _ in range(200):
        lease = redlock.acquire("key")
        fences.append(lease.fence)
        lease.release()
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("skew", [-86400.0, -30.0, 30.0, 86400.0])
def test_fences_grow_whatever_a_clients_clock_says(
    redlock: Redlock, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """Q6: and a clock that is a day ahead does not push the numbers ahead by a day."""
    first = redlock.acquire("key")
    first.release()
    nodes = redlock._quorum.nodes
    right = nodes.wall
    monkeypatch.setattr(nodes, "wall", lambda: right() + skew)
    second = redlock.acquire("key")
    second.release()
    monkeypatch.undo()
    third = redlock.acquire("key")
    assert first.fence < second.fence < third.fence < (nodes.wall() + 120) * 1e6


def test_nodes_that_are_behind_are_raised_before_the_lease_is_granted(
    redlock: Redlock, nodes: list[Server]
) -> None:
    """Q6: the highest number must be known to a quorum, or the next grant could repeat it."""
    ahead = int((redlock._quorum.nodes.wall() + 50) * 1e6)
    nodes[0].client().set(IN_REDIS + ":fence", ahead)
    nodes[1].client().set(IN_REDIS + ":fence", ahead - 5)
    fence = redlock.acquire("key").fence
    counters = [int(node.client().get(IN_REDIS + ":fence")) for node in nodes]
    assert fence >= ahead - 4
    assert sum(counter >= fence for counter in counters) >= 2


def test_a_key_of_another_type_is_a_refusal(redlock: Redlock, nodes: list[Server]) -> None:
    for node in nodes:
        node.client().hset(IN_REDIS, "field", "value")
    with pytest.raises(LockHeld, match="another Redlock client"):
        redlock.acquire("key")
    assert redlock.inspect("key") is not None
