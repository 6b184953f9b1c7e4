"""Weights into models: from every kind of folder, all or nothing, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rljob_workers.algorithms.objective import Output
from rljob_workers.models.blob import part_file, read_weights, write_blob
from rljob_workers.models.building import model_config
from rljob_workers.models.weights import Folder
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, build_whole
from rljob_workers.trainers.fsdp.sharded_trainer import FsdpScoring
from rljob_workers.trainers.fsdp.stored_tensors import load_folder, load_weights, own_parts, weight_shapes
from rljob_workers.trainers.micro_batches import MicroBatchLimits
from rljob_workers.trainers.model_trainer import ModelForward
from tests.near import assert_near
from tests.unit.trainers.fsdp.tiny import OTHERS, described, make_tokens, row_by_row, save_model

FLOAT32 = ModelOptions(torch.float32, torch.float32)
PADDED = ModelOptions(torch.float32, torch.float32, packing=False)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", *OTHERS])
def test_the_model_has_the_stored_tensors_under_their_names(family: str, tmp_path: Path) -> None:
    stored = read_weights(save_model(family, tmp_path))
    model = build_whole(model_config(described(family)), PADDED)
    assert weight_shapes(model) == {name: tuple(tensor.shape) for name, tensor in stored.items()}
    load_folder(model, tmp_path)
    held = {part.name: part.values for part in own_parts(model)}
    assert held.keys() == stored.keys()
    assert all(torch.equal(held[name], tensor) for name, tensor in stored.items())


def test_a_folder_of_parts_and_a_tied_head_in_it_are_taken(tmp_path: Path) -> None:
    """As a receiver of weights builds it; the index of a folder is not asked."""
    stored = read_weights(save_model("qwen3", tmp_path / "whole"))
    names = sorted(stored)
    parts = tmp_path / "parts"
    parts.mkdir()
    head = {"lm_head.weight": stored["model.embed_tokens.weight"].clone()}
    write_blob(parts / part_file(0, 2), {name: stored[name] for name in names[::2]} | head)
    write_blob(parts / part_file(1, 2), {name: stored[name] for name in names[1::2]})
    model = build_whole(model_config(described("qwen3")), FLOAT32)
    load_folder(model, parts)
    held = {part.name: part.values for part in own_parts(model)}
    assert all(torch.equal(held[name], tensor) for name, tensor in stored.items())


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    stored = read_weights(save_model("qwen3_moe", tmp_path))
    model = build_whole(model_config(described("qwen3_moe")), FLOAT32)
    load_folder(model, tmp_path)
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    doubled = {key: 2 * tensor for key, tensor in stored.items()}
    cases = {
        r"tensor .*experts\.3\.down_proj\.weight is absent there, but of shape \[32, 12\]": {
            key: tensor for key, tensor in doubled.items() if key != name
        },
        r"tensor .*experts\.3\.down_proj\.weight is of shape \[12, 32\] there, but of shape \[32, 12\]": {
            **doubled,
            name: torch.zeros(12, 32),
        },
        r"tensor model\.bias is of shape \[2\] there, but absent in the model": {
            **doubled,
            "model.bias": torch.zeros(2),
        },
    }
    for sentence, tensors in cases.items():
        with pytest.raises(ValueError, match=rf"^model: the weights in a folder do not fit: {sentence}"):
            load_weights(model, tensors, source="the weights in a folder")
    held = {part.name: part.values for part in own_parts(model)}
    assert all(torch.equal(held[key], tensor) for key, tensor in stored.items())


def test_a_forward_model_scores_in_micro_batches_what_transformers_scores_row_by_row(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    save_model("gemma3_text", tmp_path)
    tokens, responses = make_tokens(rows=9)
    whole = build_whole(model_config(described("gemma3_text")), FLOAT32)
    model = ModelForward(FsdpScoring(whole, packing=True), MicroBatchLimits(rows=4, tokens=40))
    model.load(Folder(tmp_path))
    turns: list[None] = []
    found = model.score(tokens, responses, Output.LOG_PROBS, 0.8, lambda: turns.append(None))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    with torch.no_grad():
        expected = row_by_row(plain, tokens, responses, 0.8)
    assert_near(found.values, expected, 1e-5, "log-probs")
    assert found.lengths.tolist() == responses.tolist()
    assert len(turns) > 2


REFUSED = [
    pytest.param(
        "qwen4_unheard_of", {}, r"model_type 'qwen4_unheard_of', which this version .* does not know", id="new"
    ),
    pytest.param(
        "vit", {}, r"model_type 'vit', of which transformers has no causal language model", id="no language model"
    ),
    pytest.param(
        "gemma3_text", {"use_bidirectional_attention": True}, r"has use_bidirectional_attention", id="both ways"
    ),
    pytest.param(
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        r"the rotary embedding 'dynamic', whose angles depend on the longest row",
        id="angles by the longest row",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "sentence"), REFUSED)
def test_what_nothing_here_computes_right_is_refused(kind: str, fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^model\.path: its config\.json {'' if sentence.startswith('has') else 'has '}{sentence}"
    ):
        build_whole(model_config({**described("qwen3"), **fields, "model_type": kind}), FLOAT32)
