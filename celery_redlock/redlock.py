"""The lock, as people use it: take it, hold it, look at it."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .errors import ConfigError, LockHeld, QuorumUnreachable
from .heartbeat import heartbeat
from .lease import Lease, in_words
from .nodes import RedisNodes
from .owner import Holder, new_owner
from .quorum import Quorum
from .round import Nodes
from .vote import Acquisition

if TYPE_CHECKING:
    from celery import Celery

#: Defaults, in seconds; see `Redlock`.
TTL = 30.0
NODE_TIMEOUT = 1.0
MAX_HOLD = 24 * 3600.0

#: Seconds. Of a shorter TTL, drift, margin and the time of a round leave nothing.
LEAST_TTL = 0.1

#: After a split vote, acquire tries again at once: so often, and after a random pause of at most so
#: many seconds, times the number of the try.
SPLIT_TRIES = 8
SPLIT_PAUSE = 0.005

#: `acquire(wait=…)` pauses at random between tries, up to a limit that doubles from the first to the
#: longest; when less than the last is left beside the time for a try, it gives up. Seconds.
FIRST_WAIT = 0.02
LONGEST_WAIT = 0.5
LAST_WAIT = 0.002


class Redlock:
    """A lock on a majority of N independent Redis servers.

    :param nodes: a URL for each server.
    :param ttl: seconds that a lock lives if it is not renewed.
    :param restart_guard: seconds for which a server that has restarted does not vote, since it may
        have forgotten a lock. At least as long as the longest TTL in use on these servers, by
        anyone; by default the TTL. 0 switches the protection off. A single node has none.
    :param node_timeout: seconds after which a server that does not answer is left out of a round.
    :param prefix: what the names of all keys in Redis begin with. With an empty one, a lock's name in
        Redis is its key itself: to share it with another Redlock client.
    """

    def __init__(
        self,
        nodes: Iterable[str] | Nodes,
        *,
        ttl: float = TTL,
        restart_guard: float | None = None,
        node_timeout: float = NODE_TIMEOUT,
        prefix: str = "redlock",
    ) -> None:
        self.ttl = ttl
        self.restart_guard = ttl if restart_guard is None else restart_guard
        _check_seconds("node_timeout", node_timeout)
        _check_seconds("restart_guard", self.restart_guard, or_zero=True)
        if isinstance(nodes, str):
            raise ConfigError("nodes is a list of URLs, not one URL: write [url]")
        if isinstance(nodes, Iterable):
            nodes = _connect(list(nodes), node_timeout, guarded=self.restart_guard > 0)
        self._quorum = Quorum(nodes, self.restart_guard, node_timeout, prefix)
        self._check_ttl(ttl)

    @classmethod
    def from_app(cls, app: Celery) -> Redlock:
        """On the nodes in `app.conf.redlock_nodes`, with the app's other `redlock_*` settings."""
        from .options import connect

        return connect(app)

    def __repr__(self) -> str:
        return f"<Redlock on {', '.join(self._quorum.nodes.names)}>"

    def acquire(
        self, key: str, *, wait: float = 0.0, ttl: float | None = None, task_id: str = ""
    ) -> Lease:
        """Take the lock. Nothing renews it but `lease.extend()`.

        Raises LockHeld if someone else has it, and QuorumUnreachable if too few nodes could be asked.
        With `wait`, it is tried again until so many seconds have passed. The first try is always made
        in full: where servers hang, it takes two node timeouts at most.
        """
        ttl = self.ttl if ttl is None else ttl
        self._check_ttl(ttl)
        _check_key(key)
        _check_seconds("wait", wait, or_zero=True)
        nodes = self._quorum.nodes
        deadline = nodes.now() + wait
        patience, longest = self._quorum.patience(ttl), FIRST_WAIT
        refusal: LockHeld | QuorumUnreachable | None = None
        while True:
            started = nodes.now()
            try:
                return self._try(key, ttl, task_id, patience)
            except LockHeld as held:
                refusal = held
            except QuorumUnreachable as unreachable:
                if not isinstance(refusal, LockHeld):  # whoever was seen to hold it may be alive (Q1)
                    refusal = unreachable
            took = nodes.now() - started
            left = deadline - nodes.now()
            pause = min(longest * (0.25 + 0.75 * nodes.random()), left - 2.5 * took - LAST_WAIT)
            if pause <= 0:
                raise refusal
            nodes.sleep(pause)
            patience = min(patience, (left - pause) / 2)  # to connect, if need be; and to ask
            longest = min(2 * longest, LONGEST_WAIT)

    @contextlib.contextmanager
    def lock(
        self,
        key: str,
        *,
        wait: float = 0.0,
        ttl: float | None = None,
        max_hold: float = MAX_HOLD,
        on_lost: Callable[[Lease], object] | None = None,
        task_id: str = "",
    ) -> Iterator[Lease]:
        """Hold the lock inside a `with` block: the heartbeat renews it, for `max_hold` seconds at most.

        If the lease is lost, `on_lost` is called with it, once, by whoever notices first, which is the
        heartbeat's thread as a rule, or a greenlet: be quick there. The block itself goes on;
        `lease.check()` in it raises LeaseLost.
        """
        _check_seconds("max_hold", max_hold)
        lease = self.acquire(key, wait=wait, ttl=ttl, task_id=task_id)
        try:
            lease.on_lost = on_lost
            lease.hold_for(max_hold)
            heartbeat().watch(lease)
            yield lease
        finally:
            lease.release()

    def inspect(self, key: str) -> Holder | None:
        """Who holds the lock, and for how long still; None if nobody has it on a majority of nodes."""
        _check_key(key)
        seen = self._quorum.inspect(key)
        if not seen.answered:
            raise self._unreachable(f"cannot tell who holds {key!r}", seen.unreachable)
        return seen.holder

    def unlock(self, key: str, holder: Holder) -> bool:
        """For operators: take the lock from a holder that `inspect` has shown. True if it was theirs.

        Whatever that holder is doing goes on, without the lock, until it next renews and learns of it.
        """
        if not holder.value:
            raise ValueError("only a holder that inspect() has returned can be unlocked")
        return self._quorum.release(key, holder.value, self._quorum.nodes.channel())

    def close(self) -> None:
        """Close all connections. Whoever uses this again opens new ones."""
        self._quorum.nodes.close()

    def _try(self, key: str, ttl: float, task_id: str, patience: float) -> Lease:
        """One attempt; but a split vote, in which nobody won, is repeated at once (Q5)."""
        nodes = self._quorum.nodes
        give_up = nodes.now() + patience
        for attempt in range(1, SPLIT_TRIES + 1):
            owner = new_owner(nodes.secret(), task_id)
            result = self._quorum.grant(key, owner, ttl, patience)
            if isinstance(result, Lease):
                return result
            pause = SPLIT_PAUSE * attempt * nodes.random()
            if not result.split or nodes.now() + pause >= give_up:
                break
            nodes.sleep(pause)
        assert isinstance(result, Acquisition)
        raise self._refusal(key, result)

    def _refusal(self, key: str, votes: Acquisition) -> LockHeld | QuorumUnreachable:
        if votes.refused:
            return _held(key, votes.holder)
        if votes.granted:
            return QuorumUnreachable(
                f"cannot lock {key!r}: the nodes granted it, but so slowly that nothing was left of its "
                f"time, or that they could not agree on its fence"
            )
        now = self._quorum.nodes.now()
        return self._unreachable(f"cannot lock {key!r}", votes.why_not(now), votes.quorum_votes_in(now))

    def _unreachable(
        self, what: str, why_not: dict[int, str], retry_after: float | None = None
    ) -> QuorumUnreachable:
        size, quorum = self._quorum.electorate.size, self._quorum.electorate.quorum
        trouble = self._quorum.by_name(why_not)
        can = f"{what}: {size - len(trouble)} of {size} nodes can vote, and {quorum} must"
        return QuorumUnreachable(f"{can}. {in_words(trouble)}", trouble, retry_after)

    def _check_ttl(self, ttl: float) -> None:
        _check_seconds("ttl", ttl)
        if ttl < LEAST_TTL:
            raise ConfigError(f"ttl is {ttl:g} s: below {LEAST_TTL:g} s nothing would be left of it")
        guard = self._quorum.electorate.guard
        if guard and ttl > guard:
            raise ConfigError(
                f"ttl is {ttl:g} s, longer than the restart guard of {guard:g} s: a server that "
                f"restarts empty would vote again while a lock it has forgotten still lives. Raise "
                f"restart_guard, everywhere these servers are used, or lower the ttl."
            )


