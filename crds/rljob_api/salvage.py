"""What is left of a manifest whose fields have problems, so that all others can be looked at in the same pass.

    job, bad = salvaged(document, error)      None where too little is left

Fields that were refused are left out, and required ones stand at their least value: nothing may be said of what depends
on them. For the command line; never for what runs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from rljob_api.base import ApiModel
from rljob_api.manifest import job_of
from rljob_api.problems import least_value, may_be_meant
from rljob_api.rule import BROKEN_RULE, WITHOUT_RULES, RuledModel, rules_beside
from rljob_api.spec import RLJob

_PASSES = 8
"""A field that is left out may be required, and what then stands there is looked at again."""

Place = tuple[int | str, ...]


def salvaged(document: dict[str, Any], error: ValidationError) -> tuple[RLJob | None, frozenset[str]]:
    """The job without what was refused, and the paths of that, as in `spec.rollout.batchSize`.

    Of a field that is not known, the paths of those that it may have been meant for, too.
    """
    document = copy.deepcopy(document)
    bad = {*_places(error), *_meant(document, error)}
    for _ in range(_PASSES):
        try:
            return job_of(document, WITHOUT_RULES), frozenset(map(_path, bad))
        except ValidationError as again:
            bad |= {*_places(again), *_meant(document, again)}
            try:
                bad |= _mend(document, again)
            except (KeyError, TypeError, IndexError):
                break
    return None, frozenset(map(_path, bad))


def _mend(document: dict[str, Any], error: ValidationError) -> set[Place]:
    """Leaves out what is refused, which is returned; where that must be there, its least value stands.

    Where it has none, as a text, what it is in is left out.
    """
    gone: set[Place] = set()
    for details in error.errors(include_url=False):
        place = details["loc"]
        if details["type"] != "missing":
            gone.add(place)
        elif (least := least_value(place)) is not None:
            _put(document, place, least)
        else:
            gone.add(place[:-1])
    for place in sorted(gone, key=lambda place: [str(part).rjust(8) for part in place], reverse=True):
        _leave_out(document, place)
    return gone


def _meant(document: dict[str, Any], error: ValidationError) -> Iterator[Place]:
    for details in error.errors(include_url=False):
        if details["type"] == "extra_forbidden":
            place = details["loc"]
            yield from ((*place[:-1], name) for name in may_be_meant(place, _parent(document, place)))


def other_problems(job: RLJob, bad: frozenset[str]) -> Iterator[str]:
    """Rules of the spec that could not be asked beside refused fields, where they depend on none of these."""
    return _broken(job.spec, "spec", bad)


def _broken(model: ApiModel, path: str, bad: frozenset[str]) -> Iterator[str]:
    if isinstance(model, RuledModel):
        rules = rules_beside(type(model).rules, path, bad)
        yield from (f"{path}.{rule.field}: {rule.text(model)}" for rule in rules if not rule.holds(model))
    for name, field in type(model).model_fields.items():
        inner = getattr(model, name)
        if isinstance(inner, ApiModel):
            yield from _broken(inner, f"{path}.{field.alias or name}", bad)


def _places(error: ValidationError) -> Iterator[Place]:
    for details in error.errors(include_url=False):
        if details["type"] != BROKEN_RULE:
            yield details["loc"]
            continue
        for name, _ in details["ctx"]["broken"]:
            yield (*details["loc"], *name.split("."))


def _path(place: Place) -> str:
    return ".".join(str(part) for part in place)


def _parent(document: dict[str, Any], place: Place) -> Any:  # noqa: ANN401 - JSON
    node: Any = document
    for part in place[:-1]:
        node = node[part]
    return node


def _leave_out(document: dict[str, Any], place: Place) -> None:
    del _parent(document, place)[place[-1]]


def _put(document: dict[str, Any], place: Place, value: int | str | dict[str, Any]) -> None:
    _parent(document, place)[place[-1]] = value
