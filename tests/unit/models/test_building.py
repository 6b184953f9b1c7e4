"""Models: deterministic at the start, the same after a round trip, and refused with a sentence when they do not fit."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rljob_api.model_files.decoder_config import DecoderConfig
from rljob_api.spec.model import Architecture, Dtype, ModelConfig, ModelSpec, TokenizerConfig, TokenizerKind
from rljob_workers.models.blob import blob_metadata, read_blob, write_blob
from rljob_workers.models.building import (
    build_config,
    check_fit,
    initial_state,
    initial_tensors,
    save_folder,
    stored_weights,
    tensor_shapes,
)
from rljob_workers.models.tokenizers import build_tokenizer, make_tokenizer
from tests.near import FORWARD, assert_near
from tests.unit.models.peer import peer_of


def make_spec(**config: object) -> ModelSpec:
    return ModelSpec(config=ModelConfig.model_validate({"tokenizer": {"alphabet": "0123456789="}, **config}))


def make_config(spec: ModelSpec) -> DecoderConfig:
    return build_config(spec, build_tokenizer(spec))


def make_state(spec: ModelSpec) -> dict[str, torch.Tensor]:
    return initial_state(spec, build_tokenizer(spec))


def save(folder: Path, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """A folder of the initial weights."""
    state = make_state(spec)
    save_folder(folder, make_config(spec), build_tokenizer(spec), state)
    return state


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype is second[name].dtype
        assert torch.equal(tensor, second[name]), name


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=torch.arange(10)[None]).logits
    return result


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", list(Architecture))
def test_a_saved_folder_is_what_transformers_loads(tmp_path: Path, architecture: Architecture, tied: bool) -> None:
    spec = make_spec(architecture=architecture, tie_word_embeddings=tied)
    state = save(tmp_path, spec)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.config.architectures == [type(loaded).__name__] == [f"{architecture.value}ForCausalLM"]
    assert_near(logits_of(loaded), logits_of(peer_of(make_config(spec), state)), FORWARD, "logits")
    assert ("lm_head.weight" in read_blob(tmp_path / "model.safetensors")) is not tied


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_saved_folder_is_a_model_path(tmp_path: Path, tied: bool) -> None:
    state = save(tmp_path, make_spec(tie_word_embeddings=tied))
    assert_same(make_state(ModelSpec(path=str(tmp_path))), state)


@pytest.mark.parametrize("architecture", list(Architecture))
def test_a_folder_as_transformers_itself_saves_it_is_a_model_path(tmp_path: Path, architecture: Architecture) -> None:
    spec = make_spec(architecture=architecture)
    state = make_state(spec)
    peer_of(make_config(spec), state).save_pretrained(tmp_path, max_shard_size="20KB")
    build_tokenizer(spec).save_pretrained(str(tmp_path))
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_same(make_state(ModelSpec(path=str(tmp_path))), state)
    assert tensor_shapes(make_config(ModelSpec(path=str(tmp_path)))) == tensor_shapes(make_config(spec))


def test_what_config_json_states_beyond_our_fields_is_retained_but_for_the_dtype(tmp_path: Path) -> None:
    save(tmp_path / "read", make_spec())
    file = tmp_path / "read" / "config.json"
    given = {**json.loads(file.read_bytes()), "torch_dtype": "float16", "rope_theta": 5e5, "note": "kept"}
    del given["dtype"], given["rope_parameters"]
    file.write_text(json.dumps(given))
    save(tmp_path / "saved", ModelSpec(path=str(tmp_path / "read"), dtype=Dtype.BFLOAT16))
    saved = json.loads((tmp_path / "saved" / "config.json").read_bytes())
    del given["torch_dtype"]
    assert saved == {**given, "dtype": "bfloat16"}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "saved", local_files_only=True).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(None, "has no config.json. Give a Hugging Face checkpoint folder.", id="absent"),
        pytest.param("{", "is not whole JSON (", id="torn"),
        pytest.param("[]", "is no JSON object", id="a list"),
    ],
)
def test_a_folder_without_a_config_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    save(tmp_path, make_spec())
    tokenizer = build_tokenizer(make_spec())
    (tmp_path / "config.json").unlink()
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        build_config(ModelSpec(path=str(tmp_path)), tokenizer)


def test_a_torn_weights_file_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, make_spec())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=re.escape(f"model.path: {weights} is not a whole safetensors file (")):
        make_state(ModelSpec(path=str(tmp_path)))


def test_weights_that_do_not_fit_their_own_config_are_refused_by_the_folder(tmp_path: Path) -> None:
    save(tmp_path, make_spec())
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


def test_the_initial_state_leaves_the_callers_random_numbers_alone() -> None:
    spec = make_spec()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_state(spec)
    assert torch.equal(torch.rand(3), expected)


def test_bfloat16_weights_are_the_float32_ones_rounded() -> None:
    spec = make_spec()
    low = spec.model_copy(update={"dtype": Dtype.BFLOAT16})
    exact, rounded = initial_state(spec, build_tokenizer(spec)), initial_state(low, build_tokenizer(low))
    assert all(torch.equal(exact[name].bfloat16(), rounded[name]) for name in exact)
    assert {tensor.dtype for tensor in rounded.values()} == {torch.bfloat16}


def test_the_first_tensor_that_differs_is_named_with_both_shapes() -> None:
    state = make_state(make_spec(intermediate_size=96))
    sentence = (
        "model: the weights of checkpoint 3 do not fit: tensor model.layers.0.mlp.gate_proj.weight is of shape [96, 64]"
        " there, but of shape [128, 64] in the model."
        " Use weights of the same architecture and sizes."
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_fit(state, make_config(make_spec()), source="the weights of checkpoint 3")


def test_a_missing_and_a_surplus_tensor_are_named() -> None:
    config = make_config(make_spec())
    state = make_state(make_spec())
    with pytest.raises(ValueError, match=r"tensor model.norm.weight is absent there, but of shape \[64\] in the model"):
        check_fit({name: tensor for name, tensor in state.items() if name != "model.norm.weight"}, config)
    with pytest.raises(ValueError, match=r"tensor extra is of shape \[2\] there, but absent in the model"):
        check_fit({**state, "extra": torch.empty(2)}, config)


def test_a_tied_head_may_be_there_in_the_shape_of_the_embedding() -> None:
    config = make_config(make_spec())
    state = make_state(make_spec())
    check_fit({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, config)
    with pytest.raises(ValueError, match=r"tensor lm_head.weight is of shape \[1, 64\] there"):
        check_fit({**state, "lm_head.weight": torch.empty(1, 64)}, config)


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(tmp_path: Path) -> None:
    make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE)).save_pretrained(str(tmp_path))
    config = ModelConfig(vocab_size=13, tokenizer=TokenizerConfig(alphabet="0123456789="))
    spec = ModelSpec(config=config, tokenizer_path=str(tmp_path))
    with pytest.raises(ValueError, match="the tokenizer has 258 tokens, but the model only 13"):
        make_config(spec)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    save(tmp_path, make_spec())
    (tmp_path / "model.safetensors").unlink()
    from_folder = ModelSpec(path=str(tmp_path))
    with pytest.raises(ValueError, match=r"model.path: .* has neither model.safetensors nor"):
        initial_state(from_folder, build_tokenizer(from_folder))


def test_tensors_of_version_0_are_read_by_name_in_the_jobs_dtype(tmp_path: Path) -> None:
    save(tmp_path, make_spec())
    whole = stored_weights(tmp_path)
    model = ModelSpec(path=str(tmp_path), dtype=Dtype.BFLOAT16)
    name = "model.norm.weight"
    found = initial_tensors(model, build_tokenizer(model), {name})
    assert found.keys() == {name}
    assert torch.equal(found[name], whole[name].to(torch.bfloat16))
    with pytest.raises(ValueError, match=r"^model\.path: .* has no tensor other\. Copy it again"):
        initial_tensors(model, build_tokenizer(model), {name, "other"})


def test_a_blob_comes_back_bitwise_and_outlives_its_file(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 4).t(), "b": torch.tensor([1, 2], dtype=torch.bfloat16), "c": torch.empty(0)}
    write_blob(tmp_path / "w", state, {"version": "7"})
    back = read_blob(tmp_path / "w")
    (tmp_path / "w").unlink()
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)
    assert list(tmp_path.iterdir()) == []


def test_the_header_of_a_blob_reports_its_metadata(tmp_path: Path) -> None:
    write_blob(tmp_path / "w", {"a": torch.zeros(3, 4)}, {"version": "7"})
    assert blob_metadata(tmp_path / "w") == {"format": "pt", "version": "7"}
