"""Under gevent and eventlet, in processes that they have patched (T12)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from celery_redlock.testing import Proxy, Server

pytestmark = pytest.mark.parametrize("library", ["gevent", "eventlet"])


def run(library: str, program: str, nodes: Sequence[str]) -> str:
    command = [sys.executable, "-m", "tests.servers.greenlets", library, program, *nodes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def urls(nodes: Sequence[Server]) -> list[str]:
    return [node.url for node in nodes]


def test_greenlets_exclude_each_other(library: str, five: list[Server]) -> None:
    assert run(library, "exclusion", urls(five)) == "500"


def test_a_greenlet_that_hogs_the_processor_keeps_its_lock(library: str, five: list[Server]) -> None:
    assert run(library, "hogging", urls(five)) == "kept"


def test_others_go_on_while_one_waits_for_servers_that_hang(library: str, three: list[Server]) -> None:
    three[0].freeze()
    three[1].freeze()
    assert run(library, "waiting", urls(three)) == "True"


def test_a_loss_is_told_in_a_greenlet(library: str, three: list[Server]) -> None:
    assert run(library, "losing", urls(three)) == "taken [False]"


def test_a_greenlet_that_is_killed_while_it_acquires_leaves_nothing(
    library: str, three: list[Server]
) -> None:
    assert run(library, "interrupted", urls(three)) == "True"


def test_a_node_behind_tls(library: str, tls: Proxy, ca_file: Path) -> None:
    url = f"rediss://localhost:{tls.port}/0?ssl_ca_certs={ca_file}"
    assert run(library, "exclusion", [url]) == "500"


def test_a_child_of_a_fork_has_locks_of_its_own(library: str, three: list[Server]) -> None:
    assert run(library, "forking", urls(three)) == "0"


def test_nothing_is_left_of_a_lock_that_was_closed(library: str, three: list[Server]) -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc to count threads in")
    assert run(library, "closing", urls(three)) == "gone"
