"""Every family of the table: packed rows give what transformers gives row by row, values and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.model_files.families import FAMILIES
from rljob_workers.models.building import model_config
from rljob_workers.trainers.fsdp.inputs import joined_inputs, padded_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole, score
from rljob_workers.trainers.fsdp.stored_tensors import load_folder
from tests.near import assert_near
from tests.unit.trainers.fsdp.tiny import MODELS, described, make_tokens, row_by_row, save_model

TEMPERATURE = 1.3
CPU = torch.device("cpu")
FLOAT32_FORWARD, FLOAT32_BACKWARD = 1e-5, 5e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(params=sorted(MODELS))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )


def test_the_table_is_what_is_tested() -> None:
    assert {model["model_type"] for model in MODELS.values()} == set(FAMILIES)


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_rows_do_not_see_each_other(family: str, packing: bool, folders: Path) -> None:
    folder = folders / family
    if not folder.exists():
        save_model(family, folder)
    tokens, responses = make_tokens()
    # Activations are computed again in one of both ways: that must change nothing, whatever the layout.
    options = ModelOptions(torch.float32, torch.float32, packing=packing, activation_checkpointing=packing)
    own = build_whole(model_config(described(family)), options)
    load_folder(own, folder)
    inputs = (joined_inputs if packing else padded_inputs)(tokens, responses, CPU)
    found, _ = score(own, inputs, TEMPERATURE)
    other = plain(folder, torch.float64)
    expected = row_by_row(other, tokens, responses, TEMPERATURE)
    assert_near(found, expected, FLOAT32_FORWARD, "log-probs")
    weights = torch.linspace(-1, 1, len(found))
    torch.autograd.backward(found @ weights)
    torch.autograd.backward(expected @ weights.double())
    gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
    for name, parameter in own.named_parameters():
        assert parameter.grad is not None, name
        assert_near(parameter.grad, gradients[name], FLOAT32_BACKWARD, name)
