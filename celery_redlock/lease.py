"""A lock that was granted, until it is released or lost."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from . import native
from .errors import LeaseLost, QuorumUnreachable
from .owner import Holder
from .renewal import Ledger
from .round import Carrier
from .vote import drift

if TYPE_CHECKING:
    from .heartbeat import Heartbeat
    from .quorum import Quorum

logger = logging.getLogger("celery_redlock")

Reason = Literal["expired", "taken", "vanished", "held too long", "forked", "released"]

_EXPLAINED: dict[Reason, str] = {
    "expired": "its time ran out before a majority of the nodes could renew it",
    "taken": "someone else holds it on nodes that were needed for a majority",
    "vanished": "a majority of the nodes have forgotten it",
    "held too long": "it was held for the longest time allowed, and is not renewed any more",
    "forked": "it belongs to the parent of this process",
    "released": "it was released",
}


@dataclasses.dataclass(frozen=True)
class Loss:
    """Why a lease ended without being released. Declared once, and final."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return _EXPLAINED[self.reason] + (f" ({self.detail})" if self.detail else "")


def margin(ttl: float) -> float:
    """How long before its end a lease counts as lost, so that its holder hears of it in time (Q8)."""
    return ttl * 0.02 + 0.005


def in_words(trouble: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why}" for name, why in trouble.items())


class Lease:
    """What :meth:`Redlock.acquire` returns.

    `fence` is larger than that of any earlier lease on the key: send it along with what you write,
    and let the receiver turn away a smaller number than it has seen.
    """

    slot = 0

    def __init__(
        self,
        quorum: Quorum,
        key: str,
        owner: str,
        fence: int,
        ttl: float,
        t0: float,
        ledger: Ledger,
        channel: Carrier,
    ) -> None:
        self.key = key
        self.fence = fence
        self.ttl = ttl
        self.on_lost: Callable[[Lease], object] | None = None
        self.hold_until = math.inf
        self.quorum = quorum
        self.heartbeat: Heartbeat | None = None
        self.owner = owner
        self.ledger = ledger
        self.channel = channel  # where it was last written: what follows must not overtake that
        self.trouble: dict[str, str] = {}  # the nodes that kept the last renewal from succeeding
        self._failures = 0
        self._released = False
        self._pid = os.getpid()
        self._ending = native.Lock()
        self._tell = quorum.nodes.teller()
        self._end: Loss | None = None
        self.prolong(t0)

    def __repr__(self) -> str:
        state = str(self._end.reason) if self._end else f"{self.remaining:.1f} s left"
        return f"<Lease on {self.key!r}, fence {self.fence}, {state}>"

    @property
    def remaining(self) -> float:
        """Seconds for which the lock is certainly ours, if it is not renewed."""
        return 0.0 if self.ended else max(0.0, self.until - self.quorum.nodes.now())

    @property
    def lost(self) -> bool:
        return self.loss is not None

    @property
    def loss(self) -> Loss | None:
        """Why it was lost, or None. Told by the clock: it needs no answer from any server."""
        end = self.ended
        return None if end is None or end.reason == "released" else end

    def check(self) -> None:
        """Raise LeaseLost unless the lock is certainly ours now."""
        if self.ended:
            raise self.error()

    def error(self) -> LeaseLost:
        """What to raise once it has ended."""
        end = self.ended
        return LeaseLost(
            f"the lease on {self.key!r} (fence {self.fence}) is gone: {end}. "
            f"Stop, and write nothing more: the next holder may be at work already.",
            self.key,
            "" if end is None else end.reason,
        )

    def extend(self) -> None:
        """Renew it for another TTL.

        Raises LeaseLost if it cannot be ours any more, and QuorumUnreachable if too few nodes
        answered: then it is still ours for `remaining` seconds, and can be tried again.
        """
        self.check()
        with self._writing() as channel:
            self.quorum.renew([self], channel, self.quorum.patience(self.ttl))
        self.check()
        if self._failures:
            raise QuorumUnreachable(
                f"the lease on {self.key!r} could not be renewed: {in_words(self.trouble)}. "
                f"It is ours for another {self.remaining:.1f} s: try again before that.",
                self.trouble,
            )

    def release(self) -> bool:
        """Give it back. True if a majority of the nodes confirmed that they held it for us.

        Releasing a lost lease, or one that was released before, is harmless: another's is not touched.
        """
        if self._forked or self._released:
            return False
        self.finish("released")
        if self.heartbeat is not None:
            self.heartbeat.forget(self)
        with self._writing() as channel:
            confirmed = self.quorum.release(self.key, self.owner, channel)
        self._released = True
        return confirmed

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Carrier]:
        """The channel that it was last written on, locked; the heartbeat may just have taken it over."""
        while True:
            if self.channel.closed:
                self.channel = self.quorum.nodes.channel()
            channel = self.channel
            with channel.lock:
                if channel is self.channel:
                    yield channel
                    return

    @property
    def ended(self) -> Loss | None:
        """How it ended, the release included; declares the loss if its time has run out."""
        if self._forked:
            return Loss("forked")
        now = self.quorum.nodes.now()
        if self._end is None and now >= self.lost_at:
            reason: Reason = "held too long" if now >= self.hold_until else "expired"
            self.lose(reason, in_words(self.trouble))
        return self._end

    @property
    def lost_at(self) -> float:
        return self.until - margin(self.ttl)

    def prolong(self, t0: float) -> None:
        """A quorum granted or renewed it; t0 is when that round was sent."""
        self.ledger.succeeded()
        self.until = t0 + self.ttl - drift(self.ttl)
        self._plan(t0 + self.ttl / 3)
        self._failures = 0
        self.trouble = {}

    def put_off(self, trouble: dict[str, str]) -> None:
        """A renewal was not answered by enough nodes: again at once, then ever so often."""
        if not self._failures:
            text = "could not renew the lease on %r: %s; trying on"
            self._tell(lambda: logger.warning(text, self.key, in_words(trouble)))
        self._plan(self.quorum.nodes.now() + (self.ttl / 10 if self._failures else 0))
        self._failures += 1
        self.trouble = trouble

    def hold_for(self, seconds: float) -> None:
        """Renew it for so long at most, from now on."""
        self.hold_until = self.quorum.nodes.now() + seconds
        self._plan(self.renew_at)

    def _plan(self, renew_at: float) -> None:
        self.renew_at = renew_at if renew_at < self.hold_until else math.inf

    def lose(self, reason: Reason, detail: str = "") -> None:
        if self.finish(reason, detail):
            self._tell(self._tell_of_loss)

    def _tell_of_loss(self) -> None:
        task_id = Holder.read(self.owner, None).task_id
        whose = f" of task {task_id}" if task_id else ""
        logger.error("lost the lease%s on %r (fence %d): %s", whose, self.key, self.fence, self._end)
        if self.on_lost is not None:
            try:
                self.on_lost(self)
            except Exception:
                logger.exception("on_lost of the lease on %r failed", self.key)

    @property
    def finished(self) -> bool:
        """Whether its end has been declared, whatever the clock says."""
        return self._end is not None

    def finish(self, reason: Reason, detail: str = "") -> bool:
        """True for the one call that ends it: a loss is told once, and none after the release."""
        with self._ending:
            if self._end is not None:
                return False
            self._end = Loss(reason, detail)
            return True

    @property
    def _forked(self) -> bool:
        return self._pid != os.getpid()
