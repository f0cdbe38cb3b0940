"""Five nodes in memory, and a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import _state

from celery_redlock.round import Command, Tally
from celery_redlock.testing import ManualClock, MemoryNodes


@pytest.fixture(autouse=True)
def private_tasks() -> Iterator[None]:
    """`@app.task` gives its task to every app that comes later: but not to those of other tests."""
    shared: set[Any] = _state._on_app_finalizers  # type: ignore[attr-defined]
    before = set(shared)
    yield
    shared.clear()
    shared.update(before)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def nodes(clock: ManualClock) -> MemoryNodes:
    return MemoryNodes(5, clock)


@pytest.fixture
def sent(nodes: MemoryNodes) -> list[list[Command]]:
    """Every round that goes out, as its commands."""
    rounds: list[list[Command]] = []
    channel = nodes.channel()
    real_round = channel.round

    def spy(commands: list[Command], tally: Tally, patience: float, nodes: object = None) -> None:
        rounds.append(commands)
        real_round(commands, tally, patience, nodes)  # type: ignore[arg-type]

    channel.round = spy  # type: ignore[assignment]
    return rounds
