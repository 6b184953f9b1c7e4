"""The simulated engine as a backend: forked and asked as the torch engine is, and driven by the same client.

Read by the registry; imports nothing heavy, since a launcher lives without torch.
"""

from __future__ import annotations

import functools
import importlib
import socket
from pathlib import Path

from rljob_api.engine_spec import EngineKind
from rljob_workers.engines.backend import EngineBackend, EngineSettings, EngineSite, Fork, Ready
from rljob_workers.engines.torch_engine.client import TorchEngineClient

_SERVER = "rljob_workers.engines.sim.server"


def _serve(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    from rljob_workers.engines.sim.server import serve

    serve(listener, settings.model, settings.simulation, incarnation)
    return 0


def _command(settings: EngineSettings, site: EngineSite) -> Fork:
    del site  # the launcher's socket has the port, and no device is used
    return Fork(functools.partial(_serve, settings))


def _client(url: str, identity: Path) -> TorchEngineClient:
    del identity  # its server says with each reply which life it is
    return TorchEngineClient(url)


def _preload() -> None:
    importlib.import_module(_SERVER)


SIM = EngineBackend(
    kind=EngineKind.SIM,
    command=_command,
    ready=Ready("/health", lambda status: status > 0),
    client=_client,
    preload=_preload,
)
