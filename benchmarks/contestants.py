"""The locks that are compared. Each is set up once; an attempt takes the lock and gives it back."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import redis
import redis_lock
import redlock
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock import Redlock

from .floor import Floor
from .measure import Attempt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own use of what is deprecated
    import pottery

TTL = 30

#: Seconds after which the others give a server up, without trying again: in time for a pause.
PEER_TIMEOUT = 0.5

FLOOR, OURS = "raw sockets (floor)", "celery_redlock"
REDIS_PY, REDIS_LOCK = "redis-py Lock, 1 node", "python-redis-lock, 1 node"
REDLOCK_PY, POTTERY = "redlock-py", "pottery"

SINGLE = (REDIS_PY, REDIS_LOCK)
QUORUM = (FLOOR, OURS, REDLOCK_PY, POTTERY)

Urls = Sequence[str]
Setup = Callable[[Urls, contextlib.ExitStack], Attempt]


@contextlib.contextmanager
def contestants(names: Sequence[str], urls: Urls) -> Iterator[dict[str, Attempt]]:
    """Connected and warm."""
    with contextlib.ExitStack() as cleanup:
        ready = {name: _SETUPS[name](urls, cleanup) for name in names}
        for attempt in ready.values():
            attempt()
        yield ready


def connect(urls: Urls, cleanup: contextlib.ExitStack) -> Redlock:
    """Ours, without a restart guard: the servers have just been started."""
    lock = Redlock(urls, ttl=TTL, restart_guard=0)
    cleanup.callback(lock.close)
    lock.acquire("bench:warm-up").release()
    return lock


def _floor(urls: Urls, cleanup: contextlib.ExitStack) -> Attempt:
    floor = Floor([urlsplit(url).port or 0 for url in urls], TTL, PEER_TIMEOUT)
    cleanup.callback(floor.close)
    return floor.attempt


def _ours(urls: Urls, cleanup: contextlib.ExitStack) -> Attempt:
    lock = connect(urls, cleanup)

    def attempt() -> None:
        lease = lock.acquire("bench:ours")
        assert lease.fence
        assert lease.release()

    return attempt


def _redis_py(urls: Urls, cleanup: contextlib.ExitStack) -> Attempt:
    lock = _client(urls[0], cleanup).lock("bench:redis-py", timeout=TTL)

    def attempt() -> None:
        assert lock.acquire(blocking=False)
        lock.release()  # raises if it was not ours

    return attempt


def _redis_lock(urls: Urls, cleanup: contextlib.ExitStack) -> Attempt:
    lock = redis_lock.Lock(_client(urls[0], cleanup), "bench:redis-lock", expire=TTL, auto_renewal=False)

    def attempt() -> None:
        assert lock.acquire(blocking=False)
        lock.release()  # raises if it was not ours

    return attempt


def _redlock_py(urls: Urls, cleanup: contextlib.ExitStack) -> Attempt:
    manager = redlock.Redlock([_client(url, cleanup) for url in urls], retry_count=1)

    def attempt() -> None:
        lock = manager.lock("bench:redlock-py", TTL * 1000)
        assert lock, "not acquired"
        manager.unlock(lock)

    return attempt


def _pottery(urls: Urls, cleanup: contextlib.ExitStack) -> Attempt:
    masters = {_client(url, cleanup) for url in urls}
    lock = pottery.Redlock(key="bench:pottery", masters=masters, auto_release_time=TTL)

    def attempt() -> None:
        assert lock.acquire(blocking=False)
        lock.release()  # raises if it was not ours on a majority

    return attempt


def _client(url: str, cleanup: contextlib.ExitStack) -> redis.Redis:
    client = redis.Redis.from_url(
        url,
        socket_timeout=PEER_TIMEOUT,
        socket_connect_timeout=PEER_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
    )
    cleanup.callback(client.close)
    return client


_SETUPS: dict[str, Setup] = {
    FLOOR: _floor,
    OURS: _ours,
    REDIS_PY: _redis_py,
    REDIS_LOCK: _redis_lock,
    REDLOCK_PY: _redlock_py,
    POTTERY: _pottery,
}
