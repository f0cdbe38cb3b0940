"""When a renewal has succeeded: which of the nodes' answers count for a lease. Pure, like vote.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from .round import Answer
from .vote import Electorate

Verdict = Literal["renewed", "taken", "vanished", "unanswered"]


class Ledger:
    """What each node has said about one lease, as far as it decides whether its word counts (Q8).

    A key that is found there again and again is a vote. A key that had to be put back is none by
    itself: someone else may have held the lock in between. It becomes one only if the node's restart
    explains the gap, or after a round that succeeded without it.
    """

    def __init__(self, acknowledged: set[int]) -> None:
        self._acknowledged = acknowledged
        self._on_probation: set[int] = set()
        self._distrusted: set[int] = set()

    def counts(self, node: int, letter: str, young: bool) -> bool:
        if node in self._distrusted:
            return False
        if letter == "h":
            counts = node not in self._on_probation
        elif letter == "r":
            counts = young
            if not young:
                self._put_back(node)
        else:
            return False
        if counts:
            self._acknowledged.add(node)
        return counts

    def _put_back(self, node: int) -> None:
        if node in self._acknowledged:
            self._distrusted.add(node)  # data vanished without a restart
        else:
            self._on_probation.add(node)

    def succeeded(self) -> None:
        self._acknowledged |= self._on_probation
        self._on_probation.clear()


class Renewal:
    """The votes of one round that renews many leases, some of them in each command (Q8)."""

    def __init__(
        self, electorate: Electorate, batches: Sequence[Sequence[Ledger]], now: Callable[[], float]
    ) -> None:
        self._electorate = electorate
        self._batches = batches
        self._now = now
        self._votes = [[0] * len(batch) for batch in batches]
        self._answers = [[0] * len(batch) for batch in batches]
        self._taken = [[0] * len(batch) for batch in batches]
        self._short = sum(map(len, batches))  # leases that still lack a quorum
        self._why_not = dict.fromkeys(range(electorate.size), "no answer in time")

    def add(self, node: int, index: int, answer: Answer) -> bool:
        batch = self._batches[index]
        if not answer.ok or len(answer.text) != len(batch):
            self._why_not[node] = answer.text
            return False
        self._why_not.pop(node, None)
        young = self._electorate.is_young(answer.started, self._now())
        votes, answers, taken = self._votes[index], self._answers[index], self._taken[index]
        for place, (ledger, letter) in enumerate(zip(batch, answer.text, strict=True)):
            answers[place] += 1
            taken[place] += letter == "o"
            if ledger.counts(node, letter, young):
                votes[place] += 1
                self._short -= votes[place] == self._electorate.quorum
        return not self._short

    def verdict(self, index: int, place: int) -> Verdict:
        """`renewed`; `taken` or `vanished` if it is lost for certain; else `unanswered`."""
        if self._votes[index][place] >= self._electorate.quorum:
            return "renewed"
        unheard = self._electorate.size - self._answers[index][place]
        if self._votes[index][place] + unheard >= self._electorate.quorum:
            return "unanswered"
        return "taken" if self._taken[index][place] else "vanished"

    def why_not(self) -> dict[int, str]:
        """For each node that did not answer: the reason."""
        return dict(self._why_not)
