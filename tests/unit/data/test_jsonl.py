"""JSONL prompts: order, labels, tokens, and the error of a broken file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import TokenizerConfig
from rljob_workers.data import PromptSource, build_prompt_source
from rljob_workers.data.jsonl import LineFile
from rljob_workers.models.tokenizers import make_tokenizer

TOKENIZER = make_tokenizer(TokenizerConfig(alphabet="abcdefghijklmnopqrstuvwxyz0123456789 "))


def write(folder: Path, *entries: Any) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return str(path)


def make_source(path: str, **fields: Any) -> PromptSource:
    return build_prompt_source(DataSpec(prompts=path, **fields), TOKENIZER)


def numbered(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"p{number}", "label": str(number)} for number in range(count)]


def test_a_pass_has_every_prompt_once_and_the_next_has_another_order(tmp_path: Path) -> None:
    source = make_source(write(tmp_path, *numbered(20)))
    passes = [[source.at(20 * turn + position).label for position in range(20)] for turn in range(2)]
    assert len(source) == 20
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(entry["label"] for entry in numbered(20))
    assert passes[0] != passes[1]


def test_a_prompt_is_a_function_of_spec_and_position_alone(tmp_path: Path) -> None:
    path = write(tmp_path, *numbered(20))
    one, other = make_source(path), make_source(path)
    assert [one.at(position) for position in range(60)] == [other.at(position) for position in reversed(range(60))][
        ::-1
    ]
    reseeded = make_source(path, shuffle_seed=1)
    assert [one.at(position).label for position in range(20)] != [reseeded.at(position).label for position in range(20)]


def test_without_a_seed_the_order_is_that_of_the_file(tmp_path: Path) -> None:
    source = make_source(write(tmp_path, *numbered(3)), shuffle_seed=None)
    assert [source.at(position).text for position in range(6)] == ["p0", "p1", "p2"] * 2
    assert [source.at(position).index for position in (0, 5)] == [0, 5]


def test_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    prompt = make_source(write(tmp_path, {"prompt": "abc", "label": [1, 2]})).at(0)
    assert (prompt.text, prompt.token_ids, prompt.label) == ("abc", tuple(TOKENIZER.encode("abc")), [1, 2])


def test_messages_go_through_the_chat_template_and_text_stays_bare(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(TokenizerConfig(alphabet="abcdefghijklmnopqrstuvwxyz<>:"))
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
    chat = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    path = write(tmp_path, {"prompt": chat}, {"prompt": "hi"})
    source = build_prompt_source(DataSpec(prompts=path, shuffle_seed=None, apply_chat_template=True), tokenizer)
    assert tokenizer.decode(list(source.at(0).token_ids)) == "<system>be<user>hi<assistant>"
    assert source.at(0).text == "be\nhi"
    assert tokenizer.decode(list(source.at(1).token_ids)) == "<user>hi<assistant>"
    assert source.at(1).text == "hi"


def test_a_prompt_has_its_chat_its_other_columns_and_where_it_comes_from(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    path = write(tmp_path, {"prompt": "hi", "label": "1", "kind": "a", "level": 3}, {"prompt": "ho", "kind": "b"})
    plain = make_source(path, shuffle_seed=None).at(0)
    assert (plain.messages, plain.row) == ((), {"kind": "a", "level": 3})
    assert (plain.dataset, plain.source) == ("prompts", "prompts")
    named = make_source(path, shuffle_seed=None, source_key="kind")
    assert [(named.at(place).dataset, named.at(place).source) for place in (0, 1)] == [
        ("prompts", "a"),
        ("prompts", "b"),
    ]
    tokenizer = make_tokenizer(TokenizerConfig(alphabet="hi"))
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    wrapped = build_prompt_source(
        DataSpec(prompts=write(tmp_path, {"prompt": "hi"}), apply_chat_template=True), tokenizer
    )
    assert wrapped.at(0).messages == tuple(chat)


@pytest.mark.parametrize("source", [None, 3, "", "x" * 129])
def test_a_line_without_a_usable_source_is_named(source: Any, tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "hi", "kind": source})
    with pytest.raises(ValueError, match=r"data\.sourceKey: .* line 1 has .* under 'kind', not a text of 1 to 128"):
        make_source(path, source_key="kind").at(0)


def test_keys_are_those_of_the_spec(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": "abc", "a": "cba", "label": "no"})
    assert make_source(path, prompt_key="q", label_key="a").at(0).label == "cba"
    assert make_source(path, prompt_key="q", label_key=None).at(0).label is None
    assert make_source(path, prompt_key="q", label_key="other").at(0).label is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("", r"data\.prompts: .*prompts\.jsonl has no prompt in it", id="empty"),
        pytest.param("\n  \n\n", r"data\.prompts: .*prompts\.jsonl has no prompt in it", id="blank lines only"),
        pytest.param('{"prompt": "a"', r"prompts\.jsonl line 1 is not JSON", id="half a line"),
        pytest.param('\n\n["a"]', r"prompts\.jsonl line 3 is a list, not an object", id="not an object"),
        pytest.param('{"text": "a"}', r"data\.promptKey: .* line 1 has no 'prompt', only \['text'\]", id="other key"),
        pytest.param('{"prompt": 3}', "line 1 is neither text nor a list of chat messages", id="a number"),
        pytest.param('{"prompt": []}', "line 1 has no message that says anything", id="no messages"),
        pytest.param('{"prompt": [{"role": "user"}]}', r"no content in message 1 \(user\)", id="no content"),
        pytest.param('{"prompt": ""}', "the prompt of .* line 1 is empty", id="empty prompt"),
        pytest.param('{"prompt": "a~"}', r"'~' .* line 1\)", id="a character that the tokenizer does not know"),
    ],
)
def test_a_broken_file_is_reported_with_line_and_cure(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        make_source(str(path)).at(0)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.prompts: .*none\.jsonl cannot be read \(No such file or directory\)"):
        make_source(str(tmp_path / "none.jsonl"))


@given(st.lists(st.text(alphabet="ab \t\r\u00e9", max_size=12), max_size=12), st.booleans())
def test_lines_are_found_as_python_splits_them(lines: list[str], ends_with_newline: bool) -> None:
    import tempfile

    data = "\n".join(lines).encode() + (b"\n" if ends_with_newline else b"")
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        found = LineFile(Path(file.name))
        numbered_lines = [(found.number(index), found.line(index)) for index in range(len(found))]
    expected = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip() or len(line) > 8]
    assert numbered_lines == expected
