"""What a template is given, by transformers' own apply_chat_template; variables that it never reads are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import TokenizerConfig, TokenizerKind
from rljob_workers.data import build_prompt_source
from rljob_workers.models.chat_templates import ChatTemplate
from rljob_workers.models.tokenizers import make_tokenizer

TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{% endif -%}"
    "{%- for message in messages -%}[{{ message.role }}]"
    "{% generation %}{{ message.content }}{% endgeneration %}{%- endfor -%}"
    "[assistant]{%- if enable_thinking is defined and not enable_thinking %}<no thinking>{% endif -%}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def rendered(folder: Path, prompt: Any, own: str | None = TEMPLATE, **fields: Any) -> str:
    path = folder / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": prompt}) + "\n")
    tokenizer = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))
    tokenizer.chat_template = own
    spec = DataSpec.model_validate({"prompts": str(path), **fields})
    return str(tokenizer.decode(list(build_prompt_source(spec, tokenizer).at(0).token_ids)))


def test_variables_tools_and_the_systems_message(tmp_path: Path) -> None:
    wrapped: dict[str, Any] = {"applyChatTemplate": True}
    assert rendered(tmp_path, "hi", **wrapped) == "[user]hi[assistant]"
    assert rendered(tmp_path, "hi", systemPrompt="be brief", **wrapped) == "[system]be brief[user]hi[assistant]"
    no_thinking = {"kwargs": {"enable_thinking": False}}
    assert rendered(tmp_path, "hi", chatTemplate=no_thinking, **wrapped) == "[user]hi[assistant]<no thinking>"
    shown = rendered(tmp_path, "hi", chatTemplate={"tools": [TOOL]}, **wrapped)
    assert json.loads(shown.removesuffix("[user]hi[assistant]")) == [TOOL]


def test_a_chat_with_a_system_of_its_own_keeps_it(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]
    assert rendered(tmp_path, chat, systemPrompt="other") == "[system]own[user]hi[assistant]"
    assert rendered(tmp_path, chat[1:], systemPrompt="other") == "[system]other[user]hi[assistant]"


def test_a_file_replaces_the_tokenizers_own(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")
    template = {"file": str(tmp_path / "t.jinja")}
    assert rendered(tmp_path, "hi", chatTemplate=template, applyChatTemplate=True) == "<hi>"
    assert rendered(tmp_path, "hi", None, chatTemplate=template, applyChatTemplate=True) == "<hi>"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        pytest.param(
            {"chatTemplate": {"kwargs": {"enable_thinkin": False}}},
            r"^data\.chatTemplate\.kwargs: enable_thinkin is nothing that the chat template reads; its variables are"
            r" enable_thinking, messages, tools\.",
            id="a typing error",
        ),
        pytest.param(
            {"chatTemplate": {"file": "/nowhere/t.jinja"}},
            r"^data\.chatTemplate\.file: /nowhere/t\.jinja cannot be read \(No such file or directory\)",
            id="no file",
        ),
        pytest.param({"systemPrompt": "s"}, r"^data\.systemPrompt: the prompt of .* line 1 is a text", id="no chat"),
        pytest.param({"chatTemplate": {"kwargs": {"tokenize": True}}}, "tokenize is no variable", id="ours"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rendered(tmp_path, "hi", **fields)


def test_a_file_that_is_no_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("a\n{% for %}")
    with pytest.raises(ValueError, match=r"^data\.chatTemplate: line 2 of the template is no Jinja"):
        rendered(tmp_path, "hi", chatTemplate={"file": str(tmp_path / "t.jinja"), "kwargs": {"a": 1}})


def test_a_template_that_refuses_messages_is_named() -> None:
    tokenizer = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))
    template = ChatTemplate("{{ raise_exception('no system, please') }}")
    with pytest.raises(ValueError, match=r"^data\.chatTemplate: the template refuses the messages \(no system, please"):
        template.render(tokenizer, [{"role": "user", "content": "a"}])
