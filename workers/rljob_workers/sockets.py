"""TCP sockets of the workers: options that end a connection whose other side vanished, and listening sockets.

For every process that connects to another pod or listens. Imports the standard library only, since entry points open
their sockets before the heavy imports.
"""

from __future__ import annotations

import select
import socket
from typing import Any

OPTIONS = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 3,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 15_000,
}
"""Seconds of quiet before the first question, between questions, questions; milliseconds for bytes that are sent."""


def keep_alive(connection: socket.socket) -> None:
    """Sends at once, and breaks some 20 s after the other side vanished. For TCP."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in OPTIONS.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def redis_options(url: str) -> dict[str, Any]:
    """What redis-py takes for the same; nothing for a Unix socket."""
    if not url.startswith("redis://"):
        return {}
    return {"socket_keepalive": True, "socket_keepalive_options": OPTIONS}


BACKLOG = 1024


def open_listener(host: str, port: int) -> socket.socket:
    """Listens; a host with a colon is of IPv6 (and serves IPv4 too where it is all addresses)."""
    if ":" in host:
        made = socket.create_server((host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=host == "::")
    else:
        made = socket.create_server((host, port), backlog=BACKLOG)
    # An object that names its protocol (the system is asked for it): only then does asyncio turn off Nagle's delay,
    # which costs 40 ms a reply, since head and body are written one after the other.
    return socket.socket(fileno=made.detach())


def is_readable(connection: socket.socket, seconds: float = 0.0) -> bool:
    """Whether something, or the end, can be read within so many seconds.

    Of any descriptor: `select.select` refuses those from 1024 on, and a rank of many requests has them.
    """
    return _is_ready(connection, select.POLLIN, seconds)


def is_writable(connection: socket.socket, seconds: float = 0.0) -> bool:
    """Whether something can be written within so many seconds; of any descriptor."""
    return _is_ready(connection, select.POLLOUT, seconds)


def _is_ready(connection: socket.socket, event: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(connection, event)
    return bool(poller.poll(max(0.0, seconds) * 1000))
