"""Logits in float32 of a model in bfloat16: every way to log-probs gives those of its own hidden states, exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rljob_api.spec.model import Dtype, ModelConfig, ModelSpec
from rljob_workers.engines.torch_engine.decoder import Decoder as EngineDecoder
from rljob_workers.engines.torch_engine.decoder import fuse_weights, geometry_of
from rljob_workers.models.building import build_config, initial_state, model_config
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.trainers.flat_decoder import Decoder
from rljob_workers.trainers.fsdp.inputs import padded_inputs
from rljob_workers.trainers.fsdp.sharded_model import ModelOptions, bind_score, build_whole, score
from rljob_workers.trainers.fsdp.stored_tensors import load_folder
from tests.near import assert_near
from tests.unit.trainers.fsdp.tiny import described, make_tokens, save_model

BOUND = 2e-5
"""Of float32 logits in the tens. Rounded to bfloat16, log-probs are off by more than a hundredth of the largest."""
TEMPERATURE = 1.3

FAMILIES = [
    pytest.param("qwen3", id="tied"),
    pytest.param("llama", id="a head of its own"),
    pytest.param("gemma2", id="capped logits"),
    pytest.param("granite", id="scaled logits, by the family's own forward pass"),
    pytest.param("gpt_neox", id="a head of another name"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_transformers_models_are_those_of_their_hidden_states(family: str, tmp_path: Path) -> None:
    options = ModelOptions(torch.bfloat16, torch.bfloat16, packing=False, head_dtype=torch.float32)
    model = build_whole(model_config(described(family)), options)
    load_folder(model, save_model(family, tmp_path, torch.bfloat16))
    inputs = padded_inputs(*make_tokens(), torch.device("cpu"))
    with torch.no_grad():
        found, _ = score(model, inputs, TEMPERATURE)
        hidden = model.base_model(input_ids=inputs.token_ids, use_cache=False).last_hidden_state
        assert hidden.dtype == torch.bfloat16
        head = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        logits = hidden.flatten(0, 1)[inputs.predicting].double() @ head.double().t()
    cap = getattr(model.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    logits = logits / getattr(model.config, "logits_scaling", 1.0)
    log_probs = torch.log_softmax(logits / TEMPERATURE, -1)
    assert_near(found, log_probs.gather(1, inputs.targets[:, None])[:, 0], BOUND, "log-probs")


def test_a_head_that_is_no_matrix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_whole(model_config(described("granite")), ModelOptions(torch.bfloat16, torch.bfloat16, packing=False))
    monkeypatch.setattr(model, "get_output_embeddings", lambda: torch.nn.Embedding(1, 1))
    with pytest.raises(
        ValueError, match=r"^model\.headDtype: float32 needs a head that is one matrix, which a granite"
    ):
        bind_score(model, torch.float32, is_known_family=False)


@pytest.mark.parametrize("tied", [True, False])
def test_the_flat_decoder_and_the_torch_engine_do_not_round_theirs(tied: bool) -> None:
    spec = ModelSpec(config=ModelConfig(tie_word_embeddings=tied), dtype=Dtype.BFLOAT16)
    tokenizer = build_tokenizer(spec)
    config, state = build_config(spec, tokenizer), initial_state(spec, tokenizer)
    chance = torch.Generator().manual_seed(2)
    hidden = torch.randn(7, config.hidden_size, generator=chance).bfloat16()
    head = (torch.randn(config.vocab_size, config.hidden_size, generator=chance) * 2).bfloat16()
    flat = Decoder(config, storage=torch.float32, compute=torch.bfloat16, head_dtype=torch.float32)
    assert_near(flat._logits(hidden, head), hidden.double() @ head.double().t(), BOUND, "logits in training")

    geometry = geometry_of(config, torch.bfloat16, head_dtype=torch.float32)
    weights = fuse_weights(state, geometry)
    assert (weights.head.dtype, weights.embedding.dtype) == (torch.float32, torch.bfloat16)
    normed = torch.nn.functional.rms_norm(hidden, (config.hidden_size,), weights.final_norm, config.rms_norm_eps)
    logits = EngineDecoder(geometry)._logits(weights, hidden)
    assert_near(logits, normed.double() @ weights.head.double(), BOUND, "logits in generation")
