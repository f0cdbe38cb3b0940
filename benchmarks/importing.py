"""What `import celery_redlock` adds to the start of a program that imports Celery anyway."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from .measure import Times, progress
from .table import ms, show

INTERPRETERS = 15

IMPORTS = (
    "import celery",
    "import celery_redlock, after that",
    "from celery_redlock import LockedTask, after that",
)

_PROGRAM = """
from time import perf_counter
start = perf_counter()
import celery
then = perf_counter()
import celery_redlock
later = perf_counter()
from celery_redlock import LockedTask
print(then - start, later - then, perf_counter() - later)
"""


def importing() -> None:
    progress("imports")
    times = {name: Times() for name in IMPORTS}
    with tempfile.TemporaryDirectory() as bytecode:
        _fresh(bytecode)  # this one compiles, as an installer would have done
        for _ in range(INTERPRETERS):
            for seconds, of in zip(_fresh(bytecode), times.values(), strict=True):
                of.samples.append(seconds * 1000)
    rows = [[name, ms(of.median), ms(max(of.samples))] for name, of in times.items()]
    show(f"imports, {INTERPRETERS} fresh interpreters", ["", "median ms", "longest ms"], rows)


def _fresh(bytecode: str) -> list[float]:
    command = [sys.executable, "-c", _PROGRAM]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=60, env=environment
    )
    return [float(word) for word in done.stdout.split()]
