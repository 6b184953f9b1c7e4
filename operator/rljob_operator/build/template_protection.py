"""What the operator's `workloads.podTemplate` sets in a pod, and a sentence for each change of it by a job.

The template with the administrator's part alone is compared with the final one, for any patch of the job. Identities
that the administrator gives (service account, volume drivers) are closed to the job's own volumes; `named_objects`
closes the objects that he names. Where pods run, what they ask for and what their own containers start with is the
job's choice. Pure; `template` calls it for every pod template.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_operator.build.containers import MEMORY, TEMPORARY, overlap
from rljob_operator.build.template_patch import DIRECTIVE, MERGE_KEYS

Json = dict[str, Any]


WHOSE = "belongs to the administrator (the operator's workloads.podTemplate brings it), and no job changes it"


CONTAINER_LISTS = ("containers", "initContainers")


PLACES = (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath"))
"""Lists of a container's, and the field of an entry with its place."""


ACCOUNT = ("serviceAccountName", "serviceAccount")
"""Two names of one field: where the first is not given, the API server takes the second."""


_PODS_OWN = ("emptyDir", "configMap", "secret", "downwardAPI", "projected", "ephemeral")
"""Volumes that hold the same for every user. Of all others the user decides which files may be read."""


_SIZED = (TEMPORARY, MEMORY)


@dataclass(frozen=True, slots=True)
class AdministratorTemplate:
    """The administrator's patch as it concerns one part's pods."""

    patch: Json
    own: str
    """The container that the operator makes in these pods: a job's program runs in it."""

    @property
    def spec(self) -> Json:
        """Of the patch."""
        found: Json = self.patch.get("spec", {})
        return found

    @property
    def volumes(self) -> list[str]:
        """Volumes. Of the operator's own it may set the size, and so may a job after it."""
        sized = [each["name"] for each in self.spec.get("volumes", []) if each["name"] in _SIZED and "emptyDir" in each]
        return [name for name in self.names("volumes") if name not in sized]

    @property
    def drivers(self) -> list[object]:
        """Of its volumes: a job that names one could have the same volume with other rights."""
        return [field_of(each.get("csi"), "driver") for each in self.spec.get("volumes", []) if "csi" in each]

    @property
    def has_account(self) -> bool:
        """Whether it gives the pods a service account."""
        return any(self.spec.get(key) is not None for key in ACCOUNT)

    def names(self, key: str) -> list[str]:
        """Of the entries of one of the pod's lists, without the operator's own container."""
        entries = [entry for entry in self.spec.get(key, []) if DIRECTIVE not in entry]
        return [entry["name"] for entry in entries if key != "containers" or entry["name"] != self.own]

    @property
    def containers(self) -> list[str]:
        """Containers that run beside the operator's."""
        return [*self.names("containers"), *self.names("initContainers")]

    @property
    def shared(self) -> list[str]:
        """The operator's volumes that one of these containers has, too: what is in them is given to it."""
        others = [each for key in CONTAINER_LISTS for each in self.spec.get(key, []) if each["name"] in self.names(key)]
        return [mount.get("name", "") for each in others for mount in each.get("volumeMounts", [])]

    @property
    def in_own(self) -> Json:
        """What it gives to the operator's container."""
        return named(self.spec.get("containers"), self.own)

    def mounts(self, key: str) -> list[Json]:
        """Mounts (or devices) in the operator's container."""
        return [mount for mount in self.in_own.get(key, []) if DIRECTIVE not in mount]

    @property
    def mounts_files_of_users(self) -> bool:
        """Whether that container sees files that belong to a user."""
        mounted = {mount.get("name") for mount in self.mounts("volumeMounts")}
        volumes = [volume for volume in self.spec.get("volumes", []) if volume["name"] in mounted]
        return any(key not in (*_PODS_OWN, "name") for volume in volumes for key in volume)


def containers_of_job(
    admin: AdministratorTemplate, before: Json, after: Json, path: str
) -> Iterator[tuple[str, Json, Json]]:
    """Where, each container that is not the administrator's, and the same without the job's patch."""
    for key in CONTAINER_LISTS:
        for container in after["spec"].get(key, []):
            if container["name"] not in admin.names(key):
                where = f"{path}.spec.{key}[{container['name']}]"
                yield where, container, named(before["spec"].get(key), container["name"])


def field_of(value: object, key: str) -> object:
    """Of what may be no object: the API server has not judged it yet."""
    return value.get(key) if isinstance(value, dict) else None


def named(entries: list[Json] | None, name: str) -> Json:
    """The entry of that name; empty where there is none."""
    return next((entry for entry in entries or [] if entry["name"] == name), {})


