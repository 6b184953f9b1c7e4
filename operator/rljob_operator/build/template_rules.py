"""What a template patch must leave as it is, each with a sentence: what the operator knows pods by and workers live on.

Pure. Called before anything is built, and by validation. Whatever is not named here is the API server's to judge.
"""

import re
from collections.abc import Iterator
from typing import Any

from rljob_api import cluster
from rljob_api.roles import LEADING_ROLE, TRAITS, field_name
from rljob_api.spec import RLJob
from rljob_operator.build.containers import JOB, JOB_DIR, RUN, SECRET, STATE, overlap
from rljob_operator.build.parts import (
    CONTAINERS,
    INFRASTRUCTURE_CONTAINERS,
    ROLE_CONTAINERS,
    trackers,
)
from rljob_operator.build.scheduling import run_volume, shares_node
from rljob_operator.build.template_patch import DIRECTIVE, MERGE_KEYS
from rljob_operator.options import WorkloadOptions

_OWN_PREFIX = "rljob.dev/"
_OWN_ENVIRONMENT = "RLJOB_"
_OWN_VOLUMES = (SECRET, JOB, STATE)
_OWN_PATHS = (cluster.SECRET_DIR, JOB_DIR, cluster.STATE_DIR)
_OWN_FIELDS = ("command", "args")
_OBJECTS = ("metadata", "spec", "labels", "annotations")
_TEXTS = ("labels", "annotations", "matchLabels", "nodeSelector", "volumeAttributes")
"""Maps of texts. Their keys are names of the user's, which may be the names of fields as well."""
_LISTS_OF_OBJECTS = ("tolerations", "envFrom")
"""Those that the operator reads, beside the lists that are merged."""
_SOURCE = re.compile(r"\.volumes\[\d+\]\.[^.]+$")
_INFRASTRUCTURE = "infrastructure.template"
_PODS_OWN = ("emptyDir", "ephemeral")
"""Sources of a volume that no other pod sees."""


def template_problems(job: RLJob) -> list[str]:
    """A sentence for each thing that a role's template must not set."""
    found: list[str] = []
    for role, spec in job.spec.roles.present().items():
        found += _problems(spec.template, f"roles.{field_name(role)}.template", ROLE_CONTAINERS)
        found += _torn_apart(job, spec.template, f"roles.{field_name(role)}.template")
    infrastructure = job.spec.infrastructure.template
    found += _problems(infrastructure, _INFRASTRUCTURE, INFRASTRUCTURE_CONTAINERS)
    found += _torn_apart(job, infrastructure, _INFRASTRUCTURE)
    # Where the templates cannot be read, nothing more is made of them.
    return found or [*_other_run_volumes(job), *_apart_from_the_actor(job), *_of_no_tracker(job)]


def _of_no_tracker(job: RLJob) -> Iterator[str]:
    """A run volume on which a tracker's pod does not find what the coordinator writes."""
    if not trackers(job):
        return
    source = next((key for key in _PODS_OWN if key in run_volume(job)), None)
    if source is not None:
        yield (
            f"telemetry.reportTo: trackers read and write the checkpoint volume, but {source} in"
            f" roles.{field_name(LEADING_ROLE)}.template.spec.volumes[{RUN}] is each pod's own. Leave that volume to"
            " checkpoint.volume, or remove reportTo."
        )


def _torn_apart(job: RLJob, template: dict[str, Any], path: str) -> Iterator[str]:
    """What would take a pod out of its gang: the others would wait for it for ever."""
    if job.spec.scheduling.gang is None:
        return
    if "schedulerName" in _object(template, "spec"):
        yield f"{path}.spec.schedulerName: all pods of a gang have one scheduler. Give scheduling.schedulerName."
    if cluster.LABEL_POD_GROUP in _object(_object(template, "metadata"), "labels"):
        label = f"{path}.metadata.labels.{cluster.LABEL_POD_GROUP}"
        yield f"{label}: belongs to the operator, since scheduling.gang is given. Remove it."


