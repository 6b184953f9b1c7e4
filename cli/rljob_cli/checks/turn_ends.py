"""The token that a chat template ends an assistant's turn with, found by rendering a conversation.

For `checks.ends`. Renders as transformers does, in jinja's sandbox; where jinja is not installed, or the template
refuses the conversation, nothing is known.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_cli.checks.models import json_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rljob_api.spec.data import ChatTemplateSpec


_ANSWER = "rljob-looks-behind-this"


_CONVERSATION = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": _ANSWER},
    {"role": "user", "content": "b"},
]


def template_text(given: ChatTemplateSpec | None, folder: Path | None) -> str | None:
    """The job's template, else that of the tokenizer in `folder`; None where there is none that can be read."""
    if given is not None and given.file is not None:
        return _text_in(Path(given.file))
    if folder is None:
        return None
    own = (json_object(folder / "tokenizer_config.json") or {}).get("chat_template")
    return _text_in(folder / "chat_template.jinja") or (own if isinstance(own, str) else None)


def end_of_turn(text: str, variables: Mapping[str, Any], added: Iterable[str]) -> str | None:
    """The one of the `added` tokens that stands behind an assistant's words; None where none does."""
    behind = _rendered(text, variables).rpartition(_ANSWER)[2].lstrip()
    return max((token for token in added if token and behind.startswith(token)), key=len, default=None)


def _rendered(text: str, variables: Mapping[str, Any]) -> str:
    """The conversation; empty where the template refuses it."""
    if find_spec("jinja2") is None:
        return ""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag of transformers that marks what an assistant has said."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            """The statements in it."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> str:
        raise TemplateError(message)

    settings = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    settings.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    settings.globals |= {"raise_exception": refuse, "strftime_now": lambda _: ""}
    try:
        return settings.from_string(text).render(
            messages=_CONVERSATION, add_generation_prompt=False, tools=None, **variables
        )
    except Exception:  # a template is a user's program: whatever it raises, its own check and the start name it
        return ""


def _text_in(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
