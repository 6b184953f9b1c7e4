"""The probe: fixed tokens whose log-probs show that an engine has the weights that it says it has.

The actor's ranks make it with each version that they publish (`TrainerProbe`); a rollout rank has its engine score it
after each update (`difference`). A server answers `success` for names of tensors that it does not know, too.

Left out: the probe sees what changes these log-probs by more than the bound, and in bfloat16 an update of one small
step that was dropped does not; several do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rljob_api.spec import RLJobSpec, WeightVerification
from rljob_api.wire.weights import Probe
from rljob_workers.engines.base import EngineCapabilities
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.trainers.base import Trainer

NUM_TOKENS = 64

BOUNDS = {"float32": 1e-4, "bfloat16": 5e-2}
"""By dtype of the model: the largest difference of a log-prob, beside its size where that is above 1. In float32
engines and trainers agree to 1e-5. bfloat16 has 8 bits, of logits and of every layer's output, which kernels round in
other places: a hundredth of a log-prob is common between two of them."""

_STRIDE, _FIRST = 7919, 11
"""A prime beyond what vocabularies have as a factor: tokens from all over the vocabulary, none twice in a large one."""


def is_published(verify: WeightVerification | None) -> bool:
    """Whether versions are published with a probe: the trainer does not know what engines can do."""
    return verify is not WeightVerification.NONE


def bound_of(spec: RLJobSpec, capabilities: EngineCapabilities) -> float | None:
    """The bound that an engine is held to; None where what it says is believed. ValueError for what it cannot do."""
    verify, kind = spec.weight_sync.verify, spec.roles.rollout.engine.kind.value
    if verify is WeightVerification.PROBE and not capabilities.scores:
        raise ValueError(
            f"weightSync.verify: Probe needs an engine that tells log-probs of given tokens, which {kind} does not. "
            "Set it to None."
        )
    return BOUNDS[spec.model.dtype] if is_published(verify) and capabilities.scores else None


def probe_tokens(vocabulary: int, positions: int) -> list[int]:
    """The same for every version of a model of `vocabulary` tokens: NUM_TOKENS, or half as many as it has positions.

    Servers let no prompt have all of them: SGLang keeps some for the output.
    """
    return [(_FIRST + place * _STRIDE) % vocabulary for place in range(min(NUM_TOKENS, positions // 2))]


class TrainerProbe:
    """The trainer's side. A collective, as all that computes with a trainer: every rank calls it."""

    def __init__(self, trainer: Trainer, tokens: Sequence[int]) -> None:
        self._trainer = trainer
        self._tokens = list(tokens)

    def __call__(self) -> Probe | None:
        """What the weights of now say of the tokens; None where that is not finite, so that nothing can be compared.

        What such weights lead to is told by whoever cannot go on with them: an engine refuses them by name.
        """
        row = Jagged.from_rows([torch.tensor(self._tokens, dtype=torch.int32)])
        lengths = torch.tensor([len(self._tokens) - 1])
        found = self._trainer.log_probs(row, lengths, 1.0, num_micro_batches=1)
        if not found.values.isfinite().all():
            return None
        return Probe(tokens=self._tokens, log_probs=found.values.tolist())


@dataclass(frozen=True, slots=True)
class Difference:
    """Log-probs that an engine told of a probe's tokens, and that are not the trainer's."""

    found: tuple[float, ...]
    probe: Probe
    bound: float

    def __str__(self) -> str:
        """How far."""
        if len(self.found) != len(self.probe.log_probs):
            return f"it scored {len(self.found)} tokens of {len(self.probe.log_probs)}"
        return (
            f"{len(self._wrong)} of {len(self.found)} log-probs of the probe differ, by up to "
            f"{self._far(self._worst):.2g}; {self.bound:g} is allowed"
        )

    @property
    def where(self) -> str:
        """On which tokens."""
        if len(self.found) != len(self.probe.log_probs):
            return str(self)
        said = f"the first that differs is {self._token(self._wrong[0])}"
        is_first = self._worst == self._wrong[0]
        return said if is_first else f"{said}, and the one that differs most {self._token(self._worst)}"

    def repeats(self, earlier: Difference) -> bool:
        """Whether the engine has told the same log-probs before."""
        return not _differing(self.found, earlier.found, self.bound) and len(self.found) == len(earlier.found)

    @property
    def _wrong(self) -> list[int]:
        return _differing(self.found, self.probe.log_probs, self.bound)

    @property
    def _worst(self) -> int:
        return max(self._wrong, key=lambda place: far if (far := self._far(place)) == far else float("inf"))

    def _far(self, place: int) -> float:
        return abs(self.found[place] - self.probe.log_probs[place])

    def _token(self, place: int) -> str:
        return (
            f"token {place + 2} of {len(self.probe.tokens)} (id {self.probe.tokens[place + 1]}: the engine says "
            f"{self.found[place]:.4f}, the trainer {self.probe.log_probs[place]:.4f})"
        )


def difference(found: Sequence[float], probe: Probe, bound: float) -> Difference | None:
    """How `found` differs from what the trainer says; None where it does not. NaN differs."""
    is_right = len(found) == len(probe.log_probs) and not _differing(found, probe.log_probs, bound)
    return None if is_right else Difference(tuple(found), probe, bound)


def _differing(found: Sequence[float], others: Sequence[float], bound: float) -> list[int]:
    """Places of the log-probs that differ."""
    pairs = enumerate(zip(found, others, strict=False))
    return [place for place, (one, other) in pairs if not abs(one - other) <= bound * max(1.0, abs(other))]
