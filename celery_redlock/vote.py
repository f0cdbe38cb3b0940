"""What the nodes' answers mean, and what they decide together. No sockets here, and no clock.

A node's answer is a vote. Tallies count the votes for an acquire, for a release, for a look at a
lock; renewal.py has the one for renewals. The same code counts for simulated servers (Q12).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from .owner import Holder
from .round import Answer, Started


class Granted(NamedTuple):
    fence: int


class Refused(NamedTuple):
    owner: str
    remaining: float | None


class Young(NamedTuple):
    """Granted, but the node restarted so lately that it may have forgotten a living lease (Q9)."""

    votes_at: float


class Unreachable(NamedTuple):
    why: str


Vote = Granted | Refused | Young | Unreachable


def drift(seconds: float) -> float:
    """How far apart two clocks may run within a time (Q3)."""
    return seconds * 0.01 + 0.002


class Electorate(NamedTuple):
    """Who votes: so many nodes, each once it has been up longer than the restart guard (0: at once)."""

    size: int
    guard: float

    @property
    def quorum(self) -> int:
        return self.size // 2 + 1

    def votes_from(self, started: Started) -> float:
        """When the node may vote for new leases. Where a start is uncertain, take it as late."""
        if not self.guard:
            return float("-inf")
        return started.latest + self.guard + drift(self.guard)

    def is_young(self, started: Started, now: float) -> bool:
        """Whether nobody can have taken its vote yet. Where a start is uncertain, take it as early."""
        return now < started.earliest + self.guard - drift(self.guard)


class Acquisition:
    """The votes of one acquire (Q1, Q5, Q6, Q9)."""

    def __init__(self, electorate: Electorate, t0: float) -> None:
        self.votes: dict[int, Vote] = {}
        self.acknowledged: set[int] = set()  # grows with late answers
        self._electorate = electorate
        self._t0 = t0
        self._granted = 0
        self._refusals: Counter[str] = Counter()

    def add(self, node: int, index: int, answer: Answer) -> bool:
        try:
            vote = self.votes[node] = self._read(answer)
        except ValueError:
            vote = self.votes[node] = Unreachable(_UNINTELLIGIBLE)
        if isinstance(vote, Refused):
            self._refusals[vote.owner] += 1
        elif not isinstance(vote, Unreachable):
            self._granted += isinstance(vote, Granted)
            self.acknowledged.add(node)
        return self.granted or self._hopeless

    def _read(self, answer: Answer) -> Vote:
        if not answer.ok:
            return Unreachable(answer.text)
        word, rest = answer.text.split(" ", 1)
        if word == "granted":
            fence, votes_at = _fence(rest), self._electorate.votes_from(answer.started)
            return Granted(fence) if votes_at <= self._t0 else Young(votes_at)
        if word == "refused":
            remaining, owner = rest.split(" ", 1)
            return Refused(owner, _seconds(remaining))
        raise ValueError(word)

    @property
    def granted(self) -> bool:
        return self._granted >= self._electorate.quorum

    @property
    def _hopeless(self) -> bool:
        """No quorum can be had any more, and it is clear whether one holder has it instead."""
        unheard = self._electorate.size - len(self.votes)
        if self._granted + unheard >= self._electorate.quorum:
            return False
        most = max(self._refusals.values(), default=0)
        return most >= self._electorate.quorum or most + unheard < self._electorate.quorum

    @property
    def refused(self) -> bool:
        return bool(self._refusals)

    @property
    def holder(self) -> Holder | None:
        """Named only if a quorum names the same: in a split vote, each "holder" is a loser too."""
        for owner, count in dict(self._refusals).items():
            if count >= self._electorate.quorum:
                return Holder.read(owner, self.longest_refusal(owner))
        return None

    @property
    def split(self) -> bool:
        """Nobody has a quorum, though enough nodes vote for somebody to get it in the next try."""
        voting = self._granted + self._refusals.total()
        return self.holder is None and voting >= self._electorate.quorum

    def longest_refusal(self, owner: str) -> float | None:
        votes = self.votes.copy().values()  # a late answer may come in meanwhile, in another thread
        times = [v.remaining for v in votes if isinstance(v, Refused) and v.owner == owner]
        return None if None in times else max(t for t in times if t is not None)

    def why_not(self, now: float) -> dict[int, str]:
        """For each node that could not vote: the reason."""
        reasons: dict[int, str] = {}
        for node in range(self._electorate.size):
            vote = self.votes.get(node)
            if isinstance(vote, Unreachable):
                reasons[node] = vote.why
            elif isinstance(vote, Young):
                reasons[node] = f"started lately, votes in {max(0.0, vote.votes_at - now):.1f} s"
            elif vote is None and not self._hopeless:  # else the round ended without waiting for it
                reasons[node] = "no answer in time"
        return reasons

    def quorum_votes_in(self, now: float) -> float | None:
        """Seconds until enough of the restarted nodes vote again; None if that does not help."""
        votes = self.votes.copy().values()
        young = sorted(vote.votes_at for vote in votes if isinstance(vote, Young))
        missing = self._electorate.quorum - self._granted
        return max(0.0, young[missing - 1] - now) if 0 < missing <= len(young) else None

    def grants(self) -> dict[int, int]:
        """The fence that each node gave, of those heard so far."""
        votes = self.votes.copy().items()
        return {node: vote.fence for node, vote in votes if isinstance(vote, Granted)}

    def may_hold(self) -> list[int]:
        """The nodes where our key may be: all but those that were heard to refuse."""
        return [
            node
            for node in range(self._electorate.size)
            if not isinstance(self.votes.get(node), Refused)
        ]


class Count:
    """Whether enough nodes say a certain word."""

    def __init__(self, word: str, wanted: int, asked: int) -> None:
        self._word = word
        self._wanted = wanted
        self._unheard = asked

    def add(self, node: int, index: int, answer: Answer) -> bool:
        self._unheard -= 1
        self._wanted -= answer.ok and answer.text == self._word
        return self.reached or self._wanted > self._unheard

    @property
    def reached(self) -> bool:
        return self._wanted <= 0


class Inspection:
    """Who holds a lock, if a quorum agrees on it."""

    def __init__(self, electorate: Electorate) -> None:
        self.unreachable: dict[int, str] = {}
        self._electorate = electorate
        self._seen: dict[int, tuple[str, float | None, int]] = {}
        self._owners: Counter[str] = Counter()

    def add(self, node: int, index: int, answer: Answer) -> bool:
        try:
            owner = self._read(node, answer) if answer.ok else None
        except ValueError:
            owner, answer = None, Answer(_UNINTELLIGIBLE, False)
        if owner is None:
            self.unreachable[node] = answer.text
            return False
        self._owners[owner] += 1
        return self._owners[owner] >= self._electorate.quorum

    def _read(self, node: int, answer: Answer) -> str:
        if answer.text == "free":
            return ""
        _, remaining, fence, owner = answer.text.split(" ", 3)
        self._seen[node] = owner, _seconds(remaining), _fence(fence)
        return owner

    @property
    def answered(self) -> bool:
        return self._owners.total() >= self._electorate.quorum

    @property
    def holder(self) -> Holder | None:
        for owner, count in self._owners.most_common(1):
            if owner and count >= self._electorate.quorum:
                seen = [entry for entry in self._seen.values() if entry[0] == owner]
                times = [remaining for _, remaining, _ in seen]
                longest = None if None in times else max(t for t in times if t is not None)
                return Holder.read(owner, longest, max(fence for _, _, fence in seen) or None)
        return None


_UNINTELLIGIBLE = "its answer makes no sense: it is not a lock node, or not of this version"


def _fence(digits: str) -> int:
    if (fence := int(digits)) >= 2**53:
        raise ValueError(digits)  # the servers count in doubles
    return fence


def _seconds(milliseconds: str) -> float | None:
    return int(milliseconds) / 1000 if int(milliseconds) >= 0 else None
