"""The prompt of a row: a text, or the messages of a conversation in the one form that templates and rewards get; tools.

Used by the sources of prompts and by the checks of a manifest, so that both refuse the same rows. Pure.

A field of a message whose value is null is left out, however deep it stands: Parquet and Arrow give every message the
fields of all others and fill them with nulls, and a null that was written cannot be told from these. `content` is
always a text afterwards: parts of text are joined, and it is empty where a message has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from rljob_api.other_names.absent import absent_sentence

Message: TypeAlias = Mapping[str, Any]
"""With `role` and `content`, both texts, and whatever else it was given, such as `tool_calls`."""

Tool: TypeAlias = Mapping[str, Any]
"""A schema of a function, as transformers takes it."""

TOOLS = "tools"
"""The column of a row that has its tools, as in data sets of TRL."""

_ASKING = frozenset(("user", "system", "developer"))
"""Roles whose messages are nothing but their content."""


def read_prompt(prompt: Any) -> str | tuple[Message, ...]:  # noqa: ANN401 - judged here
    """The prompt that a row has under its key. ValueError, a predicate with its cure, where that is no prompt."""
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError("is empty. Write a prompt, or remove it.")
        return _encodable(prompt)
    if not isinstance(prompt, list):
        raise ValueError("is neither text nor a list of chat messages. Give one of them.")
    messages = tuple(_message(each, number) for number, each in enumerate(prompt, start=1))
    if not any(message["content"] or message.get("tool_calls") for message in messages):
        raise ValueError("has no message that says anything. Give at least one a content, or remove it.")
    return messages


def read_tools(given: Any) -> tuple[Tool, ...] | None:  # noqa: ANN401 - judged here
    """The tools that a row gives to its template; None: it names none, and has those of the job.

    ValueError, a predicate with its cure, where they are no list of schemas, nor one as JSON, which keeps its nulls.
    """
    if given is None:
        return None
    try:
        tools = json.loads(given) if isinstance(given, str) else _without_nulls(given)
    except ValueError:
        tools = None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and tool for tool in tools):
        raise ValueError(
            "are neither a list of schemas of functions nor such a list as JSON. Correct them, or give the column"
            " another name, so that the chat template does not get it."
        )
    return tuple(tools)


def spoken_text(prompt: str | tuple[Message, ...]) -> str:
    """The contents of all messages, a line for each; without the template."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def whole_text(prompt: str | tuple[Message, ...]) -> str:
    """All that a template may show of the messages, roles and calls of tools included."""
    if isinstance(prompt, str):
        return prompt
    return "".join(f"{each['role']}{each['content']}{_calls_text(each)}" for each in prompt)


def _calls_text(message: Message) -> str:
    return json.dumps(message["tool_calls"], ensure_ascii=False, default=str) if "tool_calls" in message else ""


def _message(given: object, number: int) -> Message:
    role = given.get("role") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(role, str) or not role:
        raise ValueError("is no list of chat messages. Give each a role and content.")
    where = f"message {number} ({role})"
    fields: dict[str, Any] = _without_nulls(given)
    if "content" not in fields and role in _ASKING:
        raise ValueError(f"has no content in {where}. Give it a text.")
    return {"role": role, "content": _content(fields.pop("content", ""), where)} | fields


def _content(content: object, where: str) -> str:
    if isinstance(content, list):
        return "".join(_text_of_part(part, where) for part in content)
    if not isinstance(content, str):
        kind = type(content).__name__
        raise ValueError(f"has a content of type {kind} in {where}. Give a text, or a list of parts of text.")
    return _encodable(content)


def _text_of_part(part: object, where: str) -> str:
    if isinstance(part, str):
        return _encodable(part)
    fields = part if isinstance(part, dict) else {}
    kind, text = fields.get("type", "text"), fields.get("text")
    if kind != "text":
        raise ValueError(f"has a part of type {kind} in {where}, not text. Remove it. {absent_sentence('images')}")
    if not isinstance(text, str):
        raise ValueError(f'has a part without text in {where}. Write it as {{"type": "text", "text": "..."}}.')
    return _encodable(text)


def _without_nulls(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Items of lists stay, since Arrow fills no list."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _encodable(text: str) -> str:
    """JSON can name half of a character, which has no tokens."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ValueError(f"has half of a character ({half!r}), which is no text. Write the whole one.") from error
    return text
