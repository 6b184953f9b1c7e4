"""The chat template that goes with saved weights: it makes of messages alone what the job's prompts were made of.

For what is saved of actor and critic. A job gives its template variables, tools and a system's message beside the
messages (`spec.data`); a client of the served weights gives messages alone. So the rest stands in the saved template,
and holds where a caller gives nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rljob_workers.models.chat_templates import TemplateUnreadable, chat_template_of, forms_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec.data import DataSpec


_TEMPLATE_FILE, _CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class SavedTemplate:
    """A template as it is saved."""

    text: str | None
    """None: what the tokenizer has by itself, which is none or several."""
    problem: str | None = None
    """Why it is not the job's; a sentence."""


def saved_template(data: DataSpec, tokenizer: PreTrainedTokenizerBase) -> SavedTemplate:
    """Template for a rank that saves. Prompts are the rollout's, so that its pod alone may have the template's file."""
    try:
        return SavedTemplate(template_as_trained(data, tokenizer))
    except TemplateUnreadable as error:
        return SavedTemplate(
            _own_text(tokenizer),
            f"{error} Checkpoints have the tokenizer's own template until the actor can read it, too: mount it by"
            " roles.actor.template.",
        )


def with_template(files: Mapping[str, bytes], template: SavedTemplate) -> dict[str, bytes]:
    """A tokenizer's `files` with the template in a file of its own, and where older versions of transformers look."""
    if template.text is None:
        return dict(files)
    config = {**json.loads(files[_CONFIG_FILE]), "chat_template": template.text}
    return {
        **files,
        _TEMPLATE_FILE: template.text.encode(),
        _CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode(),
    }


def template_as_trained(data: DataSpec, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The template, with what the job gives it; None where neither job nor tokenizer has a single one."""
    if data.chat_template is None and (data.system_prompt is None or tokenizer.chat_template is None):
        return _own_text(tokenizer)
    template = chat_template_of(data.chat_template, tokenizer)
    tools = [dict(tool) for tool in template.tools]
    text = template.text or tokenizer.get_chat_template(tools=tools or None)
    defaults = [*_variable_defaults(template.kwargs, tools)]
    if data.system_prompt is not None:
        message = {"role": "system", "content": data.system_prompt}
        defaults.append(_system_default(forms_in(tokenizer, text).fitting([message])))
    # The line's end is trimmed, and what follows begins a line as it did.
    return "".join(f"{default}\n" for default in defaults) + text


def _own_text(tokenizer: PreTrainedTokenizerBase) -> str | None:
    own = tokenizer.chat_template
    return own if isinstance(own, str) else None


def _variable_defaults(variables: Mapping[str, Any], tools: list[dict[str, Any]]) -> Iterator[str]:
    for name, value in variables.items():
        yield f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
    if tools:
        yield f"{{%- if not tools %}}{{%- set tools = {_literal(tools)} %}}{{%- endif %}}"


def _system_default(system: list[dict[str, Any]]) -> str:
    return (
        "{%- if messages and messages[0]['role'] != 'system' %}"
        f"{{%- set messages = {_literal(system)} + messages %}}{{%- endif %}}"
    )


def _literal(value: Any) -> str:  # noqa: ANN401 - JSON
    """As Jinja writes it: JSON but for three words, which may stand within texts as well."""
    match value:
        case None | True | False:
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{_literal(str(key))}: {_literal(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
