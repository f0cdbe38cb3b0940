"""From a task's arguments to the key of its lock (T5).

Arguments are bound to the task's signature, so `f(1)`, `f(x=1)` and an omitted default are one key.
They are brought into a form that is the same before and after a message's serializer, which makes
lists of tuples and strings of keys, and that still tells 1, "1", 1.0 and True apart. A hash of it
keeps keys short, and secrets out of Redis.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import hashlib
import inspect
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from .errors import ConfigError

#: Arguments that are nested deeper are not taken for data.
DEEPEST = 64

_UNSAFE = re.compile(r"[^\x21-\x7e]|[}#]")


class Key:
    """How one task's key is made of its arguments. What cannot work shows here, not in a run."""

    def __init__(
        self,
        task: str,
        run: Callable[..., Any],
        on: Sequence[str] | None = None,
        key: str | Callable[..., Any] | None = None,
    ) -> None:
        self._task = task
        self._signature = inspect.signature(run)
        self._on = on
        self._key = key
        if isinstance(on, str):
            raise ConfigError(f"lock_on of task {task} is a list of argument names: write [{on!r}]")
        if on is not None and not isinstance(on, (list, tuple, set, frozenset)):
            raise ConfigError(f"lock_on of task {task} is {on!r}: it is a list of argument names")
        if key is not None and not isinstance(key, str) and not callable(key):
            raise ConfigError(
                f"lock_key of task {task} is {key!r}: it is a format text or a function of the arguments"
            )
        if on is not None and key is not None:
            raise ConfigError(f"task {task} has both lock_on and lock_key: choose one")
        for name in on or ():
            self._check_name(name, "lock_on")
        if isinstance(key, str):
            self._check_template(key)

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The key for a call with these arguments; None if the task cannot be called with them."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        digest = hashlib.blake2b(self._form(bound).encode("utf-8", "surrogatepass"), digest_size=16)
        return f"{_UNSAFE.sub('_', self._task)}:{digest.hexdigest()}"

    def _form(self, bound: inspect.BoundArguments) -> str:
        if self._key is None:
            named = self._named(bound)
            return _record(self._argument(name, named[name]) for name in self._chosen(named))
        if callable(self._key):
            return self._argument("lock_key", self._key(*bound.args, **bound.kwargs))
        return self._argument("lock_key", self._key.format(**self._named(bound)))

    def _named(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Every argument by its name, those caught by ** included."""
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named.update(named.pop(parameter.name))
        return named

    def _chosen(self, named: Mapping[str, Any]) -> list[str]:
        return sorted(named if self._on is None else set(self._on) & named.keys())

    def _argument(self, name: str, value: Any) -> str:
        try:
            return _text("a", name) + form(value)
        except (TypeError, RecursionError) as error:
            raise ConfigError(
                f"task {self._task} cannot be locked by its argument {name!r}: {error}. Leave it out "
                f"with lock_on, or make the key yourself with lock_key."
            ) from None

    def _check_name(self, name: str, option: str) -> None:
        parameters = self._signature.parameters
        catches_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if name not in parameters and not catches_all:
            raise ConfigError(
                f"{option} of task {self._task} names {name!r}, which is no argument of it: "
                f"it has {', '.join(map(repr, parameters)) or 'none'}"
            )

    def _check_template(self, template: str) -> None:
        import string

        for _, field, _, _ in string.Formatter().parse(template):
            if field is not None:
                name = re.split(r"[.\[]", field)[0]
                if not name or name.isdigit():
                    raise ConfigError(
                        f"lock_key {template!r} of task {self._task} has a field without a name: "
                        f"write the argument's name in the braces"
                    )
                self._check_name(name, f"lock_key {template!r}")


def form(value: Any, depth: int = 0) -> str:
    """The same text for values that a serializer cannot tell apart, and for no others.

    Every part says its kind and its length, so that no two different values can run together.
    """
    if depth > DEEPEST:
        raise RecursionError(f"it is nested deeper than {DEEPEST}")
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value, depth + 1)
    for method in ("__json__", "model_dump"):  # what kombu asks, and pydantic's
        if callable(dump := getattr(value, method, None)):
            return form(dump(), depth + 1)
    raise TypeError(f"{type(value).__name__} is no plain data")


def _text(kind: str, text: str) -> str:
    return f"{kind}{len(text)}:{text}"


def _record(parts: Any) -> str:
    parts = list(parts)
    return f"{len(parts)}[{''.join(parts)}]"


def _mapping(value: Mapping[Any, Any], depth: int) -> str:
    """JSON makes strings of all keys: so do we, in its way."""
    pairs = sorted((_json_key(key), item) for key, item in value.items())
    return "m" + _record(_text("k", key) + form(item, depth) for key, item in pairs)


def _json_key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return float.__repr__(key)
    return form(key)


def _moment(value: datetime.datetime, depth: int) -> str:
    """In UTC, if it knows its zone: some serializers keep the moment and lose the zone."""
    zoned = value.tzinfo is not None
    return _text("d", (value.astimezone(datetime.timezone.utc) if zoned else value).isoformat())


_WRITERS: tuple[tuple[Any, Callable[[Any, int], str]], ...] = (
    (type(None), lambda value, depth: "n"),
    (bool, lambda value, depth: f"b{value:d}"),
    (int, lambda value, depth: _text("i", int.__repr__(value))),
    (float, lambda value, depth: _text("f", float.__repr__(value))),
    (str, lambda value, depth: _text("s", str.__str__(value))),
    (enum.Enum, lambda value, depth: _text("e", f"{type(value).__qualname__}.{value.name}")),
    ((bytes, bytearray, memoryview), lambda value, depth: _text("y", bytes(value).hex())),
    ((list, tuple), lambda value, depth: "l" + _record(form(item, depth) for item in value)),
    (Mapping, _mapping),
    (AbstractSet, lambda value, depth: "t" + _record(sorted(form(item, depth) for item in value))),
    (datetime.datetime, _moment),
    (datetime.date, lambda value, depth: _text("D", value.isoformat())),
    (datetime.time, lambda value, depth: _text("T", value.isoformat())),
    (datetime.timedelta, lambda value, depth: _text("p", repr(value))),
    (decimal.Decimal, lambda value, depth: _text("c", str(value))),
    (uuid.UUID, lambda value, depth: _text("u", value.hex)),
)
