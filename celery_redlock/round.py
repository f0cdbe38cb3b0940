"""One round: the same commands to every node, and a tally of what they answer.

Also what the algorithm asks of the world: nodes and channels, time and chance. The real ones are in
nodes.py and channel.py; a simulated network has the same face (Q12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from . import lua


class Started(NamedTuple):
    """When a server started, as bounds on our own clock: it tells its age in whole seconds."""

    earliest: float
    latest: float


LONG_AGO = Started(float("-inf"), float("-inf"))


class Answer(NamedTuple):
    """What came back from a node: a script's line, or the reason why there is none."""

    text: str
    ok: bool
    started: Started = LONG_AGO


class Tally(Protocol):
    def add(self, node: int, index: int, answer: Answer) -> bool:
        """Count a node's answer to command number `index`. True: no further answer is needed.

        Late answers are added too, after the round has ended.
        """


class Command(NamedTuple):
    script: lua.Script
    keys: Sequence[str]
    args: Sequence[str | int]

    def by_digest(self) -> bytes:
        return _pack("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> bytes:
        return _pack("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


class Round:
    """Commands on their way to the nodes, open until enough answers are in."""

    def __init__(self, commands: Sequence[Command], tally: Tally, nodes: int, sent: float) -> None:
        self.commands = commands
        self.payload = b"".join([command.by_digest() for command in commands])
        self.owed = [(self, index) for index in range(len(commands))]  # the replies, by each node
        self.sent = sent
        self.open = True
        self.only_releases = all(command.script is lua.RELEASE for command in commands)
        self._tally = tally
        self._missing = nodes * len(commands)

    def hear(self, node: int, index: int, answer: Answer) -> None:
        self._missing -= 1
        if self._tally.add(node, index, answer) or not self._missing:
            self.open = False

    def hear_nothing(self, node: int, why: str) -> None:
        for index in range(len(self.commands)):
            self.hear(node, index, Answer(why, False))


class Carrier(Protocol):
    """Carries rounds to the nodes, in order: a later one never overtakes an earlier one."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held around several rounds that belong together."""

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more."""

    def open(self, wanted: int, patience: float) -> None:
        """Wait until so many nodes are connected, or the others cannot be, or time is up."""

    def round(
        self,
        commands: Sequence[Command],
        tally: Tally,
        patience: float,
        nodes: Iterable[int] | None = None,
    ) -> None:
        """Send the commands to the nodes, and hear them until the tally has enough.

        Without patience it only sends: the answers are heard when the channel is used again.
        """


class Nodes(Protocol):
    @property
    def names(self) -> Sequence[str]:
        """How each node is shown to people: its URL without credentials."""

    def meet(self, channel: Carrier, quorum: int, patience: float) -> None:
        """Connect to enough nodes; the first time, hear of all, so that their faults are known.

        Raises ConfigError if a node shows that the configuration is wrong.
        """

    def channel(self) -> Carrier:
        """The calling thread's."""

    def teller(self) -> Callable[[Callable[[], object]], object]:
        """How the caller is to be told something later, by whichever thread: as a call."""

    def now(self) -> float:
        """Seconds on a clock that never jumps, and goes on while the machine sleeps."""

    def wall(self) -> float:
        """Seconds since 1970, as far as this machine knows."""

    def sleep(self, seconds: float) -> None: ...

    def random(self) -> float:
        """From 0 to 1."""

    def secret(self) -> str:
        """128 random bits, as 32 hex digits."""

    def close(self) -> None: ...


def _pack(*parts: str | int) -> bytes:
    packed = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = str(part).encode("utf-8", "surrogateescape")
        packed.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(packed)
