"""Jobs with random optional objects, and the same jobs without what these objects had: good ones, made from the schema.

The numbers are random and always the same. Called by tests alone.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

from rljob_api.cluster_rules import cluster_problems
from rljob_api.generate.crd import INT_OR_STRING, Schema, enum_values, spec_schema
from rljob_api.manifest import ManifestError, parsed
from tests.unit.api.manifests import changed

Object = dict[str, Any]
_SCHEMA = spec_schema()
_TEXTS = ("x", "a:b", "1Gi", "a1", "reward/mean", "http://a/v1", "{response}", "A_B")
_FIXED = ("model", "data")
"""Sections that cannot change once a job is there."""
_ALONE = ("exactMatch", "characterMatch", "mathVerify", "textOverlap", "choice", "format", "tags", "remote", "judge")
_TRIES = 3
_PATCH = {"spec": {"nodeSelector": {"a": "b"}}}
"""A patch of a pod template."""
_LISTS = {
    "spec.rollout.reward": {
        "sum": [{"name": "a", "mathVerify": {}}, {"name": "b", "weight": 0.5, "tags": {"names": ["x"]}}]
    },
    "spec.restartPolicy": {"failureRules": [{"name": "a", "exitCodes": [1], "action": "Ignore"}]},
}
"""Lists with items that have fields which may be left out."""


def random_jobs(count: int) -> Iterator[tuple[Object, Object]]:
    """A job with more, and the same one with less: {} where all that an object has may be left out."""
    chance = random.Random(32)
    for _ in range(count):
        full = _full(chance)
        yield full, emptied(full)


def emptied(job: Object) -> Object:
    """The job without what its optional objects had, as far as it is a good one and may still change to that."""
    less = copy.deepcopy(job)
    for path in _replaced(_SCHEMA, ()):
        above = _node(less["spec"], path[:-1])
        given = above.get(path[-1]) if isinstance(above, dict) else None
        if path[0] in _FIXED or not isinstance(given, dict):
            continue
        if given == _PATCH:
            above[path[-1]] = {"spec": {"nodeSelector": {}}}
            continue
        for name in list(given):
            value = given.pop(name)
            if not _is_good(less):
                given[name] = value
    return less


def _full(chance: random.Random) -> Object:
    changes: Object = {"spec.algorithm.advantage": "Gae", "spec.roles.critic": {}} if chance.random() < 0.3 else {}
    job: Object = changed(changes | (copy.deepcopy(_LISTS) if chance.random() < 0.3 else {}))
    paths = list(_replaced(_SCHEMA, ()))
    for path in chance.sample(paths, len(paths) // 2):
        if path[-1] in _ALONE and set(_ALONE) & set(job["spec"]["rollout"].get("reward", {})):
            continue
        for _ in range(_TRIES):
            trial = copy.deepcopy(job)
            above = _node(trial["spec"], path[:-1], make=True)
            above[path[-1]] = _value(chance, _at(_SCHEMA, path))
            if _is_good(trial):
                job = trial
                break
    return job


def _is_good(job: Object) -> bool:
    try:
        return not cluster_problems(parsed(job).spec, has_begun=False)
    except ManifestError:
        return False


def _replaced(schema: Schema, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, part in schema.get("properties", {}).items():
        if part.get("x-kubernetes-map-type") == "atomic":
            yield (*path, name)
        else:
            yield from _replaced(part, (*path, name))


def _at(schema: Schema, path: tuple[str, ...]) -> Schema:
    for name in path:
        schema = schema["properties"][name]
    return schema


def _node(spec: Object, path: tuple[str, ...], *, make: bool = False) -> Any:
    node: Any = spec
    for name in path:
        node = node.setdefault(name, {}) if make else (node or {}).get(name)
    return node


def _value(chance: random.Random, field: Schema) -> Any:
    if values := enum_values(field):
        return chance.choice(values)
    if INT_OR_STRING in field:
        return chance.choice([1, "1Gi"])
    low = field.get("minimum", 0)
    match field["type"]:
        case "integer":
            return chance.choice([low, low + 1, 2, 4])
        case "number":
            return chance.choice([low, low + 0.5, 0.25, 1.5])
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [_value(chance, field["items"]) for _ in range(chance.randint(0, 2))]
        case "object":
            return _object(chance, field)
    return chance.choice(_TEXTS)


def _object(chance: random.Random, field: Schema) -> Object:
    if "properties" not in field:
        return copy.deepcopy(_PATCH) if field.get("x-kubernetes-preserve-unknown-fields") else {}
    required = field.get("required", ())
    share = chance.choice([0.0, 0.3, 0.6])
    names = [name for name in field["properties"] if name in required or chance.random() < share]
    return {name: _value(chance, field["properties"][name]) for name in names}
