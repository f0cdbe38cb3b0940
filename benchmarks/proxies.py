"""Delaying proxies, in a process of their own: they must not share a GIL with what is measured."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from celery_redlock.testing.proxy import Proxy

#: Seconds in which the process must have started, or ended.
TIMEOUT = 20.0


@contextlib.contextmanager
def delayed(ports: Sequence[int], seconds: float) -> Iterator[list[str]]:
    """URLs of the servers on these ports, by a way that takes so much longer for each exchange."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_host, args=(ports, seconds, far), daemon=True)
    process.start()
    far.close()
    try:
        assert near.poll(TIMEOUT), "the proxies did not start"
        yield near.recv()
    finally:
        process.terminate()
        process.join(TIMEOUT)
        near.close()


def _host(ports: Sequence[int], seconds: float, pipe: Connection) -> None:
    with contextlib.ExitStack() as cleanup:
        proxies = [cleanup.enter_context(Proxy(port)) for port in ports]
        for proxy in proxies:
            proxy.delay(seconds)
        pipe.send([proxy.url for proxy in proxies])
        with contextlib.suppress(EOFError):
            pipe.recv()  # until the other process ends us, or is gone itself
