"""Trespasses: where a job would change what the administrator has brought (`brought`), a sentence for each.

Pure. Called by `template` for every pod template that is built. What a job's patch says and how it is merged does not
matter here: the template with the administrator's part alone is compared with the one that comes out in the end. Where
a job's pods run, what they ask for and what their own containers are started with is the job's to say.
"""

import re
from collections.abc import Iterator
from typing import Any

from rljob_operator.build.brought import (
    ACCOUNT,
    CONTAINER_LISTS,
    PLACES,
    WHOSE,
    Brought,
    Json,
    field_of,
    jobs_containers,
    named,
)
from rljob_operator.build.brought_objects import objects
from rljob_operator.build.template_patch import MERGE_KEYS
from rljob_operator.build.volumes import overlap

_LISTS = (*CONTAINER_LISTS, "volumes")
"""Of a pod: judged entry by entry."""
_JOBS_OWN = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName", "schedulingGates"),
    "terminationGracePeriodSeconds",
)
"""Where a pod runs and how long it may take to end: what the administrator says of it is a default."""
_REACHES_NO_CONTAINER = (
    *(*_JOBS_OWN, "nodeName", "priorityClassName", "priority", "preemptionPolicy"),
    *("imagePullSecrets", "resourceClaims", "ephemeralContainers"),
)
"""Every other field of a pod, known here or not, is one of the administrator's containers, too."""
_USERS = ("runAsUser", "runAsGroup", "runAsUserName", "supplementalGroups", "fsGroup")
_REFERENCE = re.compile(r"\$\(([^()]+)\)")
_METADATA_PATH = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_MESSAGE = "terminationMessagePath"
"""The kubelet mounts a file of the node there."""


class Trespass(ValueError):
    """A job's template would change what the administrator brought."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


def trespasses(brought: Brought, before: Json, after: Json, path: str) -> list[str]:
    """A sentence for each thing of the administrator's that `after` has not as `before` has it.

    `path` is the job's template, whose patch (and fields of the job's spec) made the difference.
    """
    if not brought.patch and not brought.pull_secrets:
        return []
    found = [*_metadata(brought, before, after, path), *_pod(brought, before["spec"], after["spec"], f"{path}.spec")]
    for key, names in (
        *((key, brought.names(key)) for key in CONTAINER_LISTS),
        ("volumes", [*brought.volumes, *brought.shared]),
    ):
        found += _entries(key, names, before["spec"], after["spec"], f"{path}.spec")
    own = f"{path}.spec.containers[{brought.own}]"
    one, other = (named(template["spec"]["containers"], brought.own) for template in (before, after))
    found += [*_own_context(brought, one, other, own), *_own_mounts(brought, one, other, own)]
    found += [*_locked_environment(brought, before, after, path), *_borrowed(brought, before, after, path)]
    found += objects(brought, before, after, path)
    return list(dict.fromkeys(found))


def _metadata(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    for kind in ("labels", "annotations"):
        one, other = (template["metadata"].get(kind, {}) for template in (before, after))
        for key in brought.patch.get("metadata", {}).get(kind, {}):
            if one.get(key) != other.get(key):
                yield f"{path}.metadata.{kind}.{key}: {WHOSE}. Remove it."
        for key in other.keys() - one.keys():
            name = key.rpartition("/")[2]
            if name in brought.containers or (name == brought.own and "securityContext" in brought.in_own):
                yield f"{path}.metadata.{kind}.{key}: speaks of a container that {WHOSE}. Remove it."


def _pod(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    for key in before.keys() | after.keys():
        if key in _LISTS or before.get(key) == after.get(key):
            continue
        # Fields of the spec's `scheduling` have the same names, and count as the job's word as well.
        if key in ACCOUNT and brought.has_account:
            yield f"{path}.{key}: {WHOSE}. Remove it."
        elif key in brought.spec and key not in _JOBS_OWN and not _same(key, brought.spec[key], before, after):
            yield f"{path}.{key}: {WHOSE}. Remove it (a field of the same name in scheduling, too)."
        elif key == "securityContext" and (brought.mounts_files_of_users or "securityContext" in brought.in_own):
            yield f"{path}.{key}: decides what the administrator's volumes and rights may be used for. Remove it."
        elif key == "automountServiceAccountToken" and brought.has_account:
            yield f"{path}.{key}: would give out the token of the service account, which {WHOSE}. Remove it."
        elif brought.containers and key not in _REACHES_NO_CONTAINER:
            names = ", ".join(brought.containers)
            yield f"{path}.{key}: reaches into the container {names}, which {WHOSE}. Remove it."


def _same(key: str, brought: Any, before: Json, after: Json) -> bool:  # noqa: ANN401 - JSON
    """Whether what `brought` says of a field is the same in both. Of a security context all is said."""
    one, other = before.get(key), after.get(key)
    if one == other:
        return True
    if isinstance(brought, dict) and key != "securityContext" and isinstance(one, dict) and isinstance(other, dict):
        return all(_same(inner, value, one, other) for inner, value in brought.items())
    if isinstance(brought, list) and key in MERGE_KEYS and isinstance(one, list) and isinstance(other, list):
        names = {entry[MERGE_KEYS[key]] for entry in brought}
        return all(entry in other for entry in one if entry[MERGE_KEYS[key]] in names)
    return False


def _entries(key: str, names: list[str], before: Json, after: Json, path: str) -> Iterator[str]:
    """The administrator's entries stay as they are, and init containers where they are: they run in their order."""
    there = after.get(key, [])
    for index, entry in enumerate(before.get(key, [])):
        found = there[index : index + 1] if key == "initContainers" else there
        if entry["name"] in names and entry not in found:
            yield f"{path}.{key}[{entry['name']}]: {WHOSE}. Remove it; give one of yours another name."


