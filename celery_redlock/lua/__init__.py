"""The scripts that run inside the servers.

Each is constant text; data travels only in KEYS and ARGV. Each answers one status line, so that a
reply can be read without a parser and has an end that is easy to find.
"""

from __future__ import annotations

import hashlib
import pkgutil
from typing import NamedTuple


class Script(NamedTuple):
    name: str
    text: str
    sha: str


def _load(name: str) -> Script:
    source = pkgutil.get_data(__name__, f"{name}.lua")
    assert source is not None, f"{name}.lua is not in the package"
    return Script(name, source.decode(), hashlib.sha1(source, usedforsecurity=False).hexdigest())


ACQUIRE = _load("acquire")
RAISE = _load("raise")
EXTEND = _load("extend")
RELEASE = _load("release")
INSPECT = _load("inspect")

ALL = (ACQUIRE, RAISE, EXTEND, RELEASE, INSPECT)
