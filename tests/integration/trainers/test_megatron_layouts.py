"""Training by Megatron is training: the same steps as a plain transformers loop, in every layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from rljob_workers.models.blob import read_blob
from rljob_workers.tensors.jagged import Jagged
from tests.integration.trainers.plain_training import Trained, rows_of_step, train_plainly
from tests.integration.trainers.worlds import run_world
from tests.near import assert_moved_alike
from tests.unit.trainers.fsdp.tiny import save_described
from tests.unit.trainers.megatron.decoders import DECODERS

STEPS = 3
WEIGHTS_BOUND, RESULTS_BOUND, SCORES_BOUND = 5e-3, 1e-4, 1e-4


@dataclass(frozen=True)
class Layout:
    """How so many ranks share a model."""

    world: int
    parallelism: Mapping[str, int | bool] = field(default_factory=dict)
