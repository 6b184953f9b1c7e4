"""The torch engine as a backend: forked after the common imports, asked at `/health`, driven by `client`.

Read by the registry; imports nothing heavy, since a launcher lives without torch.
"""

from __future__ import annotations

import functools
import socket
from pathlib import Path

from rljob_api.engine_spec import EngineKind
from rljob_workers.engines.backend import EngineBackend, EngineSettings, EngineSite, Fork, Ready
from rljob_workers.engines.torch_engine.client import TorchEngineClient


def _serve(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    from rljob_workers.engines.torch_engine.server import serve

    serve(listener, settings.model, settings.head_dtype, incarnation, threads=settings.threads)
    return 0


def _command(settings: EngineSettings, site: EngineSite) -> Fork:
    del site  # the launcher's socket has the port, and the process sees its devices
    return Fork(functools.partial(_serve, settings))


def _client(url: str, identity: Path) -> TorchEngineClient:
    del identity  # its server says with each reply which life it is
    return TorchEngineClient(url)


TORCH = EngineBackend(
    kind=EngineKind.TORCH,
    command=_command,
    # Any answer will do: `/health` says that the process serves, whether it holds weights or not.
    ready=Ready("/health", lambda status: status > 0),
    client=_client,
)
