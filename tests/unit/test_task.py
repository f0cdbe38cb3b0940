"""LockedTask as it is declared, and as it runs without a worker."""

from __future__ import annotations

import copy
import functools
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, current_task, shared_task
from celery.exceptions import Ignore, Retry
from celery.signals import beat_init

from celery_redlock import ConfigError, LockedTask, LockHeld, QuorumUnreachable, conflict
from celery_redlock import task as task_module
from celery_redlock.conflict import _pause
from celery_redlock.header import Header, Tries
from celery_redlock.heartbeat import heartbeat
from celery_redlock.task import _close
from celery_redlock.testing import MemoryNodes


@pytest.fixture
def memory() -> MemoryNodes:
    return MemoryNodes(3)


@pytest.fixture
def app(memory: MemoryNodes) -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=memory, redlock_eager=True, redlock_wait=0.05)
    yield app
    assert not heartbeat()._leases
    assert not held(memory)


def held(memory: MemoryNodes) -> set[str]:
    nodes = [memory[index] for index in range(len(memory))]
    keys = {key for node in nodes for key in node._values if node.get(key)}
    return {key for key in keys if not key.endswith(":fence")}


class TestADeclaration:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lock_on_conflcit": "skip"}, "lock_on_conflcit, which is no option"),
            ({"lock_on_conflict": "drop"}, "lock_on_conflict of task shop.sync is 'drop': it must be"),
            ({"lock_on_error": "skip"}, "'retry' or 'fail' or 'run'"),
            ({"lock_on_lost": "stop"}, "'warn' or 'interrupt'"),
            ({"lock_ttl": 0}, "a number of seconds, 0.1 or more"),
            ({"lock_ttl": "30"}, "a number of seconds"),
            ({"lock_wait": -1}, "a number of seconds, 0 or more"),
            ({"lock_give_up": float("nan")}, "a number of seconds"),
            ({"lock_on": ["custmer"]}, "names 'custmer', which is no argument"),
            ({"lock_on": "customer"}, r"write \['customer'\]"),
            ({"lock_key": "{custmer}"}, "names 'custmer'"),
            ({"lock_on": [], "lock_key": "x"}, "both lock_on and lock_key"),
            ({"lock_on": 5}, "a list of argument names"),
            ({"lock_key": 5}, "a format text or a function"),
            ({"lock_lifetime": "until_executed"}, "not yet supported"),
            ({"lock_limit": 2}, "nothing else is supported yet"),
            ({"lock_hold_for": 5}, "nothing else is supported yet"),
            ({"lock_on_duplicate": "fail"}, "nothing else is supported yet"),
        ],
    )
    def test_that_cannot_work_is_an_error(
        self, options: dict[str, Any], message: str, app: Celery
    ) -> None:
        with pytest.raises(ConfigError, match=message):

            @app.task(base=LockedTask, name="shop.sync", lazy=False, shared=False, **options)
            def sync(customer: int) -> None: ...

    def test_by_annotations(self, app: Celery) -> None:
        app.conf.task_annotations = {"shop.sync": {"lock_on_conflict": "fail", "lock_on": []}}

        @app.task(base=LockedTask, name="shop.sync", bind=True)
        def sync(self: Any, customer: int) -> str:
            return str(self.lease.key)

        assert sync.apply(args=(1,)).get() == sync.apply(args=(2,)).get()
        assert sync._options.on_conflict == "fail"

    def test_by_the_apps_settings(self, app: Celery) -> None:
        app.conf.redlock_on_conflict = "skip"
        assert locked(app)._options.on_conflict == "skip"

    def test_the_tasks_own_option_wins(self, app: Celery) -> None:
        app.conf.redlock_on_conflict = "skip"
        assert locked(app, lock_on_conflict="wait")._options.on_conflict == "wait"

    def test_a_bad_setting_is_an_error_at_first_use(self, app: Celery) -> None:
        app.conf.redlock_on_conflict = "drop"
        with pytest.raises(ConfigError, match="the setting redlock_on_conflict is 'drop'"):
            locked(app).apply(args=["a"], throw=True)

    def test_a_ttl_above_the_guard_is_an_error_at_first_use(self, app: Celery) -> None:
        with pytest.raises(ConfigError, match="restart guard"):
            locked(app, lock_ttl=60).apply(args=["a"], throw=True)

    def test_every_task_of_an_app(self, memory: MemoryNodes) -> None:
        app = Celery("shop", broker="memory://", task_cls=LockedTask, set_as_current=False)
        app.conf.update(redlock_nodes=memory, redlock_eager=True)

        @app.task(bind=True)
        def plain(self: Any) -> bool:
            return self.lease is not None

        assert plain.apply().get()

    def test_a_class_of_its_own(self, app: Celery) -> None:
        class Sync(LockedTask):
            name = "shop.class"
            lock_on = ("customer",)

            def __init__(self) -> None:
                self.calls = 0

            def run(self, customer: int) -> str:
                self.calls += 1
                assert self.lease is not None
                return self.lease.key

        sync = app.register_task(Sync())
        assert sync.apply(args=(1,)).get() == sync.apply(kwargs={"customer": 1}).get()

    def test_a_class_without_a_name(self, app: Celery) -> None:
        class Sync(LockedTask):
            def __init__(self, on: list[str]) -> None:
                self.lock_on = on

            def run(self, customer: int, full: bool = False) -> str:
                assert self.lease is not None
                return self.lease.key

        sync = app.register_task(Sync(["customer"]))
        assert sync.apply(args=(1,)).get() == sync.apply(args=(1, True)).get()

    def test_options_that_an_instance_sets_are_checked(self, app: Celery) -> None:
        class Sync(LockedTask):
            def __init__(self) -> None:
                self.lock_ttl = "soon"

            def run(self) -> None: ...

        with pytest.raises(ConfigError, match=r"lock_ttl of task .* is 'soon'"):
            app.register_task(Sync()).apply(throw=True)

    @pytest.mark.parametrize("kind", [staticmethod, classmethod])
    def test_a_run_that_is_no_method(self, kind: Any, app: Celery) -> None:
        class Sync(LockedTask):
            name = "shop.kind"
            lock_on = ("customer",)
            run = kind(lambda *args, customer=1: args)

        assert app.register_task(Sync()).apply(kwargs={"customer": 2}).successful()

    def test_one_expected_error_that_is_no_tuple(self, app: Celery) -> None:
        assert set(locked(app, throws=KeyError).throws) == {KeyError, LockHeld}

    def test_a_shared_task(self, app: Celery) -> None:
        @shared_task(base=LockedTask, bind=True, name="shop.shared")
        def shared(self: Any) -> bool:
            return self.lease is not None

        assert app.tasks["shop.shared"].apply().get()

    def test_a_call_that_reaches_super_takes_the_lock_once(self, app: Celery) -> None:
        class Counting(LockedTask):
            abstract = True

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                assert self.lease is not None
                return super().__call__(*args, **kwargs)

        assert locked(app, base=Counting).apply(args=["a"]).get() == "done"

    def test_a_call_that_changes_the_arguments_is_locked_by_what_it_passes_on(
        self, app: Celery, memory: MemoryNodes
    ) -> None:
        class OfTenant(LockedTask):
            abstract = True

            def __call__(self, *args: Any, tenant: str, **kwargs: Any) -> Any:
                return super().__call__(f"{tenant}-{args[0]}", *args[1:], **kwargs)

        seen: list[int] = []
        sync = locked(app, base=OfTenant, lock_on=["name"])
        note = [lambda: seen.append(len(held(memory)))]
        assert sync.apply(args=["a", *note], kwargs={"tenant": "t"}).get() == "done"
        assert seen == [1]

    def test_a_call_that_goes_round_the_lock_is_reported(
        self, app: Celery, caplog: pytest.LogCaptureFixture
    ) -> None:
        class OfTenant(LockedTask):
            abstract = True

            def __call__(self, *args: Any, tenant: str, **kwargs: Any) -> Any:
                return self.run(*args, **kwargs)

        assert locked(app, base=OfTenant).apply(args=["a"], kwargs={"tenant": "t"}).get() == "done"
        assert "ran WITHOUT its lock" in caplog.text

    def test_a_call_that_looks_like_ours_and_is_not(self, app: Celery) -> None:
        class Wrapping(LockedTask):
            abstract = True

            @functools.wraps(LockedTask.__call__)
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                assert self.lease is not None
                return self.run(*args, **kwargs)

        assert locked(app, base=Wrapping).apply(args=["a"]).get() == "done"

    def test_celerys_own_tasks_are_not_locked(self, memory: MemoryNodes) -> None:
        app = Celery("shop", broker="memory://", task_cls=LockedTask, set_as_current=False)
        app.conf.update(redlock_nodes=memory, redlock_eager=True)
        memory[0].up = memory[1].up = False
        app.finalize()
        assert app.tasks["celery.accumulate"].apply(args=(1, 2)).get() == (1, 2)

    def test_the_nodes_of_one_app_are_not_those_of_another(self, app: Celery) -> None:
        other = Celery("other", broker="memory://", set_as_current=False)
        other.conf.update(redlock_nodes=MemoryNodes(3), redlock_eager=True)
        inner = locked(other)

        @app.task(base=LockedTask, name="shop.sync", lock_on=[])
        def outer() -> Any:
            return inner.apply(args=["a"]).get()

        assert outer.apply().get() == "done"
        assert outer.redlock is not inner.redlock


