"""What a node's greeting tells of its age."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.address import Address
from celery_redlock.errors import ConfigError
from celery_redlock.node import Node, Roster, clock


class Greeted:
    """A connection whose server says that it is ten seconds old."""

    def __init__(self, info: Any) -> None:
        self._info = info

    def read_response(self) -> Any:
        return self._info


def node(roster: Roster, url: str = "redis://a:1/0") -> Node:
    return Node(0, Address(url, 1.0), roster, 1.0, guarded=True)


INFO = b"# Server\r\nrun_id:abc\r\nuptime_in_seconds:10\r\n"


def test_an_age_in_whole_seconds_may_be_a_second_off_either_way() -> None:
    asked = clock()
    started = node(Roster())._hear_age(Greeted(INFO), asked)  # type: ignore[arg-type]
    assert started.earliest == asked - 11
    assert asked - 9 <= started.latest <= clock() - 9


@pytest.mark.parametrize("nonsense", [b"", b"run_id:abc\r\n", b"uptime_in_seconds:x", 7, None])
def test_an_answer_that_makes_no_sense_is_said_to_be_so(nonsense: Any) -> None:
    with pytest.raises(ConnectionError, match="makes no sense"):
        node(Roster())._hear_age(Greeted(nonsense), 0.0)  # type: ignore[arg-type]


def test_a_server_that_has_moved_is_not_taken_for_two() -> None:
    roster = Roster()
    roster.note("redis://a", "abc")
    with pytest.raises(ConfigError, match="redis://b and redis://a are the same server"):
        roster.note("redis://b", "abc")
    roster.forget("redis://a")
    roster.note("redis://b", "abc")
