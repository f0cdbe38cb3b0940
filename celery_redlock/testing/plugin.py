"""A pytest fixture for tests of locked tasks: `pytest_plugins = ["celery_redlock.testing.plugin"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery, current_app

from .locks import MemoryLocks


@pytest.fixture
def redlock_app() -> Celery:
    """The app whose tasks are tested: the current one. Override this fixture to name another."""
    return current_app._get_current_object()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def memory_locks(redlock_app: Celery) -> Iterator[MemoryLocks]:
    """The locks of the app's tasks, in memory for the time of the test."""
    with MemoryLocks(redlock_app) as locks:
        yield locks
