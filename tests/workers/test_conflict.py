"""What becomes of a task whose lock someone else holds, or that cannot ask (T6, T7, T9)."""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError
from pytest_celery import CeleryTestCluster, CeleryTestSetup

from celery_redlock import LockHeld, QuorumUnreachable, Redlock

from ..waiting import wait_until
from . import shop
from .surroundings import POOLS
from .witness import Witness

pytestmark = pytest.mark.pools(*POOLS)


@pytest.fixture
def elsewhere(lock_nodes: CeleryTestCluster) -> Any:
    """Holds the lock of a task, as a worker elsewhere would: `elsewhere(task, …)` gives its lease."""
    redlock = Redlock([node.url for node in lock_nodes], ttl=20, restart_guard=0)
    leases: list[Any] = []

    def hold(task: Any, *args: Any, task_id: str = "someone-else") -> Any:
        key = task._key.of(args, {})
        leases.append(redlock.acquire(key, task_id=task_id))
        return leases[-1]

    yield hold
    for lease in leases:
        lease.release()
    redlock.close()


def state(result: Any, wanted: str) -> None:
    wait_until(lambda: result.state == wanted, 15)


def test_a_refused_task_tries_again_until_it_gets_the_lock(
    celery_setup: CeleryTestSetup, witness: Witness, elsewhere: Any
) -> None:
    lease = elsewhere(shop.work, "a")
    result = shop.work.delay("a")
    state(result, "RETRY")
    assert isinstance(result.result, LockHeld)
    assert "someone-else" in str(result.result)
    celery_setup.worker.wait_for_log(f"task {shop.work.name}[{result.id}] tries again in", timeout=5)
    lease.release()
    assert result.get(timeout=15) > lease.fence
    witness.all_is_free()


def test_skip(celery_setup: CeleryTestSetup, witness: Witness, elsewhere: Any) -> None:
    elsewhere(shop.skipping, "a")
    result = shop.skipping.delay("a")
    with pytest.raises(TaskRevokedError, match=r"skipped.*someone-else"):
        result.get(timeout=10)
    assert result.state == "REVOKED"
    assert witness.seen() == []


@pytest.mark.pools("prefork")
def test_skip_stores_nothing_for_a_task_without_results(
    celery_setup: CeleryTestSetup, elsewhere: Any
) -> None:
    elsewhere(shop.skipping_quietly, "a")
    result = shop.skipping_quietly.delay("a")
    celery_setup.worker.wait_for_log("skipped task", timeout=10)
    assert result.state == "PENDING"


@pytest.mark.pools("prefork")
def test_skip_is_seen_by_monitors(celery_setup: CeleryTestSetup, elsewhere: Any) -> None:
    elsewhere(shop.skipping, "a")
    events: list[dict[str, Any]] = []
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"task-revoked": events.append})
        with receiver.consumer_context(wakeup=False) as (own, _, _):
            with contextlib.suppress(TimeoutError):
                own.drain_events(timeout=0.1)  # it subscribes when it first looks
            result = shop.skipping.delay("a")
            while not events:
                own.drain_events(timeout=10)
    assert events[0]["uuid"] == result.id


def test_wait_blocks_until_the_lock_is_free(
    celery_setup: CeleryTestSetup, witness: Witness, elsewhere: Any
) -> None:
    lease = elsewhere(shop.waiting, "a")
    result = shop.waiting.delay("a")
    celery_setup.worker.wait_for_log("received", timeout=5)
    lease.release()
    assert result.get(timeout=5) > lease.fence
    assert "tries again" not in celery_setup.worker.logs()


def test_fail(celery_setup: CeleryTestSetup, elsewhere: Any) -> None:
    elsewhere(shop.failing, "a")
    with pytest.raises(LockHeld, match="someone-else") as caught:
        shop.failing.delay("a").get(timeout=10)
    assert caught.value.holder is not None
    assert caught.value.holder.task_id == "someone-else"
    assert "Traceback" not in celery_setup.worker.logs()


def test_giving_up(celery_setup: CeleryTestSetup, elsewhere: Any) -> None:
    elsewhere(shop.impatient, "a")
    result = shop.impatient.delay("a")
    with pytest.raises(LockHeld, match=r"gave up after \d s and 2 tries.*someone-else"):
        result.get(timeout=15)


@pytest.mark.pools("prefork")
def test_a_task_of_beat_is_skipped_by_default(
    celery_setup: CeleryTestSetup, witness: Witness, elsewhere: Any
) -> None:
    elsewhere(shop.work, "a")
    result = shop.work.apply_async(("a",), headers={"celery_beat_task": True})
    with pytest.raises(TaskRevokedError):
        result.get(timeout=10)


