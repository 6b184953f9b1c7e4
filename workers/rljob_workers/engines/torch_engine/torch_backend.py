"""The torch engine and the simulated one as backends: forked after the common imports, asked at `/health`.

Read by the table of backends. Both speak one dialect and have one client. Torch-free: the launcher imports it; servers
are imported in the child.
"""

from __future__ import annotations

import functools
import importlib
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rljob_api.names import EngineKind
from rljob_api.spec import RLJobSpec
from rljob_workers.engines.backend import EngineBackend, EngineSettings, EngineSite, Fork, Ready
from rljob_workers.engines.base import Event, SamplingParams, Shown
from rljob_workers.engines.one_by_one import merged, singles
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient


def _serve(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    from rljob_workers.engines.torch_engine.server import serve

    serve(listener, settings.model, settings.head_dtype, incarnation, threads=settings.threads)
    return 0


def _serve_simulated(settings: EngineSettings, listener: socket.socket, incarnation: str) -> int:
    from rljob_workers.engines.sim.server import serve

    serve(listener, settings.model, settings.simulation, incarnation)
    return 0


def _client(url: str, identity: Path, spec: RLJobSpec) -> TorchEngineClient:
    del identity  # its server names its incarnation in each reply
    one_by_one = spec.simulation is not None and spec.simulation.slots is not None
    return OneByOne(url) if one_by_one else TorchEngineClient(url)


class OneByOne(TorchEngineClient):
    """Of a simulated server with slots: a sample that has ended leaves its slot to another at once.

    Half a second, as with requests of many samples, is long where a simulated minute takes two seconds.
    """

    prompts_per_request: ClassVar[int | None] = 1

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        """See `Engine.generate`."""
        ask = super().generate
        return merged(ask([prompt], [one], shown) for prompt, one in singles(prompts, params))


def _backend(
    kind: EngineKind,
    serve: Callable[[EngineSettings, socket.socket, str], int],
    server: str,
) -> EngineBackend:
    def command(settings: EngineSettings, site: EngineSite) -> Fork:
        del site  # the launcher's socket has the port, and the process sees its devices, if it uses any
        return Fork(functools.partial(serve, settings))

    return EngineBackend(
        kind=kind,
        command=command,
        # Any answer will do: `/health` answers once the process serves, with weights or without.
        ready=Ready("/health", lambda status: status > 0),
        client=_client,
        preload=functools.partial(_import, server),
    )


def _import(server: str) -> None:
    importlib.import_module("uvicorn.loops.uvloop")  # which uvicorn itself imports when it serves
    importlib.import_module(server)


TORCH = _backend(EngineKind.TORCH, _serve, "rljob_workers.engines.torch_engine.server")


SIM = _backend(EngineKind.SIM, _serve_simulated, "rljob_workers.engines.sim.server")
