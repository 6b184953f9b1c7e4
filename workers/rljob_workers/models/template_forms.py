"""The forms in which a chat template reads contents and arguments of tool calls, found by rendering a conversation.

Called by chat templates alone. Templates differ: nearly all add a content to a text, those of models that see images go
through its parts; most encode the arguments of a call as JSON, some add them as the JSON that they are. In the wrong
form a template fails or, worse, leaves out what it was given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Render: TypeAlias = Callable[[Messages], str]
"""ValueError where the template refuses the messages."""

_MARK = "rljob1"
_ARGUMENTS = {_MARK: 1}


@dataclass(frozen=True, slots=True)
class TemplateForms:
    """Forms that a template reads."""

    parts_alone: bool
    """A content only as a list of parts."""
    arguments_as_text: bool
    """Arguments of a tool call only as JSON, not as an object."""

    def fitting(self, messages: Messages) -> list[dict[str, Any]]:
        """The messages as the template reads them."""
        return [self._fitting(message) for message in messages]

    def _fitting(self, message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
        if self.parts_alone:
            made["content"] = _parts(message["content"])
        if isinstance(calls := message.get("tool_calls"), list):
            made["tool_calls"] = [_with_arguments(call, as_text=self.arguments_as_text) for call in calls]
        return made


def forms_of(render: Render) -> TemplateForms:
    """The forms of the template that `render` renders."""
    text, parts = ([{"role": "user", "content": content}] for content in (_MARK, _parts(_MARK)))
    as_object, as_text = (_conversation(arguments) for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)))
    shown = _shown(render, as_object)
    return TemplateForms(
        parts_alone=_MARK not in _shown(render, text) and _MARK in _shown(render, parts),
        arguments_as_text=(_MARK not in shown or repr(_ARGUMENTS) in shown)
        and json.dumps(_ARGUMENTS) in _shown(render, as_text),
    )


def _parts(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


def _conversation(arguments: object) -> Messages:
    """Messages with one tool call; the form of its id is that which the strictest templates want."""
    call = {"id": "call00001", "type": "function", "function": {"name": "tool", "arguments": arguments}}
    return [
        {"role": "user", "content": "ask"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done", "name": "tool", "tool_call_id": "call00001"},
    ]


def _shown(render: Render, messages: Messages) -> str:
    try:
        return render(messages)
    except ValueError:
        return ""


def _with_arguments(call: Any, *, as_text: bool) -> Any:  # noqa: ANN401 - what a row has
    """A call of OpenAI's form, whose function is an object of its own, or one that is the function itself."""
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return call | {"function": _with_arguments(call["function"], as_text=as_text)}
    if "arguments" not in call:
        return call
    given = call["arguments"]
    return call | {"arguments": _as_text(given) if as_text else _as_object(given)}


def _as_text(arguments: object) -> object:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def _as_object(arguments: object) -> object:
    """A text that is no JSON object stays: a model may have written it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        read = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return read if isinstance(read, dict) else arguments
