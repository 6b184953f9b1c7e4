"""Sizes of a job's objects: what is too large to be stored, or to be given to a process, is refused before it is made.

Called by `manifests`. The API server's dry runs do not ask etcd, which has a bound of its own. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from rljob_api import cluster
from rljob_api.names import Role
from rljob_api.roles import field_name
from rljob_api.spec import RLJob
from rljob_api.spec_size import heaviest
from rljob_operator.build.parts import Manifest

LARGEST_BYTES = 1_048_576
"""Bound of an object as it is stored. The API server takes no more in a ConfigMap, etcd 1.5 times as much in any
object, and a pod's status comes on top of its template."""


LONGEST_VARIABLE_BYTES = 131_071
"""Bound of NAME=VALUE. Linux starts no process with a longer one (MAX_ARG_STRLEN, with a zero byte)."""


_KEYS = ("name", "mountPath", "containerPort")
"""Keys of lists whose items the API server knows one by one, and notes an owner of."""


def size_problems(job: RLJob, made: Sequence[Manifest]) -> list[str]:
    """A sentence for the first object that is too large, else one for each variable that is."""
    for each in made:
        size = stored_bytes(each)
        if size > LARGEST_BYTES:
            path, own = heaviest(job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True))
            what = f"{each['kind']} {each['metadata']['name']}"
            return [
                f"spec.{path}: its {own} bytes as JSON make the {what} {size} bytes as it is stored, and "
                f"{LARGEST_BYTES} is the bound. Put them into a ConfigMap or volume of yours and mount it."
            ]
    return [sentence for each in made for sentence in _variables(each)]


def stored_bytes(manifest: Manifest) -> int:
    """Bytes of an object with the owner of each of its fields, which the API server stores beside it."""
    return len(orjson.dumps(manifest)) + _owners_bytes(manifest)


def _owners_bytes(value: object) -> int:
    """Bytes that `managedFields` has for each field, and for each item of a list with keys."""
    if isinstance(value, dict):
        return sum(len(name) + 8 + _owners_bytes(below) for name, below in value.items())
    if not isinstance(value, list):
        return 0
    items = [item for item in value if isinstance(item, dict)]
    return sum(_key_bytes(item) + _owners_bytes(item) for item in items if any(key in item for key in _KEYS))


def _key_bytes(item: dict[str, object]) -> int:
    key = next(key for key in _KEYS if key in item)
    return len(key) + len(str(item[key])) + 26


def _variables(manifest: Manifest) -> Iterator[str]:
    spec: dict[str, Any] = (manifest.get("spec") or {}).get("template", {}).get("spec", {})
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        for variable in container.get("env", ()):
            size = len(f"{variable['name']}={variable.get('value') or ''}".encode())
            if size > LONGEST_VARIABLE_BYTES:
                what = f"env {variable['name']} of container {container['name']}"
                yield (
                    f"{_field(manifest)}: {what} has {size} bytes, and Linux starts no process with more than "
                    f"{LONGEST_VARIABLE_BYTES} in one. Mount it as a file."
                )


def _field(manifest: Manifest) -> str:
    role = manifest["metadata"]["labels"].get(cluster.LABEL_ROLE)
    return "spec.infrastructure.template" if role is None else f"spec.roles.{field_name(Role(role))}.template"
