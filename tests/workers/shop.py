"""The app under test: its workers run it, and the tests send its tasks.

Tasks write down what they do in a list of a Redis database, `history`, and wait there for a word of
the test. So a test sees what happened, in which order, and nobody sleeps and hopes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, SoftTimeLimitExceeded

from celery_redlock import LeaseLost, LockedTask
from celery_redlock import task as task_module
from celery_redlock.heartbeat import heartbeat
from celery_redlock.signals import lock_lost

#: Seconds. The TTL of all locks here, unless a task or a test says otherwise.
TTL = 3.0

#: Seconds that a task waits for a word before it fails.
PATIENCE = 20

app = Celery("shop", task_cls=os.environ.get("SHOP_TASK_CLS"))

if "SHOP_SENTRY" in os.environ:
    import sentry_sdk

    sentry_sdk.init("http://nobody@127.0.0.1:9/1", traces_sample_rate=1.0)


def configure(environment: Mapping[str, str]) -> None:
    app.conf.update(
        broker_url=environment["SHOP_BROKER"],
        result_backend=environment.get("SHOP_RESULTS", environment["SHOP_BACKEND"]) or None,
        task_default_queue=environment["SHOP_QUEUE"],
        redlock_nodes=environment["SHOP_NODES"].split(),
        redlock_ttl=float(environment.get("SHOP_TTL", TTL)),
        redlock_restart_guard=float(environment.get("SHOP_GUARD", 0)),
        redlock_node_timeout=0.5,
        shop_history=environment["SHOP_HISTORY"],
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": int(environment.get("SHOP_VISIBILITY", 3600)),
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
        result_backend_transport_options={"retry_policy": {"max_retries": 1, "interval_step": 0.1}},
        task_acks_late="SHOP_ACKS_LATE" in environment,
        task_reject_on_worker_lost="SHOP_ACKS_LATE" in environment,
        accept_content=["json", "yaml", "msgpack"],
    )
    if redlock := task_module._redlocks.pop(app, None):
        redlock.close()
    _history.cache_clear()


@functools.cache
def _history(pid: int) -> Any:
    """Each process has a connection of its own."""
    return redis.Redis.from_url(app.conf.shop_history, decode_responses=True)


def history() -> Any:
    return _history(os.getpid())


def note(what: str) -> None:
    history().rpush("history", what)


def wait_for(word: str, seconds: float = PATIENCE) -> None:
    """Until the test has said the word: `history.rpush(word, "")`. Interrupts come through."""
    deadline = time.monotonic() + seconds
    while not history().lpop(word):
        if time.monotonic() > deadline:
            raise TimeoutError(word)
        time.sleep(0.01)


if "SHOP_BROKER" in os.environ:
    configure(os.environ)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def pid() -> int:
    return os.getpid()


def locked(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    decorator: Any = app.task(base=LockedTask, bind=True, **options)
    return decorator  # type: ignore[no-any-return]


def in_and_out(task: Any, name: str, word: str = "") -> int:
    """Note the way in and the way out, with the number of the lease; wait for a word in between."""
    fence = task.lease.fence
    note(f"in {name} {fence}")
    try:
        if word:
            wait_for(word)
    finally:
        note(f"out {name} {fence}")
    return int(fence)


@locked(lock_on=["name"])
def work(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_on_conflict="skip")
def skipping(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_on_conflict="skip", ignore_result=True)
def skipping_quietly(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_on_conflict="wait", lock_wait=15)
def waiting(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_on_conflict="wait", lock_wait=2)
def patient(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_wait=0.1)
def lasting(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word) if word else 0


@locked(lock_on=["name"], lock_on_conflict="wait", lock_wait=20)
def brief(self: Any, name: str, number: int, seconds: float) -> None:
    note(f"in {name} {number} {self.lease.fence}")
    time.sleep(seconds)
    note(f"out {name} {number} {self.lease.fence}")
    history().rpush("done", number)


@locked(lock_on=["name"], lock_on_conflict="fail")
def failing(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_give_up=0.5)
def impatient(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_on_error="fail")
def strict(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@locked(lock_on=["name"], lock_on_error="run")
def lenient(self: Any, name: str) -> str:
    note(f"ran {name}")
    return "locked" if self.lease else "unlocked"


@locked(lock_on=["name"], lock_on_lost="warn")
def warned(self: Any, name: str, seconds: float = 10) -> str:
    """Goes on until it has seen the loss; says how."""
    note(f"in {name} {self.lease.fence}")
    deadline = time.monotonic() + seconds
    while not self.lease.lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    late = self.lease.quorum.nodes.now() - self.lease.until
    try:
        self.lease.check()
    except LeaseLost as lost:
        return f"{lost.reason} {'late' if late > 0 else 'in time'}"
    return "not lost"


@locked(lock_on=["name"], lock_on_lost="interrupt")
def interrupted(self: Any, name: str, swallow: int = 0) -> None:
    """Swallows the error so many times."""
    note(f"in {name} {self.lease.fence}")
    deadline = time.monotonic() + 10
    caught = 0
    while time.monotonic() < deadline:
        try:
            while time.monotonic() < deadline:
                time.sleep(0.01)
        except LeaseLost:
            caught += 1
            if caught > swallow:
                in_time = self.lease.until > self.lease.quorum.nodes.now()
                note(f"out {name} {'in time' if in_time else 'late'}, caught {caught}")
                raise


@locked(lock_on=["name"], lock_on_lost="interrupt")
def closely(self: Any, name: str, seconds: float) -> str:
    """Loses its lock, and ends soon after."""
    self.lease.lose("taken")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "ended"


class SlowToSend(LockedTask):
    abstract = True

    def apply_async(self, *args: Any, **options: Any) -> Any:
        if "SHOP_BROKER" in os.environ:
            time.sleep(0.5)
        return super().apply_async(*args, **options)


@app.task(base=SlowToSend, bind=True, lock_on=["name"], lock_on_lost="interrupt")
def coming_back(self: Any, name: str) -> int:
    """Loses its lock, and retries by itself; but publishing takes its time."""
    if self.request.retries == 0:
        try:
            self.lease.lose("taken")
            wait_for("never")
        except LeaseLost as lost:
            raise self.retry(countdown=0) from lost
    return int(self.request.retries)


@locked(lock_on=["name"], lock_on_lost="interrupt", max_retries=0)
def going_on(self: Any, name: str) -> None:
    """Loses its lock, cannot retry, and goes on all the same."""
    try:
        self.lease.lose("taken")
        wait_for("never")
    except LeaseLost:
        with contextlib.suppress(MaxRetriesExceededError):
            self.retry()
    note(f"goes on {name}")
    wait_for("never")


@lock_lost.connect
def note_loss(sender: Any, task_id: str, lease: Any, **kwargs: Any) -> None:
    note(f"signal {task_id} {lease.loss.reason}")


@locked(lock_on=["name"], soft_time_limit=1)
def softly_limited(self: Any, name: str) -> str:
    try:
        wait_for("never")
    except SoftTimeLimitExceeded:
        note(f"limit {name}")
        raise
    return "not limited"


@locked(lock_on=["name"], time_limit=1)
def hard_limited(self: Any, name: str) -> None:
    note(f"in {name}")
    wait_for("never")


@locked(lock_on=["name"], max_retries=3)
def ending(self: Any, name: str, end: str) -> str:
    """Ends in every way that a task can."""
    note(f"in {name} {end}")
    if end == "retry" and self.request.retries == 0:
        raise self.retry(countdown=0)
    if end == "retry with other arguments" and self.request.retries == 0:
        raise self.retry(args=(f"other-{name}", end), countdown=0)
    if end == "failure":
        raise ValueError(name)
    if end == "ignore":
        raise Ignore
    if end == "reject":
        raise Reject(name, requeue=False)
    if end == "replace":
        raise self.replace(add.s(1, 2))
    if end == "exit":
        sys.exit(3)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "unstorable":
        return object()  # type: ignore[return-value]
    if end == "itself":
        return f"{self(name, 'inner')} and outer"
    return end


@locked(lock_on=["name"], autoretry_for=(KeyError,), retry_kwargs={"max_retries": 2, "countdown": 0})
def retried(self: Any, name: str) -> int:
    note(f"in {name} {self.request.retries}")
    if self.request.retries < 2:
        raise KeyError(name)
    return int(self.request.retries)


@locked()
def by_signature(self: Any, x: Any, y: Any = 2, *more: Any, **others: Any) -> str:
    return str(self.lease.key)


@locked(lock_key="customer {order[customer]}")
def by_template(self: Any, order: dict[str, Any]) -> str:
    return str(self.lease.key)


@locked(lock_key=lambda order: order["customer"])
def by_callable(self: Any, order: dict[str, Any]) -> str:
    return str(self.lease.key)


class Careless(LockedTask):
    """Overrides all that it can, and calls nobody's super()."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def before_start(self, *args: Any) -> None: ...

    def after_return(self, *args: Any) -> None: ...


