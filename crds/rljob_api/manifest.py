"""From YAML text to an RLJob and back, with one sentence for each problem that a user can cause.

Reads the manifest (a file, or `-` for standard input) and nothing else. `admitted` does what kubectl and the API server
do first; `salvaged` leaves out refused fields so that the command line can check the others in the same pass, and is
never used for a job that runs.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from rljob_api.base import ApiModel
from rljob_api.generate.crd import Schema, spec_schema
from rljob_api.model_files.hub_names import RepoKind, cached_path, is_hub_name
from rljob_api.problems import least_value, may_be_meant, sentences
from rljob_api.rule import BROKEN_RULE, WITHOUT_RULES, RuledModel, rules_beside
from rljob_api.spec import RLJob
from rljob_api.spec.data import DataSpec
from rljob_api.spec.evaluation import EvaluationDataSpec
from rljob_api.spec.rollout import RewardSpec, SummedRewardSpec
from rljob_api.spec.set_defaults import stated_data
from rljob_api.text_encoding import decoded

_EXACT = 1 << 53
"""Whole numbers below it are exact as a double."""


def admitted(document: dict[str, Any]) -> dict[str, Any]:
    """The manifest with whole numbers as integers, and without nulls that mean that a field is not there."""
    document = {key: _with_integers(value) for key, value in document.items()}
    if isinstance(document.get("spec"), dict):
        document["spec"] = _without_nulls(document["spec"], _schema())
    return document


@cache
def _schema() -> Schema:
    return spec_schema()


def _with_integers(value: Any) -> Any:  # noqa: ANN401 - JSON
    """`10.0` is an integer to kubectl, which writes it as 10."""
    if isinstance(value, dict):
        return {key: _with_integers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_integers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def _without_nulls(value: Any, schema: Schema) -> Any:  # noqa: ANN401 - JSON
    """As the API server prunes them: a null stays where the field may be null, is required, or is not known."""
    if isinstance(value, dict):
        parts, required = schema.get("properties", {}), schema.get("required", ())
        present = {
            key: inner
            for key, inner in value.items()
            if inner is not None or key not in parts or key in required or parts[key].get("nullable", False)
        }
        return {key: _without_nulls(inner, parts.get(key, {})) for key, inner in present.items()}
    if isinstance(value, list):
        return [_without_nulls(inner, schema.get("items", {})) for inner in value]
    return value


class ManifestError(ValueError):
    """A manifest that cannot be used; `problems` holds a sentence for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def load_manifest(path: Path) -> RLJob:
    """The job in the file `path`; ManifestError if there is none."""
    return parse_manifest(read_manifest(path), str(path))


STANDARD_INPUT = Path("-")
"""Instead of a file's path: the manifest is read from there, and its relative paths are of the current folder."""