def _connect(urls: Sequence[str], node_timeout: float, guarded: bool) -> RedisNodes:
    if not urls:
        raise ConfigError(
            "no lock nodes: give at least one URL, better three or five of separate servers"
        )
    nodes = RedisNodes(urls, node_timeout, guarded and len(urls) > 1)
    for name in nodes.names:
        if nodes.names.count(name) > 1:
            raise ConfigError(f"{name} is listed twice: each lock node must be a server of its own")
    if len(urls) % 2 == 0:
        warnings.warn(
            f"{len(urls)} lock nodes survive no more failures than {len(urls) - 1}: use an odd number",
            stacklevel=3,
        )
    return nodes


def _held(key: str, holder: Holder | None) -> LockHeld:
    if holder is None:
        return LockHeld(f"{key!r} is contended: others hold it on some nodes, nobody on most; try again")
    end = "" if holder.remaining is None else f", for {holder.remaining:.1f} s unless renewed"
    return LockHeld(f"{key!r} is held by {holder}{end}", holder.to_json(), holder.remaining)


def _check_seconds(name: str, seconds: float, or_zero: bool = False) -> None:
    number = isinstance(seconds, (int, float)) and math.isfinite(seconds)
    if not number or seconds < 0 or (seconds == 0 and not or_zero):
        least = "0 or more" if or_zero else "more than 0"
        raise ConfigError(f"{name} is {seconds!r}: it is a number of seconds, {least}")


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or any(c in "}#" or c < " " for c in key):
        raise ConfigError(
            f"{key!r} cannot be a lock's key: that is text without '}}', '#' and line breaks"
        )
