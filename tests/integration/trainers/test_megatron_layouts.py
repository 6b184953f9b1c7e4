"""Training by Megatron is training: the same steps as a plain transformers loop, in every layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STEPS = 3
WEIGHTS_BOUND, RESULTS_BOUND, SCORES_BOUND = 5e-3, 1e-4, 1e-4


@dataclass(frozen=True)
class Layout:
    """How so many ranks share a model."""

    world: int
    parallelism: Mapping[str, int | bool] = field(default_factory=dict)
