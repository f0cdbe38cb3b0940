"""What the heartbeat does for many leases at once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from celery_redlock import Lease
from celery_redlock.testing.servers import Server

from .contestants import connect
from .measure import Plan, in_turn, progress
from .table import ms, ratio, show

COUNTS = (1, 100, 1000)
LONG = 600.0
PLAN = Plan(rounds=8, attempts=10, pause=0.02, skip=2)


def renewing(servers: Sequence[Server]) -> None:
    progress("renewals")
    with contextlib.ExitStack() as cleanup:
        lock = connect([server.url for server in servers], cleanup)
        held = {
            count: [lock.acquire(f"bench:{count}:{n}", ttl=LONG) for n in range(count)]
            for count in COUNTS
        }
        results = in_turn(
            {_name(n): functools.partial(_renew, leases) for n, leases in held.items()}, PLAN
        )
        for lease in [lease for leases in held.values() for lease in leases]:
            assert lease.release()
    one = results[_name(1)].median
    rows = [[name, ms(t.median), ms(t.p99), ratio(t.median, one)] for name, t in results.items()]
    show("renewing leases, five local nodes, one thread", ["", "median ms", "p99 ms", "× one"], rows)


def _renew(leases: list[Lease]) -> None:
    quorum, channel = leases[0].quorum, leases[0].channel
    before = leases[-1].until
    with channel.lock:
        quorum.renew(leases, channel, quorum.patience(LONG))
    assert leases[-1].until > before


def _name(count: int) -> str:
    return f"{count} lease{'s'[: count > 1]}"