def locked(app: Celery, base: Any = LockedTask, **options: Any) -> Any:
    @app.task(base=base, name="shop.sync", shared=False, **options)
    def sync(name: str, then: Any = None) -> str:
        if then is not None:
            then()
        return "done"

    return sync


class TestAnEagerCall:
    def test_takes_no_lock_unless_it_is_told_to(self, app: Celery, memory: MemoryNodes) -> None:
        app.conf.redlock_eager = False
        seen: list[int] = []
        locked(app, lock_on=["name"]).apply(args=["a", lambda: seen.append(len(held(memory)))])
        assert seen == [0]

    def test_holds_the_lock_while_it_runs(self, app: Celery, memory: MemoryNodes) -> None:
        seen: list[int] = []
        sync = locked(app, lock_on=["name"])
        assert sync.apply(args=["a", lambda: seen.append(len(held(memory)))]).get() == "done"
        assert seen == [1]

    def test_that_is_refused_waits_and_then_fails(self, app: Celery) -> None:
        sync = locked(app, lock_on=["name"])
        result: list[Any] = []
        sync.apply(args=["a", lambda: result.append(sync.apply(args=["a"]))])
        assert isinstance(result[0].result, LockHeld)

    def test_that_is_refused_may_be_skipped(self, app: Celery) -> None:
        sync = locked(app, lock_on=["name"], lock_on_conflict="skip")
        result: list[Any] = []
        sync.apply(args=["a", lambda: result.append(sync.apply(args=["a"]))])
        assert isinstance(result[0].result, Ignore)

    def test_without_a_quorum_fails(self, app: Celery, memory: MemoryNodes) -> None:
        memory[0].up = memory[1].up = False
        with pytest.raises(QuorumUnreachable):
            locked(app).apply(args=["a"], throw=True)

    def test_that_raises_gives_the_lock_back(self, app: Celery, memory: MemoryNodes) -> None:
        def fail() -> None:
            raise KeyError

        with pytest.raises(KeyError):
            locked(app, lock_on=["name"]).apply(args=["a", fail], throw=True)
        assert not held(memory)

    @pytest.mark.parametrize(
        ("options", "longest"),
        [
            ({}, 86400),
            ({"time_limit": 7}, 7),
            ({"time_limit": 7, "lock_max_hold": 5}, 5),
            ({"lock_max_hold": 9}, 9),
        ],
    )
    def test_holds_it_for_so_long_at_most(
        self, options: dict[str, Any], longest: float, app: Celery, memory: MemoryNodes
    ) -> None:
        sync = locked(app, lock_on=["name"], **options)
        left: list[float] = []
        sync.apply(args=["a", lambda: left.append(sync.lease.hold_until - memory.now())])
        assert left == [pytest.approx(longest, abs=1)]

    def test_can_copy_its_request(self, app: Celery) -> None:
        sync = locked(app, lock_on=["name"])
        copies: list[Any] = []
        sync.apply(args=["a", lambda: copies.append(copy.copy(sync._hold))])
        assert copies == [None]

    def test_leaves_no_circle_of_references(self, app: Celery) -> None:
        sync = locked(app, lock_on=["name"])
        left: list[Any] = []
        gc.disable()
        try:
            sync.apply(args=["a", lambda: left.append(weakref.ref(sync._hold))])
            assert left[0]() is None
        finally:
            gc.enable()

    def test_has_the_ttl_of_the_task(self, app: Celery) -> None:
        sync = locked(app, lock_on=["name"], lock_ttl=5)
        ttl: list[float] = []
        sync.apply(args=["a", lambda: ttl.append(sync.lease.ttl)])
        assert ttl == [5]

    def test_of_an_argument_that_is_no_data_names_it(self, app: Celery) -> None:
        with pytest.raises(ConfigError, match=r"task shop.sync cannot be locked by its argument 'then'"):
            locked(app).apply(args=["a", object], throw=True)


