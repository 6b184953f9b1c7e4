"""What is refused of configs and weight files, and with which sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from rljob_api.model_files.decoder_config import read_config
from rljob_workers.engines.torch_engine.decoder import fuse_weights, geometry_of, read_weights
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from tests.unit.engines.tiny_models import FIRST, hf_log_probs, make_batch, make_group, make_model, outputs, run
from tests.unit.models.peer import config_of

MODEL = make_model("qwen3")
GEOMETRY = geometry_of(config_of(MODEL), torch.float32)
STATE = {name: tensor.clone() for name, tensor in MODEL.state_dict().items() if name != "lm_head.weight"}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        pytest.param(
            LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
            "rope_type: 'linear' is not computed by the torch engine, only 'default'",
            id="scaled rope",
        ),
        pytest.param(LlamaConfig(attention_bias=True), "attention_bias: true is not computed", id="attention bias"),
        pytest.param(LlamaConfig(mlp_bias=True), "mlp_bias: true is not computed", id="mlp bias"),
        pytest.param(Qwen3Config(hidden_act="gelu"), "hidden_act: 'gelu' is not computed", id="another activation"),
    ],
)
def test_configs_that_would_be_computed_wrongly_are_refused(config: PretrainedConfig, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        geometry_of(read_config(config.to_dict()), torch.float32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param({"model.norm.weight": None}, r"model\.norm\.weight is missing", id="a tensor is missing"),
        pytest.param(
            {"model.norm.weight": torch.ones(3)},
            r"model\.norm\.weight has shape \(3,\), but the model needs \(32,\)",
            id="a tensor of another shape",
        ),
        pytest.param(
            {"model.layers.2.mlp.up_proj.weight": torch.ones(1)},
            r"model\.layers\.2\.mlp\.up_proj\.weight \(and 0 more\) is no tensor of this model",
            id="a tensor too many",
        ),
    ],
)
def test_weights_of_another_model_are_refused(change: dict[str, torch.Tensor | None], sentence: str) -> None:
    tensors = {name: tensor for name, tensor in (STATE | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=sentence):
        fuse_weights(tensors, GEOMETRY)


def test_a_tied_head_may_be_in_the_file() -> None:
    fuse_weights(STATE | {"lm_head.weight": STATE["model.embed_tokens.weight"].clone()}, GEOMETRY)


def test_a_folder_of_several_files_is_read_whole(tmp_path: Path) -> None:
    names = sorted(STATE)
    save_file({name: STATE[name] for name in names[::2]}, tmp_path / "model-1.safetensors")
    save_file({name: STATE[name] for name in names[1::2]}, tmp_path / "model-2.safetensors")
    found = read_weights(tmp_path, GEOMETRY)
    assert torch.equal(found.embedding, STATE["model.embed_tokens.weight"])


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\xff" * 100], ids=["no file", "empty", "text", "bytes"])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model_path: .*safetensors"):
        read_weights(path, GEOMETRY)


def test_bfloat16_stays_close_to_hugging_face() -> None:
    geometry = geometry_of(config_of(MODEL), torch.bfloat16)
    scheduler = Scheduler(geometry, Limits())
    scheduler.install(fuse_weights(STATE, geometry), FIRST)
    batch = make_batch(make_group([1, 2, 3], num_samples=2), make_group([4], num_samples=2))
    run(scheduler, batch)
    for row, tokens in enumerate(outputs(batch)):
        prompt = batch.groups[row // 2].prompt
        expected = hf_log_probs(MODEL, prompt, tokens)
        assert torch.allclose(torch.from_numpy(batch.log_probs[row, : len(tokens)]), expected, atol=0.3, rtol=0.05)
