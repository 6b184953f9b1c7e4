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

from rljob_api.manifest import job_of
from rljob_api.problems import least_value
from rljob_api.rule import BROKEN_RULE, WITHOUT_RULES, RuledModel
from rljob_api.spec import RLJob

_PASSES = 4
"""A field that is left out may be required, and what then stands there is looked at again."""

Place = tuple[int | str, ...]


def salvaged(document: dict[str, Any], error: ValidationError) -> tuple[RLJob | None, frozenset[str]]:
    """The job without what was refused, and the paths of that, as in `spec.rollout.batchSize`."""
    document, bad = copy.deepcopy(document), set(_places(error))
    for _ in range(_PASSES):
        try:
            return job_of(document, WITHOUT_RULES), frozenset(map(_path, bad))
        except ValidationError as again:
            places = set(_places(again))
            _mend(document, again)
            bad |= places
        except (KeyError, TypeError, IndexError):
            break
    return None, frozenset(map(_path, bad))


def _mend(document: dict[str, Any], error: ValidationError) -> None:
    """Leaves out what is refused; where that must be there, its least value stands, or its list goes without it."""
    gone: set[Place] = set()
    for details in error.errors(include_url=False):
        place = details["loc"]
        if details["type"] != "missing":
            gone.add(place)
        elif (least := least_value(place)) is not None:
            _put(document, place, least)
        else:
            gone.add(_of_a_list(place))
    for place in sorted(gone, key=lambda place: [str(part).rjust(8) for part in place], reverse=True):
        _leave_out(document, place)


def _of_a_list(place: Place) -> Place:
    """The innermost item of a list that the place is in; KeyError where it is in none, and nothing can be done."""
    last = max((index for index, part in enumerate(place) if isinstance(part, int)), default=None)
    if last is None:
        raise KeyError(place[-1])
    return place[: last + 1]


def other_problems(job: RLJob, bad: frozenset[str]) -> Iterator[str]:
    """Rules of the spec that could not be asked beside refused fields, where they depend on none of these."""
    below = [path.removeprefix("spec.") for path in bad]
    spec: RuledModel = job.spec
    for rule in type(spec).rules:
        named = f"{rule.cel} self.{rule.field}"
        if not any(f"self.{path}" in named for path in below) and not rule.holds(spec):
            yield f"spec.{rule.field}: {rule.text(spec)}"


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


def _put(document: dict[str, Any], place: Place, value: int | str) -> None:
    _parent(document, place)[place[-1]] = value
