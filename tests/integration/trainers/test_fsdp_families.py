"""Sharded over 1, 2 and 4 ranks every family gives what plain transformers gives on all rows: log-probs, gradients.

The table that this is the check of is `rljob_api.model_files.families`; a few of the others, padded, beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_workers.models.blob import read_blob
from tests.integration.trainers.family_ranks import ROWS, TEMPERATURE
from tests.integration.trainers.worlds import run_world
from tests.near import assert_near
from tests.unit.trainers.fsdp.tiny import MODELS, OTHERS, make_tokens, row_by_row, save_model

BOUNDS = {"float64": (1e-12, 1e-12), "float32": (1e-5, 5e-5), "bfloat16": (0.05, 0.35)}
"""Of log-probs and of gradients, of the largest element. Measured: float64 up to 1e-15, float32 up to 6e-7 and 4e-6,
bfloat16 up to 0.017 and 0.22 (of models whose weights are ten times as large as usual)."""
PARTLY_FLOAT32 = {"gemma2": (1e-6, 1e-5), "gemma3_text": (1e-6, 1e-5)}
"""In float64, too: transformers' eager softmax, by which Gemma 2 is measured, and Gemma's norms."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The models' folders, and of each family log-probs and gradients by stored name, in float64."""
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    folder = tmp_path_factory.mktemp("families")
    tokens, responses = make_tokens(rows=ROWS)
    found = {}
    for name in (*MODELS, *OTHERS):
        model = AutoModelForCausalLM.from_pretrained(
            save_model(name, folder / name),
            dtype=torch.float64,
            # Kernels neither cap scores nor have sinks.
            attn_implementation="eager" if name == "gemma2" or name in OTHERS else "sdpa",
            experts_implementation="eager",
        )
        log_probs = row_by_row(model, tokens, responses, TEMPERATURE)
        weights = torch.cat([torch.linspace(-1, 1, int(length)) + row / ROWS for row, length in enumerate(responses)])
        torch.autograd.backward(log_probs @ weights.double())
        gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
        found[name] = (log_probs.detach(), revert_weight_conversion(model, gradients))
    return folder, found


WORLDS = [
    (1, "float64", "packed"),
    pytest.param(4, "float64", "packed", marks=pytest.mark.long),
    (2, "float32", "packed"),
    (2, "bfloat16", "packed"),
    (2, "float32", "padded"),
]
"""Padded: a family that is not in the table, by its own forward pass."""


@pytest.mark.parametrize(("world", "precision", "layout"), WORLDS)
def test_any_world_gives_what_plain_transformers_gives(
    world: int, precision: str, layout: str, expected: tuple[Path, dict[str, Any]]
) -> None:
    folder, families = expected
    _, responses = make_tokens(rows=ROWS)
    work = folder / f"{precision}-{world}-{layout}"
    run_world("tests.integration.trainers.family_ranks", world=world, folder=work, arguments=[precision, layout])
    for name in MODELS if layout == "packed" else OTHERS:
        log_probs, gradients = families[name]
        forward, backward = PARTLY_FLOAT32.get(name, BOUNDS[precision]) if precision == "float64" else BOUNDS[precision]
        ranks = [read_blob(work / f"{name}-{rank}.safetensors") for rank in range(world)]
        by_row = dict(zip(range(ROWS), torch.split(log_probs, responses.tolist()), strict=True))
        for rank in ranks:
            wanted = [by_row[row] for row in rank["rows"].tolist()]
            if wanted:
                assert_near(rank["log_probs"], torch.cat(wanted), forward, f"{name}: log-probs")
        for stored, gradient in gradients.items():
            parts = sorted(
                (int(key.rpartition("@")[2]), part)
                for rank in ranks
                for key, part in rank.items()
                if key.rpartition("@")[0] == stored
            )
            assert_near(torch.cat([part for _, part in parts]), gradient, backward, f"{name}: {stored}")