def _own_context(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    one, other = before.get("securityContext"), after.get("securityContext")
    if one == other:
        return
    if "securityContext" in brought.in_own:
        yield f"{path}.securityContext: {WHOSE}. Remove it."
    elif brought.mounts_files_of_users:
        for user in _USERS:
            if field_of(one, user) != field_of(other, user) or not isinstance(other, dict):
                yield (
                    f"{path}.securityContext.{user}: decides which files of the administrator's volumes may be read."
                    " Remove it."
                )


def _own_mounts(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    places = [str(mount[place]) for key, place in PLACES for mount in brought.mounts(key)]
    for key, place in PLACES:
        given = [mount[place] for mount in brought.mounts(key)]
        here = {mount[place]: mount for mount in after.get(key, [])}
        for mount in before.get(key, []):
            if mount[place] in given and here.get(mount[place]) != mount:
                yield f"{path}.{key}[{mount[place]}]: {WHOSE}. Remove it; mount a volume of yours elsewhere."
    known, said = list(_mounted(before)), [where for where, _, _ in _mounted(brought.in_own)]
    for where, other, entry in _mounted(after):
        hidden = next((each for each in places if overlap(each, other)), None)
        if hidden is not None and where not in said and (where, other, entry) not in known:
            yield f"{path}.{where}: would hide {hidden}, which {WHOSE}. Choose another path."


def _mounted(container: Json) -> Iterator[tuple[str, str, Any]]:
    """All that is mounted in it: where the container says so, at which path, and what."""
    for key, place in PLACES:
        for mount in container.get(key, []):
            yield f"{key}[{mount[place]}]", str(mount[place]), mount
    if _MESSAGE in container:
        yield f"{_MESSAGE}[{container[_MESSAGE]}]", str(container[_MESSAGE]), None


def _borrowed(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    """No other container has a volume or device of the administrator's, and the operator's none but as he gave it."""
    for where, container, known in jobs_containers(brought, before, after, path):
        for kind, place in PLACES:
            for mount in container.get(kind, []):
                if mount.get("name") in brought.volumes and mount not in known.get(kind, []):
                    yield f"{where}.{kind}[{mount[place]}]: the volume {mount['name']} {WHOSE}. Mount one of yours."
        for entry in container.get("env", []):
            source = field_of(field_of(entry, "valueFrom"), "fileKeyRef")
            if entry not in known.get("env", []) and field_of(source, "volumeName") in brought.volumes:
                yield f"{where}.env[{entry['name']}]: the volume of its file {WHOSE}. Read one of yours."
        claims, given = (each.get("resources", {}).get("claims") for each in (container, known))
        if claims != given and brought.names("resourceClaims"):
            yield f"{where}.resources.claims: the pod has devices of the administrator's. Remove the field."


def _locked_environment(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    """Variables that say which folder of a volume is mounted (subPathExpr), and what they are made of."""
    one, other = (named(template["spec"]["containers"], brought.own) for template in (before, after))
    names = {name for mount in brought.mounts("volumeMounts") for name in _references(mount.get("subPathExpr"))}
    if not names:
        return
    own = f"{path}.spec.containers[{brought.own}]"
    variables = {entry["name"]: entry for entry in one.get("env", [])}
    todo = list(names)
    while todo:
        inner = set(_references(variables.get(todo.pop(), {}).get("value"))) - names
        names |= inner
        todo += inner
    locked = [[entry for entry in each.get("env", []) if entry["name"] in names] for each in (one, other)]
    if locked[0] != locked[1]:
        yield f"{own}.env: {', '.join(sorted(names))} says which folder is mounted, and {WHOSE}. Remove it."
    if names - variables.keys() and one.get("envFrom") != other.get("envFrom"):
        yield f"{own}.envFrom: may say which folder is mounted, which {WHOSE}. Name variables in env."
    for entry in locked[0]:
        place = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        for kind, key in _METADATA_PATH.findall(place):
            if before["metadata"].get(kind, {}).get(key) != after["metadata"].get(kind, {}).get(key):
                yield f"{path}.metadata.{kind}.{key}: says which folder is mounted, and {WHOSE}. Remove it."


def _references(text: object) -> list[str]:
    return _REFERENCE.findall(text) if isinstance(text, str) else []
