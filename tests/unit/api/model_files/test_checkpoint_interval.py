"""Model sizes by formula and by files, and the checkpoints that fit them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rljob_api.model_files.size import (
    MOST_STEPS,
    checkpoint_bytes,
    checkpoint_interval,
    fitting_interval,
    num_parameters,
    parameters_of_config,
)
from rljob_api.spec import RLJob
from rljob_api.spec.model import Dtype, ModelConfig, ModelSpec
from rljob_workers.models.building import initial_state
from rljob_workers.models.tokenizers import build_tokenizer
from tests.unit.api.manifests import changed


@pytest.mark.parametrize(
    ("parameters", "dtype", "expected"),
    [
        pytest.param(100_000, Dtype.FLOAT32, 1, id="the examples: every step"),
        pytest.param(428_000_000, Dtype.BFLOAT16, 1, id="the largest that is saved at every step"),
        pytest.param(429_000_000, Dtype.BFLOAT16, 2, id="one that is larger"),
        pytest.param(600_000_000, Dtype.BFLOAT16, 2, id="0.6B"),
        pytest.param(4_000_000_000, Dtype.BFLOAT16, 10, id="4B"),
        pytest.param(4_000_000_000, Dtype.FLOAT32, 8, id="4B in float32, which needs no second copy"),
        pytest.param(70_000_000_000, Dtype.BFLOAT16, MOST_STEPS, id="70B: the bound"),
    ],
)
def test_the_interval_fits_the_model(parameters: int, dtype: Dtype, expected: int) -> None:
    assert fitting_interval(parameters, dtype) == expected


@given(parameters=st.integers(1, 10**12), dtype=st.sampled_from(Dtype))
def test_a_step_pays_for_at_most_6_gb_as_long_as_the_bound_allows(parameters: int, dtype: Dtype) -> None:
    steps = fitting_interval(parameters, dtype)
    assert 1 <= steps <= MOST_STEPS
    assert steps == MOST_STEPS or checkpoint_bytes(parameters, dtype) <= steps * 6e9
    assert steps == 1 or checkpoint_bytes(parameters, dtype) > (steps - 1) * 6e9


def make_model(**config: object) -> ModelSpec:
    return ModelSpec(config=ModelConfig.model_validate({"hiddenSize": 32, "intermediateSize": 48, **config}))


@pytest.mark.parametrize("architecture", ["Qwen3", "Llama"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [None, 300])
def test_formula_and_files_count_what_is_built(
    tmp_path: Path, architecture: str, tied: bool, vocabulary: int | None
) -> None:
    model = make_model(architecture=architecture, tieWordEmbeddings=tied, vocabSize=vocabulary)
    state = initial_state(model, build_tokenizer(model))
    assert model.config is not None
    assert parameters_of_config(model.config) == sum(weight.numel() for weight in state.values())
    names = list(state)
    for part in range(2):  # as large models are saved
        save_file({name: state[name].contiguous() for name in names[part::2]}, tmp_path / f"model-{part}.safetensors")
    assert num_parameters(ModelSpec(path=str(tmp_path))) == num_parameters(model)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(64)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:20])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole safetensors file .*Copy it again\.$"):
        num_parameters(ModelSpec(path=str(tmp_path)))
    with pytest.raises(ValueError, match=r"has no safetensors weights"):
        num_parameters(ModelSpec(path=str(tmp_path / "elsewhere")))


def test_what_the_job_states_holds() -> None:
    for given_steps, expected in ((None, 1), (7, 7)):
        job = RLJob.model_validate(changed({"spec.checkpoint": {"everySteps": given_steps}}))
        assert checkpoint_interval(job.spec) == expected
