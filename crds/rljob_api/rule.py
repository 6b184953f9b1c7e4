"""A cross-field rule: written once, checked in Python and, where CEL can express it, by the API server too.

`rljob_api.spec` attaches tables of rules to its models; `generate.crd` finds them in the JSON schema. No rule does I/O.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from pydantic import GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema

from rljob_api.base import ApiModel

VALIDATIONS = "x-kubernetes-validations"
BROKEN_RULE = "broken_rule"
"""Type of the pydantic error of broken rules; its context holds `broken`, a list of (field, sentence)."""

WITHOUT_RULES = "without rules"
"""Context of a validation that looks at single fields alone."""

_PLACEHOLDER = re.compile(r"\{([\w.]+)\}")
_ITEM = re.compile(r"\.\d+(\..*)?$")
"""An item of a list, and what is in it: rules name the list."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A value that no field has and a sentence needs."""

    value: Callable[[Any], object]
    """Takes the value from a model that breaks the rule."""
    cel: str
    """The same over `self`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that must hold between the fields of one model."""

    field: str
    """The field to change, as a path of camelCase names relative to the model."""
    holds: Callable[[Any], bool]
    """The rule, given the model."""
    sentence: str
    """Value, bound and cure; `{path.to.field}` stands for the value of a field that is set whenever the rule breaks."""
    cel: str
    """The same rule over `self`, in which a field that the rule does not test with `has` has its default
    (`generate.cel`); items of lists, which have names of their own, have not."""
    derived: Mapping[str, Derived] = dataclasses.field(default_factory=dict)
    """Values that the sentence names beside fields; their names have no field's spelling."""

    def text(self, model: ApiModel) -> str:
        """The sentence for a model that breaks the rule."""
        return _PLACEHOLDER.sub(lambda found: _shown(self._value(model, found[1])), self.sentence)

    def validation(self) -> dict[str, str]:
        """The rule as an entry of x-kubernetes-validations."""
        entry = {"rule": self.cel, "fieldPath": f".{self.field}"}
        if _PLACEHOLDER.search(self.sentence):
            return entry | {"messageExpression": self._message_expression()}
        return entry | {"message": self.sentence}

    def _message_expression(self) -> str:
        # format() and not added strings: the API server bounds the cost of a sum by the longest strings
        # thinkable, and refuses the CRD.
        template = _PLACEHOLDER.sub("%s", _escaped(self.sentence))
        values = ", ".join(f"string({self._cel_value(path)})" for path in _PLACEHOLDER.findall(self.sentence))
        return f"'{template}'.format([{values}])"

    def _value(self, model: ApiModel, name: str) -> object:
        return self.derived[name].value(model) if name in self.derived else _value_at(model, name)

    def _cel_value(self, name: str) -> str:
        return self.derived[name].cel if name in self.derived else f"self.{name}"


class RuledModel(ApiModel):
    """A model whose fields must agree with each other."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obey_rules(self, info: ValidationInfo) -> Self:
        if info.context == WITHOUT_RULES:
            return self
        broken = [(rule.field, rule.text(self)) for rule in type(self).rules if not rule.holds(self)]
        if broken:
            text = " ".join(f"{field}: {sentence}" for field, sentence in broken)
            raise PydanticCustomError(BROKEN_RULE, "{text}", {"text": text, "broken": broken})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Adds the rules to the model's node."""
        node = handler.resolve_ref_schema(handler(schema))
        if cls.rules:
            node[VALIDATIONS] = [rule.validation() for rule in cls.rules]
        return node


def rules_beside(rules: Iterable[Rule], path: str, bad: Collection[str]) -> Iterator[Rule]:
    """Rules of the model at `path` that depend on no refused field."""
    is_refused = any(path == field or path.startswith(f"{field}.") for field in bad)
    below = [_ITEM.sub("", field.removeprefix(f"{path}.")) for field in bad if field.startswith(f"{path}.")]
    for rule in rules:
        named = f"{rule.cel} self.{rule.field}"
        if not is_refused and not any(re.search(rf"self\.{re.escape(field)}\b", named) for field in below):
            yield rule


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'").replace("%", "%%")


def _value_at(model: ApiModel, path: str) -> object:
    value: object = model
    for name in path.split("."):
        value = getattr(value, to_snake(name))
    return value


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value.value) if isinstance(value, Enum) else str(value)
