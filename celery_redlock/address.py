"""A node's URL: what it means, how it is shown, and how redis-py opens a connection to it.

``redis://``, ``rediss://`` (TLS, verified unless the URL says otherwise) and ``unix://`` are read as
redis-py reads them. ``sentinel://host:port[,host:port…]/service`` asks the sentinels for the service's
master each time it connects.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import ConfigError

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

SCHEMES = ("redis://", "rediss://", "unix://", "sentinel://")
SENTINEL_PORT = 26379

_CELERYS_WORD = re.compile(r"(?<=ssl_cert_reqs=)CERT_(\w+)")  # where redis-py says "required"


class Address:
    def __init__(self, url: str, timeout: float, number: int = 1) -> None:
        if not isinstance(url, str) or not url.startswith(SCHEMES):
            raise ConfigError(f"lock node {number} is not a URL that starts with {', '.join(SCHEMES)}")
        from redis.exceptions import RedisError

        self._sentinels: list[tuple[str, int]] = []
        self._service = ""
        try:
            self._options = self._read(url)
            self._options.update(_plain(timeout))
            self._class = self._options.pop("connection_class")
            self._class(**self._options)  # an unknown option shows now, not in the helper thread
        except (ValueError, TypeError, RedisError):
            # Neither shown nor chained: where it cannot be read, nobody knows which part is a password.
            raise ConfigError(
                f"the URL of lock node {number} ({url.partition('://')[0]}://…) cannot be read: check "
                f"host, port, database number and options; special characters in a password are "
                f"written as %XX"
            ) from None
        self.name = self._shown(url)

    @staticmethod
    def _shown(url: str) -> str:
        """Without credentials and options."""
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def connect(self) -> AbstractConnection:
        """A connection that is open, authenticated, and on its database."""
        options = dict(self._options)
        if self._sentinels:
            options["host"], options["port"] = self._master()
        connection: AbstractConnection = self._class(**options)
        connection.connect()
        return connection

    def _read(self, url: str) -> dict[str, Any]:
        from redis.connection import Connection, parse_url

        if url.startswith("sentinel://"):
            url = self._read_sentinel(url)
        url = _CELERYS_WORD.sub(lambda match: match[1].lower(), url)
        parts = urlsplit(url)
        if "@" in parts.path + parts.query:
            raise ValueError("a password with a special character")
        options: dict[str, Any] = dict(parse_url(url))
        if parts.scheme == "unix":
            if not parts.path:
                raise ValueError("no path")
        elif not parts.hostname or not (parts.path.strip("/") or "0").isdigit():
            raise ValueError("no host, or a database that is no number")
        if parts.scheme == "rediss" and options.get("ssl_cert_reqs") != "none":
            options.setdefault("ssl_check_hostname", True)
        return {"connection_class": Connection, **options}

    def _read_sentinel(self, url: str) -> str:
        """Note the sentinels; what is left is an ordinary URL whose host they will tell."""
        parts = urlsplit(url)
        credentials, at, hosts = parts.netloc.rpartition("@")
        for host in hosts.split(","):
            one = urlsplit(f"//{host}")
            if not one.hostname:
                raise ValueError("a sentinel without a host")
            self._sentinels.append((one.hostname, one.port or SENTINEL_PORT))
        self._service = parts.path.strip("/")
        if not self._service:
            raise ValueError("no service")
        return f"redis://{credentials}{at}master?{parts.query}"

    def _master(self) -> tuple[str, int]:
        from redis.sentinel import Sentinel

        sentinel = Sentinel(self._sentinels, sentinel_kwargs=_plain(self._options["socket_timeout"]))
        try:
            host, port = sentinel.discover_master(self._service)
            return str(host), int(port)
        finally:
            for client in sentinel.sentinels:
                client.close()


def _plain(timeout: float) -> dict[str, Any]:
    """No second try behind our back, and the protocol in which an answer is one line."""
    from redis.backoff import NoBackoff
    from redis.connection import AbstractConnection
    from redis.retry import Retry

    knows_driver_info = "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
    silent = {"driver_info": None} if knows_driver_info else {"lib_name": None, "lib_version": None}
    return {
        **silent,  # one round trip less, and one right less to ask for
        "decode_responses": False,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "health_check_interval": 0,
    }