def test_a_direct_call_takes_no_lock(app: Celery, memory: MemoryNodes) -> None:
    memory[0].up = memory[1].up = False
    assert locked(app)("a") == "done"


def test_a_direct_call_is_a_tasks_call_as_ever(app: Celery) -> None:
    seen: list[Any] = []
    sync = locked(app)
    sync("a", lambda: seen.append((current_task.name, sync.request.args[0])))
    assert seen == [("shop.sync", "a")]


def test_a_call_with_the_arguments_in_celerys_order(app: Celery) -> None:
    app.conf.task_always_eager = True
    assert locked(app, lock_on=["name"]).apply_async(("a",), {}, "id-1", None, None).id == "id-1"


def test_who_holds_it_is_an_error_for_arguments_that_do_not_fit(app: Celery) -> None:
    with pytest.raises(TypeError, match="cannot be called with these arguments"):
        locked(app).lock_info()


class TestAMessage:
    """As a worker gets it, up to the moment when it is published anew."""

    @pytest.fixture
    def published(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        sent: list[Any] = []
        monkeypatch.setattr(conflict, "_publish", lambda task, again: sent.append(again.options))
        return sent

    def arrives(self, task: Any, **request: Any) -> None:
        about = {"id": "id-1", "called_directly": False, "args": ["a"], "kwargs": {}, **request}
        task.push_request(**about)
        try:
            task("a")
        finally:
            _close(task)
            task.pop_request()

    def test_that_was_redelivered_is_kept_through_a_time_without_a_quorum(
        self, app: Celery, memory: MemoryNodes, published: list[Any]
    ) -> None:
        memory[0].up = memory[1].up = False
        sync = locked(app, lock_on=["name"], lock_on_conflict="skip")
        with pytest.raises(Retry):
            self.arrives(sync, delivery_info={"redelivered": True})
        memory[0].up = memory[1].up = True
        with sync.redlock.lock(sync._key.of(("a",), {})), pytest.raises(Retry):
            self.arrives(sync, headers=published[0]["headers"])

    def test_of_its_own_retry_begins_to_count_afresh(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[Any] = []
        monkeypatch.setattr(Task, "apply_async", lambda *args, **options: sent.append(options))
        refused = Header("shop.sync", "id-1", Tries(5, 100.0), keep=True).written()

        @app.task(base=LockedTask, name="shop.sync", bind=True, shared=False)
        def sync(self: Any, name: str) -> None:
            raise self.retry()

        with pytest.raises(Retry):
            self.arrives(sync, headers={"redlock": refused, "mine": 1})
        fresh = Header("shop.sync", "id-1", keep=True).written()
        assert sent[0]["headers"] == {"redlock": fresh, "mine": 1}

    def test_keeps_what_hides_its_secrets(self, app: Celery, published: list[Any]) -> None:
        sync = locked(app, lock_on=["name"])
        with sync.redlock.lock(sync._key.of(("a",), {})), pytest.raises(Retry):
            self.arrives(sync, argsrepr="('***',)", kwargsrepr="{}")
        assert published[0]["argsrepr"] == "('***',)"

    def test_in_a_worker_that_calls_eagerly_fails(self, app: Celery, published: list[Any]) -> None:
        app.conf.task_always_eager = True
        sync = locked(app, lock_on=["name"])
        with sync.redlock.lock(sync._key.of(("a",), {})), pytest.raises(LockHeld):
            self.arrives(sync)
        assert not published

    @pytest.mark.parametrize(("timeout", "longest"), [(None, 60), (3600, 60), (20, 5)])
    def test_waits_for_a_part_of_the_visibility_timeout(
        self, timeout: int | None, longest: float, app: Celery
    ) -> None:
        app.conf.broker_transport_options = {"visibility_timeout": timeout} if timeout else {}
        assert conflict._longest_pause(app) == longest


def test_what_beat_sends_says_so(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_in_beat", False)
    sent: list[Any] = []
    monkeypatch.setattr(Task, "apply_async", lambda *args, **options: sent.append(options))
    sync = locked(app)
    sync.apply_async(("a",))
    beat_init.send(sender=None)
    sync.apply_async(("a",), headers={"mine": 1})
    assert [options.get("headers") for options in sent] == [
        None,
        {"mine": 1, "celery_beat_task": True},
    ]


def test_a_lock_that_is_held_is_no_error_to_be_reported(app: Celery) -> None:
    assert {LockHeld, KeyError} <= set(locked(app, throws=(KeyError,)).throws)


def test_a_task_that_is_put_off_comes_back_in_whole_seconds_and_soon_enough() -> None:
    for tries in range(1, 50):
        for at_most in (None, 0.0, 0.3, 5.5, 30.0, 1000.0):
            pause = _pause(tries, at_most)
            assert isinstance(pause, int)
            assert 1 <= pause <= min(60, 2**tries, at_most + 1 if at_most else 60)
