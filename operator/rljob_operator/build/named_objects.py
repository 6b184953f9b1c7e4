"""Every place by which a job can name an object of the cluster, and who may name what there: one table.

The build refuses a job by it (`foreign_objects`), and the chart's admission policy is written from it
(`helm.policy_table`). Tests walk the API's models and Kubernetes' own pod template over it: a field that names an
object and is not here fails them. Pure; called before anything is built.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic.alias_generators import to_snake

from rljob_api import cluster
from rljob_api.roles import field_name
from rljob_api.spec import RLJob
from rljob_operator.build.redis import CONTROL_CLAIM
from rljob_operator.build.scheduling import makes_claim
from rljob_operator.build.template_patch import DIRECTIVE
from rljob_operator.options import ReservedObjects, WorkloadOptions

EACH = "[]"
"""In a path: every entry of a list, or of a map of roles."""

Path = tuple[str, ...]


class Kind(StrEnum):
    """Kinds of objects, as sentences call them."""

    SECRET = "Secret"  # noqa: S105 - a kind
    CONFIG_MAP = "ConfigMap"
    CLAIM = "PersistentVolumeClaim"
    VOLUME = "PersistentVolume"
    SERVICE_ACCOUNT = "ServiceAccount"
    RESOURCE_CLAIM = "ResourceClaim"
    RESOURCE_CLAIM_TEMPLATE = "ResourceClaimTemplate"
    PRIORITY_CLASS = "PriorityClass"
    RUNTIME_CLASS = "RuntimeClass"
    STORAGE_CLASS = "StorageClass"
    ATTRIBUTES_CLASS = "VolumeAttributesClass"
    CSI_DRIVER = "CSIDriver"
    TRUST_BUNDLE = "ClusterTrustBundle"
    SIGNER = "signer"
    ACCOUNT_OF_WINDOWS = "GMSACredentialSpec"
    NODE = "Node"
    ENDPOINTS = "Endpoints"
    WORKLOAD = "Workload"
    POD_GROUP = "PodGroup"
    SERVICE = "Service"
    SCHEDULER = "scheduler"
    EXTENDED_RESOURCE = "extended resource"
    CONTROLLER = "controller"


class Access(StrEnum):
    """Who may name what at a place."""

    OPEN = "Open"
    """A job names any object but the administrator's: what it names its pods read, write or are."""
    PULLED = "Pulled"
    """As OPEN; the Secrets that all pods pull images with anyway may be named, too, since no container sees them."""
    LISTED = "Listed"
    """A job names what `admissionPolicy` lists, where that is in force, and nowhere what is reserved."""
    CLUSTER = "Cluster"
    """A job names any: they belong to the whole cluster, and hold nothing of anybody's."""
    REFUSED = "Refused"
    """No job names any where `admissionPolicy` is in force."""
    BY_KEY = "ByKey"
    """A key of metadata: `workloads.reach` says which are refused (`build.reach`)."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place, below the spec of a job or below a pod template."""

    path: Path
    kind: Kind
    access: Access = Access.OPEN


def _place(path: str, kind: Kind, access: Access = Access.OPEN) -> Place:
    return Place(tuple(path.replace(EACH, f".{EACH}").split(".")), kind, access)


_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")

_WITH_SECRET_REF = ("cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos")
"""Kinds of volumes of Kubernetes' own that log in by a Secret."""

_NEVER = Access.REFUSED

_CLAIM_OF_POD = "spec.volumes[].ephemeral.volumeClaimTemplate.spec"

SPEC_PLACES = (
    _place("telemetry.keysFrom.secretName", Kind.SECRET),
    _place("checkpoint.volume.claimName", Kind.CLAIM),
    _place("scheduling.priorityClassName", Kind.PRIORITY_CLASS, Access.LISTED),
    _place("scheduling.schedulerName", Kind.SCHEDULER, Access.CLUSTER),
    _place("checkpoint.volume.storageClassName", Kind.STORAGE_CLASS, Access.CLUSTER),
    _place("transferQueue.redis.persistence.storageClassName", Kind.STORAGE_CLASS, Access.CLUSTER),
    _place("roles[].gpuResource", Kind.EXTENDED_RESOURCE, Access.CLUSTER),
    _place("managedBy", Kind.CONTROLLER, Access.CLUSTER),
)
"""Fields of a job's spec outside of its templates."""

