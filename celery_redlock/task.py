"""LockedTask: a task that holds its lock while it runs. In the order of a task's life."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.signals import task_postrun

from . import conflict
from .errors import LeaseLost, LockHeld, QuorumUnreachable
from .header import HEADER, Header
from .heartbeat import heartbeat
from .interrupt import PAUSE, Interrupt, interrupt
from .key import Key
from .lease import Lease
from .options import Options, check_options, connect, setting
from .owner import Holder
from .redlock import Redlock
from .signals import lock_lost

logger = logging.getLogger("celery_redlock")

#: Under this name the lock of a running task is kept, in its request: threads and greenlets share the
#: task itself (T4).
STATE = "_redlock_state"


class LockedTask(Task):  # type: ignore[type-arg]
    """Holds a lock, named by the task and its arguments, while it runs.

    The options are class attributes, or arguments of `@app.task`; None stands for the app's setting
    `redlock_…`, and that for the default. They are described in options.py and in the reference.
    """

    abstract = True

    lock_lifetime: Any = None
    lock_on: Any = None
    lock_key: Any = None
    lock_ttl: Any = None
    lock_limit: Any = None
    lock_on_conflict: Any = None
    lock_on_duplicate: Any = None
    lock_on_error: Any = None
    lock_on_lost: Any = None
    lock_wait: Any = None
    lock_give_up: Any = None
    lock_hold_for: Any = None
    lock_max_hold: Any = None
    lock_queue_ttl: Any = None

    # declared

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _guard(cls)

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        super().on_bound(app)
        _guard(cls)  # again: a mixin's __call__ may have come in front of ours
        check_options(cls)
        _key_of(cls, _run_of(cls))
        if LockHeld not in cls.throws:  # expected: no traceback in the log, no report to Sentry
            cls.throws = (*cls.throws, LockHeld)

    # sent

    def apply_async(  # type: ignore[override]
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> Any:
        """As ever. But the own retry of a task that has had its lock begins to count afresh (T14)."""
        request = self.request
        if task_id is not None and task_id == request.id and STATE in request.__dict__:
            fresh = Header.read(self.name, request).afresh()
            options["headers"] = {**(options.get("headers") or {}), HEADER: fresh.written()}
        return super().apply_async(args, kwargs, task_id=task_id, **options)

    # run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    @property
    def lease(self) -> Lease | None:
        """Inside the body: the lease on its lock. None if it runs without one."""
        lock: _Lock | None = self.request.__dict__.get(STATE)
        return None if lock is None else lock.lease

    # returned

    def after_return(
        self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        super().after_return(status, retval, task_id, args, kwargs, einfo)
        _close(self)

    # for operators

    def lock_info(self, *args: Any, **kwargs: Any) -> Holder | None:
        """Who holds the lock of the task with these arguments, and for how long still."""
        key = self._key.of(args, kwargs)
        return None if key is None else self.redlock.inspect(key)

    def unlock(self, *args: Any, **kwargs: Any) -> Holder | None:
        """Take the lock from whoever holds it. Returns who that was; None if it was free.

        The holder's body goes on until its heartbeat notices. Only that holder's lock is taken: if
        another has got it meanwhile, that one keeps it.
        """
        holder = self.lock_info(*args, **kwargs)
        key = self._key.of(args, kwargs)
        if holder is None or key is None or not self.redlock.unlock(key, holder):
            return None
        logger.warning("the lock of task %s was taken from %s by its unlock()", self.name, holder)
        return holder

    @property
    def redlock(self) -> Redlock:
        """The lock on the nodes of the task's app."""
        return _redlock_of(self.app)

    @functools.cached_property
    def _options(self) -> Options:
        return Options(self)

    @functools.cached_property
    def _key(self) -> Key:
        return _key_of(type(self), self.run)


