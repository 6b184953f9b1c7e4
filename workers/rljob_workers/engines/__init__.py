"""Engines: servers that generate, and the client that drives them over one HTTP dialect.

Roles call `build_engine` and know the base only; the launcher starts what a backend of the `registry` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_workers.engines.base import Engine, Generation, Sample, SamplingParams, VersionSpan
from rljob_workers.engines.errors import EngineError, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.engines.registry import backend_of

if TYPE_CHECKING:
    from rljob_workers.dcs.context import RankContext

__all__ = [
    "Engine",
    "EngineError",
    "EngineGone",
    "EngineRefused",
    "EngineTimeout",
    "Generation",
    "Sample",
    "SamplingParams",
    "VersionSpan",
    "build_engine",
]


def build_engine(context: RankContext) -> Engine:
    """The client of this pod's engine server. Sends nothing yet: the server may still be starting."""
    if context.engine_url is None:
        raise ValueError(f"{context.life.key}: this pod has no engine server; only rollout pods have one.")
    return backend_of(context.job.spec).client(context.engine_url)
