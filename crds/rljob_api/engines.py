"""Traits of each kind of engine, as one table: all that can be known of a kind without its server and its client.

Pure. Other code reads a trait instead of comparing kinds. A kind is named here and in its own folder of
`rljob_workers.engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rljob_api.names import EngineKind

_WITHOUT_WINDOW = frozenset(("mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2"))


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """A row of the table."""

    computes: bool = True
    """Whether there is a model at all."""
    scores: bool = True
    """Computes the log-probs of given tokens."""
    startup_seconds: int = 300
    """For a server to answer after its start, where the job does not say."""
    compiles: bool = False
    """May take minutes to start."""
    module: str = ""
    """The package of the server, a program with flags, an interpreter and devices of its own (`args`, `python`,
    `tensorParallel`); empty: it is a part of RLJob and has none of them."""
    memory_flag: str = ""
    """The flag without which a server takes nearly all memory of its devices; empty: it takes what it needs."""
    sampling_flag: str = ""
    """The flag that adds to each request what it does not say; empty: there is none."""
    length_flag: str = ""
    """The flag with the longest sequence; empty: that of the model."""
    stretches_positions: bool = False
    """Takes sequences longer than the positions of the model, by the factor of its rotary embedding."""
    without_window: frozenset[str] = frozenset()
    """Families whose sliding window, where their config has one, is left out."""
    plain_decoder_only: bool = False
    """Computes the plain decoder alone, and no other family."""
    loads_in_place: bool = False
    """Writes the next weights into the last, whose head is not widened; else both are there at once."""


ENGINES: Mapping[EngineKind, EngineTraits] = {
    EngineKind.TORCH: EngineTraits(plain_decoder_only=True),
    EngineKind.SGLANG: EngineTraits(
        startup_seconds=1800,
        compiles=True,
        module="sglang",
        memory_flag="mem-fraction-static",
        sampling_flag="--preferred-sampling-params",
        length_flag="--context-length",
        stretches_positions=True,
        without_window=_WITHOUT_WINDOW,
        loads_in_place=True,
    ),
    EngineKind.SIM: EngineTraits(computes=False),
}


def _only(holds: Callable[[EngineTraits], bool]) -> EngineKind:
    (kind,) = (kind for kind, traits in ENGINES.items() if holds(traits))
    return kind


DEFAULT_ENGINE = EngineKind.TORCH
"""Without GPUs."""


PROGRAM_ENGINE = _only(lambda traits: bool(traits.module))
"""The default where rollouts have GPUs."""


SIMULATED_ENGINE = _only(lambda traits: not traits.computes)
