"""Findings of validate on the ends of answers: on files that name none, on tokens that are none, on a chat's turns."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from rljob_cli.checks.turn_ends import end_of_turn
from rljob_cli.main import cli
from tests.unit.api.manifests import changed

CONFIG = {"model_type": "qwen3", "max_position_embeddings": 64, "vocab_size": 8, "num_attention_heads": 4}
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
LLAMA3 = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }} <|im_end|>{% endfor %}"
REFUSES = "{{ raise_exception('no') }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's files, with a tokenizer of eight tokens, the last three of which are added ones."""
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "label": "b"}\n' * 40)
    vocabulary = {letter: index for index, letter in enumerate("abcde")}
    added = [{"id": 5 + index, "content": text} for index, text in enumerate(ADDED)]
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    (model / "model.safetensors").write_text("")
    write(tmp_path)
    return tmp_path


def write(folder: Path, *, eos: str | None = "<|endoftext|>", template: str | None = None, **config: Any) -> None:
    (folder / "model" / "config.json").write_text(json.dumps({**CONFIG, **config}))
    own = {"eos_token": eos, "chat_template": template}
    given = {name: value for name, value in own.items() if value is not None}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(given))


def found(folder: Path, kind: str, changes: dict[str, Any] | None = None) -> list[str]:
    """The sentences of one kind that are about ends, with paths of the folder left out."""
    (folder / "job.yaml").write_text(yaml.safe_dump(changed({"spec.model": {"path": "model"}, **(changes or {})})))
    arguments = ["validate", str(folder / "job.yaml"), "--static", "--output", "json"]
    output = json.loads(CliRunner().invoke(cli, arguments, env={"RLJOB_DEVICES": None}).stdout)
    parts = ("stopTokenIds", "eos_token_id", "generation_config")
    return [text.replace(f"{folder}/", "") for text in output[kind] if any(part in text for part in parts)]


def test_files_that_name_an_end_are_nothing_to_speak_of(folder: Path) -> None:
    (folder / "model" / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert found(folder, "problems") == found(folder, "warnings") == []


@pytest.mark.parametrize("generation", ["{", '{"eos_token_id": "x"}', '{"eos_token_id": -2}'])
def test_a_damaged_generation_config_is_a_problem(folder: Path, generation: str) -> None:
    (folder / "model" / "generation_config.json").write_text(generation)
    [problem] = found(folder, "problems")
    assert "spec.model.path: " in problem


def test_an_end_beyond_the_vocabulary_is_warned_of(folder: Path) -> None:
    (folder / "model" / "generation_config.json").write_text('{"eos_token_id": [5, 99]}')
    assert found(folder, "warnings") == [
        "job.yaml:12: spec.model.path: model/generation_config.json has 99 in eos_token_id, but the model has 8 tokens"
        " (0 to 7), so that it ends no answer. Give the file that belongs to the weights."
    ]


@pytest.mark.parametrize("field", ["rollout", "evaluation"])
def test_a_stop_token_beyond_the_vocabulary_is_a_problem(folder: Path, field: str) -> None:
    sampling = {"maxNewTokens": 4, "stopTokenIds": [8]}
    sets = {"sets": [{"name": "held-out", "data": {"prompts": "prompts.jsonl"}, "sampling": sampling}]}
    changes = {"spec.rollout.sampling": sampling} if field == "rollout" else {"spec.evaluation": sets}
    [problem] = found(folder, "problems", changes)
    assert "stopTokenIds: 8 is no token of the model, which has 8 (0 to 7). Give the number of one" in problem


def test_answers_that_nothing_ends_are_warned_of(folder: Path) -> None:
    write(folder, eos=None)
    [warning] = found(folder, "warnings")
    assert "nothing ends an answer of this model: neither config.json nor generation_config.json nor" in warning
    assert found(folder, "warnings", {"spec.rollout.sampling": {"stopTokenIds": [5]}}) == []
    assert found(folder, "warnings", {"spec.rollout.sampling": {"stop": ["b"]}}) == []


@pytest.mark.parametrize(
    ("files", "changes", "is_warned"),
    [
        pytest.param({"template": CHATML}, {"spec.data.applyChatTemplate": True}, True, id="a base model as a chat"),
        pytest.param({"template": CHATML}, {}, False, id="texts that no template is put around"),
        pytest.param(
            {"template": CHATML, "eos_token_id": [5, 7]}, {"spec.data.applyChatTemplate": True}, False, id="named"
        ),
        pytest.param({"template": CHATML, "eos": "<|im_end|>"}, {"spec.data.applyChatTemplate": True}, False, id="eos"),
        pytest.param(
            {"template": CHATML},
            {"spec.data.applyChatTemplate": True, "spec.rollout.sampling": {"stopTokenIds": [7]}},
            False,
            id="a stop token",
        ),
        pytest.param(
            {"template": CHATML},
            {"spec.data.applyChatTemplate": True, "spec.rollout.sampling": {"stop": ["<|im_end|>"]}},
            False,
            id="a stop text",
        ),
        pytest.param(
            {},
            {"spec.data.applyChatTemplate": True, "spec.data.chatTemplate": {"file": "own.jinja"}},
            True,
            id="a file",
        ),
        pytest.param({"template": LLAMA3}, {"spec.data.applyChatTemplate": True}, True, id="behind a space"),
        pytest.param({"template": REFUSES}, {"spec.data.applyChatTemplate": True}, False, id="a template that refuses"),
        pytest.param({"template": "{{ m"}, {"spec.data.applyChatTemplate": True}, False, id="no template"),
    ],
)
def test_a_turn_that_ends_with_another_token_than_answers_is_warned_of(
    folder: Path, files: dict[str, Any], changes: dict[str, Any], is_warned: bool
) -> None:
    (folder / "own.jinja").write_text(CHATML)
    write(folder, **files)
    warnings = found(folder, "warnings", changes)
    if not is_warned:
        assert warnings == []
        return
    [warning] = warnings
    assert (
        "spec.rollout.sampling.stopTokenIds: the chat template ends an assistant's turn with <|im_end|>, at which no"
        " answer ends: only 5 (<|endoftext|>) end one. Give stopTokenIds: [7], or name it in eos_token_id" in warning
    )


def test_prompts_that_are_chats_are_looked_at_without_being_wrapped(folder: Path) -> None:
    write(folder, template=CHATML)
    row = {"prompt": [{"role": "user", "content": "a"}], "label": "b"}
    (folder / "prompts.jsonl").write_text(json.dumps(row) + "\n")
    assert len(found(folder, "warnings")) == 1


def test_of_tokens_that_begin_alike_the_longer_one_ends_a_turn() -> None:
    assert end_of_turn(CHATML.replace("<|im_end|>", "<e>x"), {}, ["<e>", "<e>x", ""]) == "<e>x"
    assert end_of_turn("{% for m in messages %}{{ m.content }}\n{% endfor %}", {}, ["<e>"]) is None
