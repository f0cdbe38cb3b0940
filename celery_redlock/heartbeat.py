"""The one thread of a process that renews all its leases, and tells of a loss.

It sleeps until the first lease is a third of its TTL old, so a short one costs it nothing; it renews
all that are due in one round; it ends when there is nothing to renew.
"""

from __future__ import annotations

import os
import time

from . import native
from .lease import Lease, logger
from .quorum import Quorum

#: Seconds. The clock of leases goes on while the machine sleeps, that of `wait` does not: look often.
LONGEST_NAP = 1.0

#: Leases that are due within this part of their TTL are renewed along with those that are due.
TOGETHER = 1 / 12


class Heartbeat:
    def __init__(self) -> None:
        self._lock = native.Lock()
        self._alarm = native.Alarm()
        self._leases: set[Lease] = set()
        self._thread: native.Thread | None = None
        self._wakes_at = 0.0

    def watch(self, lease: Lease) -> None:
        """Renew the lease from now on."""
        with self._lock:
            self._leases.add(lease)
            lease.heartbeat = self
            # Not alive: an exception out of the blue (Ctrl-C) may have come just before its start.
            if self._thread is None or not self._thread.is_alive():
                self._thread = native.thread(self._run, "redlock-heartbeat")
                self._thread.start()
            elif time.monotonic() + _due_in(lease) < self._wakes_at:
                self._alarm.ring()

    def forget(self, lease: Lease) -> None:
        with self._lock:
            self._leases.discard(lease)

    def beat(self) -> None:
        """Renew what is due, and declare lost what could not be renewed in time."""
        with self._lock:
            leases = list(self._leases)
        alive = [lease for lease in leases if not lease.ended]
        due = sorted((lease for lease in alive if _due_in(lease) <= 0), key=_lost_in)
        for quorum in dict.fromkeys(lease.quorum for lease in due):
            try:
                self._renew(quorum)
            except Exception as error:  # this one's trouble is not the others'
                logger.exception("the heartbeat stumbled; it goes on")
                for lease in due:
                    if lease.quorum is quorum:
                        lease.put_off({"this process": repr(error)})
        ended = {lease for lease in leases if lease.ended}  # not under the lock: it may call on_lost
        with self._lock:
            self._leases -= ended

    def _renew(self, quorum: Quorum) -> None:
        channel = quorum.nodes.channel()
        # The channel is locked before the leases are chosen. So a release comes either before, and
        # the lease is not chosen; or after, and then it follows the renewal on this same channel.
        with channel.lock:
            with self._lock:
                due = [lease for lease in self._leases if lease.quorum is quorum and _is_near(lease)]
                due = [lease for lease in due if not lease.finished]
                time_left = min((_lost_in(lease) for lease in self._leases), default=0.0)
                for lease in due:
                    lease.channel = channel
            if due and time_left > 0:
                patience = quorum.patience(min(lease.ttl for lease in due))
                # Half of it: nodes that hang must leave time to renew the leases on other nodes.
                quorum.renew(due, channel, min(patience, time_left / 2))

    def _run(self) -> None:
        while self._doze():
            try:
                self.beat()
            except BaseException:  # a SystemExit in on_lost must not end the renewal of other leases
                logger.exception("the heartbeat stumbled; it goes on")

    def _doze(self) -> bool:
        """Sleep until something is due. False: nothing is left to renew, and the thread ends."""
        while True:
            with self._lock:
                if not self._leases:
                    self._thread = None
                    return False
                nap = min(min(map(_due_in, self._leases)), LONGEST_NAP)
                self._wakes_at = time.monotonic() + nap
            if nap <= 0:
                return True
            self._alarm.wait(nap)


def _is_near(lease: Lease) -> bool:
    return _due_in(lease) <= lease.ttl * TOGETHER


def _lost_in(lease: Lease) -> float:
    return lease.lost_at - lease.quorum.nodes.now()


def _due_in(lease: Lease) -> float:
    return min(lease.renew_at, lease.lost_at) - lease.quorum.nodes.now()


_of_this_process = Heartbeat()


def heartbeat() -> Heartbeat:
    return _of_this_process


def _start_afresh() -> None:
    """The parent's thread, and the leases that it renews, stay with the parent."""
    global _of_this_process
    _of_this_process = Heartbeat()


os.register_at_fork(after_in_child=_start_afresh)
