"""A line to a server on which replies get lost: the server did what it was asked, and the client never learns of it.

For tests. A Unix socket in front of another one; everything passes as it is, until a loss is ordered.
"""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

CALL = b"FCALL"
"""Replies to other commands, such as those that greet, are not lost."""


class LossyLine:
    """Between clients and the server at `url` (`unix://:password@/path`)."""

    def __init__(self, url: str, path: Path) -> None:
        parts = urlsplit(url)
        self.url = urlunsplit(parts._replace(path=str(path)))
        self.losses = 0
        """So many replies are lost, from now on."""
        self._server = unquote(parts.path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._others: dict[socket.socket, socket.socket] = {}
        self._asked: set[socket.socket] = set()
        """Lines to the server on which a call was sent."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wakes, self._wake = socket.socketpair()
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        for line in list(self._others):
            line.close()
        self._listener.close()
        self._wakes.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wakes:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._others:
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._server)
        except OSError:
            client.close()
            server.close()
            return
        self._others[client], self._others[server] = server, client
        self._selector.register(client, selectors.EVENT_READ, "client")
        self._selector.register(server, selectors.EVENT_READ, "server")

    def _pass_on(self, line: socket.socket) -> None:
        other, speaker = self._others[line], self._selector.get_key(line).data
        try:
            data = line.recv(1 << 16)
        except OSError:
            data = b""
        if speaker == "client" and CALL in data:
            self._asked.add(other)
        if speaker == "server" and data and line in self._asked and self.losses:
            self.losses -= 1
            data = b""
        try:
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._part(line, other)

    def _part(self, *lines: socket.socket) -> None:
        for line in lines:
            self._selector.unregister(line)
            self._others.pop(line)
            self._asked.discard(line)
            line.close()
