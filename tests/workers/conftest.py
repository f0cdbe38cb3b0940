"""Real workers on real brokers, through pytest-celery.

A test that takes `celery_setup` gets a worker that it shares with other tests. A test that harms workers
or lock nodes, or wants special ones, takes `start_worker` and `start_nodes`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Generator, Iterator
from typing import Any

import docker
import pytest
import redis
from celery import Celery
from pytest_celery import CeleryTestBackend, CeleryTestBroker, CeleryTestCluster
from pytest_docker_tools import build, network

from . import shop
from .containers import Containers
from .nodes import LockNode, Setup, Worker
from .processes import REPOSITORY, Processes
from .surroundings import SharedWorkers, Surroundings, own_queue
from .witness import Witness

#: Workers and lock nodes of a test: their logs are shown if it fails. pytest-docker-tools shows others'.
USED = pytest.StashKey[list[Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--docker", action="store_true", help="run servers and workers in containers")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--docker", False):  # docker-py leaves sockets open
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`pytest.mark.pools(…)` and `pytest.mark.brokers(…)`, on a test or else on its module."""
    for name in ("pool", "broker"):
        marker = metafunc.definition.get_closest_marker(f"{name}s")
        if marker and name in metafunc.fixturenames:
            metafunc.parametrize(name, marker.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for node in item.stash.get(USED, []):
            report.sections.append((f"log of {node.name()}", node.logs()[-4000:]))
    return report


# Shared by all tests.


@pytest.fixture(scope="session")
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Starts servers and workers: as processes, or with --docker as containers."""
    usual = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # all ends with a run that is ended
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("CELERY_")]:
            environment.delenv(name)  # CELERY_BROKER_URL would lead to a server that is not ours
        if request.config.getoption("--docker", False):
            client, private, image = map(request.getfixturevalue, DOCKER_PARTS)
            yield Containers(client, private.name, image.id)
        else:
            yield Processes(tmp_path_factory.mktemp("workers"))
    signal.signal(signal.SIGTERM, usual)


@pytest.fixture(scope="session")
def docker_client() -> Iterator[Any]:
    try:
        client = docker.from_env()
    except docker.errors.DockerException as error:
        pytest.fail(f"--docker: no engine answers: {error}", pytrace=False)
    yield client
    client.close()


DOCKER_PARTS = ("docker_client", "docker_network", "worker_image")
docker_network = network(scope="session")
worker_image = build(
    path=str(REPOSITORY), dockerfile="tests/workers/Dockerfile", tag="celery-redlock/tests:worker"
)


@pytest.fixture(scope="session")
def shared_redis(launcher: Any) -> Iterator[list[Any]]:
    """One for the broker, one for results."""
    with launcher.redis(2, "redis") as containers:
        yield containers


@pytest.fixture(scope="session")
def shared_rabbitmq(launcher: Any) -> Iterator[Any]:
    with launcher.rabbitmq() as container:
        yield container


@pytest.fixture(scope="session")
def lock_nodes(launcher: Any) -> Iterator[CeleryTestCluster]:
    with launcher.redis(3, "lock-node") as containers:
        yield CeleryTestCluster(*map(LockNode, containers))


@pytest.fixture(scope="session")
def shared_workers(shared_redis: list[Any], lock_nodes: CeleryTestCluster) -> Iterator[SharedWorkers]:
    shared = SharedWorkers()
    yield shared
    shared.close()


# pytest-celery's own fixtures, which a test gets through `celery_setup`.


@pytest.fixture
def pool() -> str:
    return "prefork"


@pytest.fixture
def broker() -> str:
    return "redis"


@pytest.fixture
def default_redis_broker(shared_redis: list[Any]) -> Any:
    return shared_redis[0]


@pytest.fixture
def default_redis_backend(shared_redis: list[Any]) -> Any:
    return shared_redis[1]


@pytest.fixture
def default_rabbitmq_broker(shared_rabbitmq: Any) -> Any:
    return shared_rabbitmq


@pytest.fixture
def celery_broker(request: pytest.FixtureRequest, broker: str) -> CeleryTestBroker:
    return request.getfixturevalue(f"celery_{broker}_broker")


@pytest.fixture
def celery_backend(celery_redis_backend: CeleryTestBackend) -> CeleryTestBackend:
    return celery_redis_backend


@pytest.fixture
def celery_worker(
    request: pytest.FixtureRequest, pool: str, surroundings: Surroundings, shared_workers: SharedWorkers
) -> Iterator[Worker]:
    worker = shared_workers.get(pool, surroundings)
    surroundings.lead_to(worker.worker_queue)
    request.node.stash[USED].insert(0, worker)
    yield worker
    shared_workers.give_back(pool, surroundings)


@pytest.fixture
def celery_setup_app() -> Celery:
    return shop.app


@pytest.fixture
def celery_setup_cls() -> type[Setup]:
    return Setup


# What a test may take besides.


@pytest.fixture
def surroundings(
    request: pytest.FixtureRequest,
    launcher: Any,
    celery_broker: CeleryTestBroker,
    celery_backend: CeleryTestBackend,
    lock_nodes: CeleryTestCluster,
    history: Any,
) -> Surroundings:
    for node in lock_nodes:
        node.client.flushall()
    request.node.stash[USED] = [*lock_nodes]
    return Surroundings(launcher, celery_broker, celery_backend, lock_nodes)


@pytest.fixture
def history(celery_backend: CeleryTestBackend) -> Iterator[Any]:
    """The database where tasks write down what they did. It is empty when a test begins."""
    with redis.Redis.from_url(
        celery_backend.config(vhost="5")["host_url"], decode_responses=True
    ) as client:
        client.flushdb()
        yield client


@pytest.fixture
def witness(history: Any, lock_nodes: CeleryTestCluster, pool: str) -> Witness:
    return Witness(history, lock_nodes, parties=1 if pool == "solo" else 2)


@pytest.fixture
def start_nodes(
    request: pytest.FixtureRequest, launcher: Any
) -> Iterator[Callable[..., CeleryTestCluster]]:
    """`start_nodes(5)`: lock nodes for this test alone, which it may kill, pause and restart."""
    with contextlib.ExitStack() as stack:

        def start(count: int = 3) -> CeleryTestCluster:
            containers = stack.enter_context(launcher.redis(count, "own-lock-node"))
            nodes = CeleryTestCluster(*map(LockNode, containers))
            request.node.stash.setdefault(USED, []).extend(nodes)
            return nodes

        yield start


@pytest.fixture
def start_worker(
    request: pytest.FixtureRequest, surroundings: Surroundings, start_nodes: object
) -> Iterator[Callable[..., Worker]]:
    """`start_worker(pool="threads", concurrency=2, env={…}, options=[…], nodes=…)`: a worker for this
    test alone. From then on the test's tasks go to the queue that all its own workers have in common."""
    queue = own_queue("own")
    with contextlib.ExitStack() as stack:

        def start(nodes: CeleryTestCluster | None = None, **how: Any) -> Worker:
            around = surroundings if nodes is None else surroundings.with_nodes(nodes)
            worker = around.start_worker(stack, queue, **how)
            around.lead_to(queue, how.get("env"))
            request.node.stash[USED].insert(0, worker)
            return worker

        yield start
