"""Prompts of rows: what messages become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.row_files.conversations import read_prompt, spoken_text

USER = {"role": "user", "content": "Paris?"}


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "user", "content": "a", "name": None}, {"role": "user", "content": "a"}, id="a field"),
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [call({"city": "Paris", "zone": None})]},
            {"role": "assistant", "content": "", "tool_calls": [call({"city": "Paris"})]},
            id="arguments that a row does not have, and no content",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [call({"at": {"x": None, "y": [{"z": None}, None]}})]},
            {"role": "assistant", "content": "", "tool_calls": [call({"at": {"y": [{}, None]}})]},
            id="any depth, but items of lists",
        ),
        pytest.param(
            {"role": "assistant", "content": "", "tool_calls": [call('{"zone": null}')]},
            {"role": "assistant", "content": "", "tool_calls": [call('{"zone": null}')]},
            id="arguments that are a text keep theirs",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "c1", "content": None},
            {"role": "tool", "content": "", "tool_call_id": "c1"},
            id="a tool that gave nothing",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a b"},
            id="parts are joined",
        ),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "a", "image_url": None}, "b"]},
            {"role": "user", "content": "ab"},
            id="parts with fields of others, and texts as parts",
        ),
    ],
)
def test_a_message_has_what_was_given_and_a_text(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read_prompt([USER, message]) == (USER, expected)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        pytest.param("", "is empty. Write a prompt, or remove it.", id="an empty text"),
        pytest.param(5, "is neither text nor a list of chat messages. Give one of them.", id="a number"),
        pytest.param(None, "is neither text nor a list of chat messages. Give one of them.", id="null"),
        pytest.param(
            {"role": ["user"], "content": ["a"]},
            "is neither text nor a list of chat messages. Give one of them.",
            id="an object of lists",
        ),
        pytest.param([], "has no message that says anything. Give at least one a content, or remove it.", id="none"),
        pytest.param(
            [{"role": "user", "content": ""}],
            "has no message that says anything. Give at least one a content, or remove it.",
            id="empty messages",
        ),
        pytest.param(
            [{"content": "a"}], "is no list of chat messages. Give each a role and content.", id="without a role"
        ),
        pytest.param(["a"], "is no list of chat messages. Give each a role and content.", id="a list of texts"),
        pytest.param(
            [USER, {"role": "user", "content": None}],
            "has no content in message 2 (user). Give it a text.",
            id="a user who says nothing",
        ),
        pytest.param(
            [{"role": "user", "content": {"a": 1}}],
            "has a content of type dict in message 1 (user). Give a text, or a list of parts of text.",
            id="an object",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}],
            "has a part of type image_url in message 1 (user), not text. Remove it. RLJob does not have images, audio,"
            " video: prompts and answers are texts (docs/coming-from.md#what-there-is-not).",
            id="an image",
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text"}]}],
            'has a part without text in message 1 (user). Write it as {"type": "text", "text": "..."}.',
            id="a part without text",
        ),
        pytest.param(
            "a\ud83d", "has half of a character ('\\ud83d'), which is no text. Write the whole one.", id="a surrogate"
        ),
    ],
)
def test_what_is_no_prompt_is_refused_with_a_cure(prompt: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"\.") as raised:
        read_prompt(prompt)
    assert str(raised.value) == sentence


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def has_null_field(value: Any) -> bool:
    if isinstance(value, dict):
        return any(inner is None or has_null_field(inner) for inner in value.values())
    return isinstance(value, list) and any(map(has_null_field, value))


@given(st.dictionaries(st.text(max_size=3), JSON_VALUES, max_size=3))
def test_no_field_of_a_message_is_null_and_reading_again_changes_nothing(fields: dict[str, Any]) -> None:
    read = read_prompt([{**fields, "role": "user", "content": "a"}])
    assert isinstance(read, tuple)
    assert not any(map(has_null_field, read))
    assert read_prompt(list(read)) == read
    assert spoken_text(read) == "a"
