"""Every `lock_*` option of a task and every `redlock_*` setting of an app: default, unit, check.

What can be known when a task is declared is checked then. Settings are read when a lock is first
needed, with `app.conf.get`: so they may be set late, and as `CELERY_REDLOCK_…` in Django.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import ConfigError
from .redlock import LEAST_TTL, MAX_HOLD, NODE_TIMEOUT, TTL, Redlock
from .round import Nodes

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("celery_redlock")


class Option(NamedTuple):
    default: Any
    fits: Callable[[Any], bool]
    wanted: str


def _one_of(default: str | None, *values: str, later: str = "") -> Option:
    wanted = " or ".join(map(repr, values)) + (f" (not yet supported: {later})" if later else "")
    return Option(default, lambda value: isinstance(value, str) and value in values, wanted)


def _seconds(default: float | None, least: float = 0.0) -> Option:
    def fits(value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and value >= least

    return Option(default, fits, f"a number of seconds, {least:g} or more")


def _not_yet(default: Any) -> Option:
    return Option(default, lambda value: value == default, f"{default!r}: nothing else is supported yet")


#: The options, without the `lock_` before their names: what each is if neither task nor app set it.
OPTIONS: dict[str, Option] = {
    "lifetime": _one_of("while_executing", "while_executing", later="lifetimes from the enqueue on"),
    "ttl": _seconds(None, LEAST_TTL),  # None: the setting redlock_ttl
    "limit": _not_yet(1),
    "on_conflict": _one_of(None, "retry", "skip", "wait", "fail"),  # None: "skip" if beat sent it
    "on_duplicate": _not_yet("existing"),
    "on_error": _one_of("retry", "retry", "fail", "run"),
    "on_lost": _one_of("warn", "warn", "interrupt"),
    "wait": _seconds(10.0),
    "give_up": _seconds(3600.0),
    "hold_for": _not_yet(0),
    "max_hold": _seconds(None, LEAST_TTL),  # None: the hard time limit, else `MAX_HOLD`
    "queue_ttl": _not_yet(86400.0),
}

#: Those that name the arguments of one task, so that no app can have a default for them; see key.py.
OF_ONE_TASK = ("on", "key")

#: Each setting of an app, and what it is if it is not set; seconds where it is a time.
SETTINGS: dict[str, Any] = {
    "redlock_nodes": None,  # URLs; None: the result backend or the broker, if that is Redis
    "redlock_ttl": TTL,
    "redlock_restart_guard": None,  # None: the TTL
    "redlock_node_timeout": NODE_TIMEOUT,
    "redlock_prefix": "redlock",
    "redlock_eager": False,  # whether tasks that are called eagerly take their lock
    **{f"redlock_{name}": option.default for name, option in OPTIONS.items() if name != "ttl"},
}

_ADVICE = (
    "tell it where: app.conf.redlock_nodes = ['redis://host-1:6379/0', 'redis://host-2:6379/0', "
    "'redis://host-3:6379/0']"
)


def setting(app: Celery, name: str) -> Any:
    return app.conf.get(name, SETTINGS[name])


class Options:
    """The options of one task: its own `lock_…`, else the app's `redlock_…`, else the default."""

    def __init__(self, task: Any) -> None:
        check_options(task)
        self.ttl: float | None = _chosen(task, "ttl")
        self.on_conflict: str | None = _chosen(task, "on_conflict")
        self.on_error: str = _chosen(task, "on_error")
        self.on_lost: str = _chosen(task, "on_lost")
        self.wait: float = _chosen(task, "wait")
        self.give_up: float = _chosen(task, "give_up")
        self.max_hold: float | None = _chosen(task, "max_hold")
        for name in ("lifetime", "limit", "on_duplicate", "hold_for", "queue_ttl"):
            _chosen(task, name)  # nothing but the default yet

    def longest_hold(self, task: Any) -> float:
        """Renewals end there: a task that hangs must not hold its lock for ever."""
        of_request, of_task = (task.request.timelimit or (None,))[0], task.time_limit
        return float(self.max_hold or of_request or of_task or task.app.conf.task_time_limit or MAX_HOLD)


def check_options(task: Any) -> None:
    """What is wrong with the own options of a task, or of its class when it is declared."""
    known = {f"lock_{name}" for name in (*OPTIONS, *OF_ONE_TASK)} | {"lock_info"}
    for name in dir(task):
        if name.startswith("lock_") and name not in known:
            raise ConfigError(
                f"task {_name(task)} has {name}, which is no option of a lock: it is one of "
                f"{', '.join(sorted(known - {'lock_info'}))}"
            )
    for name in OPTIONS:
        value = getattr(task, f"lock_{name}", None)
        if value is not None:
            _check(name, value, f"lock_{name} of task {_name(task)}")


def _chosen(task: Any, name: str) -> Any:
    value = getattr(task, f"lock_{name}")
    if value is None:
        value = setting(task.app, f"redlock_{name}") if name != "ttl" else None
        if value is not None:
            _check(name, value, f"the setting redlock_{name}")
    return value


def _check(name: str, value: Any, what: str) -> None:
    if not OPTIONS[name].fits(value):
        raise ConfigError(f"{what} is {value!r}: it must be {OPTIONS[name].wanted}")


def _name(task: Any) -> str:
    return str(getattr(task, "name", None) or task.__qualname__)


def connect(app: Celery) -> Redlock:
    """The lock on the nodes of this app."""
    _check_names(app)
    nodes = setting(app, "redlock_nodes")
    if nodes is None:
        return _on_its_own_redis(app)
    if isinstance(nodes, str):
        nodes = nodes.split()  # as from an environment variable
    return _redlock(app, nodes)


def _redlock(app: Celery, nodes: Iterable[str] | Nodes) -> Redlock:
    return Redlock(
        nodes,
        ttl=setting(app, "redlock_ttl"),
        restart_guard=setting(app, "redlock_restart_guard"),
        node_timeout=setting(app, "redlock_node_timeout"),
        prefix=setting(app, "redlock_prefix"),
    )


def _on_its_own_redis(app: Celery) -> Redlock:
    """Without any setting: on the one Redis that the app has anyway."""
    for place in ("result_backend", "broker_url"):
        url = getattr(app.conf, place, None)  # an environment variable may have the last word
        if isinstance(url, str) and url.startswith(("redis://", "rediss://")):
            try:
                redlock = _redlock(app, [url])
            except ConfigError as error:
                raise ConfigError(
                    f"redlock_nodes is not set, and the {place} cannot be the one lock node: {error}; "
                    f"{_ADVICE}"
                ) from None
            logger.warning(
                "redlock_nodes is not set: locks are kept on the %s alone, and are gone when it is; %s",
                place,
                _ADVICE,
            )
            return redlock
    raise ConfigError(
        f"redlock_nodes is not set, and neither result backend nor broker is Redis by one redis:// URL, "
        f"so locks have no place: {_ADVICE}"
    )


def _check_names(app: Celery) -> None:
    """Also of those that a Django project has written its own way."""
    names = list(map(str, app.conf))  # this loads them; before, the namespace is not known
    namespace = str(getattr(app.conf, "prefix", "") or "").lower()
    for name in names:
        plain = name
        if namespace and name.lower().startswith(namespace):
            plain = name.lower()[len(namespace) :]
        if plain.startswith("redlock_") and plain not in SETTINGS:
            raise ConfigError(f"there is no setting {name}: it is one of {', '.join(SETTINGS)}")
