"""`rljob` whose ranks reach their engines through a proxy that drops updates and lets the server answer `success`.

    RLJOB_TEST_LIES=FOLDER python -m tests.integration.run.lying_engine run ...

FOLDER/drops has how many of the updates that come from now on are dropped: the server loads, under the new name, what
it was given first. Or THIS_INCARNATION: all that the present incarnation of the server is given. Where there is
FOLDER/other it loads that in the place of whatever it is given: it computes every version differently.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from rljob_api.spec import RLJobSpec
from rljob_workers import engines
from rljob_workers.engines.backend import EngineBackend
from rljob_workers.engines.base import Engine
from rljob_workers.engines.incarnation import read_identity
from rljob_workers.rollout import engine_access

FOLDER = "RLJOB_TEST_LIES"
DROPS = "drops"
OTHER = "other"
ALWAYS = str(1 << 30)
THIS_INCARNATION = "this life"


class Proxy:
    """One server's, in an event loop and a thread of its own."""

    def __init__(self, url: str, folder: Path, identity: Path) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        self._server = (address.hostname, address.port)
        self._folder = folder
        self._identity = identity
        self._loop = asyncio.new_event_loop()
        listening = self._loop.run_until_complete(asyncio.start_server(self._talk, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True).start()

    async def _talk(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            server, there = await asyncio.open_connection(*self._server)
        except OSError:
            back.close()
            return
        answers = asyncio.ensure_future(self._pump(server, back))
        try:
            while True:
                head = await client.readuntil(b"\r\n\r\n")
                body = await client.readexactly(length_of(head))
                if head.split(b" ")[1] == b"/update_weights_from_disk":
                    head, body = self._update(head, body)
                there.write(head + body)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            there.close()
            await answers

    async def _pump(self, server: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await server.read(1 << 16):
            back.write(data)
        back.close()

    def _update(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        asked = json.loads(body)
        first, other = self._folder / "first", self._folder / OTHER
        if other.exists():
            asked["model_path"] = str(other)
        elif not first.exists():
            shutil.copytree(asked["model_path"], first)
        elif self._drops():
            with (self._folder / "dropped").open("a") as dropped:
                dropped.write(f"{Path(asked['model_path']).name}\n")
            asked["model_path"] = str(first)
        changed = json.dumps(asked).encode()
        return re.sub(rb"(?i)(content-length: *)\d+", rb"\g<1>%d" % len(changed), head), changed

    def _drops(self) -> bool:
        """Whether this update is dropped. The first one shows which incarnation `THIS_INCARNATION` is."""
        drops, incarnation = self._folder / DROPS, read_identity(self._identity).incarnation
        left = drops.read_text() if drops.exists() else "0"
        if left == THIS_INCARNATION:
            drops.write_text(left := f"life {incarnation}")
        if left.startswith("life"):
            return left == f"life {incarnation}"
        drops.write_text(str(max(0, int(left) - 1)))
        return int(left) > 0


def length_of(head: bytes) -> int:
    """Of the body, in bytes."""
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


def lying(backend: EngineBackend) -> EngineBackend:
    """The backend whose clients talk to a proxy."""

    def client(url: str, identity: Path, spec: RLJobSpec) -> Engine:
        return backend.client(Proxy(url, Path(os.environ[FOLDER]), identity).url, identity, spec)

    return replace(backend, client=client)


if __name__ == "__main__":
    honest = engines.backend_of

    def backend_of(spec: RLJobSpec) -> EngineBackend:
        """In place of the registry's, for clients alone."""
        return lying(honest(spec))

    engine_access.backend_of = backend_of  # type: ignore[attr-defined]  # where it was imported to
    runpy.run_module("tests.integration.preloaded.supervised", run_name="__main__", alter_sys=True)
