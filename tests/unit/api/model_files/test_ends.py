"""The tokens that end an answer, by what each file names; what is no token is refused with a sentence."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.model_files.ends import end_tokens, generation_config, saved_generation_config

QWEN3: dict[str, Any] = {"model_type": "qwen3"}
TOKENS = st.sets(st.integers(0, 1000), max_size=4)


def write(folder: Path, generation: str | None) -> Path:
    if generation is not None:
        (folder / "generation_config.json").write_text(generation)
    return folder


@pytest.mark.parametrize(
    ("described", "generation", "expected"),
    [
        pytest.param({**QWEN3, "eos_token_id": 7}, None, {7, 1}, id="config.json alone"),
        pytest.param({**QWEN3, "eos_token_id": [7, 8]}, None, {7, 8, 1}, id="a list in config.json"),
        pytest.param({**QWEN3, "eos_token_id": 7}, '{"eos_token_id": 9}', {7, 9, 1}, id="generation_config.json adds"),
        pytest.param(QWEN3, '{"eos_token_id": [9, 7]}', {7, 9, 1}, id="a list in generation_config.json"),
        pytest.param({**QWEN3, "eos_token_id": None}, '{"eos_token_id": null}', {1}, id="null names none"),
        pytest.param(QWEN3, '{"temperature": 0.6}', {1}, id="generation_config.json without ends"),
        pytest.param({"model_type": "llama"}, None, {2, 1}, id="the default of a family that is silent"),
        pytest.param({"model_type": "llama", "eos_token_id": None}, None, {1}, id="null is no silence"),
        pytest.param(
            {"model_type": "gemma3", "eos_token_id": 5, "text_config": {"model_type": "gemma3_text"}},
            None,
            {5, 1},
            id="a nested text model",
        ),
        pytest.param(
            {"model_type": "gemma3", "text_config": {"model_type": "qwen3", "eos_token_id": [6]}},
            None,
            {6, 1},
            id="a nested text model's own",
        ),
        pytest.param({**QWEN3, "eos_token_id": 7, "pad_token_id": 0}, '{"pad_token_id": 0}', {7, 1}, id="no padding"),
        pytest.param({**QWEN3, "pad_token_id": 7}, '{"eos_token_id": 7, "pad_token_id": 7}', {7, 1}, id="both at once"),
    ],
)
def test_all_that_the_files_and_the_tokenizer_name_end_an_answer(
    described: dict[str, Any], generation: str | None, expected: set[int], tmp_path: Path
) -> None:
    assert end_tokens(described, write(tmp_path, generation), frozenset({1})).all == expected


@pytest.mark.parametrize(
    ("generation", "sentence"),
    [
        pytest.param("{", "is not whole JSON (", id="cut off"),
        pytest.param("[11]", "is no JSON object. Copy it again, or remove it.", id="a list"),
        pytest.param('{"eos_token_id": "11"}', "eos_token_id '11', which must be the number of a token", id="a text"),
        pytest.param('{"eos_token_id": -1}', "eos_token_id -1, which must be the number of a token", id="negative"),
        pytest.param('{"eos_token_id": [11, -1]}', "eos_token_id [11, -1], which must", id="negative in a list"),
        pytest.param('{"eos_token_id": true}', "eos_token_id True, which must", id="a flag"),
        pytest.param('{"eos_token_id": 1.0}', "eos_token_id 1.0, which must", id="a fraction"),
        pytest.param('{"eos_token_id": {"a": 1}}', "eos_token_id {'a': 1}, which must", id="an object"),
    ],
)
def test_a_generation_config_that_names_no_tokens_is_refused(generation: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^model.path: .*generation_config.json .*{re.escape(sentence)}"):
        end_tokens(QWEN3, write(tmp_path, generation), frozenset())


@pytest.mark.parametrize(
    "given_ends", [["x"], -1, [[1]], "</s>"], ids=["texts", "negative", "nested", "a token's text"]
)
def test_a_config_that_names_no_tokens_is_refused(given_ends: object) -> None:
    with pytest.raises(ValueError, match=r"^model.path: its config.json has eos_token_id .*, a list of such or null"):
        end_tokens({**QWEN3, "eos_token_id": given_ends}, None, frozenset())


@given(of_config=TOKENS, of_generation=TOKENS, stops=TOKENS)
def test_what_is_saved_names_all_ends_again_and_leaves_the_rest(
    of_config: set[int], of_generation: set[int], stops: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    described = {**QWEN3, "eos_token_id": sorted(of_config)}
    folder = write(tmp_path_factory.mktemp("m"), json.dumps({"top_p": 0.9, "eos_token_id": sorted(of_generation)}))
    ends = end_tokens(described, folder, frozenset()).all | stops
    (folder / "generation_config.json").write_bytes(saved_generation_config(generation_config(folder), ends))
    assert end_tokens(QWEN3, folder, frozenset()).all == ends == of_config | of_generation | stops
    assert generation_config(folder)["top_p"] == 0.9
