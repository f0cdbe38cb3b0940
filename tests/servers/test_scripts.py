"""The nodes in memory answer as the Lua scripts do: the same commands to both, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_redlock import lua
from celery_redlock.round import Command
from celery_redlock.testing import ManualClock, MemoryNode, servers

NOW = 1_700_000_000.0  # seconds
NOW_US = int(NOW * 1e6)
OWNERS = ["r:" + letter * 32 + ":1:host:task" for letter in "abc"]
KEYS = ("lock", "fence")
TTL, FENCE_TTL = 100_000, 600_000

owners = st.sampled_from(OWNERS)
fences = st.integers(NOW_US - 1000, NOW_US + 1000)

acquires = st.builds(lambda o, f: Command(lua.ACQUIRE, KEYS, (o, TTL, f, FENCE_TTL)), owners, fences)
raises = st.builds(lambda o, f: Command(lua.RAISE, KEYS, (o, f, FENCE_TTL)), owners, fences)
releases = st.builds(lambda o: Command(lua.RELEASE, KEYS[:1], (o,)), owners)
inspects = st.just(Command(lua.INSPECT, KEYS, ()))
extends = st.lists(st.tuples(owners, fences), min_size=1, max_size=3).map(
    lambda leases: Command(
        lua.EXTEND, KEYS * len(leases), (TTL, FENCE_TTL, *[part for lease in leases for part in lease])
    )
)
steps = st.one_of(
    acquires, raises, releases, inspects, extends, st.sampled_from(["flush", "lose fence"])
)


@pytest.fixture(scope="module")
def client(program: Path) -> Iterator[redis.Redis]:
    """A server, and the acquire script with a fixed time of day: the rest of it is as we ship it."""
    with servers(1, program) as (server,):
        client = server.client()
        yield client
        client.close()


def on_server(client: redis.Redis, command: Command) -> str:
    text = command.script.text.replace("redis.call('TIME')", f"{{{int(NOW)}, 0}}")
    return str(client.eval(text, len(command.keys), *command.keys, *command.args))


def words(answer: str) -> list[str]:
    """Without the remaining time, which the two cannot have the same to the millisecond."""
    parts = answer.split(" ")
    return parts[:1] + parts[2:] if parts[0] in ("refused", "held") else parts


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(steps, max_size=12))
def test_both_answer_the_same(client: redis.Redis, plan: list[Any]) -> None:
    client.flushall()
    clock = ManualClock()
    memory = MemoryNode(clock, lambda: NOW)
    for step in plan:
        if step == "flush":
            client.flushall()
            memory.flush()
        elif step == "lose fence":
            client.delete("fence")
            memory.set("fence", "", 0)
        else:
            assert words(on_server(client, step)) == words(memory.run(step))
        for key in KEYS:
            assert client.get(key) == memory.get(key)


@pytest.mark.parametrize("off", [-86400, 86400])
def test_a_proposal_is_held_to_a_minute_around_the_servers_time(client: redis.Redis, off: int) -> None:
    client.flushall()
    command = Command(lua.ACQUIRE, KEYS, (OWNERS[0], TTL, NOW_US + off * 1_000_000, FENCE_TTL))
    minute = 60_000_000 if off > 0 else -60_000_000
    assert on_server(client, command) == f"granted {NOW_US + minute}"


def test_the_digest_is_the_servers_own(client: redis.Redis) -> None:
    assert [client.script_load(script.text) for script in lua.ALL] == [s.sha for s in lua.ALL]


def test_a_value_with_line_breaks_still_makes_one_line(client: redis.Redis) -> None:
    client.set("lock", "a\r\n+granted 1\r\n", px=TTL)
    command = Command(lua.ACQUIRE, KEYS, (OWNERS[0], TTL, NOW_US, FENCE_TTL))
    assert on_server(client, command).endswith(" a  +granted 1  ")


def test_a_long_foreign_value_is_cut(client: redis.Redis) -> None:
    client.set("lock", "x" * 10_000, px=TTL)
    answer = on_server(client, Command(lua.INSPECT, KEYS, ()))
    assert answer.endswith(" " + "x" * 512)
