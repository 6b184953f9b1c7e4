"""The packed forward pass equals that of transformers, values and gradients."""

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rljob_workers.models.building import build_model, initial_state, load_state, state_of
from rljob_workers.models.tokenizers import build_tokenizer
from rljob_workers.trainers.base import TrainRows
from rljob_workers.trainers.decoder import Decoder
from rljob_workers.trainers.packing import pack
from tests.unit.trainers.rows import make_rows, make_spec

ARCHITECTURES = [
    pytest.param("Qwen3", True, id="Qwen3, tied"),
    pytest.param("Qwen3", False, id="Qwen3, untied"),
    pytest.param("Llama", False, id="Llama, untied"),
]


def make_model(architecture: str, tied: bool) -> PreTrainedModel:
    spec = make_spec(architecture=architecture, tied=tied)
    tokenizer = build_tokenizer(spec.model)
    model = build_model(spec.model, tokenizer)
    load_state(model, initial_state(spec.model, tokenizer))
    return _with_uneven_norms(model)


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
    expected = row_by_row(model, rows, 1.3)
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: _gradient(parameter).clone() for name, parameter in model.named_parameters()}
    decoder = Decoder(model, storage=torch.float32, compute=torch.float32)
    flat_gradient = torch.zeros_like(decoder.flat)
    decoder.enable_gradients(flat_gradient)
    got = packed(decoder, rows, 1.3)
    got.square().sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    ours = decoder.views_of(flat_gradient)
    assert set(ours) == set(gradients)
    for name, gradient in gradients.items():
        difference = (ours[name] - gradient).abs() - 1e-4 * (1 + gradient.abs())
        assert float(difference.max()) <= 0, name


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize(("architecture", "tied"), ARCHITECTURES)
@pytest.mark.parametrize("longest", [10, 70], ids=["short rows share sequences", "long rows are padded"])
def test_log_probs_and_gradients_equal_those_of_transformers(architecture: str, tied: bool, longest: int) -> None:
    _check_against_transformers(make_model(architecture, tied), longest)


def test_biases_are_used() -> None:
    config = LlamaConfig(
        vocab_size=13, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attention_bias=True, mlp_bias=True, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    _check_against_transformers(_with_uneven_norms(LlamaForCausalLM(config)), 10)


def test_the_module_of_transformers_sees_what_the_decoder_trains() -> None:
    model = make_model("Qwen3", True)
    decoder = Decoder(model, storage=torch.float32, compute=torch.float32)
    rows = make_rows(2)
    decoder.flat.mul_(1.01)
    torch.testing.assert_close(packed(decoder, rows, 1.0), row_by_row(model, rows, 1.0), atol=1e-5, rtol=1e-5)
    assert {name: tuple(view.shape) for name, view in decoder.views_of(decoder.flat).items()} == {
        name: tuple(tensor.shape) for name, tensor in state_of(model).items()
    }


def test_weight_decay_is_for_matrices() -> None:
    decoder = Decoder(make_model("Qwen3", True), storage=torch.float32, compute=torch.float32)
    vectors = sum(view.numel() for view in decoder.views_of(decoder.flat).values() if view.dim() == 1)
    assert decoder.num_decayed == decoder.flat.numel() - vectors


def test_bfloat16_is_near_float32() -> None:
    rows = make_rows(4)
    full = Decoder(make_model("Qwen3", True), storage=torch.float32, compute=torch.float32)
    half = Decoder(make_model("Qwen3", True), storage=torch.float32, compute=torch.bfloat16)
    got = packed(half, rows, 1.0)
    assert got.dtype == torch.float32
    assert float((got - packed(full, rows, 1.0)).detach().abs().mean()) < 0.1


SLIDING = Qwen3Config(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=1,
    num_key_value_heads=1, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        pytest.param(
            GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1)),
            "model_type 'gpt2', but the torch trainer knows llama and qwen3",
            id="another architecture",
        ),
        pytest.param(Qwen3ForCausalLM(SLIDING), "Use a model without sliding windows", id="sliding windows"),
    ],
)
def test_what_it_cannot_compute_is_refused(model: PreTrainedModel, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Decoder(model, storage=torch.float32, compute=torch.float32)
