"""The rounds of the algorithm: grant, renew, release, look. Each asks all nodes and counts votes.

Nothing here opens a socket, reads a clock or rolls dice by itself: `nodes` does (Q12).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from . import lua
from .lease import Lease
from .renewal import Ledger, Renewal
from .round import Carrier, Command, Nodes
from .vote import Acquisition, Count, Electorate, Inspection

#: A fence counter outlives its lock: by so many TTLs, and by so many seconds at least (Q6).
FENCE_TTLS = 10
FENCE_SECONDS = 600.0

#: How many leases one command renews.
BATCH = 100


class Quorum:
    def __init__(self, nodes: Nodes, guard: float, node_timeout: float, prefix: str) -> None:
        size = len(nodes.names)
        self.nodes = nodes
        self.electorate = Electorate(size, guard=guard if size > 1 else 0.0)
        self._node_timeout = node_timeout
        self._prefix = prefix

    def grant(self, key: str, owner: str, ttl: float, patience: float) -> Lease | Acquisition:
        """A lease if a quorum grants it; else the votes, and nothing is left on any node (Q3, Q4)."""
        channel = self.nodes.channel()
        self.nodes.meet(channel, self.electorate.quorum, patience)
        t0 = self.nodes.now()
        votes = Acquisition(self.electorate, t0)
        try:
            channel.round([self._acquire(key, owner, ttl)], votes, patience)
            if votes.granted and (fence := self._settle(channel, key, owner, ttl, votes, patience)):
                lease = Lease(self, key, owner, fence, ttl, t0, Ledger(votes.acknowledged), channel)
                if self.nodes.now() < lease.lost_at:  # else nothing of it is left
                    return lease
        except BaseException:
            self._withdraw(channel, key, owner, votes.may_hold())
            raise
        self._withdraw(channel, key, owner, votes.may_hold())
        return votes

    def renew(self, leases: Sequence[Lease], channel: Carrier, patience: float) -> None:
        """One round for all of them (Q8). The caller holds the channel's lock."""
        batches = [batch for same in _by_ttl(leases) for batch in _split(same)]
        ledgers = [[lease.ledger for lease in batch] for batch in batches]
        renewal = Renewal(self.electorate, ledgers, self.nodes.now)
        t0 = self.nodes.now()
        channel.round([self._extend(batch) for batch in batches], renewal, patience)
        heard = self.nodes.now()
        for index, batch in enumerate(batches):
            for place, lease in enumerate(batch):
                verdict = renewal.verdict(index, place)
                if verdict == "renewed" and heard < lease.until:
                    lease.prolong(t0)
                elif verdict == "taken" or verdict == "vanished":
                    self._withdraw(channel, lease.key, lease.owner)
                    lease.lose(verdict)
                elif not lease.finished:
                    lease.put_off(self.by_name(renewal.why_not()))

    def release(self, key: str, owner: str, channel: Carrier) -> bool:
        """Whether a quorum confirms that the lock was the owner's, and is free now (Q7)."""
        released = Count("released", self.electorate.quorum, self.electorate.size)
        try:
            channel.round([self._release(key, owner)], released, self._node_timeout)
        except BaseException:
            self._withdraw(channel, key, owner)
            raise
        return released.reached

    def inspect(self, key: str) -> Inspection:
        seen = Inspection(self.electorate)
        self.nodes.channel().round([Command(lua.INSPECT, self._keys(key), ())], seen, self._node_timeout)
        return seen

    def patience(self, ttl: float) -> float:
        """How long a round may take: waiting long for a short TTL would leave nothing of it."""
        return min(self._node_timeout, ttl / 4)

    def by_name(self, of_nodes: dict[int, str]) -> dict[str, str]:
        return {self.nodes.names[node]: text for node, text in sorted(of_nodes.items())}

    def _settle(
        self,
        channel: Carrier,
        key: str,
        owner: str,
        ttl: float,
        votes: Acquisition,
        patience: float,
    ) -> int | None:
        """The fence: the highest number that was given, known to a quorum of the nodes (Q6)."""
        grants = votes.grants()
        fence = max(grants.values())
        behind = [node for node, number in grants.items() if number < fence]
        missing = self.electorate.quorum - (len(grants) - len(behind))
        if missing > 0:
            raised = Count("raised", missing, len(behind))
            command = Command(lua.RAISE, self._keys(key), (owner, fence, _fence_ttl(ttl)))
            channel.round([command], raised, patience, behind)
            return fence if raised.reached else None
        return fence

    def _withdraw(
        self, channel: Carrier, key: str, owner: str, nodes: Iterable[int] | None = None
    ) -> None:
        """Take back what may have been set, without waiting: it goes the way that the setting went."""
        channel.round([self._release(key, owner)], Count("released", 0, 0), 0.0, nodes)

    def _acquire(self, key: str, owner: str, ttl: float) -> Command:
        proposed = int(self.nodes.wall() * 1e6)
        return Command(lua.ACQUIRE, self._keys(key), (owner, _ms(ttl), proposed, _fence_ttl(ttl)))

    def _extend(self, leases: Sequence[Lease]) -> Command:
        ttl = leases[0].ttl
        keys = [name for lease in leases for name in self._keys(lease.key)]
        args = [value for lease in leases for value in (lease.owner, lease.fence)]
        return Command(lua.EXTEND, keys, [_ms(ttl), _fence_ttl(ttl), *args])

    def _release(self, key: str, owner: str) -> Command:
        return Command(lua.RELEASE, self._keys(key)[:1], (owner,))

    def _keys(self, key: str) -> tuple[str, str]:
        """The names in Redis of the lock and of its fence counter. Braces are not allowed in a key."""
        tagged = f"{self._prefix}:{{{key}}}" if self._prefix else f"{{{key}}}"
        return tagged if self._prefix else key, f"{tagged}:fence"


def _by_ttl(leases: Sequence[Lease]) -> Iterable[list[Lease]]:
    groups: dict[float, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.ttl, []).append(lease)
    return groups.values()


def _split(leases: list[Lease]) -> Iterable[list[Lease]]:
    return (leases[at : at + BATCH] for at in range(0, len(leases), BATCH))


def _ms(seconds: float) -> int:
    return math.floor(seconds * 1000)


def _fence_ttl(ttl: float) -> int:
    return _ms(max(FENCE_TTLS * ttl, FENCE_SECONDS))
