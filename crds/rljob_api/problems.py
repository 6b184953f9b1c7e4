"""Turns what pydantic found wrong into a sentence. A manifest's names field, value, bound and cure.

Pure. Called by readers of manifests, statuses and messages of other processes.
"""

import json
import re
import types
import typing
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rljob_api.base import ApiModel
from rljob_api.other_names.hints import field_hint, nearest, value_hint
from rljob_api.quantity import QUANTITY
from rljob_api.rule import BROKEN_RULE
from rljob_api.spec import FORM_OF_NAME, JOB_NAME, LONGEST_JOB_NAME, RLJob

_LONGEST_VALUE = 60
_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer of at most 64 bits",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_FORMS = {
    "apiVersion": "Give rljob.dev/v1alpha1.",
    "kind": "Give RLJob.",
    "name": FORM_OF_NAME,
    "function": "Give an import path of the form package.module:function.",
    "sampleFilter": "Give an import path of the form package.module:function.",
    "filter": "Give NoVariance, or an import path of the form package.module:function.",
    "schedulerName": "Give the name of a scheduler, such as scheduler-plugins-scheduler.",
    "priorityClassName": "Give the name of a PriorityClass.",
    "key": "Give a label of nodes, such as topology.kubernetes.io/zone.",
    "deviceClass": "Give the name of a DeviceClass, such as gpu.nvidia.com.",
    "gpuResource": "Give a resource of Kubernetes with its domain, such as nvidia.com/gpu or amd.com/gpu.",
}


_WITH_NAMES = re.compile(r"\^\((\w+(?:\|\w+)*)\|\[")
"""The pattern of a field that takes a name of ours or an import path."""


def sentences(error: ValidationError) -> list[str]:
    """One sentence for each problem, in the order of the fields."""
    return [sentence for details in error.errors(include_url=False) for sentence in _sentences_of(details)]


def first_problem(error: ValidationError) -> str:
    """The first problem of a status or message, and where it is. No user wrote it, so there is no cure to name."""
    details = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{_path(details['loc'])}: {details['msg']}"


def _sentences_of(details: ErrorDetails) -> Iterable[str]:
    path = _path(details["loc"])
    if details["type"] == BROKEN_RULE:
        return [f"{_joined(path, field)}: {sentence}" for field, sentence in details["ctx"]["broken"]]
    return [f"{path}: {_what_and_cure(details)}"]


def _path(loc: tuple[int | str, ...]) -> str:
    """As the API server writes it: spec.restartPolicy.failureRules[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def _what_and_cure(details: ErrorDetails) -> str:
    kind = details["type"]
    if kind in _TYPES:
        return f"{_shown(details['input'])} is not {_TYPES[kind]}. Give {_TYPES[kind]}."
    if kind in _SENTENCES:
        return _SENTENCES[kind](details)
    return f"{_shown(details['input'])} is refused: {details['msg']}."


def _missing(details: ErrorDetails) -> str:
    return f"is missing. Give {_wanted(details['loc'])}."


def _wanted(loc: tuple[int | str, ...]) -> str:
    kind = _type_at(loc)
    if kind is not int:
        return "a string" if kind is str else "an object"
    limits = _limits(_fields(_type_at(loc[:-1]))[str(loc[-1])])
    return f"an integer from {limits['ge']} to {limits['le']}" if {"ge", "le"} <= limits.keys() else "an integer"


def least_value(loc: tuple[int | str, ...]) -> int | str | dict[str, Any] | None:
    """The least value of a required field; None where it is a text other than the job's name, or a list."""
    if loc == ("metadata", "name"):
        return "job"
    if _fields(_type_at(loc)):
        return {}
    if _type_at(loc) is not int:
        return None
    bound = _limits(_fields(_type_at(loc[:-1]))[str(loc[-1])]).get("ge", 0)
    return bound if isinstance(bound, int) else None


def may_be_meant(loc: tuple[int | str, ...], given: Iterable[str]) -> list[str]:
    """Fields that an unknown one beside the `given` ones may stand for: the nearest, else all that are not given."""
    known = _fields(_type_at(loc[:-1]))
    open_fields = [name for name in known if name not in set(given)]
    near = nearest(str(loc[-1]), known)
    return [near] if near in open_fields else open_fields


def _unknown_field(details: ErrorDetails) -> str:
    names = [part for part in details["loc"] if isinstance(part, str)]
    known = list(_fields(_type_at(details["loc"][:-1])))
    return f"there is no such field. {_field_cure(names, known)}"


def _field_cure(names: list[str], known: list[str]) -> str:
    """Another trainer's name, else the nearest one, else all that are known."""
    if near := nearest(names[-1], known):
        return f"Did you mean {near}?"
    return field_hint(names[1:]) or (f"Known here: {', '.join(known)}." if known else "Remove it.")


