"""One key for one meaning of the arguments, whatever way they took (T5)."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.serialization import dumps, loads

from celery_redlock import ConfigError
from celery_redlock.key import Key, form

ACCEPT = [
    "application/json",
    "application/x-python-serialize",
    "application/x-yaml",
    "application/x-msgpack",
]


def run(x: Any, y: Any = 2, *rest: Any, flag: Any = False, **more: Any) -> None: ...


def key(*args: Any, **kwargs: Any) -> str | None:
    return Key("shop.sync", run).of(args, kwargs)


def test_a_key_has_the_tasks_name_and_shows_no_argument() -> None:
    made = key("secret", flag="secret")
    assert made is not None
    assert made.startswith("shop.sync:")
    assert "secret" not in made
    assert len(made) == len("shop.sync:") + 32


def test_the_way_of_calling_makes_no_difference() -> None:
    assert key(1) == key(x=1) == key(1, 2) == key(1, y=2) == key(1, flag=False) == key(y=2, x=1)


def test_other_arguments_are_another_key() -> None:
    keys = [key(1), key(2), key(1, 3), key(1, 2, 3), key(1, flag=True), key(1, z=1), key(1, z=2)]
    assert len(set(keys)) == len(keys)


def test_other_tasks_have_other_keys() -> None:
    assert Key("a", run).of([1], {}) != Key("b", run).of([1], {})


def test_values_of_different_types_are_told_apart() -> None:
    values = [1, "1", 1.0, True, None, b"1", [1], {"1": 1}, decimal.Decimal(1), "True", "None", ""]
    assert len({key(value) for value in values}) == len(values)


def test_arguments_that_do_not_fit_the_task_have_no_key() -> None:
    """The task is not locked then: its body raises its own TypeError."""
    assert key() is None
    assert key(1, x=1) is None


def test_names_choose_what_counts() -> None:
    some = Key("t", run, on=["x"])
    assert some.of([1, 2], {}) == some.of([1, 3], {"flag": True})
    assert some.of([1], {}) != some.of([2], {})
    none = Key("t", run, on=[])
    assert none.of([1], {}) == none.of([2], {})
    caught = Key("t", run, on=["extra"])
    assert caught.of([1], {"extra": 1}) == caught.of([2], {"extra": 1}) != caught.of([2], {"extra": 2})


def test_a_template_is_filled_with_the_arguments() -> None:
    made = Key("t", run, key="{x}-{y}")
    assert made.of([1], {}) == made.of(["1", "2"], {}) != made.of([2], {})


def test_a_callable_makes_the_key_of_the_arguments() -> None:
    made = Key("t", run, key=lambda x, *rest, **more: x % 10)
    assert made.of([3], {}) == made.of([13], {}) != made.of([4], {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": ["z"]}, "lock_on of task t names 'z', which is no argument of it: it has 'a', 'b'"),
        ({"on": "a"}, r"lock_on of task t is a list of argument names: write \['a'\]"),
        ({"key": "{z}"}, "lock_key '{z}' of task t names 'z', which is no argument"),
        ({"key": "{}"}, "lock_key '{}' of task t has a field without a name"),
        ({"on": ["a"], "key": "{a}"}, "task t has both lock_on and lock_key: choose one"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_call(options: Any, message: str) -> None:
    def other(a: int, b: int) -> None: ...

    with pytest.raises(ConfigError, match=message):
        Key("t", other, **options)


def test_what_is_no_plain_data_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be locked by its argument 'y': object is no plain data"
    ):
        key(1, object())
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match=r"argument 'x': it is nested deeper than 64"):
        key(loop)


class Colour(str, enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Plain(enum.Enum):
    ONE = 1


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {"id": 7}


def test_what_a_serializer_makes_equal_is_equal() -> None:
    assert form((1, (2,))) == form([1, [2]])
    assert form({2: "a", None: "b", True: "c"}) == form({"2": "a", "null": "b", "true": "c"})
    assert form(Colour.RED) == form("red")
    assert form(Size.LARGE) == form(3)
    assert form(Plain.ONE) != form(1)
    assert form(Model()) == form({"id": 7})
    berlin = datetime.timezone(datetime.timedelta(hours=2))
    noon = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.timezone.utc)
    assert form(noon) == form(noon.astimezone(berlin)) != form(noon.replace(tzinfo=None))


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
        st.datetimes(),
        st.datetimes(timezones=st.just(datetime.timezone.utc)),
        st.dates(),
        st.times(),
        st.uuids(),
        st.decimals(allow_nan=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), inner, max_size=4
        )
        # Two keys that JSON makes one: a message cannot carry both.
        .filter(lambda d: len({str(k) for k in d}) == len(d)),
    ),
    max_leaves=8,
)


def there_and_back(value: Any, serializer: str) -> Any:
    content_type, encoding, data = dumps(value, serializer=serializer)
    return loads(data, content_type, encoding, accept=ACCEPT)


@given(plain)
def test_json_and_pickle_do_not_change_the_form(value: Any) -> None:
    assert form(there_and_back([value], "json")) == form([value])
    assert form(there_and_back([value], "pickle")) == form([value])


simple = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text("abcäß1 :-'\"{}") | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc1"), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(simple)
def test_yaml_and_msgpack_do_not_change_the_form(value: Any) -> None:
    assert form(there_and_back([value], "yaml")) == form([value])
    assert form(there_and_back([value], "msgpack")) == form([value])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab1:[]{}kils"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab1:"), inner, max_size=4),
    max_leaves=8,
)


@given(json_values, json_values)
def test_different_values_have_different_forms(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (form(one) == form(other)) == same


@given(st.uuids(), st.text())
def test_hostile_names_still_make_a_key(unique: uuid.UUID, name: str) -> None:
    made = Key(name + "}#\n", run).of([unique], {})
    assert made is not None
    assert not any(c in "}#" or not "!" <= c <= "~" for c in made)
