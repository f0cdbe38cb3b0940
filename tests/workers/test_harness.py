"""The servers and workers that the other tests here run on are what they seem to be."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import redis
from pytest_celery import CeleryTestCluster, CeleryTestSetup, CeleryWorkerCluster

from ..waiting import wait_until
from . import shop
from .nodes import Worker
from .surroundings import POOLS

StartWorker = Callable[..., Worker]
StartNodes = Callable[..., CeleryTestCluster]


@pytest.mark.brokers("redis", "rabbitmq")
@pytest.mark.pools(*POOLS)
def test_a_task_runs_in_a_worker_with_the_pool_that_was_asked_for(
    celery_setup: CeleryTestSetup, pool: str
) -> None:
    assert shop.pid.delay().get(timeout=10) != os.getpid()
    worker = celery_setup.worker
    worker.assert_log_exists("succeeded in", timeout=5)
    stats = celery_setup.app.control.inspect([worker.hostname()]).stats()[worker.hostname()]
    assert pool.rstrip("s") in stats["pool"]["implementation"]


def test_the_setup_is_ready_in_every_way_that_pytest_celery_can_ask(
    celery_setup: CeleryTestSetup,
) -> None:
    assert celery_setup.ready(ping=True, control=True, docker=True)
    assert celery_setup.app is shop.app
    assert len(celery_setup) == 3


def test_a_shared_worker_shows_only_what_it_logged_for_this_test(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.worker.logs() == ""


@pytest.fixture(scope="module")
def left_behind() -> list[Any]:
    return []


class TestABusyWorker:
    def test_may_be_left_behind(self, celery_setup: CeleryTestSetup, left_behind: list[Any]) -> None:
        shop.add.apply_async((1, 2), countdown=60)
        celery_setup.worker.wait_for_log("received", timeout=5)
        left_behind.append(celery_setup.worker.container)

    def test_is_not_given_to_the_next_test(
        self, celery_setup: CeleryTestSetup, left_behind: list[Any]
    ) -> None:
        assert celery_setup.worker.container not in left_behind
        assert [container.status for container in left_behind] == ["exited"]


@pytest.mark.brokers("redis", "rabbitmq")
def test_an_own_worker_can_be_killed_and_restarted(start_worker: StartWorker) -> None:
    worker = start_worker(
        pool="solo", env={"SHOP_COLOUR": "red"}, options=["--max-tasks-per-child", "9"]
    )
    assert shop.add.delay(1, 2).get(timeout=10) == 3
    worker.kill()
    assert worker.container.status == "exited"
    sent = shop.add.delay(3, 4)
    worker.restart()
    assert sent.get(timeout=10) == 7


def test_a_gentle_signal_ends_a_worker_warmly(start_worker: StartWorker) -> None:
    worker = start_worker()
    worker.kill("SIGTERM")
    worker.wait_for_log("Warm shutdown", timeout=5)
    wait_until(lambda: worker.container.status == "exited")


class TestSeveralWorkers:
    @pytest.fixture
    def celery_worker_cluster(self, start_worker: StartWorker) -> CeleryWorkerCluster:
        return CeleryWorkerCluster(start_worker(pool="threads"), start_worker(pool="threads"))

    def test_take_tasks_from_one_queue(self, celery_setup: CeleryTestSetup) -> None:
        first, second = celery_setup.worker_cluster
        second.kill()
        assert shop.add.delay(1, 2).get(timeout=10) == 3
        first.wait_for_log("succeeded", timeout=5)
        first.kill()
        second.restart()
        assert shop.add.delay(3, 4).get(timeout=10) == 7
        second.wait_for_log("succeeded", timeout=5)


def test_lock_nodes_are_three_servers(
    celery_setup: CeleryTestSetup, lock_nodes: CeleryTestCluster
) -> None:
    assert len({node.client.info("server")["run_id"] for node in lock_nodes}) == 3
    assert celery_setup.app.conf.redlock_nodes == [node.url for node in lock_nodes]


def test_own_lock_nodes_can_be_killed_paused_and_restarted_empty(
    start_nodes: StartNodes, start_worker: StartWorker
) -> None:
    nodes = start_nodes(5)
    start_worker(pool="solo", nodes=nodes)
    assert shop.app.conf.redlock_nodes == [node.url for node in nodes]
    killed, paused, restarted, *_ = nodes
    killed.kill()
    paused.pause()
    restarted.client.set("key", "value")
    restarted.restart()
    assert not restarted.client.exists("key")
    with redis.Redis.from_url(killed.url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    with (
        redis.Redis.from_url(paused.url, socket_timeout=0.2) as client,
        pytest.raises(redis.TimeoutError),
    ):
        client.ping()
    paused.unpause()
    assert paused.client.ping()


def test_history_is_where_the_shop_writes(celery_setup: CeleryTestSetup, history: Any) -> None:
    assert history.dbsize() == 0
    with redis.Redis.from_url(celery_setup.app.conf.shop_history) as shops:
        shops.set("key", "value")
    assert history.get("key") == "value"
