"""What a test sees of its tasks: what they wrote down, and which locks are held."""

from __future__ import annotations

import re
from typing import Any

from pytest_celery import CeleryTestCluster

from ..waiting import wait_until
from . import shop

_FENCE = re.compile(r" \d{6,}$")


class Witness:
    def __init__(self, history: Any, nodes: CeleryTestCluster, parties: int) -> None:
        self.history = history
        self.nodes = nodes
        self._parties = parties

    def seen(self) -> list[str]:
        """The notes of all tasks, in their order, without the leases' numbers."""
        return [
            " ".join(w for w in note.split() if not w.isdigit() or len(w) < 6) for note in self.notes()
        ]

    def notes(self) -> list[str]:
        return list(self.history.lrange("history", 0, -1))

    def fences(self) -> list[int]:
        return [int(note.split()[-1]) for note in self.notes() if note.startswith("in ")]

    def sees(self, what: str, times: int = 1, seconds: float = 15) -> None:
        """Wait until it was noted so often."""
        wait_until(lambda: self.seen().count(what) >= times, seconds)

    def says(self, word: str) -> None:
        """The word that a task waits for."""
        self.history.rpush(word, "!")

    def held(self) -> set[str]:
        """The locks that are held on any node, by their names in Redis."""
        names: set[str] = set()
        for node in self.nodes:
            names.update(key for key in node.client.keys("*") if not key.endswith(":fence"))
        return names

    def all_is_free(self, seconds: float = 5) -> None:
        """No lock is held, and no process keeps a lease alive."""
        wait_until(lambda: not self.held(), seconds)
        asked = [shop.leases_held.delay(self._parties) for _ in range(self._parties)]
        assert [result.get(timeout=20) for result in asked] == [0] * self._parties
