"""What a rollout needs of an inference engine. Roles know engines by this base only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.wire.identity import WeightId


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one prompt is sampled: `num_samples` samples, the i-th drawn with seed `seed + i`.

    A sample's tokens depend on weights, prompt, these parameters and its own seed only, never on the batch it ran in.
    """

    temperature: float
    top_p: float
    top_k: int
    """0 means all tokens."""
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    num_samples: int
    seed: int


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) of the output were made under `weight`."""

    weight: WeightId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One generated sequence."""

    output_ids: list[int]
    log_probs: list[float]
    """Of the sampling distribution's logits at temperature (before top-p/top-k), one per output token."""
    finish_reason: str
    """stop | length | abort"""
    spans: tuple[VersionSpan, ...]
    """In order, without gaps. Without spans from the engine: one span, oldest = held before sending."""


@dataclass(frozen=True, slots=True)
class Generation:
    """All samples of one prompt."""

    samples: tuple[Sample, ...]


class Engine(ABC):
    """Client of one engine server. Thread-safe: generation and a weight update may overlap."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, deadline: float
    ) -> list[Generation]:
        """Generates for a batch of prompts; blocks until all are done.

        Raises EngineGone (the server died or was replaced: nothing of it counts), EngineTimeout (deadline, monotonic
        seconds), EngineRefused (no weights loaded yet).
        """

    @abstractmethod
    def update_weights(self, blob: Path, weight: WeightId, *, deadline: float) -> None:
        """Pause (interruption), load a folder of safetensors files (or one file), continue.

        On any error the server stays without weights.
        """

    @abstractmethod
    def held(self) -> WeightId | None:
        """What the server holds now; None before the first full load or after an update that was cut off."""

    @abstractmethod
    def max_tokens(self) -> int:
        """Positions of the model: prompt and output together."""

    @abstractmethod
    def abort_all(self) -> None:
        """Aborts every request and drops the cache (a restart of the rank or of the job)."""
