"""Where one Redis server is, and a socket to it. For `resp` and those who make its connections; knows no protocol."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from rljob_workers.keepalive import keep_alive

_SAME_HOST_SEND_BUFFER_BYTES = 1 << 18
"""Where the server is on this host. What is sent then stays in the processor's cache until it is received: half as fast
again as the megabytes that the kernel would let pile up. A network needs those."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A Unix socket's path, or host and port; and the password (never shown)."""

    path: str | None
    host: str
    port: int
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """`unix://:password@/path/unit.sock` or `redis://:password@host:port/0`."""
        parts = urlsplit(url)
        password = unquote(parts.password) if parts.password else None
        if parts.scheme == "unix" and parts.path:
            return cls(unquote(parts.path), "", 0, password)
        if parts.scheme == "redis" and parts.hostname and parts.path in ("", "/", "/0"):
            return cls(None, parts.hostname, parts.port or 6379, password)
        raise ValueError(
            f"TransferQueue: a Redis server's URL has scheme {parts.scheme!r} and no usable address."
            " Use unix://:password@/path or redis://:password@host:port/0."
        )

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"

    def connect(self, seconds: float) -> socket.socket:
        """A socket that never blocks, made within `seconds`; raises OSError."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout=seconds)
        else:
            connection = socket.socket(socket.AF_UNIX)
        try:
            if self.path is None:
                keep_alive(connection)
            else:
                connection.settimeout(seconds)
                connection.connect(self.path)
            if _is_on_this_host(connection):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SAME_HOST_SEND_BUFFER_BYTES)
            connection.setblocking(False)
        except BaseException:
            connection.close()
            raise
        return connection


def _is_on_this_host(connection: socket.socket) -> bool:
    if connection.family == socket.AF_UNIX:
        return True
    return bool(connection.getpeername()[0] == connection.getsockname()[0])
