"""The torch engine as a backend: forked after the common imports, asked at `/health`, driven over SGLang's dialect.

Read by the registry; imports nothing heavy, since a launcher lives without torch.
"""

from __future__ import annotations

import functools
import socket

from rljob_workers.engines.backend import EngineBackend, EngineSettings, Fork, Ready
from rljob_workers.engines.sglang_dialect.client import SglangDialectEngine

STARTUP_SECONDS = 300.0
"""It builds its model before it answers."""


def _serve(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    from rljob_workers.engines.torch_engine.server import serve

    serve(listener, settings.model, incarnation, threads=settings.threads)
    return 0


def _command(settings: EngineSettings, port: int) -> Fork:
    del port  # the launcher's socket has it
    return Fork(functools.partial(_serve, settings))


TORCH = EngineBackend(
    kind="Torch",
    command=_command,
    # Any answer will do: `/health` says that the process serves, whether it holds weights or not.
    ready=Ready("/health", lambda status: status > 0),
    startup_seconds=STARTUP_SECONDS,
    client=SglangDialectEngine,
)
