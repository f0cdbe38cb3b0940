"""The lock that a Celery app's settings describe."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery

from celery_redlock import ConfigError, Redlock

NODES = ["redis://a:1/0", "redis://b:1/0", "redis://c:1/0"]


def app(broker: str = "memory://", backend: str | None = None, **settings: Any) -> Celery:
    made = Celery("shop", broker=broker, backend=backend, set_as_current=False)
    made.conf.update(settings)
    return made


def test_the_settings_of_an_app() -> None:
    redlock = Redlock.from_app(
        app(redlock_nodes=NODES, redlock_ttl=5, redlock_restart_guard=60, redlock_prefix="shop")
    )
    assert repr(redlock) == "<Redlock on redis://a:1/0, redis://b:1/0, redis://c:1/0>"
    assert (redlock.ttl, redlock.restart_guard) == (5, 60)


def test_the_defaults() -> None:
    redlock = Redlock.from_app(app(redlock_nodes=NODES))
    assert (redlock.ttl, redlock.restart_guard) == (30, 30)


def test_settings_in_djangos_way() -> None:
    made = Celery("shop", set_as_current=False)
    made.config_from_object({"CELERY_REDLOCK_NODES": NODES, "CELERY_REDLOCK_TTL": 7}, namespace="CELERY")
    assert Redlock.from_app(made).ttl == 7


def test_settings_may_come_late() -> None:
    made = app()
    made.conf.redlock_nodes = NODES
    assert "redis://b:1/0" in repr(Redlock.from_app(made))


def test_nodes_as_one_text_from_the_environment() -> None:
    redlock = Redlock.from_app(app(redlock_nodes=" ".join(NODES)))
    assert repr(redlock) == "<Redlock on redis://a:1/0, redis://b:1/0, redis://c:1/0>"


@pytest.mark.parametrize(
    ("broker", "backend", "node"),
    [
        ("redis://broker:1/0", None, "redis://broker:1/0"),
        ("redis://broker:1/0", "redis://:pw@backend:1/1", "redis://backend:1/1"),
        ("amqp://broker", "rediss://backend:1/0?ssl_cert_reqs=CERT_REQUIRED", "rediss://backend:1/0"),
    ],
)
def test_without_nodes_the_apps_own_redis_is_the_one_node(
    broker: str, backend: str | None, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    redlock = Redlock.from_app(app(broker, backend))
    assert repr(redlock) == f"<Redlock on {node}>"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "app.conf.redlock_nodes = [" in caplog.text
    assert "pw" not in caplog.text


def test_without_nodes_and_without_redis_the_error_shows_the_line_to_add() -> None:
    with pytest.raises(
        ConfigError, match=r"neither .* is Redis.*app\.conf\.redlock_nodes = \['redis://"
    ):
        Redlock.from_app(app("amqp://broker", "rpc://"))


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="there is no setting redlock_tll: it is one of redlock_nodes,"
    ):
        Redlock.from_app(app(redlock_nodes=NODES, redlock_tll=5))


def test_a_bad_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ttl is 0"):
        Redlock.from_app(app(redlock_nodes=NODES, redlock_ttl=0))


@pytest.mark.parametrize("name", ["CELERY_REDLOCK_NODE", "CELERY_REDLOCK_TTLL"])
def test_a_misspelt_setting_in_djangos_way(name: str) -> None:
    made = Celery("shop", set_as_current=False)
    made.config_from_object({"CELERY_REDLOCK_NODES": NODES, name: 7}, namespace="CELERY")
    with pytest.raises(ConfigError, match=f"there is no setting {name}"):
        Redlock.from_app(made)


@pytest.mark.parametrize(
    "broker", ["redis://a:1/0;redis://b:1/0", "redis://a:1/0?visibility_timeout=5", "redis+socket:///a"]
)
def test_a_broker_that_cannot_be_the_one_node_is_told_apart_from_a_lock_node(broker: str) -> None:
    with pytest.raises(ConfigError, match="redlock_nodes is not set"):
        Redlock.from_app(app(broker))


def test_what_is_no_setting_of_celery_is_not_ours() -> None:
    made = Celery("shop", set_as_current=False)
    settings = {"CELERY_REDLOCK_NODES": NODES, "REDLOCK_SERVERS": ["of another library"]}
    made.config_from_object(settings, namespace="CELERY")
    assert "redis://a:1/0" in repr(Redlock.from_app(made))


def test_the_environment_may_name_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://broker:1/0")
    made = Celery("shop", set_as_current=False)
    assert repr(Redlock.from_app(made)) == "<Redlock on redis://broker:1/0>"