def _other_run_volumes(job: RLJob) -> Iterator[str]:
    """A run volume of its own, where the parts of one checkpoint lie in one folder."""
    for path, who, template in _beside_the_actor(job):
        names = [volume["name"] for volume in _object(template, "spec").get("volumes", [])]
        if RUN in names:
            yield (
                f"{path}.spec.volumes[{RUN}]: the {who} writes to the folder that the actor writes to. Give the volume"
                f" in roles.{field_name(LEADING_ROLE)}.template, for both."
            )


def _apart_from_the_actor(job: RLJob) -> Iterator[str]:
    """A node that a pod is sent to and the actor is not, though both have to be on one."""
    if not shares_node(job):
        return
    actor = _node_selector(job.spec.roles.present()[LEADING_ROLE].template)
    for path, who, template in _beside_the_actor(job):
        for label, value in _node_selector(template).items():
            if label in actor and actor[label] != value:
                yield (
                    f"{path}.spec.nodeSelector.{label}: {_shown(value)} is where the actor is not (its template has"
                    f" {_shown(actor[label])}), and checkpoint.volume.accessMode ReadWriteOnce keeps the {who} on the"
                    " actor's node. Give ReadWriteMany and a class of storage that all nodes share, or leave this out."
                )


def _beside_the_actor(job: RLJob) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of each that mounts the run volume too: where its template stands, what it is called, and the template."""
    yield _INFRASTRUCTURE, "coordinator", job.spec.infrastructure.template
    for role, spec in job.spec.roles.present().items():
        if TRAITS[role].saves and role is not LEADING_ROLE:
            yield f"roles.{field_name(role)}.template", field_name(role), spec.template


def _node_selector(template: dict[str, Any]) -> dict[str, Any]:
    return _object(_object(template, "spec"), "nodeSelector")


def _object(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def options_problems(options: WorkloadOptions) -> list[str]:
    """The same for the template of the operator's options."""
    return list(_problems(options.pod_template, "workloads.podTemplate", CONTAINERS))


def _problems(template: dict[str, Any], path: str, own: tuple[str, ...]) -> Iterator[str]:
    shape = list(_shape(template, path))
    if shape:
        yield from shape
        return
    for key in template:
        if key not in ("metadata", "spec"):
            yield f"{path}.{key}: there is no such field. Give metadata or spec, as in a pod template."
    yield from _metadata(template.get("metadata", {}), f"{path}.metadata")
    spec = template.get("spec", {})
    # The run volume is that of all who save and the coordinator: the actor's template may give them another one.
    others = (RUN,) if len(own) > 1 else ()
    yield from _volumes(spec, f"{path}.spec", (*_OWN_VOLUMES, *others))
    yield from _containers(spec, f"{path}.spec", own)


