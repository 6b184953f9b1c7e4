"""Saved tokenizers ask as the job did: the same messages are the same tokens, as transformers reads the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rljob_api.spec.data import DataSpec
from rljob_api.spec.model import ModelSpec, TokenizerConfig, TokenizerKind
from rljob_workers.data import build_prompt_source
from rljob_workers.models.building import model_files
from rljob_workers.models.chat_templates import TemplateUnreadable, chat_template_of
from rljob_workers.models.saved_templates import saved_template, template_as_trained, with_template
from rljob_workers.models.tokenizers import build_tokenizer, make_tokenizer

MODEL = ModelSpec.model_validate({"config": {"tokenizer": {"kind": "Byte"}}})
OWN = (
    "{%- if tools %}{{ tools | tojson }}{% endif -%}"
    "{%- for message in messages -%}[{{ message.role }}]{{ message.content }}{%- endfor -%}"
    "[assistant]{%- if enable_thinking is defined and not enable_thinking %}<no thinking>{% endif -%}"
)
DEFAULTING = (
    "{%- if messages[0].role == 'system' -%}{%- set first = messages[0].content -%}{%- set rest = messages[1:] -%}"
    "{%- else -%}{%- set first = 'be helpful' -%}{%- set rest = messages -%}{%- endif -%}"
    "<{{ first }}>{%- for m in rest %}{{ m.role }}={{ m.content }};{% endfor -%}"
)
MACRO = "{% macro all() %}{% for m in messages %}({{ m.role }} {{ m.content }}){% endfor %}{% endmacro %}{{ all() }}"
PARTS = "{% for m in messages %}{{ m.role[0] }}:{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add", "description": 'of "two" {{ numbers }}\n', "strict": None}}
HARD = "a \"quoted\" 'word', {{ braces }} {% raw %} %} \\boxed{} \\n \t\n\r\n ünï 語 😀 \u2028 end"
USER = [{"role": "user", "content": "hi"}]
SYSTEM = [{"role": "system", "content": "own"}, *USER]


def tokenizer_with(template: Any) -> PreTrainedTokenizerBase:
    tokenizer = make_tokenizer(TokenizerConfig(kind=TokenizerKind.BYTE))
    tokenizer.chat_template = template
    return tokenizer


def saved(tokenizer: PreTrainedTokenizerBase, data: DataSpec, to: Path) -> PreTrainedTokenizerBase:
    """As AutoTokenizer reads what is saved."""
    to.mkdir()
    for name, content in with_template(model_files(MODEL, tokenizer), saved_template(data, tokenizer)).items():
        (to / name).write_bytes(content)
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(to), local_files_only=True)
    return loaded


def asked(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
    """As a server asks."""
    ids: Any = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False, **variables
    )
    return list(ids)


def trained(folder: Path, tokenizer: PreTrainedTokenizerBase, prompt: Any, fields: dict[str, Any]) -> list[int]:
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n")
    spec = DataSpec.model_validate({"prompts": str(folder / "prompts.jsonl"), **fields})
    return list(build_prompt_source(spec, tokenizer).at(0).token_ids)


@pytest.mark.parametrize(
    "template", [OWN, DEFAULTING, MACRO, f"\n\nhead\n{OWN}", f"  {{% if true %}}{OWN}{{% endif %}}\n x\n\n"]
)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="the tokenizer's own"),
        pytest.param({"systemPrompt": "be brief"}, id="a system prompt"),
        pytest.param({"systemPrompt": HARD}, id="a system prompt of all kinds of characters"),
        pytest.param({"chatTemplate": {"file": "FILE"}}, id="a file"),
        pytest.param({"chatTemplate": {"file": "FILE"}, "systemPrompt": HARD}, id="a file and a system prompt"),
    ],
)
def test_messages_are_the_tokens_of_training(template: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """For a text that was wrapped, for a chat, and for a chat with a system's message of its own."""
    (tmp_path / "t.jinja").write_text(f"own: {template}")
    if "chatTemplate" in fields:
        fields = {**fields, "chatTemplate": {"file": str(tmp_path / "t.jinja")}}
    tokenizer = tokenizer_with(template)
    loaded = saved(tokenizer, DataSpec.model_validate({"prompts": "p", **fields}), tmp_path / "to")
    for prompt, messages in (("hi", USER), (USER, USER), (SYSTEM, SYSTEM)):
        expected = trained(tmp_path, tokenizer, prompt, {**fields, "applyChatTemplate": True})
        assert asked(loaded, messages) == expected