def _not_in_enum(details: ErrorDetails) -> str:
    return _not_known(details["input"], _enum_values(details["loc"]))


def _not_known(given: object, values: list[str], or_else: str = "") -> str:
    hint = value_hint(str(given), values) or f"Known here: {', '.join(values)}{or_else}."
    return f"{_shown(given)} is not a known value. {hint}"


def _wrong_form(details: ErrorDetails) -> str:
    pattern = details["ctx"].get("pattern")
    named = _WITH_NAMES.match(pattern or "")
    if named is not None and details["loc"][-1] not in _FORMS:
        own = "; or an import path of the form package.module:function"
        return _not_known(details["input"], named[1].split("|"), own)
    cure = _FORMS.get(str(details["loc"][-1]), f"It must match {pattern}.")
    if pattern == JOB_NAME:
        cure += _near_name(str(details["input"]))
    if pattern == QUANTITY:
        cure = 'Give an amount as Kubernetes writes it: "500m", 2, "8Gi".'
    return f"{_shown(details['input'])} is not of the right form. {cure}"


def _near_name(given: str) -> str:
    """A name that would do, for one that does not; empty where nothing of it would."""
    allowed = re.sub("[^a-z0-9]+", "-", given.lower()).strip("-")
    name = (allowed if allowed[:1].isalpha() else f"job-{allowed}")[:LONGEST_JOB_NAME].rstrip("-")
    return f" {name} would do." if allowed else ""


def _below(details: ErrorDetails) -> str:
    bound = _number(details["ctx"]["ge"])
    return f"{_shown(details['input'])} is below the minimum {bound}. Give a value of at least {bound}."


def _above(details: ErrorDetails) -> str:
    bound = _number(details["ctx"]["le"])
    return f"{_shown(details['input'])} is above the maximum {bound}. Give a value of at most {bound}."


def _not_above(details: ErrorDetails) -> str:
    bound = _number(details["ctx"]["gt"])
    return f"{_shown(details['input'])} is not above {bound}. Give a value above {bound}."


def _not_below(details: ErrorDetails) -> str:
    bound = _number(details["ctx"]["lt"])
    return f"{_shown(details['input'])} is not below {bound}. Give a value below {bound}."


def _not_multiple(details: ErrorDetails) -> str:
    factor = _number(details["ctx"]["multiple_of"])
    return f"{_shown(details['input'])} is not a multiple of {factor}. Give a multiple of {factor}."


def _too_short(details: ErrorDetails) -> str:
    return f"{_shown(details['input'])} is too short. Give at least {details['ctx']['min_length']} character."


def _too_long(details: ErrorDetails) -> str:
    return f"is longer than {details['ctx']['max_length']}. Shorten it."


def _validator_sentence(details: ErrorDetails) -> str:
    return str(details["ctx"]["error"])


_SENTENCES: dict[str, Callable[[ErrorDetails], str]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_field,
    "enum": _not_in_enum,
    "literal_error": _not_in_enum,
    "string_pattern_mismatch": _wrong_form,
    "greater_than_equal": _below,
    "less_than_equal": _above,
    "greater_than": _not_above,
    "less_than": _not_below,
    "multiple_of": _not_multiple,
    "string_too_short": _too_short,
    "string_too_long": _too_long,
    "too_long": _too_long,
    "value_error": _validator_sentence,
}


def _fields(model: object) -> dict[str, FieldInfo]:
    """The fields of a model by the names of the manifest; none where it is no model."""
    if not (isinstance(model, type) and issubclass(model, ApiModel)):
        return {}
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _enum_values(loc: tuple[int | str, ...]) -> list[str]:
    chosen = _type_at(loc)
    is_enum = isinstance(chosen, type) and issubclass(chosen, Enum)
    return [str(member.value) for member in chosen] if is_enum else []


def _limits(field: FieldInfo) -> dict[str, object]:
    """Bounds of a field by the names that annotated_types gives them."""
    names = ("ge", "le")
    return {name: getattr(rule, name) for rule in field.metadata for name in names if hasattr(rule, name)}


def _type_at(loc: tuple[int | str, ...]) -> Any:  # noqa: ANN401 - an annotation
    """The annotated type of the field at `loc`, without its `| None`; None where the path leaves the models."""
    current: Any = RLJob
    for part in loc:
        if isinstance(part, int):
            (current,) = typing.get_args(current) or (None,)
            continue
        field = _fields(current).get(part)
        current = None if field is None else _without_none(field.annotation)
    return current


def _without_none(annotation: Any) -> Any:  # noqa: ANN401 - an annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return next(member for member in typing.get_args(annotation) if member is not types.NoneType)
    return annotation


def _joined(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _number(bound: object) -> str:
    return f"{bound:.12g}" if isinstance(bound, float) else str(bound)