@pytest.mark.pools("prefork")
def test_the_tasks_own_retries_are_not_spent(
    celery_setup: CeleryTestSetup, witness: Witness, elsewhere: Any
) -> None:
    lease = elsewhere(shop.retried, "a")
    result = shop.retried.delay("a")
    state(result, "RETRY")
    lease.release()
    assert result.get(timeout=20) == 2
    assert witness.seen() == ["in a 0", "in a 1", "in a 2"]


@pytest.mark.pools("prefork")
@pytest.mark.brokers("redis", "rabbitmq")
def test_everything_of_the_message_survives(
    celery_setup: CeleryTestSetup, witness: Witness, elsewhere: Any
) -> None:
    """Its queue, priority, expiry, headers, stamps, callbacks and reply queue."""
    lease = elsewhere(shop.described, "a")
    signature = shop.described.s("a")
    signature.stamp(customer="seven")
    expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    result = signature.apply_async(
        priority=3,
        expires=expires,
        headers={"mine": "kept"},
        link=shop.seen.s(),
        shadow="shady",
        argsrepr="('***',)",
    )
    state(result, "RETRY")
    lease.release()
    described = result.get(timeout=15)
    assert described["id"] == result.id
    assert described["priority"] == 3
    assert described["expires"].startswith(expires.isoformat()[:19])
    assert described["mine"] == "kept"
    assert described["stamps"] == {"customer": "seven"}
    assert described["shadow"] == "shady"
    assert described["argsrepr"] == "('***',)"
    assert described["retries"] == 0
    witness.sees("seen")


@pytest.mark.pools("prefork")
def test_a_vote_that_nobody_has_won_drops_nobody(
    celery_setup: CeleryTestSetup, lock_nodes: CeleryTestCluster
) -> None:
    name = f"redlock:{{{shop.skipping._key.of(('a',), {})}}}"
    for number, node in enumerate(lock_nodes[:2]):
        node.client.set(name, f"someone-{number}", px=20_000)
    result = shop.skipping.delay("a")
    state(result, "RETRY")
    for node in lock_nodes:
        node.client.delete(name)
    assert result.get(timeout=15)


@pytest.mark.pools("prefork")
def test_a_message_of_another_serializer(celery_setup: CeleryTestSetup, elsewhere: Any) -> None:
    lease = elsewhere(shop.anything, "a")
    result = shop.anything.apply_async(("a", {1, 2}), serializer="yaml")
    state(result, "RETRY")
    lease.release()
    assert result.get(timeout=15) == "set"


@pytest.mark.pools("prefork", "gevent")
class TestACanvas:
    """Nobody in it is ever dropped, whatever the policy."""

    def test_a_chord_of_equal_tasks(self, celery_setup: CeleryTestSetup, witness: Witness) -> None:
        header = group(shop.skipping.s("a") for _ in range(3))
        fences = chord(header)(shop.seen.s()).get(timeout=30)
        assert len(set(fences)) == 3

    def test_a_group_of_equal_tasks(self, celery_setup: CeleryTestSetup, witness: Witness) -> None:
        result = group(shop.skipping.s("a") for _ in range(3)).apply_async()
        assert len(set(result.get(timeout=30))) == 3

    def test_a_chain_of_equal_tasks(self, celery_setup: CeleryTestSetup, elsewhere: Any) -> None:
        lease = elsewhere(shop.skipping, "a")
        steps = [shop.skipping.si("a") for _ in range(3)]
        result: Any = chain(*steps).apply_async()
        state(result.parent.parent, "RETRY")
        lease.release()
        assert result.get(timeout=20) > result.parent.get() > result.parent.parent.get()

    @pytest.mark.parametrize("task", [shop.work, shop.skipping, shop.failing])
    def test_the_next_step_of_a_chain_waits_for_the_one_before_it(
        self, task: Any, celery_setup: CeleryTestSetup
    ) -> None:
        """It is on its way before that has given back the lock; but soon is soon enough."""
        for _ in range(5):
            result: Any = chain(*[task.si("a") for _ in range(3)]).apply_async()
            assert result.get(timeout=20)
        assert "tries again" not in celery_setup.worker.logs()

    def test_the_last_step_of_a_chain(self, celery_setup: CeleryTestSetup, elsewhere: Any) -> None:
        lease = elsewhere(shop.skipping, "a")
        result = chain(shop.add.si(1, 2), shop.skipping.si("a")).apply_async()
        state(result, "RETRY")
        lease.release()
        assert result.get(timeout=20) > lease.fence