@pytest.mark.parametrize(
    "given_fields",
    [
        pytest.param({"kwargs": {"enable_thinking": False}}, id="a variable"),
        pytest.param({"tools": [TOOL]}, id="a tool"),
        pytest.param({"kwargs": {"enable_thinking": False}, "tools": [TOOL, TOOL]}, id="both"),
    ],
)
def test_variables_and_tools_hold_where_a_caller_gives_none(given_fields: dict[str, Any], tmp_path: Path) -> None:
    fields = {"chatTemplate": given_fields, "systemPrompt": "be brief", "applyChatTemplate": True}
    tokenizer = tokenizer_with(OWN)
    loaded = saved(tokenizer, DataSpec.model_validate({"prompts": "p", **fields}), tmp_path / "to")
    expected = trained(tmp_path, tokenizer, "hi", fields)
    assert asked(loaded, USER) == expected
    if "kwargs" in given_fields:
        assert asked(loaded, USER, enable_thinking=True) != expected


@pytest.mark.parametrize("system", ["be brief", HARD])
@pytest.mark.parametrize("template", [PARTS, OWN], ids=["parts alone", "texts"])
def test_a_system_prompt_is_of_the_form_that_the_template_reads(template: str, system: str, tmp_path: Path) -> None:
    """Servers, too, make parts of contents where a template reads parts alone."""
    tokenizer = tokenizer_with(template)
    fields = {"systemPrompt": system}
    loaded = saved(tokenizer, DataSpec.model_validate({"prompts": "p", **fields}), tmp_path / "to")
    user = {"role": "user", "content": [{"type": "text", "text": "hi"}] if template is PARTS else "hi"}
    assert asked(loaded, [user]) == trained(tmp_path, tokenizer, USER, fields)
    assert system in tokenizer.decode(asked(loaded, [user]))


def test_a_job_that_begins_with_the_saved_folder_may_give_the_same_again(tmp_path: Path) -> None:
    """A variable is still one that the template reads, and a system's message is not put there twice."""
    fields = {"chatTemplate": {"kwargs": {"enable_thinking": False}}, "systemPrompt": "be brief"}
    data = DataSpec.model_validate({"prompts": "p", **fields})
    tokenizer = tokenizer_with(OWN)
    once = saved(tokenizer, data, tmp_path / "once")
    assert chat_template_of(data.chat_template, once).kwargs == {"enable_thinking": False}
    twice = saved(once, data, tmp_path / "twice")
    assert asked(twice, USER) == asked(once, USER) == trained(tmp_path, once, USER, fields)


def test_it_is_where_old_and_new_versions_of_transformers_look(tmp_path: Path) -> None:
    data = DataSpec(prompts="p", system_prompt="be brief")
    loaded = saved(tokenizer_with(OWN), data, tmp_path / "to")
    old = json.loads((tmp_path / "to" / "tokenizer_config.json").read_bytes())["chat_template"]
    assert old == (tmp_path / "to" / "chat_template.jinja").read_text() == loaded.chat_template


def test_several_templates_of_a_tokenizer_are_saved_together(tmp_path: Path) -> None:
    several = {"default": OWN, "tool_use": f"tools: {OWN}"}
    assert saved(tokenizer_with(several), DataSpec(prompts="p"), tmp_path / "to").chat_template == several
    data = DataSpec.model_validate({"prompts": "p", "chatTemplate": {"tools": [TOOL]}})
    one = saved(tokenizer_with(several), data, tmp_path / "with-tools")
    expected = trained(
        tmp_path, tokenizer_with(several), "hi", {"chatTemplate": {"tools": [TOOL]}, "applyChatTemplate": True}
    )
    assert asked(one, USER) == expected


def test_a_tokenizer_without_a_template_is_saved_without_one(tmp_path: Path) -> None:
    assert saved(tokenizer_with(None), DataSpec(prompts="p"), tmp_path / "to").chat_template is None


def test_a_file_that_the_actor_cannot_read_is_a_sentence_and_no_end_of_the_job() -> None:
    data = DataSpec.model_validate({"prompts": "p", "chatTemplate": {"file": "/absent.jinja"}, "systemPrompt": "x"})
    tokenizer = build_tokenizer(MODEL)
    with pytest.raises(TemplateUnreadable):
        template_as_trained(data, tokenizer)
    found = saved_template(data, tokenizer)
    assert found.text == tokenizer.chat_template
    assert found.problem is not None
    assert found.problem.startswith("data.chatTemplate.file: /absent.jinja cannot be read (No such file or directory).")
    assert "Checkpoints have the tokenizer's own template until the actor can read it" in found.problem


@given(system=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_every_system_prompt_is_rendered_as_it_is(system: str) -> None:
    tokenizer = tokenizer_with(OWN)
    text = template_as_trained(DataSpec(prompts="p", system_prompt=system), tokenizer)
    found = tokenizer.apply_chat_template(USER, chat_template=text, tokenize=False, add_generation_prompt=True)
    assert found == f"[system]{system}[user]hi[assistant]"
