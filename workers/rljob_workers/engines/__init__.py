"""Engines: servers that generate, and the clients that drive them. The registry of backends.

The launcher starts the server of a backend, and a rank calls its client, known by `base` only. Torch-free, since the
launcher reads it before anything is forked: backends import their servers and their heavy clients lazily.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.spec import RLJobSpec
from rljob_workers.engines.backend import EngineBackend
from rljob_workers.engines.sglang.sglang_backend import SGLANG
from rljob_workers.engines.torch_engine.torch_backend import SIM, TORCH

BACKENDS: Mapping[str, EngineBackend] = {backend.kind: backend for backend in (TORCH, SGLANG, SIM)}


def backend_of(spec: RLJobSpec) -> EngineBackend:
    """The backend of a job's engines."""
    return BACKENDS[spec.roles.rollout.engine.kind]
