"""LockedTask: a task that holds its lock while it runs. In the order of a task's life."""

from __future__ import annotations

import functools
import inspect
import logging
import types
import weakref
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.exceptions import Retry
from celery.signals import beat_embedded_init, beat_init, task_postrun

from . import conflict
from .errors import LockHeld, QuorumUnreachable
from .header import HEADER, Header
from .hold import Hold
from .key import Key
from .lease import Lease
from .options import Options, check_options, connect, setting
from .owner import Holder
from .redlock import Redlock

logger = logging.getLogger("celery_redlock")

#: Under this name a running task's hold on its lock is kept, in its request: threads and greenlets
#: share the task itself (T4).
HOLD = "_redlock_hold"


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
        expected = cls.throws if isinstance(cls.throws, (tuple, list)) else (cls.throws,)
        if LockHeld not in expected:  # no traceback in the log, no report to Sentry
            cls.throws = (*expected, LockHeld)

    # sent

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        """As ever; with a header, if the next attempt is to know something of this one (T14)."""
        headers = dict(options.get("headers") or {})
        if task_id is not None and task_id == self.request.id and self._hold is not None:
            # Its own retry: it has had the lock, so its refusals begin to count afresh.
            headers[HEADER] = Header.read(self.name, self.request).afresh().written()
        if _in_beat:
            headers.setdefault(conflict.FROM_BEAT, True)
        if headers:
            options["headers"] = headers
        return super().apply_async(args, kwargs, task_id, *more, **options)

    # run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        return self.run(*args, **kwargs)

    @property
    def lease(self) -> Lease | None:
        """Inside the body: the lease on its lock. None if it runs without one."""
        return None if self._hold is None else self._hold.lease

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """As ever. But while the retry is being published, no loss of the lock interrupts that."""
        hold = self._hold
        if hold is None:
            return super().retry(*args, **kwargs)
        hold.let_end()
        try:
            return super().retry(*args, **kwargs)
        except Retry:
            raise
        except BaseException:  # too many retries, or the broker is down: the body may go on
            hold.go_on()
            raise

    # returned

    def after_return(
        self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        super().after_return(status, retval, task_id, args, kwargs, einfo)
        _close(self)

    # for operators

    def lock_info(self, *args: Any, **kwargs: Any) -> Holder | None:
        """Who holds the lock of the task with these arguments, and for how long still."""
        return self.redlock.inspect(self._key_for(args, kwargs))

    def unlock(self, *args: Any, **kwargs: Any) -> Holder | None:
        """Take the lock from whoever holds it. Returns who that was; None if it was free.

        The holder's body goes on until its heartbeat notices. Only that holder's lock is taken: if
        another has got it meanwhile, that one keeps it.
        """
        key = self._key_for(args, kwargs)
        holder = self.redlock.inspect(key)
        if holder is None or not self.redlock.unlock(key, holder):
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
        return _key_of(self, self.run)

    def _key_for(self, args: Any, kwargs: Any) -> str:
        key = self._key.of(args, kwargs)
        if key is None:
            raise TypeError(f"task {self.name} cannot be called with these arguments")
        return key

    @property
    def _hold(self) -> Hold | None:
        return self.request.__dict__.get(HOLD)


def _guard(cls: type[LockedTask]) -> None:
    """Whatever `__call__` a task ends up with, its first entry takes the lock (T1, T2)."""
    if getattr(cls.__call__, "takes_lock", None) is not cls.__call__:  # `wraps` copies the mark
        cls.__call__ = _with_lock(cls.__call__)  # type: ignore[method-assign]


def _with_lock(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def locked(self: LockedTask, *args: Any, **kwargs: Any) -> Any:
        if not _needs_lock(self):
            return call(self, *args, **kwargs)
        key = self._key.of(args, kwargs)
        if key is None:
            return _without_key(self, call, args, kwargs)
        return _take(self, key).run(functools.partial(call, self), args, kwargs)

    locked.takes_lock = locked  # type: ignore[attr-defined]
    return locked


_guard(LockedTask)


def _needs_lock(task: LockedTask) -> bool:
    request = task.request
    if request.called_directly or HOLD in request.__dict__ or task.name.startswith("celery."):
        return False
    return not request.is_eager or bool(setting(task.app, "redlock_eager"))


def _without_key(task: LockedTask, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The arguments do not fit. Either `run` will complain of that; or a `__call__` of the user's
    changes them, and then calls ours, which is here again."""
    result = call(task, *args, **kwargs)
    if task._hold is None:
        logger.error(
            "task %s[%s] ran WITHOUT its lock: the arguments of its message do not fit its signature, "
            "and its own __call__ does not pass them on by super().__call__(…)",
            task.name,
            task.request.id,
        )
    return result


def _take(task: LockedTask, key: str) -> Hold:
    """Take the lock; or do what the task's options say if that cannot be."""
    state = task.request.__dict__
    hold = state[HOLD] = Hold(task)  # before it is taken: whatever interrupts us, it is given back
    try:
        hold.acquire(key)
    except LockHeld as held:
        del state[HOLD]
        conflict.refused(task, task._options, held)
    except QuorumUnreachable as error:
        del state[HOLD]
        conflict.unanswered(task, task._options, error)
        state[HOLD] = hold
    return hold


def _close(task: LockedTask) -> None:
    """Once: but if it was interrupted, by a soft time limit perhaps, then once more."""
    if task._hold is not None:
        task._hold.close()
        del task.request.__dict__[HOLD]


@task_postrun.connect(weak=False, dispatch_uid="celery_redlock.close")
def _close_after(sender: Any = None, **kwargs: Any) -> None:
    """The net, for Ignore, Reject, Retry, replace, SystemExit, backend errors: no after_return there."""
    if isinstance(sender, LockedTask):
        _close(sender)


def _key_of(task: LockedTask | type[LockedTask], run: Callable[..., Any]) -> Key:
    key = inspect.getattr_static(task, "lock_key")  # a function, and not a method of the task
    key = key.__func__ if isinstance(key, staticmethod) else key
    return Key(task.name or task.__qualname__, run, task.lock_on, key)  # type: ignore[union-attr]


def _run_of(task: type[LockedTask]) -> Callable[..., Any]:
    """`run` as callers see it, without its self."""
    run = inspect.getattr_static(task, "run")
    return types.MethodType(run, task) if inspect.isfunction(run) else task.run


_in_beat = False


@beat_init.connect(weak=False, dispatch_uid="celery_redlock.beat")
@beat_embedded_init.connect(weak=False, dispatch_uid="celery_redlock.embedded_beat")
def _know_beat(**kwargs: Any) -> None:
    """Before Celery 5.7, nothing in a message says that beat has sent it."""
    global _in_beat
    _in_beat = True


_redlocks: weakref.WeakKeyDictionary[Celery, Redlock] = weakref.WeakKeyDictionary()


def _redlock_of(app: Celery) -> Redlock:
    redlock = _redlocks.get(app)
    return _redlocks.setdefault(app, connect(app)) if redlock is None else redlock
