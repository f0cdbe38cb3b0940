"""No two holders, while processes fight and a minority of the servers fails, again and again."""

from __future__ import annotations

import pytest

from celery_redlock.testing import Server

from ..waiting import wait_until
from .contention import TTL, Turn, run, violations


def check(five: list[Server], seed: int, seconds: float) -> tuple[int, int]:
    history, faults = run(five, seed, seconds)
    assert violations(history) == []
    wait_until(lambda: not any(list(node.client().scan_iter("redlock:{?}")) for node in five), 2 * TTL)
    print(f"{len(history)} turns, {faults} faults, {sum(turn.lost for turn in history)} leases lost")
    return len(history), faults


def test_no_two_hold_a_key_at_once(five: list[Server]) -> None:
    turns, faults = check(five, seed=1, seconds=12)
    assert turns > 100
    assert faults >= 3


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [2, 3])
def test_no_two_hold_a_key_at_once_for_minutes(five: list[Server], seed: int) -> None:
    turns, faults = check(five, seed, seconds=120)
    assert turns > 1000
    assert faults >= 30


def test_the_checker_sees_two_at_once() -> None:
    history = [Turn("a", 0, 2, 1, False), Turn("b", 1, 2, 1, False), Turn("a", 1, 3, 2, False)]
    assert len(violations(history)) == 1
    noticed = [Turn("a", 0, 2, 1, True), Turn("a", 1, 3, 2, False)]
    assert violations(noticed) == []


def test_the_checker_sees_fences_that_go_back() -> None:
    assert len(violations([Turn("a", 0, 1, 5, False), Turn("a", 2, 3, 5, False)])) == 1
