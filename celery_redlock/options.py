"""The `redlock_*` settings of a Celery app: default, unit, check; and the Redlock that they describe.

Settings are read when a lock is first needed, with `app.conf.get`: so they may be set late, and as
`CELERY_REDLOCK_…` in Django.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .redlock import NODE_TIMEOUT, TTL, Redlock

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger("celery_redlock")

#: Each setting of an app, and what it is if it is not set; seconds where it is a time.
SETTINGS: dict[str, Any] = {
    "redlock_nodes": None,  # URLs; None: the result backend or the broker, if that is Redis
    "redlock_ttl": TTL,
    "redlock_restart_guard": None,  # None: the TTL
    "redlock_node_timeout": NODE_TIMEOUT,
    "redlock_prefix": "redlock",
}

_ADVICE = (
    "tell it where: app.conf.redlock_nodes = ['redis://host-1:6379/0', 'redis://host-2:6379/0', "
    "'redis://host-3:6379/0']"
)


def setting(app: Celery, name: str) -> Any:
    return app.conf.get(name, SETTINGS[name])


def connect(app: Celery) -> Redlock:
    """The lock on the nodes of this app."""
    _check_names(app)
    return Redlock(
        _nodes(app),
        ttl=setting(app, "redlock_ttl"),
        restart_guard=setting(app, "redlock_restart_guard"),
        node_timeout=setting(app, "redlock_node_timeout"),
        prefix=setting(app, "redlock_prefix"),
    )


def _nodes(app: Celery) -> list[str]:
    nodes = setting(app, "redlock_nodes")
    if nodes is None:
        return [_only_redis(app)]
    if isinstance(nodes, str):
        return nodes.split()  # as from an environment variable
    return list(nodes)


def _only_redis(app: Celery) -> str:
    """Without any setting: the one Redis that the app has anyway."""
    for place in ("result_backend", "broker_url"):
        url = app.conf.get(place)
        if isinstance(url, str) and url.startswith(("redis://", "rediss://")):
            logger.warning(
                "redlock_nodes is not set: locks are kept on the %s alone, and are gone when it is; %s",
                place,
                _ADVICE,
            )
            return url
    raise ConfigError(f"neither result backend nor broker is Redis, so locks have no place: {_ADVICE}")


def _check_names(app: Celery) -> None:
    for name in app.conf:
        if str(name).startswith("redlock_") and name not in SETTINGS:
            raise ConfigError(f"there is no setting {name}: it is one of {', '.join(SETTINGS)}")