def read_manifest(path: Path) -> str:
    """The text of the file `path`; ManifestError where there is none."""
    try:
        return decoded(sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ManifestError([f"{path}: cannot be read ({reason}). Give the path of a manifest."]) from error
    except ValueError as error:
        raise ManifestError([f"{path}: {error}"]) from error


def parse_manifest(text: str, source: str) -> RLJob:
    """The job in `text`; `source` names it in sentences about its syntax."""
    return parsed(document_of(text, source))


def parsed(document: dict[str, Any]) -> RLJob:
    """The job that a document describes; ManifestError if it describes none."""
    try:
        return job_of(document)
    except ValidationError as error:
        raise ManifestError(sentences(error)) from error


def job_of(document: dict[str, Any], context: str | None = None) -> RLJob:
    """The job that a document describes. Raises ValidationError.

    Through JSON, so that types are as strict as the API server's: "5" is no integer, and names are camelCase.
    """
    return RLJob.model_validate_json(
        json.dumps(admitted(document), default=str), strict=True, context=context, by_alias=True, by_name=False
    )


def document_of(text: str, source: str) -> dict[str, Any]:
    """Parses `text`, before anything is known of its fields."""
    try:
        document = yaml.load(text, Loader=_ManifestLoader)  # noqa: S506 - a SafeLoader with fewer surprises
    except yaml.MarkedYAMLError as error:
        raise ManifestError([_syntax_problem(source, error)]) from error
    except yaml.YAMLError as error:
        raise ManifestError([f"{source}: is not YAML: {error}."]) from error
    if not isinstance(document, dict):
        raise ManifestError(
            [f"{source}: holds no object. Give one with apiVersion, kind, metadata and spec, as examples/ has them."]
        )
    return document


def yaml_value(text: str) -> Any:  # noqa: ANN401 - JSON
    """Parses `text` as a value in a manifest. ValueError, with what is wrong about it, where it is no YAML."""
    try:
        return yaml.load(text, Loader=_ManifestLoader)  # noqa: S506 - as above
    except yaml.YAMLError as error:
        raise ValueError(str(getattr(error, "problem", None) or error)) from error


def render_manifest(job: RLJob) -> str:
    """The job as YAML with all defaults filled in; parsing it gives the same job."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, width=120, allow_unicode=True)


def resolve_paths(job: RLJob, folder: Path) -> RLJob:
    """The job with the manifest's relative paths made absolute, `folder` being where the manifest lies.

    Names of the hub (`hf:...`) become the folders of its cache, where it has them. `checkpoint.path` is left as it is:
    it is relative to the run folder.
    """

    def absolute(path: str, kind: RepoKind) -> str:
        if is_hub_name(path):
            return _cached(path, kind)
        # pathlib's own raise at loops of links and at users who are not known.
        return os.path.realpath(folder / os.path.expanduser(path))  # noqa: PTH111

    return _with_paths(job, absolute)


def resolve_hub_names(job: RLJob) -> RLJob:
    """The job with the names of the hub as folders of its cache, where it has them; other paths stay as they are."""
    return _with_paths(job, lambda path, kind: _cached(path, kind) if is_hub_name(path) else path)


def _cached(name: str, kind: RepoKind) -> str:
    """A name that the cache lacks stays as it is, for a check to name."""
    try:
        return str(cached_path(name, kind))
    except ValueError:
        return name


class _Change:
    """A change of paths, which may be null."""

    def __init__(self, change: Callable[[str, RepoKind], str]) -> None:
        self._change = change

    def __call__(self, path: str | None, kind: RepoKind = RepoKind.MODEL) -> str | None:
        return None if path is None else self._change(path, kind)


def _with_paths(job: RLJob, change: Callable[[str, RepoKind], str]) -> RLJob:
    """The job with all its paths changed."""
    spec, changed = job.spec, _Change(change)
    model = spec.model.model_copy(
        update={"path": changed(spec.model.path), "tokenizer_path": changed(spec.model.tokenizer_path)}
    )
    reward = _with_path(spec.rollout.reward, changed)
    if reward.sum is not None:
        reward = reward.model_copy(update={"sum": [_with_path(part, changed) for part in reward.sum]})
    rollout = spec.rollout.model_copy(update={"reward": reward})
    if rollout.function is not None:
        function = rollout.function.model_copy(update={"path": changed(rollout.function.path)})
        rollout = rollout.model_copy(update={"function": function})
    if rollout.dynamic_sampling is not None:
        path = changed(rollout.dynamic_sampling.path)
        sampling = rollout.dynamic_sampling.model_copy(update={"path": path})
        rollout = rollout.model_copy(update={"dynamic_sampling": sampling})
    if rollout.curriculum is not None:
        path = changed(rollout.curriculum.path)
        curriculum = rollout.curriculum.model_copy(update={"path": path})
        rollout = rollout.model_copy(update={"curriculum": curriculum})
    algorithm = spec.algorithm.model_copy(update={"path": changed(spec.algorithm.path)})
    roles = spec.roles
    if roles.critic is not None:
        path = changed(roles.critic.model_path)
        roles = roles.model_copy(update={"critic": roles.critic.model_copy(update={"model_path": path})})
    if roles.reference is not None:
        path = changed(roles.reference.model_path)
        roles = roles.model_copy(update={"reference": roles.reference.model_copy(update={"model_path": path})})
    evaluation = spec.evaluation
    if evaluation is not None:
        sets = [each.model_copy(update={"data": _data_with_paths(each.data, changed)}) for each in evaluation.sets]
        evaluation = evaluation.model_copy(update={"sets": sets})
    parts = {
        "model": model,
        "data": _data_with_paths(spec.data, changed),
        "rollout": rollout,
        "algorithm": algorithm,
        "roles": roles,
        "evaluation": evaluation,
    }
    return job.model_copy(update={"spec": spec.model_copy(update=parts)})


_Data = TypeVar("_Data", DataSpec, EvaluationDataSpec)


def _data_with_paths(data: _Data, changed: _Change) -> _Data:
    update: dict[str, Any] = {"prompts": changed(data.prompts, RepoKind.DATASET)}
    if data.sources is not None:
        update["sources"] = [
            each.model_copy(update={"prompts": changed(each.prompts, RepoKind.DATASET)}) for each in data.sources
        ]
    if data.chat_template is not None and data.chat_template.file:
        file = changed(data.chat_template.file)
        update["chat_template"] = data.chat_template.model_copy(update={"file": file})
    return data.model_copy(update=update)


def absent_hub_names(job: RLJob) -> Iterator[str]:
    """A sentence for each name of the hub that `resolve_paths` has not found."""
    spec = job.spec
    critic, reference = spec.roles.critic, spec.roles.reference
    models = {
        "model.path": spec.model.path,
        "model.tokenizerPath": spec.model.tokenizer_path,
        "roles.critic.modelPath": None if critic is None else critic.model_path,
        "roles.reference.modelPath": None if reference is None else reference.model_path,
    }
    named = [(field, path, RepoKind.MODEL) for field, path in models.items()]
    named += [(file.field, file.path, RepoKind.DATASET) for file in spec.data.files]
    for place, each in enumerate(() if spec.evaluation is None else spec.evaluation.sets):
        of_set = f"evaluation.sets[{place}]."
        named += [(of_set + file.field, file.path, RepoKind.DATASET) for file in stated_data(each.data).files]
    for field, path, kind in named:
        if path is not None and is_hub_name(path):
            try:
                cached_path(path, kind)
            except ValueError as error:
                yield f"{field}: {error}"


_Reward = TypeVar("_Reward", RewardSpec, SummedRewardSpec)


def _with_path(reward: _Reward, changed: _Change) -> _Reward:
    if reward.custom is None:
        return reward
    custom = reward.custom.model_copy(update={"path": changed(reward.custom.path)})
    return reward.model_copy(update={"custom": custom})


def _syntax_problem(source: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    found = ", ".join(part for part in (error.context, error.problem) if part) or "syntax error"
    return f"{source}: {where}is not a manifest in YAML: {found}."


class _ManifestLoader(yaml.SafeLoader):
    """YAML as kubectl reads it: 1e-6 is a number, a date is text, and a key given twice is refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[object, int] = {}
        for key_node, _ in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:merge" and isinstance(key, str):
                line = key_node.start_mark.line + 1
                if key in seen:
                    problem = f"the key {key!r} is given twice (first in line {seen[key]})"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen[key] = line
        return super().construct_mapping(node, deep)


_ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


# YAML 1.1, which PyYAML follows, wants a dot and a signed exponent; learningRate: 1e-6 would be text.
_ManifestLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


_PASSES = 8
"""A field that is left out may be required, and what then stands there is looked at again."""


Location = tuple[int | str, ...]


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


def _mend(document: dict[str, Any], error: ValidationError) -> set[Location]:
    """Leaves out what is refused, which is returned; where that must be there, its least value stands.

    Where it has none, as a text, what it is in is left out.
    """
    gone: set[Location] = set()
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


def _meant(document: dict[str, Any], error: ValidationError) -> Iterator[Location]:
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


def _places(error: ValidationError) -> Iterator[Location]:
    for details in error.errors(include_url=False):
        if details["type"] != BROKEN_RULE:
            yield details["loc"]
            continue
        for name, _ in details["ctx"]["broken"]:
            yield (*details["loc"], *name.split("."))


def _path(place: Location) -> str:
    return ".".join(str(part) for part in place)


def _parent(document: dict[str, Any], place: Location) -> Any:  # noqa: ANN401 - JSON
    node: Any = document
    for part in place[:-1]:
        node = node[part]
    return node


def _leave_out(document: dict[str, Any], place: Location) -> None:
    del _parent(document, place)[place[-1]]


def _put(document: dict[str, Any], place: Location, value: int | str | dict[str, Any]) -> None:
    _parent(document, place)[place[-1]] = value
