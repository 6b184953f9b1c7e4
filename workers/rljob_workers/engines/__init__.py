"""Engines: servers that generate, and the clients that drive them.

Rollout calls `build_engine` and knows `base` only; the launcher starts what `backend_of` gives. Torch-free, since the
launcher reads it before anything is forked: backends import their servers and their heavy clients lazily.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rljob_api.spec import RLJobSpec
from rljob_workers.engines.backend import EngineBackend
from rljob_workers.engines.base import (
    Engine,
    EngineAway,
    EngineCapabilities,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    FinishReason,
    Generation,
    Sample,
    SamplingParams,
    VersionSpan,
)
from rljob_workers.engines.sglang.sglang_backend import SGLANG
from rljob_workers.engines.torch_engine.torch_backend import SIM, TORCH

if TYPE_CHECKING:
    from rljob_workers.dcs.membership.rank_context import RankContext


BACKENDS: Mapping[str, EngineBackend] = {backend.kind: backend for backend in (TORCH, SGLANG, SIM)}


def backend_of(spec: RLJobSpec) -> EngineBackend:
    """The backend of a job's engines."""
    return BACKENDS[spec.roles.rollout.engine.kind]


__all__ = [
    "Engine",
    "EngineAway",
    "EngineCapabilities",
    "EngineError",
    "EngineGone",
    "EngineRefused",
    "EngineTimeout",
    "FinishReason",
    "Generation",
    "Sample",
    "SamplingParams",
    "VersionSpan",
    "backend_of",
    "build_engine",
]


def build_engine(context: RankContext) -> Engine:
    """The client of this pod's engine server. Sends nothing yet: the server may still be starting."""
    if context.engine_url is None or context.engine_identity is None:
        raise ValueError(f"{context.life.key}: this pod has no engine server; only rollout pods have one.")
    return backend_of(context.job.spec).client(context.engine_url, context.engine_identity)
