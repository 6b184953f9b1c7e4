"""The coordinator's listening socket. Called by its entries; imports nothing heavy."""

from __future__ import annotations

import socket

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
