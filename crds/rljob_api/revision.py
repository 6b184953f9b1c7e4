"""Two specs of one job: which changes are refused, whether a new epoch is due, and whether both are one run.

The meaning of a change is marked at each field (`rljob_api.change`); the table of all fields is made of the marks here.
Pure. The CRD reads the refusals, the operator the revision (a new one starts an epoch) and the run digest (it decides
whether a later job may train on from retained checkpoints), `rljob run` both.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel, ValidationError

from rljob_api.change import Change, OnChange
from rljob_api.spec import RLJobSpec

_LONGEST_VALUE = 80
"""Characters of a value in the sentence of a change."""


WAY_OUT = "Set it back, or go on as a new job: rljob clone NAME --from-checkpoint"
"""The cure on a cluster where a change is refused."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. A field that is an object stands for everything in it."""

    field: str
    """Path below `spec`, in the manifest's spelling."""
    change: Change
    reason: str = ""
    """Why it cannot change, or become less; only where that is refused."""

    def refusal(self) -> str:
        """The sentence of a refusal, without its cure."""
        what = "become less" if self.change is Change.GROWS else "change"
        return f"cannot {what} once the job exists: {self.reason}"


def rows_of(model: type[BaseModel], path: str = "", inherited: OnChange | None = None) -> Iterator[Row]:
    """The marks of a model's fields, each by the outermost field whose fields all have it."""
    for name, field in model.model_fields.items():
        where = f"{path}{field.alias or name}"
        mark = next((mark for mark in field.metadata if isinstance(mark, OnChange)), inherited)
        inner = next((part for part in (field.annotation, *get_args(field.annotation)) if _is_model(part)), None)
        rows = [] if inner is None else list(rows_of(inner, f"{where}.", mark))
        if mark is None and not rows:
            raise TypeError(f"spec.{where} does not say what a change of it means. Mark it as `rljob_api.change` says.")
        if mark is None or any((row.change, row.reason) != (mark.change, mark.reason) for row in rows):
            yield from rows
        else:
            yield Row(where, mark.change, mark.reason)


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:  # noqa: ANN401 - an annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


TABLE = tuple(rows_of(RLJobSpec))
"""Every field of the spec is in exactly one row, in the order of the spec."""


REFUSED = tuple(row for row in TABLE if row.change is Change.REFUSED)


GROWING = tuple(row for row in TABLE if row.change is Change.GROWS)


_BY_FIELD = {row.field: row for row in TABLE}


_NOT_GIVEN = {"checkpoint.everySteps": 1}
"""Values that count as not given, in place of the field's default, which counts as given: stored jobs have them written
in. No job that runs may get another revision by an upgrade, so this stays as it is."""


def row_of(field: str) -> Row:
    """The row that a field of the spec falls under. KeyError for what is in no row: there is no default."""
    parts = field.split(".")
    for end in range(len(parts), 0, -1):
        found = _BY_FIELD.get(".".join(parts[:end]))
        if found is not None:
            return found
    raise KeyError(f"spec.{field} is in no row of the table of changes: the spec has no such field.")


def revision(spec: RLJobSpec) -> str:
    """Digest of what an epoch runs with: another one means that a new epoch is due.

    Only values that differ from the defaults (or from `_NOT_GIVEN`) count, so that another version changes nothing.
    """
    part = {field: value for field, value in given(spec) if row_of(field).change is Change.RESTART}
    values = spec.model_dump(mode="json")
    for field, earlier in _NOT_GIVEN.items():
        value = _value_at(values, field)
        if value == earlier:
            part.pop(field, None)
        else:
            part[field] = value
    return _digest(part)


@dataclass(frozen=True, slots=True)
class RefusedChange:
    """A change that cannot be made."""

    field: str
    """Path below `spec` of the innermost field that differs."""
    old: object
    new: object
    row: Row


