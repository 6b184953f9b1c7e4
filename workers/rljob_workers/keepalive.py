"""TCP options by which a connection ends whose other side vanished without a word (a deleted pod sends no reset).

For every connection that leaves the pod. Deadlines find a silent answer; these find a silent wait for one.
"""

from __future__ import annotations

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
