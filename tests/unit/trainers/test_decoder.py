"""The packed forward pass, in float32, equals that of transformers in float64: values and gradients."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rljob_workers.models.building import build_config, initial_state, tensor_shapes
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.flat_decoder import ACTIVATIONS, Decoder
from rljob_workers.trainers.micro_batches import pack
from tests.near import BACKWARD, FORWARD, assert_near
from tests.unit.models.peer import config_of, peer_of, state_of
from tests.unit.trainers.rows import make_rows, make_spec

ARCHITECTURES = [
    pytest.param("Qwen3", True, id="Qwen3, tied"),
    pytest.param("Qwen3", False, id="Qwen3, untied"),
    pytest.param("Llama", False, id="Llama, untied"),
]


def make_model(architecture: str, tied: bool) -> PreTrainedModel:
    spec = make_spec(architecture=architecture, tied=tied)
    tokenizer = build_tokenizer(spec.model)
    config = build_config(spec.model, tokenizer)
    return _with_uneven_norms(peer_of(config, initial_state(spec.model, tokenizer)))


def make_decoder(model: PreTrainedModel, *, compute: torch.dtype = torch.float32) -> Decoder:
    """With the weights of `model`."""
    decoder = Decoder(config_of(model), storage=torch.float32, compute=compute)
    decoder.load(state_of(model), source="the model")
    return decoder


def _with_uneven_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Norms are all 1 and biases 0 in a fresh model, so that a forgotten one would go unnoticed."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0, 0.3)
    return model


def row_by_row(model: PreTrainedModel, rows: TrainRows, temperature: float) -> torch.Tensor:
    parts = []
    for tokens, length in zip(rows.tokens.rows(), rows.response_lengths.tolist(), strict=True):
        logits = model(tokens[None].long()).logits[0, len(tokens) - length - 1 : -1] / temperature
        parts.append(torch.log_softmax(logits, -1).gather(1, tokens[-length:, None].long())[:, 0])
    return torch.cat(parts)


def packed(decoder: Decoder, rows: TrainRows, temperature: float) -> torch.Tensor:
    plan = pack(rows.tokens.values, rows.tokens.offsets, rows.response_lengths)
    return decoder.log_probs(rows.tokens.values, plan, temperature)


def _check_against_transformers(model: PreTrainedModel, longest: int) -> None:
    rows = make_rows(1, longest=longest)
    exact = deepcopy(model).double()
    expected = row_by_row(exact, rows, 1.3)
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: _gradient(parameter) for name, parameter in exact.named_parameters()}
    decoder = make_decoder(model)
    flat_gradient = torch.zeros_like(decoder.flat)
    decoder.enable_gradients(flat_gradient)
    got = packed(decoder, rows, 1.3)
    got.square().sum().backward()  # type: ignore[no-untyped-call]
    assert_near(got, expected, FORWARD, "log-probs")
    ours = decoder.views_of(flat_gradient)
    assert set(ours) == set(gradients)
    for name, gradient in gradients.items():
        assert_near(ours[name], gradient, BACKWARD, name)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
@pytest.mark.parametrize("longest", [10, 70], ids=["short rows share sequences", "long rows are padded"])
def test_log_probs_and_gradients_equal_those_of_transformers(architecture: str, tied: bool, longest: int) -> None:
    _check_against_transformers(make_model(architecture, tied), longest)


SIZES: dict[str, Any] = {
    "vocab_size": 13, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3,
}  # fmt: skip


def make_llama(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return _with_uneven_norms(LlamaForCausalLM(LlamaConfig(**SIZES, **changes)))


def test_biases_are_used() -> None:
    _check_against_transformers(make_llama(attention_bias=True, mlp_bias=True), 10)


def test_qwen3_may_have_biases_too() -> None:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, attention_bias=True))
    _check_against_transformers(_with_uneven_norms(model), 10)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations_are_those_of_transformers(activation: str) -> None:
    _check_against_transformers(make_llama(hidden_act=activation), 10)


def test_scaled_positions_are_those_of_transformers() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
    _check_against_transformers(make_llama(rope_parameters=rope, max_position_embeddings=64), 40)


def test_an_activation_that_is_not_known_is_refused() -> None:
    config = config_of(make_llama(hidden_act="tanh"))
    with pytest.raises(ValueError, match="hidden_act 'tanh', but the torch trainer knows silu, gelu,"):
        Decoder(config, storage=torch.float32, compute=torch.float32)


def test_weights_that_do_not_fit_change_nothing() -> None:
    decoder = make_decoder(make_model("Qwen3", True))
    before = decoder.flat.clone()
    state = {name: tensor + 1 for name, tensor in state_of(make_model("Qwen3", True)).items()}
    state["model.norm.weight"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"model: blob 7 do not fit: tensor model.norm.weight"):
        decoder.load(state, source="blob 7")
    assert torch.equal(decoder.flat, before)


def test_views_have_the_names_and_shapes_of_the_model() -> None:
    model = make_model("Qwen3", False)
    decoder = make_decoder(model)
    views = decoder.views_of(decoder.flat)
    assert {name: tuple(view.shape) for name, view in views.items()} == tensor_shapes(decoder.config)
    assert all(torch.equal(views[name], tensor) for name, tensor in state_of(model).items())


def test_weight_decay_is_for_matrices() -> None:
    decoder = make_decoder(make_model("Qwen3", True))
    vectors = sum(view.numel() for view in decoder.views_of(decoder.flat).values() if view.dim() == 1)
    assert decoder.num_decayed == decoder.flat.numel() - vectors


def test_bfloat16_is_near_float32() -> None:
    rows = make_rows(4)
    full = make_decoder(make_model("Qwen3", True))
    half = make_decoder(make_model("Qwen3", True), compute=torch.bfloat16)
    got = packed(half, rows, 1.0)
    assert got.dtype == torch.float32
    assert float((got - packed(full, rows, 1.0)).detach().abs().mean()) < 0.1