POD_PLACES = (
    _place("spec.volumes[].secret.secretName", Kind.SECRET),
    _place("spec.volumes[].projected.sources[].secret.name", Kind.SECRET),
    _place("spec.volumes[].csi.nodePublishSecretRef.name", Kind.SECRET),
    _place("spec.volumes[].azureFile.secretName", Kind.SECRET),
    *(_place(f"spec.volumes[].{volume}.secretRef.name", Kind.SECRET) for volume in _WITH_SECRET_REF),
    *(_place(f"spec.{each}[].env[].valueFrom.secretKeyRef.name", Kind.SECRET) for each in _CONTAINERS),
    *(_place(f"spec.{each}[].envFrom[].secretRef.name", Kind.SECRET) for each in _CONTAINERS),
    _place("spec.imagePullSecrets[].name", Kind.SECRET, Access.PULLED),
    _place("spec.volumes[].configMap.name", Kind.CONFIG_MAP),
    _place("spec.volumes[].projected.sources[].configMap.name", Kind.CONFIG_MAP),
    *(_place(f"spec.{each}[].env[].valueFrom.configMapKeyRef.name", Kind.CONFIG_MAP) for each in _CONTAINERS),
    *(_place(f"spec.{each}[].envFrom[].configMapRef.name", Kind.CONFIG_MAP) for each in _CONTAINERS),
    _place("spec.volumes[].persistentVolumeClaim.claimName", Kind.CLAIM),
    # A claim that begins as a copy of another one, or of a snapshot of that name.
    _place(f"{_CLAIM_OF_POD}.dataSource.name", Kind.CLAIM),
    _place(f"{_CLAIM_OF_POD}.dataSourceRef.name", Kind.CLAIM),
    _place(f"{_CLAIM_OF_POD}.volumeName", Kind.VOLUME, _NEVER),
    _place(f"{_CLAIM_OF_POD}.selector", Kind.VOLUME, _NEVER),
    _place(f"{_CLAIM_OF_POD}.storageClassName", Kind.STORAGE_CLASS, Access.CLUSTER),
    _place(f"{_CLAIM_OF_POD}.volumeAttributesClassName", Kind.ATTRIBUTES_CLASS, Access.CLUSTER),
    _place("spec.resourceClaims[].resourceClaimName", Kind.RESOURCE_CLAIM),
    _place("spec.resourceClaims[].resourceClaimTemplateName", Kind.RESOURCE_CLAIM_TEMPLATE),
    _place("spec.serviceAccountName", Kind.SERVICE_ACCOUNT, Access.LISTED),
    _place("spec.serviceAccount", Kind.SERVICE_ACCOUNT, Access.LISTED),
    _place("spec.priorityClassName", Kind.PRIORITY_CLASS, Access.LISTED),
    _place("spec.volumes[].csi.driver", Kind.CSI_DRIVER, Access.LISTED),
    _place("spec.volumes[].flexVolume.driver", Kind.CSI_DRIVER, _NEVER),
    _place("spec.volumes[].glusterfs.endpoints", Kind.ENDPOINTS, _NEVER),
    _place("spec.securityContext.windowsOptions.gmsaCredentialSpecName", Kind.ACCOUNT_OF_WINDOWS, _NEVER),
    *(
        _place(f"spec.{each}[].securityContext.windowsOptions.gmsaCredentialSpecName", Kind.ACCOUNT_OF_WINDOWS, _NEVER)
        for each in _CONTAINERS
    ),
    _place("spec.nodeName", Kind.NODE, _NEVER),
    _place("spec.workloadRef", Kind.WORKLOAD, _NEVER),
    _place("spec.schedulingGroup", Kind.POD_GROUP, _NEVER),
    Place(("metadata", "labels", cluster.LABEL_POD_GROUP), Kind.POD_GROUP, Access.BY_KEY),
    Place(("metadata", "annotations", "scheduling.k8s.io/group-name"), Kind.POD_GROUP, Access.BY_KEY),
    _place("spec.runtimeClassName", Kind.RUNTIME_CLASS, Access.CLUSTER),
    _place("spec.schedulerName", Kind.SCHEDULER, Access.CLUSTER),
    _place("spec.subdomain", Kind.SERVICE, Access.CLUSTER),
    _place("spec.volumes[].projected.sources[].clusterTrustBundle.name", Kind.TRUST_BUNDLE, Access.CLUSTER),
    _place("spec.volumes[].projected.sources[].clusterTrustBundle.signerName", Kind.TRUST_BUNDLE, Access.CLUSTER),
    _place("spec.volumes[].projected.sources[].podCertificate.signerName", Kind.SIGNER, _NEVER),
)
"""Fields of a pod template."""

_RESERVED = {
    Kind.SECRET: "secrets",
    Kind.CONFIG_MAP: "config_maps",
    Kind.CLAIM: "persistent_volume_claims",
    Kind.SERVICE_ACCOUNT: "service_accounts",
    Kind.RESOURCE_CLAIM: "resource_claims",
}
"""Fields of the operator's option `workloads.reservedObjects`."""

OWN_NAMES = (
    (Kind.SECRET, "", cluster.secret_name("")),
    (Kind.CONFIG_MAP, "", cluster.config_name("")),
    (Kind.CLAIM, "", cluster.checkpoint_claim_name("")),
    (Kind.CLAIM, *CONTROL_CLAIM),
)
"""Kind, and what stands before and after the job's name, of the objects that a job makes and its pods mount."""

_NAMES_ANOTHER = "Name another one."