def _shape(value: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Maps where maps are wanted, lists of maps with their key where lists are merged by it."""
    for key, inner in value.items():
        where = f"{path}.{key}"
        if key == DIRECTIVE:
            yield f"{where}: belongs into an entry of a list. Give null to delete a field."
        elif key.startswith(DIRECTIVE[0]):
            yield f"{where}: is not known here. Give null to delete a field, and $patch: delete in an entry of a list."
        elif _wants_object(key, inner, path) and not isinstance(inner, dict):
            yield f"{where}: {_shown(inner)} is not an object. Give an object."
        elif key in _TEXTS and isinstance(inner, dict):
            yield from _texts(inner, where)
        elif key in MERGE_KEYS:
            yield from _merged_list(inner, where, MERGE_KEYS[key])
        elif key in _LISTS_OF_OBJECTS and not _are_objects(inner):
            yield f"{where}: {_shown(inner)} is not a list of objects. Give {key} as in a pod template."
        elif isinstance(inner, dict):
            yield from _shape(inner, where)


def _texts(value: dict[str, Any], path: str) -> Iterator[str]:
    """Or null, which deletes one."""
    for key, inner in value.items():
        if inner is not None and not isinstance(inner, str):
            yield f"{path}.{key}: {_shown(inner)} is not text. Give it in quotes."


def _wants_object(key: str, inner: Any, path: str) -> bool:  # noqa: ANN401 - JSON
    """Also a volume's source, and the resources of a container, which a gang is summed up from.

    Null takes away what the operator sets of these.
    """
    of_container = path.endswith("]") if key == "resources" else path.endswith("].resources")
    is_amounts = key in ("resources", "requests", "limits") and of_container
    is_source = key != MERGE_KEYS["volumes"] and _SOURCE.search(f"{path}.{key}") is not None
    return key in _OBJECTS or ((is_amounts or is_source) and inner is not None)


def _are_objects(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Or null, which deletes them."""
    return value is None or (isinstance(value, list) and all(isinstance(each, dict) for each in value))


def _merged_list(entries: Any, path: str, key: str) -> Iterator[str]:  # noqa: ANN401 - JSON
    if not isinstance(entries, list):
        cure = f"Give a list of objects with {key}, and {{{key}: ..., $patch: delete}} to delete one."
        yield f"{path}: {_shown(entries)} is not a list. {cure}"
        return
    for index, entry in enumerate(entries):
        where = f"{path}[{index}]"
        if not isinstance(entry, dict):
            yield f"{where}: {_shown(entry)} is not an object. Give an object with {key}."
        elif not isinstance(entry.get(key), str | int):
            yield f"{where}.{key}: is missing. Entries are merged by it: give one."
        elif entry.get(DIRECTIVE, "delete") != "delete":
            yield f"{where}.{DIRECTIVE}: {_shown(entry[DIRECTIVE])} is not known here. Give delete or leave it out."
        else:
            yield from _shape({name: inner for name, inner in entry.items() if name != DIRECTIVE}, where)


def _metadata(metadata: dict[str, Any], path: str) -> Iterator[str]:
    for key, value in metadata.items():
        if key not in ("labels", "annotations"):
            yield f"{path}.{key}: cannot be patched. Give labels and annotations only."
            continue
        for name in value:
            if name.startswith(_OWN_PREFIX):
                yield f"{path}.{key}.{name}: belongs to the operator, which knows the pod by it. Remove it."


def _volumes(spec: dict[str, Any], path: str, own: tuple[str, ...]) -> Iterator[str]:
    for volume in spec.get("volumes", []):
        if volume["name"] == RUN and DIRECTIVE in volume:
            yield f"{path}.volumes[{RUN}]: cannot be deleted: checkpoints and logs lie on it. Give it another source."
        if volume["name"] in own:
            yield (
                f"{path}.volumes[{volume['name']}]: belongs to the operator, and workers live on it."
                " Give a volume of yours another name."
            )


def _containers(spec: dict[str, Any], path: str, own: tuple[str, ...]) -> Iterator[str]:
    for container in spec.get("containers", []):
        if container["name"] in own:
            yield from _own_container(container, f"{path}.containers[{container['name']}]")


def _own_container(container: dict[str, Any], path: str) -> Iterator[str]:
    if DIRECTIVE in container:
        yield f"{path}: cannot be deleted, since it is what the pod is for. Remove $patch."
    for field in _OWN_FIELDS:
        if field in container:
            yield f"{path}.{field}: cannot be patched: the operator starts the program. Remove it."
    for variable in container.get("env", []):
        name = str(variable["name"])
        if name.startswith(_OWN_ENVIRONMENT) and name != cluster.PRETENDED_DEVICES:
            yield f"{path}.env[{variable['name']}]: belongs to the operator. Choose a name without {_OWN_ENVIRONMENT}."
    for mount in container.get("volumeMounts", []):
        place = str(mount["mountPath"])
        if _is_taken(place):
            yield f"{path}.volumeMounts[{place}]: would hide what the operator mounts there. Choose another path."
    message = str(container.get("terminationMessagePath") or "")
    if message and _is_taken(message):
        yield f"{path}.terminationMessagePath: {message} is where the operator mounts something. Choose another path."


def _is_taken(place: str) -> bool:
    return any(overlap(place, taken) for taken in _OWN_PATHS)


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
