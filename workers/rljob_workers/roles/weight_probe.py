"""The probe: fixed tokens whose log-probs show that an engine has the weights that it says it has.

The actor's ranks make it with each version that they publish (`TrainerProbe`); a rollout rank has its engine score it
after each update (`difference`). A server answers `success` for names of tensors that it does not know, too.

Left out: the probe sees what changes these log-probs by more than the bound, and in bfloat16 an update of one small
step that was dropped does not; several do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rljob_api.spec import RLJobSpec, WeightVerification
from rljob_api.wire.weights import Probe
from rljob_workers.engines.base import EngineCapabilities
from rljob_workers.trainers.base import Trainer
from rljob_workers.transfer_queue.jagged import Jagged

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


def difference(found: Sequence[float], probe: Probe, bound: float) -> str | None:
    """How `found` differs from what the trainer says, in words; None where it does not. NaN differs."""
    if len(found) != len(probe.log_probs):
        return f"it scored {len(found)} tokens of {len(probe.log_probs)}"
    pairs = list(zip(found, probe.log_probs, strict=True))
    wrong = [abs(one - other) for one, other in pairs if not abs(one - other) <= bound * max(1.0, abs(other))]
    if not wrong:
        return None
    largest = max(wrong, key=lambda value: float("inf") if value != value else value)
    return f"{len(wrong)} of {len(pairs)} log-probs of the probe differ, by up to {largest:.2g}; {bound:g} is allowed"