_IDENTITIES = {"serviceAccountToken", "podCertificate"}
"""Sources of a projected volume."""


def _account(admin: AdministratorTemplate, after: Json, path: str) -> Iterator[str]:
    """A sentence for each volume of the job's that acts in the account's name, or by the administrator's driver."""
    for volume in after["spec"].get("volumes", []):
        if volume["name"] not in admin.volumes:
            yield from _identities(admin, volume, f"{path}.spec.volumes[{volume['name']}]")


def _identities(admin: AdministratorTemplate, volume: Json, path: str) -> Iterator[str]:
    """What a volume of the job's gets in the name of the pod's account, or by a driver of the administrator's."""
    sources = field_of(volume.get("projected"), "sources")
    kinds = {key for each in sources if isinstance(each, dict) for key in each} if isinstance(sources, list) else set()
    if admin.has_account and _IDENTITIES & kinds:
        yield f"{path}: is the account's identity, which {WHOSE}. Remove it."
    if "csi" not in volume:
        return
    driver = field_of(volume["csi"], "driver")
    if admin.has_account:
        yield f"{path}: the driver {driver} may act in the name of the account, which {WHOSE}. Use a claim instead."
    elif driver in admin.drivers:
        yield f"{path}: the driver {driver} mounts a volume that {WHOSE}. Use a claim instead."


_LISTS = (*CONTAINER_LISTS, "volumes")
"""Of a pod: judged entry by entry."""


_JOBS_OWN = (
    *("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName", "schedulingGates"),
    "terminationGracePeriodSeconds",
)
"""Where a pod runs and how long it may take to end: what the administrator sets of it is a default."""


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


class ProtectedFieldChanged(ValueError):
    """A job's template would change what the administrator's sets."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


def protected_changes(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> list[str]:
    """A sentence for each thing of the administrator's that `after` has not as `before` has it.

    `path` is the job's template, whose patch (and fields of the job's spec) made the difference.
    """
    if not admin.patch:
        return []
    found = [*_metadata(admin, before, after, path), *_pod(admin, before["spec"], after["spec"], f"{path}.spec")]
    for key, names in (
        *((key, admin.names(key)) for key in CONTAINER_LISTS),
        ("volumes", [*admin.volumes, *admin.shared]),
    ):
        found += _entries(key, names, before["spec"], after["spec"], f"{path}.spec")
    own = f"{path}.spec.containers[{admin.own}]"
    one, other = (named(template["spec"]["containers"], admin.own) for template in (before, after))
    found += [*_own_context(admin, one, other, own), *_own_mounts(admin, one, other, own)]
    found += [*_locked_environment(admin, before, after, path), *_borrowed(admin, before, after, path)]
    found += _account(admin, after, path)
    return list(dict.fromkeys(found))


def _metadata(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> Iterator[str]:
    for kind in ("labels", "annotations"):
        one, other = (template["metadata"].get(kind, {}) for template in (before, after))
        for key in admin.patch.get("metadata", {}).get(kind, {}):
            if one.get(key) != other.get(key):
                yield f"{path}.metadata.{kind}.{key}: {WHOSE}. Remove it."
        for key in other.keys() - one.keys():
            name = key.rpartition("/")[2]
            if name in admin.containers or (name == admin.own and "securityContext" in admin.in_own):
                yield f"{path}.metadata.{kind}.{key}: speaks of a container that {WHOSE}. Remove it."


def _pod(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> Iterator[str]:
    for key in before.keys() | after.keys():
        if key in _LISTS or before.get(key) == after.get(key):
            continue
        # Fields of the spec's `scheduling` have the same names, and count as the job's template as well.
        if key in ACCOUNT and admin.has_account:
            yield f"{path}.{key}: {WHOSE}. Remove it."
        elif key in admin.spec and key not in _JOBS_OWN and not _same(key, admin.spec[key], before, after):
            yield f"{path}.{key}: {WHOSE}. Remove it (a field of the same name in scheduling, too)."
        elif key == "securityContext" and (admin.mounts_files_of_users or "securityContext" in admin.in_own):
            yield f"{path}.{key}: decides what the administrator's volumes and rights may be used for. Remove it."
        elif key == "automountServiceAccountToken" and admin.has_account:
            yield f"{path}.{key}: would give out the token of the service account, which {WHOSE}. Remove it."
        elif admin.containers and key not in _REACHES_NO_CONTAINER:
            names = ", ".join(admin.containers)
            yield f"{path}.{key}: reaches into the container {names}, which {WHOSE}. Remove it."


def _same(key: str, admin: Any, before: Json, after: Json) -> bool:  # noqa: ANN401 - JSON
    """Whether what `admin` sets of a field is the same in both. It sets all of a security context."""
    one, other = before.get(key), after.get(key)
    if one == other:
        return True
    if isinstance(admin, dict) and key != "securityContext" and isinstance(one, dict) and isinstance(other, dict):
        return all(_same(inner, value, one, other) for inner, value in admin.items())
    if isinstance(admin, list) and key in MERGE_KEYS and isinstance(one, list) and isinstance(other, list):
        names = {entry[MERGE_KEYS[key]] for entry in admin}
        return all(entry in other for entry in one if entry[MERGE_KEYS[key]] in names)
    return False


def _entries(key: str, names: list[str], before: Json, after: Json, path: str) -> Iterator[str]:
    """The administrator's entries stay as they are, and init containers where they are: they run in their order."""
    there = after.get(key, [])
    for index, entry in enumerate(before.get(key, [])):
        found = there[index : index + 1] if key == "initContainers" else there
        if entry["name"] in names and entry not in found:
            yield f"{path}.{key}[{entry['name']}]: {WHOSE}. Remove it; give one of yours another name."


