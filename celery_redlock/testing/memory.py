"""Lock nodes without servers: what the Lua scripts do, done in Python.

They can be down, frozen, flushed and restarted, and their clock can be turned by hand, so a test
takes no time. `tests/servers/test_scripts.py` proves that they answer as real servers do.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .. import lua
from ..node import clock as real_clock
from ..round import Answer, Carrier, Command, Round, Started, Tally

_MINUTE = 60_000_000  # µs


class ManualClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class MemoryNode:
    """One server. `up`: it answers; `frozen`: it will answer, once it is thawed."""

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self.up = True
        self.frozen = False
        self.started = float("-inf")
        self.waiting: list[Callable[[], None]] = []
        self._clock = clock
        self._wall = wall
        self._values: dict[str, tuple[str, float]] = {}
        self._scripts: dict[str, Callable[[Sequence[str], Sequence[Any]], str]] = {
            lua.ACQUIRE.name: self._acquire,
            lua.RAISE.name: self._raise,
            lua.EXTEND.name: self._extend,
            lua.RELEASE.name: self._release,
            lua.INSPECT.name: self._inspect,
        }

    def run(self, command: Command) -> str:
        return self._scripts[command.script.name](command.keys, command.args)

    def flush(self) -> None:
        self._values.clear()

    def restart_empty(self) -> None:
        self.flush()
        self.waiting.clear()
        self.up, self.frozen, self.started = True, False, self._clock()

    def thaw(self) -> None:
        self.frozen = False
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()

    def get(self, key: str) -> str | None:
        value, expires = self._values.get(key, ("", 0.0))
        return value if self._clock() < expires else None

    def set(self, key: str, value: str, ms: int) -> None:
        self._values[key] = value, self._clock() + ms / 1000

    def _remaining(self, key: str) -> int:
        return round((self._values[key][1] - self._clock()) * 1000)

    def _acquire(self, keys: Sequence[str], args: Sequence[Any]) -> str:
        lock, counter = keys
        owner, ttl, proposed, counter_ttl = args
        if holder := self.get(lock):
            return f"refused {self._remaining(lock)} {holder}"
        now = int(self._wall() * 1e6)
        nearest = min(max(int(proposed), now - _MINUTE), now + _MINUTE)
        fence = max(int(self.get(counter) or 0) + 1, nearest)
        self.set(lock, owner, ttl)
        self.set(counter, str(fence), counter_ttl)
        return f"granted {fence}"

    def _raise(self, keys: Sequence[str], args: Sequence[Any]) -> str:
        lock, counter = keys
        owner, fence, counter_ttl = args
        if self.get(lock) != owner:
            return "gone"
        self.set(counter, str(max(int(self.get(counter) or 0), fence)), counter_ttl)
        return "raised"

    def _extend(self, keys: Sequence[str], args: Sequence[Any]) -> str:
        ttl, counter_ttl, *rest = args
        leases = zip(keys[::2], keys[1::2], rest[::2], rest[1::2], strict=True)
        return "".join(self._extend_one(*lease, ttl, counter_ttl) for lease in leases)

    def _extend_one(
        self, lock: str, counter: str, owner: str, fence: int, ttl: int, counter_ttl: int
    ) -> str:
        holder = self.get(lock)
        if holder not in (None, owner):
            return "o"
        self.set(lock, owner, ttl)
        last = int(self.get(counter) or 0)
        self.set(
            counter, str(max(last, int(fence)) if holder is None or not last else last), counter_ttl
        )
        return "r" if holder is None else "h"

    def _release(self, keys: Sequence[str], args: Sequence[Any]) -> str:
        if self.get(keys[0]) != args[0]:
            return "gone"
        del self._values[keys[0]]
        return "released"

    def _inspect(self, keys: Sequence[str], args: Sequence[Any]) -> str:
        lock, counter = keys
        if holder := self.get(lock):
            return f"held {self._remaining(lock)} {self.get(counter) or 0} {holder}"
        return "free"


class MemoryNodes:
    """N of them: give it to `Redlock` in place of the URLs."""

    def __init__(self, count: int = 3, clock: Callable[[], float] = real_clock) -> None:
        self.clock = clock
        self.skew = 0.0  # how far this client's wall clock is off, in seconds
        self._offset = time.time() - clock()
        self._nodes = [MemoryNode(clock, self._true_wall) for _ in range(count)]
        self._channel = MemoryChannel(self)

    def __getitem__(self, index: int) -> MemoryNode:
        return self._nodes[index]

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def names(self) -> list[str]:
        return [f"memory://{index}" for index in range(len(self))]

    def meet(self, channel: Carrier, quorum: int, patience: float) -> None: ...

    def channel(self) -> MemoryChannel:
        return self._channel

    def teller(self) -> Callable[[Callable[[], object]], object]:
        return lambda work: work()

    def now(self) -> float:
        return self.clock()

    def wall(self) -> float:
        return self._true_wall() + self.skew

    def sleep(self, seconds: float) -> None:
        advance = getattr(self.clock, "advance", time.sleep)
        advance(seconds)

    def random(self) -> float:
        return random.random()

    def secret(self) -> str:
        return f"{random.getrandbits(128):032x}"

    def close(self) -> None: ...

    def _true_wall(self) -> float:
        return self.clock() + self._offset


class MemoryChannel:
    """A round reaches the nodes one after the other, and takes no time unless one is frozen."""

    closed = False

    def __init__(self, nodes: MemoryNodes) -> None:
        self.lock = threading.RLock()
        self._nodes = nodes

    def open(self, wanted: int, patience: float) -> None: ...

    def round(
        self,
        commands: Sequence[Command],
        tally: Tally,
        patience: float,
        nodes: Iterable[int] | None = None,
    ) -> None:
        with self.lock:
            receivers = range(len(self._nodes)) if nodes is None else list(nodes)
            this = Round(commands, tally, len(receivers), self._nodes.now())
            for index in receivers:
                self._send(index, this)
            if this.open and patience > 0:
                self._nodes.sleep(patience)
            this.open = False

    def _send(self, index: int, this: Round) -> None:
        node = self._nodes[index]
        if not node.up:
            this.hear_nothing(index, "it is down")
        elif node.frozen:
            node.waiting.append(lambda: self._run(index, this))
        else:
            self._run(index, this)

    def _run(self, index: int, this: Round) -> None:
        node = self._nodes[index]
        for number, command in enumerate(this.commands):
            started = Started(node.started, node.started)
            this.hear(index, number, Answer(node.run(command), True, started))
