"""Acquire and release: on healthy servers, and with slow and frozen ones among them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from celery_redlock.testing.servers import Server
from celery_redlock.testing.servers import servers as start_servers

from .contestants import FLOOR, OURS, PEER_TIMEOUT, POTTERY, QUORUM, SINGLE, contestants
from .measure import Attempt, Plan, Times, in_turn, pooled, progress
from .proxies import delayed
from .table import NONE, ms, ratio, show

HEAD = ("", "median ms", "p99 ms", "× floor", "× ours", "samples")

SETS = 8
HEALTHY = Plan(rounds=3, attempts=200)
ONE_SLOW = Plan(rounds=4, attempts=200, pause=0.15)
ONE_FROZEN = Plan(rounds=4, attempts=1000, pause=1.2 * PEER_TIMEOUT, fewer={POTTERY: 10})
ALL_SLOW = Plan(rounds=5, attempts=50)

Results = dict[str, Times]


def healthy() -> Results:
    """On several sets of servers: the ratios differ more from set to set than within one."""
    runs = [_healthy_run(number) for number in range(1, SETS + 1)]
    results = pooled(runs)
    rows = [[name, *_numbers(times, results), *_ranges(name, runs)] for name, times in results.items()]
    head = [*HEAD, "× floor, by set", "× ours, by set"]
    show(f"acquire + release, five local nodes ({SETS} sets of servers)", head, rows)
    return results


def _healthy_run(number: int) -> Results:
    progress(f"acquire + release, set {number} of {SETS}")
    with (
        start_servers(5) as servers,
        contestants((FLOOR, OURS, *SINGLE, *QUORUM[2:]), _urls(servers)) as ready,
    ):
        return in_turn(ready, HEALTHY)


def _ranges(name: str, runs: Sequence[Results]) -> list[str]:
    """The lowest and the highest of the sets' own ratios."""
    spans = []
    for other in (FLOOR, OURS):
        ratios = sorted(run[name].median / run[other].median for run in runs)
        spans.append(f"{ratios[0]:.2f} – {ratios[-1]:.2f}")
    return spans


def faulty(servers: Sequence[Server], before: Results) -> None:
    for scenario in (_one_slow, _one_frozen, _all_slow):
        _empty(servers)
        scenario(servers, before)


def _one_slow(servers: Sequence[Server], before: Results) -> None:
    """Healthy is here: the last node by the same way, without the delay. The way itself costs time."""
    near = _last_away(servers, 0.0)
    far = _last_away(servers, 0.050)
    _show("the same, one of the five by a proxy", near, before)
    _show("the same, one of the five by a proxy, 50 ms away (healthy: the table above)", far, near)


def _last_away(servers: Sequence[Server], seconds: float) -> Results:
    progress(f"one node {seconds * 1000:.0f} ms away")
    with delayed([servers[-1].port], seconds) as slow:
        urls = [*_urls(servers[:-1]), *slow]
        with contestants(QUORUM, urls) as ready:
            return in_turn(ready, ONE_SLOW)


def _one_frozen(servers: Sequence[Server], before: Results) -> None:
    progress("one frozen node")
    with contestants(QUORUM, _urls(servers)) as ready:
        servers[-1].freeze()
        try:
            failures = dict(_failures(ready))
            able = {name: attempt for name, attempt in ready.items() if name not in failures}
            results = in_turn(able, ONE_FROZEN)
        finally:
            servers[-1].thaw()
    _show("the same, one of the five frozen (SIGSTOP)", results, before, failures)


def _all_slow(servers: Sequence[Server], before: Results) -> None:
    progress("all nodes slow")
    with (
        delayed([server.port for server in servers], 0.002) as urls,
        contestants(QUORUM, urls) as ready,
    ):
        results = in_turn(ready, ALL_SLOW)
    _show("the same, each of the five 2 ms away", results, before)


def _failures(ready: dict[str, Attempt]) -> Iterator[tuple[str, str]]:
    """Who does not get a lock this way, and what happens instead."""
    for name, attempt in ready.items():
        start = time.perf_counter()
        try:
            attempt()
        except Exception as error:
            took = time.perf_counter() - start
            yield name, f"no lock: {type(error).__name__} after {took:.1f} s"


def _show(title: str, results: Results, before: Results, failures: dict[str, str] | None = None) -> None:
    head = [*HEAD, "× healthy", ""]
    rows = []
    for name in QUORUM:
        if times := results.get(name):
            own = ratio(times.median, before[name].median)
            rows.append([name, *_numbers(times, results), own, ""])
        else:
            rows.append([name, *[NONE] * 6, (failures or {})[name]])
    show(title, head, rows)


def _numbers(times: Times, results: Results) -> list[str]:
    floor = results[FLOOR].median if FLOOR in results else None
    return [
        ms(times.median),
        ms(times.p99),
        ratio(times.median, floor),
        ratio(times.median, results[OURS].median),
        str(len(times.samples)),
    ]


def _urls(servers: Sequence[Server]) -> list[str]:
    return [server.url for server in servers]


def _empty(servers: Sequence[Server]) -> None:
    """Whoever failed has left its lock behind."""
    for server in servers:
        client = server.client()
        client.flushall()
        client.close()
