"""What the operator's `workloads.podTemplate` brings and no job changes: containers, volumes, mounts, rights.

Pure. Called by `template` for every pod template that is built. What a job's patch says and how it is merged does not
matter here: the template with the administrator's part alone is compared with the one that comes out in the end. Where
a job's pods run, what they ask for and what their own containers are started with is the job's to say.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_operator.build.template_patch import DIRECTIVE, MERGE_KEYS
from rljob_operator.build.volumes import MEMORY, RUN, TEMPORARY, overlap

Json = dict[str, Any]

_CONTAINERS = ("containers", "initContainers")
_LISTS = (*_CONTAINERS, "volumes")
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
_PODS_OWN = ("emptyDir", "configMap", "secret", "downwardAPI", "projected", "ephemeral")
"""Volumes that hold the same for every user. Of all others the user decides which files may be read."""
_SIZED = (TEMPORARY, MEMORY)
_REFERENCE = re.compile(r"\$\(([^()]+)\)")
_METADATA_PATH = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_SECRET_REFERENCES = ("secretRef", "secretKeyRef", "nodePublishSecretRef", "secret")
"""`secret` is a projected volume's; a volume's own has `secretName`."""
_IDENTITIES = {"serviceAccountToken", "podCertificate"}
"""Sources of a projected volume."""
_RUN_PATH = "checkpoint.volume.claimName (or roles.actor.template.spec.volumes[run])"
_WHOSE = "belongs to the administrator (the operator's workloads.podTemplate brings it), and no job changes it"


class Trespass(ValueError):
    """A job's template would change what the administrator brought."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("\n".join(sentences))
        self.sentences = sentences


@dataclass(frozen=True, slots=True)
class Brought:
    """The administrator's patch as it concerns one part's pods."""

    patch: Json
    own: str
    """The container that the operator makes in these pods: a job's program runs in it."""
    pull_secrets: tuple[str, ...] = ()

    @property
    def spec(self) -> Json:
        """Of the patch."""
        found: Json = self.patch.get("spec", {})
        return found

    @property
    def volumes(self) -> list[str]:
        """Volumes. Of the operator's own it may say the size, and so may a job after it."""
        sized = [each["name"] for each in self.spec.get("volumes", []) if each["name"] in _SIZED and "emptyDir" in each]
        return [name for name in self.names("volumes") if name not in sized]

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
        others = [each for key in _CONTAINERS for each in self.spec.get(key, []) if each["name"] in self.names(key)]
        return [mount.get("name", "") for each in others for mount in each.get("volumeMounts", [])]

    @property
    def in_own(self) -> Json:
        """What it gives to the operator's container."""
        return _named(self.spec.get("containers"), self.own)

    def mounts(self, key: str) -> list[Json]:
        """Mounts (or devices) in the operator's container."""
        return [mount for mount in self.in_own.get(key, []) if DIRECTIVE not in mount]

    @property
    def mounts_files_of_users(self) -> bool:
        """Whether that container sees files that are somebody's."""
        mounted = {mount.get("name") for mount in self.mounts("volumeMounts")}
        volumes = [volume for volume in self.spec.get("volumes", []) if volume["name"] in mounted]
        return any(key not in (*_PODS_OWN, "name") for volume in volumes for key in volume)


def trespasses(brought: Brought, before: Json, after: Json, path: str) -> list[str]:
    """A sentence for each thing of the administrator's that `after` has not as `before` has it.

    `path` is the job's template, whose patch (and fields of the job's spec) made the difference.
    """
    if not brought.patch and not brought.pull_secrets:
        return []
    found = [*_metadata(brought, before, after, path), *_pod(brought, before["spec"], after["spec"], f"{path}.spec")]
    for key, names in (
        *((key, brought.names(key)) for key in _CONTAINERS),
        ("volumes", [*brought.volumes, *brought.shared]),
    ):
        found += _entries(key, names, before["spec"], after["spec"], f"{path}.spec")
    own = f"{path}.spec.containers[{brought.own}]"
    one, other = (_named(template["spec"]["containers"], brought.own) for template in (before, after))
    found += [*_own_context(brought, one, other, own), *_own_mounts(brought, one, other, own)]
    found += [*_locked_environment(brought, before, after, path), *_borrowed(brought, before, after, path)]
    found += _objects(brought, before, after, path)
    return list(dict.fromkeys(found))


