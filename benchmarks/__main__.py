"""All tables, in one run of a few minutes."""

from __future__ import annotations

import logging
import os
import platform
import time
from importlib.metadata import version

from celery_redlock.testing.servers import Server, servers

from .draining import draining
from .importing import importing
from .locking import faulty, healthy
from .measure import progress
from .renewing import renewing

PACKAGES = (
    "redis",
    "python-redis-lock",
    "redlock-py",
    "pottery",
    "celery",
    "celery-once",
    "celery-singleton",
)


def main() -> None:
    logging.disable(logging.CRITICAL)  # some log each failure of a node
    start = time.monotonic()
    with servers(1) as [one]:
        print(_conditions(one), flush=True)
    before = healthy()
    with servers(5) as five:
        faulty(five, before)
        renewing(five)
    draining()
    importing()
    progress(f"took {time.monotonic() - start:.0f} s")


def _conditions(server: Server) -> str:
    client = server.client()
    info = client.info("server")
    client.close()
    name = info.get("server_name", "redis")
    packages = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return (
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; "
        f"{name} {info.get(f'{name}_version')}\n{packages}\n"
        f"Each attempt takes a lock and gives it back. The floor waits for all nodes, and each "
        f"contestant has its own\nconnections. × floor and × ours are ratios of medians."
    )


if __name__ == "__main__":
    main()