def refused_changes(old: RLJobSpec, new: RLJobSpec) -> list[RefusedChange]:
    """One change for each refused row of the table that differs, in its order."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    found = (
        (row, _first_difference(_value_at(before, row.field), _value_at(after, row.field), row.field))
        for row in REFUSED
    )
    return [RefusedChange(*difference, row) for row, difference in found if difference is not None]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that differs between two specs."""

    field: str
    """Path below `spec`; an object that only one of them has is one field."""
    old: object
    new: object

    def __str__(self) -> str:
        """As a user reads it."""
        return f"spec.{self.field}: {_short(self.old)} -> {_short(self.new)}"


def changes(old: RLJobSpec, new: RLJobSpec) -> list[FieldChange]:
    """All fields that differ, in the order of the spec, whatever they mean for a job that exists."""
    return list(_differences(old.model_dump(mode="json"), new.model_dump(mode="json"), ""))


def _differences(old: object, new: object, name: str) -> Iterator[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*new, *old)):
            yield from _differences(old.get(key), new.get(key), f"{name}.{key}" if name else key)
    elif old != new:
        yield FieldChange(name, old, new)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def given(model: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    """Fields that were given something else than their default, with their value, down to what is no model."""
    for name, field in type(model).model_fields.items():
        value, where = getattr(model, name), f"{path}{field.alias or name}"
        default = field.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel):
            if default is None:
                yield where, {}  # a role, say, that need not be there
            yield from given(value, f"{where}.")
        elif value != default:
            yield where, _plain(value)


_LATER_IN_LISTS = (("minP", None), ("reply", "Schema"))
"""Fields of what stands in lists, which is digested whole, that came after jobs with such lists, and their defaults:
these do not count, so that jobs that run keep their revision."""


_NO_LABEL = ("labelKey", "")
"""A set of an evaluation without labels, which jobs that began in releases before have as a null."""


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, BaseModel):
        fields = [(field.alias or name, getattr(value, name)) for name, field in type(value).model_fields.items()]
        counted = [each for each in fields if each not in _LATER_IN_LISTS]
        return {name: None if (name, inner) == _NO_LABEL else _plain(inner) for name, inner in counted}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value


def _value_at(spec: dict[str, Any], field: str) -> object:
    value: Any = spec
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _first_difference(old: object, new: object, name: str) -> tuple[str, object, object] | None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            found = _first_difference(old.get(key), new.get(key), f"{name}.{key}")
            if found is not None:
                return found
        return None
    return None if old == new else (name, old, new)


_NOT_OF_THE_RUN = frozenset({"managedBy", "transferQueue.redis.persistence", "checkpoint.volume.claimName"})
"""Fixed as long as a job exists, and nothing that checkpoints depend on: the control Redis goes with its job, and the
claim's name is how the run was found."""


RUN_FIELDS = tuple(row.field for row in REFUSED if row.field not in _NOT_OF_THE_RUN)
"""Rows of the table of changes (`revision.TABLE`)."""


_USER_REQUESTS = {"suspend": False, "restart_request": None}
"""Fields that ask something of one job at one time."""


def run_digest(spec: RLJobSpec) -> str:
    """Digest of what makes a run. Only values that differ from their defaults count, as in `revision`."""
    part = {field: value for field, value in given(spec) if row_of(field).field in RUN_FIELDS}
    return _digest(part)


def _digest(part: dict[str, Any]) -> str:
    """Digest of values by their fields."""
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:12]


def run_differences(retained: RLJobSpec, wanted: RLJobSpec) -> list[RefusedChange]:
    """Changes that make them two runs: one for each row that differs."""
    return [change for change in refused_changes(retained, wanted) if change.row.field in RUN_FIELDS]


def retained_spec(spec: RLJobSpec) -> str:
    """The spec as a claim retains it: JSON of what was given, without `_USER_REQUESTS`."""
    return spec.model_copy(update=_USER_REQUESTS).model_dump_json(exclude_defaults=True)


def read_retained_spec(text: str) -> RLJobSpec | None:
    """The spec that a claim retains; None where it has none that this version can read."""
    try:
        return RLJobSpec.model_validate_json(text)
    except ValidationError:
        return None