def _metadata(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    for kind in ("labels", "annotations"):
        one, other = (template["metadata"].get(kind, {}) for template in (before, after))
        for key in brought.patch.get("metadata", {}).get(kind, {}):
            if one.get(key) != other.get(key):
                yield f"{path}.metadata.{kind}.{key}: {_WHOSE}. Remove it."
        for key in other.keys() - one.keys():
            name = key.rpartition("/")[2]
            if name in brought.containers or (name == brought.own and "securityContext" in brought.in_own):
                yield f"{path}.metadata.{kind}.{key}: speaks of a container that {_WHOSE}. Remove it."


def _pod(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    for key in before.keys() | after.keys():
        if key in _LISTS or before.get(key) == after.get(key):
            continue
        # Fields of the spec's `scheduling` have the same names, and count as the job's word as well.
        if key in brought.spec and key not in _JOBS_OWN and not _same(key, brought.spec[key], before, after):
            yield f"{path}.{key}: {_WHOSE}. Remove it (a field of the same name in scheduling, too)."
        elif key == "securityContext" and (brought.mounts_files_of_users or "securityContext" in brought.in_own):
            yield f"{path}.{key}: decides what the administrator's volumes and rights may be used for. Remove it."
        elif key == "automountServiceAccountToken" and _has_account(brought):
            yield f"{path}.{key}: would give out the token of the service account, which {_WHOSE}. Remove it."
        elif brought.containers and key not in _REACHES_NO_CONTAINER:
            names = ", ".join(brought.containers)
            yield f"{path}.{key}: reaches into the container {names}, which {_WHOSE}. Remove it."


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
    """The administrator's entries stay as they are, and where they are: init containers run in their order."""
    there = after.get(key, [])
    for index, entry in enumerate(before.get(key, [])):
        if entry["name"] in names and there[index : index + 1] != [entry]:
            yield f"{path}.{key}[{entry['name']}]: {_WHOSE}. Remove it; give one of yours another name."


def _own_context(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    one, other = before.get("securityContext"), after.get("securityContext")
    if one == other:
        return
    if "securityContext" in brought.in_own:
        yield f"{path}.securityContext: {_WHOSE}. Remove it."
    elif brought.mounts_files_of_users:
        for user in _USERS:
            if _field(one, user) != _field(other, user) or not isinstance(other, dict):
                yield (
                    f"{path}.securityContext.{user}: decides which files of the administrator's volumes may be read."
                    " Remove it."
                )


def _own_mounts(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    for key, place in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
        places = [mount[place] for mount in brought.mounts(key)]
        here = {mount[place]: mount for mount in after.get(key, [])}
        for mount in before.get(key, []):
            if mount[place] in places and here.pop(mount[place], None) != mount:
                yield f"{path}.{key}[{mount[place]}]: {_WHOSE}. Remove it; mount a volume of yours elsewhere."
        for other in (place_of for place_of, mount in here.items() if mount not in before.get(key, [])):
            hidden = next((each for each in places if overlap(str(each), str(other))), None)
            if hidden is not None:
                yield f"{path}.{key}[{other}]: would hide {hidden}, which {_WHOSE}. Choose another path."


def _borrowed(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    """No other container has a volume or device of the administrator's, and the operator's none but as he gave it."""
    for where, container, known in _jobs_containers(brought, before, after, path):
        for kind, place in (("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")):
            for mount in container.get(kind, []):
                if mount.get("name") in brought.volumes and mount not in known.get(kind, []):
                    yield f"{where}.{kind}[{mount[place]}]: the volume {mount['name']} {_WHOSE}. Mount one of yours."
        for entry in container.get("env", []):
            source = _field(_field(entry, "valueFrom"), "fileKeyRef")
            if entry not in known.get("env", []) and _field(source, "volumeName") in brought.volumes:
                yield f"{where}.env[{entry['name']}]: the volume of its file {_WHOSE}. Read one of yours."
        claims, given = (each.get("resources", {}).get("claims") for each in (container, known))
        if claims != given and brought.names("resourceClaims"):
            yield f"{where}.resources.claims: the pod has devices of the administrator's. Remove the field."


def _jobs_containers(brought: Brought, before: Json, after: Json, path: str) -> Iterator[tuple[str, Json, Json]]:
    """Where, each container that is not the administrator's, and the same without the job's patch."""
    for key in _CONTAINERS:
        for container in after["spec"].get(key, []):
            if container["name"] not in brought.names(key):
                where = f"{path}.spec.{key}[{container['name']}]"
                yield where, container, _named(before["spec"].get(key), container["name"])


def _locked_environment(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    """Variables that say which folder of a volume is mounted (subPathExpr), and what they are made of."""
    one, other = (_named(template["spec"]["containers"], brought.own) for template in (before, after))
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
        yield f"{own}.env: {', '.join(sorted(names))} says which folder is mounted, and {_WHOSE}. Remove it."
    if names - variables.keys() and one.get("envFrom") != other.get("envFrom"):
        yield f"{own}.envFrom: may say which folder is mounted, which {_WHOSE}. Name variables in env."
    for entry in locked[0]:
        place = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        for kind, key in _METADATA_PATH.findall(place):
            if before["metadata"].get(kind, {}).get(key) != after["metadata"].get(kind, {}).get(key):
                yield f"{path}.metadata.{kind}.{key}: says which folder is mounted, and {_WHOSE}. Remove it."


def _objects(brought: Brought, before: Json, after: Json, path: str) -> Iterator[str]:
    """Claims and Secrets that the administrator names: a volume or variable of the job's own would open them whole."""
    pulls = [each["name"] for each in brought.spec.get("imagePullSecrets", [])]
    named = {*_named_objects(brought.spec), *(("Secret", name) for name in (*brought.pull_secrets, *pulls))}
    for volume in after["spec"].get("volumes", []):
        if volume["name"] in brought.volumes:
            continue
        where = _RUN_PATH if volume["name"] == RUN else f"{path}.spec.volumes[{volume['name']}]"
        yield from _sentences(named, volume, where)
        sources = _field(volume.get("projected"), "sources")
        kinds = (
            {key for source in sources if isinstance(source, dict) for key in source}
            if isinstance(sources, list)
            else set()
        )
        if _has_account(brought) and _IDENTITIES & kinds:
            yield f"{path}.spec.volumes[{volume['name']}]: is the account's identity, which {_WHOSE}. Remove it."
    for claim in after["spec"].get("resourceClaims", []):
        if claim["name"] not in brought.names("resourceClaims"):
            yield from _sentences(named, claim, f"{path}.spec.resourceClaims[{claim['name']}]")
    for where, container, known in _jobs_containers(brought, before, after, path):
        for source in ("env", "envFrom"):
            rest = [entry for entry in container.get(source, []) if entry not in known.get(source, [])]
            yield from _sentences(named, {source: rest}, f"{where}.{source}")


def _sentences(named: set[tuple[str, str]], value: Json, path: str) -> Iterator[str]:
    for kind, name in _named_objects(value):
        if (kind, name) in named:
            yield f"{path}: the {kind} {name} is one that the operator's workloads.podTemplate names. Name another one."


def _named_objects(value: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    """Kind and name of each claim and Secret that is named in it, wherever."""
    if isinstance(value, list):
        for each in value:
            yield from _named_objects(each)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key == "claimName":
            yield "PersistentVolumeClaim", str(inner)
        elif key in ("secretName", "resourceClaimName"):
            yield ("Secret" if key == "secretName" else "ResourceClaim"), str(inner)
        elif key in ("dataSource", "dataSourceRef") and isinstance(inner, dict):  # a claim that begins as a copy
            yield str(inner.get("kind")), str(inner.get("name"))
        elif key in _SECRET_REFERENCES and isinstance(inner, dict) and "name" in inner:
            yield "Secret", str(inner["name"])
        else:
            yield from _named_objects(inner)


def _has_account(brought: Brought) -> bool:
    return "serviceAccountName" in brought.spec or "serviceAccount" in brought.spec


def _field(value: object, key: str) -> object:
    """Of what may be no object: the API server has not judged it yet."""
    return value.get(key) if isinstance(value, dict) else None


def _references(text: object) -> list[str]:
    return _REFERENCE.findall(text) if isinstance(text, str) else []


def _named(entries: list[Json] | None, name: str) -> Json:
    return next((entry for entry in entries or [] if entry["name"] == name), {})
