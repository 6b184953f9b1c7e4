"""The simulated engine's server: speaks the torch engine's dialect, draws tokens by hashing and spends time instead.

`serve` is called by the launcher in a forked child and returns at SIGTERM.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rljob_api.spec.model import ModelSpec
from rljob_api.spec.simulation import SimulatedLengths, SimulationSpec
from rljob_workers.engines.torch_engine.continuous_batching import ContinuousBatching, Room
from rljob_workers.engines.torch_engine.dialect import ServedModel
from rljob_workers.engines.torch_engine.scheduler import Limits
from rljob_workers.engines.torch_engine.server import serve_scheduler
from rljob_workers.models.building import described_config
from rljob_workers.models.ends import ends_of_model
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.simulation.pace import SimulatedPace
from rljob_workers.simulation.policy import (
    Ints,
    SamplingChoice,
    Uints,
    drawn,
    fingerprint,
    log_probs,
    places,
    read_simulated,
    response_lengths,
    seeded_chance,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rljob_workers.engines.torch_engine.slots import Admission, Drawn, Moves


@dataclass(frozen=True, slots=True)
class Ends:
    """Ends each sample with `token` at its own length, and nowhere before."""

    lengths: SimulatedLengths
    token: int

    def of(self, tokens: Ints, seeds: Uints, num_drawn: Ints) -> Ints:
        """What was drawn [slots] behind `num_drawn` tokens of each sample, with the end where it is due."""
        is_last = num_drawn + 1 >= response_lengths(seeds, self.lengths.mean, self.lengths.sigma)
        other = np.where(tokens == self.token, self.token - 1 if self.token else 1, tokens)
        return np.where(is_last, self.token, other)


class SimScheduler(ContinuousBatching[Uints]):
    """The samples that would run."""

    def __init__(self, room: Room, pace: SimulatedPace, ends: Ends | None = None) -> None:
        """Starts without weights. `ends` None: samples end as the policy has it."""
        super().__init__(room)
        self._pace = pace
        self._ends = ends

    def drop_cache(self) -> None:
        """There is none."""

    def _read_weights(self, path: Path) -> Uints:
        return read_simulated(path)

    def _score(self, weights: Uints, tokens: Sequence[int]) -> list[float]:
        row = np.array(tokens, dtype=np.int64)
        at = places(fingerprint(weights), row[:-1], np.arange(len(row) - 1), self._room.vocab_size)
        found: list[float] = log_probs(at, row[1:], np.ones(len(row) - 1)).tolist()
        return found

    def _prefill(self, admitted: list[Admission], start: int) -> Drawn:
        self._pace.spend(rows=sum(one.count for one in admitted))
        return self._draw(start)

    def _decode(self) -> Drawn:
        self._pace.spend(tokens=1)
        return self._draw(0)

    def _recompute(self) -> None:
        self._pace.spend(rows=self._slots.count)
        self._is_stale = False

    def _draw(self, start: int) -> Drawn:
        assert self._weights is not None, "samples only run while weights are held"
        columns = self._slots.sampling(start)
        num_drawn = self._slots.num_drawn[start:]
        # A slot's length is that of its prompt throughout: its last token stands behind what it drew.
        positions = self._slots.length[start:] + num_drawn - 1
        before = self._slots.last_token[start:]
        at = places(fingerprint(self._weights), before, positions, self._room.vocab_size)
        temperature, top_p, min_p = (
            column.astype(np.float64) for column in (columns.temperature, columns.top_p, columns.min_p)
        )
        chance = seeded_chance(columns.seed, num_drawn)
        tokens = drawn(at, SamplingChoice(temperature, top_p, columns.top_k, min_p, chance))
        if self._ends is not None:
            tokens = self._ends.of(tokens, columns.seed, num_drawn)
        found = log_probs(at, tokens, np.where(temperature == 0, 1.0, temperature))
        return tokens, found.astype(np.float32)

    def _move_cache(self, moves: Moves) -> None:
        """There is none."""


def serve(listener: socket.socket, model: ModelSpec, simulation: SimulationSpec | None, incarnation: str) -> None:
    """Serves a policy of the model's vocabulary and positions on the listening socket."""
    tokenizer = build_tokenizer(model)
    described = described_config(model, tokenizer)
    served = ServedModel(
        name="simulated",
        vocab_size=described["vocab_size"],
        max_positions=described["max_position_embeddings"],
        dtype=model.dtype.value,
        tokenizer=tokenizer,
        eos_token_ids=ends_of_model(model, tokenizer),
    )
    settings = simulation or SimulationSpec()
    slots = settings.slots or Limits().max_running_samples
    room = Room(served.vocab_size, served.max_positions, slots, max_cells=sys.maxsize)
    ends = None if settings.lengths is None else Ends(settings.lengths, tokenizer.eos_token_id)
    scheduler = SimScheduler(room, SimulatedPace(settings.generation, settings.speed), ends)
    serve_scheduler(listener, scheduler, served, incarnation)
