"""Models: deterministic at the start, the same after a round trip, and refused with a sentence when they do not fit."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rljob_api.spec import Architecture, Dtype, ModelConfig, ModelSpec, TokenizerConfig, TokenizerKind
from rljob_workers.models.blob import blob_metadata, blob_shapes, read_blob, write_blob
from rljob_workers.models.building import (
    build_model,
    check_fit,
    initial_state,
    load_state,
    save_folder,
    shapes_of,
    state_of,
)
from rljob_workers.models.tokenizers import build_tokenizer, make_tokenizer


def make_spec(**config: object) -> ModelSpec:
    return ModelSpec(config=ModelConfig.model_validate({"tokenizer": {"alphabet": "0123456789="}, **config}))


def make_model(spec: ModelSpec) -> PreTrainedModel:
    tokenizer = build_tokenizer(spec)
    model = build_model(spec, tokenizer)
    load_state(model, initial_state(spec, tokenizer))
    return model


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=torch.arange(10)[None]).logits
    return result


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", list(Architecture))
def test_a_saved_folder_is_what_transformers_loads(tmp_path: Path, architecture: Architecture, tied: bool) -> None:
    spec = make_spec(architecture=architecture, tie_word_embeddings=tied)
    model = make_model(spec)
    save_folder(tmp_path, model, build_tokenizer(spec))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert ("lm_head.weight" in blob_shapes(tmp_path / "model.safetensors")) is not tied


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_saved_folder_is_a_model_path(tmp_path: Path, tied: bool) -> None:
    spec = make_spec(tie_word_embeddings=tied)
    model = make_model(spec)
    save_folder(tmp_path, model, build_tokenizer(spec))
    again = make_model(ModelSpec(path=str(tmp_path)))
    assert torch.equal(logits_of(again), logits_of(model))


def test_a_folder_as_transformers_itself_saves_it_is_a_model_path(tmp_path: Path) -> None:
    spec = make_spec()
    model = make_model(spec)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    build_tokenizer(spec).save_pretrained(str(tmp_path))
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert torch.equal(logits_of(make_model(ModelSpec(path=str(tmp_path)))), logits_of(model))


def test_a_torn_weights_file_is_refused_by_name(tmp_path: Path) -> None:
    spec = make_spec()
    save_folder(tmp_path, make_model(spec), build_tokenizer(spec))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=re.escape(f"model.path: {weights} is not a whole safetensors file (")):
        make_model(ModelSpec(path=str(tmp_path)))


def test_weights_that_do_not_fit_their_own_config_are_refused_by_the_folder(tmp_path: Path) -> None:
    spec = make_spec()
    save_folder(tmp_path, make_model(spec), build_tokenizer(spec))
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 64', '"hidden_size": 32'))
    misfit = ModelSpec(path=str(tmp_path))
    sentence = (
        f"model: the weights in {tmp_path} do not fit: tensor model.embed_tokens.weight is of shape [13, 64] there"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        initial_state(misfit, build_tokenizer(misfit))


def test_the_initial_state_is_a_function_of_the_seed() -> None:
    spec, other = make_spec(), make_spec(seed=1)
    torch.manual_seed(99)
    first = initial_state(spec, build_tokenizer(spec))
    torch.manual_seed(100)
    second = initial_state(spec, build_tokenizer(spec))
    different = initial_state(other, build_tokenizer(other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], different["model.embed_tokens.weight"])


def test_building_leaves_the_callers_random_numbers_alone() -> None:
    spec = make_spec()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_model(spec)
    assert torch.equal(torch.rand(3), expected)


def test_bfloat16_weights_are_the_float32_ones_rounded() -> None:
    spec = make_spec()
    low = spec.model_copy(update={"dtype": Dtype.BFLOAT16})
    exact, rounded = initial_state(spec, build_tokenizer(spec)), initial_state(low, build_tokenizer(low))
    assert all(torch.equal(exact[name].bfloat16(), rounded[name]) for name in exact)
    assert make_model(low).dtype is torch.bfloat16


def test_the_first_tensor_that_differs_is_named_with_both_shapes() -> None:
    model = make_model(make_spec())
    shapes = shapes_of(state_of(make_model(make_spec(intermediate_size=96))))
    sentence = (
        "model: the weights of checkpoint 3 do not fit: tensor model.layers.0.mlp.gate_proj.weight is of shape [96, 64]"
        " there, but of shape [128, 64] in the model."
        " Use weights of the same architecture and sizes."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_fit(shapes, model, source="the weights of checkpoint 3")


def test_a_missing_and_a_surplus_tensor_are_named() -> None:
    model = make_model(make_spec())
    shapes = shapes_of(state_of(model))
    with pytest.raises(ValueError, match=r"tensor model.norm.weight is absent there, but of shape \[64\] in the model"):
        check_fit({name: shape for name, shape in shapes.items() if name != "model.norm.weight"}, model)
    with pytest.raises(ValueError, match=r"tensor extra is of shape \[2\] there, but absent in the model"):
        check_fit({**shapes, "extra": (2,)}, model)


def test_weights_that_do_not_fit_change_nothing() -> None:
    model = make_model(make_spec())
    before = logits_of(model)
    with pytest.raises(ValueError, match="do not fit"):
        load_state(model, state_of(make_model(make_spec(num_layers=1))))
    assert torch.equal(logits_of(model), before)


def test_tied_weights_follow_the_embedding_when_loaded() -> None:
    model = make_model(make_spec())
    state = {name: tensor.clone() + 1 for name, tensor in state_of(model).items()}
    load_state(model, state)
    assert torch.equal(model.state_dict()["lm_head.weight"], state["model.embed_tokens.weight"])


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(tmp_path: Path) -> None:
    make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE)).save_pretrained(str(tmp_path))
    config = ModelConfig(vocab_size=13, tokenizer=TokenizerConfig(alphabet="0123456789="))
    spec = ModelSpec(config=config, tokenizer_path=str(tmp_path))
    with pytest.raises(ValueError, match="the tokenizer has 258 tokens, but the model only 13"):
        build_model(spec, build_tokenizer(spec))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    spec = make_spec()
    save_folder(tmp_path, make_model(spec), build_tokenizer(spec))
    (tmp_path / "model.safetensors").unlink()
    from_folder = ModelSpec(path=str(tmp_path))
    with pytest.raises(ValueError, match=r"model.path: .* has neither model.safetensors nor"):
        initial_state(from_folder, build_tokenizer(from_folder))


def test_a_blob_comes_back_bitwise_and_outlives_its_file(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 4).t(), "b": torch.tensor([1, 2], dtype=torch.bfloat16), "c": torch.empty(0)}
    write_blob(tmp_path / "w", state, {"version": "7"})
    back = read_blob(tmp_path / "w")
    (tmp_path / "w").unlink()
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert list(tmp_path.iterdir()) == []


def test_the_header_of_a_blob_tells_shapes_and_metadata(tmp_path: Path) -> None:
    write_blob(tmp_path / "w", {"a": torch.zeros(3, 4)}, {"version": "7"})
    assert blob_shapes(tmp_path / "w") == {"a": (3, 4)}
    assert blob_metadata(tmp_path / "w") == {"format": "pt", "version": "7"}
