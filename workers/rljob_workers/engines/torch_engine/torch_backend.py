"""The torch engine and the simulated one as backends: forked after the common imports, asked at `/health`.

Read by the table of backends. Both speak one dialect and have one client. Torch-free: the launcher imports it; servers
are imported in the child.
"""

from __future__ import annotations

import functools
import importlib
import socket
from pathlib import Path

from rljob_api.names import EngineKind
from rljob_workers.engines.backend import EngineBackend, EngineSettings, EngineSite, Fork, Ready
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient


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


_SERVER = "rljob_workers.engines.sim.server"


def _serve_simulated(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    from rljob_workers.engines.sim.server import serve

    serve(listener, settings.model, settings.simulation, incarnation)
    return 0


def _simulated_command(settings: EngineSettings, site: EngineSite) -> Fork:
    del site  # the launcher's socket has the port, and no device is used
    return Fork(functools.partial(_serve_simulated, settings))


def _simulated_client(url: str, identity: Path) -> TorchEngineClient:
    del identity  # its server says with each reply which life it is
    return TorchEngineClient(url)


def _preload() -> None:
    importlib.import_module(_SERVER)


SIM = EngineBackend(
    kind=EngineKind.SIM,
    command=_simulated_command,
    ready=Ready("/health", lambda status: status > 0),
    client=_simulated_client,
    preload=_preload,
)
