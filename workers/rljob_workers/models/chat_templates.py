"""Chat templates: what makes one text of messages, by the tokenizer's own apply_chat_template.

For data sources. A variable that the template never reads is refused: mostly it is a typing error, and it would change
nothing without a sign of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from rljob_api.row_files.conversations import Tool
from rljob_api.text_encoding import decoded
from rljob_workers.models.template_forms import Messages, TemplateForms, forms_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec.data import ChatTemplateSpec


class _Generation(Extension):
    """The tag `generation` of transformers, which marks what an assistant has said."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """What is in it."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template and what it is given beside the messages."""

    text: str | None = None
    """Jinja; None: the tokenizer's own."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Tool] = ()

    def render(
        self, tokenizer: PreTrainedTokenizerBase, messages: Messages, own_tools: Sequence[Tool] | None = None
    ) -> str:
        """With the generation prompt, and with tools of the conversation's own where they are given.

        ValueError where there is no template, and where it refuses the messages.
        """
        if self.text is None and tokenizer.chat_template is None:
            raise ValueError(
                "data.promptKey: the prompt is a list of chat messages, but the tokenizer has no chat template."
                " Use string prompts, a tokenizer with a chat template, or data.chatTemplate.file."
            )
        tools = [dict(tool) for tool in (self.tools if own_tools is None else own_tools)] or None
        text = tokenizer.get_chat_template(self.text, tools=tools)
        fitting = forms_in(tokenizer, text).fitting(messages)
        return _rendered(tokenizer, text, fitting, {**self.kwargs, "tools": tools})


@lru_cache(maxsize=8)
def forms_in(tokenizer: PreTrainedTokenizerBase, template: str) -> TemplateForms:
    """The forms in which a template reads messages; also for what is saved of it."""
    return forms_of(lambda messages: _rendered(tokenizer, template, messages, {}))


def _rendered(
    tokenizer: PreTrainedTokenizerBase, template: str, messages: Messages, variables: Mapping[str, Any]
) -> str:
    """Any error of a template's own: what it does with a value is its affair, and the value the user's."""
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                **variables,
            )
        )
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"data.chatTemplate: the template refuses the messages ({error}). Correct them or the template."
        ) from error


class TemplateUnreadable(ValueError):
    """`chatTemplate.file` cannot be read here; with a sentence."""


OWN_TEMPLATE = ChatTemplate()
"""The tokenizer's, and nothing but the messages."""


def chat_template_of(spec: ChatTemplateSpec | None, tokenizer: PreTrainedTokenizerBase) -> ChatTemplate:
    """What a job gives. ValueError for a file that cannot be read, and for variables that the template never reads."""
    if spec is None:
        return OWN_TEMPLATE
    template = ChatTemplate(_text_of(spec.file), spec.kwargs, spec.tools)
    read = _variables(template, tokenizer)
    given = {f"chatTemplate.kwargs: {name}": name for name in spec.kwargs}
    if spec.tools:
        given["chatTemplate.tools"] = "tools"
    for what, name in given.items():
        if name not in read:
            raise ValueError(
                f"data.{what} is nothing that the chat template reads; its variables are {', '.join(sorted(read))}."
                " Correct the name or remove it."
            )
    return template


def _text_of(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return decoded(Path(file).read_bytes())
    except OSError as error:
        raise TemplateUnreadable(
            f"data.chatTemplate.file: {file} cannot be read ({error.strerror}). Relative paths are relative to the"
            " manifest."
        ) from error
    except ValueError as error:
        raise TemplateUnreadable(f"data.chatTemplate.file: {file} {error}") from error


def _variables(template: ChatTemplate, tokenizer: PreTrainedTokenizerBase) -> set[str]:
    if template.text is None and tokenizer.chat_template is None:
        raise ValueError(
            "data.chatTemplate: the tokenizer has no chat template. Give data.chatTemplate.file, or another tokenizer."
        )
    text = template.text or tokenizer.get_chat_template(tools=[dict(tool) for tool in template.tools] or None)
    environment = jinja2.Environment(extensions=[loopcontrols, _Generation])  # noqa: S701 - parsed, and never rendered
    try:
        return meta.find_undeclared_variables(environment.parse(text))
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"data.chatTemplate: line {error.lineno} of the template is no Jinja ({error.message}). Correct it."
        ) from error
