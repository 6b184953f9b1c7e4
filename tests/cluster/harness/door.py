"""A door to the API server that a test shuts or lets go silent, so that one client of it has trouble and no other.

It hands bytes on and understands none of them.
"""

import re
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.cluster.harness.machine import Cluster

_PIECE_BYTES = 65536
_CONNECT_SECONDS = 5.0


class Door:
    """Listens on a port of this machine. `with Door(cluster) as door:` opens it and closes it for good."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """The changed kubeconfig lies in `folder`."""
        text = Path(cluster.kubeconfig).read_text()
        found = re.search(r'server: "?(https://[^\s"},]+)', text)
        assert found is not None, f"{cluster.kubeconfig} names no server"
        url = urlsplit(found[1])
        self._target = (url.hostname or "127.0.0.1", url.port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        """Else a connection that comes while the door is shut could stay open."""
        self._is_shut = False
        self._pairs: list[_Pair] = []
        kubeconfig = folder / "door.kubeconfig"
        kubeconfig.write_text(text.replace(found[1], f"https://127.0.0.1:{self._listener.getsockname()[1]}"))
        self.cluster = Cluster(str(kubeconfig), None)
        """The cluster, behind the door."""

    def shut(self) -> None:
        """Resets all connections, and every new one at once."""
        with self._lock:
            self._is_shut = True
        self._reset_all()

    def open(self) -> None:
        """New connections are let through again."""
        self._is_shut = False

    def silence(self) -> None:
        """The connections of now stay open for ever and nothing comes through any more; new ones are let through."""
        with self._lock:
            for pair in self._pairs:
                pair.is_silent = True

    def __enter__(self) -> "Door":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._reset_all()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed for good
                return
            if self._is_shut:
                _reset(near)
                continue
            try:
                far = socket.create_connection(self._target, _CONNECT_SECONDS)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            with self._lock:
                if not self._is_shut:
                    self._pairs.append(_Pair(near, far))
                    continue
            for end in (near, far):
                _reset(end)

    def _reset_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.reset()


class _Pair:
    """A connection to the door and the one behind it."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._near, self._far = near, far
        self.is_silent = False
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def reset(self) -> None:
        for end in (self._near, self._far):
            _reset(end)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                if not self.is_silent:
                    sink.sendall(piece)
        if not self.is_silent:
            self.reset()


def _reset(end: socket.socket) -> None:
    """Closes with RST and not in peace."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
