"""Engines: servers that generate, and the clients that drive them.

Rollout calls `build_engine` and knows `base` only; the launcher starts what `backend_of` gives. Torch-free, since the
launcher reads it before anything is forked: backends import their servers and their heavy clients lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_api.spec import RLJobSpec
from rljob_workers.engines import incarnation
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
    "await_engine",
    "build_engine",
    "end_engine",
    "startup_seconds",
]


EXTRA_SECONDS = 60.0
"""Beyond the limit of a start, so that its launcher names a server that does not come up, and not its rank."""


def await_engine(context: RankContext, goes_on: Callable[[], bool]) -> bool:
    """Blocks until this rank's engine is up, for as long as its start may take; False: nobody waits any more."""
    url, identity = _whereabouts(context)
    seconds = startup_seconds(context)
    return incarnation.await_engine(url, backend_of(context.job.spec).ready, identity, seconds=seconds, goes_on=goes_on)


def startup_seconds(context: RankContext) -> float:
    """How long a rank waits for its engine."""
    return context.job.spec.roles.rollout.engine.startup_seconds + EXTRA_SECONDS


def build_engine(context: RankContext) -> Engine:
    """The client of this pod's engine server. Sends nothing yet: the server may still be starting."""
    return backend_of(context.job.spec).client(*_whereabouts(context))


def end_engine(context: RankContext, why: str) -> str | None:
    """Ends the life of this rank's engine, whose launcher starts the next; its incarnation, None where it has ended."""
    _, identity = _whereabouts(context)
    return incarnation.end_engine(identity, why)


def _whereabouts(context: RankContext) -> tuple[str, Path]:
    if context.engine_url is None or context.engine_identity is None:
        raise ValueError(f"{context.life.key}: this pod has no engine server; only rollout pods have one.")
    return context.engine_url, context.engine_identity
