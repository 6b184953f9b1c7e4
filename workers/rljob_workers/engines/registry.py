"""The engine backends by kind. Read by the launcher, which starts servers, and by `build_engine`, for their clients."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.spec import RLJobSpec
from rljob_workers.engines.backend import EngineBackend
from rljob_workers.engines.torch_engine.backend import TORCH

BACKENDS: Mapping[str, EngineBackend] = {backend.kind: backend for backend in (TORCH,)}


def backend_of(spec: RLJobSpec) -> EngineBackend:  # noqa: ARG001 -- there is one kind, which no field has to name
    """The backend of a job's engines."""
    return BACKENDS[TORCH.kind]
