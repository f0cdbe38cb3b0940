"""A TCP proxy in front of a server: it can delay, swallow, cut and reset what passes through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Literal

Direction = Literal["to server", "to client"]
BOTH: tuple[Direction, Direction] = ("to server", "to client")


class Proxy:
    """Passes bytes on unchanged, until it is told otherwise. Runs in a thread of its own.

    With a TLS context, it speaks TLS to its clients.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._tls = tls
        self._delay = 0.0
        self._swallowed: frozenset[Direction] = frozenset()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redlock-proxy", daemon=True)
        self._thread.start()
        self.port = self._do(self._listen())

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def delay(self, seconds: float) -> None:
        """Add so much to the time of each request and reply together."""
        self._delay = seconds / 2

    def blackhole(self, *directions: Direction) -> None:
        """Swallow everything, both ways or one; connections stay open and can still be opened."""
        self._swallowed = frozenset(directions or BOTH)

    def cut(self) -> None:
        """End all connections, and close new ones at once."""
        self._refusing = True
        self._do(self._end_all(reset=False))

    def reset(self) -> None:
        """End all connections with a TCP reset; new ones are welcome."""
        self._do(self._end_all(reset=True))

    def heal(self) -> None:
        self._delay, self._swallowed, self._refusing = 0.0, frozenset(), False

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        self._writers.add(writer)
        try:
            if self._refusing:
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(far_writer)
            try:
                there = asyncio.ensure_future(self._pass_on("to server", reader, far_writer))
                back = asyncio.ensure_future(self._pass_on("to client", far_reader, writer))
                await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._forget(far_writer)
                self._forget(writer)
                await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            pass  # either side went away: so does the other
        finally:
            self._forget(writer)
            self._handlers.discard(handler)

    async def _pass_on(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Each piece waits for its own time, so that a delay does not make the line slower."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.ensure_future(self._send_in_time(pieces, writer))
        try:
            while data := await reader.read(65536):
                if direction not in self._swallowed:
                    pieces.put_nowait((self._loop.time() + self._delay, data))
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send_in_time(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await pieces.get()
            if (wait := due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
            writer.write(data)

    async def _end_all(self, reset: bool) -> None:
        for writer in list(self._writers):
            if reset:
                with contextlib.suppress(OSError):
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, linger
                    )
            self._forget(writer)

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        with contextlib.suppress(Exception):
            writer.transport.abort()

    async def _shut_down(self) -> None:
        self._server.close()
        await self._end_all(reset=False)
        if self._handlers:  # not cancelled: their transports are gone, so they end by themselves
            await asyncio.wait(self._handlers, timeout=5)
