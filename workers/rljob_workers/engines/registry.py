"""The engine backends by kind. Read by the launcher, which starts servers, and by `build_engine`, for their clients."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.spec import RLJobSpec
from rljob_workers.engines.backend import EngineBackend
from rljob_workers.engines.sglang.backend import SGLANG
from rljob_workers.engines.sim.backend import SIM
from rljob_workers.engines.torch_engine.backend import TORCH

BACKENDS: Mapping[str, EngineBackend] = {backend.kind: backend for backend in (TORCH, SGLANG, SIM)}


def backend_of(spec: RLJobSpec) -> EngineBackend:
    """The backend of a job's engines."""
    return BACKENDS[spec.roles.rollout.engine.kind]
