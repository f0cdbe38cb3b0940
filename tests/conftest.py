"""What every level of tests shares: what to do where a server program is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_redlock.testing.servers import ServerMissing


def find(program: Callable[[], Path]) -> Path:
    """A server program. Where it is missing, the test is skipped on a laptop and fails in CI."""
    try:
        return program()
    except ServerMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
