"""Errors survive the ways in which Celery carries them, and keep secrets."""

from __future__ import annotations

import json
import pickle

import pytest

from celery_redlock import ConfigError, Holder, LeaseLost, LockHeld, QuorumUnreachable, RedlockError
from celery_redlock.owner import new_owner

SECRET = "0123456789abcdef" * 2
HOLDER = Holder.read(new_owner(SECRET, "task-7"), remaining=4.5, fence=9)

ERRORS = [
    RedlockError("a"),
    ConfigError("b"),
    LockHeld("c", HOLDER.to_json(), 4.5),
    QuorumUnreachable("d", {"redis://a": "down"}, 2.0),
    LeaseLost("e", "key", "expired"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_rebuilt_from_json(error: RedlockError) -> None:
    again = type(error)(*json.loads(json.dumps(error.args)))
    assert str(again) == str(error) == error.args[0]
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_pickled(error: RedlockError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_argument_of_an_error_is_optional(error: RedlockError) -> None:
    assert str(type(error)()) == ""


def test_a_refusal_says_who_holds_the_lock_and_not_how_to_release_it() -> None:
    error = LockHeld("c", HOLDER.to_json(), 4.5)
    assert error.holder == HOLDER
    assert SECRET not in repr(error) + str(error) + repr(error.holder) + json.dumps(error.args)


def test_a_holder_is_read_from_its_value() -> None:
    assert HOLDER.task_id == "task-7"
    assert str(HOLDER) == f"task task-7 (pid {HOLDER.pid} on {HOLDER.host})"
    assert HOLDER.value == new_owner(SECRET, "task-7")


def test_whatever_is_in_a_task_id_the_owner_stays_one_readable_line() -> None:
    holder = Holder.read(new_owner(SECRET, "a b:c\r\n+granted 1\udcff"), None)
    assert holder.task_id == "a-b-c--+granted-1-"
    assert holder.pid is not None


@pytest.mark.parametrize("value", ["", "5cb1…", "r:short:1:h:t", "?"])
def test_another_clients_value_has_no_names(value: str) -> None:
    assert str(Holder.read(value, 1.0)) == "another Redlock client"