def _own_context(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> Iterator[str]:
    one, other = before.get("securityContext"), after.get("securityContext")
    if one == other:
        return
    if "securityContext" in admin.in_own:
        yield f"{path}.securityContext: {WHOSE}. Remove it."
    elif admin.mounts_files_of_users:
        for user in _USERS:
            if field_of(one, user) != field_of(other, user) or not isinstance(other, dict):
                yield (
                    f"{path}.securityContext.{user}: decides which files of the administrator's volumes may be read."
                    " Remove it."
                )


def _own_mounts(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> Iterator[str]:
    places = [str(mount[place]) for key, place in PLACES for mount in admin.mounts(key)]
    for key, place in PLACES:
        given = [mount[place] for mount in admin.mounts(key)]
        here = {mount[place]: mount for mount in after.get(key, [])}
        for mount in before.get(key, []):
            if mount[place] in given and here.get(mount[place]) != mount:
                yield f"{path}.{key}[{mount[place]}]: {WHOSE}. Remove it; mount a volume of yours elsewhere."
    known, named = list(_mounted(before)), [where for where, _, _ in _mounted(admin.in_own)]
    for where, other, entry in _mounted(after):
        hidden = next((each for each in places if overlap(each, other)), None)
        if hidden is not None and where not in named and (where, other, entry) not in known:
            yield f"{path}.{where}: would hide {hidden}, which {WHOSE}. Choose another path."


def _mounted(container: Json) -> Iterator[tuple[str, str, Any]]:
    """All that is mounted in it: the field of the container, the path, and the mount."""
    for key, place in PLACES:
        for mount in container.get(key, []):
            yield f"{key}[{mount[place]}]", str(mount[place]), mount
    if _MESSAGE in container:
        yield f"{_MESSAGE}[{container[_MESSAGE]}]", str(container[_MESSAGE]), None


def _borrowed(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> Iterator[str]:
    """No other container has a volume or device of the administrator's, and the operator's none but as he gave it."""
    for where, container, known in containers_of_job(admin, before, after, path):
        for kind, place in PLACES:
            for mount in container.get(kind, []):
                if mount.get("name") in admin.volumes and mount not in known.get(kind, []):
                    yield f"{where}.{kind}[{mount[place]}]: the volume {mount['name']} {WHOSE}. Mount one of yours."
        for entry in container.get("env", []):
            source = field_of(field_of(entry, "valueFrom"), "fileKeyRef")
            if entry not in known.get("env", []) and field_of(source, "volumeName") in admin.volumes:
                yield f"{where}.env[{entry['name']}]: the volume of its file {WHOSE}. Read one of yours."
        claims, given = (each.get("resources", {}).get("claims") for each in (container, known))
        if claims != given and admin.names("resourceClaims"):
            yield f"{where}.resources.claims: the pod has devices of the administrator's. Remove the field."


def _locked_environment(admin: AdministratorTemplate, before: Json, after: Json, path: str) -> Iterator[str]:
    """Variables that select the folder of a volume that is mounted (subPathExpr), and what they are made of."""
    one, other = (named(template["spec"]["containers"], admin.own) for template in (before, after))
    names = {name for mount in admin.mounts("volumeMounts") for name in _references(mount.get("subPathExpr"))}
    if not names:
        return
    own = f"{path}.spec.containers[{admin.own}]"
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
