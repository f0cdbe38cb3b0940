"""A private RabbitMQ: its programs, and what keeps it in one directory and on loopback."""

from __future__ import annotations

import shutil
from pathlib import Path

from celery_redlock.testing.servers import ServerMissing, free_port


def server() -> Path:
    """Not the wrapper on Debian's PATH, which insists on the system's user and directories."""
    found = [*Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server")]
    found += [Path(path) for path in [shutil.which("rabbitmq-server")] if path]
    if not found:
        raise ServerMissing("no RabbitMQ: install rabbitmq-server")
    return found[0]


def port_mapper() -> Path:
    path = shutil.which("epmd")
    if path is None:
        raise ServerMissing("no epmd, which RabbitMQ needs: install erlang-base")
    return Path(path)


def environment(home: Path) -> dict[str, str]:
    plugins = home / "plugins"
    plugins.write_text("[].")
    return {
        "HOME": str(home),  # the Erlang cookie
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
        "RABBITMQ_NODENAME": "shop@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(free_port()),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONFIG_FILE": str(home / "none"),
    }
