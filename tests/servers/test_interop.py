"""Other Redlock clients on the same keys and nodes exclude us, and are excluded by us (Q11)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import redis
from pottery import Redlock as Pottery
from redlock import Redlock as RedlockPy

from celery_redlock import LockHeld, Redlock
from celery_redlock.testing import Server

from .conftest import lock_on


@pytest.fixture
def ours(five: list[Server]) -> Iterator[Redlock]:
    """Without a prefix: the names in Redis are the keys themselves."""
    with lock_on(five, prefix="") as redlock:
        yield redlock


@pytest.fixture
def clients(five: list[Server]) -> Iterator[list[redis.Redis]]:
    opened = [redis.Redis(port=node.port) for node in five]
    yield opened
    for client in opened:
        client.close()


@pytest.fixture
def redlock_py(clients: list[redis.Redis]) -> RedlockPy:
    return RedlockPy(clients, retry_count=1)


def test_a_plain_set_nx_px_excludes_us(ours: Redlock, clients: list[redis.Redis]) -> None:
    value = secrets.token_hex(10)
    for client in clients[:3]:
        client.set("key", value, nx=True, px=5000)
    with pytest.raises(LockHeld, match="another Redlock client") as caught:
        ours.acquire("key")
    assert 4 < (caught.value.retry_after or 0) <= 5
    assert [client.get("key") for client in clients] == [value.encode()] * 3 + [None] * 2


def test_we_exclude_a_plain_set_nx_px(ours: Redlock, clients: list[redis.Redis]) -> None:
    lease = ours.acquire("key")
    lease.extend()
    assert not any(client.set("key", "x", nx=True, px=5000) for client in clients)


def test_redlock_py_excludes_us(ours: Redlock, redlock_py: RedlockPy) -> None:
    theirs = redlock_py.lock("key", 5000)
    assert theirs
    with pytest.raises(LockHeld):
        ours.acquire("key")
    redlock_py.unlock(theirs)
    assert ours.acquire("key").release()


def test_we_exclude_redlock_py(ours: Redlock, redlock_py: RedlockPy) -> None:
    lease = ours.acquire("key")
    assert not redlock_py.lock("key", 5000)
    assert lease.release()
    assert redlock_py.lock("key", 5000)


def test_pottery_excludes_us(ours: Redlock, clients: list[redis.Redis]) -> None:
    theirs = Pottery(key="key", masters=set(clients), auto_release_time=5)
    assert theirs.acquire(blocking=False)
    with pytest.raises(LockHeld):
        ours.acquire("redlock:key")
    theirs.release()
    assert ours.acquire("redlock:key").release()


def test_we_exclude_pottery(ours: Redlock, clients: list[redis.Redis]) -> None:
    theirs = Pottery(key="key", masters=set(clients), auto_release_time=5)
    lease = ours.acquire("redlock:key")
    assert not theirs.acquire(blocking=False)
    assert lease.release()
    assert theirs.acquire(blocking=False)
    theirs.release()


def test_a_foreign_lock_can_be_unlocked_by_an_operator(ours: Redlock, redlock_py: RedlockPy) -> None:
    assert redlock_py.lock("key", 5000)
    holder = ours.inspect("key")
    assert holder is not None
    assert ours.unlock("key", holder)
