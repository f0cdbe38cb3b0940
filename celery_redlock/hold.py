"""A running request's hold on its lock: taken before the body, given back after it."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import conflict
from .errors import LeaseLost, LockHeld
from .heartbeat import heartbeat
from .interrupt import FIRST_PAUSE, Interrupt, interrupt
from .lease import Lease
from .signals import lock_lost

if TYPE_CHECKING:
    from .task import LockedTask

logger = logging.getLogger("celery_redlock")

#: Seconds that a step of a chain waits for the one before it, which sends it on its way before it gives
#: the lock back.
STEP_WAIT = 1.0


class Hold:
    """Without a lease, if the task runs unlocked."""

    def __init__(self, task: LockedTask) -> None:
        self.lease: Lease | None = None
        self._task = task
        self._request = task.request
        self._body = threading.get_ident()
        self._interrupt: Interrupt | None = None

    def acquire(self, key: str) -> None:
        task, options = self._task, self._task._options
        if options.on_lost == "interrupt":
            self._interrupt = interrupt()
        take = functools.partial(
            task.redlock.acquire, key, ttl=options.ttl, task_id=self._request.id or ""
        )
        try:
            lease = take(wait=conflict.waits(task, options))
        except LockHeld as held:
            if not conflict.is_by_step_before(task.request, held):
                raise
            lease = take(wait=STEP_WAIT)
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
            # It can strike after the body's end and before that disarm: then that was skipped.
            self._interrupt.disarm()
            if error.message:
                raise
            raise self._interrupt.error.with_traceback(error.__traceback__) from None

    def let_end(self) -> None:
        """The body is about to end by itself: it is interrupted no more."""
        if self._interrupt is not None:
            self._interrupt.disarm()

    def go_on(self) -> None:
        """It has not ended after all."""
        if self._interrupt is not None and self.lease is not None:
            self._interrupt.arm()
            if self.lease.lost:
                self._strike(self.lease, FIRST_PAUSE)

    def close(self) -> None:
        self.let_end()
        if self.lease is not None:
            self.lease.release()
            self.lease.on_lost = None  # nothing of the request lives on in a circle of references

    def __reduce__(self) -> Any:
        """Whoever copies a request, or sends it elsewhere, does not hold the lock."""
        return type(None), ()

    def _lost(self, lease: Lease) -> None:
        """Called by the heartbeat, which must not wait for a broker or for the body."""
        _in_background(functools.partial(self._report, lease))
        # A body that has noticed by itself is left the time to come out of here.
        self._strike(lease, FIRST_PAUSE if threading.get_ident() == self._body else 0.0)

    def _strike(self, lease: Lease, after: float) -> None:
        if self._interrupt is not None:
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


def _in_background(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="redlock-loss", daemon=True).start()