class Loud:
    """A mixin in front of the base class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note("loud")
        return self.run(*args, **kwargs)  # type: ignore[attr-defined]


class LoudTask(Loud, LockedTask):
    abstract = True


@app.task(base=Careless, bind=True, lock_on=["name"])
def careless(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@app.task(base=LoudTask, bind=True, lock_on=["name"])
def loud(self: Any, name: str, word: str = "") -> int:
    return in_and_out(self, name, word)


@app.task
def seen(results: Any) -> Any:
    note("seen")
    return results


@locked(lock_on=["name"])
def anything(self: Any, name: str, what: Any = None) -> str:
    return type(what).__name__


@locked(lock_on=["name"])
def described(self: Any, name: str) -> dict[str, Any]:
    """The message that it came with."""
    request = self.request
    wanted = ("id", "expires", "retries", "shadow", "stamps", "mine", "argsrepr")
    described = {what: getattr(request, what, None) for what in wanted}
    return {**described, "priority": request.delivery_info["priority"]}


@app.task
def leases_held(parties: int) -> int:
    """How many leases this process keeps alive. So many of these tasks wait for each other before they
    answer: then each process of the pool has been asked."""
    history().incr("parties")
    deadline = time.monotonic() + PATIENCE
    while int(history().get("parties")) % parties and time.monotonic() < deadline:
        time.sleep(0.005)
    return len(heartbeat()._leases)