class _Lock:
    """A running request's hold on its lock; without a lease, if it runs unlocked."""

    def __init__(self, task: LockedTask) -> None:
        self.lease: Lease | None = None
        self._task = task
        self._request = task.request
        self._body = threading.get_ident()
        self._interrupt: Interrupt | None = None

    def acquire(self, key: str) -> None:
        task, options = self._task, self._task._options
        wait = conflict.waits(task, options)
        if options.on_lost == "interrupt":
            self._interrupt = interrupt()
        lease = task.redlock.acquire(key, wait=wait, ttl=options.ttl, task_id=self._request.id or "")
        self.lease = lease
        lease.on_lost = self._lost
        lease.hold_for(options.longest_hold(task))
        heartbeat().watch(lease)

    def run(self, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._interrupt is None or self.lease is None:
            return body(*args, **kwargs)
        self._interrupt.arm()
        try:
            try:
                self.lease.check()  # it may have been lost before we were armed
                return body(*args, **kwargs)
            finally:
                self._interrupt.disarm()
        except LeaseLost as error:
            self._interrupt.disarm()  # the error may have come just before the first
            if error.message:
                raise
            raise self._interrupt.error.with_traceback(error.__traceback__) from None

    def close(self) -> None:
        if self._interrupt is not None:
            self._interrupt.disarm()
        if self.lease is not None:
            self.lease.release()

    def _lost(self, lease: Lease) -> None:
        """Called by the heartbeat, which must not wait for a broker or for the body."""
        _in_background(functools.partial(self._report, lease))
        if self._interrupt is not None:
            # A body that has noticed by itself is left the time to come out of here.
            after = PAUSE if threading.get_ident() == self._body else 0.0
            _in_background(functools.partial(self._interrupt.strike, lease.error(), after))

    def _report(self, lease: Lease) -> None:
        task, request, loss = self._task, self._request, lease.loss
        lock_lost.send(sender=task, task_id=request.id, lease=lease)
        if request.is_eager:
            return
        try:
            with task.app.events.default_dispatcher(hostname=request.hostname) as dispatcher:
                dispatcher.send(
                    "task-redlock-lost",
                    uuid=request.id,
                    key=lease.key,
                    fence=lease.fence,
                    reason=loss.reason if loss else None,
                    retry=True,
                    retry_policy={"max_retries": 3},
                )
        except Exception as failure:
            logger.warning("no event that %s[%s] lost its lock: %s", task.name, request.id, failure)


def _guard(cls: type[LockedTask]) -> None:
    """Whatever `__call__` a task ends up with, its first entry takes the lock (T1, T2)."""
    if not getattr(cls.__call__, "takes_lock", False):
        cls.__call__ = _with_lock(cls.__call__)  # type: ignore[method-assign]


def _with_lock(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def locked(self: LockedTask, *args: Any, **kwargs: Any) -> Any:
        if not _needs_lock(self):
            return call(self, *args, **kwargs)
        lock = _take(self, args, kwargs)
        return lock.run(functools.partial(call, self), args, kwargs)

    locked.takes_lock = True  # type: ignore[attr-defined]
    return locked


def _needs_lock(task: LockedTask) -> bool:
    request = task.request
    if request.called_directly or STATE in request.__dict__:
        return False
    return not request.is_eager or bool(setting(task.app, "redlock_eager"))


def _take(task: LockedTask, args: Any, kwargs: Any) -> _Lock:
    """Take the lock; or do what the task's options say if that cannot be."""
    key = task._key.of(args, kwargs)
    # Kept before it is taken: whatever interrupts us then, the lock is given back.
    lock = task.request.__dict__[STATE] = _Lock(task)
    if key is not None:  # else the body will complain of its arguments
        try:
            lock.acquire(key)
        except LockHeld as held:
            del task.request.__dict__[STATE]
            conflict.refused(task, task._options, held)
        except QuorumUnreachable as error:
            del task.request.__dict__[STATE]
            conflict.unanswered(task, task._options, error)
            task.request.__dict__[STATE] = lock
    return lock


def _close(task: LockedTask) -> None:
    """Once: but if it was interrupted, by a soft time limit perhaps, then once more."""
    state = task.request.__dict__
    lock: _Lock | None = state.get(STATE)
    if lock is not None:
        lock.close()
        del state[STATE]


@task_postrun.connect(weak=False, dispatch_uid="celery_redlock.close")
def _close_after(sender: Any = None, **kwargs: Any) -> None:
    """The net, for Ignore, Reject, Retry, replace, SystemExit, backend errors: no after_return there."""
    if isinstance(sender, LockedTask):
        _close(sender)


def _key_of(task: type[LockedTask], run: Callable[..., Any]) -> Key:
    return Key(task.name, run, task.lock_on, task.lock_key)


def _run_of(task: type[LockedTask]) -> Callable[..., Any]:
    """`run` as callers see it, without its self."""
    run = inspect.getattr_static(task, "run")
    return run.__func__ if isinstance(run, staticmethod) else types.MethodType(run, task)


_redlocks: weakref.WeakKeyDictionary[Celery, Redlock] = weakref.WeakKeyDictionary()


def _redlock_of(app: Celery) -> Redlock:
    redlock = _redlocks.get(app)
    return _redlocks.setdefault(app, connect(app)) if redlock is None else redlock


def _in_background(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="redlock-loss", daemon=True).start()