@pytest.mark.pools("prefork")
class TestACopyOfTheHolder:
    """A message that was delivered twice finds its own task at work: that one may be dead."""

    @pytest.fixture(params=["", "sync:7 ü "])
    def task_id(self, request: pytest.FixtureRequest) -> str:
        """Any text may be one; Redis has it in a simpler form."""
        return f"{request.param}{uuid.uuid4()}"

    @pytest.mark.parametrize("task", [shop.skipping, shop.failing])
    def test_is_not_dropped(
        self, task: Any, celery_setup: CeleryTestSetup, elsewhere: Any, task_id: str
    ) -> None:
        lease = elsewhere(task, "a", task_id=task_id)
        result = task.apply_async(("a",), task_id=task_id)
        state(result, "RETRY")
        lease.release()
        assert result.get(timeout=15) > lease.fence

    def test_does_not_spoil_the_result_when_it_gives_up(
        self, celery_setup: CeleryTestSetup, elsewhere: Any, task_id: str
    ) -> None:
        elsewhere(shop.impatient, "a", task_id=task_id)
        result = shop.impatient.apply_async(("a",), task_id=task_id)
        celery_setup.worker.wait_for_log("gave up task", timeout=15)
        assert result.state == "RETRY"

    def test_is_not_dropped_later_either(
        self, celery_setup: CeleryTestSetup, elsewhere: Any, task_id: str
    ) -> None:
        """The next attempt finds another holder; that it must be kept is written in its header."""
        lease = elsewhere(shop.skipping, "a", task_id=task_id)
        result = shop.skipping.apply_async(("a",), task_id=task_id)
        state(result, "RETRY")
        lease.release()
        lease = elsewhere(shop.skipping, "a")
        celery_setup.worker.wait_for_log("someone-else", timeout=10)
        lease.release()
        assert result.get(timeout=15) > lease.fence


@pytest.mark.pools("prefork")
class TestARepublishThatFails:
    """The broker has no memory left, of all moments, when the task is put off."""

    @pytest.fixture
    def default_redis_broker(self, launcher: Any) -> Iterator[Any]:
        with launcher.redis(1, "own-broker") as [broker]:
            yield broker

    @pytest.fixture
    def full(self, default_redis_broker: Any) -> Callable[[bool], object]:
        client = default_redis_broker.client
        return lambda full: client.config_set("maxmemory", "1" if full else "0")

    def test_without_late_acks_is_a_failure(self, start_worker: Any, elsewhere: Any, full: Any) -> None:
        worker = start_worker()
        elsewhere(shop.patient, "a")
        result = shop.patient.delay("a")
        worker.wait_for_log("received", timeout=10)
        full(True)
        with pytest.raises(Exception, match="maxmemory"):
            result.get(timeout=15)

    def test_with_late_acks_goes_back_to_the_queue(
        self, start_worker: Any, elsewhere: Any, full: Any
    ) -> None:
        worker = start_worker(env={"SHOP_ACKS_LATE": "1"})
        lease = elsewhere(shop.patient, "a")
        result = shop.patient.delay("a")
        worker.wait_for_log("received", timeout=10)
        full(True)
        worker.wait_for_log("goes back to its queue", timeout=15)
        full(False)
        lease.release()
        assert result.get(timeout=15) > lease.fence


@pytest.mark.pools("prefork", "gevent")
class TestNoQuorum:
    @pytest.fixture
    def nodes(self, start_nodes: Any, start_worker: Any, pool: str) -> CeleryTestCluster:
        """Three lock nodes, of which one is left."""
        nodes = start_nodes(3)
        start_worker(pool=pool, nodes=nodes)
        for node in nodes[:2]:
            node.kill()
        return nodes

    def test_is_retried(self, nodes: CeleryTestCluster) -> None:
        result = shop.work.delay("a")
        state(result, "RETRY")
        assert isinstance(result.result, QuorumUnreachable)
        for node in nodes[:2]:
            node.restart()
        result.get(timeout=20)

    def test_may_be_a_failure(self, nodes: CeleryTestCluster) -> None:
        with pytest.raises(QuorumUnreachable, match="1 of 3 nodes can vote") as caught:
            shop.strict.delay("a").get(timeout=10)
        assert len(caught.value.nodes) == 2

    def test_may_be_ignored(self, nodes: CeleryTestCluster) -> None:
        assert shop.lenient.delay("a").get(timeout=10) == "unlocked"

    def test_is_given_up(self, nodes: CeleryTestCluster) -> None:
        with pytest.raises(QuorumUnreachable, match="gave up after"):
            shop.impatient.delay("a").get(timeout=20)


@pytest.mark.pools("prefork")
def test_operators_can_take_a_lock_away(celery_setup: CeleryTestSetup, witness: Witness) -> None:
    first = shop.work.delay("a", "go")
    witness.sees("in a")
    taken_from = shop.work.unlock("a")
    assert taken_from is not None
    assert taken_from.task_id == first.id
    assert shop.work.unlock("a") is None
    witness.says("go")
    first.get(timeout=10)