@dataclass(frozen=True, slots=True)
class Administrators:
    """The objects that the operator's options name: for each its option."""

    named: dict[tuple[Kind, str], str]
    pulled: frozenset[str]
    """Secrets that all pods pull images with."""
    reserved: ReservedObjects

    def option(self, place: Place, name: str) -> str | None:
        """The option that makes the object of this name the administrator's."""
        found = self.named.get((place.kind, name))
        if found is not None and place.access is not Access.LISTED:
            return None if place.access is Access.PULLED and name in self.pulled else found
        patterns: list[str] = getattr(self.reserved, _RESERVED[place.kind]) if place.kind in _RESERVED else []
        return "workloads.reservedObjects" if any(_matches(pattern, name) for pattern in patterns) else None


def administrators(workloads: WorkloadOptions) -> Administrators:
    """What the operator's options name."""
    named: dict[tuple[Kind, str], str] = {}
    pulled = set(workloads.pull_secrets)
    for place in (each for each in POD_PLACES if each.access in (Access.OPEN, Access.PULLED)):
        names = [name for _, name in names_at(workloads.pod_template, place.path, "")]
        named |= {(place.kind, name): "workloads.podTemplate" for name in names}
        pulled |= set(names) if place.access is Access.PULLED else set()
    named |= {(Kind.SECRET, name): "workloads.pullSecrets" for name in workloads.pull_secrets}
    return Administrators(named, frozenset(pulled), workloads.reserved_objects)


def foreign_objects(job: RLJob, workloads: WorkloadOptions) -> list[str]:
    """A sentence for each object that a job names, or would make, and that belongs to the administrator."""
    admin = administrators(workloads)
    own = {
        (kind, f"{before}{job.metadata.name}{after}")
        for kind, before, after in OWN_NAMES
        if kind is not Kind.CLAIM or before or makes_claim(job)
    }
    found = [*_made(admin, own)]
    spec = _with_names(job)
    for place in SPEC_PLACES:
        found += _named(admin, own, place, spec, "")
    for path, template in _templates(job):
        rest = _without_repeated(template, workloads.pod_template)
        for place in POD_PLACES:
            found += _named(admin, own, place, rest, path)
    return list(dict.fromkeys(found))


_JUDGED = (Access.OPEN, Access.PULLED, Access.LISTED)


def _with_names(job: RLJob) -> dict[str, Any]:
    """The parts of the spec that hold `SPEC_PLACES` which are judged."""
    parts = {to_snake(place.path[0]) for place in SPEC_PLACES if place.access in _JUDGED}
    dumped: dict[str, Any] = job.spec.model_dump(mode="json", include=parts)
    return dumped


def _templates(job: RLJob) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "infrastructure.template", job.spec.infrastructure.template
    for role, spec in job.spec.roles.present().items():
        yield f"roles.{field_name(role)}.template", spec.template


def _made(admin: Administrators, own: set[tuple[Kind, str]]) -> Iterator[str]:
    for kind, name in sorted(own):
        if (kind, name) in admin.named:
            yield (
                f"metadata.name: the {kind} {name}, which a job of this name makes, is one that the operator's"
                f" {admin.named[kind, name]} names. Give the job another name."
            )


def _named(admin: Administrators, own: set[tuple[Kind, str]], place: Place, value: object, path: str) -> Iterator[str]:
    for where, name in names_at(value, place.path, path):
        option = admin.option(place, name)
        if option is not None and (place.kind, name) not in own:
            yield f"{where}: the {place.kind} {name} is one that the operator's {option} names. {_NAMES_ANOTHER}"


def names_at(value: object, path: Path, where: str) -> Iterator[tuple[str, str]]:
    """Each name at `path` below `value`, and where it stands. What is no name there is the API server's to judge."""
    if not path:
        if isinstance(value, str):
            yield where, value
        return
    head, rest = path[0], path[1:]
    if head != EACH:
        if isinstance(value, dict) and head in value:
            yield from names_at(value[head], rest, f"{where}.{head}" if where else head)
        return
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from names_at(entry, rest, f"{where}.{key}")
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        # An entry that is deleted names nothing.
        if isinstance(entry, dict) and DIRECTIVE not in entry:
            yield from names_at(entry, rest, f"{where}[{entry.get('name', index)}]")


def _without_repeated(template: dict[str, Any], administrators_own: dict[str, Any]) -> dict[str, Any]:
    """A template without variables that it has as the administrator gives them to the same container.

    `envFrom` is replaced as a whole, so that a job which adds to it has to repeat what is there.
    """
    spec, given = template.get("spec"), administrators_own.get("spec")
    if not isinstance(spec, dict) or not isinstance(given, dict):
        return template
    pruned = {**spec}
    for key in _CONTAINERS:
        if isinstance(spec.get(key), list):
            pruned[key] = [_pruned(each, _of_name(given.get(key), each)) for each in spec[key]]
    return {**template, "spec": pruned}


def _of_name(entries: object, container: object) -> dict[str, Any]:
    name = container.get("name") if isinstance(container, dict) else None
    known = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return next((each for each in known if each.get("name") == name), {})


def _pruned(container: object, given: dict[str, Any]) -> object:
    if not isinstance(container, dict):
        return container
    lists = {key: container[key] for key in ("env", "envFrom") if isinstance(container.get(key), list)}
    return {**container, **{key: [one for one in each if one not in given.get(key, [])] for key, each in lists.items()}}


def _matches(pattern: str, name: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*") else name == pattern
